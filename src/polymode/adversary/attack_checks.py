"""Checks of the arguments of `attack`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from polymode.adversary.ball import NORMS, Box
from polymode.adversary.movable import Movable, movable_of
from polymode.core.checks import as_numbers, is_number, shown
from polymode.core.registry import suggest
from polymode.core.warn import warn
from polymode.likelihoods.scaling import Scaling
from polymode.likelihoods.targets import check_labels
from polymode.posterior import Posterior

_CLEARLY = 0.25  # by how much scaled inputs must be nearer to mean 0 and deviation 1


def check_choice(name: str, value: Any, choices: Sequence[Any]) -> None:
    """Refuse a value that is not one of the choices."""
    if value not in choices:
        words = [choice for choice in choices if choice is not None]
        near = suggest(str(value), words)
        raise ValueError(f"`{name}` must be one of {', '.join(words)}, got {shown(value)}.{near}")


def check_number(name: str, value: Any, *, zero: bool = False, infinite: bool = False) -> None:
    """Refuse values that are not numbers > 0 (≥ 0 with `zero`), finite unless `infinite`."""
    number = isinstance(value, Real) and not isinstance(value, bool)
    fits = number and (value > 0 or (zero and value == 0)) and (infinite or math.isfinite(value))
    if not fits:
        what = f"a {'' if infinite else 'finite '}number {'>=' if zero else '>'} 0"
        raise ValueError(f"`{name}` of an attack must be {what}, got {shown(value)}")


def check_posterior(post: Posterior) -> None:
    """Refuse posteriors that do not predict one class per input."""
    if not post.likelihood.classification:
        raise ValueError(
            f"attacks are on predicted classes, and this posterior ({post.method}) is of a"
            f" regression ({post.likelihood.name})"
        )
    if post.likelihood.num_axes:
        raise ValueError(
            "attacks are on one class per input, and this posterior predicts at positions (pixels,"
            " tokens, labels); follow the gradient of post.predict_batch(x).log_prob(y)"
        )


def check_inputs(
    post: Posterior, x: Any, y: Any, norm: str, scaling: Scaling | None
) -> tuple[Movable, Tensor]:
    """Return inputs and labels on the posterior's device, or raise what is wrong with them."""
    check_posterior(post)
    check_choice("norm", norm, NORMS)
    movable = movable_of(post, x)
    if movable.is_whole:
        start = _one_tensor(post, movable.start)
        movable = Movable(start, start)
    labels = check_labels(y, post.target_size).to(movable.start.device)
    if len(labels) != len(movable.start):
        raise ValueError(f"{len(labels):,} label(s) for {len(movable.start):,} input(s)")
    if scaling is not None and not isinstance(scaling, Scaling):
        raise ValueError(f"`scaling` must be a Scaling or None, got {type(scaling).__name__}")
    if scaling is not None and not movable.is_whole:
        raise ValueError(
            "`scaling` is of one tensor of raw inputs, and this attack moves"
            f" {_moved(movable)}; give inputs as the networks take them and scaling=None"
        )
    return movable, labels


def _moved(movable: Movable) -> str:
    if movable.embedding is not None:
        return f"the output of the {movable.space}"
    return "several inputs"


def _one_tensor(post: Posterior, x: Tensor) -> Tensor:
    """Return inputs of one tensor on the posterior's device, checked."""
    shape = post.input_shape
    if tuple(x.shape[1:]) != tuple(shape) or len(x) == 0:
        raise ValueError(
            f"inputs have shape {tuple(x.shape)}; this posterior was fitted on (N,"
            f" {', '.join(map(str, shape))}), N >= 1"
        )
    like = post.weights.like
    x = x.detach().to(like.device, like.dtype, copy=True)
    if rows := int((~x.flatten(1).isfinite().all(1)).sum()):
        raise ValueError(f"{rows:,} of {len(x):,} inputs hold NaN or infinity")
    return x


def warn_of_raw_inputs(post: Posterior, x: Tensor) -> None:
    """Warn of inputs that look unscaled although the networks were trained on scaled ones.

    Scaled training inputs have mean 0 and standard deviation 1; whichever of x and scaling(x) is
    nearer to that, by mean² + log² of the standard deviation, counts as scaled.
    """
    scaling = post.input_scaling
    if scaling is None:
        return
    as_given, if_scaled = _distance(x), _distance(scaling(x))
    if math.isfinite(if_scaled) and as_given > if_scaled + _CLEARLY:
        warn(
            f"inputs of mean {x.mean():.3g} and standard deviation {x.std(correction=0):.3g} go to"
            f" the networks as they are, but these were trained on scaled ones, and scaled they"
            f" would have {scaling(x).mean():.3g} and {scaling(x).std(correction=0):.3g}; give"
            " scaling=post.input_scaling"
        )


def _distance(x: Tensor) -> float:
    """Return the distance of the inputs from mean 0 and standard deviation 1."""
    std, mean = torch.std_mean(x.double(), correction=0)
    return float(mean**2 + std.log() ** 2)


def check_box(movable: Movable, box: Box | None, eps: float) -> None:
    """Refuse a box that is not a pair or does not contain the inputs, and unbounded attacks."""
    x = movable.start
    if box is None:
        if not math.isfinite(eps):
            raise ValueError("`eps` is inf and there is no `box`: nothing bounds the attack")
        return
    if movable.embedding is not None:
        raise ValueError(
            f"`box` is a range of legal inputs, and the {movable.space} has none: its output moves,"
            f" by at most `eps`; give box=None, got {shown(box)}"
        )
    pair = isinstance(box, tuple | list) and len(box) == 2 and all(map(is_number, box))
    if not pair or not box[0] < box[1]:
        raise ValueError(
            f"`box` must be (smallest, largest), got {shown(box)}: two numbers for all channels;"
            " for limits of each channel give raw inputs and `scaling`"
        )
    low, high = box
    outside = (x < low) | (x > high)
    if outside.any():
        raise ValueError(
            f"{int(outside.flatten(1).any(1).sum()):,} of {len(x):,} inputs leave the box"
            f" [{low:g}, {high:g}]: they lie in [{x.min():.4g}, {x.max():.4g}]; give raw inputs and"
            " their `scaling`, the right `box`, or box=None"
        )


def check_targets(targets: Any, labels: Tensor, num_classes: int) -> Tensor | None:
    """Return target classes (N,), none of them the label, or None for no targets."""
    if targets is None:
        return None
    wanted = as_numbers("`targets`", targets)
    wanted = wanted.expand(len(labels)) if wanted.dim() == 0 else wanted
    try:
        wanted = check_labels(wanted, num_classes).to(labels.device)
    except ValueError as error:
        raise ValueError(f"`targets` of an attack: {error}") from None
    if len(wanted) != len(labels):
        raise ValueError(f"{len(wanted):,} target(s) for {len(labels):,} label(s)")
    same = (wanted == labels).nonzero().flatten()
    if len(same):
        raise ValueError(
            f"{len(same):,} of {len(labels):,} targets are the label itself, the first in row"
            f" {int(same[0])} (class {int(wanted[same[0]])}); leave these examples out"
        )
    return wanted.contiguous()
