"""`evaluate`: one posterior on one task, each data set predicted once."""

from __future__ import annotations

import fnmatch
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from polymode.core.checks import check_call
from polymode.core.registry import Entry
from polymode.core.rng import global_stream
from polymode.core.rows import Inputs, Rows, is_one_shape
from polymode.likelihoods.positions import Positions
from polymode.likelihoods.scaling import Scaling
from polymode.metrics.by_image import ByImage
from polymode.metrics.clusters import clustered
from polymode.metrics.dense.evaluation import is_map_task, map_rows, predict_maps
from polymode.metrics.examples import Examples, is_image
from polymode.metrics.observed import Observed, joint_row, predict_observations
from polymode.metrics.results import Cost, Kept, Results, Row, finite
from polymode.metrics.score import (
    CLASSIFICATION,
    OOD_CLASSIFICATION,
    OOD_REGRESSION,
    REGRESSION,
    SCOD_CLASSIFICATION,
    NotDefined,
    Score,
    entries,
    score_of,
)
from polymode.posterior import Posterior
from polymode.prediction import Prediction
from polymode.prediction.averages import Averages
from polymode.tasks.named import as_task
from polymode.tasks.task import Task, check_inputs
from polymode.tasks.validation import validation_shifts
from polymode.training.data import Arrays, Data, Loader, Pair, Pixels

BATCH = 256  # rows predicted at a time
PIECE = 2**26  # bytes of predictions of a set that is not kept that are held at a time
CURVE_POINTS = 200
PLANE_POINTS = 100  # a side
MARK = 16  # letters of a fingerprint
UNIT = "units of y"  # as metrics say it, where the task says no more

Predict = Callable[[Any], Prediction]


def evaluate(
    post: Posterior,
    task: Task | str,
    *,
    train_seconds: float | None = None,
    keep: bool | Sequence[str] = True,
    validation: bool = False,
    samples_per_mode: int | None = None,
    seed: int = 0,
) -> Results:
    """Return every applicable metric on the test set, every shift and every OOD set.

    Scores that need labels are computed on the test set, the shifts, and OOD sets of regressions
    with targets. OOD metrics compare each OOD set with the test set; OOD is positive. A metric that
    does not apply is None, with the reason in a note.

    Targets at positions (tokens, labels) are scored as observations, those that are ignored left
    out; `n` counts them, and standard errors are over examples, where a metric is a mean. Masks
    have metrics of their own (`metrics/dense`), added up image by image, with errors over images.

    Args:
        post: what `pm.fit` returned.
        task: with a test set; of the same kind and input shape as the one `post` was fitted on.
            A name stands for `pm.task(name)`.
        train_seconds: wall time of the fit for the cost columns; by default that of the training,
            which `fit` measures.
        keep: which predictions stay in memory afterwards: all, none, or those of the data sets that
            match one of these patterns, such as ("test", "ood:*"). A set that is not kept is scored
            and released before the next one is predicted; the test set stays until the end. Of
            classes, only averages over samples are then held: 1/S of the memory, the same scores
            but for the joint one, which needs the samples and is n/a.
            Of masks nothing is held for scores, and samples are kept up to 256 MB for each set.
        validation: also score the validation set under synthetic shifts, "val:NAME:SEVERITY", for
            choosing options; see `tasks/validation.py`. These predictions are never kept.
        samples_per_mode: samples of each mode in a prediction; by default the posterior's number.
        seed: seed of these samples, if they are drawn.

    Returns:
        `Results`; its `kept` holds the predictions, also those that figures need and no score: for
        regressions on one input the training set and an even grid, "train" and "curve"; for classes
        on two inputs the same as "train" and "plane", first input fastest. "examples" are a few of
        the test set with their inputs: the most uncertain, and the most confidently wrong; "maps"
        the same of images with a target at each pixel, at most 64 pixels wide.
    """
    check_call(evaluate, locals(), but=("post", "task"))
    task = _check_kinds(post, task)
    if task.test is None:
        raise ValueError(f"task '{task.name}' has no test data: give pm.Task(test=...)")
    if post.likelihood.classification != task.likelihood.classification:
        raise ValueError(
            f"the posterior has a {post.likelihood.name} likelihood, the task a"
            f" {task.likelihood.name} one; evaluate on a task of the same kind"
        )
    options = {} if samples_per_mode is None else {"samples_per_mode": samples_per_mode}
    options |= {"seed": seed} if seed else {}

    def predict(x: Any) -> Prediction:
        return post.predict(x, batch_size=BATCH, **options)

    def average(x: Any) -> Prediction:
        return post.averages(x, batch_size=BATCH, **options)

    scale = _target_scale(task)
    with post.weights.in_step():
        if is_map_task(task):
            scored = _score_maps(task, predict, keep, validation)
        else:
            piece = _piece(post, samples_per_mode)
            scored = _score_sets(task, (predict, average), keep, piece, scale)
            if validation:
                scored.rows.extend(_score_validation(task, average, scored, piece, scale))
    return Results(
        task=task.name,
        method=post.method,
        net=type(post.weights.like.template).__name__,
        seed=post.seed,
        config=dict(post.config),
        rows=tuple(scored.rows),
        cost=Cost(
            num_modes=post.num_modes,
            num_samples=scored.num_samples,
            parameters=post.num_modes * post.weights.like.num_parameters,
            predict_seconds=scored.seconds,
            predict_examples=scored.count,
            train_seconds=train_seconds
            if train_seconds is not None
            else post.history.seconds or None,
            memory_bytes=post.weights.num_bytes,
        ),
        near_ood=tuple(task.near_ood),
        target_scale=scale,
        data=scored.marks,
        class_names=tuple(task.class_names or ()),
        columns=() if task.encoder is None else tuple(task.encoder.column_facts),
        kept=scored.predictions,
        arrays=scored.arrays,
        by_image=scored.by_image,
    )


