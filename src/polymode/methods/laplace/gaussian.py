r"""The Gaussian posterior of one mode: N(θ̃, H⁻¹), H = C + Λ, block by block.

.. math:: \log \det H, \qquad \theta = \tilde\theta + H^{-1/2} \epsilon, \qquad
          \mathrm{Cov}[f(x)] = J(x) H^{-1} J(x)^\top

The covariance of outputs comes from layer inputs and output gradients; J is never made. Another
prior shares the eigenvectors (`with_precision`).

Shapes: `B` batch, `K` outputs, `P` numbers of a parameter.

The evidence at the trained weights, and the prior that makes it largest.

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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from polymode.curvature.blocks import Block, Dense, Precision
from polymode.curvature.records import Record
from polymode.curvature.tangent import Tangent
from polymode.methods.laplace.curvature import Curvature
from polymode.methods.laplace.last_layer import (
    LastLayer,
    covariances,
    joint_roots,
    last_layer_of,
    roots_by_output,
    variances,
)
from polymode.tracing.modules import Tensors


@dataclass(frozen=True)
class GaussianPosterior:
    """Args:
    blocks: the curvature C. precision: Λ, one number per parameter tensor.
    """

    blocks: tuple[Block, ...]
    precision: Precision
    _held: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    def roots_of_outputs(self, layer: LastLayer, params: Tensors, together: bool) -> Tensor:
        """Return roots of the covariance of each output's weights, or of all `together`, made
        once."""
        name = f"{layer.weight}, together" if together else layer.weight
        if name not in self._held:
            make = joint_roots if together else roots_by_output
            self._held[name] = make(self.between, layer, params)
        return self._held[name]

    def with_precision(self, precision: Precision) -> GaussianPosterior:
        """Return the posterior under another prior; the blocks of one matrix keep their basis."""
        blocks = (b.prepared(precision) if isinstance(b, Dense) else b for b in self.blocks)
        return replace(self, blocks=tuple(blocks), precision=precision)

    def scaled(self, factor: Tensor | float) -> GaussianPosterior:
        """Return the posterior of `factor` times the curvature: of another noise."""
        return replace(self, blocks=tuple(block.scaled(factor) for block in self.blocks))

    def logdet(self) -> Tensor:
        """Return log det H over all parameters that are not frozen."""
        return torch.stack([block.logdet(self.precision) for block in self.blocks]).sum()

    def prior_logdet(self) -> Tensor:
        """Return log det Λ over the same."""
        terms = [
            size * torch.as_tensor(self.precision[name]).log()
            for block in self.blocks
            for name, size in zip(block.names, block.sizes, strict=True)
        ]
        return torch.stack(terms).sum()

    def effective(self) -> Tensors:
        """Return how many numbers of each parameter the data determine, γ."""
        return {n: g for block in self.blocks for n, g in block.effective(self.precision).items()}

    def deviation(self, noise: Tensors) -> Tensors:
        """Return H^{-1/2} ε by parameter, like the noise; zero where parameters are frozen."""
        flat = {name: tensor.flatten() for name, tensor in noise.items()}
        deviations = {n: torch.zeros_like(t) for n, t in noise.items()}
        for block in self.blocks:
            for name, part in block.deviation(flat, self.precision).items():
                deviations[name] = part.view_as(noise[name])
        return deviations

    def variances(self) -> Tensors:
        """Return the diagonal of H⁻¹ by parameter, (P,) each."""
        return {n: v for block in self.blocks for n, v in block.variances(self.precision).items()}

    def quadratic(self, records: Iterable[tuple[str, Record]], full: bool = True) -> Tensor:
        """Return Σ over parameters of J H⁻¹ Jᵀ, (B, R, R), or its diagonal (B, R).

        Args:
            records: (parameter, record), one after another; each is dropped once its block is done.
            full: whether covariances between outputs are wanted.
        """
        single = {b.names[0]: b for b in self.blocks if len(b.names) == 1}
        several = [block for block in self.blocks if len(block.names) > 1]
        waiting: dict[str, Record] = {}
        total: Tensor | None = None
        for name, record in records:
            if name not in single:
                waiting[name] = record
                continue
            part = single[name].quadratic({name: record}, self.precision, full)
            total = part if total is None else total + part
        for block in several:
            part = block.quadratic(_filled(block, waiting), self.precision, full)
            total = part if total is None else total + part
        if total is None:
            raise ValueError(
                "the outputs at these inputs depend on none of the weights that have a posterior:"
                " the network takes another path there than where its curvature was looked at"
            )
        return total

    def between(self, records: Iterable[tuple[str, Record]]) -> Tensor:
        """Return covariances between all outputs of all examples, (B, R, B, R)."""
        held = dict(records)
        total: Tensor | None = None
        for block in self.blocks:
            if len(block.names) == 1 and block.names[0] not in held:
                continue  # outputs do not depend on it
            rows = block.whitened(_filled(block, held), self.precision).transpose(0, 1)
            flat = rows.flatten(0, 1)
            part = (flat @ flat.mT).view(*rows.shape[:2], *rows.shape[:2])
            total = part if total is None else total + part
        assert total is not None
        return total


def _filled(block: Block, records: Mapping[str, Record]) -> dict[str, Record]:
    """Return the records of a block, with zeros where outputs do not depend on a parameter."""
    like = next(iter(records.values()))
    number, _, batch = like.moving.shape[:3]
    filled = {}
    lengths = getattr(block, "lengths", block.sizes)
    for name, length in zip(block.names, lengths, strict=True):
        if name in records:
            filled[name] = records[name]
        else:
            moving = like.moving.new_zeros(number, 1, batch, 1, length)
            filled[name] = Record(moving, moving.new_ones(1, batch, 1, 1), 1)
    return filled


def output_moments(
    posterior: GaussianPosterior, tangent: Tangent, x: Tensor, num_outputs: int, full: bool
) -> tuple[Tensor, Tensor]:
    """Return outputs (B, K) and their covariances (B, K, K), or variances (B, K)."""
    means, spreads = [], []
    for rows in tangent.parts(len(x), num_outputs):
        watched = tangent.watched(x[rows])
        layer = last_layer_of(tangent, *watched)
        if layer is not None:
            means.append(layer.outputs if x.requires_grad else layer.outputs.detach())
            spreads.append(_of_last_layer(posterior, tangent, layer, full))
            continue
        outputs, pull = tangent.passed(x[rows], *watched)
        means.append(outputs)
        if outputs.dim() > 2:
            if full:
                raise ValueError(
                    "covariances of the outputs of a position need a last layer whose result is the"
                    " network's output, and nothing else that has a posterior: take"
                    " structure='last_layer', or output_covariance='diagonal'"
                )
            spreads.append(_map_variances(posterior, tangent, x[rows], outputs))
            continue
        unit = torch.eye(num_outputs).to(outputs)[:, None].expand(-1, len(outputs), -1)
        spreads.append(posterior.quadratic(pull(unit), full))
    return torch.cat(means), torch.cat(spreads)


def _of_last_layer(
    posterior: GaussianPosterior, tangent: Tangent, layer: LastLayer, full: bool
) -> Tensor:
    """Return variances of all outputs of a last layer at positions, (B, ...), or covariances with
    the K outputs of the same position, (B, ..., K)."""
    weight = tangent.params[layer.weight]
    with torch.no_grad():
        roots = posterior.roots_of_outputs(layer, tangent.params, full)
    return covariances(layer, roots, weight) if full else variances(layer, roots, weight)


def _map_variances(
    posterior: GaussianPosterior, tangent: Tangent, x: Tensor, outputs: Tensor
) -> Tensor:
    """Return variances of the outputs (B, K, *E) at positions, some of an example at a time."""
    numbers, parts = outputs[0].numel(), []
    for rows in tangent.parts(len(x), min(numbers, OUTPUTS)):
        columns = []
        for start in range(0, numbers, OUTPUTS):
            output, pull = tangent(x[rows])
            unit = torch.eye(numbers)[start : start + OUTPUTS].to(output)
            unit = unit.view(-1, 1, *output.shape[1:]).expand(-1, *output.shape)
            columns.append(posterior.quadratic(pull(unit), False))
        parts.append(torch.cat(columns, 1).view(-1, *outputs.shape[1:]))
    return torch.cat(parts)


def joint_moments(
    posterior: GaussianPosterior, tangent: Tangent, x: Tensor, num_outputs: int
) -> tuple[Tensor, Tensor]:
    """Return outputs (B, K) and covariances between all of them, (B, K, B, K)."""
    outputs, pull = tangent(x)
    unit = torch.eye(num_outputs).to(outputs)[:, None].expand(-1, len(outputs), -1)
    return outputs, posterior.between(pull(unit))


_RANGE = math.log(1e-10), math.log(1e10)  # where data say nothing of a group, λ has no end
OUTPUTS = 256  # of a map whose variances are computed at a time
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
        precisions = dict(zip(titles, logs.clamp(*_RANGE).exp().tolist(), strict=True))
        factor = float(log_factor.exp()[0]) if learns else 1.0
        at = by_parameter(groups, precisions, next(iter(weights.values())))
        value = float(log_evidence(curvature, weights, at, factor))
    return Chosen(precisions, factor, value, steps)
