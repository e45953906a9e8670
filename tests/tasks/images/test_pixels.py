from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polymode.tasks.images import pixels as px


def some_bytes(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8))


@pytest.mark.parametrize("shape", [(5, 6, 7), (2100, 3, 4, 3)])
def test_channels_first_is_the_transpose_of_the_chosen_rows(shape):
    images = some_bytes(*shape).numpy()
    rows = torch.tensor([4, 0, 2, 2] * (shape[0] // 4))
    colour = images if images.ndim == 4 else images[..., None]
    expected = colour[rows.numpy()].transpose(0, 3, 1, 2)
    assert np.array_equal(px.channels_first(images, rows).numpy(), expected)


@pytest.mark.parametrize("channels", [1, 3])
def test_channel_scaling_is_mean_and_deviation_in_float64(channels):
    pixels = some_bytes(1500, channels, 5, 4)
    pixels[:, 0] = pixels[:, 0] // 3 + 100
    scaling = px.channel_scaling(pixels)
    values = pixels.numpy().astype(np.float64) / 255
    mean, std = values.mean((0, 2, 3)), values.std((0, 2, 3))
    assert scaling.shift.shape == scaling.scale.shape == (channels, 1, 1)
    np.testing.assert_allclose(scaling.shift.flatten().numpy(), mean, rtol=1e-6)
    np.testing.assert_allclose(scaling.scale.flatten().numpy(), std, rtol=1e-6)


def test_a_constant_channel_is_shifted_only():
    pixels = some_bytes(8, 3, 4, 4)
    pixels[:, 1] = 51
    scaling = px.channel_scaling(pixels)
    assert float(scaling.scale[1]) == 1 and float(scaling.shift[1]) == pytest.approx(0.2)


def test_bytes_go_to_the_unit_interval_and_back():
    every = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    unit = px.to_unit(every)
    assert float(unit.min()) == 0 and float(unit.max()) == 1
    assert px.to_bytes(unit).equal(every)
    assert px.to_bytes(torch.tensor([-0.1, 0.499 / 255, 0.501 / 255, 1.2])).tolist() == [
        0,
        0,
        1,
        255,
    ]


def test_images_that_fit_are_left_alone():
    images = some_bytes(3, 3, 8, 8)
    assert px.fitted(images, (3, 8, 8)) is images


def test_grey_becomes_three_equal_channels():
    grey = some_bytes(2, 1, 8, 8)
    colour = px.fitted(grey, (3, 8, 8))
    assert colour.equal(torch.cat([grey] * 3, dim=1))


def test_colour_becomes_luma():
    primaries = torch.zeros(4, 3, 8, 8, dtype=torch.uint8)
    for k in range(3):
        primaries[k, k] = 255
    primaries[3] = 255
    grey = px.fitted(primaries, (1, 8, 8))
    assert grey.shape == (4, 1, 8, 8)
    assert grey[:, 0, 0, 0].tolist() == [76, 150, 29, 255]


@pytest.mark.parametrize("size", [(16, 16), (28, 28), (40, 12)])
def test_resizing_keeps_flat_images_and_the_mean_of_a_ramp(size):
    flat = torch.full((1, 3, 32, 32), 77, dtype=torch.uint8)
    assert px.fitted(flat, (3, *size)).eq(77).all()
    ramp = (torch.arange(32) * 8).to(torch.uint8).expand(1, 1, 32, 32)
    resized = px.fitted(ramp, (1, *size)).float()
    assert float(resized.mean()) == pytest.approx(float(ramp.float().mean()), abs=0.6)
    assert (resized[0, 0, 0].diff() >= 0).all() and float(resized[0, 0].std(0).max()) == 0


def test_shrinking_filters_what_it_cannot_show():
    """Without a low-pass filter stripes of two pixels would alias to black or white."""
    stripes = (torch.arange(32) + 1) // 2 % 2 * 255
    images = stripes.to(torch.uint8).expand(1, 1, 32, 32)
    shrunk = px.fitted(images, (1, 8, 8)).float()[..., 1:-1]
    assert float((shrunk - 127.5).abs().max()) < 40


def blocks(image: torch.Tensor) -> list[bytes]:
    height, width = image.shape[1] // 4, image.shape[2] // 4
    parts = image.unfold(1, height, height).unfold(2, width, width)
    return [parts[:, i, j].contiguous().numpy().tobytes() for i in range(4) for j in range(4)]


@given(st.sampled_from([(1, 8, 8), (3, 12, 20), (1, 28, 28)]), st.integers(0, 100))
@settings(max_examples=20, deadline=None)
def test_jigsaw_moves_whole_blocks(shape, seed):
    images = some_bytes(5, *shape, seed=seed)
    mixed = px.jigsaw(images, "task")
    assert mixed.shape == images.shape and not mixed.equal(images)
    for before, after in zip(images, mixed, strict=True):
        assert sorted(blocks(before)) == sorted(blocks(after))


def test_jigsaw_repeats_draws_one_order_an_image_and_needs_whole_blocks():
    images = torch.arange(16, dtype=torch.uint8).view(1, 1, 4, 4).repeat(6, 1, 1, 1)
    mixed = px.jigsaw(images, "task")
    assert mixed.equal(px.jigsaw(images, "task")) and not mixed.equal(px.jigsaw(images, "other"))
    assert len({tuple(image.flatten().tolist()) for image in mixed}) == 6
    with pytest.raises(ValueError, match="'jigsaw' of own .* multiples of 4, got 6 x 8"):
        px.jigsaw(some_bytes(1, 1, 6, 8), "own")
