r"""Densities on a line, Gaussian, Student-t or Laplace, and mixtures of S of them, weighted alike.

A component has the density :math:`q_s(y) = \varphi((y - \mu_s)/\sigma_s)/\sigma_s`, the mixture
:math:`p = \frac1S\sum_s q_s`. `df` None means Gaussian, a number the degrees of freedom of a
Student-t, "laplace" a Laplace density, :math:`\varphi(z) = \frac12 e^{-|z|}`.
`loc` and `scale` have shape (S, ...); each of the elements behind S is a mixture of its own.
`quantile` and `mutual_information` compute in float64 and carry no gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Shape = float | str | None
LAPLACE = "laplace"
HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
_LOG_2 = math.log(2.0)
_NEARLY_GAUSSIAN = 1e6  # from this df on, differences of (di/log)gammas are taken by their series
_CHUNK = 2**17  # densities evaluated at a time, 1 MB: they stay in the cache
_MOST_STEPS = 400  # of root finding; about 20 are usual, 62 the most seen
_LAPLACE_NODES = (0.0, 0.4, 0.9, 1.5, 2.3, 3.3, 4.6, 6.4, 9.0, 13.0, 20.0)
_GAUSSIAN_NODES = (-6.5, -3.6, -2.0, -0.7, 0.7, 2.0, 3.6, 6.5)


def has_moment(df: Shape, order: int) -> bool:
    """Return whether the mean (order 1) or the variance (2) is finite."""
    return not isinstance(df, float | int) or df > order


def moments(df: Shape) -> tuple[float, float]:
    """Return 1 if the mean exists, and the variance at scale 1; NaN and inf where they do not."""
    if df is None:
        return 1.0, 1.0
    if isinstance(df, str):
        return 1.0, 2.0
    if df <= 1.0:
        return math.nan, math.nan
    return 1.0, df / (df - 2.0) if df > 2.0 else math.inf


def student_log_norm(df: float) -> float:
    r"""Return :math:`\log\Gamma(\frac{\nu+1}2)-\log\Gamma(\frac\nu2)-\frac12\log\nu\pi`."""
    if df > _NEARLY_GAUSSIAN:
        return -HALF_LOG_2PI - 0.25 / df
    return math.lgamma(0.5 * df + 0.5) - math.lgamma(0.5 * df) - 0.5 * math.log(df * math.pi)


def log_density(values: Tensor, loc: Tensor, scale: Tensor, df: Shape) -> Tensor:
    """Return the log-density of each component, elementwise; the arguments broadcast."""
    z = (values - loc) / scale
    if isinstance(df, str):
        return -z.abs() - (scale.log() + _LOG_2)
    squares = z.square()
    if df is None:
        return -0.5 * squares - (scale.log() + HALF_LOG_2PI)
    return -0.5 * (df + 1.0) * torch.log1p(squares / df) - (scale.log() - student_log_norm(df))


def standard_entropy(df: Shape) -> float:
    """Return the differential entropy, in nats, of the component with scale 1."""
    if df is None:
        return HALF_LOG_2PI + 0.5
    if isinstance(df, str):
        return 1.0 + _LOG_2
    if df > _NEARLY_GAUSSIAN:
        return HALF_LOG_2PI + 0.5 + 1.0 / df
    upper, lower = torch.tensor([0.5 * df + 0.5, 0.5 * df], dtype=torch.float64).digamma().tolist()
    return 0.5 * (df + 1.0) * (upper - lower) - student_log_norm(df)


def standard_cdf(z: Tensor, df: Shape) -> Tensor:
    """Return the distribution function of scale 1; a Student-t carries no gradient."""
    if df is None:
        return 0.5 * torch.erfc(-math.sqrt(0.5) * z)  # torch.special.ndtr loses the lower tail
    if isinstance(df, str):
        tail = 0.5 * (-z.abs()).exp()
        return torch.where(z < 0, tail, 1.0 - tail)
    from scipy.special import stdtr

    values = stdtr(df, z.detach().double().cpu().numpy())
    return torch.as_tensor(values).to(z)


def standard_quantiles(probs: Tensor, df: Shape) -> Tensor:
    """Return the quantiles of scale 1 at probabilities in (0, 1), float64."""
    from scipy.special import ndtri, stdtrit

    if isinstance(df, str):
        levels = probs.detach().double()
        low, high = (2.0 * levels).log(), -(2.0 * (1.0 - levels)).log()
        return torch.where(levels < 0.5, low, high)
    values = probs.detach().double().cpu().numpy()
    return torch.as_tensor(ndtri(values) if df is None else stdtrit(df, values)).to(probs.device)


def standard_quantile(prob: float, df: Shape) -> float:
    """Return the quantile of scale 1 at `prob` in (0, 1)."""
    from scipy.special import ndtri, stdtrit

    if isinstance(df, str):
        return math.log(2.0 * prob) if prob < 0.5 else -math.log(2.0 * (1.0 - prob))
    z = float(ndtri(prob) if df is None else stdtrit(df, prob))
    if not math.isfinite(z):
        raise ValueError(f"The quantile at {prob} with df = {df} is beyond the range of float64.")
    return z


def standard_noise(shape: torch.Size, df: Shape, random: torch.Generator) -> Tensor:
    """Return draws of scale 1, float64; a Student-t is a Gaussian over the root of a chi-square."""
    if isinstance(df, str):  # a difference of two exponentials
        first, second = torch.rand((2, *shape), generator=random, dtype=torch.float64)
        return torch.log1p(-second) - torch.log1p(-first)
    noise = torch.randn(shape, generator=random, dtype=torch.float64)
    if df is None:
        return noise
    halves = torch.full(shape, 0.5 * df, dtype=torch.float64)
    return noise / (torch._standard_gamma(halves, generator=random) / (0.5 * df)).sqrt()


def cdf(values: Tensor, loc: Tensor, scale: Tensor, df: Shape) -> Tensor:
    """Return P(Y <= values) under the mixture, for values of the shape behind S."""
    return standard_cdf((values - loc) / scale, df).mean(0)


@torch.no_grad()
def quantile(prob: float | Tensor, loc: Tensor, scale: Tensor, df: Shape) -> Tensor:
    r"""Return the y at which the mixture's distribution function is `prob`, in (0, 1).

    `prob` is one number, or a tensor that broadcasts with the axes behind S.

    The root lies between the smallest and the largest of the components' own quantiles. It is found
    by Chandrupatla's method, to 1e-8 of the smallest scale. With n components to the left of y the
    equation is solved as

    .. math:: (n - S\,prob) + \sum_{right} F_s(y) - \sum_{left} (1 - F_s(y)) = 0,

    in which no tail is added to a one: far quantiles keep their relative accuracy, and the median
    of two distant components is where their tails balance, not at the edge of the gap.

    Reference: Chandrupatla, A new hybrid quadratic/bisection algorithm, Adv. Eng. Softw. 28, 1997.
    """
    loc, scale = loc.double(), scale.double()
    samples = len(loc)
    if isinstance(prob, Tensor):
        prob = prob.to(loc)
        centre: Any = standard_quantiles(prob, df)
    else:
        centre = standard_quantile(prob, df)

    def excess(y: Tensor) -> Tensor:
        z = (y - loc) / scale
        left, tail = z >= 0, standard_cdf(-z.abs(), df)
        return (left.sum(0, dtype=z.dtype) - samples * prob) + torch.where(left, -tail, tail).sum(0)

    slack = 1e-6 * (1.0 + abs(centre))  # covers the error of `centre` itself
    low = (loc + scale * (centre - slack)).amin(0)
    high = (loc + scale * (centre + slack)).amax(0)
    return find_root(excess, low, high, 1e-8 * scale.amin(0))


def partial_mean(values: Tensor, loc: Tensor, scale: Tensor, df: Shape) -> Tensor:
    r"""Return :math:`\int_{-\infty}^{y} x\,p(x)\,dx` of the mixture, 0 at -inf and the mean at inf.

    A component adds :math:`\mu F(z) - \sigma h(z)` with the standard density f and
    :math:`h = f` (Gaussian), :math:`h = f\,(\nu + z^2)/(\nu - 1)` (Student-t, df > 1) or
    :math:`h = f\,(1 + |z|)` (Laplace).
    """
    z = (values - loc) / scale
    if isinstance(df, str):
        tail = 0.5 * (1.0 + z.abs()) * (-z.abs()).exp()
        edge = torch.where(z.isfinite(), tail, 0.0)
        return (loc * standard_cdf(z, df) - scale * edge).mean(0)
    log_f = log_density(z, torch.zeros_like(z), torch.ones_like(z), df)
    if df is not None:
        log_f = log_f + ((df + z.square()) / (df - 1.0)).log()
    edge = torch.where(z.isfinite(), log_f.exp(), 0.0)
    return (loc * standard_cdf(z, df) - scale * edge).mean(0)


def find_root(
    function: Callable[[Tensor], Tensor], a: Tensor, b: Tensor, absolute: Tensor
) -> Tensor:
    """Return a root in each bracket [a, b]: Chandrupatla's method on all elements at once."""
    f_a, f_b = function(a), function(b)
    fraction = torch.full_like(a, 0.5)
    for _ in range(_MOST_STEPS):
        x = a + fraction * (b - a)
        f_x = function(x)
        same = f_x.sign() == f_a.sign()
        c, f_c = torch.where(same, a, b), torch.where(same, f_a, f_b)
        b, f_b = torch.where(same, b, a), torch.where(same, f_b, f_a)
        a, f_a = x, f_x
        width, tolerance = (b - a).abs(), absolute + 1e-15 * torch.maximum(a.abs(), b.abs())
        if ((width <= tolerance) | (f_a == 0) | (f_b == 0)).all():
            break
        xi, phi = (a - b) / (c - b), (f_a - f_b) / (f_c - f_b)
        interpolate = (phi**2 < xi) & ((1.0 - phi) ** 2 < 1.0 - xi)
        first = f_a / (f_b - f_a) * f_c / (f_b - f_c)
        second = (c - a) / (b - a) * f_a / (f_c - f_a) * f_b / (f_c - f_b)
        edge = (0.5 * tolerance / width).clamp(max=0.5)  # a step of at least half the tolerance
        fraction = torch.where(interpolate, first + second, 0.5).clamp(edge, 1.0 - edge)
    return torch.where(f_a.abs() < f_b.abs(), a, b)


