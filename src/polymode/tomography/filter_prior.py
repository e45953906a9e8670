r"""Gaussian priors over the filters of a network, block by block.

A block is the convolutions of one kernel size in one part of the network. All its filters have the
same zero-mean prior, independent of each other; within a filter of k x k taps

    isotropic   Cov(w_a, w_b) = s² [a = b]
    matern      Cov(w_a, w_b) = s² (exp(−|a − b| / ℓ) + 1e-6 [a = b]),   |a − b| in taps

The second is the Matérn kernel with ν = ½ (J. Antorán, R. Barbano, J. Leuschner, J. M.
Hernández-Lobato, B. Jin, Uncertainty estimation for computed tomography with a linearised deep
image prior, TMLR 2023; their code calls it radial basis). Two taps of a 3 x 3 filter are at one of
six distances r, so with B_r the matrix that has 1 where |a − b| = r

    Cov w = s² Σ_r exp(−r / ℓ) (I ⊗ B_r),     J Cov w Jᵀ = s² Σ_r exp(−r / ℓ) J (I ⊗ B_r) Jᵀ :

matrices that are made once, and numbers c(s², ℓ) before them (`coefficients`).

Biases and normalisation layers have no prior: they are known.

Shapes: `G` blocks, `P` weights, `T` taps of a filter, `C` components (block, distance).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from polymode.core.checks import check_call
from polymode.stack.stack import Stack

JITTER = 1e-6
KINDS = ("isotropic", "matern")


class Hyper(NamedTuple):
    """What is learnt of a prior: log s² and log ℓ of each block, (G,), and log σ² of the noise.

    log ℓ of an isotropic block has no effect.
    """

    log_variance: Tensor
    log_lengthscale: Tensor
    log_noise: Tensor

    @property
    def noise(self) -> float:
        """σ², the variance of the noise."""
        return float(self.log_noise.exp())

    def flat(self) -> Tensor:
        """Return all of it as one vector, (2 G + 1,)."""
        return torch.cat([self.log_variance, self.log_lengthscale, self.log_noise.reshape(1)])

    @classmethod
    def from_flat(cls, vector: Tensor) -> Hyper:
        half = len(vector) // 2
        return cls(vector[:half], vector[half : 2 * half], vector[-1])


@dataclass(frozen=True)
class Block:
    """Some filters with one prior: the weights `start` to `stop` of the vector of all.

    Attributes:
        taps: (height, width) of its filters. kind: one of `KINDS`.
    """

    name: str
    start: int
    stop: int
    taps: tuple[int, int]
    kind: str

    @property
    def num_taps(self) -> int:
        return self.taps[0] * self.taps[1]

    @property
    def num_filters(self) -> int:
        return (self.stop - self.start) // self.num_taps

    def distances(self) -> Tensor:
        """Return |a − b| of all pairs of taps, (T, T)."""
        return grid_distances(*self.taps)

    def classes(self) -> list[tuple[float, Tensor]]:
        """Return each distance r with B_r (T, T); of an isotropic block only r = 0."""
        apart = self.distances()
        distances = apart.round(decimals=9).unique().tolist() if self.kind == "matern" else [0.0]
        return [(r, ((apart - r).abs() < 1e-6).double()) for r in distances]

    def coefficients(self, log_variance: Tensor, log_lengthscale: Tensor) -> list[Tensor]:
        """Return the number before J (I ⊗ B_r) Jᵀ of each distance."""
        variance, length = log_variance.exp(), log_lengthscale.exp()
        if self.kind == "isotropic":
            return [variance]
        return [
            variance * (torch.exp(-r / length) + (JITTER if r == 0 else 0.0))
            for r, _ in self.classes()
        ]

    def covariance(self, log_variance: Tensor, log_lengthscale: Tensor) -> Tensor:
        """Return the covariance of one filter, (T, T)."""
        parts = self.coefficients(log_variance, log_lengthscale)
        return torch.stack([c * b for c, (_, b) in zip(parts, self.classes(), strict=True)]).sum(0)


@dataclass(frozen=True)
class FilterPrior:
    """The prior of all weights that have one.

    Attributes:
        names: of the parameters, in the order of the vector of weights. blocks: of these.
    """

    names: tuple[str, ...]
    blocks: tuple[Block, ...]

    @property
    def num_weights(self) -> int:
        return self.blocks[-1].stop

    def start(self, noise: float, *, variance: float = 1.0, lengthscale: float = 1.0) -> Hyper:
        """Return hyperparameters to begin with: one s² and ℓ for all blocks."""
        if not noise > 0:
            raise ValueError(f"`noise` of the prior must be > 0, the variance σ², got {noise}")
        ones = torch.ones(len(self.blocks), dtype=torch.float64)
        return Hyper(
            (variance * ones).log(),
            (lengthscale * ones).log(),
            torch.tensor(noise, dtype=torch.float64).log(),
        )

    def covariances(self, hyper: Hyper) -> list[Tensor]:
        """Return the covariance of one filter of each block, (T, T)."""
        parts = zip(self.blocks, hyper.log_variance, hyper.log_lengthscale, strict=True)
        return [block.covariance(*logs) for block, *logs in parts]

    def coefficients(self, hyper: Hyper) -> Tensor:
        """Return c of all components, block by block, (C,)."""
        parts = zip(self.blocks, hyper.log_variance, hyper.log_lengthscale, strict=True)
        return torch.stack([c for block, *logs in parts for c in block.coefficients(*logs)])

    def multiply(self, matrices: list[Tensor], weights: Tensor) -> Tensor:
        """Return weights (..., P) with the taps of each filter multiplied by its block's matrix."""
        parts = []
        for block, matrix in zip(self.blocks, matrices, strict=True):
            filters = weights[..., block.start : block.stop].unflatten(-1, (-1, block.num_taps))
            parts.append((filters @ matrix.to(weights).mT).flatten(-2))
        return torch.cat(parts, -1)

    def draw(self, hyper: Hyper, number: int, stream: torch.Generator) -> Tensor:
        """Return weights from the prior, (`number`, P), float64."""
        white = torch.randn(number, self.num_weights, generator=stream, dtype=torch.float64)
        return self.multiply([torch.linalg.cholesky(c) for c in self.covariances(hyper)], white)

    def second_moments(self, weights: Tensor) -> list[Tensor]:
        """Return Σ_f w_f w_fᵀ of each block's filters, (T, T), from weights (P,)."""
        moments = []
        for block in self.blocks:
            filters = weights[block.start : block.stop].double().view(-1, block.num_taps)
            moments.append(filters.T @ filters)
        return moments

    def penalty(self, hyper: Hyper, moments: list[Tensor]) -> Tensor:
        """Return wᵀ Σ⁻¹ w from the second moments of w."""
        terms = [
            torch.cholesky_solve(moment, torch.linalg.cholesky(c)).trace()
            for c, moment in zip(self.covariances(hyper), moments, strict=True)
        ]
        return torch.stack(terms).sum()


