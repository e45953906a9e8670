"""Tuning of HMC during burn-in: step size by dual averaging, mass from the variances seen.

Dual averaging (Hoffman and Gelman 2014, equation 6 and section 3.2) drives the acceptance α_t of
each chain to δ; with x = log ε, μ = log(2 ε_1), γ = 0.05, t_0 = 10, κ = 0.75:

    h ← (1 − 1/(t + t_0)) h + (δ − α_t)/(t + t_0)
    x ← μ − (√t/γ) h,    x̄ ← t^−κ x + (1 − t^−κ) x̄

The paper's μ is log(10 ε_1); with few leapfrog steps a trajectory that is rejected costs as much as
any other, so less is risked here. α_t is rounded to 1/64: x multiplies it by up to 5, and rounding
errors of a gradient would come back in the next trajectory as steps of another length.

Burn-in has three phases, as in Stan: the first 15 % and the last 10 % tune the step size alone; in
between the variances are taken over windows, each twice as long as the one before. At the end of a
window they become the inverse mass, shrunk to their mean as by five further samples, and dual
averaging begins anew from a step as long, in the old units, as the one it had found.

Reference: M. Hoffman, A. Gelman, The No-U-Turn sampler, JMLR 15, 2014. Stan reference manual, HMC
    algorithm parameters (windows).

Shapes: `M` chains, `P` parameters.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

from polymode.tracing.modules import Tensors

GAMMA, DELAY, KAPPA = 0.05, 10.0, 0.75
AHEAD = math.log(2.0)  # dual averaging tends to twice the first step
FIRST, LAST = 0.15, 0.10  # of burn-in, in which only the step size is tuned
WINDOW, FEWEST = 25, 10  # samples of the first window, and of the shortest that is used
PRIOR_SAMPLES = 5.0
ROUNDED = 64


def start(rows: Tensor, step_size: float) -> Tensors:
    """Return the state of the tuning before the first step, for chains at rows (M, P)."""
    zeros = rows.new_zeros(len(rows), dtype=torch.float64)
    log_step = torch.full_like(zeros, math.log(step_size))
    return {
        "error": zeros.clone(),
        "log_step": log_step,
        "log_average": log_step.clone(),
        "centre": log_step + AHEAD,
        "mean": torch.zeros_like(rows),
        "squares": torch.zeros_like(rows),
        "inverse_mass": torch.ones_like(rows),
    }


@cache
def windows(burn_in: int) -> tuple[int, ...]:
    """Return the numbers of steps at which a window begins, and at which the last one ends.

    >>> windows(1000), windows(100), windows(12)
    ((150, 175, 225, 325, 525, 900), (15, 40, 90), ())
    """
    begin, end = round(FIRST * burn_in), burn_in - round(LAST * burn_in)
    if end - begin < FEWEST:
        return ()
    bounds, length = [begin], WINDOW
    while end - bounds[-1] >= 3 * length:  # the next one must have room, too
        bounds.append(bounds[-1] + length)
        length *= 2
    return (*bounds, end) if end - bounds[-1] < 2 * length else (*bounds, bounds[-1] + length, end)


def adapt_step_size(tuning: Tensors, acceptance: Tensor, count: int, goal: float) -> None:
    """Enter the acceptance (M,) of step `count` ≥ 1 since dual averaging began."""
    weight = 1.0 / (count + DELAY)
    rounded = (ROUNDED * acceptance).round_().div_(ROUNDED)
    tuning["error"].mul_(1 - weight).add_(goal - rounded, alpha=weight)
    tuning["log_step"] = tuning["centre"] - (math.sqrt(count) / GAMMA) * tuning["error"]
    share = count**-KAPPA
    tuning["log_average"].mul_(1 - share).add_(tuning["log_step"], alpha=share)


def see(tuning: Tensors, rows: Tensor, count: int) -> None:
    """Enter the positions (M, P) as number `count` ≥ 1 of the window, by Welford's update."""
    delta = rows - tuning["mean"]
    tuning["mean"].add_(delta, alpha=1 / count)
    tuning["squares"].addcmul_(delta, rows - tuning["mean"])


def end_window(tuning: Tensors, count: int) -> None:
    """Make the variances of `count` samples the inverse mass, and begin dual averaging anew."""
    variance = tuning["squares"] / (count - 1)
    typical = variance.mean(1, keepdim=True)
    moved = (typical > 0).expand_as(variance)  # a chain that never moved keeps its mass
    shrunk = (count * variance + PRIOR_SAMPLES * typical) / (count + PRIOR_SAMPLES)
    inverse_mass = torch.where(moved, shrunk, tuning["inverse_mass"])
    scale = (tuning["inverse_mass"].log() - inverse_mass.log()).mean(1, dtype=torch.float64)
    tuning["inverse_mass"] = inverse_mass
    tuning["log_step"] = tuning["log_average"] + 0.5 * scale
    tuning["log_average"] = tuning["log_step"].clone()
    tuning["centre"] = tuning["log_step"] + AHEAD
    for name in ("error", "mean", "squares"):
        tuning[name] = torch.zeros_like(tuning[name])


def adapt(
    tuning: Tensors,
    rows: Tensor,
    acceptance: Tensor,
    done: int,
    burn_in: int,
    goal: float,
    masses: bool = True,
) -> Tensors:
    """Return the tuning after step number `done` ≥ 1 of `burn_in`; a new one, `tuning` stays.

    Args:
        rows: positions after the step (M, P). acceptance: its probability (M,).
        goal: δ, the acceptance that is aimed at. masses: whether the mass is tuned, too.
    """
    tuning = {name: tensor.clone() for name, tensor in tuning.items()}
    bounds = windows(burn_in) if masses else ()
    begun = max((bound for bound in bounds[1:] if bound < done), default=0)
    adapt_step_size(tuning, acceptance, done - begun, goal)
    if bounds and bounds[0] < done <= bounds[-1]:
        opened = max(bound for bound in bounds if bound < done)
        see(tuning, rows, done - opened)
        if done in bounds:
            end_window(tuning, done - opened)
    return tuning


def step_size(tuning: Tensors, burnt_in: bool) -> Tensor:
    """Return the step size of each chain, (M,): the averaged one after burn-in."""
    return (tuning["log_average"] if burnt_in else tuning["log_step"]).exp()
