r"""What every way of reconstructing gives back: an image, and how sure it is of each pixel.

Shapes: `N` images, `S` samples, `H`, `W` height and width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Reconstruction:
    """Images with their uncertainty.

    Attributes:
        mean: (N, 1, H, W).
        sd: standard deviation of each pixel, (N, 1, H, W); None where a method gives none.
        samples: draws of the image, (S, N, 1, H, W); None where a method gives none.
        method: what made it, for people.
        info: what else there is to tell, e.g. steps and residuals.
    """

    mean: Tensor
    sd: Tensor | None = None
    samples: Tensor | None = None
    method: str = ""
    info: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        shape = tuple(self.mean.shape)
        assert len(shape) == 4 and shape[1] == 1, shape
        assert self.sd is None or tuple(self.sd.shape) == shape, self.sd.shape
        assert self.samples is None or tuple(self.samples.shape[1:]) == shape, self.samples.shape

    @staticmethod
    def from_samples(samples: Tensor, method: str = "", **info: Any) -> Reconstruction:
        """Return mean and standard deviation of samples (S, N, 1, H, W), S >= 2."""
        assert len(samples) >= 2, len(samples)
        return Reconstruction(samples.mean(0), samples.std(0), samples, method, info)

    def error(self, truth: Tensor) -> Tensor:
        """Return mean - truth, (N, 1, H, W)."""
        return self.mean - torch.as_tensor(truth).to(self.mean).reshape(self.mean.shape)
