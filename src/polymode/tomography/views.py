r"""How much of the turn each view of a scan stands for, and which part of it no view has seen.

Sorted on the circle of directions, half a turn for parallel beams and a whole one for fans, a view
stands for half of the gap to either neighbour; views at one angle share alike. A gap that is far
larger than the others is a missing wedge: no neighbour stands for it, and the views at its ends
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

References: R. A. Fisher, "Tests of significance in harmonic analysis", Proc. R. Soc. A 125, 1929.
B. Rosner, "Percentage points for a generalized ESD many-outlier procedure", Technometrics 25, 1983.
D. L. Parker, "Optimal short scan convolution reconstruction for fanbeam CT", Medical Physics 9(2),
1982. M. D. Silver, "A method for including redundant data in computed tomography", Medical Physics
27(4), 2000.

Shapes: `K` views, `D` detector cells.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from polymode.tomography.geometry import Geometry
from polymode.tomography.rays import Array

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
        rest = gaps[order[i:]]
        K = len(rest) + 1
        seen = (_ALARM / K) ** (1 / (K - 1))  # 1 − x
        largest = 2 * rest.mean() + (K - 1) * (1 - seen) / seen * rest.std()
        if gaps[order[i - 1]] > largest * (1 + 1e-9):
            number = i
    found = np.zeros(len(gaps), dtype=bool)
    found[order[:number]] = True
    return found


def redundancy_weights(geometry: Geometry, views: Views) -> Array:
    """Return the share w of each ray of a fan among the measurements of its line, (K, D)."""
    assert geometry.source_distance is not None
    if not views.wedges:
        return np.full(geometry.sinogram_shape, 0.5)
    source = np.asarray(geometry.angles, dtype=np.float64)[:, None]
    opposite = source + math.pi - 2 * _ray_angles(geometry)
    here, there = views.to_wedge(source), views.to_wedge(opposite)
    return np.asarray(np.sin(math.pi / 2 * here / (here + there)) ** 2)


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
        for other, last in views.wedges:
            for turns in (-1, 0, 1):
                moved = shift + turns * views.turn
                total += max(0.0, min(end, last + moved) - max(begin, other + moved))
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
        one = 180 + 2 * math.degrees(half_fan(geometry))
        needed = f"; a fan needs its angle and half a turn in one piece, {one:.0f}°"
    missing, turn, covered = (math.degrees(each) for each in (missing, views.turn, views.covered))
    return (
        f"{missing:.0f}° of {turn:.0f}° of directions are missing: views cover {covered:.0f}°, with"
        f" none from {places}{needed}"
    )