@dataclass
class _Scored:
    """What is known of a task's data sets.

    Attributes:
        rows: the numbers. predictions: those that are kept. marks: fingerprints.
        seconds: of predicting. count: examples predicted. num_samples: S.
        test: the prediction of the test set. arrays: for figures.
        by_image: of maps, see `Results`.
    """

    rows: list[Row] = field(default_factory=list)
    predictions: dict[str, Kept] = field(default_factory=dict)
    marks: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    count: int = 0
    num_samples: int = 0
    test: Kept | None = None
    arrays: dict[str, dict[str, Any]] = field(default_factory=dict)
    by_image: dict[str, ByImage] = field(default_factory=dict)


def _score_maps(
    task: Task, predict: Predict, keep: bool | Sequence[str], validation: bool
) -> _Scored:
    """Score sets with a target at each pixel, of which no prediction is held as a whole."""
    scored, test = _Scored(), None
    _warm_up(predict, task.test, 1)
    pictures = _Pictures(predict, _examples(task)) if _has_pictures(task, keep) else None
    for name, data in _datasets(task):
        started = time.perf_counter()
        held, outside = _is_kept(name, keep), name.startswith("ood:")
        if name == "test" and pictures is not None:
            maps = predict_maps(
                pictures, task, data, keep=held, outside=outside, look=pictures.look
            )
        else:
            maps = predict_maps(predict, task, data, keep=held, outside=outside)
        scored.seconds += time.perf_counter() - started
        scored.count += maps.num_images
        scored.marks[name] = _fingerprint(data, maps.labels)
        test = test or maps
        scored.rows += map_rows(name, maps, test, task.target_unit or UNIT)
        scored.by_image[name] = maps.sums.by_image()
        if maps.stored is not None:
            scored.predictions[name] = maps.stored
    assert test is not None
    scored.num_samples = test.sums.num_samples
    if pictures is not None and (few := pictures.examples.kept()) is not None:
        scored.predictions["maps"] = few
    if "bins" in test.sums.groups:
        scored.arrays["pixels"] = {"bins": test.sums.groups.by_group("bins").numpy()}
    for name, data in _validation_sets(task) if validation else ():
        maps = predict_maps(predict, task, data, keep=False, outside=False)
        scored.rows += map_rows(name, maps, test, task.target_unit or UNIT)
    return scored


class _Pictures:
    """Predicts images and collects some of them with their maps.

    Args:
        predict: what predicts a batch. examples: the collector.
    """

    def __init__(self, predict: Predict, examples: Examples) -> None:
        self._predict, self.examples = predict, examples

    def __call__(self, x: Any) -> Prediction:
        self._inputs = x
        return self._predict(x)

    def look(self, prediction: Prediction, targets: Tensor | None) -> None:
        """Collect from the batch that was predicted last."""
        if targets is not None:
            inputs = self._inputs.x if isinstance(self._inputs, Arrays) else self._inputs
            self.examples.add(prediction, targets, partial(torch.index_select, inputs.cpu(), 0))


