"""How symmetric predictions are: metrics of predictions along orbits.

All functions take predictions at g x: elements g along the first axis |G|, element 0 the identity,
inputs x along the second. For an ensemble, these are the predictions of the *ensemble*: the mean of
the members' probabilities, or of their outputs in a regression (`mean_of_members`). Logits are
never averaged, which would be another predictor.

Where the group moves outputs, `group` is given, and predictions at g x are compared with ρ(g) f(x).
`S` members, `G` = |G| elements, `B` inputs, `C` classes, `K` outputs.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from polymode.equivariance.groups import Group


def mean_of_members(log_probs: Tensor) -> Tensor:
    """Return the log of the mean of the members' probabilities, (S, G, B, C) -> (G, B, C)."""
    return log_probs.logsumexp(0) - math.log(len(log_probs))


def same_predictions(scores: Tensor, group: Group | None = None) -> Tensor:
    """Return OSP(x) = #{g : the class at g x is that at x}, (B,); from 1 to |G|.

    Gerken & Kessel 2024. A constant predictor has |G|: show the accuracy beside it.

    Args:
        scores: (G, B, C) whatever is largest at the predicted class.
        group: only where its action permutes classes; then the class at g x should be the
            moved class at x.

    >>> same_predictions(torch.tensor([[[0.9, 0.1]], [[0.6, 0.4]], [[0.2, 0.8]]]))
    tensor([2])
    """
    classes = _orbit(scores, 3).argmax(-1)
    expected = classes[:1] if group is None else group.orbit_of_outputs(classes[0])
    return (classes == expected).sum(0)


def chance_level(order: int, num_classes: int) -> float:
    """Return the mean OSP of independent, uniform predictions, 1 + (|G| − 1) / C.

    >>> chance_level(4, 10)
    1.3
    """
    return 1 + (order - 1) / num_classes


def symmetrised_kl(log_probs: Tensor) -> Tensor:
    """Return KL(p_x ‖ p_gx) + KL(p_gx ‖ p_x) for each g but the identity, (G − 1, B), in nats.

    For invariant outputs. Infinite where only one of them is 0 for a class.
    """
    log_probs = _orbit(log_probs, 3)
    first, moved = log_probs[:1], log_probs[1:]
    gaps = (first.exp() - moved.exp()) * (first - moved)
    # equal values, both zeros included, add nothing, where a difference of infinities is nan
    return torch.where(first == moved, 0.0, gaps).sum(-1)


class Deviation(NamedTuple):
    """Spread along orbits.

    Attributes:
        absolute: mean over x of the standard deviation over g, in the units of the outputs.
        relative: that over the rms over x of the orbit's mean; the plain mean would make the ratio
            explode where outputs average to 0.
        each: (B,) the standard deviations.
    """

    absolute: float
    relative: float
    each: Tensor


def orbit_deviation(values: Tensor, group: Group | None = None) -> Deviation:
    """Return the standard deviation of predictions over the orbit, 1/|G| in the variance.

    .. math:: s(x)^2 = \\frac1{|G|} \\sum_g \\| ρ(g)^{-1} f(g x) - \\bar f(x) \\|^2, \\qquad
              rsd = \\overline{s(x)} \\Big/ \\sqrt{\\overline{\\| \\bar f(x) \\|^2}}

    Args:
        values: (G, B) or (G, B, K): outputs or probabilities.
        group: where it moves outputs; it must be closed, as inverses are needed.

    >>> one = orbit_deviation(torch.tensor([[1.0, 3.0], [3.0, 3.0]]))
    >>> one.absolute, round(one.relative, 4)
    (0.5, 0.1961)
    """
    values = _orbit(values, 2).double()
    values = values[..., None] if values.ndim == 2 else values
    if group is not None and not group.invariant:
        back = [group.act_on_outputs(v, group.inverse(i)) for i, v in enumerate(values)]
        values = torch.stack(back)
    values = values.flatten(2)
    middle = values.mean(0)
    deviations = (values - middle).square().sum(-1).mean(0).sqrt()
    size = middle.square().sum(-1).mean().sqrt()
    absolute = deviations.mean().item()
    return Deviation(absolute, absolute / size.item() if size > 0 else math.nan, deviations)


