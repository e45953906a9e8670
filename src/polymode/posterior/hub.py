"""Posteriors on a Hugging Face hub: published with a card, loaded by a pinned address.

    hf://OWNER/NAME@REVISION#DIGEST

REVISION is a commit, all 40 digits: a branch or a tag may point elsewhere tomorrow. DIGEST, which
may be left out, is the digest of the manifest. The manifest holds the digests of all tensors, so
content is checked here, whoever serves it. Only the manifest and safetensors files are fetched, and
nothing is unpickled. Needs the extra `polymode[hub]`.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from polymode._version import __version__
from polymode.core.memory import human
from polymode.core.registry import metadata_of
from polymode.core.rows import shapes_text
from polymode.core.safe_files import FileProblem
from polymode.core.text import first_line, parse_json
from polymode.posterior.manifest import MANIFEST
from polymode.posterior.ranked import Ranked

if TYPE_CHECKING:
    from polymode.posterior.posterior import Posterior

START = "hf://"
_FILES = [MANIFEST, "members-*.safetensors"]
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_ADDRESS = re.compile(
    rf"hf://(?P<repo>{_NAME}/{_NAME})(@(?P<revision>[^#]*))?(#(?P<digest>.*))?", re.ASCII
)


class Address(NamedTuple):
    """Where a published posterior is, and which one it must be."""

    repo: str
    revision: str
    digest: str | None

    def __str__(self) -> str:
        mark = f"#{self.digest}" if self.digest else ""
        return f"{START}{self.repo}@{self.revision}{mark}"


def read_address(text: str) -> Address:
    """Return what an address says; one that is not pinned is refused.

    >>> str(read_address("hf://me/moons@" + 40 * "a"))
    'hf://me/moons@aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'
    """
    match = _ADDRESS.fullmatch(text)
    if match is None:
        raise ValueError(
            f"'{text}' is not the address of a posterior; they look like"
            " hf://OWNER/NAME@REVISION, as post.push returns them"
        )
    revision, digest = match["revision"] or "", match["digest"]
    if not re.fullmatch(r"[0-9a-f]{40}", revision):
        fault = f"'{revision}' may point elsewhere tomorrow" if revision else "it has no revision"
        raise ValueError(
            f"'{text}' is not pinned: {fault}. Give the commit, 40 hexadecimal digits, as post.push"
            f" returns it or the page of {match['repo']} shows it: hf://{match['repo']}@COMMIT"
        )
    if digest is not None and not re.fullmatch(r"[0-9a-f]{32}", digest):
        raise ValueError(f"'{text}': the digest behind # must have 32 hexadecimal digits")
    return Address(match["repo"], revision, digest)


def fetch(text: str, token: str | None = None) -> Path:
    """Return the folder, in the hub's cache, with the files of a published posterior."""
    address = read_address(text)
    with _naming_failures(address.repo, address.revision):
        path = (
            _library()
            .HfApi(token=token)
            .snapshot_download(address.repo, revision=address.revision, allow_patterns=_FILES)
        )
    folder = Path(path)
    if not (folder / MANIFEST).is_file():
        raise FileProblem(f"{address} holds no {MANIFEST}: it is not a posterior of polymode")
    if address.digest is not None and address.digest != _digest(folder):
        raise FileProblem(
            f"{address} has another content than the address says: the digest of its {MANIFEST} is"
            f" {_digest(folder)}"
        )
    return folder


def push(
    post: Posterior,
    name: str,
    *,
    results: Any = None,
    private: bool = False,
    token: str | None = None,
    message: str = "Publish a posterior",
) -> str:
    """Publish a posterior and return its pinned address, see `Posterior.push`."""
    if not re.fullmatch(rf"({_NAME}/)?{_NAME}", name, re.ASCII):
        raise ValueError(f"`name` must be NAME or OWNER/NAME on the hub, got {name!r:.80}")
    if isinstance(post.weights, Ranked):
        raise ValueError(
            "ranks do not publish, one process does: post.save(folder) here, then"
            " pm.load(folder, net=...).push(name) without torchrun"
        )
    api = _library().HfApi(token=token)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        post.save(folder)
        (folder / "README.md").write_text(card(post, folder, results), encoding="utf-8")
        with _naming_failures(name, None):
            repo = api.create_repo(name, private=private, exist_ok=True).repo_id
            commit = api.upload_folder(
                repo_id=repo,
                folder_path=folder,
                commit_message=message,
                allow_patterns=[*_FILES, "README.md"],
                delete_patterns=["members-*.safetensors"],
            )
        return str(Address(repo, commit.oid, _digest(folder)))


def _digest(folder: Path) -> str:
    return str(parse_json((folder / MANIFEST).read_bytes()).get("digest"))


# ---------------------------------------------------------------- the card