def _has_pictures(task: Task, keep: bool | Sequence[str]) -> bool:
    """Whether some inputs are to be kept, and can be shown."""
    shape = task.input_shape
    return is_one_shape(shape) and is_image(shape) and _is_kept("maps", keep)


def _score_sets(
    task: Task,
    ways: tuple[Predict, Predict],
    keep: bool | Sequence[str],
    rows_at_a_time: int,
    scale: tuple[float, ...] | None,
) -> _Scored:
    """Score sets whose predictions, or their averages, are held until they are scored.

    Args:
        ways: what predicts samples, and what predicts averages for scores alone.
    """
    predict, average = ways
    scored = _Scored()
    several = isinstance(task.likelihood, Positions)
    examples = _examples(task) if is_one_shape(task.input_shape) and not several else None
    if not _is_kept("examples", keep):
        examples = None
    _warm_up(predict if examples is not None or _is_kept("test", keep) else average, task.test)
    for name, data in _datasets(task):  # a shift is predicted here, and its time does not count
        started = time.perf_counter()
        piece = None if _is_kept(name, keep) else rows_at_a_time
        some = examples if name == "test" else None
        by = predict if piece is None or some is not None else average
        seen = _predicted(name, data, by, task, some, piece)
        predicted, clusters, number, _ = seen
        scored.seconds += time.perf_counter() - started
        scored.count += number
        scored.marks[name] = _fingerprint(data, predicted.targets)
        scored.test = scored.test or predicted
        scored.rows += _rows(name, predicted, scored.test, task, scale, clusters)
        scored.rows += joint_row(name, seen)
        if _is_kept(name, keep):
            scored.predictions[name] = predicted
    assert scored.test is not None
    scored.num_samples = scored.test.prediction.num_samples
    if _is_drawn(task) and keep:
        drawn = _grid(predict, task, scored.test, scored.predictions)
        scored.predictions |= {name: drawn[name] for name in drawn if _is_kept(name, keep)}
    if examples is not None and (few := examples.kept()) is not None:
        scored.predictions["examples"] = few
    return scored


def _score_validation(
    task: Task, average: Predict, scored: _Scored, piece: int, scale: tuple[float, ...] | None
) -> Iterator[Row]:
    """Yield the numbers of the validation set under synthetic shifts."""
    assert scored.test is not None
    for name, data in _validation_sets(task):
        predicted, clusters, *_ = _predicted(name, data, average, task, None, piece)
        yield from _rows(name, predicted, scored.test, task, scale, clusters)


def _inputs_at(data: Arrays, start: int, places: Tensor) -> Tensor:
    return data.rows(places + start)[0]


def _piece(post: Posterior, samples_per_mode: int | None) -> int:
    """Return how many rows are predicted before they are reduced to averages: more than a batch
    where weights are drawn for each call."""
    if post.weights.most is not None:
        return BATCH
    samples = post.num_modes * (samples_per_mode or post.weights.samples_per_mode)
    row_bytes = samples * post.target_size * post.weights.like.dtype.itemsize
    return max(1, PIECE // row_bytes // BATCH) * BATCH


def _examples(task: Task) -> Examples:
    """Return the collector of examples of the test set, whose inputs it stores unscaled."""
    pixels = isinstance(task.test, Pixels)
    if task.encoder is not None:
        return Examples(task.encoder.decode)
    scaling = task.test.scaling if pixels else task.input_scaling  # type: ignore[union-attr]
    return Examples(None if scaling is None else partial(_unscaled, scaling))


def _unscaled(scaling: Scaling, x: Tensor) -> Tensor:
    return scaling.inverse(x) if x.is_floating_point() else x


def _check_kinds(post: Any, task: Any) -> Task:
    """Return the task, or raise which argument is of the wrong kind."""
    if isinstance(task, Posterior):
        raise ValueError("the arguments of evaluate are swapped: pm.evaluate(post, task)")
    if not (hasattr(post, "predict") and hasattr(post, "likelihood")):
        raise ValueError(
            f"`post` of evaluate is a {type(post).__name__}; give what pm.fit or pm.load returned"
        )
    return as_task(task, "evaluate")


def _warm_up(predict: Predict, test: Data | None, number: int = BATCH) -> None:
    """Predict one batch unmeasured: the first call traces, and may choose how to execute."""
    assert test is not None
    with global_stream(None):
        x, _ = next(iter(test.batches(number)), (None, None))
    if x is not None:
        predict(x[:number])


def _fingerprint(data: Data | Inputs, labels: Tensor | None) -> str:
    """Return the fingerprint of the data; for a loader, whose order may vary, of its targets."""
    if isinstance(data, Arrays):
        return data.fingerprint()[:MARK]
    if isinstance(data, (Tensor, Rows)):
        return Arrays(data, torch.arange(len(data))).fingerprint()[:MARK]
    if labels is None or not len(labels):
        return str(data.fingerprint())
    targets = labels.flatten().sort().values
    return Arrays(targets, torch.arange(len(targets))).fingerprint()[:MARK]


def _is_kept(name: str, keep: bool | Sequence[str]) -> bool:
    if isinstance(keep, bool):
        return keep
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in keep)


