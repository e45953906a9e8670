"""The tables of the study, and which of their rows are fitted on, calibrated on and tested on.

Regressions of UCI with their standard splits, from number 5 on (protein, which has five, from 2):
splits 0 and 1 of some of them were looked at while the encoding of numbers was chosen, and others
while the study was written. Diamonds and four
classifications are files of Rdatasets, as they are at one commit, in `$POLYMODE_DATA/tables`;
breast cancer, and what the smoke preset uses, come with scikit-learn. A fifth of the rows that are
not tested on are for calibration: no contender is fitted on them.

Groups, the same for all contenders: the classes; of regressions thirds by the prediction of a
linear regression on the encoded inputs, whose edges come from the rows of the fit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from polymode.core.safe_files import FileProblem
from polymode.tasks.files import load
from polymode.tasks.files.dataset import data_folder
from polymode.tasks.frames.columns import read_columns
from polymode.tasks.frames.encoder import Encoding, TableEncoder
from polymode.tasks.readers.mixed_tables import read_mixed_table
from polymode.tasks.splits import shuffled_order, stratified_order

FIRST_SPLIT = {"protein": 2}
USUAL_FIRST_SPLIT = 5
DRAW = "1"  # names the random divisions; others were looked at while the study was written
NUM_GROUPS = 3
TEST_SHARE, CALIBRATION_SHARE = 0.1, 0.2
HOME = (
    "https://raw.githubusercontent.com/vincentarelbundock/Rdatasets/"
    "1dcc2bf5f955cc1224a3e1307256e1fe86b68dae/csv/"
)


class File(NamedTuple):
    """A file of Rdatasets: its address below `HOME`, its checksum, its target."""

    address: str
    sha256: str
    target: str


FILES = {
    "diamonds": File(
        "ggplot2/diamonds.csv",
        "974c2ce1c1ce245508bd357ca11a7fba2b37813ecf0f1158808a9249ebff67a1",
        "price",
    ),
    "attrition": File(
        "modeldata/attrition.csv",
        "22db7ee590589479392aeb9f44b9e11ea8d9c2458cc0fd942e8c233d95393d4b",
        "Attrition",
    ),
    "churn": File(
        "modeldata/mlc_churn.csv",
        "58f21b63c526bded47dd6df9d58d03b11611d3ad628c2aa5e353f3abb8d51a9c",
        "churn",
    ),
    "credit": File(
        "modeldata/credit_data.csv",
        "acd2b41f7923a4b7e2264e6b9ae2eff8f3e8f9ba3080fb6967df1cfec9568cac",
        "Status",
    ),
    "hpc": File(
        "modeldata/hpc_data.csv",
        "3c5aedf52d915667bcfe0e473196088066626c52ac0f923783bd68753c344157",
        "class",
    ),
}
UCI = ("boston", "concrete", "energy", "kin8nm", "naval", "power", "protein", "wine", "yacht")
SHIPPED = ("diabetes", "breast_cancer")  # with scikit-learn
CLASSES = ("attrition", "breast_cancer", "churn", "credit", "hpc")
REGRESSIONS = (*UCI, "diamonds", "diabetes")


class Frame:
    """Columns by name, with as much of a DataFrame's interface as estimators need."""

    def __init__(self, data: Mapping[str, np.ndarray]) -> None:
        self.data = dict(data)
        self.columns = list(self.data)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self), len(self.columns)

    def __len__(self) -> int:
        return len(next(iter(self.data.values())))

    def __getitem__(self, name: str) -> np.ndarray:
        return self.data[name]

    def take(self, rows: np.ndarray) -> Frame:
        """Return some rows."""
        return Frame({name: column[rows] for name, column in self.data.items()})


@dataclass(frozen=True)
class Part:
    """Rows of a table: inputs `x`, targets `y` (n,) (numbers, or labels), their groups (n,)."""

    x: Frame
    y: np.ndarray
    groups: np.ndarray

    @property
    def targets(self) -> Tensor:
        """Targets as predictions are scored on: values (n, 1), or labels (n,)."""
        targets = torch.as_tensor(self.y)
        return targets if targets.dtype == torch.long else targets[:, None]


