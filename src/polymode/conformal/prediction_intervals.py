r"""Conformal intervals of real outputs, which cover new values with the stated probability.

With ends :math:`a(x) \le b(x)` and a unit :math:`w(x)` from the prediction, the score is
:math:`s(x, y) = \max(a(x) - y,\ y - b(x)) / w(x)`, and with the quantile :math:`\hat q` of the
scores of calibration examples (`quantile.py`) the interval is
:math:`[a - \hat q w,\ b + \hat q w]`:

======  ============================================================  ==================
split   a = b the predictive mean, w = 1: residuals                   one width for all
scaled  a = b the predictive mean, w the predictive std               wider where unsure
cqr     a, b the mixture's central interval of that level, w = 1      corrected by q
cqr_r   as cqr, with the width of that interval as w                  corrected by a share
======  ============================================================  ==================

Each output has its own quantile: the guarantee holds per output. With `joint` the score is the
largest of the D outputs, :math:`\max_d s_d`, and all of them are covered at once: boxes, for which
the unit makes outputs comparable ("scaled" or "cqr_r"). The quantile of cqr is negative if the
prediction's intervals are too wide; a large correction can make an interval empty, its lower end
above its upper one.

References: J. Lei, M. G'Sell, A. Rinaldo, R. Tibshirani, L. Wasserman, Distribution-free predictive
inference for regression, JASA 113 (2018) (split, scaled); Y. Romano, E. Patterson, E. Candès,
Conformalized quantile regression, NeurIPS 2019 (cqr); M. Sesia, E. Candès, A comparison of some
conformal quantile regression methods, Stat 9 (2020) (cqr_r). `n`, `B` examples, `D` outputs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from polymode.conformal.quantile import conformal_quantile
from polymode.core.checks import check_call
from polymode.core.registry import suggest
from polymode.likelihoods.targets import check_as_many, check_values
from polymode.prediction import DensityPrediction, MappedPrediction, Prediction

METHODS = ("split", "scaled", "cqr", "cqr_r")


@dataclass(frozen=True, repr=False)
class PredictionIntervals:
    """Intervals from `lower` to `upper`, ends included, float64 (B, D) each."""

    lower: Tensor
    upper: Tensor

    @property
    def widths(self) -> Tensor:
        """Upper less lower end, (B, D), in units of y; 0 where empty."""
        return (self.upper - self.lower).clamp(min=0.0)

    @property
    def empty(self) -> Tensor:
        """True where no value fits, (B, D)."""
        return self.lower > self.upper

    def __len__(self) -> int:
        return len(self.lower)

    def __repr__(self) -> str:
        batch, outputs = len(self), self.lower.shape[-1]
        width = f", mean width={self.widths.mean():.4g}" if batch else ""
        return f"PredictionIntervals(B={batch}, D={outputs}{width})"


@dataclass(frozen=True)
class ConformalIntervals:
    """A calibrated rule: call it on a prediction to get its intervals.

    Args:
        method: of `conformal_intervals`. level: the share of values to be covered.
        quantile: of each output, D numbers: in units of y, of the predictive std for "scaled".
        n: calibration examples.
        joint: whether all D outputs are covered at once.
    """

    method: str
    level: float
    quantile: tuple[float, ...]
    n: int
    joint: bool = False

    @property
    def vacuous(self) -> bool:
        """Whether every interval is (-inf, inf), because ceil((n + 1) level) > n."""
        return torch.inf in self.quantile

    def __call__(self, prediction: Prediction) -> PredictionIntervals:
        """Return the intervals of B inputs."""
        lower, upper, unit = interval_ends(prediction, self.method, self.level)
        if lower.shape[-1] != len(self.quantile):
            raise ValueError(
                f"Calibrated on {len(self.quantile)} output(s), got a prediction of"
                f" {lower.shape[-1]}; calibrate on predictions of the same kind."
            )
        margin = unit * lower.new_tensor(self.quantile)
        return PredictionIntervals(lower - margin, upper + margin)


def conformal_intervals(
    prediction: Prediction,
    targets: Tensor,
    level: float = 0.9,
    method: str = "split",
    *,
    joint: bool = False,
) -> ConformalIntervals:
    """Return a rule whose intervals hold new values with probability >= `level`, per output.

    On average over exchangeable calibration and new examples, whatever the model; not for each
    input. Only the quantile is fitted on these data: they must be disjoint from the data that
    trained or recalibrated the model. If n is too small for the level the intervals are infinite
    (`.vacuous`); n >= level / (1 - level) is enough.

    Args:
        prediction: of n >= 1 examples that the user sets aside for this.
        targets: their values (n, D), or (n,) if D = 1.
        level: in (0, 1).
        method: "split", "scaled" (needs a finite variance), "cqr" or "cqr_r".
        joint: whether all D outputs of an example are to be covered at once, with probability >=
            `level`; then one quantile serves all of them, so take a method with a unit.
    """
    check_call(conformal_intervals, locals())
    if method not in METHODS:
        raise ValueError(f"Unknown method '{method}'.{suggest(method, METHODS)} Known: {METHODS}.")
    lower, upper, unit = interval_ends(prediction, method, level)
    values = check_values(targets, lower.shape[-1]).to(lower)
    check_as_many(len(values), len(lower), "target(s)")
    scores = torch.maximum(lower - values, values - upper) / unit
    if joint:
        scores = scores.amax(-1, keepdim=True).expand_as(scores)
    quantile = tuple(conformal_quantile(scores, level).tolist())
    return ConformalIntervals(method, float(level), quantile, len(values), joint)


def interval_ends(
    prediction: Prediction, method: str, level: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the ends and the unit in float64, (B, D) each."""
    if not isinstance(prediction, DensityPrediction | MappedPrediction):
        kind = type(prediction).__name__
        raise ValueError(
            f"Intervals need a prediction of real outputs, got {kind}; for classes use"
            " `conformal_sets`."
        )
    exact = prediction.double()
    if method in ("cqr", "cqr_r"):
        lower, upper = exact.interval(level)
        return lower, upper, torch.ones_like(lower) if method == "cqr" else upper - lower
    mean = exact.mean
    unit = exact.std if method == "scaled" else torch.ones_like(mean)
    if not (mean.isfinite() & unit.isfinite()).all():
        raise ValueError(
            f"A density with df = {exact.df} has no mean or no variance for '{method}'; use 'cqr'."
        )
    return mean, mean, unit
