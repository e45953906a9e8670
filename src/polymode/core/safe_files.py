"""Safe files: tensors in the safetensors format, everything else in JSON, replaced in one step.

A file is written under a temporary name in the same folder, flushed to disk, and renamed. Tensors
are read straight into the memory that will use them and checked against a digest on the way, so
loading needs no second copy and a changed byte is found. Nothing is ever unpickled. The format,
https://github.com/huggingface/safetensors, is eight bytes of header length, a JSON header with
type, shape and offsets of each tensor, and the raw bytes.
"""

from __future__ import annotations

import glob
import hashlib
import itertools
import json
import math
import os
import platform
import re
import stat
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import torch
from torch import Tensor

from polymode.core.text import parse_json

_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
_CODES = {dtype: code for code, dtype in _DTYPES.items()}
_LARGEST_HEADER = 100_000_000
_LARGEST_JSON = 2**28  # bytes; what they say takes about ten times as much memory
_NUMBERS = itertools.count()  # of temporary files: threads of a process may write the same file
_BINARY = getattr(os, "O_BINARY", 0)  # of Windows
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")


class FileProblem(ValueError):
    """A file that cannot be used; the message says which file and why."""


def is_plain_name(name: Any) -> bool:
    """Return whether a text is the name of a file within its folder, with no path out of it.

    >>> is_plain_name("members-1.safetensors"), is_plain_name("../x"), is_plain_name("..")
    (True, False, False)
    """
    return isinstance(name, str) and _PLAIN.fullmatch(name) is not None


def open_plain(path: Path) -> IO[bytes]:
    """Open a file for reading; refuse folders, and pipes and devices, which may never end."""
    try:  # without waiting for the writer of a pipe; the kind is checked once it is open
        number = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | _BINARY)
    except (FileNotFoundError, NotADirectoryError):
        raise FileProblem(f"{path} does not exist") from None
    except OSError as error:
        kind = "is a folder, not a file" if path.is_dir() else f"cannot be read: {error.strerror}"
        raise FileProblem(f"{path} {kind}") from None
    mode = os.fstat(number).st_mode
    if not stat.S_ISREG(mode):
        os.close(number)
        kind = "a folder" if stat.S_ISDIR(mode) else "a pipe or a device"
        raise FileProblem(f"{path} is {kind}, not a file")
    return os.fdopen(number, "rb")


def replace_file(path: Path, content: bytes) -> None:
    """Write `content` to `path` atomically."""
    replace_with(path, lambda file: file.write(content))


def cache_folder() -> Path:
    """Return `$POLYMODE_CACHE`, by default `polymode` in `$XDG_CACHE_HOME` or in `~/.cache`."""
    named = os.environ.get("POLYMODE_CACHE")
    if named:
        return Path(named).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME", "")
    # The standard asks for an absolute path, and for others to be ignored.
    return (Path(shared) if os.path.isabs(shared) else Path.home() / ".cache") / "polymode"


