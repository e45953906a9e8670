"""How training went: loss curves of each member, in few points, and the time it took.

Train losses are means over windows of equal length, so that there are at most `POINTS` of them,
whatever the number of steps. The validation loss is computed at few moments on few examples: so
few that it costs about a fiftieth of the training at most, and never on a very short one. All of it
is a function of the step, so that a run that resumes ends with the same curves.

Shapes: `M` modes, `T` points of a curve.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polymode.core.columns import left_table
from polymode.core.html import html_block, html_table
from polymode.distributed import ranks
from polymode.likelihoods.kinds import Likelihood
from polymode.stack.stack import Stack
from polymode.training.data import Arrays, Data, Pair

POINTS, LEAST_POINTS = 100, 20  # of a train curve; fewer of many members
NUMBERS = 10_000  # of all members' train curves together, above the least points
MOMENTS, LEAST_MOMENTS = 20, 3  # of a validation curve
ROWS, LEAST_ROWS = 1000, 32  # validation examples
SHARE = 0.04  # examples validated for one that is trained on, which costs three times as much
PER_MOMENT = 50  # steps at least: each moment has a cost of its own
BATCH = 256  # rows at a time

_HEADER = ("step", "train loss", "validation NLL")
Curve = tuple[tuple[float | None, ...], ...]  # (T, M); None where it is not finite


class History(NamedTuple):
    """Curves of one fit.

    Attributes:
        train_steps, train_loss: where each window ends, and the means over it (T, M), of what the
            method minimises, per example.
        val_steps, val_nll: moments, and each member's own NLL then (T, M), nats per example in the
            units of the targets; empty without validation data.
        num_val: examples behind `val_nll`. total_steps: of the whole training.
        seconds: wall time of training, of all processes that had a part in it.
    """

    train_steps: tuple[int, ...] = ()
    train_loss: Curve = ()
    val_steps: tuple[int, ...] = ()
    val_nll: Curve = ()
    num_val: int = 0
    total_steps: int = 0
    seconds: float = 0.0

    def _lines(self) -> list[tuple[str, str, str]]:
        """Return step, train loss and validation NLL, means over modes, at ten moments at most."""
        losses = dict(zip(self.train_steps, map(_mean, self.train_loss), strict=True))
        nlls = dict(zip(self.val_steps, map(_mean, self.val_nll), strict=True))
        steps = sorted({*losses, *nlls})
        moments = steps[:: max(1, -(-len(steps) // 9))]
        moments += [step for step in steps[-1:] if step not in moments]
        return [(f"{step:,}", losses.get(step, ""), nlls.get(step, "")) for step in moments]

    def _title(self) -> str:
        modes = len(self.train_loss[0]) if self.train_loss else 0
        who = f"mean of {modes} modes" if modes > 1 else "one mode"
        return f"History: {self.total_steps:,} steps in {self.seconds:.1f} s, {who}"

    def __repr__(self) -> str:
        if not self.total_steps:
            return "History: no training"
        return f"{self._title()}\n" + left_table(_HEADER, self._lines())

    def _repr_html_(self) -> str:
        if not self.total_steps:
            return html_block("History: no training")
        return html_block(self._title(), html_table(_HEADER, self._lines()))

    def of_modes(self, modes: slice) -> History:
        """Return the curves of some modes."""
        return self._replace(
            train_loss=tuple(row[modes] for row in self.train_loss),
            val_nll=tuple(row[modes] for row in self.val_nll),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return it JSON-safe."""
        return self._asdict()

    @staticmethod
    def from_dict(content: dict[str, Any]) -> History:
        """Return what `to_dict` gave, also after JSON."""
        curves = {k: tuple(map(tuple, content[k])) for k in ("train_loss", "val_nll")}
        steps = {k: tuple(content[k]) for k in ("train_steps", "val_steps")}
        return History(**{**content, **curves, **steps})


