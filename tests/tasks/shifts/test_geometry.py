from __future__ import annotations

import math

import pytest
import torch

from polymode.tasks.shifts import SEVERITIES, corrupt
from polymode.tasks.shifts.geometry import SHARES, _affine_field
from polymode.tasks.shifts.shift import Draws


def centres(images):
    """Return the centre of mass (n, 2) of each image, rows and columns."""
    rows = torch.arange(images.shape[2], dtype=images.dtype)
    columns = torch.arange(images.shape[3], dtype=images.dtype)
    mass = images.sum((1, 2, 3))
    return torch.stack(
        [(images.sum((1, 3)) @ rows) / mass, (images.sum((1, 2)) @ columns) / mass], dim=1
    )


def spots(num, side):
    places = torch.arange(side, dtype=torch.float64) - (side - 1) / 2
    return torch.exp(-(places[:, None] ** 2 + places**2) / 8).expand(num, 1, side, side)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_translation_is_as_long_as_stated_in_all_directions(severity):
    images = spots(64, 64)
    moves = centres(corrupt(images, "translation", severity)) - centres(images)
    torch.testing.assert_close(
        moves.norm(dim=1), torch.full((64,), 64 * SHARES[severity - 1]).double(), atol=0.05, rtol=0
    )
    angles = torch.atan2(moves[:, 0], moves[:, 1])
    assert torch.histc(angles, 4, -math.pi, math.pi).min() >= 4  # of 64; rate 1e-4


def test_the_affine_map_moves_its_points_by_what_was_drawn():
    images = torch.zeros(20, 1, 31, 31, dtype=torch.float64)
    field = _affine_field(images, 2.0, Draws.of(images, 20, 0, "test", 1, 0))
    moves = Draws.of(images, 20, 0, "test", 1, 0).uniform(-2, 2, 2, 3)
    # the points are 31 / 3 off the middle pixel 15; an affine field is linear between pixels
    slope_u = field[:, :, 15, 16] - field[:, :, 15, 15]
    slope_v = field[:, :, 16, 15] - field[:, :, 15, 15]
    for k, (u, v) in enumerate(((1, 1), (1, -1), (-1, -1))):
        point = field[:, :, 15, 15] + 31 / 3 * (u * slope_u + v * slope_v)
        torch.testing.assert_close(point, moves[:, :, k])


def test_elastic_waves_have_the_stated_size():
    """Displacements of a ramp show themselves: rms of waves and affine map, within 10 %."""
    side, severity = 64, 3
    rms, _, reach = 0.5 * side / 32, 2.0, 1.8 * side / 32
    ramp = (torch.arange(side, dtype=torch.float64) / side).expand(256, 1, side, side) * 0.5 + 0.25
    moved = (corrupt(ramp.contiguous(), "elastic_transform", severity) - ramp) * 2 * side
    inner = moved[:, 0, 16:48, 16:48]
    arm = side / 3
    places = (torch.arange(16, 48) - (side - 1) / 2) / arm
    u, v = places, places[:, None]
    weights = ((1 + v) / 2) ** 2 + ((u - v) / 2) ** 2 + ((1 - u) / 2) ** 2
    expected = math.sqrt(rms**2 + float(weights.mean()) * reach**2 / 3)
    assert float(inner.square().mean().sqrt()) == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("side", [8, 32, 64])
def test_elastic_keeps_a_constant(side):
    images = torch.full((4, 3, side, side), 0.7)
    torch.testing.assert_close(corrupt(images, "elastic_transform", 5), images)
