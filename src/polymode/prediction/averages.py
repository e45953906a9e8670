"""Predictions of classes without their samples: what scores need, in 1/S of the memory.

Shapes: `S` samples, `B` inputs, `C` classes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polymode.prediction.categorical import CategoricalPrediction


class _Part(NamedTuple):
    """What is kept of a batch.

    Attributes:
        mean: (B, C). small: logarithms of those means whose own have lost digits, in their order.
        predictive_entropy, expected_entropy, total_epistemic_variance, disagreement, energy: (B,);
            energy None where the networks' outputs are not known.
    """

    mean: Tensor
    small: Tensor
    predictive_entropy: Tensor
    expected_entropy: Tensor
    total_epistemic_variance: Tensor
    disagreement: Tensor
    energy: Tensor | None


class Averages(CategoricalPrediction):
    """The averages of predictions of consecutive batches: their values to the bit, no samples.

    What needs the samples themselves (`log_probs`, modes, variances between samples) raises.

    Args:
        predictions: of S >= 2 samples without positions, in float32 or float64; each is dropped
            before the next one is asked for.
    """

    def __init__(self, predictions: Iterable[CategoricalPrediction]) -> None:
        parts = []
        for prediction in predictions:
            assert Averages.possible(prediction)
            parts.append(_reduced(prediction))
            self.num_modes, self._samples = prediction.num_modes, prediction.num_samples
            del prediction
        whole = _Part(*(_joined(tensors) for tensors in zip(*parts, strict=True)))
        self._mean, self._small, self._energy = whole.mean, whole.small, whole.energy
        self._expected_entropy = whole.expected_entropy
        # in the place of what the class computes from samples when it is first asked for
        self.predictive_entropy, self.disagreement = whole.predictive_entropy, whole.disagreement
        self.total_epistemic_variance = whole.total_epistemic_variance

    @staticmethod
    def possible(prediction: Any) -> bool:
        """Return whether averages say all that scores need, and are smaller."""
        return (
            isinstance(prediction, CategoricalPrediction)
            and prediction.num_samples > 1
            and prediction.num_axes == 0
            and prediction.mean.dtype.itemsize >= 4
        )

    @property
    def log_mean(self) -> Tensor:  # type: ignore[override]  # not kept: it is as large as the mean
        small = _is_small(self.mean)
        if not len(self._small):
            return self.mean.log()
        return self.mean.masked_fill(small, 1.0).log_().masked_scatter_(small, self._small)

    @property
    def has_energy(self) -> bool:
        return self._energy is not None

    @property
    def energy(self) -> Tensor:
        return super().energy if self._energy is None else self._energy

    @property
    def log_normalizer(self) -> None:  # type: ignore[override]
        return None

    @property
    def device(self) -> torch.device:
        return self.mean.device

    @property
    def _shape(self) -> torch.Size:
        return torch.Size((self._samples, *self.mean.shape))

    @property
    def log_probs(self) -> Tensor:  # type: ignore[override]
        raise ValueError(
            "this prediction holds averages over its samples and not the samples, so that many"
            " inputs are scored in little memory; predict again, or evaluate with keep=True"
        )

    def _parts(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return {"log_probs": self.log_probs}, {}


def _is_small(mean: Tensor) -> Tensor:
    info = torch.finfo(mean.dtype)
    return mean < info.tiny / info.eps


def _reduced(prediction: CategoricalPrediction) -> _Part:
    return _Part(
        prediction.mean,
        prediction.log_mean[_is_small(prediction.mean)],
        prediction.predictive_entropy,
        prediction.expected_entropy,
        prediction.total_epistemic_variance,
        prediction.disagreement,
        None if prediction.log_normalizer is None else prediction.energy,
    )


def _joined(tensors: tuple[Tensor | None, ...]) -> Any:
    held = [tensor for tensor in tensors if tensor is not None]
    return torch.cat(held) if len(held) == len(tensors) else None
