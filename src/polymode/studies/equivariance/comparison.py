"""The experiment behind the comparisons: train an ensemble one way, look along orbits; its numbers.

One training gives two rows of a table, its members one by one and all together, so that both have
the same networks. Members have batches and turns of their own: with shared draws they would lean
the same way, and their mean with them. The group average is taken of the same networks too: its
inputs are turned by every element again, which for interpolated turns is a second interpolation,
as it would be in use.

`M` members, `G` elements, `B` inputs, `C` classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polymode import nets
from polymode.core.rng import fold, generator
from polymode.equivariance.canonicalisation import canonicalised
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
from polymode.metrics.paired import Difference
from polymode.plots import Display, size_curve
from polymode.posterior import Posterior
from polymode.studies.study import Runs
from polymode.studies.table_cells import judge_interval, mean_cell
from polymode.tasks import Task
from polymode.tasks.augment import augmentation
from polymode.tasks.named import task as make_task

METRICS = (
    "same_predictions", "same_share", "kl", "deviation", "relative_deviation", "accuracy",
    "orbit_accuracy",
)  # fmt: skip
TITLES = {
    "same_share": "OSP / |G|",
    "deviation": "orbit s.d. of probabilities",
    "kl": "symmetrised KL along orbits",
}
"""Metrics with curves by the number of members."""

Lookup = Callable[[str], dict[int, float]]
cell = partial(mean_cell, missing="–")


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
    data = make_task(task, **(task_options or {}))
    training: dict[str, Any] = {
        "num_modes": num_modes,
        "epochs": epochs,
        "batch_size": batch_size,
        "lr": lr,
    }
    hook = None if augment == "none" else f"orbit:{group}:{augment}"
    if method == "steerable":
        post = _steered(seed, data, steerable(group, fields=fields or [4, 8, 16]), hook, training)
    else:
        plain = getattr(nets, net)
        post = fit(
            "deep_ensemble", net=canonicalised(plain, group) if method == "canonical" else plain,
            task=data, seed=seed, augment=hook, schedule="cosine", prior_precision=0.0,
            data_order="own", holdout=0, progress="silent", **training,
        )  # fmt: skip
    weights = sum(p.numel() for p in post[:1].members[0].parameters())
    rows = [measure("weights", float(weights), n=1)]
    arrays: dict[str, np.ndarray] = {}
    for name, (x, labels) in _sets(data, num_inputs).items():
        along = along_orbits(post, x, acting, labels)
        rows += _rows(name, along)
        arrays |= {
            f"{name} {key}": values
            for key, values in by_size(along, tuple(TITLES), seed=seed).items()
        }
        if num_average:
            first_labels = None if labels is None else labels[:num_average]
            average = group_average(post, x[:num_average], acting, first_labels)
            rows += _rows(name, average, "average_")
    return Findings(tuple(rows), arrays)


def _sets(task: Task, number: int) -> dict[str, tuple[Tensor, Tensor | None]]:
    """Return the test set, the task's OOD sets, and noise."""
    x, y = inputs_of(task, number)
    sets: dict[str, tuple[Tensor, Tensor | None]] = {"test": (x, y)}
    return sets | {name: (ood_inputs(task, name, x)[1], None) for name in (*task.ood, NOISE)}


def group_average(post: Posterior, x: Tensor, acting: Group, labels: Tensor | None) -> Along:
    """Return what members, averaged over the group, predict along orbits."""
    orbit = acting.orbit(x)
    twice = along_orbits(post, orbit.flatten(0, 1), acting)  # (M, G, H B, C)
    members = twice.members.logsumexp(1) - math.log(len(acting))
    return Along(members.unflatten(1, orbit.shape[:2]), True, acting, labels)


def _rows(name: str, along: Along, prefix: str = "") -> list[Any]:
    rows = []
    for who, scores in (("member", along.member_scores()), ("ensemble", along.scores())):
        rows += [
            _row(f"{name}_{prefix}{who}_{key}", scores[key]) for key in METRICS if key in scores
        ]
    return rows


def _row(name: str, score: Score) -> Any:
    error = score.standard_error if math.isfinite(score.value) else None
    return measure(name, score.value, n=score.n, standard_error=error)


