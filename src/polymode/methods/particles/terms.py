"""What members minimise that repel each other through their input gradients.

Shapes: `M` modes, `B` batch, `R` inputs of the batch that repel, `D` input dimensions, `K`
coordinates.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor

from polymode.likelihoods.kinds import Categorical, Likelihood
from polymode.likelihoods.positions import Positions
from polymode.methods.method import Problem
from polymode.stack.execution import Loss

SCALARS = ("logit", "log_prob")
Repel = Callable[[Tensor], tuple[Tensor, Tensor]]


class Terms(NamedTuple):
    """The terms of loss_i + weight · R_i(J_1, ..., J_M).

    Attributes:
        loss: (outputs (..., B, K), targets, extra) -> (...).
        scalar: (outputs (..., R, K), targets, extra) -> (..., R), whose gradient with respect to
            the inputs is J.
        repel: J (M, R, D) -> R_i (M,) and ∂R_i/∂J_i (M, R, D).
        weight: of the repulsion compared with the loss.
        rows: R ≤ B; the first of the batch.
        basis: U (D, K), orthonormal, or None; with it J is (M, R, K).
        slopes: (outputs, targets) -> (R, K), gradients of the scalar with respect to the outputs
            where it is linear in them, so that all members have the same; None where it is not.
        loss_gradient: (outputs, targets) -> the loss and its gradient with respect to the outputs;
            used together with `slopes`.
    """

    loss: Loss
    scalar: Loss
    repel: Repel
    weight: float
    rows: int
    basis: Tensor | None = None
    slopes: Callable[[Tensor, Tensor], Tensor] | None = None
    loss_gradient: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None


def terms_of(
    problem: Problem,
    scalar: str,
    repel: Repel,
    weight: float,
    rows: int,
    basis: Tensor | None = None,
) -> Terms:
    """Return the terms for a scalar by its name: "logit" of the true class (in regression the sum
    of the means), or "log_prob" of the target; both are summed over the positions of an example."""
    likelihood, size = problem.likelihood, problem.target_size
    several = isinstance(likelihood, Positions)
    return Terms(
        likelihood.nll,
        partial(scalar_of, likelihood, scalar, size),
        repel,
        weight,
        rows,
        basis,
        None if scalar == "log_prob" or several else partial(slopes_of, likelihood, size),
        likelihood.nll_gradient,
    )


def weight_of(weight: str | float, problem: Problem, targets: Any) -> float:
    """Return the weight of a repulsion compared with the mean loss over a batch's targets."""
    if weight == "batch":
        if targets is None:  # refused where the loss is computed
            return 1.0
        return 1 / max(1.0, problem.likelihood.num_observations(targets))
    return 1 / problem.num_examples if weight == "data" else float(weight)


def scalar_of(
    likelihood: Likelihood,
    kind: str,
    target_size: int,
    outputs: Tensor,
    targets: Tensor,
    extra: dict[str, Tensor],
) -> Tensor:
    """Return what is differentiated with respect to the inputs, (..., B)."""
    if kind == "log_prob":
        return likelihood.log_prob(outputs, targets, extra)
    if isinstance(likelihood, Positions):
        rows = likelihood.rows(outputs, targets)
        scalars = scalar_of(likelihood.base, kind, target_size, rows.outputs, rows.targets, extra)
        return likelihood.by_example(scalars * (rows.weights > 0), targets)
    if isinstance(likelihood, Categorical):
        labels = targets.expand(outputs.shape[:-1]).unsqueeze(-1)
        return outputs.gather(-1, labels).squeeze(-1)
    if likelihood.classification:  # one logit: the sign would be the same for all members
        return outputs.squeeze(-1)
    return outputs[..., :target_size].sum(-1)


def slopes_of(likelihood: Likelihood, target_size: int, outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the gradients (R, K) of the scalars "logit" at R targets with respect to the outputs
    (..., K)."""
    slopes = outputs.new_zeros(len(targets), outputs.shape[-1])
    if isinstance(likelihood, Categorical):
        return slopes.scatter_(1, targets.unsqueeze(1), 1.0)
    slopes[:, : 1 if likelihood.classification else target_size] = 1.0
    return slopes
