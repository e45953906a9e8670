"""Members of tar and zip archives, read one by one into memory; nothing is unpacked to disk.

An archive may name files outside its folder, contain links, or stand for far more bytes than it
has. Any absolute name or `..` refuses the archive; a wanted member must be a plain file; number and
total size are bounded.
"""

from __future__ import annotations

import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from polymode.core.safe_files import FileProblem, open_plain
from polymode.tasks.readers.streams import LARGEST, Bounded, check_packing, opened

MOST_MEMBERS = 1_000_000
_BLOCK = 1 << 20
_LONG_HEADERS = (
    tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)  # fmt: skip
_SPARE = 100_000_000  # bytes of headers and padding that a tar file may have besides its members


def members(
    path: Path | str,
    wanted: Callable[[str], bool],
    *,
    most_bytes: int = LARGEST,
    most_members: int = MOST_MEMBERS,
    largest_member: int = LARGEST,
) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each wanted member, in the archive's order.

    Args:
        path: a zip file, or a tar file, plain or gzipped.
        wanted: says of a name whether it is to be read; names use `/` and have no leading `./`.
        most_bytes: the wanted members together may have this many bytes.
        most_members: the archive may have this many members.
        largest_member: a wanted member may have this many bytes.
    """
    path = Path(path)
    read = _zip_members if _is_zip(path) else _tar_members
    budget = _Budget(path, most_bytes, most_members, largest_member)
    names: set[str] = set()
    for name, content in read(path, wanted, budget):
        if name in names:
            raise FileProblem(f"{path} holds '{name}' twice")
        names.add(name)
        yield name, content


def safe_name(path: Path, name: str) -> str:
    """Return `name` without a leading `./`, or refuse one that leads outside its folder."""
    plain = name.replace("\\", "/")
    parts = PurePosixPath(plain).parts
    if plain.startswith("/") or ".." in parts or plain[1:2] == ":":
        raise FileProblem(f"{path} names a file outside its folder, '{name}': not read")
    return "/".join(parts)


def _is_zip(path: Path) -> bool:
    try:
        with open_plain(path) as file:
            return zipfile.is_zipfile(file)
    except OSError as error:
        raise FileProblem(f"{path} cannot be read: {error.strerror or error}") from None


class _Budget:
    """How much an archive may still hold."""

    def __init__(self, path: Path, most_bytes: int, most_members: int, largest_member: int) -> None:
        self.path, self.bytes, self.members = path, most_bytes, most_members
        self.most_bytes, self.most_members = most_bytes, most_members
        self.largest_member = largest_member

    def count(self) -> None:
        self.members -= 1
        if self.members < 0:
            raise FileProblem(f"{self.path} has more than {self.most_members:,} members")

    def read(self, name: str, stream: IO[bytes]) -> bytes:
        """Return what a member holds, counted as it comes: a header may say anything."""
        blocks, size = [], 0
        while block := stream.read(_BLOCK):
            size += len(block)
            if size > self.largest_member:
                raise FileProblem(
                    f"{self.path}: '{name}' has more than {self.largest_member:,} bytes, the most"
                    " that is read"
                )
            self.bytes -= len(block)
            if self.bytes < 0:
                raise FileProblem(
                    f"{self.path} unpacks to more than {self.most_bytes:,} bytes, the most that is"
                    " read"
                )
            blocks.append(block)
        return b"".join(blocks)


def _zip_members(
    path: Path, wanted: Callable[[str], bool], budget: _Budget
) -> Iterator[tuple[str, bytes]]:
    try:
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                budget.count()
                name = safe_name(path, info.filename)
                if info.is_dir() or not wanted(name):
                    continue
                if stat.S_ISLNK(info.external_attr >> 16):
                    raise FileProblem(f"{path}: '{name}' is a link, not a file")
                check_packing(path, info)
                with archive.open(info) as member:
                    content = budget.read(name, member)
                yield name, content
    except (zipfile.BadZipFile, zlib.error, EOFError, struct.error) as error:
        raise FileProblem(f"{path} is truncated or damaged: {error}") from None
    except (NotImplementedError, RuntimeError) as error:  # unknown compression, encryption
        raise FileProblem(f"{path} cannot be read: {error}") from None


class _Info(tarfile.TarInfo):
    """A header whose long names and further facts are bounded: they are read in one piece."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Info:
        info = super().frombuf(buf, encoding, errors)
        if info.type in _LONG_HEADERS and info.size > _BLOCK:
            raise tarfile.ReadError(f"a header of {info.size:,} bytes")
        return info


def _tar_members(
    path: Path, wanted: Callable[[str], bool], budget: _Budget
) -> Iterator[tuple[str, bytes]]:
    try:
        with opened(path) as stream:
            bounded = Bounded(path, stream, budget.most_bytes + _SPARE)
            with tarfile.open(
                fileobj=bounded, mode="r|", bufsize=1 << 18, tarinfo=_Info
            ) as archive:
                for info in archive:
                    budget.count()
                    name = safe_name(path, info.name)
                    if info.isdir() or not wanted(name):
                        continue
                    if not info.isreg() or info.issparse():
                        raise FileProblem(f"{path}: '{name}' is a link or special, not a file")
                    member = archive.extractfile(info)
                    assert member is not None
                    yield name, budget.read(name, member)
    except (tarfile.TarError, RecursionError) as error:  # headers can be nested, too
        raise FileProblem(f"{path} is truncated or not an archive: {error}") from None
