"""Linear inverse problems: what was measured of an image, the image again, and how sure of it."""

from __future__ import annotations

from polymode.tomography.fbp import fbp
from polymode.tomography.geometry import Geometry
from polymode.tomography.image_operators import blur, inpainting
from polymode.tomography.operator import LinearOperator
from polymode.tomography.projector import Projector, fan_beam, parallel_beam
from polymode.tomography.quality import psnr, ssim
from polymode.tomography.reconstruction import Reconstruction
from polymode.tomography.scan import Scan, scan_of, simulate

__all__ = [
    "Geometry", "LinearOperator", "Projector", "Reconstruction", "Scan", "blur", "fan_beam", "fbp",
    "inpainting", "parallel_beam", "psnr", "scan_of", "simulate", "ssim",
]  # fmt: skip
