"""Published layouts, read from small made files; volumes."""

from __future__ import annotations

import gzip
import struct
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

import polymode as pm
from polymode.core.safe_files import FileProblem
from polymode.tasks.dense.mni_tissue import BLOCK, GAP, divided
from polymode.tasks.files import packages
from polymode.tasks.readers.nifti import read_nifti

STREAM = np.random.default_rng(0)


def picture(path, size=(12, 16)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(STREAM.integers(0, 256, (*size, 3), dtype=np.uint8)).save(path)


def save_map(path, values, dtype=np.uint8) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(values, dtype)).save(path)


def test_camvid(tmp_path) -> None:
    for half, number in (("train", 3), ("val", 1), ("test", 2)):
        for k in range(number):
            picture(tmp_path / half / f"{k}.png")
            values = STREAM.integers(0, 12, (12, 16))
            values[0, 0] = k
            save_map(tmp_path / f"{half}annot" / f"{k}.png", values)
    task = pm.task("camvid", path=tmp_path, shifts=("rotation",))
    assert [len(d) for d in (task.train, task.val, task.test)] == [3, 1, 2]
    with Image.open(tmp_path / "testannot" / "1.png") as image:
        values = torch.from_numpy(np.array(image)).long()
    assert torch.equal(task.test.y[1], values.masked_fill(values == 11, -100))
    assert task.class_names[3] == "road" and task.target_size == 11
    assert bool((task.ood["pasted"].y == 11).any())
    assert (task.shifts["rotation"][3].y == -100).float().mean() > (
        task.test.y == -100
    ).float().mean()
    small = pm.task("camvid", path=tmp_path, size=(6, 8), num_train=2)
    assert small.input_shape == (3, 6, 8) and len(small.train) == 2
    mean = (small.train.pixels.float() / 255).mean((0, 2, 3))
    torch.testing.assert_close(small.input_scaling.shift.flatten(), mean)
    net = lambda: pm.nets.unet((3, 6, 8), 11, channels=(4, 4), skips=(2,))  # noqa: E731
    post = pm.fit("map", net=net, task=small, epochs=1, progress="silent", strict=False)
    assert 0 <= pm.evaluate(post, small)["test", "miou"].value <= 1


def test_cityscapes(tmp_path) -> None:
    for half, cities in (("train", ("aachen", "bochum", "zurich")), ("val", ("munster",))):
        for city in cities:
            for k in range(2):
                name = f"{half}/{city}/{city}_{k:06d}_000019"
                picture(tmp_path / "leftImg8bit" / f"{name}_leftImg8bit.png")
                values = np.full((12, 16), 3)
                values[:4], values[4:8] = 7, 33
                save_map(tmp_path / "gtFine" / f"{name}_gtFine_labelIds.png", values)
    task = pm.task("cityscapes", path=tmp_path, size=None)
    assert [len(d) for d in (task.train, task.val, task.test)] == [4, 2, 2]
    assert task.target_size == 19
    assert task.test.y[0, :, 0].tolist() == [0] * 4 + [18] * 4 + [-100] * 4


@pytest.mark.filterwarnings("ignore:doubtful posterior")
def test_nyuv2(tmp_path) -> None:
    for half, number in (("train", 3), ("test", 2)):
        for k in range(number):
            picture(tmp_path / "image" / half / f"{k:05d}.jpg")
            depth = STREAM.integers(800, 9000, (12, 16))
            depth[0] = 0
            save_map(tmp_path / "depth" / half / f"{k:05d}.png", depth, np.uint16)
            save_map(tmp_path / "seg13" / half / f"{k:05d}.png", STREAM.integers(0, 14, (12, 16)))
    task = pm.task("nyuv2", path=tmp_path, size=None)
    assert [len(d) for d in (task.train, task.val, task.test)] == [2, 1, 2]
    assert task.test.y.shape == (2, 12, 16, 1) and bool(task.test.y[:, 0].isnan().all())
    with Image.open(tmp_path / "depth" / "test" / "00001.png") as image:
        values = torch.from_numpy(np.array(image).astype(np.float32)) / 1000
    torch.testing.assert_close(task.test.y[1, 1:, :, 0], values[1:])
    net = lambda: pm.nets.unet((3, 12, 16), 2, channels=(4, 4), skips=(2,))  # noqa: E731
    post = pm.fit("map", net=net, task=task, epochs=1, progress="silent")
    assert pm.evaluate(post, task)["test", "abs_rel"].n == 2 * 11 * 16
    classes = pm.task("nyuv2", path=tmp_path, target="classes", size=(6, 8))
    assert classes.target_size == 13 and int(classes.train.y.min()) >= -100


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: (folder / "trainannot" / "0.png").unlink(), "has no map .*0.png"),
        (lambda folder: save_map(folder / "trainannot" / "0.png", np.zeros((5, 5))),
         r"is \(5, 5\) pixels.*is \(12, 16\)"),
        (lambda folder: picture(folder / "trainannot" / "0.png"), "pixels of kind RGB"),
        (lambda folder: (folder / "testannot" / "0.png").write_bytes(b"no"), "is a broken map"),
        (lambda folder: (folder / "val" / "0.png").unlink(), "has no PNG or JPEG image"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_files_is_one_line(tmp_path, change, message) -> None:
    for half in ("train", "val", "test"):
        picture(tmp_path / half / "0.png")
        save_map(tmp_path / f"{half}annot" / "0.png", STREAM.integers(0, 11, (12, 16)))
    change(tmp_path)
    with pytest.raises(FileProblem, match=message) as caught:
        pm.task("camvid", path=tmp_path)
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="`path` of camvid must name its folder"):
        pm.task("camvid")


