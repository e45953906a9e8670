"""Publishing and loading through huggingface_hub, against a hub on this machine."""

from __future__ import annotations

import base64
import hashlib
import importlib
import json
import threading
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from torch import nn

import polymode as pm
from polymode.core.safe_files import FileProblem
from polymode.posterior.hub import card, read_address

COMMIT = "a" * 40
TOKEN = "hf_right"


@pytest.mark.parametrize(
    "text, message",
    [
        ("hf://me/moons", "is not pinned: it has no revision"),
        ("hf://me/moons@main", "is not pinned: 'main' may point elsewhere tomorrow"),
        ("hf://me/moons@abc123", "is not pinned"),
        ("hf://moons@" + COMMIT, "is not the address of a posterior"),
        ("hf://me/../moons@" + COMMIT, "is not the address of a posterior"),
        (f"hf://me/moons@{COMMIT}#12", "must have 32 hexadecimal digits"),
    ],
)
def test_addresses_that_are_not_pinned_are_refused(text: str, message: str) -> None:
    """Before the library is asked for: none is needed to say so."""
    with pytest.raises(ValueError, match=message):
        pm.load(text, net=network)


def test_an_address_is_read_and_written() -> None:
    text = f"hf://me/two.moons-1@{COMMIT}#{'0' * 32}"
    assert str(read_address(text)) == text


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2))


@pytest.fixture(scope="module")
def post() -> pm.Posterior:
    task = pm.task("two_moons", num_train=32, num_test=20)
    return pm.fit("swag", net=network, task=task, epochs=3, num_modes=2, progress="silent")


def test_the_card_says_what_it_is(post: pm.Posterior, tmp_path: Path) -> None:
    post.save(tmp_path)
    task = pm.task("two_moons", num_train=32, num_test=20)
    text = card(post, tmp_path, pm.evaluate(post, task))
    assert text.startswith("---\nlibrary_name: polymode\n")
    assert "| method | `swag`: " in text
    assert "2 modes × Sequential" in text
    assert "| test | nll ↓ |" in text, text
    assert "@inproceedings{maddox2019" in text
    assert "None" not in text


