r"""Simulated scans: projections of an image on a finer grid, with Gaussian noise.

.. math:: y = A_{\text{fine}}\, x_{\text{fine}} + \sigma\varepsilon, \qquad
          \sigma = \text{noise} \cdot \text{mean}\,|A_{\text{fine}}\, x_{\text{fine}}|

Data that the reconstruction's own operator simulated would flatter it: its errors of discretisation
would be in both and cancel (the inverse crime). So an image is projected with pixels of half the
side and several rays in each detector cell. The truth that a reconstruction is compared with is the
mean over the fine pixels of each pixel.

Shapes: `N` images at once, `m` observations, `H`, `W` height and width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from polymode.core.checks import Few, as_numbers, check_call, shown
from polymode.core.rng import generator
from polymode.tomography.operator import LinearOperator
from polymode.tomography.projector import Projector, check_finite, projector_of

_RAYS = 4  # of a detector cell, in simulations


class Scan(NamedTuple):
    """What was measured of images, and what is known about it.

    Attributes:
        operator: from images to what is measured.
        observations: (N, m). noise_sd: standard deviation σ of the noise of each image, (N,).
        truth: the images as the operator's pixels have them, (N, 1, H, W); None if unknown.
    """

    operator: LinearOperator
    observations: Tensor
    noise_sd: Tensor
    truth: Tensor | None = None

    def only(self, images: Sequence[int]) -> Scan:
        """Return the scans of some of the images."""
        chosen = list(images)
        truth = None if self.truth is None else self.truth[chosen]
        return Scan(self.operator, self.observations[chosen], self.noise_sd[chosen], truth)


def scan_of(
    operator: LinearOperator,
    observations: Any,
    noise_sd: float | Tensor,
    truth: Tensor | None = None,
) -> Scan:
    """Return a scan of your own measurements; checks them.

    Args:
        operator: from images to what was measured.
        observations: (m,), (N, m), or (..., K, D) by angle and detector cell of a projector; a
            tensor or an array.
        noise_sd: standard deviation of the noise, > 0, for all images or one for each, (N,).
        truth: (H, W), (1, H, W) or (N, 1, H, W) where it is known.
    """
    check_call(scan_of, locals())
    observations = as_numbers("`observations` of scan_of", observations)
    if not observations.is_floating_point():
        observations = observations.to(torch.get_default_dtype())
    if isinstance(operator, Projector) and (
        observations.dim() > 2 or observations.shape[-1:] != (operator.num_observations,)
    ):
        observations = operator.observations(observations)
    operator.check_observations(observations)
    check_finite(observations)
    rows = observations.reshape(-1, operator.num_observations)
    sd = torch.as_tensor(noise_sd, dtype=rows.dtype)
    if sd.shape not in ((), (1,), (len(rows),)):
        raise ValueError(
            f"`noise_sd` must be one number, or one for each of {len(rows)} images, got"
            f" {shown(noise_sd)}"
        )
    sd = sd.expand(len(rows)).clone()
    if not bool((torch.isfinite(sd) & (sd > 0)).all()):
        raise ValueError(
            f"`noise_sd` must be > 0 and finite, got {float(sd.min()):g}: without noise there is"
            " nothing to be unsure of, and no level at which to stop. Take the standard deviation"
            " of the detector, or 1 % of mean |y|"
        )
    if truth is not None:
        truth = _images(truth).to(rows)
    return Scan(operator, rows, sd, truth)


def simulate(
    operator: LinearOperator, images: Tensor, *, noise: float = 0.05, seed: int = 0, finer: Few = 2
) -> Scan:
    """Return simulated scans of images.

    Args:
        operator: a projector, or any other; only projectors are simulated on a finer grid.
        images: (H, W), (1, H, W) or (N, 1, H, W): of the operator's size, which are interpolated to
            the finer grid, or `finer` times as large.
        noise: standard deviation as a fraction of mean |y|, > 0.
        seed: of the noise. finer: how many fine pixels a side of a pixel has, >= 1.
    """
    check_call(simulate, locals())
    if not (math.isfinite(noise) and noise > 0):
        raise ValueError(
            f"`noise` of simulate must be > 0, a fraction of mean |y|, got {noise}: take e.g. 0.05"
        )
    images = _images(images)
    check_image(images, "images of simulate", square=isinstance(operator, Projector))
    if isinstance(operator, Projector) and finer > 1:
        fine, truth = _fine(operator, images, finer)
        clean = projector_of(operator.geometry.finer(finer), _RAYS)(fine) / finer
    else:
        clean, truth = operator(images), images
    sd = noise * clean.abs().mean(-1)
    if not bool((sd > 0).all()):
        raise ValueError("`images` of simulate must not be 0 everywhere: mean |y| is then 0")
    draws = torch.stack(
        [torch.randn(clean.shape[1], generator=generator(seed, "scan", k)) for k in range(len(sd))]
    )
    return Scan(operator, clean + sd[:, None] * draws.to(clean), sd, truth)


def _fine(operator: Projector, images: Tensor, finer: Few) -> tuple[Tensor, Tensor]:
    """Return images on the finer grid, and their means over the operator's pixels."""
    side = operator.geometry.side
    if tuple(images.shape[-2:]) == (side, side):
        images = F.interpolate(images, scale_factor=finer, mode="bilinear", align_corners=False)
    elif tuple(images.shape[-2:]) != (side * finer, side * finer):
        raise ValueError(
            f"`images` of simulate must have {side} × {side} pixels, those of the projector, or"
            f" {side * finer} × {side * finer} for finer={finer}, got"
            f" {images.shape[-2]} × {images.shape[-1]}"
        )
    return images, F.avg_pool2d(images, finer)


def _images(images: Tensor) -> Tensor:
    images = torch.as_tensor(images)
    if not images.is_floating_point():
        images = images.to(torch.get_default_dtype())
    if images.dim() < 2 or images.numel() == 0:
        raise ValueError(f"images must have shape (H, W) or (N, 1, H, W), got {shown(images)}")
    return images.reshape(-1, 1, *images.shape[-2:])


def check_image(images: Tensor, what: str, square: bool) -> None:
    """Refuse images that are not finite, or not square where they must be."""
    height, width = images.shape[-2:]
    if square and height != width:
        raise ValueError(
            f"{what} must be square, got {height} × {width} pixels; pad the shorter side with zeros"
        )
    if not torch.isfinite(images).all():
        bad = int((~torch.isfinite(images)).sum())
        raise ValueError(f"{what} must be finite, got {bad} pixels that are not")
