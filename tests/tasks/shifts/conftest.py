"""Images to shift: natural-looking textures, and the digits that scikit-learn ships."""

from __future__ import annotations

import math

import pytest
import torch


def textured(num, channels, height, width, seed=0):
    """Return images (num, channels, height, width) of waves whose power falls as 1 / frequency^3.

    Such is the spectrum of photographs; colours vary less than brightness.
    """
    stream = torch.Generator().manual_seed(seed)
    rows = torch.arange(height)[:, None] / height
    columns = torch.arange(width) / width
    u, v = torch.cartesian_prod(torch.arange(9.0), torch.arange(-8.0, 9.0))[9:].T
    waves = 2 * math.pi * (u[:, None, None] * rows + v[:, None, None] * columns)
    waves = torch.cat([waves.cos(), waves.sin()])
    size = torch.hypot(u, v).repeat(2) ** -1.5

    def fields(number):
        amplitudes = torch.randn(num, number, len(size), generator=stream) * size
        field = torch.einsum("ncp,phw->nchw", amplitudes, waves)
        return field / field.std((2, 3), keepdim=True)

    grey = 0.45 + 0.2 * fields(1)
    return (grey + 0.06 * fields(3) if channels == 3 else grey).clamp(0, 1)


@pytest.fixture(scope="session")
def textures():
    return textured


@pytest.fixture(scope="session")
def digits():
    """Images (1797, 1, 8, 8) in [0, 1], and labels."""
    from sklearn.datasets import load_digits

    file = load_digits()
    images = torch.tensor(file.images, dtype=torch.float32)[:, None] / 16
    return images, torch.tensor(file.target, dtype=torch.int64)
