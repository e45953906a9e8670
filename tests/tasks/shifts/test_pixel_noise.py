"""Moments of the noises; tolerances are 5 standard errors, false-alarm rate below 1e-6 a check."""

from __future__ import annotations

import math

import pytest
import torch

from polymode.tasks.shifts import SEVERITIES, SHIFTS, corrupt

NUM = 64 * 3 * 32 * 32


def constants(kind, channels):
    shift = SHIFTS.get(kind).value
    return shift.grey if channels == 1 else shift.colour


@pytest.mark.parametrize("channels", [1, 3])
def test_gaussian(channels):
    """On mid-grey, severity 1: clipping starts at 5 standard deviations, and is neglected."""
    images = torch.full((192 // channels, channels, 32, 32), 0.5)
    noise = corrupt(images, "gaussian_noise", 1) - images
    std = constants("gaussian_noise", channels)[0]
    assert float(noise.mean()) == pytest.approx(0, abs=5 * std / math.sqrt(NUM))
    assert float(noise.std()) == pytest.approx(std, abs=5 * std / math.sqrt(2 * NUM))


@pytest.mark.parametrize("value", [0.1, 0.5])
def test_shot_noise_has_the_variance_of_a_poisson_count(value):
    images = torch.full((64, 3, 32, 32), value)
    photons = constants("shot_noise", 3)[0]
    noisy = corrupt(images, "shot_noise", 1)
    std = math.sqrt(value / photons)
    assert float(noisy.mean()) == pytest.approx(value, abs=5 * std / math.sqrt(NUM))
    spread = math.sqrt((2 + 1 / (value * photons)) / NUM)  # of the variance, relative
    assert float(noisy.var()) == pytest.approx(std**2, rel=5 * spread)
    counts = noisy * photons
    torch.testing.assert_close(counts, counts.round(), rtol=0, atol=1e-3)


def test_shot_noise_leaves_black_black():
    assert float(corrupt(torch.zeros(2, 1, 8, 8), "shot_noise", 5).max()) == 0


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("severity", SEVERITIES)
def test_impulses_are_as_many_as_stated(channels, severity):
    images = torch.full((192 // channels, channels, 32, 32), 0.25)
    noisy = corrupt(images, "impulse_noise", severity)
    half = constants("impulse_noise", channels)[severity - 1] / 2
    for value in (0.0, 1.0):
        share = float((noisy == value).double().mean())
        assert share == pytest.approx(half, abs=5 * math.sqrt(half * (1 - half) / NUM))
    untouched = (noisy != 0) & (noisy != 1)
    assert (noisy[untouched] == 0.25).all()


def test_speckle_is_in_proportion_to_the_value():
    images = torch.full((64, 3, 32, 32), 0.6)
    images[32:] = 0.2
    noise = corrupt(images, "speckle_noise", 1) - images
    for part, value in ((noise[:32], 0.6), (noise[32:], 0.2)):
        expected = 0.06 * value
        assert float(part.std()) == pytest.approx(expected, abs=5 * expected / math.sqrt(NUM))
