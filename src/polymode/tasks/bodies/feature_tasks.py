"""The task `body_features`: a data set behind a trained body, as features for heads.

Features are made once for a data set (`features.py`). Which directions of them are kept is found on
the training half, labels aside; `per_class` then says how many labels there are to learn from.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from polymode.core.checks import Count, check_call
from polymode.core.registry import suggest
from polymode.core.safe_files import FileProblem
from polymode.tasks.bodies.features import Projection, features
from polymode.tasks.files import load, require
from polymode.tasks.images.histology import by_patient
from polymode.tasks.named import TASKS
from polymode.tasks.splits import first, shuffled_order, stratified_order
from polymode.tasks.task import Task

Raw = Sequence[str] | np.ndarray
"""Texts, or images (N, H, W, 3) uint8."""

OOD_SIZE = 500  # inputs of each OOD set, at most


class Source(NamedTuple):
    """What is behind a body.

    Attributes:
        body: its name. classes: their names. needs: data sets.
        read: inputs and labels of the training half, of the test half, and OOD inputs.
        num_val: how many of the test half are for validation, unless asked otherwise.
        components: directions of the features that are kept, unless asked otherwise.
    """

    body: str
    classes: tuple[str, ...]
    needs: tuple[str, ...]
    read: Callable[[], tuple[tuple[Raw, Tensor], tuple[Raw, Tensor], dict[str, Raw]]]
    num_val: int
    components: int


def _labels(array: np.ndarray) -> Tensor:
    return torch.from_numpy(array.astype(np.int64))


def _svhn() -> np.ndarray:
    return load("svhn_recropped", ("x_test",))["x_test"][:OOD_SIZE]


def _cifar() -> tuple[tuple[Raw, Tensor], tuple[Raw, Tensor], dict[str, Raw]]:
    arrays = load("cifar10_subset")
    train, test = (
        (arrays[f"x_{half}"], _labels(arrays[f"y_{half}"])) for half in ("train", "test")
    )
    rows = shuffled_order(len(load("histology_46", ("y",))["y"]), "histology", "ood")[:OOD_SIZE]
    tissue = load("histology_46", ("x",))["x"][rows.numpy()]
    return train, test, {"svhn_recropped": _svhn(), "histology": tissue}


def _histology() -> tuple[tuple[Raw, Tensor], tuple[Raw, Tensor], dict[str, Raw]]:
    arrays = load("histology_46")
    tested = by_patient(arrays["patient"], arrays["y"], 0.25)
    train, test = ((arrays["x"][rows], _labels(arrays["y"][rows])) for rows in (~tested, tested))
    objects = load("cifar10_subset", ("x_test",))["x_test"][:OOD_SIZE]
    return train, test, {"svhn_recropped": _svhn(), "cifar10_subset": objects}


def _digits() -> tuple[tuple[Raw, Tensor], tuple[Raw, Tensor], dict[str, Raw]]:
    from sklearn.datasets import load_digits  # not needed elsewhere here, and slow to import

    images, labels = load_digits(return_X_y=True)
    pixels = (images.reshape(-1, 8, 8, 1) * 15).astype(np.uint8).repeat(3, axis=3)
    y = _labels(labels)
    order = stratified_order(y, "digits features", "half")
    train, test = (rows.sort().values for rows in order.split((len(y) + 1) // 2))
    halves = [(pixels[rows.numpy()], y[rows]) for rows in (train, test)]
    turned = np.rot90(halves[1][0], axes=(1, 2)).copy()
    return halves[0], halves[1], {"turned": turned, "inverted": 240 - halves[1][0]}


def _sentences() -> tuple[tuple[Raw, Tensor], tuple[Raw, Tensor], dict[str, Raw]]:
    arrays = load("pang_lee")
    texts, marks = read_marked(arrays["sentences"].tobytes())
    labels = torch.tensor([int(mark > 0) for mark in marks])
    order = stratified_order(labels, "pang_lee", "half")
    halves = []
    for rows in (first(order, len(texts) // 2), order[len(texts) // 2 :].sort().values):
        halves.append(([texts[row] for row in rows.tolist()], labels[rows]))
    ood = {name: read_marked(arrays[name].tobytes())[0] for name in ("dutch", "wikipedia")}
    some = {name: shuffled_order(len(texts), name, "ood") for name, texts in ood.items()}
    chosen: dict[str, Raw] = {
        name: [ood[name][row] for row in rows[:OOD_SIZE].tolist()] for name, rows in some.items()
    }
    return halves[0], halves[1], chosen


def read_marked(content: bytes) -> tuple[list[str], list[float]]:
    """Return texts and their marks from lines `"mark","text"`, whitespace at the ends taken off.

    >>> read_marked(b'"1","good , really . "\\n"-1","bad"')
    (['good , really .', 'bad'], [1.0, -1.0])
    """
    rows = list(csv.reader(io.StringIO(content.decode("utf-8-sig"))))
    wrong = next((n for n, row in enumerate(rows) if len(row) != 2), None)
    if wrong is not None:
        raise FileProblem(f"a table of texts has {len(rows[wrong])} fields in row {wrong}, not 2")
    return [row[1].strip() for row in rows], [float(row[0]) for row in rows]


_VISION = ("efficientnet_lite0", "cifar10_subset", "svhn_recropped", "histology_46")
_OBJECTS = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
SOURCES = {
    "digits": Source(
        "random_convolutions", tuple("0123456789"), (), _digits, 200, 32
    ),
    "cifar10_subset": Source("efficientnet_lite0", _OBJECTS, _VISION, _cifar, 1000, 128),
    "histology": Source(
        "efficientnet_lite0", ("benign", "malignant"), _VISION, _histology, 0, 128
    ),
    "pang_lee": Source(
        "all_minilm_l6_v2", ("negative", "positive"), ("all_minilm_l6_v2", "pang_lee"), _sentences,
        500, 128,
    ),
}  # fmt: skip


@TASKS.register(
    "body_features",
    description="images behind EfficientNet-Lite0, or sentences behind MiniLM, as features",
    source="see the data sets efficientnet_lite0, all_minilm_l6_v2, cifar10_subset, pang_lee",
    licence="as those",
    kind="real",
    size="by `data` and `per_class`",
    data=(),
)
def body_features(
    *,
    seed: int = 0,
    data: str = "cifar10_subset",
    per_class: Count | None = 100,
    components: Count | None = None,
    num_val: int | None = None,
    num_test: Count | None = None,
) -> Task:
    """Return the features of a data set behind a trained body as a task.

    Args:
        seed: unused, the split is a property of the data.
        data: "cifar10_subset" or "histology" behind efficientnet_lite0, "pang_lee" behind
            all_minilm_l6_v2, or "digits" behind random_convolutions, which needs no files.
        per_class: labels to learn from, of each class; None is all. Fewer lie in more.
        components: directions of the features that are kept; None is 128, of digits 32.
        num_val, num_test: of the test half; None is all but those for validation.
    """
    check_call(body_features, locals())
    if data not in SOURCES:
        raise ValueError(
            f"`data` of body_features must be one of {', '.join(SOURCES)}, got {data!r}."
            f"{suggest(data, SOURCES)}"
        )
    source = SOURCES[data]
    if source.needs:
        require(*source.needs)
    (train_raw, train_y), (test_raw, test_y), outside = source.read()
    train, test = features(source.body, train_raw), features(source.body, test_raw)
    projection = Projection(train, source.components if components is None else components)
    rows = _few(train_y, data, per_class, len(source.classes))
    order = stratified_order(test_y, data, "validation")
    count = source.num_val if num_val is None else num_val
    if not 0 <= count < len(order):
        raise ValueError(
            f"`num_val` of body_features must be from 0 to {len(order) - 1:,}, got {count}"
        )
    val, tested = first(order, count), first(order[count:], num_test or len(order))
    x = projection(test)
    directions = (
        f"{len(projection.directions.T)} directions, {100 * projection.share:.0f} % of variance"
    )
    return Task(
        train=(projection(train)[rows], train_y[rows]),
        val=(x[val], test_y[val]) if count else None,
        test=(x[tested], test_y[tested]),
        ood={name: projection(features(source.body, raw)) for name, raw in outside.items()},
        likelihood="categorical",
        target_size=len(source.classes),
        class_names=source.classes,
        name="body_features",
        description=f"{data} behind {source.body}: {directions}",
        input_scaling=None,
    )


def _few(labels: Tensor, data: str, per_class: int | None, classes: int) -> Tensor:
    """Return rows with so many of each class, in the order of the file."""
    if per_class is None:
        return torch.arange(len(labels))
    order = stratified_order(labels, data, "few")
    chosen = []
    for label in range(classes):
        of_class = order[labels[order] == label]
        if len(of_class) < per_class:
            raise ValueError(
                f"`per_class` of body_features is {per_class:,}, but {data} has"
                f" {len(of_class):,} training examples of class {label}"
            )
        chosen.append(of_class[:per_class])
    return torch.cat(chosen).sort().values