class Hub(ThreadingHTTPServer):
    """A hub with one file tree per commit; it refuses as the real one does."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.commits: dict[tuple[str, str], dict[str, bytes]] = {}
        self.repos: set[str] = set()


class Answer(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *_: object) -> None:
        pass

    def say(self, status: int, body: object = None, **headers: str) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def refused(self) -> bool:
        if self.headers.get("Authorization") == f"Bearer {TOKEN}":
            return False
        self.say(401, {"error": "Invalid username or password."}, X_Error_Message="Invalid")
        return True

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.refused():
            return
        if self.path == "/api/repos/create":
            asked = json.loads(content)
            repo = f"{asked.get('organization') or 'me'}/{asked['name']}"
            self.server.repos.add(repo)
            self.say(200, {"url": f"http://127.0.0.1:{self.server.server_port}/{repo}"})
        elif self.path == "/api/validate-yaml":
            self.say(200, {"errors": [], "warnings": []})
        elif "/preupload/" in self.path:
            files = [each["path"] for each in json.loads(content)["files"]]
            modes = [{"path": p, "uploadMode": "regular", "shouldIgnore": False} for p in files]
            self.say(200, {"files": modes})
        else:
            repo = self.path.removeprefix("/api/models/").split("/commit/")[0]
            lines = [json.loads(line) for line in content.splitlines()]
            files = {
                line["value"]["path"]: base64.b64decode(line["value"]["content"])
                for line in lines
                if line["key"] == "file"
            }
            commit = hashlib.sha1(content).hexdigest()
            self.server.commits[repo, commit] = files
            url = f"http://127.0.0.1:{self.server.server_port}/{repo}/commit/{commit}"
            self.say(200, {"success": True, "commitOid": commit, "commitUrl": url})

    def do_GET(self) -> None:
        if self.path.startswith("/api/models/"):
            repo, _, rest = self.path.removeprefix("/api/models/").partition("/revision/")
            repo, commit = "/".join(repo.split("/")[:2]), rest.split("?")[0]
            if "/tree/" in self.path:
                commit = self.path.split("/tree/")[1].split("?")[0].split("/")[0]
            files = self.files(repo, commit or "main")
            if files is None:
                return
            names = [{"rfilename": name, "path": name, "type": "file"} for name in files]
            names = [{**n, "size": len(files[n["path"]]), "oid": "0" * 40} for n in names]
            about = {"id": repo, "sha": commit, "siblings": names, "private": False, "tags": []}
            self.say(200, names if "/tree/" in self.path else about)
            return
        repo, _, rest = self.path.removeprefix("/").partition("/resolve/")
        commit, _, name = rest.partition("/")
        files = self.files(repo, commit)
        if files is not None:
            mark = hashlib.sha1(files[name]).hexdigest()
            self.say(200, files[name], ETag=f'"{mark}"', X_Repo_Commit=commit)

    do_HEAD = do_GET

    def files(self, repo: str, commit: str) -> dict[str, bytes] | None:
        found = self.server.commits.get((repo, commit))
        if commit == "main" and repo in self.server.repos:
            return {}  # asked before publishing: nothing there to be removed
        if found is None:
            known = "RevisionNotFound" if repo in self.server.repos else "RepoNotFound"
            self.say(404, {"error": known}, X_Error_Code=known)
        return found


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    library = pytest.importorskip("huggingface_hub", reason="`make test-hub` installs it")
    served = Hub()
    thread = threading.Thread(target=served.serve_forever, daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{served.server_port}"
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    constants = importlib.import_module("huggingface_hub.constants")
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no token"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(
        constants,
        "HUGGINGFACE_CO_URL_TEMPLATE",
        address + "/{repo_id}/resolve/{revision}/{filename}",
    )
    make = library.HfApi.__init__

    def here(self, endpoint=None, **options):
        make(self, endpoint=address, **options)

    monkeypatch.setattr(library.HfApi, "__init__", here)
    yield served
    served.shutdown()
    served.server_close()
    thread.join()


def test_what_is_published_is_what_is_loaded(hub: Hub, post: pm.Posterior) -> None:
    address = post.push("moons", token=TOKEN)
    assert address.startswith("hf://me/moons@")
    (files,) = hub.commits.values()
    assert sorted(files) == ["README.md", "members-1.safetensors", "posterior.json"]
    again = pm.load(address, net=network, token=TOKEN)
    x = torch.randn(5, 2)
    assert torch.equal(again.predict(x).mean, post.predict(x).mean)
    wrong = address.split("#")[0] + "#" + "0" * 32
    with pytest.raises(FileProblem, match="has another content than the address says"):
        pm.load(wrong, net=network, token=TOKEN)


def test_a_file_that_the_hub_changed_is_refused(hub: Hub, post: pm.Posterior) -> None:
    address = post.push("moons", token=TOKEN)
    (files,) = hub.commits.values()
    raw = bytearray(files["members-1.safetensors"])
    raw[-1] ^= 1
    files["members-1.safetensors"] = bytes(raw)
    with pytest.raises(FileProblem, match="was changed after it was written"):
        pm.load(address, net=network, token=TOKEN)


def test_what_the_hub_does_not_do_is_said(hub: Hub, post: pm.Posterior) -> None:
    with pytest.raises(ValueError, match="the hub refuses the token for moons"):
        post.push("moons", token="hf_wrong")
    with pytest.raises(ValueError, match="the hub has no me/nothing, or it is private"):
        pm.load(f"hf://me/nothing@{COMMIT}", net=network)
    post.push("moons", token=TOKEN)
    with pytest.raises(ValueError, match=f"the hub has me/moons, but no revision {COMMIT}"):
        pm.load(f"hf://me/moons@{COMMIT}", net=network)


def test_a_hub_that_is_not_there_is_said(hub: Hub, post: pm.Posterior) -> None:
    hub.shutdown()
    hub.server_close()
    with pytest.raises(ValueError, match="the hub cannot be reached for me/moons@aaaaaaaa"):
        pm.load(f"hf://me/moons@{COMMIT}", net=network)


def test_what_is_fetched_is_held_against_the_digest_of_the_address(
    post: pm.Posterior, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever serves it; here a library that gives the same folder for any address."""
    post.save(tmp_path)

    class Library:
        def HfApi(self, token: str | None) -> Library:
            return self

        def snapshot_download(self, *_: object, **__: object) -> str:
            return str(tmp_path)

    monkeypatch.setattr("polymode.posterior.hub._library", Library)
    monkeypatch.setattr("polymode.posterior.hub._naming_failures", lambda *_: nullcontext())
    digest = json.loads((tmp_path / "posterior.json").read_text())["digest"]
    x = torch.zeros(3, 2)
    for mark in ("", f"#{digest}"):
        loaded = pm.load(f"hf://me/moons@{COMMIT}{mark}", net=network)
        assert torch.equal(loaded.predict(x).mean, post.predict(x).mean)
    with pytest.raises(FileProblem, match="has another content than the address says"):
        pm.load(f"hf://me/moons@{COMMIT}#{'0' * 32}", net=network)
