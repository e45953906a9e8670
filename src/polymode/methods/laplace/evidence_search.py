r"""The evidence of a linear model, and its maximum over prior precisions and noise.

    log E(Λ, β) = Σ_n log p(y_n | h(m, x_n)) − ½ mᵀ Λ m − ½ log det H + ½ log det Λ,
    H = Σ_n J_nᵀ B_n J_n + Λ

with Λ = λ_g on the weights of group g (`groups.py`), B_n the curvature of the likelihood at the
network's outputs f(θ̃, x_n), and for a Gaussian β = 1 / noise². m is θ̃ ("trained"), as is usual, or
the linear model's own optimum θ*(Λ) ("linear", recommendation 1 of the reference): only there is E
the evidence of a model. With γ_g = Σ over the group of 1 − λ_g (H⁻¹)_ii, the number of weights that
the data determine,

    ∂ log E / ∂ log λ_g = ½ (γ_g − λ_g ‖m_g‖²),    ∂ log E / ∂ log β_d = ½ (N − γ_d − β_d ‖r_d‖²),

r_d the residuals of output d, γ_d its share of Σ γ. θ* moves with Λ, but L is stationary there, so
nothing is missing. `mackay` goes to the zero of both, λ_g ← γ_g / ‖m_g‖², β_d ← (N − γ_d) / ‖r_d‖²;
`ascend` climbs along them with Adam, in logarithms.

λ_g starts at d_g / ‖θ̃_g‖², d_g its number of weights, or at a hundredth or ten-thousandth of that
where the evidence is larger there, and stays within 10^±8 of it. So a
normalised group that is scaled by k starts at λ / k², and all that follows is the same: the
predictive does not depend on k (proposition 3), whichever fixed point is found. A group whose λ
reaches its upper end, or for which the data determine less than 0.001 weights, is `pruned`: the
prior holds it at 0.

Limits: B is kept at the network's outputs ("simple" in the reference), so E at θ* is that of a
Gaussian around θ* with this curvature; for regression it is exact. E has several stationary points
in general: the start matters.
Reference: Antorán et al., ICML 2022, see `groups.py`; D. MacKay, Bayesian interpolation, Neural
    Computation 4(3), 1992.

Shapes: `G` groups, `N` examples, `D` targets of a regression, none for classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

SPAN = 1e8  # a precision stays within this factor of its start
PRUNED = 1e-3  # weights
STARTS = (1e-2, 1e-4)  # factors of λ that are tried at first
_TENFOLD = math.log(10.0)


class Terms(NamedTuple):
    """The evidence at some precisions and noise, and what its gradient is made of.

    Attributes:
        value: log E, nats; nan where only its gradient is estimated.
        effective: γ, (G,). squares: ‖m_g‖², (G,).
        output_effective: γ_d, (D,). residual_squares: ‖r_d‖², (D,). counts: values that each β is
            the precision of, (D,): N, or N K for one β of all outputs.
    """

    value: float
    effective: Tensor
    squares: Tensor
    output_effective: Tensor
    residual_squares: Tensor
    counts: Tensor

    def gradient(self, precision: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
        """Return the derivatives with respect to log λ (G,) and log β (D,)."""
        by_precision = 0.5 * (self.effective - precision * self.squares)
        by_beta = 0.5 * (self.counts - self.output_effective - beta * self.residual_squares)
        return by_precision, by_beta


Evaluate = Callable[[Tensor, Tensor], Terms]
"""(λ (G,), β (D,)) -> Terms. It may begin at the optimum of the call before, and may have a cheap
`bound`, (λ, β) -> a number that log E cannot exceed there."""


class Choice(NamedTuple):
    """Where the search for the evidence's maximum ended.

    Attributes:
        precision: λ (G,). beta: 1 / noise² (D,), none for classes.
        terms: there. steps: evaluations. converged: whether λ and β had settled.
        pruned: which groups, (G,) of truth values.
        path: log E after each step.
    """

    precision: Tensor
    beta: Tensor
    terms: Terms
    steps: int
    converged: bool
    pruned: Tensor
    path: list[float]


class Search(NamedTuple):
    """How the maximum is searched for.

    Attributes:
        updates: "mackay" or "ascent".
        steps: at most so many evaluations.
        tolerance: λ and β have settled when MacKay's update would move no logarithm by more.
        lr: of "ascent", in logarithms.
        learn_noise: whether β is learned; it stays as it is otherwise.
    """

    updates: str = "mackay"
    steps: int = 200
    tolerance: float = 1e-5
    lr: float = 0.1
    learn_noise: bool = False


def starting_precision(sizes: Tensor, squares: Tensor) -> Tensor:
    """Return d_g / ‖θ̃_g‖² of each group, 1 where the weights are 0."""
    return torch.where(squares > 0, sizes / squares.clamp_min(1e-300), torch.ones_like(squares))


def maximise(evaluate: Evaluate, start: Tensor, beta: Tensor, how: Search | None = None) -> Choice:
    """Return a stationary point of the evidence.

    Args:
        start: λ (G,) to begin with. beta: β (D,), of length 0 for classes.
    """
    how = how or Search()
    low, high = start / SPAN, start * SPAN
    update = _Ascent(how) if how.updates == "ascent" else _MacKay()
    settled = False
    path: list[float] = []
    precision, terms = _best_start(evaluate, start, beta)
    for _ in range(how.steps):
        path.append(terms.value)
        gap, noise_gap = _gaps(terms, precision, beta)
        needed = terms.effective >= PRUNED  # the others drift to the end of their range
        open_ = torch.cat([gap[needed], noise_gap if how.learn_noise else noise_gap[:0]])
        if not len(open_) or open_.abs().max() < how.tolerance:
            settled = True
            break
        new, new_beta = update(terms, precision, beta)
        precision, beta = new.clamp(low, high), new_beta if how.learn_noise else beta
        terms = evaluate(precision, beta)
    else:
        path.append(terms.value)
    steps = len(path)
    pruned = (terms.effective < PRUNED) | (precision >= high * (1 - 1e-6))
    return Choice(precision, beta, terms, steps, settled, pruned, path)


def _best_start(evaluate: Evaluate, start: Tensor, beta: Tensor) -> tuple[Tensor, Terms]:
    """Return the start, or smaller λ where the evidence is larger there.

    Where a tight prior leaves nothing to learn, the evidence is flat and updates do not move.
    """
    precision, terms = start, evaluate(start, beta)
    bound = getattr(evaluate, "bound", None)
    for factor in STARTS:
        if bound is not None and bound(factor * start, beta) <= terms.value:
            continue
        other = evaluate(factor * start, beta)
        if other.value > terms.value:  # never where values are not known
            precision, terms = factor * start, other
    return precision, terms


def _gaps(terms: Terms, precision: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """Return how far MacKay's updates would move log λ and log β; 0 where the gradient is 0."""
    effective = terms.effective.clamp_min(1e-30)  # rounding may leave less than 0
    new = effective / terms.squares.clamp_min(1e-300)
    left = (terms.counts - terms.output_effective).maximum(1e-9 * terms.counts)
    new_beta = left / terms.residual_squares.clamp_min(1e-300)
    # factors of a structure may count more weights than there are values, which says nothing of β
    return (new / precision).log(), (new_beta / beta).log().clamp(-_TENFOLD, _TENFOLD)


