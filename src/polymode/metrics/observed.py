"""Predictions of data whose examples have several observations, or some that are ignored.

Metrics see rows, one for each observation. Pictures are predicted few at a time, so that the
samples of a batch fit into a bounded memory, and reduced to averages where samples are not kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polymode.core.rows import Rows
from polymode.metrics.results import Kept, Row, finite
from polymode.metrics.score import mean_score
from polymode.prediction import Prediction
from polymode.prediction.averages import Averages
from polymode.tasks.task import Task, check_inputs
from polymode.training.data import Arrays, Data

PIECE = 2**26  # bytes of the samples of a batch


class Observed(NamedTuple):
    """A data set that is predicted.

    Attributes:
        kept: predictions and targets as rows, without inputs.
        examples: (n,) number of the example that each row belongs to, None for one row each.
        num_examples: how many there are.
        joint: (N,) log-probability of all targets of an example together, in nats; None where they
            have one target each, or none.
    """

    kept: Kept
    examples: Tensor | None
    num_examples: int
    joint: Tensor | None = None


def predict_observations(
    predict: Callable[[Any], Prediction], task: Task, data: Any, *, keep: bool, outside: bool
) -> Observed:
    """Predict a data set in a single pass, batch by batch.

    Args:
        keep: whether samples are held, and not only their averages.
        outside: whether the targets, if there are any, are of other classes, and have no part.
    """
    targets: list[Tensor] = []
    numbers: list[Tensor] = []
    joint: list[Tensor] = []
    count = 0

    def parts() -> Iterator[Prediction]:
        nonlocal count
        for x, y in batches(data, task, outside):
            for inputs, some in _few(predict, x, y):
                prediction = predict(inputs)
                if some is None:
                    size = prediction.mean[0, ..., 0].numel()
                    rows, places = prediction.as_rows(), torch.arange(len(prediction))
                    places = places.repeat_interleave(size)
                else:
                    rows, observed, places = prediction.observations(some)
                    targets.append(observed)
                    if prediction.num_axes:
                        joint.append(prediction.joint_log_prob(some).detach().double())
                numbers.append(places + count)
                count += len(prediction)
                if len(rows):
                    yield rows

    every = list(parts()) if keep else None
    if every is not None:
        whole = Prediction.cat(every)
    else:
        whole = _averages(parts())
    held = torch.cat(targets) if targets else None
    together = torch.cat(joint) if joint else None
    return Observed(Kept(whole, held, None), torch.cat(numbers), count, together)


def joint_row(dataset: str, seen: Observed) -> Iterator[Row]:
    """Yield the mean of −log p of all targets of an example together, nats per example.

    It is another number than `nll`, which is per observation: members agree on an example as a
    whole, so log 1/S Σ_s Π_p p_s(y_p) is no sum over positions. The two are not comparable.
    """
    if seen.joint is None:
        return
    score = mean_score(-seen.joint)
    yield Row(
        dataset=dataset,
        metric="joint_nll",
        value=finite(score.value),
        unit="nats/example, all its positions",
        direction="down",
        n=score.n,
        standard_error=finite(score.standard_error),
    )


def _averages(parts: Iterator[Prediction]) -> Prediction:
    """Return averages over samples where they say all that scores need, else all of it."""
    first = next(parts)

    def again() -> Iterator[Prediction]:
        yield first
        yield from parts

    if Averages.possible(first):
        return Averages(again())  # type: ignore[arg-type]
    return Prediction.cat(list(again()))


def batches(
    data: Any, task: Task, outside: bool = False, at_once: int | None = None
) -> Iterator[tuple[Any, Tensor | None]]:
    """Yield inputs and targets, None where there are none to score.

    Args:
        outside: whether targets are left out.
        at_once: examples of arrays at a time; None for all.
    """
    if isinstance(data, (Tensor, Rows)):
        yield data, None
    elif isinstance(data, Arrays):
        for x, y in data.batches(at_once or len(data)):
            yield x, None if outside else y
    elif outside:
        for x in data.inputs(1):
            check_inputs(x, task.input_shape, "ood set")
            yield x, None
    else:
        yield from _labelled(data)


def _labelled(data: Data) -> Iterator[tuple[Any, Tensor | None]]:
    read = False
    for pair in data.batches(1):
        read = True
        yield pair
    if not read:
        raise ValueError("the loader is empty: 0 batches")


def _few(
    predict: Callable[[Any], Prediction], x: Any, y: Tensor | None
) -> Iterator[tuple[Any, Tensor | None]]:
    """Yield parts of a batch whose samples take about `PIECE` bytes, as its first example shows."""
    samples = next(iter(predict(x[:1]).to_arrays()[0].values()))
    size = max(1, PIECE // (samples.numel() * samples.element_size()))
    for start in range(0, len(x), size):
        stop = start + size
        yield x[start:stop], None if y is None else y[start:stop]
