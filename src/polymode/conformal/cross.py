r"""Jackknife+ and CV+: intervals from folds, without data set aside for calibration.

Let model k be trained without fold k. With the ends :math:`a_k(x) \le b_k(x)` and the unit
:math:`w_k(x)` of its prediction, and the scores :math:`s_i` of every training example under the
model that has not seen it, :math:`k(i)`, the interval of a new input goes from the
:math:`\lfloor (n + 1)(1 - level) \rfloor`-th smallest of
:math:`a_{k(i)}(x) - s_i w_{k(i)}(x)` to the :math:`\lceil (n + 1)\,level \rceil`-th smallest of
:math:`b_{k(i)}(x) + s_i w_{k(i)}(x)`.

Folds of one example are the jackknife+, fewer folds CV+. For any model, with K folds of equal size,

.. math:: P(y \in C(x)) \ge 2\,level - 1 - \min\Big(\frac{2(1 - 1/K)}{n/K + 1},
          \frac{1 - K/n}{K + 1}\Big),

and without the last term for the jackknife+; in practice the coverage is close to `level`. Each
output has intervals of its own.

Reference: R. Foygel Barber, E. Candès, A. Ramdas, R. Tibshirani, Predictive inference with the
jackknife+, Annals of Statistics 49 (2021), theorems 1 and 4. `n`, `B` examples, `K` folds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from polymode.conformal.prediction_intervals import PredictionIntervals, interval_ends
from polymode.conformal.quantile import conformal_rank
from polymode.conformal.region import Region, region_of
from polymode.core.checks import Share, as_numbers, check_call
from polymode.prediction import CategoricalPrediction, Prediction

_CHUNK = 2**22  # ends of intervals computed at a time, 32 MB


@dataclass(frozen=True)
class CrossRule:
    """A rule from folds: call it on the predictions of the same models, in the same order.

    Attributes:
        region: the score and its method.
        scores: of each training example under the model without it, (n, D).
        folds: the model without it, int64 (n,).
        num_models: K.
    """

    region: Region
    scores: Tensor = field(repr=False)
    folds: Tensor = field(repr=False)
    num_models: int

    @property
    def guaranteed(self) -> float:
        """The coverage that holds whatever the models, for folds of equal size."""
        n, k, level = len(self.folds), self.num_models, self.region.level
        slack = min(2 * (1 - 1 / k) / (n / k + 1), (1 - k / n) / (k + 1))
        return 2 * level - 1 - slack

    @property
    def vacuous(self) -> bool:
        """Whether every interval is infinite, because there are too few examples."""
        return conformal_rank(len(self.folds), self.region.level) > len(self.folds)

    def __call__(self, predictions: Prediction | Sequence[Prediction]) -> PredictionIntervals:
        """Return the intervals of B inputs."""
        models = _models(predictions)
        if len(models) != self.num_models:
            raise ValueError(
                f"Calibrated on {self.num_models} models, got predictions of {len(models)}; give"
                " those of the same models in the same order."
            )
        parts = [interval_ends(p, self.region.method, self.region.level) for p in models]
        lower, upper, unit = (torch.stack(kind) for kind in zip(*parts, strict=True))  # (K, B, D)
        rank = conformal_rank(len(self.folds), self.region.level)
        if rank > len(self.folds):
            wide = torch.full_like(lower[0], torch.inf)
            return PredictionIntervals(-wide, wide)
        rows = max(1, _CHUNK // self.scores.numel())
        starts, ends = [], []
        for part in zip(
            lower.split(rows, 1), upper.split(rows, 1), unit.split(rows, 1), strict=True
        ):
            low, high, width = (tensor[self.folds] for tensor in part)  # (n, b, D)
            margin = self.scores.unsqueeze(1) * width
            ends.append((high + margin).kthvalue(rank, 0).values)
            starts.append(-(margin - low).kthvalue(rank, 0).values)
        return PredictionIntervals(torch.cat(starts), torch.cat(ends))


def cross_conformal(
    predictions: Prediction | Sequence[Prediction],
    targets: Tensor,
    folds: Tensor,
    level: Share = 0.9,
    method: str | None = None,
) -> CrossRule:
    """Return the CV+ rule of K models, each trained without one fold of the same n examples.

    Args:
        predictions: of each model at all n training examples: K predictions, or one whose K modes
            are the models.
        targets: values (n, D), or (n,) if D = 1.
        folds: for each example the number of the model that was trained without it, (n,).
        level: in (0, 1).
        method: of `conformal_intervals`, "scaled" if None.
    """
    check_call(cross_conformal, locals(), but=("predictions", "folds", "method"))
    models = _models(predictions)
    if any(isinstance(model, CategoricalPrediction) for model in models):
        raise ValueError("Folds give intervals of regressions; for classes use `conformal_sets`.")
    region = region_of(models[0], method, level)
    every = torch.stack([region.scores(model, targets) for model in models])  # (K, n, D)
    numbers = _check_folds(folds, *every.shape[:2]).to(every.device)
    scores = every.gather(0, numbers.view(1, -1, 1).expand(1, -1, every.shape[-1]))[0]
    return CrossRule(region, scores, numbers, len(models))


def fold_numbers(num_examples: int, num_folds: int, *, seed: int = 0) -> Tensor:
    """Return folds of equal size, shuffled: the number of each example's fold, int64 (n,)."""
    from polymode.core.rng import generator

    if not 2 <= num_folds <= num_examples:
        raise ValueError(f"`num_folds` must be in 2..{num_examples}, got {num_folds}")
    order = torch.randperm(num_examples, generator=generator(seed, "conformal", "folds"))
    numbers = torch.arange(num_examples) * num_folds // num_examples
    return torch.empty_like(numbers).scatter_(0, order, numbers)


def _models(predictions: Prediction | Sequence[Prediction]) -> list[Prediction]:
    """Return one prediction per model."""
    if isinstance(predictions, Prediction):
        return [predictions.take_modes([k]) for k in range(predictions.num_modes)]
    if not predictions or not all(isinstance(p, Prediction) for p in predictions):
        raise ValueError("`predictions` must be a Prediction or a list of them, one per model")
    return list(predictions)


def _check_folds(folds: Tensor, num_models: int, size: int) -> Tensor:
    numbers = as_numbers("`folds`", folds)
    if numbers.is_floating_point() or numbers.shape != (size,):
        raise ValueError(
            f"`folds` must be {size} integers, one per example, got {numbers.dtype} of shape"
            f" {tuple(numbers.shape)}"
        )
    if size and not 0 <= int(numbers.min()) <= int(numbers.max()) < num_models:
        raise ValueError(
            f"`folds` must be in 0..{num_models - 1}, a model each, got {int(numbers.min())}.."
            f"{int(numbers.max())}"
        )
    return numbers.long()