def equivariance_error(values: Tensor, group: Group | None = None) -> float:
    """Return the mean over x and g ≠ 1 of ‖f(g x) − ρ(g) f(x)‖ over the mean over x and g of ‖f‖.

    Args:
        values: (G, B) or (G, B, K). group: None for invariance.
    """
    values = _orbit(values, 2).double()
    values = values[..., None] if values.ndim == 2 else values
    moved = group is not None and not group.invariant
    expected = group.orbit_of_outputs(values[0]) if group is not None and moved else values[:1]
    gaps = (values - expected).flatten(2).norm(dim=-1)
    size = values.flatten(2).norm(dim=-1).mean()
    return (gaps[1:].mean() / size).item() if len(values) > 1 and size > 0 else math.nan


class Score(NamedTuple):
    """A value; if it is a mean over inputs, its standard error; and the number of inputs."""

    value: float
    standard_error: float | None
    n: int


def class_scores(log_probs: Tensor, labels: Tensor | None = None) -> dict[str, Score]:
    """Return the orbit metrics of one predictor of classes that should be invariant, by name.

    `same_predictions` (OSP), `same_share` (OSP / |G|), `chance` (of OSP), `kl` and `largest_kl`
    (symmetrised, nats), `deviation` and `relative_deviation` (of probabilities), `error`
    (equivariance error of probabilities); with labels `accuracy` (at x itself) and
    `orbit_accuracy` (at all g x).

    Args:
        log_probs: (G, B, C) of one network, or of an ensemble as a whole. labels: (B,) or None.
    """
    log_probs = _orbit(log_probs, 3)
    order, number, classes = log_probs.shape
    same, probs = same_predictions(log_probs).double(), log_probs.exp()
    spread = orbit_deviation(probs)
    kl = symmetrised_kl(log_probs.double())
    scores = {
        "same_predictions": _mean(same),
        "same_share": _mean(same / order),
        "chance": Score(chance_level(order, classes), None, number),
        "deviation": _mean(spread.each),
        "relative_deviation": Score(spread.relative, None, number),
        "error": Score(equivariance_error(probs), None, number),
    }
    if order > 1:
        scores["kl"] = _mean(kl.mean(0))
        scores["largest_kl"] = Score(kl.max().item(), None, number)
    if labels is not None:
        right = (log_probs.argmax(-1) == labels.to(log_probs.device)).double()
        scores["accuracy"] = _mean(right[0])
        scores["orbit_accuracy"] = _mean(right.mean(0))
    return scores


def value_scores(values: Tensor, group: Group) -> dict[str, Score]:
    """Return the orbit metrics of one predictor of values: `deviation`, `relative_deviation`
    (where the group is closed or outputs stay) and `error`.

    Args:
        values: (G, B, K) outputs. group: whose action on outputs they should follow.
    """
    number = values.shape[1]
    scores = {"error": Score(equivariance_error(values, group), None, number)}
    if group.invariant or group.closed:
        spread = orbit_deviation(values, group)
        scores["deviation"] = _mean(spread.each)
        scores["relative_deviation"] = Score(spread.relative, None, number)
    return scores


def _mean(values: Tensor) -> Score:
    error = values.std().item() / math.sqrt(len(values)) if len(values) > 1 else None
    return Score(values.mean().item(), error, len(values))


def _orbit(values: Tensor, least: int) -> Tensor:
    if values.ndim < least or 0 in values.shape:
        axes = "(G, B, C)" if least == 3 else "(G, B) or (G, B, K)"
        raise ValueError(f"predictions along orbits must be {axes}, got {tuple(values.shape)}")
    return values
