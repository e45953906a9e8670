"""Small files that stand for much: what is read is bounded, whatever their headers say."""

from __future__ import annotations

import bz2
import gzip
import io
import os
import struct
import tarfile
import tracemalloc
import zipfile
from contextlib import contextmanager

import numpy as np
import pytest

from polymode.core.safe_files import FileProblem
from polymode.tasks.readers import members, read_npz, read_table
from polymode.tasks.readers.cifar import read_cifar
from polymode.tasks.readers.idx import read_idx
from polymode.tasks.readers.image_files import read_image_folder
from polymode.tasks.readers.svhn import read_svhn

MB = 1_000_000


@contextmanager
def little_memory():
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < 30 * MB
    finally:
        tracemalloc.stop()


def everything(name: str) -> bool:
    return True


def zipped(path, name, content, method, claimed=None):
    """Write a zip file of one member, whose header may claim another size."""
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr(name, content)
    if claimed is not None:
        raw = bytearray(path.read_bytes())
        for mark, offset in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
            at = raw.index(mark) + offset
            raw[at : at + 4] = struct.pack("<I", claimed)
        path.write_bytes(raw)
    return path


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_zips_are_read_stored_or_deflated(tmp_path, method):
    """bzip2 makes 45 MB of 40 bytes in one piece, before anybody can count them."""
    archive = zipped(tmp_path / "a.zip", "x", b"1", method)
    with pytest.raises(FileProblem, match="pack the file again without bzip2 or lzma"):
        list(members(archive, everything))
    array = zipped(tmp_path / "a.npz", "x.npy", b"1", method)
    with pytest.raises(FileProblem, match="pack the file again without bzip2 or lzma"):
        read_npz(array)


def test_a_bzip2_member_is_not_unpacked(tmp_path):
    path = zipped(tmp_path / "a.zip", "x", bytes(100 * MB), zipfile.ZIP_BZIP2, claimed=100)
    assert path.stat().st_size < len(bz2.compress(bytes(100 * MB))) + 1000
    with little_memory(), pytest.raises(FileProblem, match="compressed by method 12"):
        list(members(path, everything, most_bytes=MB))


def header_2_0(length: int) -> bytes:
    return b"\x93NUMPY\x02\x00" + struct.pack("<I", length)


def test_a_long_header_of_an_array_is_not_read(tmp_path):
    content = header_2_0(100 * MB) + bytes(100 * MB)
    path = zipped(tmp_path / "a.npz", "x.npy", content, zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < MB
    with little_memory(), pytest.raises(FileProblem, match="a header of 100,000,000 bytes"):
        read_npz(path)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_an_array_cannot_claim_more_than_the_file_can_hold(tmp_path, method):
    file = io.BytesIO()
    facts = {"descr": "|u1", "fortran_order": False, "shape": (2**30,)}
    np.lib.format.write_array_header_1_0(file, facts)
    claimed = len(file.getvalue()) + 2**30
    path = zipped(tmp_path / "a.npz", "x.npy", file.getvalue(), method, claimed=claimed)
    with little_memory(), pytest.raises(FileProblem, match="more than its .* bytes in the file"):
        read_npz(path)


def test_only_the_arrays_asked_for_count(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", big=np.zeros(MB, np.uint8), small=np.zeros(9, np.uint8))
    assert read_npz(tmp_path / "a.npz", ["small"], most_bytes=1000)["small"].shape == (9,)
    with pytest.raises(FileProblem, match="unpacks to more than 1,000 bytes"):
        read_npz(tmp_path / "a.npz", ["big"], most_bytes=1000)


@pytest.mark.parametrize("kind", [tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE, tarfile.XGLTYPE])
def test_a_long_header_of_a_tar_file_is_not_read(tmp_path, kind):
    info = tarfile.TarInfo("x")
    info.type, info.size = kind, 100 * MB
    raw = info.tobuf(tarfile.USTAR_FORMAT) + bytes(100 * MB)
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(raw, 1))
    with little_memory(), pytest.raises(FileProblem, match="a header of 100,000,000 bytes"):
        list(members(tmp_path / "a.tar.gz", everything))


def test_headers_behind_headers_are_no_traceback(tmp_path):
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 1
    raw = (info.tobuf(tarfile.USTAR_FORMAT) + bytes(512)) * 5000
    (tmp_path / "a.tar").write_bytes(raw)
    with pytest.raises(FileProblem, match="a.tar"):
        list(members(tmp_path / "a.tar", everything))


def test_a_line_without_an_end_is_not_held(tmp_path):
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"1" * (200 * MB), 1))
    tracemalloc.start()
    with pytest.raises(FileProblem, match="line 1 has more than 10,000,000 characters"):
        read_table(tmp_path / "a.csv.gz")
    assert tracemalloc.get_traced_memory()[1] < 100 * MB
    tracemalloc.stop()


def test_a_long_field_is_a_sentence(tmp_path):
    (tmp_path / "a.csv").write_text("1,2\n3," + "4" * 200_000 + "\n")
    with pytest.raises(FileProblem, match="a.csv cannot be read as a table: field larger"):
        read_table(tmp_path / "a.csv", columns=[0])


@pytest.mark.parametrize(
    "read",
    [read_npz, read_table, read_idx, read_svhn, lambda path: list(members(path, everything))],
)
def test_pipes_and_devices_are_refused(tmp_path, read):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero"):
        with pytest.raises(FileProblem, match="is a pipe or a device, not a file"):
            read(path)


def test_pipes_in_folders_are_refused(tmp_path):
    (tmp_path / "class").mkdir()
    os.mkfifo(tmp_path / "class" / "a.png")
    with pytest.raises(FileProblem, match="is a pipe or a device, not a file"):
        read_image_folder(tmp_path)
    os.mkfifo(tmp_path / "data_batch_1.bin")
    with pytest.raises(FileProblem, match="is a pipe or a device, not a file"):
        read_cifar(tmp_path, classes=10)