def _mean(row: Sequence[float | None]) -> str:
    finite = [value for value in row if value is not None]
    return f"{sum(finite) / len(finite):.4g}" if finite else "not finite"


def joined_histories(parts: Sequence[History]) -> History:
    """Return the curves of all modes from those of ranks that held some each."""
    if len(parts) == 1:
        return parts[0]

    def beside(curves: Iterable[Curve]) -> Curve:
        return tuple(sum(rows, ()) for rows in zip(*curves, strict=True))

    return parts[0]._replace(
        train_loss=beside(part.train_loss for part in parts),
        val_nll=beside(part.val_nll for part in parts),
        seconds=max(part.seconds for part in parts),
    )


def _check_numbers(numbers: dict[str, Any], num_modes: int) -> None:
    """Refuse what `Recorder.numbers` does not give; a file may hold anything."""

    def are(values: Any, *kinds: type) -> bool:
        right = isinstance(values, list) and len(values) == num_modes
        return right and all(type(value) in (int, float, *kinds) for value in values)

    rows = [row for name in ("train", "val") for row in numbers[name]]
    right = all(type(row[0]) is int and are(row[1], type(None)) for row in rows)
    right &= are(numbers["sums"]) and type(numbers["count"]) is int and numbers["count"] >= 0
    right &= type(numbers["seconds"]) in (int, float) and numbers["seconds"] >= 0
    if not right or not (numbers.get("first") is None or are(numbers["first"])):
        raise ValueError("its history of losses is none")


def joined_numbers(parts: Sequence[tuple[dict[str, Any], slice]]) -> dict[str, Any]:
    """Return `Recorder.numbers` of some modes, from those of files and what to take of each."""
    first, _ = parts[0]

    def values(name: str) -> list[Any] | None:
        if first[name] is None:
            return None
        return [value for numbers, modes in parts for value in numbers[name][modes]]

    def curve(name: str) -> list[Any]:
        rows = zip(*(numbers[name] for numbers, _ in parts), strict=True)
        return [
            [
                row[0][0],
                [
                    v
                    for (_, values_of), (_, modes) in zip(row, parts, strict=True)
                    for v in values_of[modes]
                ],
            ]
            for row in rows
        ]

    joined = {name: values(name) for name in ("sums", "first")}
    joined |= {name: curve(name) for name in ("train", "val")}
    return {**first, **joined, "seconds": max(numbers["seconds"] for numbers, _ in parts)}


class Validation(NamedTuple):
    """When and how the validation loss is computed: each member's NLL, (M,)."""

    moments: frozenset[int]
    num_examples: int
    loss: Callable[[Stack], Tensor]


