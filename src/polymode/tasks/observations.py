"""Which likelihood targets of more axes than usual have: observations at positions, weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from polymode.core.checks import shown
from polymode.core.rows import Shapes
from polymode.core.warn import warn
from polymode.likelihoods.kinds import Bernoulli, Likelihood
from polymode.likelihoods.positions import Positions
from polymode.likelihoods.targets import NOT_OBSERVED

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
