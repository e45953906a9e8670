"""A task: the data to learn from, and those on which the result is judged.

Data for training, validation and test, the likelihood that ties network outputs to targets, inputs
from elsewhere (OOD sets) and the test set under shifts of rising severity. Arrays are validated
here, once; loaders batch by batch. Messages name the set, the number of values, the first row and
the remedy. `N` examples, `B` batch, `C` classes, `D` target dimensions, `K` network outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import signature
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from polymode.core.checks import Count, OnlyTensor, check_call, shown
from polymode.core.options import declarations
from polymode.core.registry import suggest
from polymode.core.rng import global_stream
from polymode.core.rows import (
    Inputs,
    Rows,
    Shapes,
    is_one_shape,
    is_several,
    shapes_of,
    why_not_same,
)
from polymode.core.text import plain
from polymode.core.warn import warn
from polymode.likelihoods.kinds import Bernoulli, Likelihood, as_likelihood
from polymode.likelihoods.scaling import Scaling
from polymode.likelihoods.targets import NOT_OBSERVED
from polymode.tasks.frames.sets import as_arrays
from polymode.tasks.observations import (
    Weighting,
    look_at_masks,
    observed_by,
    weighting_of,
    with_class_weights,
    without_weights,
)
from polymode.tasks.row_scales import standardisation_of_rows
from polymode.training.data import TARGET_NAMES, Arrays, Data, Loader, Pair, Pixels, as_data
from polymode.training.options import Augment

PROBE = 64  # examples of a Dataset that are looked at; a DataLoader has its own batch size
Key = TypeVar("Key")
Value = TypeVar("Value")
Shape = tuple[int, ...]


class Lazy(Mapping[Key, Value], Generic[Key, Value]):
    """A mapping whose values are made when they are looked at, and not kept.

    Nineteen shifts of 10,000 images in five severities need the memory of one.
    """

    def __init__(self, makers: Mapping[Key, Callable[[], Value]]) -> None:
        self._makers = dict(makers)

    def __getitem__(self, key: Key) -> Value:
        return self._makers[key]()

    def __contains__(self, key: object) -> bool:  # Mapping's own would make the value
        return key in self._makers

    def __iter__(self) -> Iterator[Key]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


class Task:
    """Your own data as a task.

    Arrays are validated completely. Of a `Dataset` or `DataLoader` only the first batch is checked
    here, and every further batch when it is read. Two exceptions: one pass over the training loader
    counts the classes if there is no `target_size`, and finds mean and standard deviation of
    regression targets if `target_scaling="auto"`.

    Args:
        train: (x, y) arrays or tensors with x of shape (N, *input_shape), a `Dataset`, a
            `DataLoader`, or `core.data` objects. Networks of several inputs get them as a
            dictionary or a tuple instead of x, ((a, b), y). A set, or each batch of a loader, may
            also be one dictionary with the targets under the name `target`. A DataFrame for x is
            encoded, see `from_frame`; names of classes for y become labels. Floating-point inputs
            are cast to the type of the network later, integers (token identifiers) stay integers;
            uint8 images are refused, scale them (`x / 255`).
        likelihood: a `Likelihood`, or the name of one that has no options ("categorical").
        test, val: like `train`; the same input shape and kind of targets.
        ood: name -> inputs (N, *input_shape), several of them as in `train`, an (x, y) pair, or a
            loader of inputs with or without targets. Labels of OOD classes are not checked. A
            function without arguments that returns them is called when the set is needed.
        near_ood: names of the OOD sets that are near to the training data; the others are far.
        shifts: name -> {severity >= 1: (x, y)}; here, too, a function may stand for (x, y).
        name, description: for lists and reports.
        target: name of the targets where sets are dictionaries; by default the one of "labels",
            "label", "targets", "target" and "y" that is there. The network never gets them.
        target_size: number of classes C or of target dimensions D. Default: from `train`; needed
            if classes are absent from it.
        truth: function from inputs (N, *input_shape) to noise-free targets (N, D) or to class
            probabilities (N, C), where it is known.
        exact: exact answers of the task's own model, where there are any.
        input_scaling: how the inputs given here were scaled, for users who need the original ones.
            "auto" looks at rows of numbers (N, D): where a column's root mean square is above 10,
            or that of all columns below 0.1, new networks standardise their inputs themselves, with
            a warning; predictions, attacks and files stay in the units given. None leaves it out.
        target_scaling: for regressions. Targets are given in their own units; `fit` trains new
            networks on target_scaling(y), and predictions come back in the units given. "auto"
            standardises with the training targets; the likelihood's noise is in the units of the
            targets and converted. With your own `Scaling`, the noise refers to scaled targets.
            None trains on the targets as they are: so the prior is over networks in their units.
            Networks that are given predict in the units of the targets, so "auto" is None for them.
        target_unit: unit of the targets, such as "MPa", for tables and figures.
        class_names: C names, in the order of the labels.
        augment: the usual augmentation of training batches, used by
            `fit(..., augment=task.augment)`.
        ignore_index: the label that stands for "no target here", such as 255 in masks; labels of
            -100 always do. For values the number that does, such as float("nan"); none by default.
        weights: of training observations, one of 2 counts as two equal ones, so that N is the sum
            of all: {class: weight}, with 1 for those that are left out; an array (N,), or (N, *E)
            at positions; or the name of the weights among named arrays or in a loader's
            dictionaries, where they are no inputs. Metrics do not use them.

    Attributes:
        inner_scaling: by what new networks standardise their inputs, or None.
        train, val, test: `Arrays`, `Loader` or (val, test) None. Targets are canonical, int64 (N,)
            or floating-point (N, D); a loader makes them so, and checks them, batch by batch.
        ood: mapping from names to inputs (`Tensor` or `Rows`), `Arrays` or a `Loader`.
        shifts: name -> mapping from severities to `Arrays`.
        input_shape: shape of one example; of several inputs their shapes, by name or by position.
            num_outputs: K that the network must give.
        target_scaling: the `Scaling`, or None. scales_itself: whether it was found here.
        encoder: what made the inputs of DataFrames, or None. row_numbers: of `from_frame`, the rows
            of each set in the table.
        weighting: what gives training data the weights of their observations, or None.

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
        near_ood: Sequence[str] | str = (),
        shifts: Mapping[str, Any] | None = None,
        name: str = "own",
        target: str | None = None,
        target_size: Count | None = None,
        description: str = "",
        truth: Callable[[Tensor], Tensor] | None = None,
        exact: Any = None,
        input_scaling: Scaling | str | None = "auto",
        target_scaling: Scaling | str | None = "auto",
        target_unit: str = "",
        class_names: Sequence[Any] | str | None = None,
        augment: Augment | None = None,
        ignore_index: int | float | None = None,
        weights: Any = None,
    ) -> None:
        check_call(Task.__init__, locals())
        self.name, self.description = plain(name), plain(description)
        self.truth, self.exact = truth, exact
        self.likelihood = as_likelihood(likelihood)
        self._target = target
        sets = as_arrays(train, {"val": val, "test": test})
        self.encoder, self.row_numbers = sets.encoder, dict[str, Tensor]()
        train, val, test = sets.by_name["train"], sets.by_name["val"], sets.by_name["test"]
        target_size = target_size or (len(sets.classes) if sets.classes else None)
        self._weights_name = weights if isinstance(weights, str) else None
        data = self._read(train, "train")
        x, y = _look(data, "train")
        check_inputs(x, None, "train")
        self.input_shape: Shapes = shapes_of(x)
        self.likelihood = observed_by(self.likelihood, y, self.input_shape, ignore_index)
        y = check_targets(self.likelihood, target_size, y, "train")
        self.target_size = target_size or self._count(data, y)
        self.weighting: Weighting | None = None
        if isinstance(weights, Mapping):
            self.likelihood = with_class_weights(self.likelihood, weights, self.target_size)
        elif weights is not None:
            self.weighting = weighting_of(self.likelihood, weights, train, data, y)
            self.likelihood = self.weighting.likelihood
        self.num_outputs = self.likelihood.num_outputs(self.target_size)
        if isinstance(data, Arrays):
            look_at_masks(self.likelihood, y, "train")

        self.train: Data = (
            data.checked_by(self.check_batch) if isinstance(data, Loader) else data.with_targets(y)
        )
        self.val = None if val is None else self._checked(val, "val")
        self.test = None if test is None else self._checked(test, "test")
        self.ood: Mapping[str, Inputs | Data] = Lazy(
            {key: self._when_asked(self._ood, key, source) for key, source in (ood or {}).items()}
        )
        self.near_ood = _names_among(near_ood, self.ood)
        self.shifts = {key: self._shift(key, levels) for key, levels in (shifts or {}).items()}
        self.inner_scaling = self._inner_scaling(input_scaling)
        self.input_scaling = input_scaling if isinstance(input_scaling, Scaling) else None
        self.augment = augment
        self.scales_itself = target_scaling == "auto" and self.likelihood.scales_targets
        self.target_scaling = self._target_scaling(target_scaling)
        self.target_unit = target_unit
        self.class_names = self._class_names(class_names or sets.classes)

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        target: str | int | Sequence[str],
        *,
        likelihood: Likelihood | str = "auto",
        columns: Sequence[str] | None = None,
        drop: Sequence[str] = (),
        **options: Any,
    ) -> Task:
        """Return the task of a table with columns of any kind.

        Numbers, truth values, dates and categories, with missing values, are encoded as
        `tasks/frames/encoder.py` says, learned on the training rows. The encoder stays with the
        task and its posteriors: `post.predict(df)` takes tables.

        Args:
            frame: a DataFrame (pandas, polars) or a dictionary from names to columns.
            target: name of the column to predict, or of several for a regression.
            likelihood: "auto" is "categorical" for categories and truth values, and
                "heteroscedastic_gaussian" for numbers; "gaussian" learns its noise.
            columns: names of the input columns; by default all but the target.
            drop: names of columns to leave out.
            **options: `numeric` ("piecewise", "standard", "quantile"), `num_bins`,
                `most_categories`, `large_categories`, `test_fraction`, `val_fraction` (0.1 each),
                `split`; and what `Task` takes, such as `name` and `target_unit`.
        """
        from polymode.tasks.frames.from_frame import FrameOptions, task_from_frame

        accepted = {**declarations(FrameOptions), **signature(cls.__init__).parameters}
        for key in options:
            if key not in accepted:
                near = suggest(key, accepted)
                raise ValueError(f"from_frame has no option '{key}'.{near} See its help.")
        stated = {key: options.pop(key) for key in [*options] if key in declarations(FrameOptions)}
        return task_from_frame(
            frame,
            target,
            likelihood=likelihood,
            columns=columns,
            drop=drop,
            options=FrameOptions(**stated),
            **options,
        )

    def check_batch(self, x: Inputs, y: Tensor) -> Pair:
        """Return (x, canonical y) of one batch, or say what is wrong with it; see `check_batch`."""
        return check_batch(self.likelihood, self.target_size, self.input_shape, x, y)

    def __repr__(self) -> str:
        sets = [("train", self.train), ("val", self.val), ("test", self.test)]
        sizes = [f"{key} {_size(data)}" for key, data in sets if data is not None]
        parts = [", ".join(sizes), f"inputs {self.input_shape}"]
        parts.append(f"{self.likelihood!r}, num_outputs {self.num_outputs}")
        if self.ood:
            places = {key: "near" if key in self.near_ood else "far" for key in self.ood}
            parts.append(f"OOD {', '.join(f'{key} ({place})' for key, place in places.items())}")
        if self.shifts:
            levels = (f"{key} {_range(levels)}" for key, levels in self.shifts.items())
            parts.append(f"shifts {', '.join(levels)}")
        return f"Task({self.name!r}: {'; '.join(parts)})"

    def _count(self, data: Data, first: Tensor) -> int:
        """Return classes or target dimensions; classes of a loader by one pass over it."""
        base = getattr(self.likelihood, "base", self.likelihood)
        if not self.likelihood.classification or isinstance(base, Bernoulli):
            return self.likelihood.target_size(first)
        labels = first
        if isinstance(data, Loader):
            with global_stream(None):
                labels = torch.cat(
                    [
                        check_targets(self.likelihood, None, y, "train").flatten()
                        for _, y in data.batches(PROBE)
                    ]
                )
        size = self.likelihood.target_size(labels)
        least = int(labels[labels != NOT_OBSERVED].min())
        if least > 0:
            warn(
                f"train labels begin at {least}: none is 0, and C is taken as {size}, the largest"
                f" label + 1. Subtract {least}, or give `target_size` if the others can occur",
            )
        return size

    def _read(self, source: Any, what: str) -> Data:
        """Return a set as data; weights that it names are no inputs."""
        return without_weights(source, self._weights_name, lambda s: _read(s, what, self._target))

    def _checked(self, source: Any, what: str) -> Data:
        """Return a set with the task's input shape and kind of targets."""
        data = self._read(source, what)
        if isinstance(data, Loader):
            check_batch(*self._sizes, *_look(data, what), what=what)
            return data.checked_by(self.check_batch)
        return self._canonical(data, what)

    @property
    def _sizes(self) -> tuple[Likelihood, int, Shapes]:
        return self.likelihood, self.target_size, self.input_shape

    def _canonical(self, data: Arrays, what: str) -> Arrays:
        targets = check_batch(*self._sizes, *_look(data, what), what=what)[1]
        look_at_masks(self.likelihood, targets, what)
        return data.with_targets(targets)

    def _when_asked(
        self, check: Callable[..., Value], key: Any, source: Any
    ) -> Callable[[], Value]:
        """Return a function that gives the checked set; what is at hand already is checked now."""
        if callable(source) and not hasattr(source, "__array__"):
            return lambda: check(key, source())
        checked = check(key, source)
        return lambda: checked

    def _inner_scaling(self, scaling: Scaling | str | None) -> Scaling | None:
        """Return what new networks are to standardise their inputs by, None for nothing."""
        if not isinstance(scaling, str):
            return None
        if scaling != "auto":
            raise ValueError(
                f'`input_scaling` of Task must be "auto", a Scaling or None, got {scaling!r}'
            )
        if self.encoder is not None or self.exact is not None or self.truth is not None:
            return None
        return standardisation_of_rows(self.train)

    def _target_scaling(self, scaling: Scaling | str | None) -> Scaling | None:
        if isinstance(scaling, str):
            if scaling != "auto":
                raise ValueError(
                    f'`target_scaling` of Task must be "auto", a Scaling or None, got {scaling!r}'
                )
            return _standardisation(self.train) if self.scales_itself else None
        if scaling is not None and not self.likelihood.scales_targets:
            kind = "class labels" if self.likelihood.classification else "counts"
            raise ValueError(f"`target_scaling` is for regressions; {kind} have no scale")
        if scaling is not None and tuple(scaling.shift.shape) not in ((), (self.target_size,)):
            raise ValueError(
                f"`target_scaling` has shape {tuple(scaling.shift.shape)}; the targets have"
                f" {self.target_size} dimension(s)"
            )
        return scaling

    def _class_names(self, names: Sequence[str] | None) -> tuple[str, ...] | None:
        if names is not None and len(names) != self.target_size:
            raise ValueError(f"{len(names)} `class_names` for {self.target_size} classes")
        return None if names is None else tuple(plain(str(name)) for name in names)

    def _ood(self, key: str, source: Any) -> Inputs | Data:
        """Return OOD inputs, or inputs with targets; labels may be of classes the task has not."""
        what = f"ood set '{key}'"
        if self._are_inputs(source):
            x = _arrays((source, torch.zeros(_length(source))), what).x
            check_inputs(x, self.input_shape, what)
            return x
        data = self._read(source, what)
        if isinstance(data, Loader):
            with global_stream(None):
                check_inputs(next(data.inputs(PROBE)), self.input_shape, what)
            return data
        x, y = _look(data, what)
        check_inputs(x, self.input_shape, what)
        if self.likelihood.classification:
            check_finite(y, f"{what} targets")
            return data
        return data.with_targets(check_targets(self.likelihood, self.target_size, y, what))

    def _are_inputs(self, source: Any) -> bool:
        """Whether an OOD set is inputs alone: arrays, or named ones without targets."""
        if isinstance(source, Mapping):
            names = TARGET_NAMES if self._target is None else (self._target,)
            return not any(name in source for name in names)
        if isinstance(source, tuple) and isinstance(self.input_shape, tuple):
            shapes = self.input_shape
            if is_one_shape(shapes) or len(source) != len(shapes) or not is_several(source):
                return False
            return not (is_several(source[0]) and is_one_shape(shapes[0]))  # else (inputs, targets)
        return isinstance(source, (Tensor, np.ndarray, list, Rows))

    def _shift(self, key: str, levels: Mapping[int, Any]) -> Mapping[int, Arrays]:
        """Return the severities of one shift in rising order."""
        if not isinstance(levels, Mapping):
            raise ValueError(
                f"shift '{key}' must be a dict from severities to (x, y),"
                f" got {type(levels).__name__}"
            )
        for severity in levels:
            if isinstance(severity, bool) or not isinstance(severity, int) or severity < 1:
                raise ValueError(
                    f"severities of shift '{key}' must be integers >= 1, got {severity!r}"
                )

        def check(severity: int, source: Any) -> Arrays:
            what = f"shift '{key}' severity {severity}"
            return self._canonical(_arrays(source, what, self._target), what)

        return Lazy({s: self._when_asked(check, s, levels[s]) for s in sorted(levels)})


