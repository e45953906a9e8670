"""UCI regression: nine tables with the standard splits and the gap splits.

Tables and gap splits are files of Antoran et al. (2020), github.com/cambridge-mlg/DUN (MIT), which
carries the tables and splits of Hernandez-Lobato and Adams (2015) and the gap splits after Foong et
al. (2019): one split per feature, whose test rows are its middle third. The standard splits come
from the recipe published with them: with NumPy's legacy generator at seed 1, each
split permutes the rows anew and tests on the last tenth. `uci.manifest` holds the sha256 of every
file and of every array, those of the standard splits taken from the published index files.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from polymode.core.files import FileProblem
from polymode.tasks.files.dataset import DATASETS, ArraySpec, Dataset, Original
from polymode.tasks.readers.tables import read_table

_HOME = (
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
    found = read_table(path).values.reshape(-1)
    index = found.astype(np.int64)
    if (index != found).any() or index.min() < 0 or index.max() >= rows:
        raise FileProblem(f"{path} must hold row numbers of 0 to {rows - 1}")
    mask = np.zeros(rows, bool)
    mask[index] = True
    if mask.sum() != len(index):
        raise FileProblem(f"{path} names a row twice")
    return mask


def _manifest() -> tuple[tuple[Original, ...], dict[str, ArraySpec]]:
    originals, arrays = [], {}
    for line in Path(__file__).with_name("uci.manifest").read_text().splitlines():
        kind, *facts = line.split()
        if kind == "file":
            name, size, sha256 = facts
            originals.append(Original(name, (_HOME + name,), int(size), sha256))
        elif kind == "array":
            name, dtype, shape, sha256 = facts
            arrays[name] = ArraySpec(tuple(map(int, shape.split("x"))), dtype, sha256=sha256)
    return tuple(originals), arrays


_ORIGINALS, _ARRAYS = _manifest()

DATASETS.register("uci")(
    Dataset(
        "nine regression tables with 20 standard splits (protein 5) and a gap split per feature",
        "UCI (CC BY 4.0; boston and kin8nm state none); splits MIT (Antoran et al.)",
        _ORIGINALS,
        read_uci,
        _ARRAYS,
    )
)