class Recorder:
    """Makes the history of a run, step by step."""

    def __init__(self, total: int, num_modes: int, validation: Validation | None = None) -> None:
        points = max(LEAST_POINTS, min(POINTS, NUMBERS // ranks.num_modes(num_modes)))
        self.window = max(1, math.ceil(total / points))
        self.total, self.validation = total, validation
        self._sums = [0.0] * num_modes
        self._count = 0
        self.first: list[float] | None = None  # losses of the first step, (M,)
        self._train: list[tuple[int, list[float | None]]] = []
        self._val: list[tuple[int, list[float | None]]] = []
        self._before, self._started = 0.0, time.perf_counter()

    def add(self, step: int, losses: list[float], stack: Stack) -> None:
        """Take the members' losses of a step, which is the `step`-th."""
        if step == 1:
            self.first = losses
        self._sums = [total + loss for total, loss in zip(self._sums, losses, strict=True)]
        self._count += 1
        if step % self.window == 0 or step == self.total:
            means = [total / self._count for total in self._sums]
            self._train.append((step, _finite(means)))
            self._sums, self._count = [0.0] * len(losses), 0
        if self.validation is not None and step in self.validation.moments:
            self._val.append((step, _finite(self.validation.loss(stack).tolist())))

    def numbers(self) -> dict[str, Any]:
        """Return all that the rest of the run needs, JSON-safe."""
        running = {"sums": self._sums, "count": self._count, "first": self.first}
        return {"train": self._train, "val": self._val, **running, "seconds": self._seconds()}

    def load(self, numbers: dict[str, Any] | None) -> None:
        """Continue from `numbers`; those of a file that has none begin at this step."""
        if numbers is None:
            return
        _check_numbers(numbers, len(self._sums))
        self._train, self._val = list(numbers["train"]), list(numbers["val"])
        self._sums, self._count = list(numbers["sums"]), numbers["count"]
        self._before, self.first = numbers["seconds"], numbers.get("first")

    @property
    def last(self) -> list[float] | None:
        """Mean losses over the last window, (M,); None before the first one is full."""
        if not self._train:
            return None
        return [math.inf if loss is None else loss for loss in self._train[-1][1]]

    def history(self) -> History:
        """Return what has been recorded."""
        return History(
            train_steps=tuple(step for step, _ in self._train),
            train_loss=tuple(tuple(means) for _, means in self._train),
            val_steps=tuple(step for step, _ in self._val),
            val_nll=tuple(tuple(nll) for _, nll in self._val),
            num_val=self.validation.num_examples if self.validation else 0,
            total_steps=self.total,
            seconds=self._seconds(),
        )

    def _seconds(self) -> float:
        return self._before + time.perf_counter() - self._started


def validation_for(
    data: Data | None, likelihood: Likelihood, total: int, trained: int, log_scale: float = 0.0
) -> Validation | None:
    """Return what to validate on and when, None where there are no data or no time for it.

    Args:
        data: of validation, as the networks take them, targets scaled as for training.
        total: steps of the training. trained: examples that a member sees in it.
        log_scale: to add to an NLL of scaled targets for that of targets in their own units.
    """
    if data is None:
        return None
    budget = int(SHARE * trained)
    rows = min(ROWS, len(data), max(budget // LEAST_MOMENTS, 1))
    moments = min(MOMENTS, budget // rows, total // PER_MOMENT)
    if moments < LEAST_MOMENTS or rows < LEAST_ROWS:
        return None
    pairs = spread_rows(data, rows)
    count = sum(len(y) for _, y in pairs)
    number = sum(likelihood.num_observations(y) for _, y in pairs)
    if not number:
        return None

    @torch.no_grad()
    def loss(stack: Stack) -> Tensor:
        total = sum(
            likelihood.log_prob(outputs_of(stack, part), targets, stack.extra).double().sum(-1)
            for part, targets in pairs
        )
        assert isinstance(total, Tensor)
        return log_scale - total / number

    steps = frozenset(round(total * k / moments) for k in range(1, moments + 1))
    return Validation(steps, count, loss)


def outputs_of(stack: Stack, x: Tensor, own: bool = False) -> Tensor:
    """Return the outputs (M, B, K) in evaluation mode; the stack is left as it was.

    They are computed in the way that training has chosen: to measure which one is best for this
    would take longer than a short training.
    """
    plans, plan = stack.plans, stack.plans.get("gradients") or stack.plans.get("outputs")
    stack.plans = {} if plan is None else {"outputs": plan}
    try:
        return stack.eval()(x, own=own, step=0)
    finally:
        stack.plans = plans
        stack.train()


def spread_rows(data: Data, count: int) -> list[Pair]:
    """Return some examples in batches: evenly spread over arrays, the first ones of a pass of a
    loader, whose batches may differ in length."""
    if isinstance(data, Arrays):
        x, y = data.rows(torch.linspace(0, len(data) - 1, count).long())
        return list(zip(x.split(BATCH), y.split(BATCH), strict=True))
    pairs: list[Pair] = []
    for x, y in data.epoch(BATCH, seed=0):  # the same ones each time
        left = count - sum(len(part) for _, part in pairs)
        pairs.append((x[:left], y[:left]))
        if left <= len(y):
            break
    return pairs


def _finite(values: list[float]) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values]
