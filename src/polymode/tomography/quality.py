r"""How near an image is to the truth: PSNR and SSIM.

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

Shapes: `N` images, `H`, `W` height and width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from polymode.core.checks import OnlyTensor, check_call

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
