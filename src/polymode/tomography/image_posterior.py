r"""What is believed of an image after it was observed: a mean, and how far from it one may be.

Any method gives an `ImagePosterior`: the linearised network its covariance or samples, dropout and
ensembles their samples, a constant variance that. All are scored alike (`scores.py`): as a Gaussian
around the mean, of the covariance or of that of the samples.

For the linearised network, with K = A J Σ Jᵀ Aᵀ + σ² I,

    Cov(f | y) = J Σ Jᵀ − J Σ Jᵀ Aᵀ K⁻¹ A J Σ Jᵀ,

and samples of it by Matheron's rule: f₀ − J Σ Jᵀ Aᵀ K⁻¹ (A f₀ + ε), f₀ = J w, w ~ N(0, Σ), ε ~ N(0, σ² I).

Shapes: `n` pixels, `m` observations, `S` samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from polymode.tomography.evidence import Evidence
from polymode.tomography.filter_prior import Hyper


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


def from_samples(samples: Tensor, mean: Tensor | None = None) -> ImagePosterior:
    """Return the posterior that samples (S, H, W) show, around their mean or a given image (H, W).

    The covariance is that of Gaussians around this centre: mean squares, without the −1 of a
    centre that is estimated unless `mean` is None.
    """
    if samples.dim() != 3 or len(samples) < 2:
        raise ValueError(
            f"`samples` must be two or more images (S, H, W), got {tuple(samples.shape)}"
        )
    flat = samples.flatten(1).double()
    centre = flat.mean(0) if mean is None else mean.flatten().double()
    off = flat - centre
    if mean is None:
        off = off * (len(flat) / (len(flat) - 1)) ** 0.5
    height, width = samples.shape[1:]
    return ImagePosterior((height, width), centre, off.square().mean(0), deviations=off)


def constant(mean: Tensor, variance: float) -> ImagePosterior:
    """Return independent pixels of one variance around an image (H, W)."""
    if not variance > 0:
        raise ValueError(f"`variance` must be > 0, got {variance}")
    height, width = mean.shape
    flat = mean.flatten().double()
    return ImagePosterior((height, width), flat, torch.full_like(flat, variance))


def exact_posterior(evidence: Evidence, hyper: Hyper, *, mean: str = "network") -> ImagePosterior:
    """Return the posterior of the image with its whole covariance, from kernels of pixels.

    Args:
        mean: "network", the image f̂ of the trained network; "linear", that of θ*.
    """
    model, coefficients = evidence.model, evidence.model.prior.coefficients(hyper)
    prior = evidence.kernels.pixel_covariance(coefficients)
    factor = evidence.factor(hyper)
    cross = model.observe(prior)  # (n, m) = J Σ Jᵀ Aᵀ
    half = torch.linalg.solve_triangular(factor, cross.T, upper=False)
    covariance = prior - half.T @ half
    centre = model.image.double()
    if mean == "linear":
        alpha = torch.cholesky_solve(evidence.residual[:, None], factor)[:, 0]
        centre = model.shift.double() + cross @ alpha
    return ImagePosterior(
        model.operator.image_shape, centre, covariance.diagonal().clone(), covariance=covariance
    )
