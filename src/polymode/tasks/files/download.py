"""Downloads that resume: what has come is kept as `.part`, and the next try asks for the rest.

A file is taken from the first address that gives it; it has exactly the length of the catalogue
(a server that sends more is stopped) and the checksum, or it is thrown away. Only http and https
are spoken, also after a redirect. A server that gives a byte now and then is stopped, too: a file
has a total time, by its size.
"""

from __future__ import annotations

import errno
import hashlib
import http.client
import re
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from polymode._version import __version__
from polymode.core.text import plain
from polymode.tasks.files.dataset import Original

Tell = Callable[[int], Any]

_TIMEOUT = 30.0  # seconds without a byte
_LEAST, _SLOWEST = 300.0, 5000.0  # a file may take so many seconds, and one more for so many bytes
_PAUSE = 1.0  # seconds before an address is asked again
_TRIES = 5  # at one address, as long as each brings bytes
_CHUNK = 1 << 18
_COUNT = re.compile(r"[0-9]{1,18}")
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class DownloadProblem(Exception):
    """A file that could not be had; the message says why and what to do."""


class _Refused(Exception):
    """An answer that must not be used; asking again would not help."""


class _Clock:
    """Ends the connections that are open when the time of a file is up, wherever they wait."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.is_up = seconds, False
        self._open: list[socket.socket] = []
        self._timer = threading.Timer(seconds, self._ring)
        self._timer.daemon = True

    def __enter__(self) -> _Clock:
        self._timer.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._timer.cancel()

    def add(self, connection: socket.socket) -> None:
        """Watch a connection."""
        self._open.append(connection)
        if self.is_up:
            self._ring()

    def _ring(self) -> None:
        self.is_up = True
        for connection in self._open:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


def download(original: Original, path: Path, tell: Tell) -> None:
    """Bring a file to `path`, whole and checked; `tell` hears of the bytes that are there.

    Raises `DownloadProblem` with the cause at each address. A `KeyboardInterrupt`, or a connection
    that breaks for good, leaves `<path>.part` to be continued.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_file() and wrong_checksum(path, original) is None:
        tell(original.size)
        return
    part = path.with_name(f"{path.name}.part")
    causes = []
    for address in original.addresses:
        with _Clock(_LEAST + original.size / _SLOWEST) as clock:
            cause = _from_address(address, original, part, tell, clock)
        if cause is None:
            part.replace(path)
            return
        causes.append(plain(f"{cause} at {address}"))
    note = (
        f" {_length(part):,} bytes are kept; the same command continues." if part.exists() else ""
    )
    raise DownloadProblem(
        f"{original.name}: {'; '.join(causes)}.{note} Try later, or get the file by other means"
        " and name its folder with --from"
    )


def _from_address(
    address: str, original: Original, part: Path, tell: Tell, clock: _Clock
) -> str | None:
    """Fill `part` from one address; return None, or why it cannot be."""
    cause = ""
    for number in range(_TRIES):
        before = _length(part)
        try:
            if before != original.size:
                _transfer(address, original, part, tell, clock)
            cause = wrong_checksum(part, original) or ""
            if not cause:
                return None
            part.unlink()
            if not before:
                return cause
        except _Refused as refusal:
            return str(refusal)
        except urllib.error.HTTPError as error:
            error.close()
            cause = f"HTTP {error.code} {error.reason}"
            if error.code != 416 or not before:
                return cause
            part.unlink()  # the rest that was asked for does not exist: start anew
        except (OSError, http.client.HTTPException) as error:
            if getattr(error, "filename", None) or getattr(error, "errno", None) in _DISK:
                raise  # the folder cannot be written: no other address would help
            reason = getattr(error, "reason", error)
            cause = str(getattr(reason, "strerror", None) or reason) or type(error).__name__
            if clock.is_up:
                came, size = _length(part) - before, original.size
                return (
                    f"stopped after {clock.seconds:,.0f} s in which {came:,} of {size:,} bytes came"
                )
            if _length(part) <= before:
                return cause
        except ValueError as error:  # an address, a header or a status that is none
            return f"an answer that cannot be read ({error})"
        if number + 1 < _TRIES:
            time.sleep(_PAUSE)
    return cause


def _transfer(address: str, original: Original, part: Path, tell: Tell, clock: _Clock) -> None:
    """Append to `part` what it lacks, or write it anew where the server does not do ranges."""
    start = _length(part)
    headers = {"User-Agent": f"polymode/{__version__}", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    request = urllib.request.Request(address, headers=headers)
    with _opener(clock).open(request, timeout=_TIMEOUT) as response:
        if not (response.status == 206 and _begins_at(response.headers, start)):
            start = 0
        announced = response.headers.get("Content-Length", "")
        if _COUNT.fullmatch(announced) and start + int(announced) != original.size:
            raise _Refused(
                f"{start + int(announced):,} bytes announced, {original.size:,} expected"
            )
        with open(part, "r+b" if start else "wb") as file:
            file.truncate(start)
            file.seek(start)
            tell(start)
            while block := response.read1(_CHUNK):
                start += len(block)
                if start > original.size:
                    part.unlink()
                    raise _Refused(f"more than the expected {original.size:,} bytes came")
                file.write(block)
                tell(start)
    if start < original.size:
        raise ConnectionError(f"connection broke at {start:,} of {original.size:,} bytes")


def _begins_at(headers: Any, start: int) -> bool:
    return bool(headers.get("Content-Range", "").startswith(f"bytes {start}-"))


def _length(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to http and https, no others."""

    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Any:
        scheme = urlsplit(newurl).scheme
        if scheme not in ("http", "https"):
            raise _Refused(f"redirected to {newurl}, which is neither http nor https,")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class _Watched:
    """A connection that a clock may end."""

    def __init__(self, *args: Any, clock: _Clock, **options: Any) -> None:
        super().__init__(*args, **options)
        self.clock = clock

    def connect(self: Any) -> None:
        super().connect()  # type: ignore[misc]
        self.clock.add(self.sock)


class _Http(_Watched, http.client.HTTPConnection):
    """Plain."""


class _Https(_Watched, http.client.HTTPSConnection):
    """Encrypted."""


class _Connections(urllib.request.AbstractHTTPHandler):
    """Opens http and https addresses in connections that a clock may end."""

    def __init__(self, clock: _Clock) -> None:
        super().__init__()
        self.clock = clock

    def http_open(self, request: Any) -> Any:
        return self.do_open(partial(_Http, clock=self.clock), request)  # type: ignore[arg-type]

    def https_open(self, request: Any) -> Any:
        return self.do_open(partial(_Https, clock=self.clock), request)  # type: ignore[arg-type]

    http_request = https_request = urllib.request.AbstractHTTPHandler.do_request_


def _opener(clock: _Clock) -> urllib.request.OpenerDirector:
    """Return what opens http and https addresses, through the proxy of the environment if any."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        _Connections(clock),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.UnknownHandler(),
        _Redirects(),
    ):
        opener.add_handler(handler)
    return opener


def wrong_checksum(path: Path, original: Original) -> str | None:
    """Return None where the file is the original, else what differs."""
    if path.stat().st_size != original.size:
        return f"{path.stat().st_size:,} bytes, {original.size:,} expected"
    kind, expected = original.checksum
    if kind == "none":
        return None
    digest = hashlib.new(kind, usedforsecurity=False)
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    computed = digest.hexdigest()
    if computed == expected:
        return None
    return f"wrong {kind}: {computed[:12]}..., not {expected[:12]}..., so it is another file"
