from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import ndimage

from polymode.tasks.shifts import SHIFTS, corrupt
from polymode.tasks.shifts.blur import _jostle, _zoom_matrix
from polymode.tasks.shifts.filters import directional_filter, displace, filter_all, length_scale
from polymode.tasks.shifts.shift import Draws

BLURS = ["defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "gaussian_blur"]


def draws(images, seed=0):
    return Draws.of(images, len(images), seed, "test", 1, 0)


def spot(side):
    image = torch.zeros(1, 1, side, side, dtype=torch.float64)
    image[0, 0, side // 2, side // 2] = 1
    return image


def moments(image):
    """Centre and second moments (rows, columns) of a spot, about the middle pixel."""
    side = image.shape[-1]
    places = torch.arange(side, dtype=torch.float64) - side // 2
    rows, columns = image[0, 0].sum(1), image[0, 0].sum(0)
    centre = (float(places @ rows), float(places @ columns))
    return centre, (float(places**2 @ rows), float(places**2 @ columns))


@pytest.mark.parametrize("kind", BLURS)
@pytest.mark.parametrize("severity", [1, 5])
def test_a_constant_stays(kind, severity):
    images = torch.full((2, 3, 16, 24), 0.3)
    torch.testing.assert_close(corrupt(images, kind, severity), images)


@pytest.mark.parametrize("height, width", [(32, 32), (20, 64), (100, 70)])
def test_gaussian_against_scipy(textures, height, width):
    image = textures(1, 1, height, width).double()
    for severity, sigma in enumerate(SHIFTS.get("gaussian_blur").value.grey, 1):
        sigma *= length_scale(image)
        expected = ndimage.gaussian_filter(image[0, 0].numpy(), sigma, mode="nearest", truncate=4)
        found = corrupt(image, "gaussian_blur", severity)[0, 0]
        np.testing.assert_allclose(found, expected, atol=1e-12)


def test_any_kernel_against_scipy(textures):
    images = textures(2, 3, 11, 14).double()
    kernel = torch.rand(5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = filter_all(images, kernel)
    for image, one in zip(images.flatten(0, 1), found.flatten(0, 1), strict=True):
        expected = ndimage.correlate(image.numpy(), kernel.numpy(), mode="nearest")
        np.testing.assert_allclose(one, expected, atol=1e-12)


@pytest.mark.parametrize("severity", [4, 5])
def test_defocus_spreads_a_spot_over_a_disc(severity):
    """A disc of radius r has the second moment r^2 / 4 along each axis; the rim is of pixels."""
    side = 160
    radius, softness = SHIFTS.get("defocus_blur").value.grey[severity - 1]
    radius *= side / 32
    disc = corrupt(spot(side), "defocus_blur", severity)
    centre, second = moments(disc)
    assert centre == pytest.approx((0, 0), abs=1e-9)
    assert second == pytest.approx((radius**2 / 4 + softness**2,) * 2, rel=0.05)
    inside = disc[0, 0, side // 2, side // 2 - int(radius) + 1 : side // 2 + int(radius)]
    torch.testing.assert_close(
        inside, torch.full_like(inside, float(disc.max())), rtol=0.05, atol=0
    )


@pytest.mark.parametrize("axis", [2, 3])
@pytest.mark.parametrize("reach", [0.5, 1.0, 2.5])
def test_glass_moves_pixels_not_far_and_loses_none(axis, reach):
    side = 24
    places = torch.arange(side, dtype=torch.float64).view((-1, 1) if axis == 2 else (1, -1))
    images = places.expand(3, 1, side, side).contiguous()
    moved = _jostle(images, reach, axis, draws(images))
    assert torch.equal(moved.sort(axis).values, images)
    furthest = float((moved - images).abs().max())
    assert furthest <= 2 * reach
    assert (furthest >= 1) == (reach > 0.5)


def test_glass_moves_all_channels_together():
    images = torch.rand(2, 1, 16, 16, generator=torch.Generator().manual_seed(0)).repeat(1, 3, 1, 1)
    shifted = corrupt(images, "glass_blur", 5)
    torch.testing.assert_close(shifted[:, 0], shifted[:, 1])


@pytest.mark.parametrize("degrees", [-45, -10, 0, 30, 90])
def test_motion_smears_a_spot_along_the_ray(degrees):
    """The centre moves against the ray by the mean of the taps; across it nothing spreads."""
    sigma, angle = 3.0, math.radians(degrees)
    smeared = directional_filter(spot(61), torch.tensor([angle], dtype=torch.float64), sigma)
    taps = torch.arange(10, dtype=torch.float64)
    weights = torch.exp(-(taps**2) / (2 * sigma**2))
    mean = float(taps @ weights / weights.sum())
    (down, across), _ = moments(smeared)
    assert across == pytest.approx(-mean * math.cos(angle), abs=1e-9)
    assert down == pytest.approx(-mean * math.sin(angle), abs=1e-9)


def test_motion_draws_directions_near_level():
    """Columns of a picture of level stripes stay alike; those of upright stripes do not."""
    stripes = (torch.arange(32) % 4 < 2).float().expand(16, 1, 32, 32)
    level = corrupt(stripes.transpose(2, 3), "motion_blur", 5)
    upright = corrupt(stripes, "motion_blur", 5)
    assert float(level.var((2, 3)).mean()) > 2 * float(upright.var((2, 3)).mean())


@pytest.mark.parametrize("outside, mode", [("border", "nearest"), ("zeros", "constant")])
def test_displace_against_scipy(textures, outside, mode):
    image = textures(1, 1, 12, 17).double()
    stream = torch.Generator().manual_seed(0)
    across, down = 3 * torch.randn(2, 1, 12, 17, dtype=torch.float64, generator=stream)
    rows, columns = np.mgrid[:12, :17]
    places = np.stack([rows + down[0].numpy(), columns + across[0].numpy()])
    padded = np.pad(image[0, 0].numpy(), 20, mode="edge" if mode == "nearest" else "constant")
    expected = ndimage.map_coordinates(padded, places + 20, order=1)
    found = displace(image, across, down, outside=outside)[0, 0]
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_zoom_reads_a_line_nearer_to_its_middle():
    ramp = torch.arange(9, dtype=torch.float64) - 4
    zoomed = _zoom_matrix(9, 1.25, ramp) @ ramp
    torch.testing.assert_close(zoomed, ramp / 1.25)
    assert torch.equal(_zoom_matrix(9, 1.0, ramp), torch.eye(9, dtype=torch.float64))


def test_zoom_blur_is_the_mean_over_zooms():
    ramp = (torch.arange(33, dtype=torch.float64) / 32).expand(1, 1, 33, 33)
    zooms = 1 + torch.arange(11) / 100
    factor = float((1 + (1 / zooms).sum()) / 12)
    found = corrupt(ramp.contiguous(), "zoom_blur", 1)  # the grey table: up to 1.10
    torch.testing.assert_close(found, 0.5 + (ramp - 0.5) * factor)
