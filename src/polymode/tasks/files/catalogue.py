"""The catalogue: each data set with its files, their checksums, and how they are read.

Files of MNIST's format and of UCI, with their checksums, are listed in `catalogue.manifest`.
Checksums of image files are those that TensorFlow Datasets records (tensorflow/datasets,
`url_checksums/` and `svhn_cropped/checksums.tsv`) unless an entry says otherwise. The sha256 of
arrays are given where the arrays are known to be those of the original files.

UCI regression is nine tables with the standard splits and the gap splits. Tables and gap splits are
files of Antoran et al. (2020), github.com/cambridge-mlg/DUN (MIT), which carries the tables and
splits of Hernandez-Lobato and Adams (2015) and the gap splits after Foong et al. (2019): one split
per feature, whose test rows are its middle third. The standard splits come from the recipe
published with them: with NumPy's legacy generator at seed 1, each split permutes the rows and tests
on the last tenth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from polymode.core.safe_files import FileProblem
from polymode.tasks.files.dataset import DATASETS, ArraySpec, Dataset, Original
from polymode.tasks.readers.archives import members
from polymode.tasks.readers.cifar import read_cifar
from polymode.tasks.readers.idx import read_idx
from polymode.tasks.readers.image_files import ImageStack
from polymode.tasks.readers.svhn import read_svhn
from polymode.tasks.readers.text_tables import read_table
from polymode.tasks.readers.tiny_imagenet import read_tiny_imagenet

IDX_FILES = {
    "x_train": "train-images-idx3-ubyte.gz",
    "y_train": "train-labels-idx1-ubyte.gz",
    "x_test": "t10k-images-idx3-ubyte.gz",
    "y_test": "t10k-labels-idx1-ubyte.gz",
}
MNIST_COUNTS = (
    (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949),
    (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009),
)
_TEST = ("x_test", "y_test")
_UCI_HOME = (
    "https://raw.githubusercontent.com/cambridge-mlg/DUN/"
    "4fc85182f911d48c0de8b71f901866f42f7955e4/experiments/data/UCI_for_sharing/"
)
# Rows, features and standard splits of each table. The target is the column after the features;
# naval has one more column, which no one uses.
TABLES = {
    "boston": (506, 13, 20),
    "concrete": (1030, 8, 20),
    "energy": (768, 8, 20),
    "kin8nm": (8192, 8, 20),
    "naval": (11934, 16, 20),
    "power": (9568, 4, 20),
    "protein": (45730, 9, 5),
    "wine": (1599, 11, 20),
    "yacht": (308, 6, 20),
}


def read_idx_files(files: Mapping[str, Path]) -> dict[str, np.ndarray]:
    """Return the arrays of those of the four files of MNIST and its relatives that are given."""
    return {name: read_idx(files[file]) for name, file in IDX_FILES.items() if file in files}


def read_letters(files: Mapping[str, Path]) -> dict[str, np.ndarray]:
    """Return notMNIST's letters A to J as x_test, y_test, by letter and file name.

    Two of the original images are empty files; they are left out, as everyone does.
    """
    (path,) = files.values()
    letters = sorted(members(path, lambda name: name.endswith(".png")))
    stack = ImageStack(len(letters), channels=1, on_broken="skip")
    for row, (name, content) in enumerate(letters):
        stack.put(row, f"{path}: {name}", content)
    x, rows = stack.done()
    labels = ["ABCDEFGHIJ".find(letters[row][0].split("/")[-2]) for row in rows]
    return {"x_test": x, "y_test": np.array(labels, np.int64)}


def read_cifar_files(files: Mapping[str, Path], classes: int) -> dict[str, np.ndarray]:
    """Return training and test images of CIFAR-10 or CIFAR-100, one archive."""
    return read_cifar(*files.values(), classes=classes)


def read_svhn_files(files: Mapping[str, Path]) -> dict[str, np.ndarray]:
    """Return training and test digits of SVHN."""
    arrays = {}
    for half in ("train", "test"):
        arrays[f"x_{half}"], arrays[f"y_{half}"] = read_svhn(files[f"{half}_32x32.mat"])
    return arrays


def read_uci(
    files: Mapping[str, Path], tables: Mapping[str, tuple[int, int, int]] = TABLES
) -> dict[str, np.ndarray]:
    """Return `<name>_x`, `<name>_y`, `<name>_test` and `<name>_gap_test` of every table.

    The splits are (splits, rows) truth values, True for a test row.
    """
    arrays = {}
    for name, (rows, features, splits) in tables.items():
        path = files[f"standard/{name}/data/data.txt"]
        values = read_table(path).values
        if len(values) != rows or values.shape[1] <= features:
            raise FileProblem(f"{path} is {values.shape}, expected {rows} rows of {features} + 1")
        arrays[f"{name}_x"] = np.ascontiguousarray(values[:, :features])
        arrays[f"{name}_y"] = np.ascontiguousarray(values[:, features])
        arrays[f"{name}_test"] = standard_splits(rows, splits)
        arrays[f"{name}_gap_test"] = np.stack(
            [
                _rows(files[f"gap/{name}/data/index_test_{feature}.txt"], rows)
                for feature in range(features)
            ]
        )
    return arrays


def standard_splits(rows: int, splits: int) -> np.ndarray:
    """Return the test rows of the standard splits, (splits, rows)."""
    stream = np.random.RandomState(1)
    test = np.zeros((splits, rows), bool)
    for split in test:
        split[stream.permutation(rows)[round(rows * 0.9) :]] = True
    return test


def _rows(path: Path, rows: int) -> np.ndarray:
    """Return the rows that an index file names, as truth values (rows,)."""
    numbers = read_table(path).values.reshape(-1)
    index = numbers.astype(np.int64)
    if (index != numbers).any() or index.min() < 0 or index.max() >= rows:
        raise FileProblem(f"{path} must hold row numbers of 0 to {rows - 1}")
    mask = np.zeros(rows, bool)
    mask[index] = True
    if mask.sum() != len(index):
        raise FileProblem(f"{path} names a row twice")
    return mask


def _images(
    train: int,
    test: int,
    shape: tuple[int, ...],
    num_classes: int,
    counts: tuple[tuple[int, ...], tuple[int, ...]] = ((), ()),
) -> dict[str, ArraySpec]:
    """Return the four arrays of an image data set, or two where there is no training half."""
    specs = {}
    for half, total, count in (("train", train, counts[0]), ("test", test, counts[1])):
        if total:
            specs[f"x_{half}"] = ArraySpec((total, *shape), "uint8")
            specs[f"y_{half}"] = ArraySpec((total,), "int64", num_classes, count)
    return specs


def _balanced(num_classes: int, train: int, test: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return (train,) * num_classes, (test,) * num_classes


def _manifest(name: str, *homes: str) -> tuple[tuple[Original, ...], dict[str, ArraySpec]]:
    """Return the files of a data set, each below all `homes`, and its arrays."""
    originals, arrays, current = [], {}, ""
    for line in Path(__file__).with_name("catalogue.manifest").read_text().splitlines():
        kind, *facts = line.split()
        if kind == "set":
            (current,) = facts
        elif current != name:
            continue
        elif kind == "file":
            file, size, sha256 = facts
            originals.append(Original(file, tuple(h + file for h in homes), int(size), sha256))
        else:
            array, dtype, shape, sha256 = facts
            sides = tuple(map(int, shape.split("x")))
            arrays[array] = ArraySpec(sides, dtype, sha256=sha256.removeprefix("-"))
    return tuple(originals), arrays


def _register_idx(
    name: str,
    description: str,
    licence: str,
    homes: tuple[str, ...],
    counts: Mapping[str, tuple[int, ...]],
    also: Mapping[str, tuple[str, ...]] | None = None,
) -> None:
    """Enter a set of ten classes in MNIST's format, with the examples of each class."""
    originals, arrays = _manifest(name, *homes)
    for array, number in counts.items():
        arrays[array] = replace(arrays[array], num_classes=10, counts=number)
    DATASETS.register(name)(
        Dataset(description, licence, originals, read_idx_files, arrays, also or {})
    )