@torch.no_grad()
def mutual_information(loc: Tensor, scale: Tensor, df: Shape) -> Tensor:
    r"""Return the mutual information of y and the component index, in nats, in [0, log S].

    .. math:: I = \int \frac1S\sum_s q_s\log q_s - p\log p \; dy = H[p] - \frac1S\sum_s H[q_s].

    The integrand is never negative and vanishes where the components agree, so small values keep
    their relative accuracy. The line is cut at nodes of every component, in multiples of its own
    scale, and each piece gets three-point Gauss-Legendre quadrature: components that are narrow
    inside wide ones, or far from all others, cost no accuracy. The error is below 1e-4 nats. The
    cost is 24 S^2 densities an element (Gaussian), 100 S^2 for df = 3, more the heavier the tails.

    Args:
        loc: (S, B, D) locations.
        scale: (S, B, D) scales > 0.
        df: degrees of freedom, None for Gaussian.

    Returns:
        (B, D) float64.
    """
    samples, shape = len(loc), loc.shape[1:]
    z = _nodes(df).to(loc.device)
    rows = max(1, _CHUNK // (3 * samples * samples * len(z)))
    locs, scales = (t.double().flatten(1).T.contiguous().split(rows) for t in (loc, scale))
    parts = [_information(lo, sc, df, z) for lo, sc in zip(locs, scales, strict=True)]
    return torch.cat(parts).clamp(0.0, math.log(samples)).view(shape)


def _information(loc: Tensor, scale: Tensor, df: Shape, z: Tensor) -> Tensor:
    """Return the mutual information of a few mixtures, (R, S) -> (R,)."""
    loc, scale = loc.unsqueeze(-1), scale.unsqueeze(-1)
    edges = (loc + scale * z).flatten(1).sort(-1).values
    half = 0.5 * edges.diff(dim=-1)
    points = torch.cat([edges[:, :-1] + half * (1.0 + x) for x in (-(0.6**0.5), 0.0, 0.6**0.5)], -1)
    weights = torch.cat([half * (5 / 9), half * (8 / 9), half * (5 / 9)], -1)
    logs = log_density(points.unsqueeze(1), loc, scale, df).clamp_(min=-1e4)
    densities = logs.exp()
    mixture = densities.mean(1)
    integrand = densities.mul_(logs).mean(1) - torch.special.xlogy(mixture, mixture)
    return (weights * integrand).sum(-1)


def _nodes(df: Shape) -> Tensor:
    """Return where to cut a component of scale 1; 1e-10 (Gaussian), 2e-9 (Laplace) or 2e-7 of it
    lie outside."""
    if df is None:
        return torch.tensor(_GAUSSIAN_NODES, dtype=torch.float64)
    if isinstance(df, str):  # 0 is the kink
        half = torch.tensor(_LAPLACE_NODES, dtype=torch.float64)
        return torch.cat([-half.flip(0), half[1:]])
    reach = math.asinh(-standard_quantile(1e-7, df))
    return torch.linspace(-reach, reach, 2 + math.ceil(reach / 0.2), dtype=torch.float64).sinh()
