r"""Distances between a prediction and that of a reference posterior, per input; no targets.

Classes: with the mixtures :math:`\bar p_n` and :math:`\bar p^*_n` of the prediction and of the
reference, `agreement` and `total_variation`. Densities: with the quantile functions :math:`Q_n` and
:math:`Q^*_n` of the two mixtures,

.. math:: W_1 = \int_0^1 |Q - Q^*| \, du = \int |F - F^*| \, dy, \qquad
          W_2 = \Big(\int_0^1 (Q - Q^*)^2 \, du\Big)^{1/2},

for each output separately. The mixtures' distribution functions are computed on nodes placed by
their components, so nothing is sampled; the error is below 1 % of the smaller scale.

The NeurIPS 2021 competition on approximate inference reports `scipy`'s `wasserstein_distance` of
1,000 samples per input, which is W1, and calls it W2. Samples of two equal distributions then have
a distance of about :math:`\sigma / \sqrt{1000}`; here it is 0.

`S` samples, `B` batch, `C` classes, `D` outputs.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from polymode.core.checks import check_call
from polymode.likelihoods import densities
from polymode.metrics.score import (
    REFERENCE_CLASSIFICATION,
    REFERENCE_REGRESSION,
    Score,
    mean_score,
    register,
)
from polymode.prediction import CategoricalPrediction, MixturePrediction, Prediction

NODES = 400  # at which distribution functions are computed
LEVELS = 1000  # at which quantile functions are compared
REACH = 6.0  # scales on either side of a component
FEWEST = 13  # nodes of a component, at least
HELD = 2**23  # densities in memory at a time, 64 MB
_of_classes = partial(register, REFERENCE_CLASSIFICATION, family="reference")
_distance = partial(
    register, REFERENCE_REGRESSION, unit="units of y", direction="down", family="reference"
)


@_of_classes(
    "agreement",
    title="agreement",
    unit="fraction",
    direction="up",
    summary="share of inputs for which the reference names the same most probable class",
)
def agreement(prediction: Prediction, reference: Prediction) -> Score:
    r"""Return :math:`\frac1B\sum_n 1[\arg\max \bar p_n = \arg\max \bar p^*_n]`.

    Traps: where the reference is nearly undecided, small errors change the class; two predictions
    may agree everywhere and differ widely in confidence, see `total_variation`.
    Reference: P. Izmailov et al., What are Bayesian neural network posteriors really like?, 2021.
    """
    check_call(agreement, locals())
    ours, theirs = _probs(prediction, reference, "agreement")
    return mean_score((ours.argmax(1) == theirs.argmax(1)).double())


@_of_classes(
    "total_variation",
    title="total variation",
    unit="probability",
    direction="down",
    summary="half the sum over classes of the distance to the reference's probabilities",
)
def total_variation(prediction: Prediction, reference: Prediction) -> Score:
    r"""Return :math:`\frac1B\sum_n \frac12\sum_c |\bar p_{nc} - \bar p^*_{nc}|`, in [0, 1].

    Reference: P. Izmailov et al., 2021.
    """
    check_call(total_variation, locals())
    ours, theirs = _probs(prediction, reference, "total_variation")
    return mean_score(0.5 * (ours - theirs).abs().sum(1))


@_of_classes(
    "w1_top",
    title="W1 of p",
    unit="probability",
    direction="down",
    summary="Wasserstein-1 distance between the spreads, over samples, of the probability of the"
    " reference's most probable class",
)
def w1_top(prediction: Prediction, reference: Prediction) -> Score:
    r"""Return :math:`\frac1B\sum_n W_1(p_{\cdot n c_n}, p^*_{\cdot n c_n})`, in [0, 1].

    :math:`c_n` is the reference's most probable class, and the two distributions are those of its
    probability over the samples of each side. `total_variation` compares means alone; here it
    counts, too, how much the samples disagree.
    """
    check_call(w1_top, locals())
    _probs(prediction, reference, "w1_top")
    top = reference.mean.argmax(1)
    sides = []
    for side in (prediction, reference):
        assert isinstance(side, CategoricalPrediction)
        chosen = top.expand(side.num_samples, -1).unsqueeze(-1)
        sides.append(side.log_probs.detach().gather(2, chosen).squeeze(-1).double().exp())
    return mean_score(_w1_of_samples(*sides))


def _w1_of_samples(ours: Tensor, theirs: Tensor) -> Tensor:
    """Return W1 between the columns of two sets of samples, (S, B) and (S', B): exact, (B,)."""
    nodes = torch.cat([ours, theirs]).sort(0).values.mT.contiguous()  # (B, S + S')
    shares = [
        torch.searchsorted(side.sort(0).values.mT.contiguous(), nodes, right=True) / len(side)
        for side in (ours, theirs)
    ]
    gaps = (shares[0] - shares[1]).abs()[:, :-1]
    return (gaps * nodes.diff(dim=1)).sum(1)


@_distance(
    "w1",
    title="W1",
    summary="Wasserstein-1 distance of the predictive density to the reference's, mean over inputs",
)
def w1(prediction: Prediction, reference: Prediction) -> Score:
    """Return W1, averaged over outputs and inputs, in units of y."""
    check_call(w1, locals())
    return mean_score(_distances(prediction, reference, "w1")[0])


@_distance(
    "w2",
    title="W2",
    summary="Wasserstein-2 distance of the predictive density to the reference's, mean over inputs",
)
def w2(prediction: Prediction, reference: Prediction) -> Score:
    """Return W2, averaged over outputs and inputs, in units of y; ≥ `w1`.

    Traps: tails weigh with their square; a prediction without moments (Student-t with df <= 2) has
    no finite W2, and the value returned covers the part within six scales only.
    """
    check_call(w2, locals())
    return mean_score(_distances(prediction, reference, "w2")[1])


def _probs(prediction: Prediction, reference: Prediction, name: str) -> tuple[Tensor, Tensor]:
    for side in (prediction, reference):
        if not isinstance(side, CategoricalPrediction):
            raise ValueError(f"`{name}` takes predictions of classes; of densities use `w1`, `w2`")
    ours, theirs = prediction.mean.detach().double(), reference.mean.detach().double()
    _check_shapes(ours, theirs, name)
    return ours, theirs


def _check_shapes(ours: Tensor, theirs: Tensor, name: str) -> None:
    if ours.shape != theirs.shape:
        raise ValueError(
            f"`{name}` compares two predictions of the same inputs, got {tuple(ours.shape)} and"
            f" {tuple(theirs.shape)}: predict the same inputs with both"
        )


@torch.no_grad()
def _distances(prediction: Prediction, reference: Prediction, name: str) -> tuple[Tensor, Tensor]:
    """Return W1 and W2 of each input, (B,), means over outputs."""
    if not isinstance(prediction, MixturePrediction) or not isinstance(
        reference, MixturePrediction
    ):
        raise ValueError(
            f"`{name}` takes predictions of densities; of classes use `agreement`,"
            " `total_variation`"
        )
    _check_shapes(prediction.mean, reference.mean, name)
    shape = prediction.loc.shape[1:]
    samples = max(prediction.num_samples, reference.num_samples)
    rows = max(1, HELD // (samples * NODES))
    parts = [
        [t.double().flatten(1).split(rows, 1) for t in (side.loc, side.scale)]
        for side in (prediction, reference)
    ]
    distances: list[Tensor] = []
    for our_loc, our_scale, loc, scale in zip(*parts[0], *parts[1], strict=True):
        mixtures = (our_loc, our_scale, prediction.df), (loc, scale, reference.df)
        nodes = _nodes(mixtures)  # (NODES, R)
        ours, theirs = (
            densities.standard_cdf((nodes - m[:, None]) / s[:, None], df).mean(0)
            for m, s, df in mixtures
        )
        distances.append(torch.stack([_w1(nodes, ours, theirs), _w2(nodes, ours, theirs)]))
    means = torch.cat(distances, 1).unflatten(1, shape).mean(-1)
    return means[0], means[1]


def _nodes(mixtures: tuple[tuple[Tensor, Tensor, densities.Shape], ...]) -> Tensor:
    """Return increasing nodes that cover the mass of both mixtures, (NODES, R)."""
    places = []
    for loc, scale, _ in mixtures:
        number = max(FEWEST, 2 * NODES // len(loc))
        even = torch.linspace(-1, 1, number, dtype=loc.dtype, device=loc.device)[:, None, None]
        nodes = (loc + REACH * even * even.abs().sqrt() * scale).flatten(0, 1).sort(0).values
        chosen = (
            torch.linspace(0, len(nodes) - 1, NODES // 2, dtype=loc.dtype, device=loc.device)
            .round()
            .long()
        )
        places.append(nodes[chosen])
    return torch.cat(places).sort(0).values


def _w1(nodes: Tensor, ours: Tensor, theirs: Tensor) -> Tensor:
    """Return ∫ |F − F*| dy by the trapezoidal rule, (R,)."""
    return torch.trapezoid((ours - theirs).abs(), nodes, dim=0)


def _w2(nodes: Tensor, ours: Tensor, theirs: Tensor) -> Tensor:
    """Return the root of ∫ (Q − Q*)² du at midpoints of equal levels, (R,)."""
    levels = (torch.arange(LEVELS, dtype=nodes.dtype, device=nodes.device) + 0.5) / LEVELS
    inner = levels.expand(nodes.shape[1], -1).contiguous()
    quantiles = [_inverse(nodes.T.contiguous(), f.T.contiguous(), inner) for f in (ours, theirs)]
    return (quantiles[0] - quantiles[1]).square().mean(1).sqrt()


def _inverse(nodes: Tensor, values: Tensor, levels: Tensor) -> Tensor:
    """Return where rows of an increasing function, linear between nodes, reach these levels."""
    right = torch.searchsorted(values, levels).clamp(1, values.shape[1] - 1)
    low, high = values.gather(1, right - 1), values.gather(1, right)
    share = ((levels - low) / (high - low).clamp_min(1e-300)).clamp(0, 1)
    return torch.lerp(nodes.gather(1, right - 1), nodes.gather(1, right), share)
