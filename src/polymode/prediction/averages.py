"""Predictions of classes without their samples: what scores need, in 1/S of the memory.

Shapes: `S` samples, `B` inputs, `C` classes; at positions of an input (B, *E) takes the place of
(B,).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polymode.prediction.base import Observations, chosen_inputs, observed_places
from polymode.prediction.categorical import CategoricalPrediction


class Part(NamedTuple):
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
        predictions: of S >= 2 samples, in float32 or float64; each is dropped before the next one
            is asked for.
    """

    def __init__(self, predictions: Iterable[CategoricalPrediction]) -> None:
        parts = []
        for prediction in predictions:
            assert Averages.possible(prediction)
            parts.append(_reduced(prediction))
            self.num_modes, self._samples = prediction.num_modes, prediction.num_samples
            del prediction
        self._hold(Part(*(_joined(tensors) for tensors in zip(*parts, strict=True))))

    @classmethod
    def of_part(cls, part: Part, *, num_modes: int, num_samples: int) -> Averages:
        """Return the averages over so many samples that are known already."""
        averages = cls.__new__(cls)
        averages.num_modes, averages._samples = num_modes, num_samples
        averages._hold(part)
        return averages

    def _hold(self, part: Part) -> None:
        self._part, self._mean, self._expected_entropy = part, part.mean, part.expected_entropy
        # in the place of what the class computes from samples when it is first asked for
        self.predictive_entropy, self.disagreement = part.predictive_entropy, part.disagreement
        self.total_epistemic_variance = part.total_epistemic_variance

    @staticmethod
    def possible(prediction: Any) -> bool:
        """Return whether averages say all that scores need, and are smaller."""
        return _is_exact(prediction) and prediction.num_samples > 1

    @property
    def log_mean(self) -> Tensor:  # type: ignore[override]  # not kept: it is as large as the mean
        small = is_small(self.mean)
        if not len(self._part.small):
            return self.mean.log()
        return self.mean.masked_fill(small, 1.0).log_().masked_scatter_(small, self._part.small)

    @property
    def variance(self) -> Tensor:  # type: ignore[override]
        return self.mean * (1.0 - self.mean)

    @property
    def has_energy(self) -> bool:
        return self._part.energy is not None

    @property
    def energy(self) -> Tensor:
        return super().energy if self._part.energy is None else self._part.energy

    @property
    def log_normalizer(self) -> None:  # type: ignore[override]
        return None

    @property
    def device(self) -> torch.device:
        return self.mean.device

    @property
    def nbytes(self) -> int:
        return sum(values.nbytes for values in self._part if values is not None)

    @property
    def _shape(self) -> torch.Size:
        return torch.Size((self._samples, *self.mean.shape))

    @property
    def log_probs(self) -> Tensor:  # type: ignore[override]
        raise ValueError(
            "this prediction holds averages over its samples and not the samples, so that many"
            " inputs are scored in little memory; predict again, or evaluate with keep=True"
        )

    def __getitem__(self, index: int | slice | Sequence[int] | Tensor) -> Averages:
        which = chosen_inputs(index)
        return self._mapped(lambda values: values[which])

    def as_rows(self) -> Averages:
        return self._mapped(lambda values: values.flatten(0, self.num_axes))

    def observations(self, targets: Tensor) -> Observations:
        sizes = self._shape[1:-1]
        places, flat = observed_places(targets, sizes)
        rows = self._mapped(lambda values: values.flatten(0, self.num_axes)[places])
        return Observations(rows, flat[places], places // math.prod(sizes[1:]))

    def _mapped(self, function: Callable[[Tensor], Tensor]) -> Averages:
        """Return the averages of other inputs; `function` maps tensors (B, *E, ...)."""
        part, mean = self._part, function(self.mean)
        by_input: dict[str, Any] = {
            name: None if values is None else function(values)
            for name, values in part._asdict().items()
            if name != "small"
        }
        mapped = Part(small=function(self.log_mean)[is_small(mean)], **by_input)
        return Averages.of_part(mapped, num_modes=self.num_modes, num_samples=self._samples)

    def _parts(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return {"log_probs": self.log_probs}, {}


def is_small(mean: Tensor) -> Tensor:
    """Return where a mean has lost digits, so that its logarithm is kept beside it."""
    info = torch.finfo(mean.dtype)
    return mean < info.tiny / info.eps


def has_averages(prediction: Any) -> bool:
    """Whether averages over samples, however many, say all that scores of its kind need."""
    return _is_exact(prediction) and prediction.num_axes == 0


def _is_exact(prediction: Any) -> bool:
    return isinstance(prediction, CategoricalPrediction) and prediction.mean.dtype.itemsize >= 4


def averaged(prediction: Any) -> Any:
    """Return the averages of a prediction where they say all that scores need, else all of it: of
    densities, and at positions, where joint scores need the samples."""
    reducible = Averages.possible(prediction) and prediction.num_axes == 0
    return Averages([prediction]) if reducible else prediction


def _reduced(prediction: CategoricalPrediction) -> Part:
    if isinstance(prediction, Averages):
        return prediction._part
    return Part(
        prediction.mean,
        prediction.log_mean[is_small(prediction.mean)],
        prediction.predictive_entropy,
        prediction.expected_entropy,
        prediction.total_epistemic_variance,
        prediction.disagreement,
        None if prediction.log_normalizer is None else prediction.energy,
    )


def _joined(tensors: tuple[Tensor | None, ...]) -> Any:
    held = [tensor for tensor in tensors if tensor is not None]
    return torch.cat(held) if len(held) == len(tensors) else None