def is_alive(process: int) -> bool:
    """Return whether a process of this machine runs; True where that cannot be known."""
    if os.name != "posix":
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def create_folder(folder: Path, what: str) -> None:
    """Make a folder where there is none, or say in one line that a file is in its place."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise FileProblem(
            f"{folder} cannot be {what}: a file is in its place; give another"
        ) from None


def replace_with(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Let `write` fill a temporary file, then give it the name `path` in one step.

    Temporary files for `path` that killed processes of this machine left are removed.
    """
    for left in abandoned(path.parent, glob.escape(path.name)):
        left.unlink(missing_ok=True)
    temporary = temporary_path(path)
    try:
        fill_file(temporary, write)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def fill_file(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Let `write` fill a file, and flush it to disk."""
    with open(path, "wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())


def temporary_path(path: Path) -> Path:
    """Return a new name beside `path`, of this process, for a file that will replace it."""
    return path.with_name(f".{path.name}.{platform.node()}.{os.getpid()}-{next(_NUMBERS)}.tmp")


def abandoned(folder: Path, pattern: str) -> list[Path]:
    """Return temporary files of names that match a glob pattern, left by processes of this machine
    that have ended."""
    left = []
    for path in folder.glob(f".{pattern}.{glob.escape(platform.node())}.*.tmp"):
        process = path.name.removesuffix(".tmp").rpartition(".")[2].partition("-")[0]
        if process.isdecimal() and not is_alive(int(process)):
            left.append(path)
    return left


def take_lock(descriptor: int, *, wait: bool) -> bool | None:
    """Lock an open file or folder until it is closed or the process ends.

    Returns False if another holder has it, None where the file system has no locks.
    """
    from filelock import lock_descriptor  # 40 ms, which most processes need not spend

    try:
        return lock_descriptor(descriptor, blocking=wait, poll_interval=0.01)
    except OSError:
        return None


@contextmanager
def locked(folder: Path) -> Iterator[int | None]:
    """Lock a folder, after waiting for other holders; yield its descriptor.

    Without effect where the file system has no locks; the descriptor is None on Windows, which
    opens no folders.
    """
    if os.name != "posix":
        yield None
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        take_lock(descriptor, wait=True)
        yield descriptor
    finally:
        os.close(descriptor)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object with a digest of itself, atomically."""
    text = json.dumps({**content, "digest": json_digest(content)}, indent=1, sort_keys=True)
    replace_file(path, text.encode())


def read_json(path: Path, schema: int) -> dict[str, Any]:
    """Return an object that `write_json` wrote; refuse changed files and newer schemas."""
    with open_plain(path) as file:
        raw = file.read(_LARGEST_JSON + 1)
    if len(raw) > _LARGEST_JSON:
        raise FileProblem(f"{path} is larger than {_LARGEST_JSON:,} bytes: polymode wrote no such")
    try:
        content = parse_json(raw)
        claimed, version = content.pop("digest"), content["schema"]
        digest = json_digest(content)
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
        raise FileProblem(f"{path} is truncated or not a polymode file: {error!r}") from None
    if type(version) is not int:
        raise FileProblem(f"{path} is not a polymode file: its schema version is {version!r:.40}")
    if version > schema:
        raise FileProblem(
            f"{path} has schema version {version}, this polymode reads up to {schema}; it was"
            " written by a newer release: upgrade polymode"
        )
    if claimed != digest:
        raise FileProblem(f"{path} was changed after it was written: its digest does not match")
    return content


def json_digest(content: Mapping[str, Any]) -> str:
    """Return a digest of a JSON object, whatever the order of its keys."""
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(canonical.encode(), digest_size=16).hexdigest()


def write_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, Any],
    place: Callable[[Path, Callable[[IO[bytes]], Any]], None] = replace_with,
) -> str:
    """Write tensors and JSON-safe `metadata` to one file; return the digest.

    `place(path, write)` lets `write` fill the file: by default atomically.
    """
    digest = _tensor_digest()
    header: dict[str, Any] = {}
    offset = 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": _CODES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
        digest.update(_entry_text(name, tensor))
        digest.update(_bytes_of(tensor).data)
    digest.update(json.dumps(metadata, sort_keys=True).encode())
    header["__metadata__"] = {
        "polymode": json.dumps(metadata, sort_keys=True),
        "digest": digest.hexdigest(),
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)

    def write(file: IO[bytes]) -> None:
        file.write(struct.pack("<Q", len(text)))
        file.write(text)
        for tensor in tensors.values():
            file.write(_bytes_of(tensor).data)

    place(path, write)
    return digest.hexdigest()


class TensorForm(NamedTuple):
    """What a tensor is, without its values."""

    dtype: torch.dtype
    shape: torch.Size


class _Entry(NamedTuple):
    """Where one tensor lies in a file."""

    form: TensorForm
    begin: int


