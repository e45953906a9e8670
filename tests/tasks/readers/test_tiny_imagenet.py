"""Tiny-ImageNet's layout: labels by `wnids.txt`, the lists and the images in any archive order."""

from __future__ import annotations

import io
import zipfile

import numpy as np
import pytest
from PIL import Image

from polymode.core.safe_files import FileProblem
from polymode.tasks.readers import read_tiny_imagenet

TOP = "tiny-imagenet-200"


def jpeg(value: int, mode: str = "RGB") -> bytes:
    file = io.BytesIO()
    Image.new(mode, (8, 8), value if mode == "L" else (value,) * 3).save(file, "JPEG", quality=95)
    return file.getvalue()


def layout() -> dict[str, bytes]:
    """Two classes, listed in another order than the alphabet's; image 10 after image 9."""
    files = {}
    for wnid, base in (("n02", 0), ("n01", 100)):
        for number in (10, 9, 0):
            files[f"train/{wnid}/images/{wnid}_{number}.JPEG"] = jpeg(base + number)
        files[f"train/{wnid}/{wnid}_boxes.txt"] = b"boxes"
    files["val/images/val_1.JPEG"] = jpeg(201)
    files["val/images/val_0.JPEG"] = jpeg(200, "L")
    files["val/val_annotations.txt"] = b"val_0.JPEG\tn01\t0\t0\t9\t9\nval_1.JPEG\tn02\t0\t0\t9\t9\n"
    files["test/images/test_0.JPEG"] = b"not even an image"
    files["wnids.txt"] = b"n02\nn01\n"
    return files


def packed(path, files):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(f"{TOP}/{name}", content)
    return path


def unpacked(path, files):
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return path


@pytest.mark.parametrize("write", [packed, unpacked])
def test_images_labels_and_order(tmp_path, write):
    found = read_tiny_imagenet(write(tmp_path / "tiny", layout()))
    assert found["x_train"].shape == (6, 8, 8, 3)
    values = found["x_train"][:, 0, 0, 0].astype(int)
    assert abs(values - [0, 9, 10, 100, 109, 110]).max() <= 2
    assert found["y_train"].tolist() == [0, 0, 0, 1, 1, 1]
    assert abs(found["x_test"][:, 0, 0, 0].astype(int) - [200, 201]).max() <= 2
    assert found["y_test"].tolist() == [1, 0]
    assert found["wnids"].tolist() == ["n02", "n01"]
    assert found["y_train"].dtype == np.int64


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"wnids.txt": None}, "lacks wnids.txt"),
        ({"val/val_annotations.txt": None}, "lacks val_annotations.txt"),
        ({"val/images/val_1.JPEG": None}, "lacks val_1.JPEG, which val_annotations.txt names"),
        ({"wnids.txt": b"n02\nn01\nn03\n"}, "no training image of class n03"),
        ({"val/val_annotations.txt": b"val_0.JPEG\tn07\n"}, "line 1 .* names no class"),
        ({"train/n01/images/n01_9.JPEG": b"x"}, "n01_9.JPEG is a broken image"),
    ],
)
def test_what_is_missing_or_broken_is_named(tmp_path, change, message):
    files = {name: content for name, content in (layout() | change).items() if content is not None}
    with pytest.raises(FileProblem, match=message):
        read_tiny_imagenet(packed(tmp_path / "tiny.zip", files))
