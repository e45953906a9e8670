"""npz files: headers are checked before arrays are loaded, and no pickle is ever read."""

from __future__ import annotations

import io
import tracemalloc
import zipfile

import numpy as np
import pytest

from polymode.core.safe_files import FileProblem
from polymode.tasks.readers import npz_headers, read_npz

X = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)


def npy(array: np.ndarray, **changes) -> bytes:
    """Return the bytes of an npy file, with other facts in its header where given."""
    file = io.BytesIO()
    facts = np.lib.format.header_data_from_array_1_0(array) | changes
    np.lib.format.write_array_header_1_0(file, facts)
    return file.getvalue() + array.tobytes()


def archive(path, contents: dict[str, bytes]):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in contents.items():
            file.writestr(name, content)
    return path


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_come_back(tmp_path, save):
    path = tmp_path / "a.npz"
    arrays = {"x": X, "y": np.array([1.5, 2.5]), "test": np.array([True]), "t": np.array(["ab"])}
    save(path, **arrays)
    found = read_npz(path)
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)
    assert npz_headers(path)["x"] == ((2, 3, 4), np.dtype("uint8"))
    assert list(read_npz(path, ["y"])) == ["y"]
    with pytest.raises(FileProblem, match="lacks z; it holds x, y, test, t"):
        read_npz(path, ["z"])


def test_objects_are_refused(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, x=np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(FileProblem, match="'x' holds object, which is not read"):
        read_npz(path)


def test_an_oversize_header_takes_no_memory(tmp_path):
    for shape in ((2**40,), (2**62, 2**62), (3, 3, 4)):
        path = archive(tmp_path / "a.npz", {"x.npy": npy(X, shape=shape)})
        tracemalloc.start()
        with pytest.raises(FileProblem, match="header of 'x' asks for .* the member has 24 bytes"):
            read_npz(path)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
        tracemalloc.stop()


def test_a_bomb_is_refused_by_its_size(tmp_path):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=np.zeros(10_000_000, np.uint8))
    assert path.stat().st_size < 20_000
    with pytest.raises(FileProblem, match="unpacks to more than 1,000,000 bytes"):
        read_npz(path, most_bytes=1_000_000)


@pytest.mark.parametrize(
    "contents",
    [
        {"x.txt": b"hello"},
        {"x.npy": b"hello"},
        {"x.npy": b"\x93NUMPY\x01\x00\xff\xff" + bytes(10)},
        {"x.npy": b"\x93NUMPY\x09\x00" + bytes(100)},
        {"x.npy": npy(X, descr="__import__('os').system('true')")},
    ],
)
def test_other_members_are_named(tmp_path, contents):
    with pytest.raises(FileProblem, match="a.npz"):
        read_npz(archive(tmp_path / "a.npz", contents))


def test_damage_is_named(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, x=X)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FileProblem, match="is truncated or not an npz file"):
        read_npz(path)
    np.savez(path, x=np.zeros(300_000, np.uint8))
    content = bytearray(path.read_bytes())
    content[-2000] ^= 1
    path.write_bytes(content)
    assert npz_headers(path)["x"].shape == (300_000,)
    with pytest.raises(FileProblem, match="'x' is damaged or not a plain array: Bad CRC-32"):
        read_npz(path)
    with pytest.raises(FileProblem, match="does not exist"):
        read_npz(tmp_path / "nothing.npz")
