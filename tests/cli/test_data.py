"""`polymode data` as a user meets it: lists, terms before the download, one-line errors, Ctrl-C."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from polymode.cli.app import main
from polymode.tasks.files import DATASETS, ArraySpec, Dataset, Original
from polymode.tasks.readers import read_table

CONTENT = b"1 2\n" * 50_000


def pairs(files) -> dict[str, np.ndarray]:
    return {"x": read_table(files["pairs.txt"]).values}


def pairs_at(address: str) -> Dataset:
    digest = hashlib.sha256(CONTENT).hexdigest()
    original = Original("pairs.txt", (f"{address}pairs.txt",), len(CONTENT), digest)
    arrays = {"x": ArraySpec((50_000, 2), "float64")}
    return Dataset("pairs of numbers", "public domain", (original,), pairs, arrays)


class Web:
    """Serves `CONTENT`; as long as it `stalls`, half of it."""

    def __init__(self) -> None:
        self.stalls, self.ranges, self.end = False, [], threading.Event()
        web = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                span = self.headers.get("Range", "bytes=0-")
                web.ranges.append(span)
                start = int(span[6:-1])
                self.send_response(206 if start else 200)
                self.send_header("Content-Length", str(len(CONTENT) - start))
                self.send_header("Content-Range", f"bytes {start}-")
                self.end_headers()
                if web.stalls:
                    self.wfile.write(CONTENT[start : start + len(CONTENT) // 2])
                    web.end.wait(20)
                else:
                    self.wfile.write(CONTENT[start:])

            def log_message(self, *args: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.address = f"http://127.0.0.1:{self.http.server_address[1]}/"
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()


@pytest.fixture
def web(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    started = Web()
    monkeypatch.setattr(DATASETS, "_entries", dict(DATASETS._entries))
    DATASETS.register("pairs")(pairs_at(started.address))
    yield started
    started.end.set()
    started.http.shutdown()
    started.http.server_close()


@pytest.fixture
def data(tmp_path, monkeypatch):
    folder = tmp_path / "data"
    monkeypatch.setenv("POLYMODE_DATA", str(folder))
    return folder


def test_list_tells_size_licence_and_what_is_here(data, capsys):
    assert main(["data", "list"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"Data folder: {data}\n")
    line = next(line for line in out.splitlines() if line.startswith("fashion_mnist "))
    assert line.split()[1:5] == ["30.9", "MB", "sha256", "no"]
    assert "MIT (Zalando)" in line
    line = next(line for line in out.splitlines() if line.startswith("cifar10_subset "))
    assert "only --from" in line
    data.mkdir()
    (data / "kmnist_test.npz").touch()
    assert main(["data", "list", "k*"]) == 0
    out = capsys.readouterr().out
    assert "kmnist_test.npz" in out and "mnist\n" not in out and len(out.splitlines()) == 4


def test_get_states_the_terms_first_and_ends_with_the_file(web, data, capsys):
    assert main(["data", "get", "pairs"]) == 0
    printed = capsys.readouterr()
    assert printed.out == f"pairs: {data / 'pairs.npz'}\n"
    lines = printed.err.splitlines()
    assert lines[:4] == [
        "pairs: pairs of numbers",
        "  licence: public domain",
        f"  from:    {web.address}",
        "  size:    200 kB in 1 file, sha256",
    ]
    assert "  200 kB of 200 kB" in lines
    assert lines[-2:] == ["  reading pairs.txt", f"  writing {data / 'pairs.npz'}"]
    assert main(["data", "get", "pairs"]) == 0
    assert capsys.readouterr().err == "pairs: here already, nothing to do\n"
    assert web.ranges == ["bytes=0-"]


def test_get_from_a_folder_with_a_packed_file(data, tmp_path, monkeypatch, capsys):
    """As with a folder that someone packed: `mnist_like_test.npz`, labels as bytes, compressed."""
    monkeypatch.setattr(DATASETS, "_entries", dict(DATASETS._entries))
    arrays = {"x_test": ArraySpec((6, 28, 28), "uint8"), "y_test": ArraySpec((6,), "int64", 10)}
    also = {"mnist_like_test.npz": ("x_test", "y_test")}
    DATASETS.register("mnist_like")(Dataset("d", "l", (), None, arrays, also))
    source = tmp_path / "shared"
    source.mkdir()
    images, labels = np.zeros((6, 28, 28), np.uint8), np.arange(6, dtype=np.uint8)
    np.savez_compressed(source / "mnist_like_test.npz", x_test=images, y_test=labels)
    assert main(["data", "get", "mnist_like", "--from", str(source)]) == 0
    assert capsys.readouterr().out == f"mnist_like: {data / 'mnist_like_test.npz'}\n"
    with np.load(data / "mnist_like_test.npz", allow_pickle=False) as packed:
        assert packed["y_test"].tolist() == [0, 1, 2, 3, 4, 5]


def test_one_failure_does_not_stop_the_others(web, data, tmp_path, capsys):
    (tmp_path / "pairs.txt").write_bytes(CONTENT)
    assert main(["data", "get", "mnist", "pairs", "--from", str(tmp_path)]) == 1
    printed = capsys.readouterr()
    problems = [line for line in printed.err.splitlines() if line.startswith("polymode: ")]
    assert len(problems) == 1
    assert "has no mnist.npz, nor train-images-idx3-ubyte.gz, train-labels" in problems[0]
    assert printed.out == f"pairs: {data / 'pairs.npz'}\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["get", "mnst"], "Unknown data set 'mnst'. Did you mean 'mnist'?"),
        (["get"], "Missing argument 'NAME'"),
        (["get", "mnist", "--from", "nowhere"], "--from takes a folder; nowhere is not one"),
        (["gte"], "No such command 'gte'"),
    ],
)
def test_usage_errors_are_one_line_and_code_2(words, message, data, capsys):
    assert main(["data", *words]) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.err.startswith("polymode: ") and printed.err.count("\n") == 1
    assert not data.exists()


def test_a_folder_that_cannot_be_written_is_one_line_and_code_1(web, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    monkeypatch.setenv("POLYMODE_DATA", str(tmp_path / "file" / "data"))
    assert main(["data", "get", "pairs"]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("polymode: cannot use") and "Not a directory" in last


def test_help_shows_examples(capsys):
    assert main(["data", "--help"]) == 0
    assert "polymode data get cifar10 --from" in capsys.readouterr().out
    assert main(["data"]) == 2


SCRIPT = """
import sys
sys.path.insert(0, {folder!r})
import test_data
from polymode.cli.app import main
from polymode.tasks.files import DATASETS
DATASETS.register("pairs")(test_data.pairs_at({address!r}))
sys.exit(main(["data", "get", "pairs"]))
"""


def command(web) -> list[str]:
    script = SCRIPT.format(folder=os.path.dirname(__file__), address=web.address)
    return [sys.executable, "-c", script]


@pytest.mark.cpu_seconds(10)
def test_ctrl_c_leaves_a_part_exits_130_and_resumes(web, data, capsys):
    web.stalls = True
    part = data / "downloads" / "pairs" / "pairs.txt.part"
    process = subprocess.Popen(command(web), stderr=subprocess.PIPE, text=True)
    for _ in range(1000):
        if part.exists() and part.stat().st_size == len(CONTENT) // 2:
            break
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=30)
    assert process.returncode == 130
    assert error.splitlines()[-1] == "Interrupted. Resume: polymode data get pairs"
    assert "Traceback" not in error
    assert 0 < part.stat().st_size <= len(CONTENT) // 2
    assert not list(data.glob("*.npz"))
    web.stalls = False
    kept = part.stat().st_size
    assert main(["data", "get", "pairs"]) == 0
    assert web.ranges[-1] == f"bytes={kept}-"
    assert [path.name for path in data.iterdir()] == ["pairs.npz"]


@pytest.mark.cpu_seconds(10)
def test_a_terminal_gets_a_bar(web, data):
    """On a pseudo-terminal the bar draws, and the terms stand above it."""
    leader, follower = pytest.importorskip("pty").openpty()
    process = subprocess.Popen(command(web), stdout=subprocess.PIPE, stderr=follower)
    os.close(follower)
    drawn = b""
    try:
        while block := os.read(leader, 4096):
            drawn += block
    except OSError:  # the other end is closed
        pass
    os.close(leader)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    assert b"licence: public domain" in drawn
    assert "━".encode() in drawn
    assert out.decode() == f"pairs: {data / 'pairs.npz'}\n"
