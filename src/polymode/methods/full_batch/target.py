"""The log-posterior of every chain and its gradient, over the whole training data.

    log π(θ) = [ Σ_n log p(y_n | f_θ(x_n)) − (λ/2) ‖θ‖² ] / T + const

λ is `prior_precision`, T the `temperature`. A likelihood's own parameters (learned noise) are part
of θ, as logarithms and with a flat prior. Networks are evaluated as they predict: random layers
off, normalisation with the statistics that it has; otherwise log π were no function of θ.

Shapes: `M` modes (chains), `P` parameters, those of the network first.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from polymode.core.data import Arrays, Pair
from polymode.core.loop import Batch
from polymode.core.memory import free_bytes, human
from polymode.core.modules import Tensors
from polymode.core.rng import fold
from polymode.core.stack import Stack
from polymode.methods.method import Problem
from polymode.posterior.weights import changing_tensors

LogDensity = Callable[[Tensor], tuple[Tensor, Tensor]]
"""From rows (M, P) to log-densities (M,) and their gradients (M, P)."""

ROWS = 8192  # examples that are passed through the networks at a time


class LogPosterior:
    """log π and its gradient with respect to the leaves of a stack, which it moves.

    Args:
        stack: the chains' networks; a call sets their parameters.
        problem: likelihood and N. batches: the whole data, (x, y) pairs.
        prior_precision, temperature: λ ≥ 0 and T > 0.
    """

    def __init__(
        self,
        stack: Stack,
        problem: Problem,
        batches: Sequence[Pair],
        prior_precision: float,
        temperature: float,
    ) -> None:
        self.stack, self.problem, self.batches = stack.eval(), problem, batches
        self.prior_precision, self.temperature = prior_precision, temperature
        self.leaves = stack.leaves()
        self.num_weights = stack.num_parameters

    @torch.no_grad()
    def __call__(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return log π (M,) in float64 and its gradient (M, P)."""
        self.move(rows)
        value = torch.zeros(len(rows), dtype=torch.float64, device=rows.device)
        gradient = torch.empty_like(rows)
        parts = self.stack.as_leaves(gradient)
        nll = self.problem.likelihood.nll
        for number, (x, y) in enumerate(self.batches):
            with torch.enable_grad():
                losses = self.stack.gradients(nll, x, y, step=0)
            value.sub_(losses, alpha=len(x))
            found = [leaf.grad for leaf in self.leaves if leaf.grad is not None]
            if number == 0:
                torch._foreach_copy_(parts, found)
                scale = len(x)
            else:
                torch._foreach_add_(parts, found, alpha=len(x) / scale)
        gradient.mul_(-scale / self.temperature)
        if self.prior_precision:
            weights = rows[:, : self.num_weights]
            strength = self.prior_precision / self.temperature
            gradient[:, : self.num_weights].sub_(weights, alpha=strength)
            squares = torch.linalg.vector_norm(weights, dim=1, dtype=torch.float64).square_()
            value.sub_(squares, alpha=0.5 * self.prior_precision)
        return value.div_(self.temperature), gradient

    @torch.no_grad()
    def move(self, rows: Tensor) -> None:
        """Set the networks' parameters to rows (M, P)."""
        torch._foreach_copy_(self.leaves, self.stack.as_leaves(rows))

    def loss(self, rows: Tensor, value: Tensor) -> Tensor:
        """Return the mean negative log-likelihood (M,), nats per example, from log π at rows."""
        weights = rows[:, : self.num_weights]
        squares = torch.linalg.vector_norm(weights, dim=1, dtype=torch.float64).square_()
        total = -self.temperature * value - 0.5 * self.prior_precision * squares
        return total / self.problem.num_examples


def rows_of(stack: Stack) -> Tensor:
    """Return the parameters of all chains as rows (M, P), a copy."""
    return torch.cat([leaf.detach().reshape(len(stack), -1) for leaf in stack.leaves()], 1)


_held: weakref.WeakKeyDictionary[Any, list[Pair]] = weakref.WeakKeyDictionary()


def whole(problem: Problem, batch: Batch) -> list[Pair]:
    """Return the whole training data in a few fixed batches.

    Without `problem.data`, in a loop of one's own, it is the batch. Data from a loader are read
    once, by a pass whose shuffling and transforms are a function of the seed, and held in memory.
    """
    data = problem.data
    if data is None:
        if batch.own:
            raise ValueError("one batch per chain cannot be the whole data: give Problem(data=...)")
        return [(batch.x, batch.y)]
    if isinstance(data, Arrays):
        return list(data.batches(ROWS))
    if data not in _held:
        _held[data] = list(data.epoch(ROWS, fold(problem.seed, "whole")))
    return _held[data]


def freeze_statistics(problem: Problem, stack: Stack) -> None:
    """Set running statistics to those of the training inputs under the present weights, which they
    keep from now on."""
    if stack.has_statistics and problem.data is not None:
        stack.recompute_statistics(problem.inputs(ROWS))


def room_for(stack: Stack, number: int) -> Tensors:
    """Return zeros for `number` samples of every chain, (L, M, ...) by name, if they fit."""
    changing = changing_tensors(stack)
    need = number * sum(t.numel() * t.element_size() for t in changing.values())
    free = free_bytes(stack.device)
    if need > 0.5 * free:
        raise ValueError(
            f"{number} samples of {stack.num_modes} chains need {human(need)};"
            f" {human(free)} free. Keep fewer samples_per_mode"
        )
    return {name: t.new_zeros(number, *t.shape) for name, t in changing.items()}


def keep_sample(steps: range, done: int, stack: Stack, kept: Tensors) -> None:
    """Copy the present networks to their place among the samples, if this step is one of them."""
    if done in steps:
        place = steps.index(done)
        for name, tensor in changing_tensors(stack).items():
            kept[name][place].copy_(tensor)