def _steered(
    seed: int, task: Task, make: Any, hook: str | None, training: dict[str, Any]
) -> Posterior:
    """Return an ensemble of escnn networks, one after another: their layers expand their filters in
    each pass, which no batched execution can do."""
    modules: list[nn.Module] = []
    turned = None if hook is None else augmentation(hook)
    for member in range(training["num_modes"]):
        member_seed = fold(seed, "steerable", member)
        torch.manual_seed(member_seed % 2**31)
        module = make(task.input_shape, task.num_outputs)
        assert isinstance(module, Steerable)
        steps = training["epochs"] * task.train.num_batches(training["batch_size"])
        optimizer = torch.optim.Adam(module.parameters(), training["lr"])
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        for epoch in range(training["epochs"]):
            order = fold(member_seed, "order", epoch)
            for number, (x, y) in enumerate(task.train.epoch(training["batch_size"], order)):
                if turned is not None:
                    x, y = turned.pairs(x, y, generator(member_seed, "augment", epoch, number))
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


def sets_of(runs: Runs, part: str) -> list[str]:
    """Return the sets that were looked at, the test set first, noise last."""
    marker = "_ensemble_same_share"
    metrics = (row.metric for results in runs.all(part) for row in results.rows)
    names = dict.fromkeys(metric.partition(marker)[0] for metric in metrics if marker in metric)
    return [name for name in names if not name.endswith("_average")]


def outside(runs: Runs, part: str) -> list[str]:
    """Return the OOD sets of images, without noise."""
    return [name for name in sets_of(runs, part) if name not in ("test", "noise")]


def mean_over(sets: Sequence[str], look: Lookup) -> dict[int, float]:
    """Return the mean over sets by seed; only seeds that have all."""
    values = [look(name) for name in sets]
    seeds = set.intersection(*map(set, values)) if values else set()
    return {seed: float(np.mean([v[seed] for v in values])) for seed in sorted(seeds)}


def scaled_ratio(runs: Runs, part: str, arm: str, where: str) -> dict[int, float]:
    """Return √M · (spread of the ensemble along orbits) / (spread of one member), by seed.

    1 if members are independent around an invariant mean, whose deviations average out as 1/√M;
    √M if they all deviate alike. That the ratio of spreads is at most 1 is convexity, and no
    finding.
    """
    member, ensemble = (
        runs.measured(part, arm, f"{where}_{who}_deviation") for who in ("member", "ensemble")
    )
    ratios = {}
    for seed, findings in runs.findings(part, arm).items():
        if member.get(seed) and seed in ensemble and f"{where} members" in findings.arrays:
            num_members = float(findings.arrays[f"{where} members"][-1])
            ratios[seed] = ensemble[seed] / member[seed] * num_members**0.5
    return ratios


def judge_near_one(gap: Difference | None, reach: float = 0.25) -> str:
    """Return the verdict on "the ratio is 1": its interval holds 0, and nothing beyond `reach`.

    Args:
        gap: ratio − 1.

    >>> judge_near_one(Difference(0.05, 0.03, 4, -0.04, 0.14))
    'holds'
    """
    return judge_interval(
        gap,
        lambda low, high: low * high <= 0 and max(-low, high) <= reach,
        lambda low, high: low * high > 0,
    )


def curves(runs: Runs, part: str, lines: dict[str, tuple[str, str]], metric: str) -> Display | None:
    """Return a metric against the number of members, mean over seeds with their standard error.

    Args:
        lines: by label, the training and the set.
    """
    points = {}
    for label, (arm, where) in lines.items():
        arrays = [findings.arrays for findings in runs.findings(part, arm).values()]
        arrays = [a for a in arrays if f"{where} {metric}" in a]
        if not arrays:
            continue
        values = np.stack([a[f"{where} {metric}"] for a in arrays])
        error = values.std(0, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else values[0] * 0
        points[label] = (arrays[0][f"{where} members"], values.mean(0), error)
    if not points:
        return None
    direction = "up" if metric == "same_share" else "down"
    return size_curve(points, metric=TITLES[metric], direction=direction)
