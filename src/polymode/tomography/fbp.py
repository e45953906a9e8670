r"""Filtered backprojection: the classical inverse of a scan with many angles.

.. math:: f(r) = \int (h * p_\varphi)(t_\varphi(r))\, w_\varphi(r)\, d\varphi

Each projection p is convolved with the ramp filter h, then spread back along its rays. h is that of
Ramachandran and Lakshminarayanan for a detector of spacing a: 1/(4a²) at 0, -1/(π n a)² at odd n, 0
at even n; a window in the frequency damps what is mostly noise. For a parallel beam t = r · u_φ and
w = 1, over half a turn. For a fan with a flat detector, moved to the centre, projections are first
multiplied by D / sqrt(D² + s²) and by the share that a ray has among the measurements of its line,
1/2 over a whole turn; w = (D / distance to the source along the axis)². dφ is what a view stands
for. Values between detector cells are interpolated linearly.

Views. Sorted on the circle of directions, half a turn for parallel beams and a whole one for fans,
a view stands for half of the gap to either neighbour; views at one angle share alike. A gap that is
far larger than the others is a missing wedge: no neighbour stands for it, and the views at its ends
reach as far beyond as is usual between views.

Far larger: with the gaps but the i largest of mean g and standard deviation s, the i-th largest
counts as missing if it exceeds 2 g + c s, where with K gaps

    c = (K − 1) x / (1 − x),    K (1 − x)^(K − 1) = 0.01.

2 g is a view left out of an even scan. c is for uneven ones: of K angles drawn at random the
largest gap is more than a share x of the circle, c times the mean of the others, in at most 1 of
100 scans (Fisher), and then s is about g. The largest i that passes is taken, up to four and an
eighth of the gaps, so that two wedges do not hide each other.

A line of a fan at angle γ to the central ray is measured from two places of the source, φ and
φ + π − 2γ, with γ and −γ. Of two measurements each gets a share of

    w = sin²(π/2 · d / (d + d')),

d and d' the distances of both places to the nearest missing wedge, so that w is smooth, 0 at a
wedge, and both add up to 1; a line measured once has w = 1, and over a whole turn w = 1/2. For a
short scan, over π + 2δ with a fan of ± δ, these are the weights of Parker, at its beginning
sin²(π/4 · φ / (δ + γ)) with the sign of γ that is used here; between that and a whole turn those
of Silver. Written with distances they hold for any arcs.

References: A. C. Kak, M. Slaney, "Principles of computerized tomographic imaging", SIAM 2001,
equations 3.61 and 3.105. R. A. Fisher, "Tests of significance in harmonic analysis", Proc. R. Soc.
A 125, 1929.
B. Rosner, "Percentage points for a generalized ESD many-outlier procedure", Technometrics 25, 1983.
D. L. Parker, "Optimal short scan convolution reconstruction for fanbeam CT", Medical Physics 9(2),
1982. M. D. Silver, "A method for including redundant data in computed tomography", Medical Physics
27(4), 2000.
Limits: few angles give streaks. What lies in a missing wedge is taken as 0 in the Fourier plane,
the solution of least norm, and a warning names the wedge. Outside of the angles of a short scan a
fan has errors of interpolation that a whole turn averages out.

Shapes: `N` images, `K` angles or views, `D` detector cells, `n` pixels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from polymode.core.checks import OnlyTensor, check_call
from polymode.core.registry import suggest
from polymode.core.warn import warn
from polymode.tomography.operator import LinearOperator
from polymode.tomography.projector import Array, Geometry, Projector, check_finite

_SAME = 1e-9  # of a turn; angles that are closer are one
_ALARM = 0.01  # how often random angles are said to miss a wedge
_WEDGES = 4


@dataclass(frozen=True)
class Views:
    """What the angles of a scan cover.

    Attributes:
        turn: π for parallel beams, 2π for fans.
        shares: radians that each view stands for, (K,); they add up to `covered`.
        wedges: where no view is, from and to in radians, by rising beginning.
        spacing: the usual gap between neighbours.
    """

    turn: float
    shares: Array
    wedges: tuple[tuple[float, float], ...]
    spacing: float

    @property
    def covered(self) -> float:
        """Radians that views stand for."""
        return self.turn - sum(end - begin for begin, end in self.wedges)

    def to_wedge(self, angles: Array) -> Array:
        """Return the distance from each angle to the nearest wedge, 0 inside; there must be one."""
        nearest = np.full(np.shape(angles), np.inf)
        for begin, end in self.wedges:
            ahead = np.mod(begin - angles, self.turn)
            behind = np.mod(angles - end, self.turn)
            inside = np.mod(angles - begin, self.turn) < end - begin
            nearest = np.minimum(nearest, np.where(inside, 0.0, np.minimum(ahead, behind)))
        return nearest


def arrange_views(geometry: Geometry) -> Views:
    """Return what the angles of a scan cover, in any order, more than once, over any range."""
    turn = math.pi if geometry.source_distance is None else 2 * math.pi
    angles = np.mod(np.asarray(geometry.angles, dtype=np.float64), turn)
    order = np.argsort(angles, kind="stable")
    rising = angles[order]
    first = np.diff(rising, prepend=rising[-1] - turn) > _SAME * turn  # of those at one angle
    places = rising[first]
    gaps = np.diff(places, append=places[0] + turn)
    missing = missing_gaps(gaps)
    spacing = float(gaps[~missing].mean())
    reach = np.where(missing, spacing, gaps) / 2
    place = (np.cumsum(first) - 1) % len(places)  # of each view, in rising order
    shares = np.empty(len(angles))
    shares[order] = ((reach + np.roll(reach, 1)) / np.bincount(place))[place]
    wedges = [
        (float(place + spacing / 2), float(place + gap - spacing / 2))
        for place, gap in zip(places[missing], gaps[missing], strict=True)
    ]
    return Views(turn, shares, tuple(wedges), spacing)


def missing_gaps(gaps: Array) -> np.ndarray:
    """Return which gaps between neighbours on a circle are missing wedges, (K,) of bool.

    >>> missing_gaps(np.array([1.0, 1.1, 9.0, 0.9])).tolist()
    [False, False, True, False]
    """
    order = np.argsort(gaps, kind="stable")[::-1]
    number = 0
    for i in range(1, min(max(1, len(gaps) // 8), _WEDGES, len(gaps) - 1) + 1):
        smaller = gaps[order[i:]]
        K = len(smaller) + 1
        kept_share = (_ALARM / K) ** (1 / (K - 1))  # 1 − x
        largest = 2 * smaller.mean() + (K - 1) * (1 - kept_share) / kept_share * smaller.std()
        if gaps[order[i - 1]] > largest * (1 + 1e-9):
            number = i
    missing = np.zeros(len(gaps), dtype=bool)
    missing[order[:number]] = True
    return missing


def redundancy_weights(geometry: Geometry, views: Views) -> Array:
    """Return the share w of each ray of a fan among the measurements of its line, (K, D)."""
    assert geometry.source_distance is not None
    if not views.wedges:
        return np.full(geometry.sinogram_shape, 0.5)
    source = np.asarray(geometry.angles, dtype=np.float64)[:, None]
    opposite = source + math.pi - 2 * _ray_angles(geometry)
    distance, opposite_distance = views.to_wedge(source), views.to_wedge(opposite)
    return np.asarray(np.sin(math.pi / 2 * distance / (distance + opposite_distance)) ** 2)


def _ray_angles(geometry: Geometry) -> Array:
    """Return γ of each cell of a fan's detector, from the central ray, (D,)."""
    assert geometry.source_distance is not None
    return np.arctan(geometry.cells() / (geometry.source_distance + geometry.detector_distance))


