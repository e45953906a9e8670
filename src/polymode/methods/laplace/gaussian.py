r"""The Gaussian posterior of one mode: N(θ̃, H⁻¹), H = C + Λ, block by block.

.. math:: \log \det H, \qquad \theta = \tilde\theta + H^{-1/2} \epsilon, \qquad
          \mathrm{Cov}[f(x)] = J(x) H^{-1} J(x)^\top

The covariance of outputs comes from layer inputs and output gradients; J is never made. Another
prior shares the eigenvectors (`with_precision`).

Shapes: `B` batch, `K` outputs, `P` numbers of a parameter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from polymode.curvature.full import Dense
from polymode.curvature.kronecker import Block, Precision
from polymode.curvature.records import Record
from polymode.curvature.tangent import Tangent
from polymode.tracing.modules import Tensors


@dataclass(frozen=True)
class GaussianPosterior:
    """Args:
    blocks: the curvature C. precision: Λ, one number per parameter tensor.
    """

    blocks: tuple[Block, ...]
    precision: Precision

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
        found = {n: torch.zeros_like(t) for n, t in noise.items()}
        for block in self.blocks:
            for name, part in block.deviation(flat, self.precision).items():
                found[name] = part.view_as(noise[name])
        return found

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
    found = {}
    lengths = getattr(block, "lengths", block.sizes)
    for name, length in zip(block.names, lengths, strict=True):
        if name in records:
            found[name] = records[name]
        else:
            moving = like.moving.new_zeros(number, 1, batch, 1, length)
            found[name] = Record(moving, moving.new_ones(1, batch, 1, 1), 1)
    return found


def output_moments(
    posterior: GaussianPosterior, tangent: Tangent, x: Tensor, num_outputs: int, full: bool
) -> tuple[Tensor, Tensor]:
    """Return outputs (B, K) and their covariances (B, K, K), or variances (B, K)."""
    means, spreads = [], []
    for rows in tangent.parts(len(x), num_outputs):
        outputs, pull = tangent(x[rows])
        unit = torch.eye(num_outputs).to(outputs)[:, None].expand(-1, len(outputs), -1)
        means.append(outputs)
        spreads.append(posterior.quadratic(pull(unit), full))
    return torch.cat(means), torch.cat(spreads)


def joint_moments(
    posterior: GaussianPosterior, tangent: Tangent, x: Tensor, num_outputs: int
) -> tuple[Tensor, Tensor]:
    """Return outputs (B, K) and covariances between all of them, (B, K, B, K)."""
    outputs, pull = tangent(x)
    unit = torch.eye(num_outputs).to(outputs)[:, None].expand(-1, len(outputs), -1)
    return outputs, posterior.between(pull(unit))
