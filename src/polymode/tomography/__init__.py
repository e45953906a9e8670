"""Linear inverse problems: what was measured of an image, the image again, and how sure of it.

First `operator` (linear maps with exact adjoints) and `projector` (X-rays). `phantoms` are images,
`scan` measures them, `reconstruction` is what comes back, `scores` compare it with the truth.
Images: `fbp`, `tv`, `dip` (the deep image prior), `baselines`. Error bars: `linearised` is the
network as a linear model, `filter_prior` and `tv_predcp` are priors of its weights, `evidence`
chooses between them by dense matrices, `matrix_free` by products; `linearised_dip` is the way
through all of them. `tv_samples` draws from priors of images.
"""

from __future__ import annotations

from polymode.tomography.baselines import constant_sd, ensemble_dip, fitted_sd, mc_dropout_dip
from polymode.tomography.dip import DeepImagePrior, DIPFit, best_steps, deep_image_prior
from polymode.tomography.fbp import fbp
from polymode.tomography.filter_prior import FilterPrior, filter_prior
from polymode.tomography.linearised import Linearised
from polymode.tomography.linearised_dip import LinearisedDIP
from polymode.tomography.operator import LinearOperator, blur, inpainting
from polymode.tomography.phantoms import random_ellipses, shepp_logan
from polymode.tomography.projector import Geometry, Projector, fan_beam, parallel_beam
from polymode.tomography.reconstruction import ImagePosterior, Reconstruction, image_posteriors
from polymode.tomography.scan import Scan, scan_of, simulate
from polymode.tomography.scores import calibration, coverage, log_density, psnr, ssim
from polymode.tomography.tv import total_variation, tv_reconstruction

__all__ = [
    "DIPFit", "DeepImagePrior", "FilterPrior", "Geometry", "ImagePosterior", "LinearOperator",
    "Linearised", "LinearisedDIP", "Projector", "Reconstruction", "Scan", "best_steps", "blur",
    "calibration", "constant_sd", "coverage", "deep_image_prior", "ensemble_dip", "fan_beam", "fbp",
    "filter_prior", "fitted_sd", "image_posteriors", "inpainting", "log_density", "mc_dropout_dip",
    "parallel_beam", "psnr", "random_ellipses", "scan_of", "shepp_logan", "simulate", "ssim",
    "total_variation", "tv_reconstruction",
]  # fmt: skip
