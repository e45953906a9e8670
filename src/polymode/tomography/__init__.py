"""Linear inverse problems: what was measured of an image, the image again, and how sure of it."""

from __future__ import annotations

from polymode.tomography.baselines import constant_sd, ensemble_dip, fitted_sd, mc_dropout_dip
from polymode.tomography.dip import DIPFit, best_steps, deep_image_prior
from polymode.tomography.dip_training import DeepImagePrior
from polymode.tomography.fbp import fbp
from polymode.tomography.geometry import Geometry
from polymode.tomography.image_operators import blur, inpainting
from polymode.tomography.operator import LinearOperator
from polymode.tomography.projector import Projector, fan_beam, parallel_beam
from polymode.tomography.quality import psnr, ssim
from polymode.tomography.reconstruction import Reconstruction
from polymode.tomography.scan import Scan, scan_of, simulate
from polymode.tomography.tv import total_variation, tv_reconstruction

__all__ = [
    "DIPFit", "DeepImagePrior", "Geometry", "LinearOperator", "Projector", "Reconstruction", "Scan",
    "best_steps", "blur", "constant_sd", "deep_image_prior", "ensemble_dip", "fan_beam", "fbp",
    "fitted_sd", "inpainting", "mc_dropout_dip", "parallel_beam", "psnr", "scan_of", "simulate",
    "ssim", "total_variation", "tv_reconstruction",
]  # fmt: skip
