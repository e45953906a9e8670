"""Bounded reading: a file is never believed about its size before it is checked, and what is
damaged is named.

A few bytes of gzip can stand for gigabytes, and a header can ask for any amount of memory. So every
reader here knows how many bytes it may take, asks for memory only what the file can hold, and ends
with `FileProblem` otherwise.
"""

from __future__ import annotations

import gzip
import io
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np

from polymode.core.safe_files import FileProblem, open_plain

LARGEST = 4_000_000_000  # bytes that one file may stand for, unless a reader is told otherwise
EXPANSION = 1032  # deflate makes at most this many bytes from one
_CHUNK = 1 << 22


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a file, through gzip where its first bytes say so; what goes wrong names the file."""
    try:
        with open_plain(path) as raw:
            if is_compressed(raw):
                with gzip.open(raw) as stream:
                    yield stream  # type: ignore[misc]
            else:
                yield raw
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise FileProblem(f"{path} is truncated or damaged: {error}") from None


def is_compressed(raw: IO[bytes]) -> bool:
    """Whether a file begins as gzip files do; leaves the file at its start."""
    start = raw.read(2)
    raw.seek(0)
    return start == b"\x1f\x8b"


def fill(path: Path, stream: IO[bytes], array: np.ndarray) -> None:
    """Read the bytes of `array` from `stream`, which must hold just these."""
    flat = array.reshape(-1).view(np.uint8).data
    position = 0
    while position < len(flat):
        block = stream.read(min(_CHUNK, len(flat) - position))
        if not block:
            raise FileProblem(
                f"{path} is truncated: its header promises {len(flat):,} bytes of content, it holds"
                f" {position:,}"
            )
        flat[position : position + len(block)] = block
        position += len(block)
    if stream.read(1):
        raise FileProblem(
            f"{path} continues after the {len(flat):,} bytes of content that its header promises"
        )


def check_packing(path: Path, info: zipfile.ZipInfo) -> None:
    """Refuse members of a zip file that are packed by other means than deflate.

    bzip2 and lzma make millions of bytes from one, all at once, before they can be counted.
    """
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise FileProblem(
            f"{path}: '{info.filename}' is compressed by method {info.compress_type}; stored and"
            " deflated members are read: pack the file again without bzip2 or lzma"
        )


class Bounded(io.RawIOBase):
    """A stream that ends in `FileProblem` once more than `most_bytes` were read through it."""

    def __init__(self, path: Path, stream: IO[bytes], most_bytes: int) -> None:
        self._path, self._stream = path, stream
        self._most = self._left = most_bytes

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        block = self._stream.read(min(len(buffer), self._left + 1))
        self._left -= len(block)
        if self._left < 0:
            raise FileProblem(f"{self._path} unpacks to more than {self._most:,} bytes, the limit")
        buffer[: len(block)] = block
        return len(block)
