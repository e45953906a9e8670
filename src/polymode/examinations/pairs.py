r"""Functional diversity: mutual information of every two networks, on the test set and outside.

For each pair of the S samples of a posterior, their mutual information (see
`metrics/diversity/pairwise.py`), averaged over inputs: once on the test set, once on an OOD set.
"No functional collapse" means that no pair comes near 0. The correlation tells whether pairs that
differ on the test set also differ outside; since pairs share members, its standard error comes from
the jackknife over networks,

.. math:: s.e.^2 = \frac{S - 1}{S} \sum_s (r_{(s)} - \bar r)^2,

with :math:`r_{(s)}` the correlation over pairs without network s. Further, the mutual information
of the first 1, 2, 4, ... modes together, with all their samples.

Reference: O. Laurent, E. Aldea, G. Franchi, A symmetry-aware exploration of Bayesian neural network
posteriors, ICLR 2024. `S` samples, `M` modes, `L` samples per mode.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from polymode.core.options import Config, option
from polymode.core.registry import suggest
from polymode.examinations.examination import EXAMINATIONS
from polymode.examinations.findings import (
    Findings,
    NotApplicable,
    measure,
    require_one_target,
)
from polymode.metrics.diversity import pairwise_mutual_information
from polymode.metrics.results import Row
from polymode.posterior import Posterior
from polymode.prediction import CategoricalPrediction
from polymode.tasks import Task
from polymode.training.data import first_inputs

NATS = "nats"
KEPT = 20_000  # pairs stored for the figure, at most


@dataclass(frozen=True, kw_only=True)
class Pairs(Config):
    """Options of `pairs`."""

    called = "pairs"
    ood: str = option("", doc="name of the OOD set, empty for the task's first")
    num_inputs: int = option(400, ge=1, doc="inputs of each set, at most")


@EXAMINATIONS.register(
    "pairs",
    summary="mutual information of every two networks, on the test set and on an OOD set",
    measures={
        "id_pair_mi": "mutual information of two networks on the test set, mean over pairs",
        "least_id_pair_mi": "the smallest over all pairs: near 0, two networks are one function",
        "ood_pair_mi": "mutual information of two networks on the OOD set, mean over pairs",
        "least_ood_pair_mi": "the smallest over all pairs",
        "correlation": "of the two over pairs; error by the jackknife over networks",
    },
    options=Pairs,
)
def pairs(post: Posterior, task: Task, options: Pairs) -> Findings:
    """Return the diversity of pairs; see the module."""
    require_one_target("a pair's mutual information", post.likelihood)
    name = _ood_set(task, options.ood)
    if task.test is None or not post.likelihood.classification or post.num_samples < 3:
        raise NotApplicable(
            "pairs needs a classifier with at least 3 samples and a task with a test set, got"
            f" {post.num_samples} sample(s)"
        )
    inside = first_inputs(task.test, options.num_inputs)
    outside = first_inputs(task.ood[name], options.num_inputs)
    rows: list[Row] = []
    arrays: dict[str, np.ndarray] = {}
    matrices = []
    for side, inputs in (("id", inside), ("ood", outside)):
        prediction = post.predict(inputs)
        assert isinstance(prediction, CategoricalPrediction)
        matrix = pairwise_mutual_information(prediction).numpy()
        matrices.append(matrix)
        values = matrix[np.triu_indices(len(matrix), 1)]
        error, count = (
            _jackknife([_mean_without(matrix, s) for s in range(len(matrix))]),
            len(values),
        )
        rows += [
            measure(f"{side}_pair_mi", values.mean(), unit=NATS, n=count, standard_error=error),
            measure(f"least_{side}_pair_mi", values.min(), unit=NATS, n=count),
        ]  # fmt: skip
        arrays[f"{side} pairs"] = _some(values)
        sizes, curve = _by_modes(prediction.log_probs, post.num_modes)
        arrays["modes"], arrays[f"{side} mutual information"] = sizes, curve
    r, error = correlation(*matrices)
    rows.append(measure("correlation", r, n=len(matrices[0]), standard_error=error))
    return Findings(tuple(rows), arrays)


def correlation(a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
    """Return the correlation over pairs of two symmetric matrices (S, S), and its standard error.

    Leaving out a network subtracts its row from the sums, so the jackknife costs one pass.
    """
    size = len(a)
    count = size * (size - 1) / 2
    centred = [m - m[np.triu_indices(size, 1)].mean() for m in (a, b)]
    for matrix in centred:
        np.fill_diagonal(matrix, 0.0)
    x, y = centred
    products = [x, y, x * x, y * y, x * y]
    totals = np.array([m.sum() / 2 for m in products])
    rows = np.array([m.sum(1) for m in products])  # (5, S)

    def r(sums: np.ndarray, n: float) -> np.ndarray:
        sx, sy, sxx, syy, sxy = sums
        varied = (sxx - sx * sx / n) * (syy - sy * sy / n)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray((sxy - sx * sy / n) / np.sqrt(varied))

    without = r(totals[:, None] - rows, count - (size - 1))
    return float(r(totals, count)), _jackknife(without)


def _jackknife(without: np.ndarray | list[float]) -> float:
    values = np.asarray(without)
    size = len(values)
    return float(math.sqrt((size - 1) / size * ((values - values.mean()) ** 2).sum()))


def _mean_without(matrix: np.ndarray, s: int) -> float:
    size = len(matrix)
    return float((matrix.sum() / 2 - matrix[s].sum()) / ((size - 1) * (size - 2) / 2))


def _by_modes(log_probs: torch.Tensor, num_modes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return numbers of modes, and the mutual information of that many first modes, in nats."""
    probs = log_probs.double().exp()
    by_mode = probs.unflatten(0, (num_modes, -1))  # S is mode by mode
    entropies = torch.special.entr(by_mode).sum(-1)
    sizes = sorted({min(2**k, num_modes) for k in range(num_modes.bit_length() + 1)})
    information = []
    for size in sizes:
        total = torch.special.entr(by_mode[:size].mean((0, 1))).sum(-1)
        information.append(float((total - entropies[:size].mean((0, 1))).mean()))
    return np.array(sizes, float), np.array(information)


def _some(values: np.ndarray) -> np.ndarray:
    """Return at most `KEPT` values, evenly spaced, the same pairs for both sets."""
    if len(values) <= KEPT:
        return values
    return values[np.linspace(0, len(values) - 1, KEPT).astype(int)]


def _ood_set(task: Task, name: str) -> str:
    names = list(task.ood)
    if not names:
        raise ValueError("pairs needs an OOD set; this task has none")
    if name and name not in names:
        raise ValueError(
            f"Unknown OOD set '{name}'.{suggest(name, names)} Known: {', '.join(names)}"
        )
    return name or names[0]
