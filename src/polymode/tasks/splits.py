"""Which rows are for training, validation and test: the same for every seed of a task.

A split is a property of the data set, not of a run: results of several seeds are then about the
same examples, and no seed moves a test row into the training set. `N` examples.
"""

from __future__ import annotations

import torch
from torch import Tensor

from polymode.core.rng import generator

FIXED = 0  # seed of what is the same for every seed of a task: splits, OOD sets


def stratified_order(labels: Tensor, name: str, part: str = "split") -> Tensor:
    """Return an order of the rows in which every stretch has the classes in their overall shares.

    The i-th of the n rows of a class, shuffled, gets the place (i + 1/2) / n; rows are sorted by
    place. So a class with the share p of all rows has in the first k of them p k, up to
    (1 + p C) / 2 for C classes, which is 1 where classes are balanced; in any stretch, up to twice
    this. Subsets taken from the front lie in each other.

    Args:
        labels: (N,) integers. name: of the task; part: what the order is for. Two names, or two
            parts, draw independent orders.
    """
    places = torch.empty(len(labels), dtype=torch.float64)
    for label in labels.unique().tolist():
        rows = (labels == label).nonzero().flatten()
        shuffled = torch.randperm(len(rows), generator=generator(FIXED, name, part, label))
        places[rows[shuffled]] = (torch.arange(len(rows), dtype=torch.float64) + 0.5) / len(rows)
    return places.argsort(stable=True)


def shuffled_order(num: int, name: str, part: str = "split") -> Tensor:
    """Return a random order of `num` rows, for targets that are not classes."""
    return torch.randperm(num, generator=generator(FIXED, name, part))


def first(order: Tensor, num: int) -> Tensor:
    """Return the first `num` rows of `order` as they stand in the file, from low to high."""
    return order[:num].sort().values


def share(fraction: float, num: int) -> int:
    """Return how many of `num` rows make up `fraction`: rounded, and at least 1 if it is > 0."""
    return max(1, round(fraction * num)) if fraction > 0 else 0


def check_fraction(option: str, owner: str, fraction: float) -> float:
    """Return a fraction in [0, 1), or say which option is not one."""
    if isinstance(fraction, bool) or not isinstance(fraction, (int, float)):
        raise ValueError(f"`{option}` of {owner} must be a number in [0, 1), got {fraction!r}")
    if not 0 <= fraction < 1:
        raise ValueError(f"`{option}` of {owner} must be in [0, 1), got {fraction!r}")
    return float(fraction)
