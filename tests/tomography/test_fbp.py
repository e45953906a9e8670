"""Backprojection of any set of views: what each stands for, missing wedges, and short fans."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch

from polymode.tomography import (
    DeepImagePrior,
    deep_image_prior,
    fan_beam,
    fbp,
    parallel_beam,
    scan_of,
    shepp_logan,
)
from polymode.tomography.fbp import (
    arrange_views,
    half_fan,
    missing_gaps,
    missing_wedge_text,
    redundancy_weights,
)
from polymode.tomography.projector import Geometry, make_geometry

SIDE = 32
DEGREE = math.pi / 180


def degrees(*parts) -> np.ndarray:
    return np.concatenate([np.atleast_1d(part) for part in parts]).astype(float) * DEGREE


def parallel(angles) -> Geometry:
    return make_geometry(SIDE, torch.as_tensor(np.asarray(angles)), None, None)


def fan(angles) -> Geometry:
    return make_geometry(SIDE, torch.as_tensor(np.asarray(angles)), None, None, 50.0, 25.0)


def short(extra: float = 0.0, number: int = 120, start: float = 0.3) -> np.ndarray:
    """Angles over π + 2δ + extra."""
    reach = math.pi + 2 * half_fan(fan([0.0])) + extra
    return start + (np.arange(number) + 0.5) * reach / number


def disc_sinogram(geometry: Geometry, x: float, y: float, radius: float) -> torch.Tensor:
    """Chords of a disc, from the distance of each line to its middle; no projector."""
    points, directions = geometry.rays()
    directions = directions / np.linalg.norm(directions, axis=1, keepdims=True)
    off = np.array([x, y]) - points
    distance = off[:, 0] * directions[:, 1] - off[:, 1] * directions[:, 0]
    chords = 2 * np.sqrt(np.clip(radius**2 - distance**2, 0, None))
    return torch.from_numpy(chords)[None]


def disc(x: float, y: float, radius: float) -> np.ndarray:
    """Distances of pixels from the edge of a disc, positive inside."""
    axis = np.arange(SIDE) - (SIDE - 1) / 2
    return radius - np.hypot(axis[None] - x, -axis[:, None] - y)


# ---------------------------------------------------------------- what a view stands for


@pytest.mark.parametrize("make, turn", [(parallel, math.pi), (fan, 2 * math.pi)])
def test_even_views_of_the_turn_have_even_shares(make, turn) -> None:
    views = arrange_views(make(np.arange(40) * turn / 40 + 0.1))
    np.testing.assert_allclose(views.shares, turn / 40)
    assert not views.wedges and views.covered == turn


@pytest.mark.parametrize(
    "angles",
    [
        degrees(np.arange(0, 60)),
        degrees(np.arange(150, 210)),  # across the end of the half turn
        degrees(np.arange(0, 60), np.arange(90, 120)),
        degrees(np.arange(0, 180, 3), np.arange(180, 230, 2)),
        degrees(np.arange(0, 60), 95.0),
        np.random.default_rng(0).uniform(0, 2.0, 40),
        degrees(10.0),
        degrees(10.0, 10.0, 10.0),
        degrees(10.0, 190.0, 370.0),
        degrees(10.0, 70.0),
    ],
)
@pytest.mark.parametrize("make, turn", [(parallel, math.pi), (fan, 2 * math.pi)])
def test_shares_add_up_to_what_is_covered(make, turn, angles) -> None:
    """And depend neither on the order of views nor on whole turns."""
    views = arrange_views(make(angles))
    assert views.shares.sum() == pytest.approx(views.covered) and (views.shares > 0).all()
    assert 0 < views.covered <= turn + 1e-9
    order = np.random.default_rng(1).permutation(len(angles))
    np.testing.assert_allclose(arrange_views(make(angles[order])).shares, views.shares[order])
    np.testing.assert_allclose(arrange_views(make(angles - turn)).shares, views.shares, atol=1e-9)


def test_a_wedge_of_views_counts_each_by_its_spacing() -> None:
    views = arrange_views(parallel(degrees(np.arange(0, 60))))
    np.testing.assert_allclose(views.shares, DEGREE)
    np.testing.assert_allclose(views.wedges, [(59.5 * DEGREE, 179.5 * DEGREE)])


def test_views_at_one_angle_share_alike() -> None:
    """Also where the angles are apart by half a turn, of parallel beams, and at a wedge's end."""
    once = degrees(np.arange(0, 90, 3))
    views = arrange_views(parallel(np.concatenate([once, once[:1] + math.pi, once[[4, 4, -1]]])))
    shares = arrange_views(parallel(once)).shares
    for place, copies in ((0, [0, 30]), (4, [4, 31, 32]), (29, [29, 33])):
        np.testing.assert_allclose(views.shares[copies], shares[place] / len(copies))


