"""NumPy's `.npz` files, with every header checked before an array is loaded; never a pickle."""

from __future__ import annotations

import io
import math
import tokenize
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from polymode.core.safe_files import FileProblem, open_plain
from polymode.tasks.readers.streams import EXPANSION, LARGEST, check_packing

_KINDS = "biufU"  # truth values, numbers, texts: no objects, no records
_LONGEST_HEADER = 10_000


class Header(NamedTuple):
    """What a file says of one array."""

    shape: tuple[int, ...]
    dtype: np.dtype


def npz_headers(path: Path | str, *, most_bytes: int = LARGEST) -> dict[str, Header]:
    """Return shape and type of each array, checked against the size of the file's members."""
    path = Path(path)
    with _opened(path) as archive:
        return _headers(path, archive, most_bytes)


def read_npz(
    path: Path | str, names: Iterable[str] | None = None, *, most_bytes: int = LARGEST
) -> dict[str, np.ndarray]:
    """Return the arrays of a file, or those called `names`; together at most `most_bytes`."""
    path = Path(path)
    with _opened(path) as archive:
        names = None if names is None else list(names)
        headers = _headers(path, archive, most_bytes, names)
        wanted = list(headers) if names is None else names
        missing = [name for name in wanted if name not in headers]
        if missing:
            raise FileProblem(
                f"{path} lacks {', '.join(missing)}; it holds {', '.join(headers) or 'nothing'}"
            )
        arrays = {}
        for name in wanted:
            try:
                with archive.open(f"{name}.npy") as member:
                    arrays[name] = np.lib.format.read_array(member, allow_pickle=False)
            except (zipfile.BadZipFile, zlib.error, EOFError, ValueError) as error:
                raise FileProblem(
                    f"{path}: '{name}' is damaged or not a plain array: {error}"
                ) from None
        return arrays


def _opened(path: Path) -> zipfile.ZipFile:
    try:
        open_plain(path).close()
        return zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError) as error:
        raise FileProblem(f"{path} is truncated or not an npz file: {error}") from None


def _headers(
    path: Path, archive: zipfile.ZipFile, most_bytes: int, wanted: list[str] | None = None
) -> dict[str, Header]:
    headers: dict[str, Header] = {}
    total = 0
    for info in archive.infolist():
        name = info.filename.removesuffix(".npy")
        if name == info.filename or name in headers:
            raise FileProblem(f"{path} holds '{info.filename}', not one array of its own name")
        check_packing(path, info)
        _check_expansion(path, info)
        total += info.file_size if wanted is None or name in wanted else 0
        if total > most_bytes:
            raise FileProblem(f"{path} unpacks to more than {most_bytes:,} bytes")
        try:
            with archive.open(info) as member:
                header, start = _header(member)
        except (
            zipfile.BadZipFile, zlib.error, EOFError, ValueError, SyntaxError, RuntimeError,
            NotImplementedError, tokenize.TokenError,
        ) as error:  # fmt: skip
            raise FileProblem(
                f"{path}: '{name}' is damaged or not a plain array: {error}"
            ) from None
        if header.dtype.kind not in _KINDS:
            raise FileProblem(f"{path}: '{name}' holds {header.dtype}, which is not read")
        if start + math.prod(header.shape) * header.dtype.itemsize != info.file_size:
            raise FileProblem(
                f"{path}: the header of '{name}' asks for {header.shape} {header.dtype}, the member"
                f" has {info.file_size - start:,} bytes"
            )
        headers[name] = header
    return headers


def _header(member: IO[bytes]) -> tuple[Header, int]:
    """Return shape and type, and where the values begin."""
    version = np.lib.format.read_magic(member)
    if version == (1, 0):
        width, read = 2, np.lib.format.read_array_header_1_0
    elif version == (2, 0):
        width, read = 4, np.lib.format.read_array_header_2_0
    else:
        raise ValueError(f"version {version} of the npy format")
    size = member.read(width)
    length = int.from_bytes(size, "little")
    if length > _LONGEST_HEADER:  # NumPy would read it before it looks at its length
        raise ValueError(f"a header of {length:,} bytes")
    text = io.BytesIO(size + member.read(length))
    shape, _, dtype = read(text, max_header_size=_LONGEST_HEADER)
    return Header(shape, dtype), member.tell()


def _check_expansion(path: Path, info: zipfile.ZipInfo) -> None:
    """Refuse a member that claims more bytes than the file can hold: memory is taken by it."""
    held = min(info.compress_size, path.stat().st_size)
    most = held if info.compress_type == zipfile.ZIP_STORED else EXPANSION * held
    if info.file_size > most:
        raise FileProblem(
            f"{path}: '{info.filename}' claims {info.file_size:,} bytes, more than its {held:,}"
            " bytes in the file can hold"
        )
