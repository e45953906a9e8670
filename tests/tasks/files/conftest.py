"""A data folder of its own, a web server on this machine, and a data set to get from it."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import struct
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from polymode.tasks.files import DATASETS, ArraySpec, Dataset, Original
from polymode.tasks.files import download as module
from polymode.tasks.files.catalogue import read_idx_files

X = np.random.default_rng(0).integers(0, 256, (50, 28, 28), dtype=np.uint8)
Y = np.arange(50) % 10


def idx(array: np.ndarray) -> bytes:
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return gzip.compress(header + array.astype(np.uint8).tobytes(), mtime=0)


FILES = {"t10k-images-idx3-ubyte.gz": idx(X), "t10k-labels-idx1-ubyte.gz": idx(Y)}


class Server:
    """Serves `files`; `faults` maps a name to what goes wrong, one fault a request.

    Faults: "cut" (half is sent, then the connection closes), "no range" (ranges are ignored),
    "other" (other bytes of the same length), "more" (too many bytes, without saying how many),
    "announce more", "stall" (half is sent, then nothing), "drip" (a byte now and then), "drip
    headers" (those without an end), "length: X" (a Content-Length of X), "evil" (commands to a
    terminal), a number (that HTTP status), an address (a redirect to it).
    """

    def __init__(self) -> None:
        self.files = dict(FILES)
        self.faults: dict[str, list[str | int]] = {}
        self.asked: list[tuple[str, str]] = []
        self.release = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer._answer(self)

            def log_message(self, *args: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        self.address = f"http://127.0.0.1:{self._http.server_address[1]}/"

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        name = request.path.lstrip("/")
        span = request.headers.get("Range", "")
        self.asked.append((name, span))
        faults = self.faults.get(name, [])
        fault = faults.pop(0) if faults else ""
        if isinstance(fault, int) or name not in self.files:
            return request.send_error(fault if isinstance(fault, int) else 404)
        if fault == "evil":
            return request.send_error(404, "\x1b[2Jgone\x9b31m\x07")
        if fault == "drip headers":
            return self._drip(request, b"HTTP/1.1 200 OK\r\n" + b"X-Wait: 1\r\n" * 10**4)
        if "://" in fault:
            request.send_response(302)
            request.send_header("Location", fault)
            request.send_header("Content-Length", "0")
            return request.end_headers()
        whole = self.files[name]
        start = int(span.removeprefix("bytes=").removesuffix("-")) if span else 0
        start = 0 if fault == "no range" else start
        if start >= len(whole):
            return request.send_error(416)
        body = whole[start:]
        request.send_response(206 if start else 200)
        if start:
            request.send_header("Content-Range", f"bytes {start}-{len(whole) - 1}/{len(whole)}")
        if fault == "other":
            body = bytes(len(body))
        if fault == "more":
            body += bytes(100_000)
        else:
            announced = str(len(body) + (1 if fault == "announce more" else 0))
            if fault.startswith("length: "):
                announced = fault.removeprefix("length: ")
            request.send_header("Content-Length", announced)
        request.end_headers()
        if fault == "drip":
            return self._drip(request, body)
        half = len(body) // 2
        request.wfile.write(body[:half] if fault in ("cut", "stall") else body)
        request.wfile.flush()
        if fault == "stall":
            self.release.wait(20)
        request.close_connection = True

    def _drip(self, request: BaseHTTPRequestHandler, content: bytes) -> None:
        with contextlib.suppress(OSError):  # until the other side has had enough
            for number in range(len(content)):
                request.wfile.write(content[number : number + 1])
                request.wfile.flush()
                if self.release.wait(0.02):
                    return

    def close(self) -> None:
        self.release.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join(5)


@pytest.fixture
def server(monkeypatch) -> Iterator[Server]:
    monkeypatch.setattr(module, "_PAUSE", 0.0)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    started = Server()
    yield started
    started.close()


@pytest.fixture
def data(tmp_path, monkeypatch):
    """An empty data folder, not made yet."""
    folder = tmp_path / "data"
    monkeypatch.setenv("POLYMODE_DATA", str(folder))
    return folder


def digits(*addresses: str, **changes) -> Dataset:
    """Return a small data set in MNIST's format, at these addresses."""
    originals = tuple(
        Original(
            name,
            tuple(address + name for address in addresses),
            len(content),
            hashlib.sha256(content).hexdigest(),
        )
        for name, content in FILES.items()
    )
    arrays = {
        "x_test": ArraySpec(X.shape, "uint8", sha256=hashlib.sha256(X.tobytes()).hexdigest()),
        "y_test": ArraySpec((50,), "int64", 10, (5,) * 10),
    }
    facts = {
        "description": "fifty digits",
        "licence": "free",
        "originals": originals,
        "read": read_idx_files,
        "arrays": arrays,
    }
    return Dataset(**(facts | changes))


@pytest.fixture
def register(monkeypatch):
    """Return a function that enters a data set for one test."""
    monkeypatch.setattr(DATASETS, "_entries", dict(DATASETS._entries))
    return lambda name, dataset: DATASETS.register(name)(dataset)


@pytest.fixture
def make_digits():
    return digits


@pytest.fixture
def arrays():
    return {"x_test": X, "y_test": Y}