# The original host is closed to programs; both addresses serve its files unchanged.
_register_idx(
    "mnist",
    "handwritten digits, 60,000 + 10,000 grey images of 28 x 28",
    "CC BY-SA 3.0 (LeCun, Cortes, Burges)",
    (
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
    {"y_train": MNIST_COUNTS[0], "y_test": MNIST_COUNTS[1]},
)
_register_idx(
    "fashion_mnist",
    "clothes, 60,000 + 10,000 grey images of 28 x 28",
    "MIT (Zalando)",
    (
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/"
        "b2617bb6d3ffa2e429640350f613e3291e10b141/data/fashion/",
        "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
    ),
    {"y_train": (6000,) * 10, "y_test": (1000,) * 10},
)
_register_idx(
    "kmnist",
    "cursive Japanese characters, 60,000 + 10,000 grey images of 28 x 28",
    "CC BY-SA 4.0 (CODH)",
    ("https://codh.rois.ac.jp/kmnist/dataset/kmnist/",),
    {"y_train": (6000,) * 10, "y_test": (1000,) * 10},
    {"kmnist_test.npz": _TEST},
)
# A balanced sample in MNIST's format, published with the author's leave; the sha256 are those of
# the files at the commit that the address names.
_register_idx(
    "notmnist",
    "letters A to J in many fonts, 10,000 grey test images of 28 x 28 (a sample of notMNIST)",
    "no licence stated (Bulatov); this packing MIT (Flanagan)",
    (
        "https://raw.githubusercontent.com/davidflanagan/notMNIST-to-MNIST/"
        "17823f4d4a3acd8317c07866702d2eb2ac79c7a0/",
    ),
    {"y_test": (1000,) * 10},
    {"notmnist_test.npz": _TEST},
)

# No sha256 was published; the md5 stands in several public loaders.
DATASETS.register("notmnist_small")(
    Dataset(
        "letters A to J in many fonts, all 18,724 grey images of 28 x 28 of notMNIST's clean part",
        "no licence stated (Bulatov)",
        (
            Original(
                "notMNIST_small.tar.gz",
                ("https://commondatastorage.googleapis.com/books1000/notMNIST_small.tar.gz",),
                8_458_043,
                md5="c9890a473a9769fda4bdf314aaf500dd",
            ),
        ),
        read_letters,
        _images(
            0,
            18_724,
            (28, 28),
            10,
            ((), (1872, 1873, 1873, 1873, 1873, 1872, 1872, 1872, 1872, 1872)),
        ),
    )
)

for _classes, _size, _sha256 in (
    (10, 170_052_171, "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"),
    (100, 168_513_733, "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec"),
):
    _file = f"cifar-{_classes}-binary.tar.gz"
    DATASETS.register(f"cifar{_classes}")(
        Dataset(
            f"objects in {_classes} classes, 50,000 + 10,000 colour images of 32 x 32",
            "no licence stated; for research, cite Krizhevsky (2009)",
            (Original(_file, (f"https://www.cs.toronto.edu/~kriz/{_file}",), _size, _sha256),),
            partial(read_cifar_files, classes=_classes),
            _images(
                50_000,
                10_000,
                (32, 32, 3),
                _classes,
                _balanced(_classes, 50_000 // _classes, 10_000 // _classes),
            ),
        )
    )

DATASETS.register("svhn")(
    Dataset(
        "house numbers, single digits, 73,257 + 26,032 colour images of 32 x 32",
        "non-commercial use only (Netzer et al., 2011)",
        (
            Original(
                "train_32x32.mat",
                ("https://ufldl.stanford.edu/housenumbers/train_32x32.mat",),
                182_040_794,
                "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
            ),
            Original(
                "test_32x32.mat",
                ("https://ufldl.stanford.edu/housenumbers/test_32x32.mat",),
                64_275_384,
                "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
            ),
        ),
        read_svhn_files,
        _images(
            73_257,
            26_032,
            (32, 32, 3),
            10,
            (
                (4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659),
                (1744, 5099, 4149, 2882, 2523, 2384, 1977, 2019, 1660, 1595),
            ),
        ),
    )
)

# The sha256 is recorded, with the same number of bytes, in several unrelated public repositories.
DATASETS.register("tiny_imagenet")(
    Dataset(
        "objects in 200 classes, 100,000 + 10,000 colour images of 64 x 64 (its validation images"
        " are the test half)",
        "ImageNet's terms: non-commercial research and education only",
        (
            Original(
                "tiny-imagenet-200.zip",
                ("https://cs231n.stanford.edu/tiny-imagenet-200.zip",),
                248_100_043,
                "6198c8ae015e2b3e007c7841da39ec069199b9aa3bfa943a462022fe5e43c821",
            ),
        ),
        lambda files: read_tiny_imagenet(*files.values()),
        _images(100_000, 10_000, (64, 64, 3), 200, _balanced(200, 500, 50))
        | {"wnids": ArraySpec((200,), "<U9")},
    )
)

DATASETS.register("cifar10_subset")(
    Dataset(
        "10,000 + 4,000 images of CIFAR-10, stratified",
        "no licence stated; for research, cite Krizhevsky (2009)",
        (),
        None,
        _images(10_000, 4_000, (32, 32, 3), 10, _balanced(10, 1000, 400)),
    )
)

DATASETS.register("svhn_recropped")(
    Dataset(
        "2,000 SVHN test digits cropped anew from the full-number images, not the official crops",
        "non-commercial use only (Netzer et al., 2011)",
        (),
        None,
        _images(0, 2_000, (32, 32, 3), 10),
        {"svhn_test_subset.npz": _TEST},
    )
)

DATASETS.register("histology_46")(
    Dataset(
        "1,693 BreaKHis images of breast tissue at 400x, reduced to 46 x 46, with their file names",
        "study only (Spanhol et al., 2016)",
        (),
        None,
        {
            "x": ArraySpec((1693, 46, 46, 3), "uint8"),
            "y": ArraySpec((1693,), "int64", 2, (547, 1146)),
            "patient": ArraySpec((1693,), "<U31"),
        },
    )
)

_UCI_ORIGINALS, _UCI_ARRAYS = _manifest("uci", _UCI_HOME)
DATASETS.register("uci")(
    Dataset(
        "nine regression tables with 20 standard splits (protein 5) and a gap split per feature",
        "UCI (CC BY 4.0; boston and kin8nm state none); splits MIT (Antoran et al.)",
        _UCI_ORIGINALS,
        read_uci,
        _UCI_ARRAYS,
    )
)