def filter_prior(net: nn.Module | Stack, kind: str = "matern") -> FilterPrior:
    """Return the prior over the weights of the convolutions and matrices of a network.

    Convolutions in one container with one kernel size are a block, as are matrices of linear layers
    in one container. Blocks whose filters have one tap are isotropic.

    Args:
        kind: "matern" or "isotropic".
    """
    check_call(filter_prior, locals())
    if kind not in KINDS:
        raise ValueError(f"`kind` of filter_prior must be one of {', '.join(KINDS)}, got '{kind}'")
    if isinstance(net, Stack):
        shapes = {name: tuple(tensor.shape[1:]) for name, tensor in net.params.items()}
    else:
        parameters = net.named_parameters()
        shapes = {name: tuple(tensor.shape) for name, tensor in parameters if tensor.requires_grad}
    named = {name: shape for name, shape in shapes.items() if len(shape) >= 2}
    if not named:
        raise ValueError(
            "the network has no weights with two or more axes that train: there is nothing to be"
            " uncertain of; give a network with convolutions or linear layers"
        )
    return _arranged(named, kind)


def _arranged(named: Mapping[str, tuple[int, ...]], kind: str) -> FilterPrior:
    groups: dict[tuple[str, tuple[int, int]], list[str]] = {}
    for name, shape in named.items():
        layer = name.rpartition(".")[0]
        taps = (shape[2], shape[3]) if len(shape) == 4 else (1, 1)
        groups.setdefault((layer.rpartition(".")[0] or layer, taps), []).append(name)
    containers = [container for container, _ in groups]
    names: list[str] = []
    blocks: list[Block] = []
    start = 0
    for (container, taps), members in groups.items():
        size = sum(torch.Size(named[name]).numel() for name in members)
        title = container or "weights"
        if containers.count(container) > 1:
            title += f" {taps[0]}x{taps[1]}"
        block_kind = kind if taps != (1, 1) else "isotropic"
        blocks.append(Block(title, start, start + size, taps, block_kind))
        names += members
        start += size
    return FilterPrior(tuple(names), tuple(blocks))


def grid_distances(height: int, width: int) -> Tensor:
    """Return the distances between all places of a grid, (T, T), row by row."""
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    places = torch.stack([rows.flatten(), columns.flatten()], 1).double()
    return torch.cdist(places, places)