@pytest.mark.parametrize(
    "angles, missing",
    [
        (np.linspace(0, 120, 20), [60]),
        (np.linspace(0, 120, 6), [60]),
        (np.linspace(0, 160, 30), [20]),
        (np.concatenate([np.arange(60), [90]]), [31, 90]),  # a single view in the gap
        (np.concatenate([np.arange(60), 90 + np.arange(60)]), [31, 31]),
        (np.concatenate([np.arange(0, 120, 2), np.arange(0, 120, 2) + 0.01]), [61.99]),  # in pairs
        (np.arange(0, 180, 6), []),
        (np.delete(np.arange(0, 180, 6), 7), []),  # one view left out
        (np.arange(40) * 111.246, []),  # golden angle
        (np.concatenate([np.arange(0, 180, 2), np.arange(0, 180, 2) + 0.01]), []),
        (np.concatenate([np.arange(0, 45, 0.2), np.arange(45, 180, 2)]), []),  # dense in a part
        (np.array([0, 60]), []),
    ],
)
def test_which_gaps_are_missing_wedges(angles, missing) -> None:
    rising = np.sort(np.mod(angles, 180.0))
    gaps = np.diff(rising, append=rising[0] + 180)
    np.testing.assert_allclose(np.sort(gaps[missing_gaps(gaps)]), missing)


@pytest.mark.parametrize("number", [20, 60, 180])
def test_random_angles_are_rarely_said_to_miss_a_wedge(number) -> None:
    """At most 1 % of scans by design; above 2 % of 1,000 would be 3 standard errors more."""
    draw = np.random.default_rng(3)
    alarms = 0
    for _ in range(1000):
        rising = np.sort(draw.uniform(size=number))
        alarms += bool(missing_gaps(np.diff(rising, append=rising[0] + 1)).any())
    assert alarms <= 20


# ---------------------------------------------------------------- images of parallel beams


def test_part_of_a_turn_is_the_whole_with_the_other_views_at_zero() -> None:
    """The Fourier plane is 0 in the wedge: the same image as from a whole half turn of which the
    missing projections are 0. An irregular order, float64 and several images at once."""
    truth = torch.from_numpy(np.stack([disc(2, -3, 8) > 0, disc(-4, 1, 5) > 0])[:, None] * 1.0)
    whole = parallel_beam(SIDE, degrees(np.arange(180)))
    order = np.random.default_rng(0).permutation(60) + 100
    part = parallel_beam(SIDE, degrees(order))
    with pytest.warns(UserWarning, match=r"fbp: 120° of 180° of directions are missing"):
        found = fbp(part, part(truth), "hann")
    blank = whole.sinogram(whole(truth)).clone()
    blank[:, :100] = blank[:, 160:] = 0
    wanted = fbp(whole, blank, "hann")
    assert found.dtype == torch.float64 and found.shape == truth.shape
    torch.testing.assert_close(found, wanted)
    for k in range(2):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.testing.assert_close(fbp(part, part(truth[k]), "hann")[0], found[k])


def test_a_wedge_does_not_blow_up_the_image() -> None:
    """An image of least norm is nearer to the head than no image at all, 0.226 off; with 61° for
    each view at the ends of the wedge it would be 0.299 off."""
    truth = shepp_logan(64)[None, None].double()
    part = parallel_beam(64, degrees(np.arange(60)))
    with pytest.warns(UserWarning, match="none from 60° to 180°"):
        error = (fbp(part, part(truth)) - truth).square().mean().sqrt()
    assert float(error) == pytest.approx(0.170, abs=0.001)


def test_more_than_half_a_turn_and_copies_change_nothing() -> None:
    """A second measurement of the same lines without noise adds nothing."""
    truth = torch.from_numpy((disc(2, -3, 8) > 0)[None, None] * 1.0)
    once = np.arange(60) * math.pi / 60
    image = None
    for angles in (once, np.concatenate([once, once + math.pi]), np.repeat(once, 3), -once[::-1]):
        projector = parallel_beam(SIDE, angles)
        found = fbp(projector, projector(truth))
        image = found if image is None else image
        torch.testing.assert_close(found, image, rtol=1e-6, atol=1e-6)


# ---------------------------------------------------------------- fans


def test_the_two_measurements_of_a_line_are_one_line() -> None:
    """Rows of the matrix at φ, γ and φ + π − 2γ, −γ are the same; their weights add up to 1."""
    geometry = fan([0.7])
    cell = 9
    gamma = math.atan(geometry.cells()[cell] / 75)
    both = fan([0.7, 0.7 + math.pi - 2 * gamma])
    D = both.num_detectors
    matrix = fan_beam(SIDE, both.angles, source_distance=50.0, detector_distance=25.0).matrix()
    torch.testing.assert_close(matrix[cell], matrix[D + D - 1 - cell])
    angles = np.concatenate([short(0.2), both.angles])
    weights = redundancy_weights(fan(angles), arrange_views(fan(short(0.2))))
    for other in range(1, D - 1, 5):
        gamma = math.atan(geometry.cells()[other] / 75)
        angles = np.array([0.7, 0.7 + math.pi - 2 * gamma])
        pair = redundancy_weights(fan(angles), arrange_views(fan(short(0.2))))
        assert pair[0, other] + pair[1, D - 1 - other] == pytest.approx(1)
    assert weights.min() >= 0 and weights.max() <= 1


