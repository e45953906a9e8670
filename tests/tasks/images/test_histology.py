"""Histological slices: division by patient, and the published files of NCT-CRC-HE."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from PIL import Image

import polymode as pm
from polymode.core.safe_files import FileProblem
from polymode.tasks.files import DATASETS
from polymode.tasks.images.histology import TISSUES, by_patient, patient_of

PER_PATIENT, PATIENTS = 4, 20


def files() -> np.ndarray:
    """Return file names as BreaKHis has them: 12 benign and 8 malignant patients."""
    kinds = ["B_A"] * 12 + ["M_DC"] * 8
    return np.array([
        f"SOB_{kind}-14-{10_000 + number}{'AB' if image % 2 else 'CD'}-400-{image:03d}.png"
        for number, kind in enumerate(kinds) for image in range(PER_PATIENT)
    ])  # fmt: skip


@pytest.fixture
def reduced(folder) -> np.ndarray:
    """A small set in the form of the file: the red of an image is its patient."""
    names = files()
    x = np.zeros((len(names), 46, 46, 3), np.uint8)
    x[..., 0] = (np.arange(len(names)) // PER_PATIENT)[:, None, None]
    x[..., 1:] = np.random.default_rng(0).integers(0, 256, (len(names), 46, 46, 2))
    y = np.array(["_M_" in name for name in names], np.uint8)
    folder.put("histology_46", {"x": x, "y": y, "patient": names})
    entry = DATASETS._entries["histology_46"]
    specs = dict(entry.value.arrays)
    specs["y"] = dataclasses.replace(specs["y"], counts=())
    specs["patient"] = dataclasses.replace(specs["patient"], dtype=names.dtype.str)
    small = dataclasses.replace(entry, value=dataclasses.replace(entry.value, arrays=specs))
    folder._patch.setitem(DATASETS._entries, "histology_46", small)
    return names


def test_no_patient_is_in_two_parts(reduced) -> None:
    task = pm.task("histology", ood=[])
    red = [set(part.pixels[:, 0, 0, 0].tolist()) for part in (task.train, task.test)]
    assert not red[0] & red[1] and len(red[0] | red[1]) == PATIENTS
    assert len(red[1]) == 5 and {*task.test.y.tolist()} == {0, 1}  # 3 of 12 and 2 of 8
    assert task.input_shape == (3, 44, 44) and task.class_names == ("benign", "malignant")
    again = pm.task("histology", ood=[], seed=3, crop=None)
    assert torch.equal(again.test.pixels[:, :, 1:-1, 1:-1], task.test.pixels)
    assert len(pm.task("histology").ood["jigsaw"]) == len(task.test)


def test_letters_behind_a_number_are_slides_of_one_patient() -> None:
    assert patient_of("SOB_M_DC-14-13412-400-001.png") == "14-13412"
    names = files()
    labels = np.array(["_M_" in name for name in names]).astype(int)
    tested = by_patient(names, labels, 0.25)
    owners = np.array([patient_of(name) for name in names])
    assert not set(owners[tested]) & set(owners[~tested])
    both = np.concatenate([names, ["SOB_M_LC-14-10000-400-001.png"]])  # also among the benign
    tested = by_patient(both, np.append(labels, 1), 0.25)
    assert tested[-1] == tested[0]
    with pytest.raises(FileProblem, match="does not name a patient"):
        by_patient(np.array(["tumour.png"]), np.array([0]), 0.5)


def write_tissues(folder, name: str, count: int, tissues=TISSUES) -> None:
    stream = np.random.default_rng(count)
    for place, tissue in enumerate(tissues):
        (folder / name / tissue).mkdir(parents=True)
        for number in range(count):
            pixels = stream.integers(0, 256, (16, 16, 3), dtype=np.uint8)
            pixels[..., 0] = 20 * place
            path = folder / name / tissue / f"{tissue}-AAAA{number:04d}.tif"
            Image.fromarray(pixels).save(path)


def test_the_published_files_are_read(tmp_path) -> None:
    """TIFF in a folder per class, two folders; images of another size are reduced."""
    write_tissues(tmp_path, "NCT-CRC-HE-100K", 3)
    write_tissues(tmp_path, "CRC-VAL-HE-7K", 2)
    task = pm.task("nct_crc_he", path=str(tmp_path), size=8)
    assert (len(task.train), len(task.test), task.input_shape) == (27, 18, (3, 8, 8))
    assert task.class_names == TISSUES and task.target_size == 9
    for part in (task.train, task.test):
        assert torch.equal(part.pixels[:, 0, 4, 4], 20 * part.y.to(torch.uint8))
    assert list(task.ood) == ["jigsaw"]


def test_what_is_missing_is_said(tmp_path) -> None:
    with pytest.raises(ValueError, match="must name the folder with NCT-CRC-HE-100K"):
        pm.task("nct_crc_he")
    with pytest.raises(FileProblem, match="unpacked folders NCT-CRC-HE-100K and CRC-VAL-HE-7K"):
        pm.task("nct_crc_he", path=str(tmp_path))
    write_tissues(tmp_path, "NCT-CRC-HE-100K", 1, ("ADI", "BACK"))
    write_tissues(tmp_path, "CRC-VAL-HE-7K", 1)
    with pytest.raises(FileProblem, match="has the classes ADI, BACK; expected ADI, BACK, DEB"):
        pm.task("nct_crc_he", path=str(tmp_path), size=8)
    (tmp_path / "NCT-CRC-HE-100K" / "ADI" / "other.png").write_bytes(b"")
    with pytest.raises(FileProblem, match="is not TIFF; convert it"):
        pm.task("nct_crc_he", path=str(tmp_path), size=8)
    with pytest.raises(ValueError, match="`size` of nct_crc_he must be an integer from 8 to 224"):
        pm.task("nct_crc_he", path=str(tmp_path), size=4)
    with pytest.raises(
        ValueError, match="`crop` of histology must be an even number from 4 to 46, got 50"
    ):
        pm.task("histology", crop=50)