class _MacKay:
    """λ ← γ / ‖m‖² and β ← (N − γ_d) / ‖r_d‖², in longer steps where they are slow.

    Near a fixed point a step of log λ leaves a fixed share of the gap. The share is read from the
    last two gaps, per group, and the step made 0.3 to 10 times as long.
    """

    def __init__(self) -> None:
        self.last: tuple[Tensor, Tensor] | None = None

    def __call__(self, terms: Terms, precision: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
        gap, noise_gap = _gaps(terms, precision, beta)
        place, factor = precision.log(), torch.ones_like(gap)
        if self.last is not None:
            moved, closed = place - self.last[0], self.last[1] - gap
            usable = (moved.abs() > 1e-12) & (closed.abs() > 1e-12)
            secant = moved / closed.where(usable, torch.ones_like(closed))
            factor = secant.where(usable & (secant > 0), torch.ones_like(gap)).clamp(0.3, 10.0)
        self.last = place, gap
        step = gap * factor
        longest = gap.abs().clamp_min(_TENFOLD)  # longer than plain, at most tenfold
        return (place + step.clamp(-longest, longest)).exp(), beta * noise_gap.exp()


class _Ascent:
    """Adam on log λ and log β along the gradient of the evidence."""

    def __init__(self, how: Search) -> None:
        self.lr, self.number = how.lr, 0
        self.first: Tensor | None = None
        self.second: Tensor | None = None

    def __call__(self, terms: Terms, precision: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
        gradient = torch.cat(terms.gradient(precision, beta))
        if self.first is None or self.second is None:
            self.first, self.second = torch.zeros_like(gradient), torch.zeros_like(gradient)
        self.number += 1
        self.first = 0.9 * self.first + 0.1 * gradient
        self.second = 0.99 * self.second + 0.01 * gradient.square()
        mean = self.first / (1 - 0.9**self.number)
        size = (self.second / (1 - 0.99**self.number)).sqrt() + 1e-12
        rate = self.lr / (1 + 0.02 * self.number)
        step = (rate * mean / size).exp()
        return precision * step[: len(precision)], beta * step[len(precision) :]


def describe(choice: Choice, groups: Mapping[str, int], evidence: str) -> dict[str, object]:
    """Return what a report says of a choice, JSON-safe: per group λ, γ and whether it is pruned.

    Args:
        groups: number of weights by group, in the order of λ.
    """
    rows = {
        name: {
            "weights": size,
            "prior_precision": float(choice.precision[k]),
            "effective": float(choice.terms.effective[k]),
            "pruned": bool(choice.pruned[k]),
        }
        for k, (name, size) in enumerate(groups.items())
    }
    value = choice.terms.value
    return {
        "evidence": evidence,
        "log_evidence": None if math.isnan(value) else value,
        "steps": choice.steps,
        "converged": choice.converged,
        "noise": [float(b) ** -0.5 for b in choice.beta],
        "groups": rows,
        "pruned": [name for k, name in enumerate(groups) if choice.pruned[k]],
    }
