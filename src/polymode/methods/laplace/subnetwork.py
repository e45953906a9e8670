"""Which weights a subnetwork keeps, and whether it says more than the trained network.

Weights outside of the subnetwork S stay at their trained values; on S the posterior has the whole
curvature. With c the diagonal of the curvature, λ the prior precision and the energy
e_i = Σ_n ‖∂f(x_n)/∂θ_i‖², the weights with the largest score are kept:

    largest_variance    1 / (c_i + λ)          least Wasserstein distance between the diagonal
                                               posterior and the one that is kept (the reference)
    jacobian_energy     e_i / (c_i + λ)        the same, weighed by what a weight does to outputs
    obd                 ½ θ_i² c_i             what removing a weight costs (optimal brain damage)
    random              a uniform draw         the baseline

The trap: a weight that no output depends on has c = 0 and the largest variance. Where there are
many of them (dead ReLUs) the reference's rule keeps nothing else, and the posterior predictive is
the trained network's. `SubnetworkReport` says so: the share of such weights in S, and the largest
change of an output.

References: E. Daxberger, E. Nalisnick, J. Allingham, J. Antorán, J. M. Hernández-Lobato, Bayesian
    deep learning via subnetwork inference, ICML 2021; Y. LeCun, J. Denker, S. Solla, Optimal brain
    damage, NeurIPS 1989.

Shapes: `P` weights, `S` of the subnetwork, `B` batch, `K` outputs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from polymode.core.rng import generator
from polymode.core.warn import warn
from polymode.curvature.blocks import Diagonal
from polymode.curvature.tangent import Survey, Tangent, survey
from polymode.likelihoods.components import Moments
from polymode.methods.laplace.curvature import Setting, curvature
from polymode.methods.laplace.gaussian import OUTPUTS
from polymode.methods.method import Problem
from polymode.stack.stack import Stack

SELECTIONS = ("largest_variance", "jacobian_energy", "obd", "random")


class SubnetworkReport(NamedTuple):
    """What is to be known of a subnetwork.

    Attributes:
        size: S. zero_curvature: share of S that no output depends on, in [0, 1].
        zero_curvature_of_all: the same of all P weights.
        largest_change: largest |Δ output| of draws, compared with the trained network.
    """

    size: int
    zero_curvature: float
    zero_curvature_of_all: float
    largest_change: float | None = None


class Diagonals(NamedTuple):
    """Of one network over the training data, (P,) each, in the order of `stack.params`.

    Attributes:
        weights: θ. curvature: c ≥ 0. energy: e ≥ 0.
    """

    weights: Tensor
    curvature: Tensor
    energy: Tensor


def diagonals(problem: Problem, stack: Stack, mode: int = 0, batch_size: int = 256) -> Diagonals:
    """Return what selections are made of, by two passes over the training data."""
    layers = survey(stack, next(problem.inputs(batch_size)))
    setting = Setting(structure="diag", batch_size=batch_size)
    blocks = curvature(setting, problem, stack, mode, layers).blocks
    values = {b.name: b.values for b in blocks if isinstance(b, Diagonal)}
    weights = {name: tensor[mode].detach().flatten() for name, tensor in stack.params.items()}
    energy = _energy(problem, stack, mode, layers, batch_size)
    return Diagonals(*(torch.cat([part[n] for n in weights]) for part in (weights, values, energy)))


def _energy(
    problem: Problem, stack: Stack, mode: int, layers: Survey, batch_size: int
) -> dict[str, Tensor]:
    """Return e by parameter."""
    tangent = Tangent(stack, mode, layers, list(stack.params))
    size = problem.likelihood.num_outputs(problem.target_size)
    totals = {name: torch.zeros_like(t[mode].flatten()) for name, t in stack.params.items()}
    for x in problem.inputs(batch_size):
        for rows in tangent.parts(len(x), size):
            outputs, pull = tangent(x[rows])
            numbers = outputs[0].numel()  # of maps more than are taken at a time
            for start in range(0, numbers, OUTPUTS):
                if start:
                    outputs, pull = tangent(x[rows])
                unit = torch.eye(numbers)[start : start + OUTPUTS].to(outputs)
                unit = unit.view(-1, 1, *outputs.shape[1:]).expand(-1, *outputs.shape)
                for name, record in pull(unit):
                    totals[name] = totals[name] + record.squares().flatten().detach()
    return totals


def scores(candidates: Diagonals, selection: str, precision: float, seed: int = 0) -> Tensor:
    """Return the score of every weight, (P,)."""
    if selection == "largest_variance":
        return 1 / (candidates.curvature + precision)
    if selection == "jacobian_energy":
        return candidates.energy / (candidates.curvature + precision)
    if selection == "obd":
        return 0.5 * candidates.weights.square() * candidates.curvature
    assert selection == "random", selection
    stream = generator(seed, "subnetwork")
    return torch.rand(len(candidates.weights), generator=stream, dtype=torch.float64)


def select(
    candidates: Diagonals, selection: str, size: int, precision: float, seed: int = 0
) -> tuple[Tensor, SubnetworkReport]:
    """Return the places of the weights that are kept, rising (S,), and a report on them.

    Warns where no output depends on any of them. Of equal scores the first are kept.
    """
    total = len(candidates.weights)
    if not 1 <= size <= total:
        raise ValueError(f"a subnetwork must keep 1 to {total:,} weights, got {size:,}")
    order = (
        scores(candidates, selection, precision, seed).sort(descending=True, stable=True).indices
    )
    places = order[:size].sort().values
    idle = candidates.energy == 0
    share = idle[places].double().mean().item()
    if share == 1.0:
        warn(
            f"all {size:,} weights of the subnetwork ('{selection}') have zero curvature: no output"
            " depends on them, so predictions are those of the trained network; take"
            " 'jacobian_energy' or 'obd'",
        )
    return places, SubnetworkReport(size, share, idle.double().mean().item())


def largest_change(moments: Moments, samples: int = 32, seed: int = 0) -> float:
    """Return max |Δ output| of draws around the trained network's outputs, over all inputs."""
    draws = moments.draw(samples, [seed + k for k in range(len(moments.loc))])
    return (draws - moments.loc.unsqueeze(1)).abs().max().item()
