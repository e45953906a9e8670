"""Partial augmentation with finite networks: is less than the whole group enough?

Fashion-MNIST, orbits of C4, LeNet ensembles trained with a part of the group: the images as they
are, C2, two neighbouring turns, three of four, all four drawn at random, and the full orbit in
every batch. All see the same number of images: the full orbit has a quarter of the epochs. The
theorem is about the full orbit; what is expected of others is the infinite-width module's part.
"""

from __future__ import annotations

from typing import Any

from polymode.runs.part import Experiment, Part
from polymode.studies.equivariance import networks

PART = "partial"
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
        name: {**options, "group": "C4", "augment": how, "epochs": _epochs(options, how)}
        for name, how in ARMS.items()
    }
    seeds = {"smoke": (0, 1), "cpu": (0, 1, 2), "paper": tuple(range(5))}[preset]
    return {PART: Experiment(function=networks.trained, arms=arms, seeds=seeds, data=data)}


def _epochs(options: dict[str, Any], how: str) -> int:
    epochs: int = options["epochs"]
    return epochs // 4 if how == "full" else epochs


def tables(runs):
    return {}


def figures(runs):
    return {}


def claims(runs):
    return []


def comparisons(preset, runs):
    return []
