"""What a guess would reach: a number that is worse than that is not green, even if it is the best.

OOD scores: an AUROC of 0.5, an FPR95 of 0.95. Scores of classes: those of equal probabilities for
all C classes, an accuracy of 1 / C, an NLL of log C and a Brier score of 1 − 1 / C.
"""

from __future__ import annotations

import math

from polymode.metrics.leaderboard import Leaderboard


def chance_of(board: Leaderboard) -> dict[str, float]:
    """Return what a guess reaches, by metric, for the metrics of the board where it is known."""
    metrics = {column.metric for column in board.columns}
    levels = {name: 0.5 for name in metrics if name.startswith("auroc_")}
    levels |= {name: 0.95 for name in metrics if name.startswith("fpr95_")}
    count = num_classes(board)
    if count > 1 and "accuracy" in metrics:
        levels |= {"accuracy": 1 / count, "nll": math.log(count), "brier": 1 - 1 / count}
    return levels


def num_classes(board: Leaderboard) -> int:
    """Return the number of classes, 0 where results do not say."""
    first = board.entries[0].results[0]
    if first.class_names:
        return len(first.class_names)
    return int(first.kept["test"].prediction.mean.shape[-1]) if "test" in first.kept else 0


def worse_than_chance(value: float, level: float, direction: str) -> bool:
    """Return whether a number is on the wrong side of what a guess reaches."""
    return value < level if direction == "up" else value > level
