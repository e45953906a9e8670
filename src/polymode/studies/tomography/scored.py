"""Scores of every method on one image, and the rows and arrays that they become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from polymode.examinations import Findings, measure
from polymode.metrics.paired import mean_and_error
from polymode.metrics.results import Row
from polymode.tomography import psnr, ssim
from polymode.tomography.reconstruction import ImagePosterior
from polymode.tomography.scores import (
    LEVELS,
    calibration,
    calibration_error,
    coverage,
    coverage_error,
    log_density,
)

METHODS = {
    "linear_matern_predcp": "lin-DIP θ*, Matérn + TV-PredCP",
    "linear_matern": "lin-DIP θ*, Matérn",
    "linear_isotropic": "lin-DIP θ*, isotropic",
    "trained_matern_predcp": "lin-DIP θ̃, Matérn + TV-PredCP",
    "trained_matern": "lin-DIP θ̃, Matérn",
    "trained_isotropic": "lin-DIP θ̃, isotropic",
    "dropout": "MC dropout DIP",
    "ensemble": "ensemble DIP",
    "constant": "DIP, constant variance",
}
"""Keys in the results, and titles."""

METRICS = {
    "psnr": ("PSNR ↑", "dB", "up"),
    "ssim": ("SSIM ↑", "", "up"),
    "log_density": ("log-density ↑", "nats per pixel", "up"),
    "log_density_2x2": ("log-density, 2×2 patches ↑", "nats per pixel", "up"),
    "log_density_noise": ("log-density + noise term ↑", "nats per pixel", "up"),
    "log_density_open": ("log-density, grey pixels ↑", "nats per pixel", "up"),
    "coverage_50": ("coverage of 50 %", "", ""),
    "coverage_90": ("coverage of 90 %", "", ""),
    "coverage_95": ("coverage of 95 %", "", ""),
    "coverage_error": ("coverage error ↓", "", "down"),
    "calibration_error": ("calibration error ↓", "grey value", "down"),
    "mean_sd": ("mean s.d.", "grey value", ""),
}
"""Name, heading, unit and direction of each score."""

EDGE = 0.01  # a sigmoid this close to black or white hardly moves with the weights


def scores(
    posterior: ImagePosterior, truth: Tensor, plain: Tensor, noise: float
) -> dict[str, float]:
    """Return every score of a posterior.

    Args:
        truth: the true image (H, W). plain: the image of the network without uncertainty; its grey
            pixels are those further than `EDGE` from black and white.
        noise: the variance of the reference's noise term, see `image_noise`.
    """
    pair = posterior.image[None, None], truth[None, None]
    grey = (plain - 0.5).abs() < 0.5 - EDGE
    values = {
        "psnr": float(psnr(*pair)),
        "ssim": float(ssim(*pair)),
        "log_density": log_density(posterior, truth),
        "log_density_2x2": log_density(posterior, truth, side=2),
        "log_density_noise": log_density(posterior, truth, floor=noise),
        "log_density_open": log_density(posterior, truth, where=grey),
        "coverage_error": coverage_error(posterior, truth),
        "calibration_error": calibration_error(posterior, truth),
        "mean_sd": float(posterior.std.mean()),
    }
    for level, value in zip(LEVELS, coverage(posterior, truth), strict=True):
        values[f"coverage_{100 * level:.0f}"] = value
    return {name: values[name] for name in METRICS}


class Board:
    """Collects posteriors of images by method.

    Args:
        plain: the network's images (N, 1, H, W). noise: the reference's noise term of each.
    """

    def __init__(self, plain: Tensor, noise: Sequence[float]) -> None:
        self._plain, self._noise = plain[:, 0], noise
        self.values: dict[str, list[dict[str, float]]] = {}
        self._pairs: dict[str, list[tuple[ImagePosterior, Tensor]]] = {}

    def add(self, method: str, posterior: ImagePosterior, truth: Tensor) -> None:
        """Score what a method says of its next image."""
        assert method in METHODS, method
        images = self.values.setdefault(method, [])
        k = len(images)
        images.append(scores(posterior, truth, self._plain[k], self._noise[k]))
        self._pairs.setdefault(method, []).append((posterior, truth))

    def findings(self, more: Sequence[Row] = (), arrays: Mapping[str, np.ndarray] = {}) -> Findings:
        """Return means over images with standard errors, and every image's scores as arrays."""
        rows: list[Row] = list(more)
        arrays = dict(arrays)
        for method, images in self.values.items():
            for metric, (_, unit, direction) in METRICS.items():
                mean, error = mean_and_error([image[metric] for image in images])
                rows.append(
                    measure(
                        f"{metric}_{method}", mean, n=len(images), unit=unit, direction=direction,
                        standard_error=error,
                    )
                )  # fmt: skip
            arrays[method] = np.array([[image[m] for m in METRICS] for image in images])
            posteriors, truths = zip(*self._pairs[method], strict=True)
            curve = calibration(posteriors, truths)
            arrays[f"calibration {method}"] = np.stack([curve.predicted, curve.actual])
        return Findings(tuple(rows), arrays)


def pictures(truth: Tensor, fbp: Tensor, posterior: ImagePosterior) -> np.ndarray:
    """Return truth, FBP, reconstruction, |error| and standard deviation, (5, H, W)."""
    mean = posterior.image
    planes = [truth.double(), fbp.double(), mean, (mean - truth.double()).abs(), posterior.std]
    return np.stack([plane.numpy() for plane in planes])
