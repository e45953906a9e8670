"""Files: what is written is read back, whatever is damaged is refused by name."""

from __future__ import annotations

import json
import os
import platform
import struct
import subprocess
import sys

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polymode.core.safe_files import (
    FileProblem,
    TensorFile,
    json_safe,
    read_json,
    read_tensors,
    replace_file,
    write_json,
    write_tensors,
)

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32,
    torch.int16, torch.int8, torch.uint8, torch.bool,
]  # fmt: skip


def example() -> dict[str, torch.Tensor]:
    tensors = {str(dtype): torch.arange(6).view(2, 3).to(dtype) for dtype in DTYPES}
    last = torch.arange(24.0).view(1, 2, 3, 4).to(memory_format=torch.channels_last)
    return tensors | {"empty": torch.empty(0, 3), "scalar": torch.tensor(2.5), "permuted": last}


def test_round_trip_and_the_format_is_safetensors(tmp_path) -> None:
    """The independent library reads our file, and values, types and shapes are equal."""
    path = tmp_path / "a.safetensors"
    write_tensors(path, example(), {"note": "x"})
    ours, metadata = read_tensors(path)
    theirs = safetensors.torch.load_file(path)
    assert metadata == {"note": "x"}
    assert ours.keys() == theirs.keys() == example().keys()
    for name, tensor in example().items():
        for read in (ours[name], theirs[name]):
            assert read.dtype == tensor.dtype
            assert torch.equal(read, tensor)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_no_changed_byte_changes_a_value(tmp_path_factory, data) -> None:
    """Property: a file with one byte changed is refused, or (a header blank) reads equal."""
    path = tmp_path_factory.mktemp("s") / "a.safetensors"
    written = {"w": torch.arange(12.0), "b": torch.ones(3)}
    write_tensors(path, written, {"k": 1})
    raw = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(raw)
    try:
        read, metadata = read_tensors(path)
    except FileProblem:
        return
    assert metadata == {"k": 1}
    assert all(torch.equal(read[name], tensor) for name, tensor in written.items())


@pytest.mark.parametrize("keep", [0, 4, 8, 60, -1, -12])
def test_truncated_files(tmp_path, keep) -> None:
    path = tmp_path / "a.safetensors"
    write_tensors(path, example(), {})
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(FileProblem, match="truncated"):
        read_tensors(path)


def test_headers_that_lie(tmp_path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(struct.pack("<Q", 2**60) + b"{}")
    with pytest.raises(FileProblem, match="truncated or not a safetensors file"):
        read_tensors(path)
    header = {
        "w": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 4]},
        "__metadata__": {"polymode": "{}", "digest": "0"},
    }
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"\0" * 4)
    with pytest.raises(FileProblem, match="'w' inconsistently"):
        read_tensors(path)
    safetensors.torch.save_file({"w": torch.ones(2)}, path)
    with pytest.raises(FileProblem, match="polymode did not write"):
        read_tensors(path)
    with pytest.raises(FileProblem, match="does not exist"):
        read_tensors(tmp_path / "none")


def test_reads_into_given_memory(tmp_path) -> None:
    path = tmp_path / "a.safetensors"
    write_tensors(path, {"w": torch.arange(6.0).view(2, 3), "t": torch.arange(6.0).view(2, 3)}, {})
    plain, transposed = torch.zeros(2, 3), torch.zeros(3, 2).t()
    with TensorFile(path) as file:
        read = file.read({"w": plain, "t": transposed})
    assert read["w"] is plain
    assert torch.equal(plain, torch.arange(6.0).view(2, 3))
    assert torch.equal(transposed, plain)


def test_json_files(tmp_path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"schema": 1, "name": "é <b>"})
    assert read_json(path, 1) == {"schema": 1, "name": "é <b>"}
    path.write_text(path.read_text().replace("<b>", "<i>"))
    with pytest.raises(FileProblem, match="changed after it was written"):
        read_json(path, 1)
    write_json(path, {"schema": 3})
    with pytest.raises(FileProblem, match="newer release: upgrade"):
        read_json(path, 1)
    path.write_text('{"schema": 1')
    with pytest.raises(FileProblem, match="truncated or not a polymode file"):
        read_json(path, 1)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FileProblem, match="truncated or not a polymode file"):
        read_json(path, 1)


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch) -> None:
    path = tmp_path / "a"
    replace_file(path, b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        replace_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_json_safe_names_what_it_cannot_hold() -> None:
    assert json_safe({"f": json_safe, 1: (2.0, None)}) == {"f": "json_safe", "1": [2.0, None]}


@pytest.mark.parametrize(
    "header",
    [
        "[" * 100_000,
        '{"w": {"dtype": "F32", "shape": [1e400], "data_offsets": [0, 4]}}',
        '{"w": {"dtype": "F32", "shape": [2361183241434822606848], "data_offsets": [0, 4]}}',
        '{"w": {"dtype": "F32", "shape": [-1], "data_offsets": [0, -4]}}',
        '{"w": {"dtype": [], "shape": [1], "data_offsets": [0, 4]}}',
        '{"w": {"dtype": "F32", "shape": 1, "data_offsets": 4}}',
        '{"w": null}',
        "null",
    ],
)
def test_odd_headers_are_refused(tmp_path, header) -> None:
    described = '{"__metadata__": {"polymode": "{}", "digest": ""}, '
    text = (described + header[1:] if header.startswith("{") else header).encode()
    (tmp_path / "odd").write_bytes(struct.pack("<Q", len(text)) + text + bytes(4))
    for read in (read_tensors, TensorFile):
        with pytest.raises(FileProblem):
            read(tmp_path / "odd")


def test_folders_are_no_files(tmp_path) -> None:
    with pytest.raises(FileProblem, match="is a folder, not a file"):
        read_json(tmp_path, 1)
    with pytest.raises(FileProblem, match="is a folder, not a file"):
        read_tensors(tmp_path)


def test_what_killed_processes_left_half_written_is_swept(tmp_path) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    here = platform.node()
    dead = tmp_path / f".file.{here}.{process.pid}.tmp"
    others = [
        tmp_path / f".file.{here}.{os.getppid()}.tmp",  # is being written
        tmp_path / f".file.elsewhere.{process.pid}.tmp",
        tmp_path / f".other.{here}.{process.pid}.tmp",
        tmp_path / f".file.{here}.x.tmp",
    ]
    for left in [dead, *others]:
        left.write_text("half")
    replace_file(tmp_path / "file", b"whole")
    assert not dead.exists() and all(other.exists() for other in others)
    assert (tmp_path / "file").read_bytes() == b"whole"
