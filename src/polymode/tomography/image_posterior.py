r"""What is believed of an image after it was observed: a mean, and how far from it one may be.

Any method gives an `ImagePosterior`: the linearised network its covariance or samples, dropout and
ensembles their samples, a constant variance that. All are scored alike (`scores.py`): as a Gaussian
around the mean, of the covariance or of that of the samples.

For the linearised network, with K = A J Σ Jᵀ Aᵀ + σ² I,

    Cov(f | y) = J Σ Jᵀ − J Σ Jᵀ Aᵀ K⁻¹ A J Σ Jᵀ,

and samples of it by Matheron's rule: f₀ − J Σ Jᵀ Aᵀ K⁻¹ (A f₀ + ε) with f₀ = J w, w ~ N(0, Σ) and
ε ~ N(0, σ² I).

Shapes: `n` pixels, `m` observations, `S` samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from polymode.core.checks import check_call
from polymode.tomography.evidence import Evidence
from polymode.tomography.filter_prior import Hyper
from polymode.tomography.reconstruction import Reconstruction


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
    """Return what a reconstruction says of each of its images: by its samples, or its deviations.

    The covariance of samples is that around their mean, with S − 1 in the denominator.
    """
    check_call(image_posteriors, locals())
    if found.samples is None and found.sd is None:
        raise ValueError("a reconstruction without samples or standard deviations has no spread")
    height, width = found.mean.shape[-2:]
    made = []
    for k, mean in enumerate(found.mean.flatten(1).double()):
        if found.samples is None:
            assert found.sd is not None
            variance = found.sd[k].flatten().double().square()
            made.append(ImagePosterior((height, width), mean, variance))
            continue
        off = found.samples[:, k].flatten(1).double() - mean
        off = off * (len(off) / (len(off) - 1)) ** 0.5
        made.append(ImagePosterior((height, width), mean, off.square().mean(0), deviations=off))
    return made


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
