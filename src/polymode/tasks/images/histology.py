"""Histological slices: tissue has no upright pose, so a classifier should have none.

`histology` is a reduced BreaKHis set (400×, 46x46 pixels, benign or malignant), packed for study;
slices of one patient look alike, so patients, not images, are divided into training and test.
`nct_crc_he` reads the files of NCT-CRC-HE-100K and CRC-VAL-HE-7K (J. N. Kather, N. Halama, A. Marx,
100,000 histological images of human colorectal cancer and healthy tissue, 2018) as they are
published: TIFF images in a folder per class; images are reduced while they are read.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import torch

from polymode.core.rng import generator
from polymode.core.safe_files import FileProblem
from polymode.tasks.files import load
from polymode.tasks.images.build import Choice, Names, Part, image_task, require_sets
from polymode.tasks.images.named_sets import JIGSAW, ood_names
from polymode.tasks.named import TASKS
from polymode.tasks.readers import read_image_folder
from polymode.tasks.splits import check_fraction
from polymode.tasks.task import Task

TISSUES = ("ADI", "BACK", "DEB", "LYM", "MUC", "MUS", "NORM", "STR", "TUM")
FILE = "histology_46"


@TASKS.register(
    "histology",
    description="breast tissue, benign or malignant; 46x46 pixels, divided by patient",
    source="F. A. Spanhol, L. S. Oliveira, C. Petitjean, L. Heutte, A dataset for breast cancer"
    " histopathological image classification, IEEE TBME 63 (2016) 1455-1462; reduced",
    licence="study only",
    kind="real",
    size="about three quarters / 0 / one quarter of 1,693",
    data=(FILE,),
)
def histology(
    *,
    seed: int = 0,
    crop: int | None = 44,
    test_fraction: float = 0.25,
    num_train: int | None = None,
    num_val: int | None = 0,
    num_test: int | None = None,
    ood: Names = (JIGSAW,),
    shifts: Names | None = (),
) -> Task:
    """Return the reduced BreaKHis images as a task; no patient is in two parts.

    Args:
        seed: draws the random shifts; the split does not depend on it.
        crop: side of the middle that is kept, at most 46. With 44, poolings of common networks
            leave no column over at one edge, which would break their symmetry.
        test_fraction: share in (0, 1) of the patients of each class in the test set.
        num_train, num_val, num_test: stratified subsets of images. Validation images, if any, are
            of training patients.
        ood, shifts: see the other image tasks.
    """
    check_fraction("test_fraction", "histology", test_fraction)
    if crop is not None and not (isinstance(crop, int) and crop in range(4, 47, 2)):
        raise ValueError(f"`crop` of histology must be an even number from 4 to 46, got {crop!r}")
    chosen = ood_names("histology", ood, ())
    require_sets("histology", [FILE], [key for key in chosen if key != JIGSAW])
    arrays = load(FILE)
    x, y = arrays["x"], torch.from_numpy(arrays["y"])
    edge = 0 if crop is None else (x.shape[1] - crop) // 2
    x = x[:, edge : x.shape[1] - edge, edge : x.shape[2] - edge]
    tested = torch.from_numpy(by_patient(arrays["patient"], arrays["y"], test_fraction))
    train, test = (Part(x[rows.numpy()], y[rows]) for rows in (~tested, tested))
    return image_task(
        "histology",
        train,
        test,
        Choice(seed, num_train, num_val, num_test, shifts),
        class_names=("benign", "malignant"),
        ood=chosen,
        num_val=0,
        augment=None,
        description="breast tissue at 400×, reduced; patients divided, not images",
    )


def by_patient(files: np.ndarray, labels: np.ndarray, fraction: float) -> np.ndarray:
    """Return which images are of the test set: a share of the patients of each class.

    A patient is the number in the file name, whatever letters follow it: SOB_B_A-14-22549AB-400-001
    is of 22549, as are the slides AB, CD and G. A patient with images of both classes counts with
    the first.
    """
    patients = np.array([patient_of(str(file)) for file in files])
    tested: set[str] = set()
    assigned: set[str] = set()
    for label in np.unique(labels):
        new_patients = sorted(set(patients[labels == label]) - assigned)
        assigned |= set(new_patients)
        order = torch.randperm(len(new_patients), generator=generator(0, "histology", int(label)))
        count = max(1, round(fraction * len(new_patients)))
        tested |= {new_patients[place] for place in order[:count].tolist()}
    return np.isin(patients, sorted(tested))


def patient_of(file: str) -> str:
    """Return the patient's number.

    >>> patient_of("SOB_B_A-14-22549AB-400-001.png")
    '14-22549'
    """
    match = re.match(r"[A-Z_]+-(\d+)-(\d+)", file)
    if match is None:
        raise FileProblem(f"'{file}' does not name a patient, as SOB_B_A-14-22549AB-400-001 does")
    return f"{match[1]}-{match[2]}"


@TASKS.register(
    "nct_crc_he",
    description="colorectal tissue in nine classes, from the published files (option path)",
    source="J. N. Kather, N. Halama, A. Marx, 100,000 histological images of human colorectal"
    " cancer and healthy tissue, Zenodo 1214456 (2018)",
    licence="CC BY 4.0",
    kind="real",
    size="by folder, 100,000 / 7,180 when complete",
    data=(),
)
def nct_crc_he(
    *,
    path: str | Path | None = None,
    seed: int = 0,
    size: int = 32,
    num_train: int | None = None,
    num_val: int | None = 0,
    num_test: int | None = None,
    ood: Names = (JIGSAW,),
    shifts: Names | None = (),
) -> Task:
    """Return NCT-CRC-HE-100K for training and CRC-VAL-HE-7K, of other patients, as the test set.

    Args:
        path: the folder that holds both; also NCT-CRC-HE-100K-NONORM, if the other is not there.
        seed: draws the random shifts.
        size: side to which the images of 224x224 pixels are reduced. Even sides that stay even
            under a network's poolings keep its symmetry.
        num_train, num_val, num_test: stratified subsets of images.
        ood, shifts: see the other image tasks.
    """
    if path is None:
        raise ValueError(
            "`path` of nct_crc_he must name the folder with NCT-CRC-HE-100K and CRC-VAL-HE-7K"
        )
    if not isinstance(size, int) or not 8 <= size <= 224:
        raise ValueError(f"`size` of nct_crc_he must be an integer from 8 to 224, got {size!r}")
    folder = Path(path).expanduser()
    names = ("NCT-CRC-HE-100K", "NCT-CRC-HE-100K-NONORM")
    train = next((folder / name for name in names if (folder / name).is_dir()), None)
    if train is None or not (folder / "CRC-VAL-HE-7K").is_dir():
        raise FileProblem(
            f"{folder} must hold the unpacked folders NCT-CRC-HE-100K and CRC-VAL-HE-7K"
        )
    chosen = ood_names("nct_crc_he", ood, ())
    require_sets("nct_crc_he", [], [key for key in chosen if key != JIGSAW])
    return image_task(
        "nct_crc_he",
        _tissues(train, size),
        _tissues(folder / "CRC-VAL-HE-7K", size),
        Choice(seed, num_train, num_val, num_test, shifts),
        class_names=TISSUES,
        ood=chosen,
        num_val=0,
        augment=None,
        description=f"colorectal tissue of {train.name}, reduced to {size}x{size}",
    )


def _tissues(folder: Path, size: int) -> Part:
    images = read_image_folder(folder, size=(size, size), channels=3, formats=("TIFF",))
    if images.class_names != TISSUES:
        raise FileProblem(
            f"{folder} has the classes {', '.join(images.class_names)}; expected"
            f" {', '.join(TISSUES)}"
        )
    return Part(images.x, torch.from_numpy(images.y))
