r"""Risk control for several labels: a threshold with a bound on the expected loss.

An example has any number of L labels, with probabilities :math:`p_l(x)`; those of at least the
threshold :math:`\lambda` are named. A loss in [0, 1] that only grows with the threshold, such as
the share of true labels that are missed, is controlled by the largest threshold with

.. math:: \frac{n}{n + 1}\hat R_n(\lambda) + \frac{1}{n + 1} \le risk,

where :math:`\hat R_n` is the mean loss of n calibration examples. Then a new example that is
exchangeable with them has an expected loss of at most `risk`. With the miss of a single label as
the loss this is split conformal prediction.

Reference: A. Angelopoulos, S. Bates, A. Fisch, L. Lei, T. Schuster, Conformal risk control, ICLR
2024, theorem 1. `n`, `B` examples, `L` labels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from polymode.conformal.prediction_sets import PredictionSets
from polymode.core.checks import Share, as_numbers, check_call
from polymode.core.registry import suggest

LOSSES = ("false_negative", "any_missed")


@dataclass(frozen=True)
class LabelRule:
    """A rule for several labels: call it on probabilities (B, L) to get the labels that it names.

    Attributes:
        threshold: labels of at least this probability are named; -inf names all.
        loss: what is controlled. risk: its bound. n: calibration examples.
        num_labels: L.
    """

    threshold: float
    loss: str
    risk: float
    n: int
    num_labels: int

    @property
    def vacuous(self) -> bool:
        """Whether all labels are named, because n is too small for the risk."""
        return self.threshold == -torch.inf

    def __call__(self, probs: Tensor) -> PredictionSets:
        """Return the labels named for B inputs, `members` (B, L)."""
        values = _probs(probs)
        if values.shape[1] != self.num_labels:
            raise ValueError(f"Calibrated on {self.num_labels} labels, got {values.shape[1]}")
        return PredictionSets(values >= self.threshold)


def control_risk(
    probs: Tensor, labels: Tensor, risk: Share = 0.1, loss: str = "false_negative"
) -> LabelRule:
    """Return a rule that names labels with an expected loss of at most `risk`.

    Args:
        probs: (n, L) probabilities of each label, of examples that the user sets aside for this.
        labels: (n, L), true or 1 where a label holds.
        risk: bound on the expected loss, in (0, 1).
        loss: "false_negative", the share of an example's true labels that are not named (0 without
            true labels), or "any_missed", 1 if a true label is not named.
    """
    check_call(control_risk, locals(), but=("probs", "labels"))
    if loss not in LOSSES:
        raise ValueError(f"Unknown loss '{loss}'.{suggest(loss, LOSSES)} Known: {LOSSES}.")
    values, holds = _probs(probs), _truth(labels)
    if values.shape != holds.shape or not len(values):
        raise ValueError(
            f"`probs` and `labels` must have the same shape (n >= 1, L), got {tuple(values.shape)}"
            f" and {tuple(holds.shape)}"
        )
    places, weights = _steps(values, holds, loss)
    n = len(values)
    threshold = largest_threshold(places, weights, n, float(risk))
    return LabelRule(threshold, loss, float(risk), n, values.shape[1])


def largest_threshold(places: Tensor, weights: Tensor, n: int, risk: float) -> float:
    """Return the largest threshold whose expected loss is at most `risk`.

    Args:
        places: probabilities below which the loss of some example grows. weights: by how much.
        n: examples.
    """
    if 1.0 / (n + 1) > risk + 1e-12:
        return -torch.inf
    order = places.argsort()
    ordered = places[order].contiguous()
    total = weights[order].cumsum(0)  # the loss summed over examples once these are missed
    allowed = (total + 1.0) / (n + 1) <= risk + 1e-12
    # a threshold misses all probabilities below it, so it may not exceed the first one too many
    tied = torch.searchsorted(ordered, ordered, right=True) - 1
    fits = allowed[tied] if len(ordered) else allowed
    return torch.inf if fits.all() else float(ordered[int((~fits).int().argmax())])


def _steps(probs: Tensor, holds: Tensor, loss: str) -> tuple[Tensor, Tensor]:
    """Return the probabilities below which the loss grows, and by how much."""
    if loss == "any_missed":
        lowest = torch.where(holds, probs, torch.inf).amin(-1)
        lowest = lowest[holds.any(-1)]
        return lowest, torch.ones_like(lowest)
    share = 1.0 / holds.sum(-1, keepdim=True).clamp(min=1).double()
    return probs[holds], share.expand_as(probs)[holds]


def _probs(probs: Tensor) -> Tensor:
    values = as_numbers("`probs`", probs).detach().double()
    if values.dim() != 2 or not ((values >= 0) & (values <= 1)).all():
        raise ValueError(
            f"`probs` must be probabilities of shape (n, L), got shape {tuple(values.shape)} from"
            f" {values.min() if values.numel() else 0:.4g}"
        )
    return values


def _truth(labels: Tensor) -> Tensor:
    values = as_numbers("`labels`", labels)
    if not ((values == 0) | (values == 1)).all():
        raise ValueError("`labels` must be true or false, or 0 and 1")
    return values.bool()
