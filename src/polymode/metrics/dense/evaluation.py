"""Evaluation of tasks with a target at each pixel: images are predicted few at a time, and what is
held of each is a few hundred numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polymode.core.registry import Entry
from polymode.likelihoods.positions import Positions
from polymode.metrics.dense import segmentation_scores  # noqa: F401  (enters the metrics)
from polymode.metrics.dense.depth import UNIT, DepthSums
from polymode.metrics.dense.segmentation import SegmentationSums
from polymode.metrics.dense.sums import MapSums
from polymode.metrics.observed import PIECE, batches
from polymode.metrics.results import Kept, Row, finite
from polymode.metrics.score import (
    DEPTH,
    OOD_DEPTH,
    OOD_SEGMENTATION,
    SEGMENTATION,
    NotDefined,
    Score,
    entries,
)
from polymode.prediction import Prediction
from polymode.tasks.task import Task
from polymode.training.data import Loader

KEPT = 2**28  # bytes of samples of a set that are held, at most
MAP_AXES = 2
AT_ONCE = 64  # images of arrays that are turned from bytes into numbers at a time


def is_map_task(task: Task) -> bool:
    """Return whether every pixel of an image has a target."""
    return isinstance(task.likelihood, Positions) and task.likelihood.axes == MAP_AXES


class Maps(NamedTuple):
    """A data set whose maps were predicted.

    Attributes:
        sums: what its scores are computed from.
        stored: predictions and targets as rows, if they were to be held and are not too large.
        num_images: how many there are.
        labels: pixels of each class, or the sum of values, in each image, to tell the data of one
            loader from another's.
    """

    sums: MapSums
    stored: Kept | None
    num_images: int
    labels: Tensor


def predict_maps(
    predict: Callable[[Any], Prediction],
    task: Task,
    data: Any,
    *,
    keep: bool,
    outside: bool,
    look: Callable[[Prediction, Tensor | None], None] = lambda *_: None,
) -> Maps:
    """Predict a data set in a single pass, image by image or few at a time.

    Args:
        keep: whether samples are held as well, up to `KEPT` bytes.
        outside: whether the set is OOD.
        look: is shown each prediction with its targets.
    """
    sums: SegmentationSums | DepthSums = DepthSums()
    if task.likelihood.classification:
        sums = SegmentationSums(task.target_size, labelled=not outside)
    samples = _Samples() if keep else None
    count = 0
    for prediction, labels in _parts(predict, task, data, outside):
        if outside and labels is not None and labels.dim() <= MAP_AXES:
            labels = None  # of images, not of pixels
        sums.add(prediction, labels)
        count += len(prediction)
        look(prediction, labels)
        samples = None if samples is None else samples.add(prediction, labels)
        del prediction  # before the next one is made
    stored = None if samples is None else samples.joined()
    mark = "labels" if task.likelihood.classification else "targets"
    return Maps(sums, stored, count, sums.of_images(mark).flatten())


def _parts(
    predict: Callable[[Any], Prediction], task: Task, data: Any, outside: bool
) -> Iterator[tuple[Any, Tensor | None]]:
    """Yield predictions of about `PIECE` bytes, at least an image, with their labels."""
    size = 0
    for x, y in batches(data, task, outside and isinstance(data, Loader), AT_ONCE):
        start = 0
        while start < len(x):
            rows = slice(start, start + (size or 1))
            prediction = predict(x[rows])
            size = size or max(1, PIECE // prediction.nbytes)
            start += len(prediction)
            made = [prediction]
            del prediction
            yield made.pop(), None if y is None else y[rows]


class _Samples:
    """Samples of predictions and their targets as rows, as long as there are not too many."""

    def __init__(self) -> None:
        self._parts: list[Prediction] = []
        self._targets: list[Tensor] = []
        self._size = 0

    def add(self, prediction: Prediction, labels: Tensor | None) -> _Samples | None:
        """Return these samples with further ones, or None beyond `KEPT` bytes."""
        self._size += prediction.nbytes
        if self._size > KEPT:
            return None
        rows = prediction.as_rows()
        if labels is not None:
            rows, targets, _ = prediction.observations(labels)
            self._targets.append(targets)
        self._parts += [rows] if len(rows) else []
        return self

    def joined(self) -> Kept | None:
        """Return all of them, None where no pixel had a target."""
        if not self._parts:
            return None
        return Kept(
            Prediction.cat(self._parts), torch.cat(self._targets) if self._targets else None
        )


def map_rows(name: str, maps: Maps, test: Maps, unit: str) -> Iterator[Row]:
    """Yield the numbers of one data set; OOD sets are compared with the test set.

    Args:
        unit: of the targets, where they are values.
    """
    classes = isinstance(maps.sums, SegmentationSums)
    outside = name.startswith("ood:")
    if outside:
        for entry in entries(OOD_SEGMENTATION if classes else OOD_DEPTH):
            yield _row(name, entry, (test.sums, maps.sums), maps.num_images, unit)
    if not outside or (not classes and maps.sums.num_pixels):
        for entry in entries(SEGMENTATION if classes else DEPTH):
            yield _row(name, entry, (maps.sums,), maps.num_images, unit)


def _row(
    dataset: str, entry: Entry[Any], sums: tuple[MapSums, ...], num_images: int, unit: str
) -> Row:
    facts = entry.metadata
    score, note = Score(math.nan, num_images), ""
    try:
        if facts["epistemic"] and not all(part.has_epistemic for part in sums):
            raise NotDefined("needs ≥ 2 samples")
        if len(sums) == 1:
            sums[0].require_pixels()
        score = entry.value(*sums)
        if not math.isfinite(score.value):
            note = f"n/a ({'infinite' if math.isinf(score.value) else 'undefined'})"
    except NotDefined as reason:
        note = f"n/a ({reason})"
    return Row(
        dataset=dataset,
        metric=entry.name,
        value=finite(score.value),
        unit=facts["unit"].replace(UNIT, unit),
        direction=facts["direction"],
        n=score.n,
        standard_error=finite(score.standard_error),
        note=note,
    )
