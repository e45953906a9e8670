"""Which likelihood targets of more axes than usual have: observations at positions, weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from polymode.core.checks import as_numbers, shown
from polymode.core.rows import Shapes
from polymode.core.warn import warn
from polymode.likelihoods.kinds import Bernoulli, Likelihood
from polymode.likelihoods.positions import Positions
from polymode.likelihoods.targets import NOT_OBSERVED
from polymode.training.data import Arrays, Data

_MAPS = 2  # axes of a picture


def observed_by(
    likelihood: Likelihood,
    targets: Tensor,
    input_shape: Shapes,
    ignore_index: int | float | None,
) -> Likelihood:
    """Return the likelihood of these targets: `Positions` of it where they have more axes than the
    likelihood of one observation takes, or where some are ignored.

    Args:
        likelihood: as the user gave it; `Positions` stays what it is.
        targets: of the first batch, as the user gave them.
        input_shape: of one example: (C, H, W) tells a map of single values from sequences.
        ignore_index: the label or value that stands for "not observed", None for the usual one.
    """
    if isinstance(likelihood, Positions):
        if ignore_index is None:
            return likelihood
        return dataclasses.replace(likelihood, ignore=ignore_index)
    axes = _axes_of(likelihood, targets, input_shape)
    if axes == 0 and ignore_index is None:
        return likelihood
    labels = targets.shape[1] if axes == 1 and isinstance(likelihood, Bernoulli) else 1
    return Positions(likelihood, axes, ignore=ignore_index, labels=labels)


def _axes_of(likelihood: Likelihood, targets: Tensor, input_shape: Shapes) -> int:
    """Return how many axes of positions the targets have."""
    if likelihood.classification:
        if targets.dim() != 2:
            return max(0, targets.dim() - 1)
        if targets.shape[1] == 1:
            return 0
        ambiguous = bool(((targets == 0) | (targets == 1)).all()) or targets.is_floating_point()
        return 0 if ambiguous and not isinstance(likelihood, Bernoulli) else 1
    if targets.dim() != 3:
        return max(0, targets.dim() - 2)
    picture = isinstance(input_shape, tuple) and len(input_shape) == _MAPS + 1
    if picture and tuple(targets.shape[1:]) == tuple(input_shape[1:]):
        return _MAPS
    name = type(likelihood).__name__
    raise ValueError(
        f"train targets of shape {tuple(targets.shape)} may be maps (N, H, W), or sequences (N, D,"
        f" T) or (N, T, D); say which: Positions({name}(...), axes=2), or axes=1 with"
        " outputs='first' or 'last'"
    )


def with_class_weights(
    likelihood: Likelihood, weights: Mapping[Any, Any], target_size: int
) -> Likelihood:
    """Return the likelihood in which an observation of class c counts weights[c], by default 1."""
    if not likelihood.classification:
        raise ValueError("`weights` of Task is a dict of classes, but the targets are values")
    for key in weights:
        if isinstance(key, bool) or not isinstance(key, int) or not 0 <= key < target_size:
            raise ValueError(
                f"`weights` of Task has the class {shown(key)}; classes are 0..{target_size - 1}"
            )
    numbers = tuple(weights.get(label, 1.0) for label in range(target_size))
    if isinstance(likelihood, Positions):
        return dataclasses.replace(likelihood, class_weights=numbers)
    return Positions(likelihood, axes=0, class_weights=numbers)


@dataclasses.dataclass(frozen=True, eq=False)
class Weighting:
    """Weights of the training observations.

    Attributes:
        likelihood: which takes targets with weights.
        name: of the weights in a loader's dictionaries, None for arrays.
        values: of arrays, as targets have them; None for a loader.
    """

    likelihood: Positions
    name: str | None
    values: Tensor | None

    def __call__(self, data: Data) -> Data:
        """Return training data whose targets come with their weights."""
        if isinstance(data, Arrays):
            assert self.values is not None
            return data.with_targets(self.likelihood.weighted(data.y, self.values))
        assert self.name is not None
        return data.weighted_by(self.name, self._join)

    def _join(self, targets: Tensor, weights: Any) -> Any:
        values = _checked_weights(weights, targets, self.likelihood)
        return self.likelihood.weighted(targets, values)


def weighting_of(
    likelihood: Likelihood, weights: Any, source: Any, data: Data, targets: Tensor
) -> Weighting:
    """Return the weighting of a training set, checked where it is at hand.

    Args:
        weights: an array, or the name of the weights in `source`, from which `data` was read.
        targets: of arrays all of them, of a loader those of its first batch; canonical.
    """
    if not isinstance(likelihood, Positions):
        likelihood = Positions(likelihood, axes=0)
    name = weights if isinstance(weights, str) else None
    if isinstance(data, Arrays):
        if name is not None:
            if not isinstance(source, Mapping) or name not in source:
                raise ValueError(f"train has no '{name}', which `weights` of Task names")
            weights = source[name]
        values = _checked_weights(weights, targets, likelihood)
        if not likelihood.num_observations(likelihood.weighted(targets, values)):
            raise ValueError("`weights` of Task must not all be 0")
        return Weighting(likelihood, name, values)
    if name is None:
        raise ValueError(
            "`weights` of Task is an array, but a loader has an order of its own: let it yield"
            " dictionaries with the weights, and name them, weights='weight'"
        )
    return Weighting(likelihood, name, None)


def without_weights(source: Any, name: str | None, read: Callable[[Any], Data]) -> Data:
    """Return the data that `read` makes of a set, whose weights are no inputs."""
    if name is None:
        return read(source)
    if isinstance(source, Mapping):
        return read({key: part for key, part in source.items() if key != name})
    data = read(source)
    return data if isinstance(data, Arrays) else data.weighted_by(name, None)


def _checked_weights(weights: Any, targets: Tensor, likelihood: Positions) -> Tensor:
    """Return weights as finite numbers >= 0 for each target, (B,) or (B, *E)."""
    values = as_numbers("`weights` of Task", weights)
    shape = targets.shape if likelihood.classification else targets.shape[:-1]
    if values.shape not in (shape, shape[:1]):
        forms = " or ".join(str(tuple(s)) for s in dict.fromkeys((shape[:1], shape)))
        raise ValueError(f"`weights` of Task must have shape {forms}, got {tuple(values.shape)}")
    values = values.to(torch.promote_types(values.dtype, torch.float32))
    wrong = ~(values.isfinite() & (values >= 0))
    if wrong.any():
        place = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"`weights` of Task must be finite and >= 0, got {values[wrong][0].item():g} at"
            f" {tuple(place)} ({int(wrong.sum()):,} of {wrong.numel():,})"
        )
    return values


def look_at_masks(likelihood: Likelihood, targets: Tensor, what: str) -> None:
    """Refuse arrays in which nothing is observed, and warn of positions of a single class."""
    if not isinstance(likelihood, Positions):
        return
    if not likelihood.num_observations(targets):
        raise ValueError(f"{what} targets: all {targets.numel():,} are ignored, or weigh nothing")
    if not likelihood.classification or not likelihood.num_axes or what != "train":
        return
    classes = targets[targets != NOT_OBSERVED].unique()
    if len(classes) == 1:
        warn(
            f"{what} targets have a single class, {int(classes)}, at all positions: a network that"
            " always says so is right; look at how the masks were read"
        )
