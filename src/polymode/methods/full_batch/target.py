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

from polymode.core.options import rule
from polymode.core.rng import fold
from polymode.methods.method import Problem
from polymode.stack.stack import Stack
from polymode.training.data import Arrays, Pair
from polymode.training.loop import Batch

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
        self.precision = torch.full_like(rows_of(stack), prior_precision / problem.num_examples)
        self.precision[:, self.num_weights :] = 0.0  # flat in what the likelihood itself learns
        self._sizes = [leaf.numel() // len(stack) for leaf in self.leaves]
        self._places = [leaf.detach() for leaf in self.leaves]
        if all(leaf.is_contiguous() for leaf in self.leaves):
            self._places = [leaf.view(len(stack), -1) for leaf in self._places]

    def __call__(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return log π (M,) in float64 and its gradient (M, P)."""
        self.move(rows)
        mean, losses = None, None
        for x, y in self.batches:
            batch_losses = self.stack.gradients(self.problem.likelihood.nll, x, y, step=0)
            grads = [
                leaf.grad.reshape(len(rows), -1) for leaf in self.leaves if leaf.grad is not None
            ]
            observations = self.problem.likelihood.num_observations(y)
            gradient, share = torch.cat(grads, 1), observations / self.problem.num_examples
            if len(self.batches) == 1:
                mean, losses = gradient, batch_losses
            elif mean is None or losses is None:
                mean, losses = gradient.mul_(share), batch_losses.double().mul_(share)
            else:
                mean, losses = (
                    mean.add_(gradient, alpha=share),
                    losses.add_(batch_losses, alpha=share),
                )
        assert mean is not None and losses is not None
        scale = self.problem.num_examples / self.temperature
        gradient = torch.addcmul(mean, self.precision, rows).mul_(-scale)
        value = torch.add(losses, self._squares(rows), alpha=self._half)
        return value.double().mul_(-scale), gradient

    @property
    def _half(self) -> float:
        """λ / 2N, what ‖θ‖² counts beside the mean loss."""
        return 0.5 * self.prior_precision / self.problem.num_examples

    def _squares(self, rows: Tensor) -> Tensor:
        """Return ‖θ‖² of the weights, (M,)."""
        weights = rows[:, : self.num_weights]
        return torch.linalg.vecdot(weights, weights)

    def move(self, rows: Tensor) -> None:
        """Set the networks' parameters to rows (M, P)."""
        if self._places[0].dim() == 2 and self._places[0].shape[1:] == (self._sizes[0],):
            torch._foreach_copy_(self._places, list(rows.split(self._sizes, 1)))
        else:  # another memory format
            torch._foreach_copy_(self._places, self.stack.as_leaves(rows))

    def energy(self, value: Tensor) -> Tensor:
        """Return U/N = −T log π/N (M,), nats per example, from log π."""
        return value * (-self.temperature / self.problem.num_examples)


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


FIXED_EXAMPLES = rule(
    "`augment` of {name} must be None: chains on the whole data need fixed examples, got"
    " {config.augment!r}",
    lambda config: config.augment is None,
)
