r"""Detection of attacked inputs by uncertainty.

For each score u (predictive entropy, mutual information, ...):

- AUROC, the probability that an attacked input has a higher score than a clean one, over all
  attacked inputs and over those on which the attack succeeded; 1/2 is chance, less means that
  attacked inputs look *more* certain.
- With a threshold that rejects a given share of clean inputs: the accuracy on accepted attacked
  inputs, and the share of all attacked inputs that are accepted and wrong, the attacker's goal.

Traps: both sets hold the same images, so the standard errors, DeLong's for independent sets, are a
little too large. A high AUROC under an attack that does not know the detector says nothing about
one that does: repeat it with `adaptive`.

`N` examples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from polymode.adversary.attack import attack
from polymode.adversary.attack_checks import check_number
from polymode.adversary.attack_kinds import KINDS
from polymode.adversary.attacked import Attacked
from polymode.core.checks import check_call
from polymode.core.html import html_block, html_table
from polymode.metrics.ood import SCORES, auroc
from polymode.metrics.score import NotDefined
from polymode.metrics.text_table import align
from polymode.posterior import Posterior

DETECTORS = tuple(name for name in SCORES if name != "variance")
REJECTION = 0.05


class Detection(NamedTuple):
    """The detection of one attack by one score.

    Attributes:
        auroc, standard_error: of all N attacked inputs against the clean ones.
        auroc_successful: of those on which the attack succeeded; NaN where there are none.
        accepted: share of attacked inputs below the threshold.
        accepted_accuracy: accuracy among them, NaN where there are none.
        accepted_wrong: share of all attacked inputs that are accepted and wrong.
    """

    auroc: float
    standard_error: float
    auroc_successful: float
    accepted: float
    accepted_accuracy: float
    accepted_wrong: float


def detection(found: Attacked, *, rejection: float = REJECTION) -> dict[str, Detection]:
    """Return the detection of an attack by each score; undefined scores are left out.

    Args:
        rejection: share of clean inputs that the threshold rejects at most, in (0, 1).
    """
    check_call(detection, locals())
    check_rejection(rejection)
    by_score = {}
    for name in DETECTORS:
        try:
            before, after = SCORES[name](found.clean), SCORES[name](found.attacked)
        except NotDefined:
            continue
        by_score[name] = _detection(before.double(), after.double(), found, rejection)
    return by_score


def check_rejection(rejection: Any) -> None:
    """Refuse a share that is not in (0, 1)."""
    check_number("rejection", rejection)
    if rejection >= 1:
        raise ValueError(f"`rejection` of an attack must be < 1, got {rejection!r}")


def _detection(before: Tensor, after: Tensor, attacked: Attacked, rejection: float) -> Detection:
    area = auroc(before, after)
    hit = attacked.success
    successful = auroc(before, after[hit]).value if hit.any() else math.nan
    accepted = after <= threshold(before, rejection)
    right = (accepted & attacked.correct).double().mean().item()
    share = accepted.double().mean().item()
    return Detection(
        area.value,
        math.nan if area.standard_error is None else area.standard_error,
        successful,
        share,
        right / share if share else math.nan,
        share - right,
    )


def threshold(scores: Tensor, rejection: float) -> Tensor:
    """Return the lowest threshold above which at most this share of the scores (N,) is.

    >>> import torch
    >>> threshold(torch.tensor([1.0, 2.0, 3.0, 4.0]), 0.25)
    tensor(3.)
    """
    above = int(rejection * len(scores) + 1e-9)
    return scores.sort().values[len(scores) - 1 - above]


class Sweep(NamedTuple):
    """One attack at rising ε.

    Attributes:
        eps: (E,) rising. attacks: one per ε.
        detections: by score, for each ε. rejection: of their thresholds.
    """

    eps: np.ndarray
    attacks: tuple[Attacked, ...]
    detections: tuple[dict[str, Detection], ...]
    rejection: float

    @property
    def accuracy(self) -> np.ndarray:
        """(E,) share of labels that are still predicted."""
        return np.array([attacked.accuracy for attacked in self.attacks])

    @property
    def success_rate(self) -> np.ndarray:
        return np.array([attacked.success_rate for attacked in self.attacks])

    def mean_score(self, name: str) -> np.ndarray:
        """Return the mean of a score over attacked inputs, (E,)."""
        scores = (SCORES[name](attacked.attacked) for attacked in self.attacks)
        return np.array([score.double().mean().item() for score in scores])

    def of(self, score: str, number: str = "auroc") -> np.ndarray:
        """Return one number of a score's `Detection`, (E,)."""
        return np.array([getattr(detections[score], number) for detections in self.detections])

    @property
    def scores(self) -> list[str]:
        """The scores that this posterior has."""
        return list(self.detections[0])

    def __str__(self) -> str:
        head, *lines = self._lines()
        flags = [f"! {flag}" for flag in self.attacks[-1].flags]
        return "\n".join([repr(self.attacks[-1]), align(head, lines), *flags])

    def _repr_html_(self) -> str:
        head, *lines = self._lines()
        note = "; ".join(map(str, self.attacks[-1].flags))
        return html_block(repr(self.attacks[-1]), html_table(head, lines), note=note)

    def _lines(self) -> list[tuple[str, ...]]:
        short = {"predictive_entropy": "entropy", "mutual_information": "MI"}
        names = [name for name in short if name in self.scores]
        head = ["eps", "accuracy", "success", *(f"{short[n]} [nats]" for n in names)]
        lines: list[tuple[str, ...]] = [(*head, *(f"AUROC {short[n]}" for n in names))]
        columns = [self.accuracy, self.success_rate, *map(self.mean_score, names)]
        columns += [self.of(name) for name in names]
        for row, eps in enumerate(self.eps):
            lines.append((f"{eps:g}", *(f"{column[row]:.3f}" for column in columns)))
        return lines


def sweep(
    post: Posterior,
    x: Any,
    y: Any,
    *,
    eps: Sequence[float],
    kind: str = "pgd",
    nested: bool | None = None,
    rejection: float = REJECTION,
    **options: Any,
) -> Sweep:
    """Return one attack at several ε, from the smallest to the largest, and its detection.

    Args:
        post, x, y, kind, options: see `attack`.
        eps: radii ≥ 0, at least one.
        nested: start each ball from the result of the smaller one, so that a larger ε is never
            weaker. By default if the attack keeps the best input; not for FGSM, whose published
            curves treat every ε separately.
        rejection: share of clean inputs that thresholds reject.
    """
    check_call(sweep, locals())
    if len(eps) == 0:
        raise ValueError("`eps` of sweep must have at least one number, got 0")
    check_rejection(rejection)
    radii = sorted({float(radius) for radius in eps})
    best = options.get("keep") or KINDS.get(kind).metadata["keep"]
    nested = best == "best" if nested is None else nested
    checks = options.pop("checks", "quick")
    attacks: list[Attacked] = []
    for radius in radii:
        start = attacks[-1].adversarial if nested and attacks else None
        last = radius == radii[-1]
        how = {**options, "checks": checks if last else "none", "known": start}
        attacks.append(attack(post, x, y, kind=kind, eps=radius, **how))
    detections = tuple(detection(attacked, rejection=rejection) for attacked in attacks)
    return Sweep(np.array(radii), tuple(attacks), detections, rejection)
