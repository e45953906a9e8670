from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from matplotlib.colors import hsv_to_rgb, rgb_to_hsv

from polymode.tasks.shifts import SHIFTS, corrupt
from polymode.tasks.shifts.shift import Draws
from polymode.tasks.shifts.weather import blobs, ferns, plasma


def draws(images):
    return Draws.of(images, len(images), 0, "test", 1, 0)


def test_brightness_raises_the_value_of_hsv(textures):
    images = textures(4, 3, 16, 16).double()
    images[0, :, :4] = 0
    for severity, more in enumerate(SHIFTS.get("brightness").value.colour, 1):
        hsv = rgb_to_hsv(images.permute(0, 2, 3, 1).numpy())
        hsv[..., 2] = np.clip(hsv[..., 2] + more, 0, 1)
        found = corrupt(images, "brightness", severity).permute(0, 2, 3, 1)
        np.testing.assert_allclose(found, hsv_to_rgb(hsv), atol=1e-9)


def test_brightness_of_grey_images_is_a_sum(textures):
    images = textures(2, 1, 16, 16)
    torch.testing.assert_close(corrupt(images, "brightness", 5), (images + 0.3).clamp(max=1))


@pytest.mark.parametrize("height, width", [(8, 8), (28, 28), (33, 20)])
def test_plasma_fills_the_unit_interval_and_is_rougher_for_slow_decay(height, width):
    images = torch.zeros(64, 1, height, width)
    fields = {decay: plasma(images, decay, draws(images)) for decay in (1.5, 3.0)}
    rough = {}
    for decay, field in fields.items():
        assert field.shape == images.shape
        assert float(field.min()) >= 0 and float(field.max()) <= 1
        rough[decay] = float(field.diff(dim=3).abs().mean() / field.std())
    assert rough[1.5] > 1.3 * rough[3.0]


def test_plasma_of_a_power_of_two_reaches_both_ends():
    images = torch.zeros(5, 1, 32, 32)
    field = plasma(images, 2.0, draws(images))
    assert torch.equal(field.amin((1, 2, 3)), torch.zeros(5))
    assert torch.equal(field.amax((1, 2, 3)), torch.ones(5))


def test_plasma_is_periodic():
    """No step between the last and the first row: the middle is not smoother than the seam."""
    images = torch.zeros(200, 1, 32, 32)
    field = plasma(images, 3.0, draws(images))
    inner = float(field.diff(dim=2).abs().mean())
    seam = float((field[:, :, 0] - field[:, :, -1]).abs().mean())
    assert seam < 2 * inner


def test_fog_keeps_the_largest_value_and_hides_contrast(textures):
    images = textures(8, 3, 32, 32)
    foggy = corrupt(images, "fog", 4)
    assert (foggy.amax((1, 2, 3)) <= images.amax((1, 2, 3)) + 1e-6).all()
    gradients = [float(x.diff(dim=3).abs().mean()) for x in (images, foggy)]
    assert gradients[1] < 0.7 * gradients[0]


def test_blobs_are_standard_and_as_large_as_asked():
    """White noise under a Gaussian of length s correlates by exp(-1 / (4 s^2)) at distance 1."""
    images = torch.zeros(8, 1, 200, 200, dtype=torch.float64)
    for size in (1.0, 2.0, 3.0):
        field = blobs(images, size, draws(images))
        torch.testing.assert_close(field.mean((2, 3)), torch.zeros(8, 1, dtype=torch.float64))
        torch.testing.assert_close(field.std((2, 3)), torch.ones(8, 1, dtype=torch.float64))
        expected = 2 * (1 - math.exp(-1 / (4 * size**2)))
        assert float(field.diff(dim=3).square().mean()) == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize("height, width", [(8, 8), (32, 32), (64, 96)])
def test_ferns_have_contrast(height, width):
    images = torch.zeros(32, 1, height, width)
    ice = ferns(images, draws(images))
    assert ice.shape == images.shape
    assert float(ice.min()) >= 0 and float(ice.max()) <= 1
    assert 0.25 < float(ice.mean()) < 0.6 and float(ice.std()) > 0.15


def test_frost_is_bluish_and_brightens_the_dark():
    frosted = corrupt(torch.zeros(16, 3, 32, 32), "frost", 3)
    red, green, blue = frosted.mean((0, 2, 3)).tolist()
    assert 0.05 < red < green < blue


def test_snow_whitens_and_has_streaks():
    images = torch.full((16, 3, 32, 32), 0.4)
    for severity in (1, 5):
        snowy = corrupt(images, "snow", severity)
        assert float(snowy.min()) > 0.4
        flakes = snowy - snowy.amin((1, 2, 3), keepdim=True)
        along, across = flakes.diff(dim=2).abs().mean(), flakes.diff(dim=3).abs().mean()
        assert float(along) < float(across)  # they fall


def test_spatter_is_water_then_mud():
    white, black = torch.ones(16, 3, 32, 32), torch.zeros(16, 3, 32, 32)
    assert torch.equal(corrupt(white, "spatter", 3), white)  # water only adds light
    water = corrupt(black, "spatter", 3)
    assert 0.02 < float((water.amax(1) > 0).float().mean()) < 0.2
    red, green, blue = water.mean((0, 2, 3)).tolist()
    assert red < green == pytest.approx(blue, rel=1e-5)
    mud = corrupt(white, "spatter", 5)
    covered = mud[:, 0] < 0.3
    assert 0.05 < float(covered.float().mean()) < 0.4
    assert float(mud[:, 2][covered].mean()) < float(mud[:, 0][covered].mean())


def test_grey_images_see_the_luma_of_a_tint():
    mud = corrupt(torch.ones(4, 1, 32, 32), "spatter", 5)
    assert float(mud.min()) == pytest.approx((0.299 * 63 + 0.587 * 42 + 0.114 * 20) / 255, abs=1e-5)