def missing_angle(geometry: Geometry, views: Views) -> float:
    """Return how many radians of directions are missing.

    Of a fan it is the most, over its rays, of the places of the source from which a line at this γ
    is measured neither directly nor from the other side; for a single arc, what it lacks to π + 2δ.
    """
    if geometry.source_distance is None:
        return views.turn - views.covered
    widest = half_fan(geometry)
    return max(_both_missing(views, math.pi - 2 * g) for g in np.linspace(0, widest, 33))


def half_fan(geometry: Geometry) -> float:
    """Return δ: the largest angle of a ray that meets the image and the detector."""
    assert geometry.source_distance is not None
    image = math.asin(geometry.side / math.sqrt(2) / geometry.source_distance)
    return min(image, float(_ray_angles(geometry)[-1]))


def _both_missing(views: Views, shift: float) -> float:
    """Return the length of what is in a wedge as well as in one moved by `shift`."""
    total = 0.0
    for begin, end in views.wedges:
        for first, last in views.wedges:
            for turns in (-1, 0, 1):
                moved = shift + turns * views.turn
                total += max(0.0, min(end, last + moved) - max(begin, first + moved))
    return total


def missing_wedge_text(geometry: Geometry, views: Views) -> str:
    """Return a sentence on what a scan has not seen, in degrees; "" if it has seen all."""
    missing = missing_angle(geometry, views)
    if not views.wedges or missing <= views.spacing * (1e-9 if views.turn < 4 else 1.0):
        return ""
    places = ", ".join(
        f"{math.degrees(begin):.0f}° to {math.degrees(end - views.turn * (end > views.turn)):.0f}°"
        for begin, end in views.wedges
    )
    needed = ""
    if geometry.source_distance is not None:
        least = 180 + 2 * math.degrees(half_fan(geometry))
        needed = f"; a fan needs its angle and half a turn in one piece, {least:.0f}°"
    missing, turn, covered = (math.degrees(angle) for angle in (missing, views.turn, views.covered))
    return (
        f"{missing:.0f}° of {turn:.0f}° of directions are missing: views cover {covered:.0f}°, with"
        f" none from {places}{needed}"
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
            " take tv_reconstruction or deep_image_prior, which fill in what is missing"
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
    y, x = (grid.flatten() for grid in torch.meshgrid(-axis, axis, indexing="ij"))
    sin, cos = math.sin(geometry.angles[k]), math.cos(geometry.angles[k])
    along, weight = x * cos + y * sin, torch.ones_like(x)
    if geometry.source_distance is not None:
        distance = geometry.source_distance
        depth = distance - (x * sin - y * cos)  # from the source, along the central ray
        along = along * (distance + geometry.detector_distance) / depth
        weight = (distance / depth) ** 2
    return along / geometry.spacing + (geometry.num_detectors - 1) / 2, weight
