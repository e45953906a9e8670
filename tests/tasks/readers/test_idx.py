"""idx files: what is written comes back; a file that lies is named before memory is taken."""

from __future__ import annotations

import gzip
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from polymode.core.safe_files import FileProblem
from polymode.tasks.readers import read_idx

CODES = {"u1": 8, "i1": 9, ">i2": 11, ">i4": 12, ">f4": 13, ">f8": 14}


def idx_bytes(array: np.ndarray, code: int = 8) -> bytes:
    header = bytes([0, 0, code, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.tobytes()


IMAGES = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)


@given(
    st.sampled_from(sorted(CODES)).flatmap(
        lambda dtype: hnp.arrays(
            np.dtype(dtype), hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=5)
        )
    ),
    st.booleans(),
)
def test_round_trip(tmp_path_factory, array, compressed):
    path = tmp_path_factory.mktemp("idx") / "file"
    code = CODES[array.dtype.str.replace("|", "")]
    content = idx_bytes(array, code)
    path.write_bytes(gzip.compress(content) if compressed else content)
    found = read_idx(path)
    assert found.dtype == array.dtype.newbyteorder("=")
    np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not an idx file: it begins with nothing"),
        (b"PK\x03\x04" + bytes(20), "is not an idx file: it begins with 50 4b 03 04"),
        (b"\0\0\x07\x01" + bytes(20), "is not an idx file"),
        (b"\0\0\x08\0", "has 0 dimensions; 1 to 8 are read"),
        (b"\0\0\x08\x03\0\0", "is truncated within its header"),
        (idx_bytes(IMAGES)[:-1], "is truncated"),
        (idx_bytes(IMAGES) + b"x", "is too long|continues after the 24 bytes"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, pack, content, message):
    path = tmp_path / "images-idx3-ubyte"
    path.write_bytes(pack(content))
    with pytest.raises(FileProblem, match=message) as caught:
        read_idx(path)
    assert str(path) in str(caught.value)


def test_a_cut_gzip_stream_is_named(tmp_path):
    path = tmp_path / "cut.gz"
    path.write_bytes(gzip.compress(idx_bytes(IMAGES))[:-9])
    with pytest.raises(FileProblem, match="cut.gz is truncated or damaged"):
        read_idx(path)


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize("shape", [(60_000, 28, 28), (2**32 - 1,) * 3])
def test_an_oversize_header_takes_no_memory(tmp_path, pack, shape):
    """The header asks for 47 MB, or for 79 octillion bytes, of a file of 20 bytes."""
    path = tmp_path / "big"
    path.write_bytes(pack(b"\0\0\x08\x03" + struct.pack(">3I", *shape) + b"abcd"))
    tracemalloc.start()
    with pytest.raises(FileProblem, match="asks for"):
        read_idx(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_000_000


def test_a_limit_is_kept(tmp_path):
    path = tmp_path / "zeros.gz"
    path.write_bytes(gzip.compress(idx_bytes(np.zeros(10_000, np.uint8))))
    with pytest.raises(FileProblem, match="asks for 10,000 bytes, at most 9,999 are read"):
        read_idx(path, most_bytes=9_999)


def test_a_missing_file_and_a_folder_are_said(tmp_path):
    with pytest.raises(FileProblem, match="nothing does not exist"):
        read_idx(tmp_path / "nothing")
    with pytest.raises(FileProblem, match="is a folder"):
        read_idx(tmp_path)
