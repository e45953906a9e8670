"""A task: what is to be learnt, and on what it will be judged.

Data for training, validation and test, the likelihood that ties network outputs to targets, inputs
from elsewhere (OOD sets) and the test set under shifts of rising severity. Arrays are validated
here, once. `N` examples, `B` batch, `C` classes, `D` target dimensions, `K` network outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from polymode.core.data import Arrays, Data, Loader, Pair, as_data
from polymode.core.likelihoods import Bernoulli, Likelihood, as_likelihood
from polymode.tasks.checks import check_batch, check_finite, check_inputs, check_targets

if TYPE_CHECKING:
    from polymode.tasks.linear import ExactPosterior

PROBE = 64  # examples of a Dataset that are looked at; a DataLoader has its own batch size


class Task:
    """Your own data as a task.

    Arrays are validated whole. Of a `Dataset` or `DataLoader` only the first batch is looked at
    here, every further batch as it comes. One exception: for class
    labels from a loader without `target_size`, one pass over the training loader counts the
    classes.

    Args:
        train: (x, y) arrays or tensors with x of shape (N, *input_shape), a `Dataset`, a
            `DataLoader`, or `core.data` objects. Floating-point inputs are cast to the type of the
            network later, integers (token identifiers) stay integers; uint8 images are refused,
            scale them (`x / 255`).
        likelihood: a `Likelihood`, or the name of one that has no options ("categorical").
        test, val: like `train`; the same input shape and kind of targets.
        ood: name -> inputs (N, *input_shape), or an (x, y) pair; labels of OOD classes are not
            checked.
        shifts: name -> {severity >= 1: (x, y)}.
        name, description: for lists and reports.
        target_size: number of classes C or of target dimensions D. Default: from `train`; needed
            where classes are absent from it.
        truth: noise-free function from inputs (N, *input_shape) to targets (N, D), where it is
            known.
        exact: exact posterior of the task's own model, where there is one.

    Attributes:
        train, val, test: `Arrays`, `Loader` or (val, test) None. Targets are canonical, int64 (N,)
            or floating-point (N, D); a loader makes them so, and checks them, batch by batch.
        ood: dict from names to inputs (`Tensor`) or `Arrays`. shifts: name -> {severity: `Arrays`}.
        input_shape: shape of one example. num_outputs: K that the network must give.

    >>> Task(train=([[0.0], [1.0], [2.0]], [0, 1, 1]), likelihood="categorical").num_outputs
    2
    """

    def __init__(
        self,
        *,
        train: Any,
        likelihood: Likelihood | str,
        test: Any = None,
        val: Any = None,
        ood: Mapping[str, Any] | None = None,
        shifts: Mapping[str, Mapping[int, Any]] | None = None,
        name: str = "own",
        target_size: int | None = None,
        description: str = "",
        truth: Callable[[Tensor], Tensor] | None = None,
        exact: ExactPosterior | None = None,
    ) -> None:
        if target_size is not None and (not isinstance(target_size, int) or target_size < 1):
            raise ValueError(f"`target_size` of Task must be an integer >= 1, got {target_size!r}")
        self.name, self.description, self.truth, self.exact = name, description, truth, exact
        self.likelihood = as_likelihood(likelihood)
        data = _read(train, "train")
        x, y = _look(data, "train")
        check_inputs(x, None, "train")
        y = check_targets(self.likelihood, target_size, y, "train")
        self.input_shape = tuple(x.shape[1:])
        self.target_size = target_size or self._count(data, y)
        self.num_outputs = self.likelihood.num_outputs(self.target_size)

        self.train: Data = Arrays(x, y)
        if isinstance(data, Loader):
            self.train = data.checked_by(self.check_batch)
        self.val = None if val is None else self._checked(val, "val")
        self.test = None if test is None else self._checked(test, "test")
        self.ood = {key: self._ood(key, source) for key, source in (ood or {}).items()}
        self.shifts = {key: self._shift(key, levels) for key, levels in (shifts or {}).items()}

    def check_batch(self, x: Tensor, y: Tensor) -> Pair:
        """Return (x, canonical y) of one batch, or say what is wrong with it; see `check_batch`."""
        return check_batch(self.likelihood, self.target_size, self.input_shape, x, y)

    def __repr__(self) -> str:
        sets = [("train", self.train), ("val", self.val), ("test", self.test)]
        sizes = [f"{key} {_size(data)}" for key, data in sets if data is not None]
        parts = [", ".join(sizes), f"inputs {self.input_shape}"]
        parts.append(f"{self.likelihood!r}, num_outputs {self.num_outputs}")
        if self.ood:
            parts.append(f"OOD {', '.join(f'{key} {len(x):,}' for key, x in self.ood.items())}")
        if self.shifts:
            levels = (f"{key} {_range(levels)}" for key, levels in self.shifts.items())
            parts.append(f"shifts {', '.join(levels)}")
        return f"Task({self.name!r}: {'; '.join(parts)})"

    def _count(self, data: Data, first: Tensor) -> int:
        """Return classes or target dimensions; classes of a loader by one pass over it."""
        known = not self.likelihood.classification or isinstance(self.likelihood, Bernoulli)
        if known or isinstance(data, Arrays):
            return self.likelihood.target_size(first)
        with torch.random.fork_rng(devices=[]):
            labels = (
                check_targets(self.likelihood, None, y, "train") for _, y in data.batches(PROBE)
            )
            return max(self.likelihood.target_size(some) for some in labels)

    def _checked(self, source: Any, what: str) -> Data:
        """Return a set with the task's input shape and kind of targets."""
        data = _read(source, what)
        checked = self._canonical(_look(data, what), what)
        return checked if isinstance(data, Arrays) else data.checked_by(self.check_batch)

    def _canonical(self, pair: Pair, what: str) -> Arrays:
        sizes = self.likelihood, self.target_size, self.input_shape
        return Arrays(*check_batch(*sizes, *pair, what=what))

    def _ood(self, key: str, source: Any) -> Tensor | Arrays:
        """Return OOD inputs, or inputs with targets; labels may be of classes the task has not."""
        what = f"ood set '{key}'"
        alone = isinstance(source, (Tensor, np.ndarray, list))
        data = _arrays((source, source) if alone else source, what)
        check_inputs(data.x, self.input_shape, what)
        if alone:
            return data.x
        if self.likelihood.classification:
            check_finite(data.y, f"{what} targets")
            return data
        return Arrays(data.x, check_targets(self.likelihood, self.target_size, data.y, what))

    def _shift(self, key: str, levels: Mapping[int, Any]) -> dict[int, Arrays]:
        """Return the severities of one shift in rising order."""
        if not isinstance(levels, Mapping):
            raise ValueError(
                f"shift '{key}' must be a dict from severities to (x, y),"
                f" got {type(levels).__name__}"
            )
        checked = {}
        for severity, source in levels.items():
            if isinstance(severity, bool) or not isinstance(severity, int) or severity < 1:
                raise ValueError(
                    f"severities of shift '{key}' must be integers >= 1, got {severity!r}"
                )
            what = f"shift '{key}' severity {severity}"
            data = _arrays(source, what)
            checked[severity] = self._canonical((data.x, data.y), what)
        return dict(sorted(checked.items()))


def _read(source: Any, what: str) -> Data:
    """Return `source` as data, with the name of the set before any complaint."""
    try:
        return as_data(source)
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from None


def _arrays(source: Any, what: str) -> Arrays:
    data = _read(source, what)
    if not isinstance(data, Arrays):
        raise ValueError(f"{what} must be arrays, got {type(source).__name__}; give (x, y) tensors")
    return data


def _look(data: Data, what: str) -> Pair:
    """Return all of arrays, the first batch of a loader; torch's global stream is left alone."""
    if isinstance(data, Arrays):
        return data.x, data.y
    try:
        with torch.random.fork_rng(devices=[]):
            return next(iter(data.batches(PROBE)))
    except StopIteration:
        raise ValueError(f"{what}: the loader is empty: 0 batches") from None
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from error


def _size(data: Data) -> str:
    return "by loader" if isinstance(data, Loader) else f"{len(data):,}"


def _range(levels: Mapping[int, Arrays]) -> str:
    return f"{min(levels)}-{max(levels)}" if len(levels) > 1 else ", ".join(map(str, levels))