def _standardisation(data: Data) -> Scaling:
    """Return mean and standard deviation of the targets (N, D) of one pass."""
    y = data.y if isinstance(data, Arrays) else None
    if y is None:
        y = torch.cat([y.flatten(0, -2) for _, y in data.epoch(PROBE, seed=0)])
    rows = y.flatten(0, -2)
    return Scaling.of(rows if y.dim() == 2 else rows[~rows.isnan().all(-1)])


def _length(source: Any) -> int:
    """Return the number of rows of arrays, one or several."""
    if isinstance(source, Mapping):
        return _length(next((part for part in source.values() if part is not None), ()))
    return _length(source[0]) if isinstance(source, tuple) else len(source)


def _names_among(names: Sequence[str], ood: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of near OOD sets, or say which of them is none."""
    if isinstance(names, str):
        raise ValueError(f"`near_ood` of Task must be a sequence of names, such as ('{names}',)")
    for name in names:
        if name not in ood:
            raise ValueError(
                f"`near_ood` names '{name}', which is not an OOD set.{suggest(name, ood)}"
                f" OOD sets: {', '.join(ood) or 'none'}."
            )
    return tuple(names)


def _read(source: Any, what: str, target: str | None = None) -> Data:
    """Return `source` as data, with the name of the set before any complaint."""
    try:
        return as_data(source, target)
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from None


def _arrays(source: Any, what: str, target: str | None = None) -> Arrays:
    data = _read(source, what, target)
    if not isinstance(data, Arrays):
        raise ValueError(f"{what} must be arrays, got {type(source).__name__}; give (x, y) tensors")
    return data


def _look(data: Data, what: str) -> Pair:
    """Return all of arrays, the first batch of a loader; torch's global stream is left alone.

    Of images kept as bytes, which cannot be wrong in value, one input stands for all.
    """
    if isinstance(data, Pixels):
        return data.head(1)[0].expand(len(data), -1, -1, -1), data.y
    if isinstance(data, Arrays):
        return data.x, data.y
    try:
        with global_stream(None):
            return next(iter(data.batches(PROBE)))
    except StopIteration:
        raise ValueError(f"{what}: the loader is empty: 0 batches") from None
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from error


def _size(data: Data) -> str:
    return "by loader" if isinstance(data, Loader) else f"{len(data):,}"


def _range(levels: Mapping[int, Arrays]) -> str:
    return f"{min(levels)}-{max(levels)}" if len(levels) > 1 else ", ".join(map(str, levels))


def check_batch(
    likelihood: Likelihood,
    target_size: int,
    input_shape: Shapes,
    x: Inputs,
    y: OnlyTensor,
    *,
    what: str = "batch",
) -> Pair:
    """Return inputs and canonical targets of one batch, or say what is wrong with them.

    Cheap enough for every step: one sum over the inputs, and the likelihood's check of the targets.
    On an accelerator each call waits for the device.

    Args:
        likelihood, target_size, input_shape: those of the task.
        x: inputs (B, *input_shape), finite; floating-point, or integer identifiers. Several of them
            may be masks too, and differ from `input_shape` in the lengths of their axes.
        y: targets (B,) or (B, D).
        what: name of the set in messages ("train", "ood set 'svhn'").

    Returns:
        x as it is, and y as `likelihood.check` returns it: int64 (B,) labels or floating-point (B,
        D).
    """
    check_call(check_batch, locals())
    if not isinstance(input_shape, (tuple, list, Mapping)):
        raise ValueError(
            "`input_shape` of check_batch must be the shape of one example, such as (3, 32, 32), or"
            f" several by name, got {shown(input_shape)}"
        )
    check_inputs(x, input_shape, what)
    if len(x) != len(y):
        raise ValueError(f"{what} has {len(x):,} inputs and {len(y):,} targets")
    return x, check_targets(likelihood, target_size, y, what)


def check_inputs(x: Inputs, input_shape: Shapes | None, what: str) -> None:
    """Refuse inputs of another shape than the task's, of a type no network takes, or not finite.

    With `input_shape` None any shape of at least one axis an example will do.
    """
    if isinstance(x, Rows):
        return _check_several(x, input_shape, what)
    _check_type(x, f"{what} inputs")
    if x.dtype == torch.bool:
        raise ValueError(
            f"{what} inputs are {x.dtype}; give floating-point numbers (x.float()) or integers"
        )
    if x.ndim < 2 or x.nelement() == 0:
        remedy = ": one number per example is x[:, None]" if x.ndim == 1 else ""
        raise ValueError(
            f"{what} inputs have shape {tuple(x.shape)}; an example must have at least one axis and"
            f" one value{remedy}"
        )
    if input_shape is not None and not is_one_shape(input_shape):
        raise ValueError(f"{what} has {why_not_same(x, input_shape)}")
    shape = tuple(x.shape[1:])
    if input_shape is not None and shape != tuple(input_shape):
        raise ValueError(
            f"{what} has input shape {shape} but the task's inputs have shape {input_shape}"
        )
    check_finite(x, f"{what} inputs")


def _check_several(x: Rows, shapes: Shapes | None, what: str) -> None:
    """The same for several inputs, which may be masks, or one number per example."""
    if shapes is not None and (why := why_not_same(x, shapes)):
        raise ValueError(f"{what} inputs have {why}")
    for name, leaf in x.named().items():
        _check_type(leaf, f"{what} inputs '{name}'")
        if leaf.nelement() == 0:
            raise ValueError(f"{what} inputs '{name}' of shape {tuple(leaf.shape)} hold no value")
        check_finite(leaf, f"{what} inputs '{name}'")


def _check_type(x: Tensor, what: str) -> None:
    """Refuse numbers that no network takes."""
    if x.dtype == torch.uint8:
        raise ValueError(
            f"{what} are uint8; images must be scaled to floating point, such as x / 255"
        )
    if x.is_complex():
        raise ValueError(
            f"{what} are {x.dtype}; give floating-point numbers (x.float()) or integers"
        )


def check_targets(likelihood: Likelihood, target_size: int | None, y: Tensor, what: str) -> Tensor:
    """Return canonical targets as `likelihood.check` does; its message gets the name of the set."""
    try:
        return likelihood.check(y, target_size)
    except ValueError as error:
        remedy = ""
        if likelihood.classification and target_size and not y.is_floating_point():
            if y.nelement() and int(y.max()) >= target_size:
                remedy = " Classes that train has not need `target_size` of Task."
        raise ValueError(f"{what} targets: {error}{remedy}") from None


def check_finite(values: Tensor, what: str) -> None:
    """Refuse NaN and infinity; one sum where all is well, as each of them makes the sum one."""
    if not values.is_floating_point() or math.isfinite(values.sum().item()):
        return
    bad = ~values.isfinite().flatten(1)
    count, rows = int(bad.sum()), bad.any(1).nonzero()
    if count:  # none: finite values whose sum overflows
        raise ValueError(
            f"{what} have {count:,} of {values.nelement():,} values NaN or infinite, the first in"
            f" row {int(rows[0])} ({len(rows):,} of {len(values):,} rows); drop or impute them"
        )
