"""The catalogue itself: addresses, checksums, shapes; and its readers on small files."""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest
import scipy.io
from PIL import Image

from polymode.core.memory import human
from polymode.core.safe_files import FileProblem
from polymode.tasks.files import DATASETS
from polymode.tasks.files.catalogue import (
    TABLES,
    read_idx_files,
    read_letters,
    read_svhn_files,
    read_uci,
    standard_splits,
)

NAMES = {
    "mnist", "fashion_mnist", "kmnist", "notmnist", "notmnist_small", "cifar10", "cifar100", "svhn",
    "tiny_imagenet", "uci", "cifar10_subset", "svhn_recropped",
    "efficientnet_lite0", "all_minilm_l6_v2", "pang_lee",
}  # fmt: skip


def test_the_names():
    assert set(DATASETS.names()) >= NAMES


@pytest.mark.parametrize("name", sorted(NAMES))
def test_entries_are_whole(name):
    dataset = DATASETS.get(name).value
    assert dataset.description and dataset.licence
    assert bool(dataset.originals) == (dataset.read is not None)
    for original in dataset.originals:
        assert original.size > 0 and original.addresses
        for address in original.addresses:
            assert address.startswith("https://") and address.endswith(original.name)
        assert re.fullmatch("[0-9a-f]{64}|", original.sha256)
        assert re.fullmatch("[0-9a-f]{32}|", original.md5)
        assert not original.name.startswith("/") and ".." not in original.name
    assert len({original.name for original in dataset.originals}) == len(dataset.originals)
    for array, spec in dataset.arrays.items():
        assert sum(spec.counts) in (0, spec.shape[0])
        assert len(spec.counts) in (0, spec.num_classes)
        assert bool(spec.num_classes) == array.startswith("y_")
        assert re.fullmatch("[0-9a-f]{64}|", spec.sha256)
    for names in dataset.also.values():
        assert set(names) <= set(dataset.arrays)


def test_only_one_set_has_no_sha256():
    kinds = {name: DATASETS.get(name).value.checksums for name in NAMES}
    assert {name for name, kind in kinds.items() if kind == "md5"} == {"notmnist_small"}
    local = {"cifar10_subset", "svhn_recropped"}
    assert {name for name, kind in kinds.items() if kind == "none"} == local


def test_addresses_at_github_name_a_commit():
    for name in NAMES:
        for original in DATASETS.get(name).value.originals:
            for address in original.addresses:
                if "githubusercontent" in address:
                    assert re.search(r"/[0-9a-f]{40}/", address)


@pytest.mark.parametrize("name", sorted(NAMES))
def test_the_docs_say_the_same(name):
    page = Path(__file__).parents[3] / "docs" / "data.md"
    (row,) = [line for line in page.read_text().splitlines() if line.startswith(f"| {name} |")]
    dataset = DATASETS.get(name).value
    if dataset.originals:
        assert f"| {human(dataset.download_size)} | {dataset.checksums} |" in row
    else:
        assert "| `--from` only |" in row
    for array, spec in dataset.arrays.items():
        assert not array.startswith("x_") or f"{spec.shape[0]:,}" in row


def test_idx_files_by_name(tmp_path):
    files = {}
    for name, shape in (("train-images-idx3", (2, 3, 3)), ("t10k-labels-idx1", (4,))):
        array = np.ones(shape, np.uint8)
        content = bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape)
        files[f"{name}-ubyte.gz"] = tmp_path / name
        (tmp_path / name).write_bytes(gzip.compress(content + array.tobytes()))
    assert {k: v.shape for k, v in read_idx_files(files).items()} == {
        "x_train": (2, 3, 3),
        "y_test": (4,),
    }


def test_letters_come_by_class_and_name_without_the_empty_files(tmp_path):
    def png(value: int) -> bytes:
        file = io.BytesIO()
        Image.fromarray(np.full((28, 28), value, np.uint8)).save(file, "PNG")
        return file.getvalue()

    contents = {"J/b.png": png(3), "A/z.png": png(1), "A/y=.png": png(0), "F/x.png": b""}
    path = tmp_path / "notMNIST_small.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, content in contents.items():
            info = tarfile.TarInfo(f"notMNIST_small/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    found = read_letters({path.name: path})
    assert found["x_test"][:, 0, 0].tolist() == [0, 1, 3]
    assert found["y_test"].tolist() == [0, 0, 9]


def test_svhn_halves(tmp_path):
    files = {}
    for half, count in (("train", 3), ("test", 2)):
        path = tmp_path / f"{half}_32x32.mat"
        x = np.zeros((32, 32, 3, count), np.uint8)
        scipy.io.savemat(path, {"X": x, "y": np.full((count, 1), 10, np.uint8)})
        files[path.name] = path
    found = read_svhn_files(files)
    assert {name: len(array) for name, array in found.items()} == {
        "x_train": 3, "y_train": 3, "x_test": 2, "y_test": 2,
    }  # fmt: skip


def test_standard_splits_are_the_published_ones():
    """Boston's first split begins with these test rows; the sha256 are of the index files."""
    assert standard_splits(506, 1)[0, [431, 115, 470, 216, 264]].all()
    arrays = DATASETS.get("uci").value.arrays
    for name, (rows, _, splits) in TABLES.items():
        test = standard_splits(rows, splits)
        assert hashlib.sha256(test.tobytes()).hexdigest() == arrays[f"{name}_test"].sha256


def write_uci(folder) -> dict:
    files = {
        "standard/toy/data/data.txt": "1 10 5\n2 20 6\n3 30 7\n\n",
        "gap/toy/data/index_test_0.txt": "1\n",
        "gap/toy/data/index_test_1.txt": "0\n2\n",
    }
    paths = {}
    for name, text in files.items():
        paths[name] = folder / name
        paths[name].parent.mkdir(parents=True, exist_ok=True)
        paths[name].write_text(text)
    return paths


def test_uci_tables_and_splits(tmp_path):
    found = read_uci(write_uci(tmp_path), {"toy": (3, 2, 4)})
    assert found["toy_x"].tolist() == [[1, 10], [2, 20], [3, 30]]
    assert found["toy_y"].tolist() == [5, 6, 7]
    assert found["toy_test"].shape == (4, 3)
    assert found["toy_gap_test"].tolist() == [[False, True, False], [True, False, True]]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("standard/toy/data/data.txt", "1 2 3\n", r"is \(1, 3\), expected 3 rows of 2 \+ 1"),
        ("standard/toy/data/data.txt", "1 2\n3 4\n5 6\n", r"is \(3, 2\), expected"),
        ("gap/toy/data/index_test_0.txt", "3\n", "must hold row numbers of 0 to 2"),
        ("gap/toy/data/index_test_0.txt", "0.5\n", "must hold row numbers"),
        ("gap/toy/data/index_test_0.txt", "1\n1\n", "names a row twice"),
    ],
)
def test_wrong_uci_files_are_named(tmp_path, name, text, message):
    paths = write_uci(tmp_path)
    paths[name].write_text(text)
    with pytest.raises(FileProblem, match=message):
        read_uci(paths, {"toy": (3, 2, 4)})


def test_uci_specs_agree_with_the_tables():
    arrays = DATASETS.get("uci").value.arrays
    assert len(arrays) == 4 * len(TABLES)
    for name, (rows, features, splits) in TABLES.items():
        assert arrays[f"{name}_x"].shape == (rows, features)
        assert arrays[f"{name}_y"].shape == (rows,)
        assert arrays[f"{name}_test"].shape == (splits, rows)
        assert arrays[f"{name}_gap_test"].shape == (features, rows)
