r"""Filtered backprojection: the classical inverse of a scan with many angles.

.. math:: f(r) = \int (h * p_\varphi)(t_\varphi(r))\, w_\varphi(r)\, d\varphi

Each projection p is convolved with the ramp filter h, then spread back along its rays. h is that of
Ramachandran and Lakshminarayanan for a detector of spacing a: 1/(4a²) at 0, -1/(π n a)² at odd n, 0
at even n; a window in the frequency damps what is mostly noise. For a parallel beam t = r · u_φ and
w = 1, over half a turn. For a fan with a flat detector, moved to the centre, projections are first
multiplied by D / sqrt(D² + s²) and by the share that a ray has among the measurements of its line,
1/2 over a whole turn; w = (D / distance to the source along the axis)². dφ is what a view stands
for; both are in `views`. Values between detector cells are interpolated linearly.

Reference: A. C. Kak, M. Slaney, "Principles of computerized tomographic imaging", SIAM 2001,
equations 3.61 and 3.105.
Limits: few angles give streaks. What lies in a missing wedge is taken as 0 in the Fourier plane,
the solution of least norm, and a warning names the wedge. Outside of the angles of a short scan a
fan has errors of interpolation that a whole turn averages out.

Shapes: `N` images, `K` angles, `D` detector cells, `n` pixels.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from polymode.core.checks import OnlyTensor, check_call
from polymode.core.registry import suggest
from polymode.core.warn import warn
from polymode.tomography.geometry import Geometry
from polymode.tomography.operator import LinearOperator
from polymode.tomography.projector import Projector, check_finite
from polymode.tomography.views import (
    Views,
    arrange_views,
    missing_wedge_text,
    redundancy_weights,
)

FILTERS = ("ram-lak", "shepp-logan", "cosine", "hann")


def fbp(projector: LinearOperator, observations: OnlyTensor, filter: str = "ram-lak") -> Tensor:
    """Return the filtered backprojections (N, 1, H, W) of observations (N, m) or (m,).

    A warning says which directions have no view, if some are missing.

    Args:
        observations: or a sinogram, (N, angles, detector cells) or (angles, detector cells).
        filter: window of the ramp filter: "ram-lak" (none), "shepp-logan", "cosine" or "hann", from
            sharp to smooth.
    """
    check_call(fbp, locals())
    if filter not in FILTERS:
        raise ValueError(
            f"`filter` of fbp must be one of {', '.join(FILTERS)}, got {filter!r}."
            + suggest(filter, FILTERS)
        )
    projector = check_projector(projector)
    text = missing_wedge_text(projector.geometry, arrange_views(projector.geometry))
    if text:
        warn(
            f"fbp: {text}; edges along them are not seen and streaks remain. Measure them too, or"
            " take tv_reconstruction or deep_image_prior, which fill in what is missing",
        )
    return backproject(projector, observations, filter)


def check_projector(operator: LinearOperator) -> Projector:
    """Return the operator; refuses one without a geometry."""
    if not isinstance(operator, Projector):
        raise ValueError(
            f"fbp needs a projector, made by parallel_beam or fan_beam, got {operator!r}; for"
            " other operators take tv_reconstruction"
        )
    return operator


def backproject(projector: Projector, observations: Tensor, filter: str = "ram-lak") -> Tensor:
    """Return what `fbp` does, without its warning; for a start that need not be complete."""
    geometry = projector.geometry
    if observations.shape[-1] != projector.num_observations:
        observations = projector.observations(observations)
    check_finite(observations)
    sinogram = projector.sinogram(observations.reshape(-1, projector.num_observations))
    views, scale = arrange_views(geometry), 1.0
    if geometry.source_distance is not None:
        distance = geometry.source_distance
        scale = distance / (distance + geometry.detector_distance)  # to a detector in the centre
        cells = torch.as_tensor(geometry.cells() * scale).to(sinogram)
        sinogram = sinogram * (distance / (distance**2 + cells**2).sqrt())
        sinogram = sinogram * torch.as_tensor(redundancy_weights(geometry, views)).to(sinogram)
    filtered = _filtered(sinogram, geometry.spacing * scale, filter)
    return _spread(geometry, views, filtered)


def _filtered(sinogram: Tensor, spacing: float, name: str) -> Tensor:
    """Return projections (N, K, D) convolved with the ramp filter."""
    D = sinogram.shape[-1]
    size = 2 ** math.ceil(math.log2(2 * D))  # so that nothing wraps around
    number = torch.fft.fftfreq(size, 1 / size, dtype=torch.float64)  # 0, 1, ..., -2, -1
    odd = number.long() % 2 == 1
    kernel = torch.where(odd, -1 / (math.pi * number * spacing) ** 2, 0.0)
    kernel[0] = 1 / (4 * spacing**2)
    ramp = torch.fft.rfft(kernel).real * spacing
    place = torch.linspace(0, 1, len(ramp), dtype=torch.float64)  # of the largest frequency
    window = {
        "ram-lak": torch.ones_like(place),
        "shepp-logan": torch.sinc(place / 2),
        "cosine": torch.cos(math.pi * place / 2),
        "hann": torch.cos(math.pi * place / 2) ** 2,
    }[name]
    spectrum = torch.fft.rfft(sinogram, size) * (ramp * window).to(sinogram)
    return torch.fft.irfft(spectrum, size)[..., :D]


def _spread(geometry: Geometry, views: Views, filtered: Tensor) -> Tensor:
    """Return the sum over the angles of what is spread back along the rays."""
    D = geometry.num_detectors
    images = filtered.new_zeros(len(filtered), geometry.side**2)
    for k, share in enumerate(views.shares.tolist()):
        place, weight = _places(geometry, k)
        left = place.floor().long()
        part = (place - left).to(filtered)
        row = torch.nn.functional.pad(filtered[:, k], (1, 2))  # 0 beside the detector
        near = row[:, left.clamp(-1, D) + 1] * (1 - part) + row[:, left.clamp(-1, D) + 2] * part
        images += share * near * weight.to(filtered)
    return images.reshape(-1, 1, geometry.side, geometry.side)


def _places(geometry: Geometry, k: int) -> tuple[Tensor, Tensor]:
    """Return where each pixel is seen at angle k, in detector cells from the first, and w, (n,)."""
    axis = torch.arange(geometry.side, dtype=torch.float64) - (geometry.side - 1) / 2
    y, x = (each.flatten() for each in torch.meshgrid(-axis, axis, indexing="ij"))
    sin, cos = math.sin(geometry.angles[k]), math.cos(geometry.angles[k])
    along, weight = x * cos + y * sin, torch.ones_like(x)
    if geometry.source_distance is not None:
        distance = geometry.source_distance
        depth = distance - (x * sin - y * cos)  # from the source, along the central ray
        along = along * (distance + geometry.detector_distance) / depth
        weight = (distance / depth) ** 2
    return along / geometry.spacing + (geometry.num_detectors - 1) / 2, weight
