r"""The evidence at the trained weights, and the prior that makes it largest.

.. math:: \log p(D) \approx \log p(D \mid \tilde\theta) - \tfrac12 \left(\log\det H
          - \log\det\Lambda + \tilde\theta^\top \Lambda \tilde\theta\right), \qquad
          H = C + \Lambda

Its slope per group, with γ_g = Σ l / (l + λ_g) over the eigenvalues l of its curvature, is that of
MacKay's fixed point,

.. math:: \frac{\partial}{\partial \log \lambda_g} = \tfrac12 (\gamma_g -
          \lambda_g \|\tilde\theta_g\|^2), \qquad \frac{\partial}{\partial \log \sigma} =
          \sum_n \|y_n - f_n\|^2 / \sigma^2 - N D + \sum_g \gamma_g,

and is followed by L-BFGS in log λ and log σ: where few data determine much, MacKay's own update
takes hundreds of steps. A step costs as much as there are eigenvalues. The noise is found where the
likelihood learns it.

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

from polymode.curvature.blocks import Precision
from polymode.methods.laplace.curvature import Curvature
from polymode.methods.laplace.gaussian import GaussianPosterior
from polymode.tracing.modules import Tensors

_RANGE = math.log(1e-10), math.log(1e10)  # where data say nothing of a group, λ has no end
_CLOSE = 1e-5  # of the slope with respect to log λ, nats


class Chosen(NamedTuple):
    """A prior that was found.

    Attributes:
        precision: λ of each group. factor: σ₀² / σ², of the noise that the curvature was made with
            and the one that was found. log_evidence: there, nats. steps: evaluations.
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
    """Return the prior, and the noise, of the largest evidence.

    Args:
        params: trained weights, by name. groups: the group of each parameter.
        start: λ to begin with, > 0. learns: whether the noise is found as well.
    """
    names = [name for block in curvature.blocks for name in block.names]
    groups = {name: groups[name] for name in names}
    titles = list(dict.fromkeys(groups.values()))
    weights = {name: tensor.double() for name, tensor in params.items()}
    logs = torch.full((len(titles),), math.log(start), dtype=torch.float64)
    log_factor = torch.zeros(int(learns), dtype=torch.float64)
    points = [logs.requires_grad_(), log_factor.requires_grad_()]
    steps = 0

    def loss() -> Tensor:
        nonlocal steps
        steps += 1
        optimizer.zero_grad()
        values = dict(zip(titles, logs.clamp(*_RANGE).exp(), strict=True))
        precision = {name: values[group] for name, group in groups.items()}
        factor = log_factor.exp()[0] if learns else 1.0
        negative = -log_evidence(curvature, weights, precision, factor)
        negative.backward()
        return negative

    optimizer = torch.optim.LBFGS(
        points, max_iter=100, tolerance_grad=_CLOSE, tolerance_change=0.0,
        line_search_fn="strong_wolfe",
    )  # fmt: skip
    optimizer.step(loss)
    with torch.no_grad():
        found = dict(zip(titles, logs.clamp(*_RANGE).exp().tolist(), strict=True))
        factor = float(log_factor.exp()[0]) if learns else 1.0
        at = by_parameter(groups, found, next(iter(weights.values())))
        value = float(log_evidence(curvature, weights, at, factor))
    return Chosen(found, factor, value, steps)