def test_weights_of_a_short_scan_are_those_of_parker() -> None:
    """His three pieces, written out for an angle from 0 to π + 2δ; here γ has the other sign."""
    beta = short(start=0.0)
    geometry = fan(beta)
    delta = half_fan(geometry)
    gamma = -np.arctan(geometry.cells() / 75)
    b, g = np.meshgrid(beta, gamma, indexing="ij")
    with np.errstate(all="ignore"):
        rising = np.sin(math.pi / 4 * b / (delta - g)) ** 2
        falling = np.sin(math.pi / 4 * (math.pi + 2 * delta - b) / (delta + g)) ** 2
    wanted = np.where(b < 2 * (delta - g), rising, np.where(b > math.pi - 2 * g, falling, 1.0))
    inside = np.abs(gamma) < 0.97 * delta
    found = redundancy_weights(geometry, arrange_views(geometry))
    np.testing.assert_allclose(found[:, inside], wanted[:, inside], atol=1e-9)


@pytest.mark.parametrize("extra", [0.0, 0.5, 1.5])
def test_short_fans_are_as_good_as_a_whole_turn(extra) -> None:
    """Of a disc whose chords are exact; without weights the error is more than twice as large."""
    errors = []
    for angles in (np.arange(240) * math.pi / 120, short(extra, number=150)):
        geometry = fan(angles)
        projector = fan_beam(SIDE, angles, source_distance=50.0, detector_distance=25.0)
        image = fbp(projector, disc_sinogram(geometry, 3, -2, 8))[0, 0].numpy()
        depth = disc(3, -2, 8)
        assert abs(image[depth > 2].mean() - 1) < 0.01
        assert abs(image[depth < -2].mean()) < 0.01
        clear = np.abs(depth) > 2
        errors.append(np.sqrt(((image - (depth > 0))[clear] ** 2).mean()))
    assert errors[1] < 1.3 * errors[0] + 1e-3


def test_a_fan_over_less_than_a_short_scan_says_what_is_missing() -> None:
    """Views over 150° measure no line twice that is at most 30° off, so these have weight 1."""
    angles = degrees(np.arange(150))
    geometry = fan(angles)
    delta = half_fan(geometry) / DEGREE
    text = missing_wedge_text(geometry, arrange_views(geometry))
    assert text.startswith(f"{180 + 2 * delta - 150:.0f}° of 360° of directions are missing:")
    assert "views cover 150°, with none from 150° to 360°" in text
    assert text.endswith(f"in one piece, {180 + 2 * delta:.0f}°")
    weights = redundancy_weights(geometry, arrange_views(geometry))
    middle = geometry.num_detectors // 2
    np.testing.assert_allclose(weights[:, middle - 5 : middle + 6], 1.0)
    projector = fan_beam(SIDE, angles, source_distance=50.0, detector_distance=25.0)
    with pytest.warns(UserWarning, match="of directions are missing"):
        fbp(projector, disc_sinogram(geometry, 0, 0, 5))


@pytest.mark.parametrize("angles", [short(), short(0.4), np.arange(36) * math.pi / 18])
def test_fans_that_see_every_line_do_not_warn(angles) -> None:
    assert missing_wedge_text(fan(angles), arrange_views(fan(angles))) == ""


def test_two_arcs_of_a_fan_that_see_every_line_between_them() -> None:
    """Wedges opposite to each other leave lines unseen; others do not."""
    seen = degrees(np.arange(0, 150), np.arange(180, 330))
    geometry = fan(seen)
    views = arrange_views(geometry)
    assert len(views.wedges) == 2 and views.covered == pytest.approx(300 * DEGREE)
    assert "60° of 360° of directions are missing" in missing_wedge_text(geometry, views)
    other = fan(degrees(np.arange(0, 80), np.arange(100, 330)))
    assert len(arrange_views(other).wedges) == 2
    delta = half_fan(other) / DEGREE
    assert 2 * delta > 45 and "missing" in missing_wedge_text(other, arrange_views(other))


def test_the_input_of_a_deep_image_prior_does_not_warn_of_wedges() -> None:
    """The network fills in what is missing; warnings are errors here."""
    part = parallel_beam(12, degrees(np.arange(0, 60, 3)))
    scan = scan_of(part, part(torch.rand(1, 1, 12, 12)), 0.1)
    fit = deep_image_prior(
        scan, lambda: torch.nn.Conv2d(1, 1, 3, padding=1), DeepImagePrior(steps=1)
    )
    assert fit.inputs.shape == (1, 1, 12, 12)