class TensorFile:
    """A file of `write_tensors`, opened: what it holds is known before its tensors are read.

    It can be read to its end after it was removed or replaced by another.

    Args:
        digest: the one that `write_tensors` returned, where known.

    Attributes:
        metadata: what was written with the tensors.
    """

    def __init__(self, path: Path, digest: str | None = None) -> None:
        self.path, self._file = path, open_plain(path)
        try:
            self._entries, self._described = _read_header(path, self._file)
            if digest is not None and self._described["digest"] != digest:
                raise FileProblem(f"{path} is not the file that was written: its digest differs")
        except BaseException:
            self._file.close()
            raise
        self.metadata: Any = json.loads(self._described["polymode"])

    def __enter__(self) -> TensorFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

    @property
    def forms(self) -> dict[str, TensorForm]:
        """Type and shape of each tensor; the file is as long as they need."""
        return {name: entry.form for name, entry in self._entries.items()}

    def read(self, targets: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors: those of `targets`, filled, and new ones for other names."""
        digest = _tensor_digest()
        tensors: dict[str, Tensor] = {}
        for name, (form, begin) in self._entries.items():
            target = targets.get(name)
            direct = target is not None and target.dtype == form.dtype and _is_flat(target)
            raw = target if direct else torch.empty(form.shape, dtype=form.dtype)
            assert raw is not None
            self._file.seek(begin)
            self._file.readinto(_bytes_of(raw).data)  # type: ignore[attr-defined]
            digest.update(_entry_text(name, raw))
            digest.update(_bytes_of(raw).data)
            if target is not None and not direct:
                with torch.no_grad():
                    target.copy_(raw)
            tensors[name] = raw if target is None else target
        digest.update(self._described["polymode"].encode())
        if digest.hexdigest() != self._described["digest"]:
            raise FileProblem(
                f"{self.path} was changed after it was written: its digest does not match"
            )
        return tensors


def read_tensors(path: Path, digest: str | None = None) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return tensors and metadata of a file of `write_tensors`; `digest` is what it returned."""
    with TensorFile(path, digest) as file:
        return file.read({}), file.metadata


def _read_header(path: Path, file: IO[bytes]) -> tuple[dict[str, _Entry], dict[str, str]]:
    """Return where each tensor lies, and the strings that describe the file."""
    size = os.fstat(file.fileno()).st_size
    length = struct.unpack("<Q", file.read(8))[0] if size >= 8 else 0
    if not 2 <= length <= min(size - 8, _LARGEST_HEADER):
        raise FileProblem(f"{path} is truncated or not a safetensors file ({size:,} bytes)")
    start = position = 8 + length
    entries: dict[str, _Entry] = {}
    try:
        header = parse_json(file.read(length))
        described = {key: str(header["__metadata__"][key]) for key in ("polymode", "digest")}
        if not isinstance(parse_json(described["polymode"]), dict):
            raise TypeError("its metadata is not an object")
        del header["__metadata__"]
        for name, entry in header.items():
            begin, end = (start + int(offset) for offset in entry["data_offsets"])
            if min(entry["shape"], default=0) < 0:
                raise ValueError(f"'{name}' has a size below 0")
            form = TensorForm(_DTYPES[entry["dtype"]], torch.Size(entry["shape"]))
            entries[name] = _Entry(form, begin)
            length = math.prod(entry["shape"]) * form.dtype.itemsize
            if begin != position or end - begin != length:
                raise FileProblem(f"{path}: the header describes '{name}' inconsistently")
            position = end
    except FileProblem:
        raise
    except (KeyError, TypeError, AttributeError, ValueError, RuntimeError, OverflowError) as error:
        raise FileProblem(f"{path} has a header that polymode did not write: {error!r}") from None
    if size != position:
        raise FileProblem(f"{path} is truncated: {size:,} bytes of {position:,}")
    return entries, described


def _is_flat(tensor: Tensor) -> bool:
    """Whether bytes can be read straight into the tensor's memory."""
    return tensor.is_contiguous() and tensor.device.type == "cpu"


def _tensor_digest() -> Any:
    return hashlib.blake2b(digest_size=16)


def _entry_text(name: str, tensor: Tensor) -> bytes:
    return f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode()


def _bytes_of(tensor: Tensor) -> Any:
    """Return the tensor's bytes as a NumPy array; no copy where it is contiguous on the CPU."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy()


def json_safe(value: Any) -> Any:
    """Return `value` in a form JSON holds; what it does not know becomes its name or text."""
    if isinstance(value, (str, int, float, bool, type(None))):
        return value
    if isinstance(value, Mapping):
        return {str(key): json_safe(item) for key, item in value.items()}
    if isinstance(value, Iterable):
        return [json_safe(item) for item in value]
    return getattr(value, "__qualname__", None) or type(value).__qualname__
