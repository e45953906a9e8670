"""Results that nobody trained: as many methods, seeds and data sets as a test of reports needs.

Predictions are random but not senseless: the label is more probable than other classes, and less
so elsewhere. Numbers are computed from the predictions of the first seed of the first two methods,
with one and two members; those of the others are the same with a little noise, which is cheaper.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import torch

from polymode.metrics import Results, Row
from polymode.metrics.results import Cost, Kept
from polymode.metrics.score import (
    CLASSIFICATION,
    OOD_CLASSIFICATION,
    NotDefined,
    entries,
    score_of,
)
from polymode.prediction import CategoricalPrediction

CLASSES = 10


def results(
    num_methods: int = 10,
    num_seeds: int = 5,
    *,
    examples: int = 200,
    shifts: int = 2,
    task: str = "made up",
    names: tuple[str, ...] = (),
    shift_name: str = "shift",
    ood_name: str = "far",
) -> list[Results]:
    """Return results of methods with one to ten members on one classification task."""
    labels = torch.randint(CLASSES, (examples,), generator=torch.Generator().manual_seed(0))
    names = names or tuple(f"method_{number}" for number in range(num_methods))
    strengths = {"test": 1.0}
    for shift in range(shifts):
        named = f"shift:{shift_name}_{shift}"
        strengths |= {f"{named}:{level}": 1 - 0.15 * level for level in range(1, 6)}
    strengths |= {"ood:near": 0.25, f"ood:{ood_name}": 0.05}
    known = [_scores(_kept(number, 0, labels, strengths)) for number in range(min(2, len(names)))]
    return [
        _one(
            task, name, number, seed, known[min(number, 1)], _kept(number, seed, labels, strengths)
        )
        for number, name in enumerate(names)
        for seed in range(num_seeds)
    ]


def _shaken(row: Row, seed: int) -> Row:
    if row.value is None:
        return row
    noise = random.Random(f"{seed} {row.dataset} {row.metric}").gauss(0, 0.02)
    better = 0.04 * (seed // 1000) if row.direction == "down" else 0.0
    shaken = row.value * (1 + noise - better)
    share = row.unit in ("fraction", "probability", "error rate")
    return row._replace(value=min(shaken, 1.0) if share else shaken)


def _kept(
    number: int, seed: int, labels: torch.Tensor, strengths: dict[str, float]
) -> dict[str, Kept]:
    stream = torch.Generator().manual_seed(1000 * number + seed)
    samples, sharpness = 1 + number % 10, 1.8 + 0.15 * number
    kept = {}
    for dataset, strength in strengths.items():
        logits = torch.randn(samples, len(labels), CLASSES, generator=stream)
        logits += strength * sharpness * torch.nn.functional.one_hot(labels, CLASSES)
        targets = None if dataset.startswith("ood:") else labels
        kept[dataset] = Kept(CategoricalPrediction.from_logits(logits), targets)
    pictures = torch.rand(12, 1, 8, 8, generator=stream)
    kept["examples"] = Kept(kept["test"].prediction[:12], labels[:12], pictures)
    return kept


def _one(
    task: str, name: str, number: int, seed: int, rows: list[Row], kept: dict[str, Kept]
) -> Results:
    samples = 1 + number % 10
    return Results(
        task=task,
        method=name,
        net="mlp",
        seed=seed,
        config={"num_modes": samples, "lr": 0.001, "epochs": 10},
        rows=tuple(_shaken(row, 1000 * number + seed) for row in rows),
        cost=Cost(
            samples, samples, 9000 * samples, 0.01 * samples, 1000, 3.0 * samples, 36000 * samples
        ),
        near_ood=("near",),
        kept=kept,
    )


def _scores(kept: dict[str, Kept]) -> list[Row]:
    return [row for dataset in kept if dataset != "examples" for row in _rows(dataset, kept)]


def _rows(dataset: str, kept: dict[str, Kept]) -> Iterator[Row]:
    prediction, targets, _ = kept[dataset]
    if dataset.startswith("ood:"):
        for entry in entries(OOD_CLASSIFICATION):
            yield _row(dataset, entry, kept["test"].prediction, prediction)
    for entry in entries(CLASSIFICATION):
        if targets is not None or not entry.metadata["targets"]:
            yield _row(dataset, entry, prediction, targets)


def _row(dataset: str, entry: Any, prediction: Any, other: Any) -> Row:
    facts = entry.metadata
    try:
        value, n, error, _ = score_of(entry, prediction, other)
        note = ""
    except NotDefined as reason:
        value, n, error, note = None, len(prediction), None, f"n/a ({reason})"
    return Row(dataset, entry.name, value, facts["unit"], facts["direction"], n, error, note)
