r"""Simple ways to an uncertainty of a deep image prior, for comparison.

- MC dropout: a network trained with dropout p after each 3x3 convolution; samples are passes with
  dropout left on. Y. Gal, Z. Ghahramani, ICML 2016; on the deep image prior: M.-H. Laves, M. Tölle,
  T. Ortmaier, "Uncertainty estimation in medical image denoising with Bayesian deep image prior",
  2020. p = 0.05 is that of J. Antorán et al., TMLR 2023.
- Ensemble: networks from several initialisations; samples are their images. B. Lakshminarayanan,
  A. Pritzel, C. Blundell, NeurIPS 2017.
- Constant variance: one standard deviation for all pixels, e.g. the error on other images.

All return a `Reconstruction` with mean, standard deviation and, but for the last, samples.

Shapes: `N` images, `S` samples, `H`, `W` height and width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from polymode.core.checks import check_call
from polymode.core.memory import require_free
from polymode.nets import unet
from polymode.stack.execution import streams_of
from polymode.tomography.dip import DeepImagePrior, DIPFit, deep_image_prior, member_inputs
from polymode.tomography.reconstruction import Reconstruction
from polymode.tomography.scan import Scan

DROPOUT = 0.05


def mc_dropout_dip(
    scan: Scan,
    net: Callable[[], nn.Module] | None = None,
    options: DeepImagePrior | None = None,
    *,
    dropout: float = DROPOUT,
    num_samples: int = 100,
    seed: int = 0,
    **more: Any,
) -> Reconstruction:
    """Return the reconstructions of networks with dropout.

    Args:
        net: makes a network with dropout layers; by default the paper's U-Net with `dropout`.
        dropout: probability of the default network, in (0, 1).
        num_samples: passes with dropout on, S >= 2; the paper's are 16,384.
        more: of `deep_image_prior`.
    """
    check_call(mc_dropout_dip, locals())
    if net is None:
        if not 0 < dropout < 1:
            raise ValueError(f"`dropout` of mc_dropout_dip must be in (0, 1), got {dropout}")
        shape = (1, *scan.operator.image_shape)
        net = partial(unet, shape, 1, sigmoid=True, dropout=dropout)
    if num_samples < 2:
        raise ValueError(f"`num_samples` of mc_dropout_dip must be at least 2, got {num_samples}")
    fit = deep_image_prior(scan, net, options, seed=seed, **more)
    return Reconstruction.from_samples(
        noisy_images(fit, num_samples), "MC dropout", steps=fit.steps, steps_run=fit.steps_run
    )


@torch.no_grad()
def noisy_images(fit: DIPFit, num_samples: int) -> Tensor:
    """Return images with the networks' noise on, (S, N, 1, H, W); S is for each network."""
    inputs, stack = member_inputs(fit), fit.stack.set_mode("noisy")
    try:
        if streams_of(stack, inputs, True, 0) is None:
            raise ValueError(
                f"MC dropout needs a network that draws noise, but a pass of this"
                f" {type(stack.template).__name__} draws nothing; add nn.Dropout(0.05) between its"
                " layers, or take pm.nets.unet(..., dropout=0.05)"
            )
        num_bytes = fit.inputs.numel() * fit.options.networks_per_image * inputs.element_size()
        require_free(2 * num_samples * num_bytes, f"{num_samples:,} samples", "Take fewer samples")
        images = torch.stack([stack(inputs, own=True, step=s)[:, 0] for s in range(num_samples)])
    finally:
        stack.eval()
    E = fit.options.networks_per_image
    return images.unflatten(1, (-1, E)).movedim(2, 1).flatten(0, 1)


def ensemble_dip(
    scan: Scan,
    net: Callable[[], nn.Module] | None = None,
    options: DeepImagePrior | None = None,
    *,
    networks_per_image: int = 5,
    seed: int = 0,
    **more: Any,
) -> Reconstruction:
    """Return mean and spread of several networks for each image, all trained as one stack.

    Args:
        networks_per_image: at least 2. more: of `deep_image_prior`.
    """
    check_call(ensemble_dip, locals())
    if networks_per_image < 2:
        raise ValueError(
            "`networks_per_image` of ensemble_dip must be at least 2, one has no spread, got"
            f" {networks_per_image}"
        )
    options = replace(options or DeepImagePrior(), networks_per_image=networks_per_image)
    fit = deep_image_prior(scan, net, options, seed=seed, **more)
    return Reconstruction.from_samples(
        fit.images(), "ensemble", steps=fit.steps, steps_run=fit.steps_run
    )


def constant_sd(reconstruction: Reconstruction, sd: float) -> Reconstruction:
    """Return the same image with one standard deviation > 0 for all pixels."""
    check_call(constant_sd, locals())
    if not (math.isfinite(sd) and sd > 0):
        raise ValueError(f"`sd` of constant_sd must be > 0, got {sd}")
    mean = reconstruction.mean
    return Reconstruction(mean, torch.full_like(mean, sd), None, "constant", reconstruction.info)


def fitted_sd(pairs: Iterable[tuple[Reconstruction, Tensor]]) -> float:
    """Return the root mean square error over reconstructions and their truths, (N, 1, H, W).

    It is the most likely constant standard deviation. To be taken from other images than those it
    is used for.
    """
    check_call(fitted_sd, locals())
    errors = [image.error(truth).double().square().flatten() for image, truth in pairs]
    if not errors:
        raise ValueError("fitted_sd needs at least 1 reconstruction and its truth, got 0")
    return float(torch.cat(errors).mean().sqrt())