def card(post: Posterior, folder: Path, results: Any = None) -> str:
    """Return the model card: what it is, how it was made, how well it does, how to load it."""
    import_module("polymode.methods")  # a process that loaded the posterior may not have
    about = metadata_of("method", post.method)
    like = post.weights.like
    kind = "classification" if post.likelihood.classification else "regression"
    head = ["library_name: polymode", f"tags: [uncertainty, bayesian, {kind}, {post.method}]"]
    size = human(sum(path.stat().st_size for path in folder.glob("members-*.safetensors")))
    facts = {
        "method": f"`{post.method}`: {about['summary']}" if about else f"`{post.method}`",
        "networks": f"{post.num_modes:,} modes × {type(like.template).__name__},"
        f" {like.num_parameters:,} parameters each",
        "samples": f"{post.num_samples:,}, {post.weights.samples_per_mode:,} per mode",
        "likelihood": post.likelihood.name,
        "inputs": shapes_text(post.input_shape),
        "classes" if post.likelihood.classification else "outputs": f"{post.target_size:,}",
        "seed": str(post.seed),
        "options": ", ".join(f"{k}={v}" for k, v in post.config.items() if v is not None),
        "made with": f"polymode {__version__}",
        "files": f"safetensors, {size}; digest `{_digest(folder)}`",
    }
    parts = [
        "---\n" + "\n".join(head) + "\n---",
        f"# A posterior over {type(like.template).__name__}s by {post.method}",
        _table(["", ""], [[key, value] for key, value in facts.items()]),
        "## How to use it\n\n```python\nimport polymode as pm\n\npost = pm.load("
        '"hf://OWNER/NAME@COMMIT", net=...)  # the network it was fitted with\n'
        "post.predict(x).mean\n```",
    ]
    rows = [] if results is None else _rows(results)
    if rows:
        columns = ["data", "metric", "value", "standard error", "n"]
        parts.append(f"## Results on {results.task}\n\n{_table(columns, rows)}")
    if about and about.get("limits"):
        parts.append(f"## Limits\n\n{about['limits']}")
    if about and about.get("bibtex"):
        parts.append(f"## Reference\n\n```bibtex\n{about['bibtex']}\n```")
    return "\n\n".join(parts) + "\n"


def _rows(results: Any) -> list[list[str]]:
    """Return the numbers of `pm.evaluate` that have a direction: the better, the more."""
    return [
        [
            row.dataset,
            f"{row.metric} {'↑' if row.direction == 'up' else '↓'}",
            f"{row.value:.4g}",
            "" if row.standard_error is None else f"{row.standard_error:.2g}",
            f"{row.n:,}",
        ]
        for row in results.rows
        if row.value is not None and row.direction
    ]


def _table(columns: list[str], rows: list[list[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


# ---------------------------------------------------------------- the library


def _library() -> Any:
    try:
        import huggingface_hub
    except ImportError:
        raise ValueError(
            "posteriors on a hub need huggingface_hub: pip install 'polymode[hub]'"
        ) from None
    return huggingface_hub


@contextmanager
def _naming_failures(repo: str, revision: str | None) -> Iterator[None]:
    """Turn errors of the hub into a `ValueError` of one line with a remedy."""
    from huggingface_hub import errors

    at = f"{repo}@{revision[:8]}" if revision else repo
    try:
        yield
    except errors.RevisionNotFoundError:
        raise ValueError(f"the hub has {repo}, but no revision {revision} of it") from None
    except errors.RepositoryNotFoundError as error:  # of private ones, too
        if _status(error) == 401:
            raise ValueError(_REFUSED.format(at)) from None
        raise ValueError(
            f"the hub has no {repo}, or it is private and no token with access was given:"
            " look at the name, or set HF_TOKEN"
        ) from None
    except errors.LocalTokenNotFoundError:
        raise ValueError(
            f"to publish {at} needs a token: set HF_TOKEN, or `hf auth login`"
        ) from None
    except errors.HfHubHTTPError as error:
        status = _status(error)
        if status in (401, 403):
            raise ValueError(_REFUSED.format(at)) from None
        raise ValueError(f"the hub answers {status} for {at}: {first_line(error)}") from None
    except Exception as error:
        transport = type(error).__module__.startswith(("httpx", "httpcore", "requests"))
        if not transport and not isinstance(error, errors.LocalEntryNotFoundError | OSError):
            raise
        raise ValueError(
            f"the hub cannot be reached for {at}: {first_line(error)}; look at the network, and at"
            " HF_ENDPOINT"
        ) from None


_REFUSED = (
    "the hub refuses the token for {}: it is wrong, has expired or may not do this; set HF_TOKEN"
    " to one that may, or give token=..."
)


def _status(error: Any) -> int | None:
    return getattr(getattr(error, "response", None), "status_code", None)
