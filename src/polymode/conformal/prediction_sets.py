r"""Conformal sets of classes, which contain new labels with the stated probability.

A score :math:`s(x, c)` is low for classes that fit. With the quantile :math:`\hat q` of the scores
of calibration labels (`quantile.py`) the set of a new input is
:math:`\{c : s(x, c) \le \hat q\}`. With mean probabilities p, the rank :math:`r_c` of a class (1 is
the most probable; of ties the first), and :math:`u` uniform on (0, 1), one per example, for
calibration and new examples alike:

====  =======================================================================================
thr   :math:`1 - p_c`; sets of least mean size if p is right
aps   :math:`\sum_{j: r_j < r_c} p_j + u\,p_c`; uniform, so that sets adapt, if p is right
raps  that of aps :math:`+\ \lambda \max(0, r_c - k_{reg})`; long tails of classes cost
====  =======================================================================================

Without randomisation u = 1: sets are larger, and cover more than stated.

References: M. Sadinle, J. Lei, L. Wasserman, Least ambiguous set-valued classifiers with bounded
error levels, JASA 114 (2019) (thr); Y. Romano, M. Sesia, E. Candès, Classification with valid and
adaptive coverage, NeurIPS 2020 (aps); A. Angelopoulos, S. Bates, J. Malik, M. I. Jordan,
Uncertainty sets for image classifiers using conformal prediction, ICLR 2021 (raps; where its
published code multiplies a part of the penalty by u, this file follows the paper).
`n`, `B` examples, `C` classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from polymode.conformal.quantile import conformal_quantile, conformal_rank
from polymode.core.checks import check_call
from polymode.core.registry import suggest
from polymode.core.rng import generator
from polymode.likelihoods.targets import check_as_many, check_labels
from polymode.prediction import CategoricalPrediction, Prediction

METHODS = ("thr", "aps", "raps")


@dataclass(frozen=True, repr=False)
class PredictionSets:
    """Sets of classes, `members` (B, C) true where a class is in the set."""

    members: Tensor

    @property
    def sizes(self) -> Tensor:
        """Classes in each set, int64 (B,)."""
        return self.members.sum(-1)

    @property
    def empty(self) -> Tensor:
        """True where no class fits, (B,): an input unlike those of the calibration."""
        return ~self.members.any(-1)

    def __len__(self) -> int:
        return len(self.members)

    def __repr__(self) -> str:
        batch, classes = self.members.shape
        size = f", mean size={self.sizes.double().mean():.4g}" if batch else ""
        return f"PredictionSets(B={batch}, C={classes}{size}, empty={int(self.empty.sum())})"


@dataclass(frozen=True)
class ConformalSets:
    """A calibrated rule: call it on a prediction to get its sets.

    Args:
        method: "thr", "aps" or "raps". level: the share of labels to be covered.
        quantile: scores up to it belong to the set; inf if n is too small for the level.
        n: calibration examples. num_classes: of their prediction.
        randomized: whether u is drawn (aps, raps). allow_empty: whether a set may be empty.
        penalty, k_reg: of raps, 0 otherwise.
    """

    method: str
    level: float
    quantile: float
    n: int
    num_classes: int
    randomized: bool
    allow_empty: bool
    penalty: float
    k_reg: int

    @property
    def vacuous(self) -> bool:
        """Whether every set is all classes, because ceil((n + 1) level) > n."""
        return self.quantile == torch.inf

    def __call__(self, prediction: Prediction, *, seed: int = 0) -> PredictionSets:
        """Return the sets of B inputs.

        Args:
            prediction: of as many classes as in the calibration.
            seed: of u. The same seed gives the same sets; use a different one for each batch.
        """
        probs = probabilities(prediction)
        if probs.shape[-1] != self.num_classes:
            raise ValueError(
                f"Calibrated on {self.num_classes} classes, got a prediction of {probs.shape[-1]};"
                " calibrate on predictions of the same kind."
            )
        draws = uniform_draws(len(probs), seed, "new") if self.randomized else None
        members = class_scores(probs, draws, self.penalty, self.k_reg, self.method) <= self.quantile
        if not self.allow_empty:
            top = torch.zeros_like(members).scatter(1, probs.argmax(-1, keepdim=True), True)
            members = torch.where(members.any(-1, keepdim=True), members, top)
        return PredictionSets(members)


def conformal_sets(
    prediction: Prediction,
    targets: Tensor,
    level: float = 0.9,
    method: str = "thr",
    *,
    randomized: bool = True,
    seed: int = 0,
    allow_empty: bool = True,
    penalty: float | None = None,
    k_reg: int | None = None,
) -> ConformalSets:
    """Return a rule whose sets hold the label of new examples with probability >= `level`.

    On average over exchangeable calibration and new examples, whatever the model; not for each
    input, class or group. Only the quantile is fitted on these data: they must be disjoint from the
    data that trained, recalibrated or tuned the model. If n is too small for the level the sets
    hold all classes (`.vacuous`); n >= level / (1 - level) is enough.

    Args:
        prediction: of n >= 1 examples that the user sets aside for this; its mean is used.
        targets: their labels (n,).
        level: in (0, 1).
        method: "thr", "aps" or "raps".
        randomized: aps and raps draw u, which makes their coverage exact; False sets u = 1.
        seed: of u for the calibration examples.
        allow_empty: False adds the top class to empty sets; True leaves them to be seen.
        penalty: lambda >= 0 of raps, 0.01 if None.
        k_reg: classes >= 0 that raps does not penalise, 5 if None. The paper tunes both on further
            data, see `tune_raps`.
    """
    check_call(conformal_sets, locals(), but=("penalty", "k_reg"))
    if method not in METHODS:
        raise ValueError(f"Unknown method '{method}'.{suggest(method, METHODS)} Known: {METHODS}.")
    if method != "raps" and (penalty is not None or k_reg is not None):
        raise ValueError(f"`penalty` and `k_reg` belong to raps, got method '{method}'.")
    default = (0.01, 5) if method == "raps" else (0.0, 0)
    cost = default[0] if penalty is None else float(penalty)
    free = default[1] if k_reg is None else k_reg
    if not 0.0 <= cost < torch.inf or not isinstance(free, int) or free < 0:
        raise ValueError(
            f"raps needs a finite `penalty` >= 0 and a whole number `k_reg` >= 0, got {penalty},"
            f" {k_reg}"
        )
    probs, labels = pair(prediction, targets)
    draws = uniform_draws(len(probs), seed, "calibration") if randomized else None
    scores = class_scores(probs, draws, cost, free, method).gather(1, labels[:, None])[:, 0]
    quantile = float(conformal_quantile(scores, level))
    n, classes = probs.shape
    return ConformalSets(
        method, float(level), quantile, n, classes, randomized, allow_empty, cost, free
    )


def tune_raps(
    prediction: Prediction,
    targets: Tensor,
    level: float = 0.9,
    *,
    penalties: Sequence[float] = (0.001, 0.01, 0.1, 0.2, 0.5),
    seed: int = 0,
) -> dict[str, Any]:
    """Return {"penalty", "k_reg"} for `conformal_sets(..., method="raps")`.

    `k_reg` is the conformal quantile of the labels' ranks, `penalty` the one of `penalties` with
    the smallest sets on these data, as in the paper: data of the user's choice, disjoint from the
    calibration and the test set.
    """
    check_call(tune_raps, locals())
    probs, labels = pair(prediction, targets)
    order = probs.argsort(dim=-1, descending=True, stable=True)
    ranks = (order == labels[:, None]).int().argmax(-1) + 1
    rank = conformal_rank(len(ranks), level)
    k_reg = int(ranks.sort().values[rank - 1]) if rank <= len(ranks) else probs.shape[-1]

    def mean_size(penalty: float) -> float:
        options: dict[str, Any] = {"penalty": penalty, "k_reg": k_reg, "seed": seed}
        rule = conformal_sets(prediction, targets, level, "raps", **options)
        return rule(prediction, seed=seed).sizes.double().mean().item()

    return {"penalty": float(min(penalties, key=mean_size)), "k_reg": k_reg}


def class_scores(
    probs: Tensor, draws: Tensor | None, penalty: float, k_reg: int, method: str
) -> Tensor:
    """Return the score of each class, (B, C), from probabilities and u (B,), or None for u = 1."""
    if method == "thr":
        return 1.0 - probs
    ordered, order = probs.sort(dim=-1, descending=True, stable=True)
    part = ordered if draws is None else draws.to(ordered.device)[:, None] * ordered
    rank = torch.arange(1, probs.shape[-1] + 1, device=probs.device)
    scores = ordered.cumsum(-1) - ordered + part + penalty * (rank - k_reg).clamp(min=0)
    return torch.empty_like(scores).scatter_(1, order, scores)


def uniform_draws(n: int, seed: int, what: str) -> Tensor:
    """Return u of n examples, "calibration" or "new" ones."""
    return torch.rand(n, generator=generator(seed, "conformal", what), dtype=torch.float64)


def probabilities(prediction: Prediction) -> Tensor:
    """Return the mean prediction in float64, (B, C)."""
    if not isinstance(prediction, CategoricalPrediction):
        kind = type(prediction).__name__
        raise ValueError(
            f"Sets need a prediction of classes, got {kind}; for regression use"
            " `conformal_intervals`."
        )
    return prediction.mean.detach().double()


def pair(prediction: Prediction, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean prediction (n, C) and its labels (n,)."""
    probs = probabilities(prediction)
    labels = check_labels(targets, probs.shape[-1]).to(probs.device)
    check_as_many(len(labels), len(probs), "label(s)")
    return probs, labels