def nifti(values: np.ndarray, code: int, slope: float = 1.0, order: str = "<") -> bytes:
    """Return a file with these values (z, y, x)."""
    header = bytearray(352)
    header[:4] = struct.pack(order + "i", 348)
    header[40:56] = struct.pack(order + "8h", 3, *values.shape[::-1], 1, 1, 1, 1)
    header[70:72] = struct.pack(order + "h", code)
    header[108:120] = struct.pack(order + "3f", 352, slope, 0)
    header[344:348] = b"n+1\0"
    return bytes(header) + values.astype(values.dtype.newbyteorder(order)).tobytes()


def test_volumes(tmp_path) -> None:
    values = STREAM.integers(0, 100, (4, 3, 2)).astype(np.int16)
    for name, content in {
        "a.nii": nifti(values, 4), "b.nii.gz": gzip.compress(nifti(values, 4)),
        "c.nii": nifti(values, 4, order=">"),
    }.items():  # fmt: skip
        (tmp_path / name).write_bytes(content)
        assert (read_nifti(tmp_path / name) == values).all()
    (tmp_path / "d.nii").write_bytes(nifti(values, 4, slope=0.5))
    np.testing.assert_allclose(read_nifti(tmp_path / "d.nii"), 0.5 * values)
    for content, message in (
        (nifti(values, 4)[:-1], "asks for 48 bytes from 352 on, the file has 399"),
        (nifti(values, 128), "and type 128"),
        (b"x" * 400, "is not a NIfTI-1 file"),
        (gzip.compress(nifti(values, 4))[:-9], "is broken"),
    ):
        (tmp_path / "e.nii").write_bytes(content)
        with pytest.raises(FileProblem, match=message):
            read_nifti(tmp_path / "e.nii")


def test_slices_are_divided_in_blocks_with_gaps() -> None:
    """No slice of the test set is nearer than two gaps to one of another set."""
    grey, white = np.zeros((100, 8, 8), np.uint8), np.zeros((100, 8, 8), np.uint8)
    grey[5:95, :4], white[5:95, 4:6] = 200, 250
    t1 = np.broadcast_to(np.arange(100, dtype=np.uint8)[:, None, None], grey.shape)
    sets = divided(t1, grey, white)
    numbers = {key: maps.pixels[:, 0, 0, 0].tolist() for key, maps in sets.items()}
    assert numbers["test"] == list(range(5 + 2 * BLOCK + GAP, 5 + 3 * BLOCK - GAP))
    for key in ("train", "val"):
        assert min(abs(a - b) for a in numbers["test"] for b in numbers[key]) > 2 * GAP
    assert sets["train"].targets[0, :, 0].tolist() == [1] * 4 + [2] * 2 + [0] * 2


def test_volumes_are_taken_from_the_package(tmp_path) -> None:
    values = STREAM.integers(0, 255, (3, 4, 5)).astype(np.uint8)
    archive = tmp_path / "nilearn.whl"
    with zipfile.ZipFile(archive, "w") as file:
        for path in packages._VOLUMES.values():
            file.writestr(path, gzip.compress(nifti(values, 2)))
    volumes = packages.read_volumes({"nilearn.whl": archive})
    assert set(volumes) == {"t1", "grey", "white"} and (volumes["grey"] == values).all()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("other", b"")
    with pytest.raises(FileProblem, match="lacks nilearn/datasets"):
        packages.read_volumes({"nilearn.whl": archive})
