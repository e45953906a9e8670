r"""What every way of reconstructing gives back: an image, and how sure it is of each pixel.

A `Reconstruction` holds images with standard deviations or samples. An `ImagePosterior` is what is
believed of one image: the linearised network gives its covariance or samples, dropout and ensembles
their samples, a constant variance that. All are scored alike (`scores.py`): as a Gaussian around
the mean with the covariance, that of the samples if it has some.

Shapes: `N` images, `S` samples, `H`, `W` height and width, `n` pixels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from polymode.core.checks import check_call


@dataclass(frozen=True)
class Reconstruction:
    """Images with their uncertainty.

    Attributes:
        mean: (N, 1, H, W).
        sd: standard deviation of each pixel, (N, 1, H, W); None where a method gives none.
        samples: draws of the image, (S, N, 1, H, W); None where a method gives none.
        method: what made it, for people.
        info: further facts, e.g. steps and residuals.
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


@dataclass(frozen=True)
class ImagePosterior:
    """A distribution over images of one size.

    Attributes:
        shape: (H, W). mean: (n,). deviations: samples minus the mean, (S, n), or None.
        covariance: (n, n), or None. variance: of each pixel, (n,).
    """

    shape: tuple[int, int]
    mean: Tensor
    variance: Tensor
    deviations: Tensor | None = None
    covariance: Tensor | None = None

    @property
    def std(self) -> Tensor:
        """Standard deviation of each pixel, (H, W)."""
        return self.variance.clamp_min(0).sqrt().view(self.shape)

    @property
    def image(self) -> Tensor:
        """The mean, (H, W)."""
        return self.mean.view(self.shape)

    def samples(self) -> Tensor:
        """Return the samples, (S, H, W)."""
        if self.deviations is None:
            raise ValueError("this posterior has a covariance and no samples; draw them first")
        return (self.mean + self.deviations).view(-1, *self.shape)

    def patch_covariance(self, pixels: Tensor) -> Tensor:
        """Return the covariance of some pixels, given by their places, (k, k)."""
        if self.covariance is not None:
            return self.covariance[pixels][:, pixels]
        if self.deviations is None:
            return torch.diag(self.variance[pixels])
        part = self.deviations[:, pixels]
        return part.T @ part / len(part)


def image_posteriors(found: Reconstruction) -> list[ImagePosterior]:
    """Return the posterior of each image, from the samples or the standard deviations.

    The covariance of samples is that around their mean, with S − 1 in the denominator.
    """
    check_call(image_posteriors, locals())
    if found.samples is None and found.sd is None:
        raise ValueError("a reconstruction without samples or standard deviations has no spread")
    height, width = found.mean.shape[-2:]
    posteriors = []
    for k, mean in enumerate(found.mean.flatten(1).double()):
        if found.samples is None:
            assert found.sd is not None
            variance = found.sd[k].flatten().double().square()
            posteriors.append(ImagePosterior((height, width), mean, variance))
            continue
        off = found.samples[:, k].flatten(1).double() - mean
        off = off * (len(off) / (len(off) - 1)) ** 0.5
        posteriors.append(
            ImagePosterior((height, width), mean, off.square().mean(0), deviations=off)
        )
    return posteriors
