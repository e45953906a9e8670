"""Curvature of the log-likelihood at the weights of one network, in the structure that is wanted.

    C = Σ_n J_nᵀ Λ_n J_n,        J_n = ∂f(x_n)/∂θ,   Λ_n = Σ_r v_rn v_rnᵀ  (`fisher.py`)

Gradients come back from each v_r to the layers, and each structure takes its own sums of the two
parts of J (`curvature/records.py`, `structures.py`):

============  =====================================================================================
kron          Σ m mᵀ ⊗ (1/N) Σ a aᵀ per matrix and per bias; diagonal for scales and shifts and for
              what is differentiated example by example
diag          Σ J² per number
full          Σ Jᵀ J over all parameters
last_layer    the same over the last layer, J = g ⊗ (a, 1): one product of (g gᵀ) with (a aᵀ)
subnetwork    the same over chosen numbers
low_rank      the leading eigenvectors by subspace iteration: a few passes over the data
============  =====================================================================================

Shapes: `R` cotangents, `B` batch, `N` examples, `P` parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from polymode.core.rng import generator
from polymode.curvature.blocks import Block
from polymode.curvature.records import Record
from polymode.curvature.tangent import Survey, Tangent
from polymode.likelihoods.kinds import Gaussian, Likelihood
from polymode.methods.laplace.fisher import roots
from polymode.methods.laplace.structures import SUMS, low_rank
from polymode.methods.method import Problem
from polymode.stack.stack import Stack
from polymode.tracing.modules import Tensors

STRUCTURES = ("kron", "diag", "full", "last_layer", "subnetwork", "low_rank")


@dataclass(frozen=True)
class Setting:
    """What curvature is wanted.

    Args:
        structure: one of `STRUCTURES`. fisher, mc_samples: see `fisher.py`.
        sharing: "expand" or "reduce", how kron treats weights used at several positions.
        rank: of low_rank. passes: over the data, of low_rank.
        batch_size: examples at a time.
    """

    structure: str = "kron"
    fisher: str = "exact"
    mc_samples: int = 1
    sharing: str = "expand"
    rank: int = 20
    passes: int = 3
    batch_size: int = 256


class Curvature(NamedTuple):
    """Of one mode.

    Attributes:
        blocks: C, block by block; each parameter is in one of them, or frozen.
        log_likelihood: Σ_n log p(y_n | f(x_n)), nats. num_examples: N.
        num_values: N D of a regression with Gaussian noise, else 0.
        weighted_error: Σ (y − f)² / σ² of such a regression.
    """

    blocks: tuple[Block, ...]
    log_likelihood: float
    num_examples: int
    num_values: int = 0
    weighted_error: float = 0.0


def wanted(setting: Setting, survey: Survey, stack: Stack) -> list[str]:
    """Return the parameters that have a posterior; the others are frozen."""
    return list(survey.last) if setting.structure == "last_layer" else list(stack.params)


@torch.no_grad()
def curvature(
    setting: Setting,
    problem: Problem,
    stack: Stack,
    k: int,
    survey: Survey,
    chosen: Tensor | None = None,
) -> Curvature:
    """Return the curvature of member k over the training data.

    Args:
        chosen: numbers of a subnetwork, counted over all of `stack.params` in a row.
    """
    tangent = Tangent(stack, k, survey, wanted(setting, survey, stack))
    source = _Source(setting, problem, tangent, {n: t[k].detach() for n, t in stack.extra.items()})
    path = "laplace", stack.seeds[k]
    stream = generator(problem.seed, *path)
    if setting.structure == "low_rank":
        blocks = low_rank(
            lambda: source.records(generator(problem.seed, *path)),
            tangent, setting.rank, setting.passes, generator(problem.seed, *path, "start"),
        )  # fmt: skip
    elif setting.structure == "kron":
        blocks = SUMS["kron"](source.records(stream), tangent, setting.sharing == "reduce")
    elif setting.structure == "subnetwork":
        blocks = SUMS["subnetwork"](source.records(stream), tangent, chosen)
    else:
        blocks = SUMS[setting.structure](source.records(stream), tangent)
    return Curvature(blocks, *source.counts())


class _Source:
    """Passes over the data: records of each part of a batch, and sums on the way."""

    def __init__(
        self, setting: Setting, problem: Problem, tangent: Tangent, extra: Tensors
    ) -> None:
        self.setting, self.problem, self.tangent, self.extra = setting, problem, tangent, extra
        self.log_likelihood = self.weighted_error = 0.0
        self.num_examples = self.num_values = 0

    def counts(self) -> tuple[float, int, int, float]:
        """Return the sums of the last pass, in the order of `Curvature`."""
        return self.log_likelihood, self.num_examples, self.num_values, self.weighted_error

    def records(self, stream: torch.Generator) -> Iterator[Iterator[tuple[str, Record]]]:
        """Yield, for each part of the data, the records of each parameter."""
        if self.problem.data is None:
            raise ValueError("curvature needs the training data: give Problem(..., data=...)")
        self.log_likelihood = self.weighted_error = 0.0
        self.num_examples = self.num_values = 0
        setting, likelihood = self.setting, self.problem.likelihood
        for x, y in self.problem.data.batches(setting.batch_size):
            for rows in self.tangent.parts(len(x), self._num_cotangents):
                outputs, pull = self.tangent(x[rows])
                self._count(likelihood, outputs, y[rows])
                yield pull(
                    roots(likelihood, outputs, y[rows], self.extra, fisher=setting.fisher,
                          mc_samples=setting.mc_samples, stream=stream)
                )  # fmt: skip

    @property
    def _num_cotangents(self) -> int:
        exact = self.problem.likelihood.num_outputs(self.problem.target_size)
        numbers = {"exact": exact, "mc": self.setting.mc_samples, "empirical": 1}
        return numbers[self.setting.fisher]

    def _count(self, likelihood: Likelihood, outputs: Tensor, y: Tensor) -> None:
        self.log_likelihood += float(likelihood.log_prob(outputs, y, self.extra).double().sum())
        self.num_examples += len(outputs)
        if isinstance(likelihood, Gaussian):
            scale = likelihood.components(outputs, self.extra).scale
            self.weighted_error += float(((outputs - y) / scale).double().square().sum())
            self.num_values += outputs.numel()
