r"""The evidence at the trained weights, and the prior that makes it largest.

.. math:: \log p(D) \approx \log p(D \mid \tilde\theta) - \tfrac12 \left(\log\det H
          - \log\det\Lambda + \tilde\theta^\top \Lambda \tilde\theta\right), \qquad
          H = C + \Lambda

MacKay's fixed point per group, with γ_g = Σ l / (l + λ_g) over the eigenvalues l of its curvature,

.. math:: \lambda_g \leftarrow \gamma_g / \|\tilde\theta_g\|^2, \qquad
          \sigma^2 \leftarrow \frac{\sum_n \|y_n - f_n\|^2}{N D - \sum_g \gamma_g}

costs as much as there are eigenvalues. The noise is found where the likelihood learns it.

Limits: networks are rarely at the optimum of the linear model that H describes, so λ comes out too
small (Antorán et al., ICML 2022); `evidence="linear"` takes that optimum.
Reference: D. MacKay, Bayesian interpolation, Neural Computation 4(3), 1992.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from polymode.core.linalg.blocks import Precision
from polymode.core.modules import Tensors
from polymode.methods.laplace.curvature import Curvature
from polymode.methods.laplace.gaussian import GaussianPosterior

_MOST, _LEAST = 1e10, 1e-10  # where data say nothing of a group, λ would grow without end
_STEPS, _CLOSE = 500, 1e-7


class Chosen(NamedTuple):
    """A prior that was found.

    Attributes:
        precision: λ of each group. factor: σ₀² / σ², of the noise that the curvature was made with
            and the one that was found. log_evidence: there, nats. steps: until it stood.
    """

    precision: dict[str, float]
    factor: float
    log_evidence: float
    steps: int


def by_parameter(groups: Mapping[str, str], values: Mapping[str, float], like: Tensor) -> Tensors:
    """Return one number per group as one per parameter."""
    return {name: torch.tensor(values[group]).to(like) for name, group in groups.items()}


def log_evidence(
    curvature: Curvature, params: Tensors, precision: Precision, factor: Tensor | float = 1.0
) -> Tensor:
    """Return the log evidence at the weights `params`, differentiable in λ and the noise.

    Args:
        params: the trained weights, by name. precision: λ of each.
        factor: σ₀² / σ² of a Gaussian likelihood, σ₀ the noise of the curvature.
    """
    posterior = GaussianPosterior(curvature.blocks, precision).scaled(factor)
    fit = _log_likelihood(curvature, factor)
    scatter = sum(
        precision[name] * _part(params[name], block, name).square().sum()
        for block in curvature.blocks
        for name in block.names
    )
    return fit - 0.5 * (posterior.logdet() - posterior.prior_logdet() + scatter)


def _part(parameter: Tensor, block: object, name: str) -> Tensor:
    """Return the numbers of a parameter that a block covers."""
    index = getattr(block, "index", None)
    flat = parameter.flatten()
    return flat if index is None else flat[index[block.names.index(name)]]  # type: ignore[attr-defined]


def _log_likelihood(curvature: Curvature, factor: Tensor | float) -> Tensor:
    """Return log p(D | θ̃) at another noise: σ₀² / σ² = factor."""
    factor = torch.as_tensor(factor, dtype=torch.float64)
    numbers = curvature.num_values
    return (
        curvature.log_likelihood
        + 0.5 * numbers * factor.log()
        - 0.5 * (factor - 1) * curvature.weighted_error
    )


def choose(
    curvature: Curvature, params: Tensors, groups: Mapping[str, str], start: float, learns: bool
) -> Chosen:
    """Return MacKay's fixed point.

    Args:
        params: trained weights, by name. groups: the group of each parameter.
        start: λ to begin with. learns: whether the noise is found as well.
    """
    names = [name for block in curvature.blocks for name in block.names]
    like = next(iter(params.values())).double()
    blocks = curvature.blocks
    squares: dict[str, float] = dict.fromkeys((groups[name] for name in names), 0.0)
    for block in blocks:
        for name in block.names:
            part = _part(params[name], block, name)
            squares[groups[name]] += float(part.double().square().sum())
    values, factor = dict.fromkeys(squares, start), 1.0
    steps = 0
    while steps < _STEPS:
        steps += 1
        precision = by_parameter({n: groups[n] for n in names}, values, like)
        gamma = GaussianPosterior(blocks, precision).scaled(factor).effective()
        known = dict.fromkeys(squares, 0.0)
        for name, number in gamma.items():
            known[groups[name]] += float(number)
        before = {**values, "noise": factor}
        values = {g: min(max(known[g] / max(squares[g], 1e-300), _LEAST), _MOST) for g in squares}
        if learns:
            left = max(curvature.num_values - sum(known.values()), 1e-3 * curvature.num_values)
            factor = left / curvature.weighted_error
        after = {**values, "noise": factor}
        if all(abs(math.log(after[key] / before[key])) < _CLOSE for key in after):
            break
    precision = by_parameter({n: groups[n] for n in names}, values, like)
    found = log_evidence(curvature, params, precision, factor)
    return Chosen(values, factor, float(found), steps)
