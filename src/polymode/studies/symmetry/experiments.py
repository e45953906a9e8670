"""Experiments of the study: the zoo itself, the toy, and mass along training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from polymode.core.rng import fold, generator
from polymode.examinations import Findings, examine, measure
from polymode.likelihoods.kinds import Bernoulli
from polymode.methods.fit import fit
from polymode.methods.method import on_all_data
from polymode.nets import mlp
from polymode.posterior import Posterior
from polymode.stack.stack import Stack
from polymode.symmetry.corollary import largest_units, uniformity
from polymode.symmetry.forms import hidden_layers, masses, scaled_form
from polymode.tasks import Task
from polymode.zoo import RECIPES, find_zoo

POINTS = 200  # of each class of the toy
FITTED = 0.01  # mean loss from which on a network of the toy is kept


def zoo(seed: int, *, name: str, number: int) -> Findings:
    """Return scores, the corollary and all pairs of the zoo `name`, trained unless it is there.

    Args:
        name: recipe or folder. number: how many networks.
    """
    networks = find_zoo(name, number)
    post = networks.posterior()[:number]
    task = networks.recipe.make_task()
    accuracy = networks.accuracy[:number]
    pairs = examine(post, task, "pairs")
    stack, layers = post.stack, hidden_layers(post.stack, post.input_shape)
    tests = {}
    for layer in layers:
        weights = stack.params[layer]
        tests[layer] = uniformity(largest_units(weights), weights.shape[1])
    smallest = min(1.0, len(layers) * min(test.p_value for test in tests.values()))
    spread = float(accuracy.std(ddof=1) / len(accuracy) ** 0.5)
    rows = [
        measure("networks", number, n=number),
        measure(
            "accuracy", float(accuracy.mean()), direction="up", n=number, standard_error=spread
        ),
        measure(
            "seconds_per_network",
            networks.facts().seconds / len(networks),
            unit="s",
            n=len(networks),
        ),
        measure("corollary_p", smallest, n=number),
        *(row._replace(dataset="") for row in pairs.rows),
    ]
    counts = {f"counts {layer}": test.counts.astype(float) for layer, test in tests.items()}
    return Findings(tuple(rows), {**pairs.arrays, **counts})


def toy(seed: int, *, number: int) -> Findings:
    """Return the last layer's weights of networks 2-2-1: as trained, scaled, sorted.

    Two classes of 200 points in the plane, binary cross-entropy, SGD with rate 2 in batches of 10,
    10 epochs; networks with a mean loss above 0.01 are left out. As in the paper's figure, units
    are sorted by the weights that are shown.

    Args:
        number: of networks that are trained.
    """
    stream = generator(seed, "toy")
    y = torch.arange(2 * POINTS) % 2
    x = 0.4 * torch.randn(2 * POINTS, 2, generator=stream) + (3.0 * y[:, None] - 1.5)
    task = Task(train=(x, y), likelihood=Bernoulli(), name="toy")
    post = fit(
        "deep_ensemble",
        net=lambda: mlp((2,), 1, hidden=(2,)),
        task=task,
        num_modes=number,
        seed=seed,
        optimizer="sgd",
        lr=2.0,
        epochs=10,
        batch_size=10,
        prior_precision=0.0,
        holdout=0,
        progress="silent",
    )
    fitted = _losses(post.stack, x, y) <= FITTED
    stack = post.stack[fitted.nonzero().flatten().tolist()]
    last = list(stack.params)[-2]
    arrays = {
        step: params[last].detach().reshape(-1, 2).double().numpy()
        for step, params in (("as trained", stack.params), ("scaled", scaled_form(stack, (2,))))
    }
    arrays["sorted"] = -np.sort(-arrays["scaled"], axis=1)  # to swap units is to swap these two
    ordered = float((arrays["sorted"][:, 1] > arrays["sorted"][:, 0]).mean())
    rows = (
        measure("kept", int(fitted.sum()) / number, n=number),
        measure("above_diagonal", ordered, n=int(fitted.sum())),
    )
    return Findings(rows, arrays)


@torch.no_grad()
def _losses(stack: Stack, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the mean binary cross-entropy of each network."""
    logits = stack(x).squeeze(-1)
    targets = y.to(logits.dtype).expand_as(logits)
    return torch.nn.functional.binary_cross_entropy_with_logits(
        logits, targets, reduction="none"
    ).mean(1)


def mass(
    seed: int,
    *,
    name: str,
    number: int,
    moments: Sequence[int],
    settings: dict[str, Any] | None = None,
) -> Findings:
    """Return the mass ‖w‖² of networks and its minimum over scalings, along training.

    Args:
        name: recipe. number: of networks. moments: epochs at which masses are taken, from 0 on.
        settings: changes of the recipe, see `Recipe.with_settings`.
    """
    recipe = RECIPES.get(name).value.with_settings(settings or {})
    task = recipe.make_task()
    make = recipe.make_net(task.input_shape, task.num_outputs)
    options = {**on_all_data(recipe.method), **recipe.options, "schedule": "constant"}
    post: Posterior | None = None
    mass_at, least = [], []
    for before, moment in zip([0, *moments], moments, strict=False):
        if moment == 0:
            stack = Stack(make, number, seed=seed)
        else:
            start: Any = make if post is None else post
            many = {"num_modes": number} if post is None else {}
            post = fit(
                recipe.method, net=start, task=task, seed=fold(seed, "moment", moment) % 2**31,
                progress="silent", **{**options, "epochs": moment - before, **many},
            )  # fmt: skip
            stack = post.stack
        masses_now, smallest = masses(stack, task.input_shape)
        mass_at.append(masses_now.numpy())
        least.append(smallest.numpy())
    arrays = {
        "epochs": np.array(moments, float),
        "mass": np.stack(mass_at),
        "least mass": np.stack(least),
    }  # fmt: skip
    excess = mass_at[-1] / least[-1] - 1
    error = float(excess.std(ddof=1) / math.sqrt(number))
    rows = (
        measure("excess", float(excess.mean()), unit="of m*", n=number, standard_error=error),
        measure("least_excess", float(excess.min()), unit="of m*", n=number),
        measure("largest_excess", float(excess.max()), unit="of m*", n=number),
        measure("mass", float(mass_at[-1].mean()), n=number),
        measure("least_mass", float(least[-1].mean()), n=number),
    )
    return Findings(rows, arrays)
