"""Tuning of MCLMC: the step size by the energy variance, the decoherence length L in two ways.

The steps of tuning are divided into three phases, 80, 10 and 10 %:

1. ε, so that the mean of ΔE²/d is the goal. Since ΔE² grows as ε⁶, c = ΔE²/(d ε⁶) is estimated as
   Σ w ΔE² ε⁻³/d over Σ w ε³, and ε⁶ = goal/c. Old steps fade over about 150 of them; those far from
   the goal weigh less, w = exp(−½ (log ξ / 9)²) with ξ = ΔE²/(d goal); ε changes by a factor of 2
   at most. The goal falls geometrically from 0.5, or stays if it is larger: a chain that comes from
   a maximum goes far at first, and there its energy changes more. L = √d meanwhile.
2. ε as before, and the variances of the parameters, by which L = √(Σ_i Var θ_i).
3. L = 0.4 ε n/ESS, where n/ESS is the mean autocorrelation time over these n steps of up to 64
   parameters; left out where the phase has fewer than 100 steps.

A step that leaves the finite numbers bounds ε at 0.8 of it.

References: J. Robnik et al., JMLR 24, 2023 (section 4.2); E. Sommer, J. Robnik, G. Nozadze,
U. Seljak, D. Rügamer, Microcanonical Langevin ensembles, ICLR 2025 (the schedule of the goal, which
falls linearly there, and the three phases). There c is the mean of ΔE²/(d ε⁶), in which the first,
short steps count most; that takes thousands of steps to fade.

Shapes: `M` chains, `P` parameters.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from polymode.chains.ess import ess_of
from polymode.methods.full_batch.microcanonical import Move
from polymode.tracing.modules import Tensors

PHASES = (0.8, 0.9)  # ends of the first and the second
FIRST_STEP, FIRST_GOAL = 0.005, 0.5
MEMORY, TRUST = 150, 9.0
FADE = (MEMORY - 1) / (MEMORY + 1)
SMALLER, FASTEST = 0.8, 2.0
FACTOR, TRACED, FEWEST = 0.4, 64, 100


def ends(total: int) -> tuple[int, int, int]:
    """Return the steps at which the three phases end; the third is empty where it is short.

    >>> ends(2000), ends(100)
    ((1600, 1800, 2000), (80, 100, 100))
    """
    first, second = (round(share * total) for share in PHASES)
    return first, total if total - second < FEWEST else second, total


def start(rows: Tensor, total: int) -> Tensors:
    """Return the state of the tuning before its first step, for chains at rows (M, P)."""
    chains, size = rows.shape
    zeros = rows.new_zeros(chains, 1, dtype=torch.float64)
    _, second, _ = ends(total)
    return {
        "step_size": zeros + FIRST_STEP,
        "decoherence": zeros + math.sqrt(size),
        "largest": zeros + math.inf,
        "variance": zeros.clone(),
        "cube": zeros.clone(),
        "seen": zeros.clone(),
        "mean": torch.zeros_like(rows),
        "square": torch.zeros_like(rows),
        "trace": rows.new_zeros(total - second, chains, min(size, TRACED)),
    }


def goal_at(number: int, total: int, goal: float) -> float:
    """Return what ΔE²/d shall be on average in step `number` of the tuning."""
    first, _, _ = ends(total)
    share = min(number / max(first, 1), 1.0)
    return max(FIRST_GOAL, goal) ** (1 - share) * goal**share


def tune(tuning: Tensors, move: Move, number: int, total: int, goal: float) -> Tensors:
    """Return the tuning after its step `number`, from 0, of `total`; a new one.

    Args:
        goal: mean of ΔE²/d at the end.
    """
    tuning = dict(tuning)
    first, second, last = ends(total)
    if number < second:
        _step_size(tuning, move, goal_at(number, total, goal))
        if number >= first:
            _see(tuning, move)
        if number == second - 1:
            _by_variances(tuning)
    else:
        tuning["trace"] = tuning["trace"].clone()
        tuning["trace"][number - second] = _traced(move.point.position)
        if number == last - 1:
            _by_autocorrelation(tuning)
    return tuning


def _step_size(tuning: Tensors, move: Move, goal: float) -> None:
    """Enter one energy change, and set ε by the estimates so far."""
    step, lost = tuning["step_size"], move.lost[:, None]
    variance = move.energy_change.square()[:, None] / move.point.position.shape[1]
    ratio = variance / goal + 1e-8
    weight = torch.exp(-0.5 * (ratio.log() / TRUST).square()).masked_fill(lost, 0.0)
    tuning["largest"] = torch.where(lost, SMALLER * step, tuning["largest"])
    tuning["variance"] = FADE * tuning["variance"] + weight * variance / step**3
    tuning["cube"] = FADE * tuning["cube"] + weight * step**3
    proposed = (goal * tuning["cube"] / tuning["variance"].clamp_min(1e-300)).pow(1 / 6)
    proposed = torch.minimum(torch.maximum(proposed, step / FASTEST), step * FASTEST)
    tuning["step_size"] = torch.minimum(proposed, tuning["largest"])


def _see(tuning: Tensors, move: Move) -> None:
    """Enter positions, weighed by the time ε that the chain spent there."""
    weight = tuning["step_size"].masked_fill(move.lost[:, None], 0.0)
    tuning["seen"] = tuning["seen"] + weight
    share = (weight / tuning["seen"].clamp_min(1e-300)).to(tuning["mean"].dtype)
    delta = move.point.position - tuning["mean"]
    tuning["mean"] = torch.addcmul(tuning["mean"], share, delta)
    square = share * delta * (move.point.position - tuning["mean"])
    tuning["square"] = (1 - share) * tuning["square"] + square


def _by_variances(tuning: Tensors) -> None:
    length = tuning["square"].sum(1, keepdim=True, dtype=torch.float64).sqrt()
    tuning["decoherence"] = torch.maximum(length, tuning["step_size"])


def _traced(rows: Tensor) -> Tensor:
    """Return up to 64 of the parameters, evenly spread."""
    size = rows.shape[1]
    if size <= TRACED:
        return rows
    return rows[:, torch.linspace(0, size - 1, TRACED, device=rows.device).long()]


def _by_autocorrelation(tuning: Tensors) -> None:
    trace = tuning["trace"]  # (n, M, traced)
    number, chains, traced = trace.shape
    size = ess_of(trace.reshape(number, 1, chains, traced)).clamp_max(number)
    time = (number / size).nanmean(1, keepdim=True).to(tuning["step_size"])
    length = FACTOR * tuning["step_size"] * time
    finite = torch.isfinite(length)
    length = torch.where(finite, length, tuning["decoherence"])
    tuning["decoherence"] = torch.maximum(length, tuning["step_size"])
