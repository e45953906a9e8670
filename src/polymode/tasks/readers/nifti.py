"""Volumes in the NIfTI-1 format, one file, plain or gzipped (R. W. Cox et al., nifti1.h, 2003).

A header of 348 bytes gives sizes, type, where the values begin, and a slope and an intercept; the
first axis is the fastest. Orientation is not read: axes are those of the file.
"""

from __future__ import annotations

import gzip
import io
import math
import struct
import zlib
from pathlib import Path

import numpy as np

from polymode.core.safe_files import FileProblem, open_plain
from polymode.tasks.readers.streams import EXPANSION, LARGEST

_HEADER = 348
_TYPES = {2: "u1", 4: "i2", 8: "i4", 16: "f4", 64: "f8", 256: "i1", 512: "u2", 768: "u4"}


def read_nifti(path: Path | str, *, most_bytes: int = LARGEST) -> np.ndarray:
    """Return the values of a volume, last axis of the file first: (z, y, x).

    Args:
        path: of a `.nii` or `.nii.gz` file; its first bytes tell.
        most_bytes: of the file; a larger one is not read.
    """
    with open_plain(Path(path)) as stream:
        content = stream.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise FileProblem(f"{path} has more than {most_bytes:,} bytes")
    return nifti_values(str(path), content)


def nifti_values(name: str, content: bytes) -> np.ndarray:
    """Return the values of a file's content, (z, y, x); `name` is for messages."""
    if content[:2] == b"\x1f\x8b":
        content = _unpacked(name, content)
    header = content[:_HEADER]
    if len(header) < _HEADER or header[344:348] != b"n+1\0":
        raise FileProblem(f"{name} is not a NIfTI-1 file of one part (magic n+1)")
    order = "<" if struct.unpack("<i", header[:4])[0] == _HEADER else ">"
    dims = struct.unpack(order + "8h", header[40:56])
    (code,) = struct.unpack(order + "h", header[70:72])
    offset, slope, intercept = struct.unpack(order + "3f", header[108:120])
    shape = tuple(size for size in dims[1 : 1 + dims[0]] if size != 1)
    if not 1 <= dims[0] <= 7 or not shape or min(shape) < 1 or code not in _TYPES:
        raise FileProblem(
            f"{name} has sizes {dims[1:]} and type {code}; types {', '.join(map(str, _TYPES))} are"
            " read"
        )
    dtype = np.dtype(order + _TYPES[code])
    need = math.prod(shape) * dtype.itemsize
    if not offset >= _HEADER or len(content) != int(offset) + need:
        raise FileProblem(
            f"{name}: the header asks for {need:,} bytes from {offset:g} on, the file has"
            f" {len(content):,}"
        )
    values = np.frombuffer(content, dtype, offset=int(offset)).reshape(shape[::-1])
    values = values.astype(dtype.newbyteorder("="))
    if slope in (0.0, 1.0) and intercept == 0.0:
        return values
    return values * np.float32(slope) + np.float32(intercept)


def _unpacked(name: str, content: bytes) -> bytes:
    """Return what a gzipped content stands for, as long as it is no bomb."""
    most = EXPANSION * len(content)
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as stream:
            unpacked = stream.read(most + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise FileProblem(f"{name} is broken: {error}") from None
    if len(unpacked) > most:
        raise FileProblem(f"{name} stands for more than {most:,} bytes")
    return unpacked
