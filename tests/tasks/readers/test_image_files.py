"""Folders of images: order, classes, sizes; broken ones are named, and skipped only on request."""

from __future__ import annotations

import io
import os
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from polymode.core.safe_files import FileProblem
from polymode.tasks.readers import image_files as module
from polymode.tasks.readers import read_image_folder

GREY = np.arange(12, dtype=np.uint8).reshape(3, 4) * 20
NOISE = np.random.default_rng(0).integers(0, 256, (9, 9), dtype=np.uint8)
COLOUR = np.arange(36, dtype=np.uint8).reshape(3, 4, 3) * 7


def png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def write(folder, files: dict[str, bytes]):
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def test_a_subfolder_is_a_class(tmp_path):
    write(tmp_path, {"dog/b.png": png(GREY + 1), "dog/a.PNG": png(GREY), "cat/z.png": png(GREY)})
    write(tmp_path, {"cat/notes.txt": b"", "cat/.hidden.png": b"", "loose.png": b""})
    found = read_image_folder(tmp_path)
    assert found.files == ("cat/z.png", "dog/a.PNG", "dog/b.png")
    assert found.class_names == ("cat", "dog")
    assert found.y.tolist() == [0, 1, 1]
    assert found.skipped == ()
    np.testing.assert_array_equal(found.x, np.stack([GREY, GREY, GREY + 1]))


def test_colour_is_kept_and_grey_joins_it_without_loss(tmp_path):
    write(tmp_path, {"a/1.png": png(COLOUR), "a/2.png": png(GREY)})
    found = read_image_folder(tmp_path)
    np.testing.assert_array_equal(found.x[0], COLOUR)
    np.testing.assert_array_equal(found.x[1], np.stack([GREY] * 3, -1))


def test_colour_after_grey_is_not_lost_silently(tmp_path):
    write(tmp_path, {"a/1.png": png(GREY), "a/2.png": png(COLOUR)})
    with pytest.raises(FileProblem, match=r"2.png is in colour, .*1.png is grey; give channels=1"):
        read_image_folder(tmp_path)
    assert read_image_folder(tmp_path, channels=1).x.shape == (2, 3, 4)
    assert read_image_folder(tmp_path, channels=3).x.shape == (2, 3, 4, 3)


def test_jpeg_is_read(tmp_path):
    file = io.BytesIO()
    Image.fromarray(np.full((8, 8, 3), 128, np.uint8)).save(file, "JPEG", quality=95)
    write(tmp_path, {"a/1.jpg": file.getvalue(), "b/2.JPEG": file.getvalue()})
    found = read_image_folder(tmp_path)
    assert found.x.shape == (2, 8, 8, 3)
    assert abs(found.x.astype(int) - 128).max() <= 1


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no image",
        png(NOISE)[:-60],
        png(NOISE)[:40],
        b"GIF89a" + bytes(50),
        png(np.arange(4, dtype=np.uint16).reshape(2, 2)),
    ],
    ids=["empty", "text", "cut in the pixels", "cut in the header", "gif", "16 bit"],
)
def test_a_broken_image_is_named_and_skipped_only_on_request(tmp_path, content):
    write(tmp_path, {"a/1.png": png(GREY), "a/2.png": content, "b/3.png": png(GREY)})
    with pytest.raises(FileProblem, match=r"a/2.png is a broken image: .*on_broken='skip'"):
        read_image_folder(tmp_path)
    found = read_image_folder(tmp_path, on_broken="skip")
    assert found.skipped == (str(tmp_path / "a/2.png"),)
    assert found.files == ("a/1.png", "b/3.png")
    assert found.y.tolist() == [0, 1]
    assert found.x.shape == (2, 3, 4)


def test_all_broken_is_said(tmp_path):
    write(tmp_path, {"a/1.png": b"", "a/2.png": b""})
    with pytest.raises(FileProblem, match="none of 2 images could be read; the first: .*1.png"):
        read_image_folder(tmp_path, on_broken="skip")


