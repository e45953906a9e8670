"""Archives that name files outside, hold links, or stand for too much are refused."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile

import pytest

from polymode.core.safe_files import FileProblem
from polymode.tasks.readers import members


def tar(path, entries: dict[str, bytes | tuple[bytes, str]]):
    """Write a tar.gz; a pair (type, target) makes a link or another special member."""
    with tarfile.open(path, "w:gz") as archive:
        for name, content in entries.items():
            info = tarfile.TarInfo(name)
            if isinstance(content, tuple):
                info.type, info.linkname = content
                archive.addfile(info)
            else:
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return path


def zipped(path, entries: dict[str, bytes]):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return path


def everything(name: str) -> bool:
    return True


@pytest.mark.parametrize("write", [tar, zipped])
def test_only_wanted_members_come(tmp_path, write):
    path = write(tmp_path / "a", {"./top/a.txt": b"1", "top/b.txt": b"22", "top/c.bin": b"333"})
    found = dict(members(path, lambda name: name.endswith(".txt")))
    assert found == {"top/a.txt": b"1", "top/b.txt": b"22"}


@pytest.mark.parametrize("write", [tar, zipped])
@pytest.mark.parametrize(
    "name", ["../evil", "a/../../evil", "/etc/passwd", "..\\evil", "C:\\evil", "a\\..\\..\\evil"]
)
def test_a_name_that_leads_outside_refuses_the_archive(tmp_path, write, name):
    """Even when that member is not wanted; and nothing is written anywhere."""
    path = write(tmp_path / "slip", {name: b"x", "good.txt": b"y"})
    with pytest.raises(FileProblem, match="names a file outside its folder"):
        list(members(path, lambda member: member == "good.txt"))
    assert [file.name for file in tmp_path.iterdir()] == ["slip"]


@pytest.mark.parametrize(
    "special", [(tarfile.SYMTYPE, "/etc/passwd"), (tarfile.LNKTYPE, "good"), (tarfile.FIFOTYPE, "")]
)
def test_links_and_special_members_of_tar_are_refused(tmp_path, special):
    path = tar(tmp_path / "a", {"good": b"1", "link": special})
    assert dict(members(path, lambda name: name == "good")) == {"good": b"1"}
    with pytest.raises(FileProblem, match="'link' is a link or special"):
        list(members(path, everything))


def test_links_of_zip_are_refused(tmp_path):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        info = zipfile.ZipInfo("link")
        info.external_attr = 0o120777 << 16
        archive.writestr(info, "/etc/passwd")
    with pytest.raises(FileProblem, match="'link' is a link"):
        list(members(path, everything))


@pytest.mark.parametrize("write", [tar, zipped])
def test_size_and_number_are_bounded(tmp_path, write):
    bomb = write(tmp_path / "bomb", {"zeros": bytes(5_000_000)})
    assert bomb.stat().st_size < 50_000
    with pytest.raises(FileProblem, match="unpacks to more than 1,000,000 bytes"):
        list(members(bomb, everything, most_bytes=1_000_000))
    many = write(tmp_path / "many", {f"file{k}": b"" for k in range(11)})
    with pytest.raises(FileProblem, match="more than 10 members"):
        list(members(many, everything, most_members=10))


def test_a_bomb_in_what_is_not_wanted_is_bounded_too(tmp_path, monkeypatch):
    monkeypatch.setattr("polymode.tasks.readers.archives._SPARE", 1000)
    path = tar(tmp_path / "bomb", {"zeros": bytes(5_000_000), "good": b"1"})
    with pytest.raises(FileProblem, match="unpacks to more than"):
        list(members(path, lambda name: name == "good", most_bytes=1_000_000))


def test_twice_the_same_name_is_refused(tmp_path):
    path = tmp_path / "twice"
    with tarfile.open(path, "w") as archive:
        for content in (b"1", b"2"):
            info = tarfile.TarInfo("a")
            info.size = 1
            archive.addfile(info, io.BytesIO(content))
    with pytest.raises(FileProblem, match="holds 'a' twice"):
        list(members(path, everything))


@pytest.mark.parametrize("write", [tar, zipped])
def test_a_cut_archive_is_named(tmp_path, write):
    path = write(tmp_path / "cut", {"a": bytes(range(256)) * 40})
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(FileProblem, match="cut is truncated"):
        list(members(path, everything))


def test_what_is_no_archive_is_named(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"hello" * 1000)
    with pytest.raises(FileProblem, match="not an archive"):
        list(members(path, everything))
    path.write_bytes(gzip.compress(b"hello" * 1000))
    with pytest.raises(FileProblem, match="not an archive"):
        list(members(path, everything))
    with pytest.raises(FileProblem, match="nothing does not exist"):
        list(members(tmp_path / "nothing", everything))


def test_an_encrypted_zip_is_named(tmp_path):
    path = zipped(tmp_path / "a.zip", {"a": b"secret"})
    content = bytearray(path.read_bytes())
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(mark) + offset] |= 1
    path.write_bytes(bytes(content))
    with pytest.raises(FileProblem, match="password required|encrypted"):
        list(members(path, everything))
