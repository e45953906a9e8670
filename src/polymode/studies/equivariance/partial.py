"""Partial augmentation with finite networks: is less than the whole group enough?

Fashion-MNIST, orbits of C4, LeNet ensembles trained with a part of the group: the images as they
are, C2, two neighbouring turns, three of four, all four drawn at random, and the full orbit in
every batch. All see as many images in as many steps: the full orbit has a quarter of the epochs,
and of the examples of a batch. The theorem is about the full orbit; what is expected of others at
infinite width is in the theory's parts.
"""

from __future__ import annotations

from typing import Any

from polymode.plots import Display
from polymode.plots.axes import over_seeds
from polymode.runs.part import Experiment, Part
from polymode.studies.equivariance import comparison
from polymode.studies.equivariance.comparison import (
    cell,
    curves,
    judge_near_one,
    scaled_ratio,
    sets_of,
)
from polymode.studies.study import Claim, Runs, Table, paired_difference
from polymode.studies.table_cells import difference_text, judge_sign, present

PART = "partial_networks"
ARMS = {
    "none": "none",
    "C2": "random:0-2",
    "two neighbours": "random:0-1",
    "three of four": "random:0-1-2",
    "all, drawn": "random",
    "full orbit": "full",
}
FULL, NONE = "full orbit", "none"


def parts(preset: str) -> dict[str, Part | Experiment]:
    """Return one training per part of the group and seed."""
    options: dict[str, Any] = {"task": "digits", "num_modes": 2, "epochs": 4, "num_inputs": 8}
    data: tuple[str, ...] = ()
    if preset != "smoke":
        small = preset == "cpu"
        sizes = {"num_train": 2000, "num_test": 300} if small else {"num_train": 60_000}
        task = {**sizes, "num_val": 0, "ood": ["mnist"], "shifts": []}
        data = ("fashion_mnist", "mnist")
        options = {
            "task": "fashion_mnist", "task_options": task, "num_modes": 10 if small else 100,
            "epochs": 8 if small else 48, "lr": 3e-3 if small else 1e-3,
            "num_inputs": 300 if small else 10_000,
        }  # fmt: skip
    arms = {
        name: {**options, "group": "C4", "augment": how, **_passes(options["epochs"], how)}
        for name, how in ARMS.items()
    }
    seeds = {"smoke": (0, 1), "cpu": (0, 1, 2), "paper": tuple(range(5))}[preset]
    return {PART: Experiment(function=comparison.trained, arms=arms, seeds=seeds, data=data)}


def _passes(epochs: int, how: str) -> dict[str, int]:
    """Return epochs and batches that give every arm as many images and as many steps."""
    full = how == "full"
    return {"epochs": epochs // 4 if full else epochs, "batch_size": 16 if full else 64}


def tables(runs: Runs) -> dict[str, Table]:
    """Return orbit metrics of the ensemble for each part of the group."""
    if PART not in runs.parts:
        return {}
    lines = []
    sets = [name for name in sets_of(runs, PART) if name != "noise"]
    for name in runs.arms(PART):
        cells = [
            cell(runs.measured(PART, name, f"{where}_ensemble_{metric}"), digits)
            for where in sets
            for metric, digits in (("same_predictions", 2), ("deviation", 3))
        ]
        cells += [cell(scaled_ratio(runs, PART, name, where)) for where in sets]
        accuracy = cell(runs.measured(PART, name, "test_ensemble_orbit_accuracy"), 3)
        lines.append((name, *cells, accuracy))
    head = [""]
    for where in sets:
        head += [f"OSP, {where} ↑", f"orbit s.d., {where} ↓"]
    head += [f"√M · ratio, {where}" for where in sets]
    note = (
        f"{over_seeds(len(runs.of(PART, runs.arms(PART)[0])))}; ensembles; accuracy on all turns;"
        " ratio: spread along orbits of the ensemble over that of a member, 1 after times √M if"
        " members are independent around an invariant mean"
    )
    return {
        PART: Table("A part of C4 in the augmentation", (*head, "accuracy ↑"), tuple(lines), note)
    }


def figures(runs: Runs) -> dict[str, Display]:
    """Return the spread along orbits against the number of members, on the test set."""
    lines = {name: (name, "test") for name in runs.arms(PART)}
    return present({"partial_networks_members": curves(runs, PART, lines, "deviation")})


def claims(runs: Runs) -> list[Claim]:
    """Return whether the full orbit is more invariant than any part, and its mean invariant."""
    claimed = []
    sets = [name for name in sets_of(runs, PART) if name != "noise"]
    for where in sets:
        metric = f"{where}_ensemble_deviation"
        full = runs.measured(PART, FULL, metric)
        for name in runs.arms(PART):
            if name in (FULL, "all, drawn"):
                continue
            difference = paired_difference(full, runs.measured(PART, name, metric))
            claimed.append(
                Claim(
                    f"Partial augmentation, {where}: the full orbit varies less than: {name}",
                    "the theorem needs the full orbit",
                    difference_text(difference, "orbit s.d., full − it"),
                    judge_sign(difference, sign=-1),
                )
            )
        for name in (FULL, NONE):
            excess = paired_difference(scaled_ratio(runs, PART, name, where), 1.0)
            above = name == NONE
            words = (
                "stays above 1/√M without augmentation" if above else "falls as 1/√M: full orbit"
            )
            claimed.append(
                Claim(
                    f"Partial augmentation, {where}: the ensemble's spread {words}",
                    "the mean is invariant for the full orbit alone",
                    difference_text(excess, "√M · s.d. of ensemble / of member − 1"),
                    judge_sign(excess, sign=1) if above else judge_near_one(excess),
                )
            )
    return claimed
