"""Linear inverse problems: what was measured of an image, the image again, and how sure of it."""

from __future__ import annotations

from polymode.tomography.baselines import constant_sd, ensemble_dip, fitted_sd, mc_dropout_dip
from polymode.tomography.dip import DIPFit, best_steps, deep_image_prior
from polymode.tomography.dip_training import DeepImagePrior
from polymode.tomography.fbp import fbp
from polymode.tomography.filter_prior import FilterPrior, filter_prior
from polymode.tomography.geometry import Geometry
from polymode.tomography.image_operators import blur, inpainting
from polymode.tomography.image_posterior import ImagePosterior, image_posteriors
from polymode.tomography.linearised import Linearised
from polymode.tomography.linearised_dip import LinearisedDIP
from polymode.tomography.operator import LinearOperator
from polymode.tomography.phantoms import random_ellipses, shepp_logan
from polymode.tomography.projector import Projector, fan_beam, parallel_beam
from polymode.tomography.quality import psnr, ssim
from polymode.tomography.reconstruction import Reconstruction
from polymode.tomography.scan import Scan, scan_of, simulate
from polymode.tomography.scores import calibration, coverage, log_density
from polymode.tomography.tv import total_variation, tv_reconstruction

__all__ = [
    "DIPFit", "DeepImagePrior", "FilterPrior", "Geometry", "ImagePosterior", "LinearOperator",
    "Linearised", "LinearisedDIP", "Projector", "Reconstruction", "Scan", "best_steps", "blur",
    "calibration", "constant_sd", "coverage", "deep_image_prior", "ensemble_dip", "fan_beam", "fbp",
    "filter_prior", "fitted_sd", "image_posteriors", "inpainting", "log_density", "mc_dropout_dip",
    "parallel_beam", "psnr", "random_ellipses", "scan_of", "shepp_logan", "simulate", "ssim",
    "total_variation", "tv_reconstruction",
]  # fmt: skip
