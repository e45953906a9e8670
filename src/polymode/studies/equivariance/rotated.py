"""Rotated Fashion-MNIST: who is invariant under C4, C8 and C16, in and out of distribution.

Each group has its own training: images are turned by a random element in every batch. *only DA* are
the members of the ensemble one by one, *DeepEns+DA* is the mean of their probabilities; likewise
for networks behind a learned canonicalisation, for group averages, and for networks of escnn where
that is installed. All ensembles have the same number of members.

Of the talk's set-up its table is known: groups, methods, orbit same predictions. The network
(LeNet), the images for training, the OOD sets (MNIST, grey CIFAR-10, and normal noise), the number
of members, optimiser and epochs are our choice. paper: all 60,000 images, 100 members, 50 epochs,
with CIFAR-10 whole. cpu: 3,000 images, 10 members, 8 epochs, 4 seeds; escnn 3 epochs, 3 seeds.
smoke: digits.
"""

from __future__ import annotations

from typing import Any

from polymode.equivariance.steerable import escnn_is_installed
from polymode.runs.part import Experiment, Part
from polymode.studies.equivariance import networks, published

PART, STEERED = "rotated", "rotated_escnn"
PLAIN, CANON = "augmented", "canonical"
FIELDS = {"C4": [4, 8, 16], "C8": [2, 4, 8], "C16": [1, 2, 4]}


def arm(group: str, method: str) -> str:
    """Return the name of a training.

    >>> arm("C4", "augmented")
    'C4, augmented'
    """
    return f"{group}, {method}"


def parts(preset: str) -> dict[str, Part | Experiment]:
    """Return the comparison, and escnn's networks where they can be made."""
    options, groups = _options(preset), published.GROUPS
    seeds = {"smoke": (0, 1), "cpu": (0, 1, 2, 3), "paper": tuple(range(5))}[preset]
    groups = groups[:2] if preset == "smoke" else groups
    average = {"smoke": 4, "cpu": 40, "paper": 1000}[preset]
    data = () if preset == "smoke" else ("fashion_mnist", "mnist", _colour(preset))
    arms: dict[str, dict[str, Any]] = {}
    for group in groups:
        plain = {**options, "group": group, "num_average": average}
        arms[arm(group, PLAIN)] = {**plain, "method": PLAIN}
        arms[arm(group, CANON)] = {**options, "group": group, "method": CANON}
    found: dict[str, Part | Experiment] = {
        PART: Experiment(function=networks.trained, arms=arms, seeds=seeds, data=data)
    }
    if escnn_is_installed():
        epochs = {"smoke": 1, "cpu": 3, "paper": 50}[preset]
        steered = {**options, "epochs": epochs, "method": "steerable"}
        found[STEERED] = Experiment(
            function=networks.trained,
            arms={
                arm(group, "escnn"): {**steered, "group": group, "fields": FIELDS[group]}
                for group in groups
            },
            seeds=seeds[:3],
            data=data,
        )
    return found


def _colour(preset: str) -> str:
    return "cifar10" if preset == "paper" else "cifar10_subset"


def _options(preset: str) -> dict[str, Any]:
    if preset == "smoke":
        return {"task": "digits", "num_modes": 2, "epochs": 1, "num_inputs": 8}
    sizes = {"cpu": {"num_train": 3000, "num_test": 300}, "paper": {"num_train": 60_000}}[preset]
    task = {**sizes, "num_val": 0, "ood": ["mnist", _colour(preset)], "shifts": []}
    small = preset == "cpu"
    return {
        "task": "fashion_mnist", "task_options": task, "num_modes": 10 if small else 100,
        "epochs": 8 if small else 50, "lr": 3e-3 if small else 1e-3,
        "num_inputs": 300 if small else 10_000,
    }  # fmt: skip


def tables(runs):
    return {}


def figures(runs):
    return {}


def claims(runs):
    return []


def comparisons(preset, runs):
    return []
