r"""How near an image is to the truth, and how well a posterior over images agrees with it.

Log-density: the image is cut into patches of k x k pixels (those at the border smaller), and each
is scored as a Gaussian around the posterior's mean with its covariance Γ there,

    log N(truth; mean, Γ'),   Γ' = ½ (Γ + diag Γ) + floor · I    (k = 1: the variance + floor),

divided by the number of pixels: nats per pixel. The shrinkage towards the diagonal is that of the
reference's code; it keeps a covariance of few samples from being singular. The same Γ' is taken of
exact covariances, of samples and of constant variances, and the same `floor` for all: the least
variance that a pixel may have, by default that of rounding to 8-bit grey values, (1/255)² / 12.

Coverage: the share of pixels whose truth is in the central interval of each level, of the same
Gaussian. Calibration: pixels sorted by predicted standard deviation in bins of equal count; the
root mean squared error of each compared with its predicted standard deviation.

PSNR and SSIM compare the mean image with the truth:

.. math::
    \mathrm{PSNR} = 10 \log_{10} \frac{R^2}{\mathrm{mean}\,(x - t)^2}, \qquad
    \mathrm{SSIM} = \mathrm{mean}\;
    \frac{(2\mu_x\mu_t + c_1)(2\sigma_{xt} + c_2)}
         {(\mu_x^2 + \mu_t^2 + c_1)(\sigma_x^2 + \sigma_t^2 + c_2)}

R is the range of the truth, c_1 = (0.01 R)², c_2 = (0.03 R)²; means and covariances are taken over
windows of 7 x 7 pixels that lie in the image, covariances with 48 instead of 49 in the denominator.
These are the defaults of scikit-image, so the numbers are the same.

Reference: Z. Wang, A. Bovik, H. Sheikh, E. Simoncelli, "Image quality assessment: from error
visibility to structural similarity", IEEE Transactions on Image Processing 13(4), 2004.

Shapes: `N` images, `H`, `W` height and width, `n` pixels, `k` pixels of a patch's side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from polymode.core.checks import OnlyTensor, check_call
from polymode.tomography.operator import LinearOperator
from polymode.tomography.reconstruction import ImagePosterior

_WINDOW = 7


def psnr(images: OnlyTensor, truth: OnlyTensor, data_range: float | None = None) -> Tensor:
    """Return the peak signal-to-noise ratio in decibels (higher is better), (N,).

    Args:
        images, truth: (N, 1, H, W).
        data_range: R > 0; by default max - min of each truth.
    """
    check_call(psnr, locals())
    images, truth, spread = _pair(images, truth, data_range, "psnr")
    error = (images - truth).square().mean((1, 2, 3))
    return 10 * torch.log10(spread**2 / error)


def ssim(images: OnlyTensor, truth: OnlyTensor, data_range: float | None = None) -> Tensor:
    """Return the structural similarity, at most 1 (higher is better), (N,).

    Args:
        images, truth: (N, 1, H, W), H and W at least 7.
        data_range: R > 0; by default max - min of each truth.
    """
    check_call(ssim, locals())
    images, truth, spread = _pair(images, truth, data_range, "ssim")
    if min(images.shape[-2:]) < _WINDOW:
        raise ValueError(
            f"ssim needs images of at least {_WINDOW} × {_WINDOW} pixels, its window, got"
            f" {images.shape[-2]} × {images.shape[-1]}"
        )
    first, second = ((k * spread)[:, None, None, None] ** 2 for k in (0.01, 0.03))
    mean_x, mean_t = _windows(images), _windows(truth)
    unbiased = _WINDOW**2 / (_WINDOW**2 - 1)
    var_x = unbiased * (_windows(images**2) - mean_x**2)
    var_t = unbiased * (_windows(truth**2) - mean_t**2)
    cov = unbiased * (_windows(images * truth) - mean_x * mean_t)
    like = (2 * mean_x * mean_t + first) * (2 * cov + second)
    most = (mean_x**2 + mean_t**2 + first) * (var_x + var_t + second)
    return (like / most).mean((1, 2, 3))


def _windows(images: Tensor) -> Tensor:
    return F.avg_pool2d(images, _WINDOW, stride=1)


def _pair(
    images: OnlyTensor, truth: OnlyTensor, data_range: float | None, what: str
) -> tuple[Tensor, Tensor, Tensor]:
    if images.shape != truth.shape or images.dim() != 4 or images.shape[1] != 1:
        raise ValueError(
            f"`images` and `truth` of {what} must both have shape (N, 1, H, W), got"
            f" {tuple(images.shape)} and {tuple(truth.shape)}"
        )
    images, truth = images.detach().double(), truth.detach().double()
    if data_range is None:
        spread = truth.amax((1, 2, 3)) - truth.amin((1, 2, 3))
    else:
        spread = torch.full((len(truth),), float(data_range), dtype=torch.float64)
    if not bool((spread > 0).all()):
        raise ValueError(
            f"`data_range` of {what} must be > 0, got {float(spread.min()):g}; a constant truth"
            " has no range of its own: give data_range"
        )
    return images, truth, spread


LEVELS = (0.5, 0.9, 0.95)
FLOOR = (1 / 255) ** 2 / 12  # of 8-bit grey values in [0, 1]


def patches(shape: tuple[int, int], side: int) -> list[Tensor]:
    """Return the places of the pixels of each patch.

    >>> [each.tolist() for each in patches((2, 3), 2)]
    [[0, 1, 3, 4], [2, 5]]
    """
    grid = torch.arange(shape[0] * shape[1]).view(shape)
    return [
        grid[top : top + side, left : left + side].flatten()
        for top in range(0, shape[0], side)
        for left in range(0, shape[1], side)
    ]


def log_density(
    posterior: ImagePosterior,
    truth: Tensor,
    *,
    side: int = 1,
    floor: float = FLOOR,
    where: Tensor | None = None,
) -> float:
    """Return the log-density of the true image (H, W), nats per pixel.

    Args:
        side: of the patches within which pixels depend on each other.
        where: (H, W), true for the pixels that count; with `side=1` only.
    """
    check_call(log_density, locals())
    error = _error(posterior, truth)
    if side == 1:
        variance = posterior.variance.clamp_min(0) + floor
        terms = error.square() / variance + (2 * math.pi * variance).log()
        return float(-0.5 * (terms if where is None else terms[where.flatten()]).mean())
    if where is not None:
        raise ValueError(f"`where` chooses pixels, so it needs side=1, got side={side}")
    total = 0.0
    for places in patches(posterior.shape, side):
        covariance = posterior.patch_covariance(places).double()
        covariance = 0.5 * (covariance + torch.diag(covariance.diagonal()))
        values, vectors = torch.linalg.eigh(covariance)
        values = values.clamp_min(0) + floor  # below 0 only by rounding
        along = error[places] @ vectors
        total -= 0.5 * float((along.square() / values + (2 * math.pi * values).log()).sum())
    return total / len(error)


def coverage(
    posterior: ImagePosterior,
    truth: Tensor,
    levels: Sequence[float] = LEVELS,
    floor: float = FLOOR,
) -> list[float]:
    """Return the share of pixels whose truth is in the central interval of each level."""
    check_call(coverage, locals())
    error = _error(posterior, truth).abs()
    spread = (posterior.variance.clamp_min(0) + floor).sqrt()
    quantiles = math.sqrt(2) * torch.special.erfinv(torch.tensor(levels, dtype=torch.float64))
    return [float((error <= q * spread).double().mean()) for q in quantiles]


def coverage_error(posterior: ImagePosterior, truth: Tensor, floor: float = FLOOR) -> float:
    """Return the mean of |coverage − level| over the levels 0.05, 0.1, …, 0.95."""
    levels = np.linspace(0.05, 0.95, 19).tolist()
    shares = coverage(posterior, truth, levels, floor)
    return float(np.abs(np.array(shares) - np.array(levels)).mean())


def image_noise(operator: LinearOperator, noise: float, number: int = 100) -> float:
    """Return σ² times the mean diagonal of (AᵀA)⁺, made of the largest singular values of A.

    This is the variance of a pixel due to noise of the data, in directions that A measures well.
    The code of Antorán et al. adds it to covariances before it scores them, with 100 vectors.

    Args:
        noise: σ². number: of singular values, at most.
    """
    from scipy.sparse.linalg import LinearOperator as Products
    from scipy.sparse.linalg import eigsh

    size, pixels = operator.shape

    def product(column: np.ndarray) -> np.ndarray:
        row = torch.from_numpy(column.reshape(1, size))
        return operator(operator.T(row))[0].numpy()

    if size <= number:
        squares = np.linalg.svd(operator.matrix().numpy(), compute_uv=False) ** 2
    else:
        products = Products((size, size), matvec=product, dtype=np.float64)
        start = np.ones(size)  # random by default
        squares = eigsh(products, k=number, return_eigenvectors=False, v0=start)
    squares = squares[squares > 1e-12 * squares.max()]
    return float(noise * (1 / squares).sum() / pixels)


class Calibration(NamedTuple):
    """Predicted standard deviation and root mean squared error of bins of pixels, (bins,) each."""

    predicted: np.ndarray
    actual: np.ndarray


def calibration(
    posteriors: Sequence[ImagePosterior],
    truths: Sequence[Tensor],
    *,
    bins: int = 10,
    floor: float = FLOOR,
) -> Calibration:
    """Return error against predicted standard deviation, over the pixels of several images."""
    check_call(calibration, locals())
    errors = torch.cat([_error(p, t) for p, t in zip(posteriors, truths, strict=True)])
    variances = torch.cat([p.variance.clamp_min(0) + floor for p in posteriors])
    order = variances.argsort()
    parts = order.chunk(bins)
    predicted = [float(variances[part].mean().sqrt()) for part in parts]
    actual = [float(errors[part].square().mean().sqrt()) for part in parts]
    return Calibration(np.array(predicted), np.array(actual))


def calibration_error(posterior: ImagePosterior, truth: Tensor, floor: float = FLOOR) -> float:
    """Return the mean over ten bins of |root mean squared error − predicted deviation|."""
    curve = calibration([posterior], [truth], floor=floor)
    return float(np.abs(curve.predicted - curve.actual).mean())


def _error(posterior: ImagePosterior, truth: Tensor) -> Tensor:
    if tuple(truth.shape) != tuple(posterior.shape):
        raise ValueError(
            f"`truth` must have the shape {posterior.shape} of the image, got {tuple(truth.shape)}"
        )
    return truth.flatten().double() - posterior.mean