def test_other_sizes_are_named_or_resized(tmp_path):
    write(tmp_path, {"a/1.png": png(GREY), "a/2.png": png(np.full((6, 8), 100, np.uint8))})
    with pytest.raises(FileProblem, match=r"2.png is 6 x 8, .*1.png is 3 x 4; give size="):
        read_image_folder(tmp_path)
    found = read_image_folder(tmp_path, size=(3, 4))
    np.testing.assert_array_equal(found.x[0], GREY)
    assert (found.x[1] == 100).all()


def test_a_decompression_bomb_is_refused_unread(tmp_path, monkeypatch):
    """A PNG of a few bytes that claims 60,000 x 60,000 pixels, and one just above the limit."""

    def claim(width: int, height: int) -> bytes:
        header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
        chunk = b"IHDR" + header
        return (
            b"\x89PNG\r\n\x1a\n"
            + struct.pack(">I", 13)
            + chunk
            + struct.pack(">I", zlib.crc32(chunk))
        )

    for content in (claim(60_000, 60_000), claim(10_000, 10_000), claim(8_000, 8_001)):
        write(tmp_path, {"a/1.png": content})
        with pytest.raises(FileProblem, match="1.png is a broken image"):
            read_image_folder(tmp_path)


def test_memory_is_asked_first(tmp_path, monkeypatch):
    write(tmp_path, {"a/1.png": png(GREY), "a/2.png": png(GREY)})
    monkeypatch.setattr(module, "free_bytes", lambda: 20)
    with pytest.raises(FileProblem, match="2 images of 3 x 4 need 24 B, 20 B is free"):
        read_image_folder(tmp_path)


def test_labels_from_a_table(tmp_path):
    write(tmp_path, {"x/1.png": png(GREY), "2.png": png(GREY + 1), "3.png": png(GREY + 2)})
    table = tmp_path / "labels.csv"
    table.write_text("file,label\n3.png,10\nx/1.png,2\n2.png,10\n")
    found = read_image_folder(tmp_path, labels=table)
    assert found.files == ("3.png", "x/1.png", "2.png")
    assert found.class_names == ("2", "10")
    assert found.y.tolist() == [1, 0, 1]
    table.write_text('"2.png","a, b"\n')
    assert read_image_folder(tmp_path, labels=table).class_names == ("a, b",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1.png,a,b\n", "line 1: 3 columns"),
        ("file,label\n1.png,\n", "line 2: 1.png has no class"),
        ("file,label\n9.png,a\n", "names 9.png, which is not in"),
        ("1.png,a\n./1.png,b\n", "line 2: 1.png is listed in line 1 already"),
        ("../1.png,a\n", "names a file outside its folder"),
        ("", "has no PNG or JPEG image"),
        ("\0\xff", "cannot be read as csv|3 columns|1 columns"),
    ],
)
def test_wrong_tables_are_named(tmp_path, text, message):
    write(tmp_path, {"1.png": png(GREY)})
    table = tmp_path / "labels.csv"
    table.write_text(text)
    with pytest.raises(FileProblem, match=message):
        read_image_folder(tmp_path, labels=table)


def test_a_pipe_in_the_place_of_a_table_is_refused(tmp_path):
    write(tmp_path, {"1.png": png(GREY)})
    os.mkfifo(tmp_path / "labels.csv")
    with pytest.raises(FileProblem, match="is a pipe or a device"):
        read_image_folder(tmp_path, labels=tmp_path / "labels.csv")


def test_wrong_folders_and_options_are_named(tmp_path):
    with pytest.raises(FileProblem, match="is not a folder"):
        read_image_folder(tmp_path / "nowhere")
    with pytest.raises(FileProblem, match="has no PNG or JPEG image in a subfolder"):
        read_image_folder(tmp_path)
    write(tmp_path, {"a/1.bmp": b"BM"})
    with pytest.raises(FileProblem, match="1.bmp is neither PNG nor JPEG"):
        read_image_folder(tmp_path)
    (tmp_path / "a/1.bmp").unlink()
    write(tmp_path, {"a/1.png": png(GREY)})
    for options in ({"channels": 2}, {"on_broken": "ignore"}, {"size": (0, 4)}):
        with pytest.raises(ValueError, match=f"`{next(iter(options))}` must be"):
            read_image_folder(tmp_path, **options)
