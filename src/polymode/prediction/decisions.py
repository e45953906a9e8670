r"""Decisions from a prediction: the action of highest expected utility, and when to decide nothing.

With a utility :math:`u(a, c)` of action a if the class is c, the best action at an input is
:math:`\arg\max_a \sum_c p_c\,u(a, c)` (expected utility; a table of costs is its negative); for a
value, :math:`\arg\max_a \int u(a, y)\,dF(y)`, the mean of u over quantiles at the middle of 200
levels.
Abstaining at a fixed cost is one more action: with one unit lost for a wrong class and `cost` for
abstaining, abstain where :math:`1 - \max_c p_c > cost`; for values, with the squared error as the
loss, where the predictive variance, summed over the outputs, is above `cost`. Both are best if the
probabilities are right; `metrics.rejection` chooses a threshold on labelled data whatever they
are.

References: C. K. Chow, On optimum recognition error and reject tradeoff, IEEE Trans. Inf. Theory 16
(1970); J. Berger, Statistical decision theory and Bayesian analysis, 1985. `B` batch, `C` classes,
`A` actions.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from polymode.core.checks import as_numbers, is_number, shown

_LEVELS = 200  # quantiles that stand for a distribution


class Values(Protocol):
    """A prediction of values, as far as expectations need it."""

    def quantile(self, q: Tensor) -> Tensor: ...


class Decision(NamedTuple):
    """The best action at each input.

    Attributes:
        action: its number, int64 (B,).
        utility: its expected utility, (B,).
        gain: how much more than that of the second best action, (B,), >= 0.
    """

    action: Tensor
    utility: Tensor
    gain: Tensor


def best_actions(probs: Tensor, utility: Any) -> Decision:
    """Return the actions of highest expected utility, of ties the first.

    Args:
        probs: (B, C) probabilities.
        utility: (A, C) table, a row per action.
    """
    table = as_numbers("`utility` of act", utility)
    if table.dim() != 2 or table.shape[1] != probs.shape[-1] or not len(table):
        raise ValueError(
            f"`utility` of act must have a row per action and a column per class, (A,"
            f" {probs.shape[-1]}), got shape {tuple(table.shape)}"
        )
    if not table.double().isfinite().all():
        raise ValueError("`utility` of act must be finite")
    return _best_of(probs @ table.to(probs).T)


def best_actions_for_values(prediction: Values, utility: Any) -> Decision:
    """Return the actions of highest expected utility for a value, of ties the first.

    Args:
        prediction: of one output.
        utility: a function from values (N, B) to A tensors (N, B), or one (A, N, B).
    """
    if not callable(utility):
        raise ValueError(
            "`utility` of act for values must be a function of y that returns the utilities of all"
            f" actions, got {shown(utility)}"
        )
    levels = (torch.arange(_LEVELS, dtype=torch.float64) + 0.5) / _LEVELS
    values = prediction.quantile(levels)
    if values.dim() != 3 or values.shape[-1] != 1:
        raise ValueError(
            f"`act` needs one output and no positions, got predictions of {tuple(values.shape[1:])}"
        )
    values = values[..., 0]
    utilities = utility(values)
    table = utilities if isinstance(utilities, Tensor) else torch.stack([*utilities])
    if table.dim() != 3 or not len(table) or table.shape[1:] != values.shape:
        raise ValueError(
            f"`utility` of act must return values of shape (A, {len(values)}, {values.shape[1]}),"
            f" got {tuple(table.shape)}"
        )
    if not table.isfinite().all():
        raise ValueError("`utility` of act must be finite")
    return _best_of(table.mean(1).T)


def _best_of(expected: Tensor) -> Decision:
    """Return the best of the actions with these expected utilities (..., A)."""
    best, action = expected.max(-1)
    if expected.shape[-1] == 1:
        return Decision(action, best, torch.full_like(best, torch.inf))
    top = expected.topk(2, dim=-1).values
    return Decision(action, best, top[..., 0] - top[..., 1])


def abstentions(expected_loss: Tensor, cost: Any) -> Tensor:
    """Return where abstaining costs less than the expected loss of the best answer, bool (B,)."""
    if not is_number(cost) or not 0.0 <= cost < math.inf:
        raise ValueError(f"`cost` of abstain must be a finite number >= 0, got {shown(cost)}")
    return expected_loss > cost