def _target_scale(task: Task) -> tuple[float, ...] | None:
    """Return the D scales of a regression's targets; None if they are not known."""
    if task.likelihood.classification:
        return None
    if task.target_scaling is not None and not (
        task.scales_itself and isinstance(task.train, Arrays)  # constant targets have no scale
    ):
        scale = task.target_scaling.scale.double().expand(task.target_size)
    elif isinstance(task.train, Arrays) and len(task.train) > 1:
        values = task.train.y.double().flatten(0, -2)
        values = values[~values.isnan().all(-1)]
        scale = values.std(0, correction=0)  # as in `Scaling.of`
    else:
        return None
    return tuple(scale.tolist()) if bool((scale > 0).all()) else None


def _datasets(task: Task) -> Iterator[tuple[str, Any]]:
    """Yield the data sets to score, with their names."""
    assert task.test is not None
    yield "test", task.test
    for name, levels in task.shifts.items():
        for severity, data in levels.items():
            yield f"shift:{name}:{severity}", data
    for name, source in task.ood.items():
        yield f"ood:{name}", source


def _validation_sets(task: Task) -> Iterator[tuple[str, Data]]:
    for name, levels in validation_shifts(task).items():
        for severity, make in levels.items():
            yield f"val:{name}:{severity}", make()


def _predicted(
    name: str,
    data: Any,
    predict: Predict,
    task: Task,
    examples: Examples | None,
    piece: int | None,
) -> Observed:
    """Predict a data set by its name; `examples` are numbers only where observations share them."""
    outside = name.startswith("ood:")
    if isinstance(task.likelihood, Positions):
        unlabelled = outside and (task.likelihood.classification or isinstance(data, Loader))
        keep = piece is None
        return predict_observations(predict, task, data, keep=keep, outside=unlabelled)
    if outside:
        kept = _predict_outside(predict, task, data, piece)
    else:
        kept = _predict(predict, task, data, examples, piece)
    return Observed(kept, None, len(kept.prediction))


def _predict(
    predict: Predict,
    task: Task,
    data: Data | Inputs,
    examples: Examples | None = None,
    piece: int | None = None,
) -> Kept:
    """Predict in a single pass, since a loader's order may change from pass to pass.

    Hence `examples` are collected here.

    Args:
        piece: rows after which a prediction is reduced to averages; None to hold it as a whole.
    """
    drawn = _is_drawn(task)
    if isinstance(data, (Tensor, Rows)):
        whole = _whole(map(predict, data.split(piece or len(data) or 1)), piece)
        return Kept(whole, None, data if drawn and isinstance(data, Tensor) else None)
    if isinstance(data, Arrays):
        whole = _whole(_parts_of_arrays(predict, data, examples, piece), piece)
        return Kept(whole, data.y, data.x if drawn else None)
    pairs: list[Pair] = []

    def parts_of_loader() -> Iterator[Prediction]:
        for batch in data.batches(BATCH):
            x, y = task.check_batch(*batch)
            prediction = predict(x)
            if examples is not None:
                examples.add(prediction, y, partial(torch.index_select, x.cpu(), 0))
            pairs.append((x if drawn else None, y))
            yield prediction

    prediction = _whole(parts_of_loader(), piece)
    targets = torch.cat([y for _, y in pairs])
    inputs = torch.cat([x for x, _ in pairs]) if drawn else None
    return Kept(prediction, targets, inputs)


def _parts_of_arrays(
    predict: Predict, data: Arrays, examples: Examples | None, piece: int | None
) -> Iterator[Prediction]:
    """Yield predictions piece by piece; batches are those of the whole set, to the bit."""
    pieces = [data] if piece is None or len(data) <= piece else (x for x, _ in data.batches(piece))
    start = 0
    for x in pieces:
        prediction = predict(x)
        targets = data.y[start : start + len(prediction)]
        if examples is not None:
            examples.add(prediction, targets, partial(_inputs_at, data, start))
        start += len(prediction)
        yield prediction