@dataclass(frozen=True)
class Division:
    """A table divided: what is fitted on, calibrated on and tested on.

    Attributes:
        classes: names of the classes; empty for a regression.
    """

    fit: Part
    calibration: Part
    test: Part
    classes: tuple[str, ...]


def divide(name: str, seed: int, most_rows: int) -> Division:
    """Return division number `seed` of a table, with at most `most_rows` rows to fit on."""
    frame, y, classes = _table(name)
    test = _test_rows(name, y, seed)
    rest = np.setdiff1d(np.arange(len(y)), test)
    draw = stratified_order if classes else shuffled_order
    order = rest[_order(draw, y[rest], name, f"calibration/{seed}")]
    num = round(CALIBRATION_SHARE * len(rest))
    rows = {
        "fit": order[num:][:most_rows],
        "calibration": order[:num][: most_rows // 2],
        "test": test[: most_rows // 2],
    }
    groups = y if classes else _groups(frame, y, rows["fit"])
    parts = {k: Part(frame.take(r), y[r], groups[r]) for k, r in rows.items()}
    return Division(**parts, classes=classes)


def _test_rows(name: str, y: np.ndarray, seed: int) -> np.ndarray:
    if name in UCI:
        tested = load("uci", [f"{name}_test"])[f"{name}_test"]
        order = _order(shuffled_order, y, name, f"test/{seed}")
        return order[tested[FIRST_SPLIT.get(name, USUAL_FIRST_SPLIT) + seed][order]]
    draw = stratified_order if name in CLASSES else shuffled_order
    return _order(draw, y, name, f"test/{seed}")[: round(TEST_SHARE * len(y))]


def _order(draw: Any, y: np.ndarray, name: str, what: str) -> np.ndarray:
    first = torch.as_tensor(y) if draw is stratified_order else len(y)
    return np.asarray(draw(first, "tables", f"{name}/{DRAW}/{what}"))


def _groups(frame: Frame, y: np.ndarray, fit: np.ndarray) -> np.ndarray:
    """Return the third of each row by a linear prediction; its edges are those of the fit."""
    encoder = TableEncoder.fit(read_columns(frame.take(fit)), Encoding(numeric="standard"))
    x = encoder.encode(read_columns(frame)).double().numpy()
    design = np.column_stack([x, np.ones(len(x))])
    weights = np.linalg.lstsq(design[fit], y[fit], rcond=None)[0]
    predicted = design @ weights
    edges = np.quantile(predicted[fit], np.arange(1, NUM_GROUPS) / NUM_GROUPS)
    return np.searchsorted(edges, predicted)


@cache
def _table(name: str) -> tuple[Frame, np.ndarray, tuple[str, ...]]:
    """Return inputs, targets as numbers or labels, and names of the classes."""
    if name in UCI:
        arrays = load("uci", [f"{name}_x", f"{name}_y"])
        return _by_number(arrays[f"{name}_x"]), arrays[f"{name}_y"], ()
    if name in SHIPPED:
        from sklearn import datasets

        shipped = getattr(datasets, f"load_{name}")()
        names = tuple(map(str, shipped.target_names)) if name in CLASSES else ()
        target = shipped.target.astype(np.int64 if names else np.float64)
        return _by_number(shipped.data), target, names
    columns = read_columns(read_mixed_table(_file(name)))
    target = columns.pop(FILES[name].target)
    columns.pop("rownames")
    frame = Frame({name: column.values for name, column in columns.items()})
    if name not in CLASSES:
        return frame, target.values, ()
    classes, labels = np.unique(target.values.astype(str), return_inverse=True)
    return frame, labels.astype(np.int64), tuple(classes.tolist())


def _by_number(x: np.ndarray) -> Frame:
    varying = [k for k in range(x.shape[1]) if x[:, k].min() < x[:, k].max()]
    return Frame({f"x{k}": x[:, k] for k in varying})


def _file(name: str) -> Any:
    """Return the path of a file of Rdatasets, whose bytes are checked."""
    file = FILES[name]
    path = data_folder() / "tables" / file.address.split("/")[-1]
    if not path.is_file():
        raise FileProblem(f"{path} is missing; get it from {HOME}{file.address}")
    if hashlib.sha256(path.read_bytes()).hexdigest() != file.sha256:
        raise FileProblem(f"{path} is not the file of {HOME}{file.address}")
    return path
