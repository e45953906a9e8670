"""Symmetries of many networks: all at once, and one network after another.

The loops take some networks, and their times are scaled by the number of all.
"""

from __future__ import annotations

import copy
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import nn

from ..cases import Case
from . import Job

PART = 20  # networks that CVXPY does
ALONE = 200  # networks that the loop does


@lru_cache(maxsize=1)
def _networks(case: Case) -> list[nn.Module]:
    return case.members()


def _stack(case: Case) -> tuple[Any, Any]:
    from polymode import symmetry
    from polymode.stack.stack import Stack

    stack = Stack(_networks(case))
    return stack, symmetry.find(stack, case.input_shape)


def canonical(case: Case) -> Job:
    """Scale and sort the whole stack, the search for symmetries left out."""
    from polymode.symmetry import canonical

    stack, found = _stack(case)

    def run() -> None:
        canonical(stack, found)

    return Job(run, 1)


def canonical_loop(case: Case) -> Job:
    """The same for a chain of layers without branches, network by network, in float64."""
    nets = _networks(case)[:ALONE]

    def run() -> None:
        for net in nets:
            _scaled_and_sorted(net)

    return Job(run, 1, scale=case.num_modes / len(nets))


@torch.no_grad()
def _scaled_and_sorted(net: nn.Module) -> nn.Module:
    net = copy.deepcopy(net)
    layers = [m for m in net.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
    weights = [layer.weight.double() for layer in layers]
    biases = [layer.bias.double() for layer in layers]
    for k in range(len(layers) - 1):
        scale = 1 / weights[k].flatten(1).norm(dim=1)
        rows = weights[k].flatten(1) * scale[:, None]
        order = rows[:, 0].argsort(descending=True)
        weights[k] = rows[order].reshape(weights[k].shape)
        biases[k] = (biases[k] * scale)[order]
        following = weights[k + 1]
        units = following.reshape(len(following), len(scale), -1) / scale[:, None]
        weights[k + 1] = units[:, order].reshape(following.shape)
    for layer, weight, bias in zip(layers, weights, biases, strict=True):
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)
    return net


def cost(case: Case) -> Job:
    """Least mass of the whole stack, the search for symmetries left out."""
    from polymode.symmetry import representation_cost

    stack, found = _stack(case)
    return Job(lambda: float(representation_cost(stack, found).minimum[:PART].mean()), 1)


def cost_by_cvxpy(case: Case) -> Job:
    """The geometric programme as the paper's code states it, by CVXPY's default solver."""
    import cvxpy as cp

    nets = _networks(case)[:PART]

    def one(net: nn.Module) -> float:
        mass: Any = 0
        before: Any = None
        layers = [m for m in net.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
        for layer in layers:
            weight = layer.weight.detach().double()
            squares = weight.reshape(*weight.shape[:2], -1).square().sum(2).numpy()
            groups = getattr(layer, "groups", 1)
            outputs, inputs = squares.shape
            size = outputs // groups
            u = cp.Variable(outputs) if layer is not layers[-1] else np.zeros(outputs)
            for group in range(groups):
                rows = slice(group * size, (group + 1) * size)
                exponent = cp.reshape(u[rows], (size, 1), order="C") @ np.ones((1, inputs))
                if before is not None:
                    read = before[group * inputs : (group + 1) * inputs]
                    turned = cp.reshape(read, (1, inputs), order="C")
                    exponent = exponent - np.ones((size, 1)) @ turned
                mass = mass + cp.sum(cp.multiply(squares[rows], cp.exp(2 * exponent)))
            before = u
        problem = cp.Problem(cp.Minimize(mass))
        problem.solve()
        return float(problem.value)

    scale = case.num_modes / len(nets)
    return Job(lambda: float(np.mean([one(net) for net in nets])), 1, scale=scale)