def _whole(parts: Iterator[Prediction], piece: int | None) -> Prediction:
    """Return one prediction of several batches: averages, if the samples are not wanted."""
    first = next(parts, None)
    if first is None:
        raise ValueError("the loader is empty: 0 batches")
    every = chain([first], parts)
    if piece is not None and Averages.possible(first):
        del first
        return Averages(every)  # type: ignore[arg-type]
    predictions = list(every)
    return predictions[0] if len(predictions) == 1 else Prediction.cat(predictions)


def _predict_outside(
    predict: Predict, task: Task, data: Data | Inputs, piece: int | None = None
) -> Kept:
    """Predict an OOD set, of which a loader need not have targets."""
    if not isinstance(data, Loader):
        return _predict(predict, task, data, piece=piece)

    def parts() -> Iterator[Prediction]:
        for x in data.inputs(BATCH):
            check_inputs(x, task.input_shape, "ood set")
            yield predict(x)

    return Kept(_whole(parts(), piece), None, None)


def _is_drawn(task: Task) -> bool:
    """Return whether figures over the inputs exist: regressions on one, classes on two inputs."""
    if isinstance(task.likelihood, Positions):
        return False
    return task.input_shape == ((2,) if task.likelihood.classification else (1,))


def _grid(
    predict: Predict, task: Task, test: Kept, predictions: dict[str, Kept]
) -> dict[str, Kept]:
    """Return what a figure over the inputs needs: the training set, and an even grid.

    The line spans all data sets; the plane spans the test set and its width on every side.
    """
    train = _predict(predict, task, task.train)
    if task.likelihood.classification:
        x = test.inputs
        assert x is not None
        low, high = x.amin(0), x.amax(0)
        low, high = 2 * low - high, 2 * high - low
        steps = torch.linspace(0, 1, PLANE_POINTS, dtype=x.dtype)
        up, across = torch.meshgrid(steps, steps, indexing="ij")
        grid = low + (high - low) * torch.stack([across, up], -1).flatten(0, 1)
        return {"train": train, "plane": Kept(predict(grid), None, grid)}
    every = [train, test, *predictions.values()]
    x = torch.cat([part.inputs for part in every if part.inputs is not None])
    low, high = x.amin(0), x.amax(0)
    grid = torch.linspace(low.item(), high.item(), CURVE_POINTS)[:, None]
    truth = None if task.truth is None else task.truth(grid)
    return {"train": train, "curve": Kept(predict(grid), truth, grid)}


def _rows(
    name: str,
    predicted: Kept,
    test: Kept,
    task: Task,
    scale: tuple[float, ...] | None,
    clusters: Tensor | None,
) -> Iterator[Row]:
    """Yield the numbers of one data set; `clusters` tells to which example a row belongs."""
    prediction, targets, _ = predicted
    classes, outside = task.likelihood.classification, name.startswith("ood:")
    unit = task.target_unit or UNIT
    if outside:
        for entry in entries(OOD_CLASSIFICATION if classes else OOD_REGRESSION):
            yield _row(name, entry, test.prediction, prediction, unit=unit, clusters=clusters)
        for entry in entries(SCOD_CLASSIFICATION) if classes else ():
            yield _row(name, entry, test.prediction, prediction, labels=test.targets)
    labelled = targets is not None and not (outside and classes)  # OOD labels: other classes
    for entry in entries(CLASSIFICATION if classes else REGRESSION):
        if labelled or not entry.metadata["targets"]:
            labels = targets if labelled else None
            yield _row(name, entry, prediction, labels, scale=scale, unit=unit, clusters=clusters)


def _row(
    dataset: str,
    entry: Entry[Any],
    prediction: Prediction,
    against: Any,
    *,
    scale: tuple[float, ...] | None = None,
    unit: str = UNIT,
    clusters: Tensor | None = None,
    labels: Tensor | None = None,
) -> Row:
    facts = entry.metadata
    beside = len(against) if isinstance(against, Prediction) else 0
    score, note = Score(math.nan, len(prediction) + beside), ""
    try:
        score = score_of(entry, prediction, against, scale, labels=labels)
        if clusters is not None:
            score = clustered(score, clusters)
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
