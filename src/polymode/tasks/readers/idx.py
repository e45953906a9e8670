"""The idx format of MNIST and its relatives (http://yann.lecun.com/exdb/mnist), plain or gzipped.

Two zero bytes, a code for the type, the number of dimensions, each dimension as a big-endian 32-bit
number, then the values, the last dimension fastest.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import IO

import numpy as np

from polymode.core.safe_files import FileProblem
from polymode.tasks.readers.streams import EXPANSION, LARGEST, fill, is_compressed, opened

_TYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
_MOST_DIMENSIONS = 8


def read_idx(path: Path | str, *, most_bytes: int = LARGEST) -> np.ndarray:
    """Return the array of an idx file, in the machine's byte order.

    Args:
        path: the file, plain or gzipped (its first bytes tell).
        most_bytes: more than this is not read. What the header asks for is compared with this and
            with what the file can hold before any memory is taken.
    """
    path = Path(path)
    with opened(path) as stream:
        dtype, shape = _header(path, stream)
        _check_size(path, math.prod(shape) * dtype.itemsize, 4 + 4 * len(shape), most_bytes)
        array = np.empty(shape, dtype)
        fill(path, stream, array)
    return array.astype(dtype.newbyteorder("="), copy=False)


def _header(path: Path, stream: IO[bytes]) -> tuple[np.dtype, tuple[int, ...]]:
    start = stream.read(4)
    if len(start) < 4 or start[:2] != b"\0\0" or start[2] not in _TYPES:
        raise FileProblem(
            f"{path} is not an idx file: it begins with {start.hex(' ') or 'nothing'}, an idx file"
            " with 00 00, a type of 08 to 0e and the number of dimensions"
        )
    if not 1 <= start[3] <= _MOST_DIMENSIONS:
        raise FileProblem(f"{path} has {start[3]} dimensions; 1 to {_MOST_DIMENSIONS} are read")
    sizes = stream.read(4 * start[3])
    if len(sizes) < 4 * start[3]:
        raise FileProblem(f"{path} is truncated within its header")
    return np.dtype(_TYPES[start[2]]), struct.unpack(f">{start[3]}I", sizes)


def _check_size(path: Path, content: int, header: int, most_bytes: int) -> None:
    held = path.stat().st_size
    if content > most_bytes:
        raise FileProblem(
            f"{path}: the header asks for {content:,} bytes, at most {most_bytes:,} are read"
        )
    with open(path, "rb") as raw:
        compressed = is_compressed(raw)
    if compressed and content > EXPANSION * held:
        raise FileProblem(
            f"{path}: the header asks for {content:,} bytes, more than {held:,} compressed bytes"
            " can hold"
        )
    if not compressed and header + content != held:
        cause = "is truncated" if held < header + content else "is too long"
        raise FileProblem(
            f"{path} {cause}: its header asks for {header + content:,} bytes, it has {held:,}"
        )
