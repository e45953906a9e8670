"""The experiment behind the comparisons: train an ensemble one way, look along orbits.

One training gives two rows of a table, its members one by one and all together, so that both have
the same networks. Members have batches and turns of their own: with shared draws they would lean
the same way, and their mean with them. The group average is taken of the same networks too: its
inputs are turned by every element again, which for interpolated turns is a second interpolation,
as it would be in use.

`M` members, `G` elements, `B` inputs, `C` classes.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polymode import nets
from polymode.core.rng import fold, generator
from polymode.equivariance.canonical import canonicalised
from polymode.equivariance.examination import (
    NOISE,
    Along,
    along_orbits,
    by_size,
    inputs_of,
    ood_inputs,
)
from polymode.equivariance.groups import Group
from polymode.equivariance.groups import group as find_group
from polymode.equivariance.orbits import Score
from polymode.equivariance.steerable import Steerable, steerable
from polymode.examinations import Findings, measure
from polymode.methods import fit
from polymode.posterior import Posterior
from polymode.tasks import Task
from polymode.tasks.augment import augmentation
from polymode.tasks.named import task as make_task

METHODS = ("augmented", "canonical", "steerable")
KEPT = (
    "same_predictions", "same_share", "kl", "deviation", "relative_deviation", "accuracy",
    "orbit_accuracy",
)  # fmt: skip
CURVES = ("same_share", "deviation", "kl")


def trained(
    seed: int,
    *,
    group: str = "C4",
    method: str = "augmented",
    augment: str = "random",
    task: str = "digits",
    task_options: dict[str, Any] | None = None,
    net: str = "lenet",
    num_modes: int = 10,
    epochs: int = 5,
    batch_size: int = 64,
    lr: float = 2e-3,
    num_inputs: int = 300,
    num_average: int = 0,
    fields: list[int] | None = None,
) -> Findings:
    """Return the orbit metrics of an ensemble's members and of the whole, test and OOD sets.

    Args:
        group: whose orbits are looked at, and trained on.
        method: "augmented": a plain network; "canonical": behind a learned canonicalisation;
            "steerable": a network of escnn.
        augment: "full", "random", or either with elements, such as "random:0-2"; "none".
        task, task_options, net: see `pm.task` and `pm.nets`.
        num_modes: M. epochs, batch_size, lr: of Adam, with a cosine schedule.
        num_inputs: of each set. num_average: inputs of each set for the group average, 0 for none.
        fields: of a steerable network.
    """
    acting = find_group(group)
    given = make_task(task, **(task_options or {}))
    training: dict[str, Any] = {
        "num_modes": num_modes,
        "epochs": epochs,
        "batch_size": batch_size,
        "lr": lr,
    }
    hook = None if augment == "none" else f"orbit:{group}:{augment}"
    if method == "steerable":
        post = _steered(seed, given, group, hook, training, fields or [4, 8, 16])
    else:
        plain = getattr(nets, net)
        post = fit(
            "deep_ensemble", net=canonicalised(plain, group) if method == "canonical" else plain,
            task=given, seed=seed, augment=hook, schedule="cosine", prior_precision=0.0,
            data_order="own", progress="silent", **training,
        )  # fmt: skip
    weights = sum(p.numel() for p in post[:1].members[0].parameters())
    rows = [measure("weights", float(weights), n=1)]
    arrays: dict[str, np.ndarray] = {}
    for name, (x, labels) in _sets(given, num_inputs).items():
        along = along_orbits(post, x, acting, labels)
        rows += _rows(name, along)
        arrays |= {
            f"{name} {key}": values for key, values in by_size(along, CURVES, seed=seed).items()
        }
        if num_average:
            few, known = x[:num_average], None if labels is None else labels[:num_average]
            rows += _rows(name, group_average(post, few, acting, known), "average_")
    return Findings(tuple(rows), arrays)


def _sets(task: Task, number: int) -> dict[str, tuple[Tensor, Tensor | None]]:
    """Return the test set, the task's OOD sets, and noise."""
    x, y = inputs_of(task, number)
    found: dict[str, tuple[Tensor, Tensor | None]] = {"test": (x, y)}
    for name in (*task.ood, NOISE):
        found[name] = ood_inputs(task, name, x)[1], None
    return found


def group_average(post: Posterior, x: Tensor, acting: Group, labels: Tensor | None) -> Along:
    """Return what members, averaged over the group, predict along orbits."""
    orbit = acting.orbit(x)
    twice = along_orbits(post, orbit.flatten(0, 1), acting)  # (M, G, H B, C)
    members = twice.members.logsumexp(1) - math.log(len(acting))
    return Along(members.unflatten(1, orbit.shape[:2]), True, acting, labels)


def _rows(name: str, along: Along, prefix: str = "") -> list[Any]:
    rows = []
    for who, scores in (("member", along.member_scores()), ("ensemble", along.scores())):
        rows += [_row(f"{name}_{prefix}{who}_{key}", scores[key]) for key in KEPT if key in scores]
    return rows


def _row(name: str, score: Score) -> Any:
    error = score.standard_error if math.isfinite(score.value) else None
    return measure(name, score.value, n=score.n, standard_error=error)


def _steered(
    seed: int,
    task: Task,
    group: str,
    hook: str | None,
    training: dict[str, Any],
    fields: list[int],
) -> Posterior:
    """Return an ensemble of escnn networks, one after another: their layers expand their filters in
    each pass, which no batched execution can do."""
    make = steerable(group, fields=fields)
    modules: list[nn.Module] = []
    turned = None if hook is None else augmentation(hook)
    for member in range(training["num_modes"]):
        own = fold(seed, "steerable", member)
        torch.manual_seed(own % 2**31)
        module = make(task.input_shape, task.num_outputs)
        assert isinstance(module, Steerable)
        steps = training["epochs"] * task.train.num_batches(training["batch_size"])
        optimizer = torch.optim.Adam(module.parameters(), training["lr"])
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        for epoch in range(training["epochs"]):
            order = fold(own, "order", epoch)
            for number, (x, y) in enumerate(task.train.epoch(training["batch_size"], order)):
                if turned is not None:
                    x, y = turned.pairs(x, y, generator(own, "augment", epoch, number))
                loss = F.cross_entropy(module(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
        modules.append(module.exported())
    return fit(
        "deep_ensemble", net=modules, task=task, seed=seed, epochs=0, augment=None,
        progress="silent",
    )  # fmt: skip
