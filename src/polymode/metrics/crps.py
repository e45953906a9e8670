r"""The continuous ranked probability score (CRPS) of mixtures, and of draws from a distribution.

.. math:: \mathrm{CRPS}(F, y) = \int (F(x) - 1[x \ge y])^2 dx
          = E|X - y| - \tfrac12 E|X - X'|, \qquad X, X' \sim F.

It is the absolute error made proper: for a point x it is |x - y|, and its expectation is smallest
for the true distribution. For a mixture of Gaussians both expectations are sums of

.. math:: A(\mu, \sigma) = E|N(\mu, \sigma^2)|
          = \mu\,\mathrm{erf}\frac{\mu}{\sqrt2\sigma}
          + \sigma\sqrt{\tfrac2\pi}\,e^{-\mu^2/2\sigma^2},

over samples for the first, over pairs of samples for the second (Grimit et al. 2006). For
Student-t and Laplace densities the integral is taken numerically, for counts it is a sum.
`S` samples, `B` batch, `D` outputs, `N` elements, that is examples times outputs.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from polymode.core.checks import OnlyTensor, check_call
from polymode.likelihoods.densities import Shape, has_moment, standard_cdf, standard_quantile
from polymode.likelihoods.targets import check_values
from polymode.metrics.regression import check_pair
from polymode.metrics.score import REGRESSION, NotDefined, Score, mean_score, register
from polymode.prediction import (
    CountPrediction,
    DensityPrediction,
    MappedPrediction,
    MixturePrediction,
    Prediction,
    QuantilePrediction,
)

_CHUNK = 2**16  # numbers computed at a time, 0.5 MB: they stay in the cache
_STEP = 1.0  # between cuts of the line, in the inverse hyperbolic sine of standard units
_POINTS = 8  # Gauss-Legendre points between two cuts
_TAIL = 3e-8  # probability beyond the outermost cuts; the integrand there is its square
_CELLS = 2**16  # in the table of the distribution function


@register(
    REGRESSION,
    "crps",
    title="CRPS",
    unit="units of y",
    direction="down",
    family="quality",
    headline=True,
    summary="squared distance between the predicted and the observed distribution function: an"
    " absolute error that is proper, in units of y",
)
def crps(prediction: Prediction, targets: Tensor) -> Score:
    r"""Return the mean CRPS of the mixture, in units of y, above 0.

    Exact for Gaussians, at a cost of :math:`S^2/2` pairs per element. For other densities accurate
    to about 1e-6 of its value; not defined for df <= 1, where :math:`E|X - y|` is
    infinite. Memory is bounded. `each` is the mean over outputs.

    Traps: the score of the mixture, never above the mean of the members' scores. It scales with y
    (see `standardise`), so of several outputs the one with the largest unit dominates; outputs are
    scored separately, so dependence between them does not matter. Libraries that score the members'
    means as if they were draws of y leave out the noise, and treat an ensemble of finite size as
    the full distribution (see `crps_from_samples`).

    Reference: E. P. Grimit, T. Gneiting, V. J. Berrocal, N. A. Johnson, The continuous ranked
    probability score for circular variables and its application to mesoscale forecast ensemble
    verification, Q. J. R. Meteorol. Soc. 132 (2006), equation 5; T. Gneiting, A. E. Raftery,
    Strictly proper scoring rules, prediction, and estimation, JASA 102 (2007).

    >>> from polymode.prediction import MixturePrediction
    >>> crps(MixturePrediction(torch.zeros(1, 1, 1), 1.0), torch.zeros(1, 1)).value
    0.23369...
    """
    check_call(crps, locals())
    mixture, targets = check_pair(prediction, targets, "crps")
    if isinstance(mixture, MappedPrediction):
        _require_mean(mixture.df)
        return mean_score(mixture.crps(targets).mean(1))
    return _score(mixture, targets, fair=False)


@register(
    REGRESSION,
    "fair_crps",
    title="fair CRPS",
    unit="units of y",
    direction="down",
    family="quality",
    epistemic=True,
    summary="CRPS corrected for the number of samples: what infinitely many of them would score",
)
def fair_crps(prediction: Prediction, targets: Tensor) -> Score:
    r"""Return the CRPS that a mixture of infinitely many such samples would have, on average.

    .. math:: \int (\bar F(x) - 1[x \ge y])^2 - \frac{1}{S - 1}\Big(\frac1S\sum_s F_s(x)^2 -
              \bar F(x)^2\Big) dx

    In units of y: only pairs of different samples enter, so its expectation over independent
    samples does not depend on S, and ensembles of different size can be compared. Never above
    `crps`; may be negative for one example. Needs two samples.

    Traps: samples of one mode are not independent of each other, so with several per mode the
    correction is too small; it scores the method, not the prediction that is made with S samples.

    Reference: C. A. T. Ferro, Fair scores for ensemble forecasts, Q. J. R. Meteorol. Soc. 140
    (2014), with densities in the place of points.
    """
    check_call(fair_crps, locals())
    mixture, targets = check_pair(prediction, targets, "fair_crps")
    if isinstance(mixture, MappedPrediction):
        raise NotDefined("a mapped prediction has no samples of its own")
    if mixture.num_samples < 2:
        raise NotDefined(f"needs >= 2 samples, got {mixture.num_samples}")
    return _score(mixture, targets, fair=True)


def crps_from_samples(samples: OnlyTensor, targets: Tensor, *, fair: bool = True) -> Score:
    r"""Return the mean CRPS, estimated from S draws of each predictive distribution.

    .. math:: \frac1S\sum_s |x_s - y| - \frac{1}{S(S-1)}\sum_{s<t} |x_s - x_t|

    In units of y, from 0. By sorting, in O(S log S) per element. Fair: its expectation over draws
    is the CRPS of their distribution, for every S. `fair=False` divides by :math:`S^2`: the exact
    CRPS of the S points, which as an estimate is too large by :math:`E|X - X'|/2S`. Many libraries,
    torchmetrics among them, use that form: for 10 standard normal draws it is 0.056 (10 %) too
    large, so that an ensemble improves merely by its size.

    Traps: the draws must be of y, noise included; members' means are not. `crps` needs no draws.

    Args:
        samples: (S, B) or (S, B, D) finite draws, in units of y; S >= 2 if fair.
        targets: (B,) or (B, D).
        fair: divide by S (S - 1) and not by S^2.

    Reference: C. A. T. Ferro, Fair scores for ensemble forecasts, Q. J. R. Meteorol. Soc. 140
    (2014).

    >>> crps_from_samples(torch.tensor([[0.0], [2.0]]), torch.tensor([1.0]), fair=False).value
    0.5
    """
    check_call(crps_from_samples, locals())
    shape = tuple(samples.shape)
    if not samples.is_floating_point() or len(shape) not in (2, 3) or 0 in shape:
        kind = f"{samples.dtype} {shape}"
        raise ValueError(f"`samples` must be floats of shape (S, B) or (S, B, D), got {kind}")
    num = len(samples)
    if fair and num < 2:
        raise ValueError(f"The fair CRPS needs at least 2 samples, got {num}; or `fair=False`.")
    if not samples.isfinite().all():
        wrong = int((~samples.isfinite()).sum())
        raise ValueError(f"`samples` must be finite, but {wrong} of {samples.numel()} are not")
    values = check_values(targets, 1 if len(shape) == 2 else shape[-1]).to(samples.device)
    if len(values) != shape[1]:
        raise ValueError(f"got {len(values)} target(s) for samples of {shape[1]} input(s)")
    errors = samples.detach().view(num, *values.shape).double() - values.double()
    ranks = torch.arange(1 - num, num, 2, dtype=torch.float64, device=errors.device)
    pairs = torch.tensordot(ranks, errors.sort(0).values, 1)  # sum of |x_s - x_t| over s < t
    scores = errors.abs().mean(0) - pairs / (num * (num - 1 if fair else num))
    return mean_score(scores.mean(1))


def _require_mean(df: Shape) -> None:
    if not has_moment(df, 1):
        raise NotDefined(f"no first moment: df = {df:g} <= 1")


def _score(mixture: DensityPrediction, targets: Tensor, *, fair: bool) -> Score:
    if isinstance(mixture, CountPrediction | QuantilePrediction):
        return mean_score(mixture.crps(targets, fair).mean(1))
    assert isinstance(mixture, MixturePrediction)
    df = mixture.df
    _require_mean(df)
    values, loc, scale = targets.flatten(), mixture.loc.flatten(1), mixture.scale.flatten(1)
    if df is None:
        scores = _gaussian(values, loc, scale, fair)
    else:
        scores = _student(values, loc, scale, df, fair)
    return mean_score(scores.view(targets.shape).mean(1))


@torch.no_grad()
def _gaussian(values: Tensor, loc: Tensor, scale: Tensor, fair: bool) -> Tensor:
    """Return the CRPS of Gaussian mixtures in closed form: (N,), (S, N), (S, N) -> (N,)."""
    columns = max(1, _CHUNK // len(loc))
    ys, locs, scales = (t.split(columns, -1) for t in (values, loc, scale))
    parts = zip(ys, locs, scales, strict=True)
    return torch.cat([_gaussian_part(y, lo, sc, fair) for y, lo, sc in parts])


def _gaussian_part(values: Tensor, loc: Tensor, scale: Tensor, fair: bool) -> Tensor:
    """Return the CRPS of a few elements; pairs (s, s + k mod S) are taken for one k at a time."""
    values, loc, scale = values.double(), loc.double(), scale.double()
    samples, variance = len(loc), scale.square()
    between = scale.sum(0) * (0.0 if fair else 2.0 / math.sqrt(math.pi))  # k = 0: A(0, √2 scale)
    for k in range(1, samples // 2 + 1):
        spread = (variance + variance.roll(k, 0)).sqrt_()
        pairs = _mean_distance(loc - loc.roll(k, 0), spread).sum(0)
        between += pairs if 2 * k == samples else 2.0 * pairs  # k and S - k are the same pairs
    return _mean_distance(values - loc, scale).mean(0) - between / (2 * samples * (samples - fair))


def _mean_distance(mean: Tensor, std: Tensor) -> Tensor:
    """Return E|Z| of a Gaussian Z."""
    z = mean / std
    near = z.square().mul_(-0.5).exp_().mul_(std).mul_(math.sqrt(2.0 / math.pi))
    return near.addcmul_(mean, z.mul_(math.sqrt(0.5)).erf_())


@torch.no_grad()
def _student(values: Tensor, loc: Tensor, scale: Tensor, df: Shape, fair: bool) -> Tensor:
    r"""Return the CRPS of Student-t mixtures by quadrature: (N,), (S, N), (S, N) -> (N,).

    The line is cut at y and at nodes of every component, in steps that are constant near it and
    proportional to the distance from it beyond, and each piece gets 8 Gauss-Legendre points:
    narrow components inside wide ones, and distant ones, cost no accuracy. Nodes are rounded to
    a power of two below their step, so that overlapping components share most of them: the cost
    is about 200 S evaluations per element (df = 5), not proportional to S^2.
    """
    reach = math.asinh(-standard_quantile(_TAIL, df))
    z = torch.linspace(-reach, reach, 2 + math.ceil(2 * reach / _STEP), dtype=torch.float64).sinh()
    z, table = z.to(loc.device), _table(df).to(loc.device)
    rows = max(1, _CHUNK // (2 * _POINTS * len(z) * len(loc)))
    ys, locs, scales = (t.split(rows) for t in (values.unsqueeze(-1), loc.T, scale.T))
    parts = zip(ys, locs, scales, strict=True)
    return torch.cat([_integral(y, (lo, sc), z, table, fair) for y, lo, sc in parts])


def _integral(
    values: Tensor, laws: tuple[Tensor, Tensor], z: Tensor, table: Tensor, fair: bool
) -> Tensor:
    """Return the integral for a few elements: (R, 1), (R, S) locations and scales -> (R,)."""
    values, loc, scale = values.double(), *(t.double().unsqueeze(-1) for t in laws)
    edges = _cuts(values, loc, scale, z)
    half = 0.5 * edges.diff(dim=-1).unsqueeze(-1)
    nodes, weights = (torch.as_tensor(t).to(half) for t in np.polynomial.legendre.leggauss(_POINTS))
    points = (edges[:, :-1, None] + half * (1.0 + nodes)).flatten(1)
    each = _look_up(table, (points.unsqueeze(1) - loc) / scale)
    below = each.mean(1)
    integrand = torch.where(points < values, below, 1.0 - below).square()
    if fair:
        integrand -= each.var(1, correction=1) / each.shape[1]
    return ((half * weights).flatten(1) * integrand).sum(-1)


def _cuts(values: Tensor, loc: Tensor, scale: Tensor, z: Tensor) -> Tensor:
    """Return increasing cuts (R, Q), y among them; the last is repeated in rows with fewer."""
    step = torch.exp2((_STEP * scale * (1.0 + z.square()).sqrt()).log2().floor())
    nodes = ((loc + scale * z) / step).round() * step
    edges = torch.cat([nodes.flatten(1), values], 1).sort(-1).values
    last = edges[:, -1:]
    again = torch.nn.functional.pad(edges.diff(dim=-1) == 0, (1, 0))
    count = int((~again).sum(-1).max())
    return torch.where(again, last, edges).sort(-1).values[:, :count]


@lru_cache(maxsize=4)
def _table(df: Shape) -> Tensor:
    """Return start and rise of the distribution function in cells of equal angle atan(z/2)."""
    angles = torch.linspace(-0.5 * math.pi, 0.5 * math.pi, _CELLS + 1, dtype=torch.float64)
    below = standard_cdf(2.0 * angles.tan(), df)
    return torch.stack([below[:-1], below.diff()])


def _look_up(table: Tensor, z: Tensor) -> Tensor:
    """Return the distribution function at z, linear in each cell; overwrites z."""
    place = z.mul_(0.5).atan_().add_(0.5 * math.pi).mul_(_CELLS / math.pi)
    cell = place.long().clamp_(0, _CELLS - 1)
    start, rise = table
    return rise.take(cell).mul_(place.sub_(cell)).add_(start.take(cell))
