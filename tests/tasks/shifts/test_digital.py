from __future__ import annotations

import io

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from matplotlib.colors import hsv_to_rgb, rgb_to_hsv
from PIL import Image
from scipy import fft

from polymode.tasks.shifts import SHIFTS, corrupt
from polymode.tasks.shifts.digital import (
    LUMA_TABLE,
    _basis,
    _compress,
    _steps,
    from_ycbcr,
    to_ycbcr,
)


def test_contrast_scales_the_deviations_from_the_mean(textures):
    images = textures(3, 3, 16, 16).double()
    found = corrupt(images, "contrast", 5)
    torch.testing.assert_close(found.mean((2, 3)), images.mean((2, 3)))
    torch.testing.assert_close(found.std((2, 3)), 0.15 * images.std((2, 3)))


def test_saturate_against_hsv(textures):
    images = textures(4, 3, 16, 16).double()
    for severity, (factor, offset) in enumerate(SHIFTS.get("saturate").value.colour, 1):
        hsv = rgb_to_hsv(images.permute(0, 2, 3, 1).numpy())
        more = offset * (hsv[..., 1] > 0)  # grey has no hue to go to
        hsv[..., 1] = np.clip(factor * hsv[..., 1] + more, 0, 1)
        found = corrupt(images, "saturate", severity).permute(0, 2, 3, 1)
        np.testing.assert_allclose(found, hsv_to_rgb(hsv), atol=1e-9)


def test_saturate_leaves_grey_pixels_grey():
    grey = torch.linspace(0, 1, 64).view(1, 1, 8, 8).expand(1, 3, 8, 8)
    for severity in range(1, 6):
        torch.testing.assert_close(corrupt(grey, "saturate", severity), grey)


def test_saturate_of_grey_images_is_a_gain():
    images = torch.linspace(0, 1, 64).view(1, 1, 8, 8)
    torch.testing.assert_close(corrupt(images, "saturate", 2), (2 * images).clamp(max=1))


def test_pixelate_by_a_whole_number_is_average_pooling(textures):
    images = textures(2, 3, 32, 32)
    for severity, pixel in ((3, 2), (5, 4)):
        pooled = F.avg_pool2d(images, pixel)
        expected = pooled.repeat_interleave(pixel, 2).repeat_interleave(pixel, 3)
        torch.testing.assert_close(corrupt(images, "pixelate", severity), expected)


@pytest.mark.parametrize("side", [8, 28, 32, 64])
def test_pixelate_leaves_as_many_rows_as_stated(side):
    ramp = torch.linspace(0, 1, side).view(1, 1, side, 1).expand(1, 1, side, side)
    for severity, share in enumerate(SHIFTS.get("pixelate").value.grey, 1):
        pixel = 1 + (1 / share - 1) * max(side / 32, 1)
        rows = corrupt(ramp, "pixelate", severity)[0, 0, :, 0]
        assert len(rows.unique()) == round(side / pixel)
        assert (rows.diff() > -1e-6).all()


def test_ycbcr_of_known_colours_and_back(textures):
    colours = torch.tensor([[1.0, 1, 1], [1, 0, 0], [0, 0, 1]])[:, :, None, None]
    y, chroma = to_ycbcr(colours)
    torch.testing.assert_close(y.flatten(), torch.tensor([1.0, 0.299, 0.114]))
    expected = torch.tensor([[0.0, 0.0], [-0.299 / 1.772, 0.5], [0.5, -0.114 / 1.402]])
    torch.testing.assert_close(chroma.flatten(1), expected)
    images = textures(2, 3, 8, 8)
    torch.testing.assert_close(from_ycbcr(*to_ycbcr(images)), images)


def test_cosine_transform_against_scipy():
    block = torch.rand(8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = fft.dctn(block.numpy(), norm="ortho")
    np.testing.assert_allclose((_basis() @ block.flatten()).view(8, 8), expected, atol=1e-12)


def test_compressd_coefficients_are_multiples_of_the_steps(textures):
    planes = textures(2, 1, 16, 24).double() - 0.5
    steps = _steps(LUMA_TABLE, 30).double()
    blocks = _compress(planes, LUMA_TABLE, 30).unfold(2, 8, 8).unfold(3, 8, 8).reshape(-1, 64)
    multiples = blocks @ _basis().T / steps
    torch.testing.assert_close(multiples, multiples.round(), rtol=0, atol=1e-5)


def saved(image, quality):
    """Return an image (C, H, W) as Pillow shows it after a JPEG file."""
    pixels = (image * 255).round().byte()
    kept = pixels[0] if len(pixels) == 1 else pixels.permute(1, 2, 0)
    file = io.BytesIO()
    Image.fromarray(kept.numpy()).save(file, "JPEG", quality=quality)
    shown = torch.tensor(np.array(Image.open(file))) / 255
    return shown[None] if len(pixels) == 1 else shown.permute(2, 0, 1)


def against_pillow(images, severity):
    """Return our and Pillow's images, in bytes."""
    shift = SHIFTS.get("jpeg").value
    quality = (shift.grey if images.shape[1] == 1 else shift.colour)[severity - 1]
    expected = torch.stack([saved(image, quality) for image in images])
    return corrupt(images, "jpeg", severity) * 255, expected * 255


@pytest.mark.parametrize("severity", [1, 3, 5])
@pytest.mark.parametrize("height, width", [(32, 32), (28, 28), (9, 21)])
def test_jpeg_of_grey_images_against_pillow(textures, severity, height, width):
    """Pillow rounds its result to bytes, and nothing before but the coefficients: half a byte off.

    Where a coefficient lies within the accuracy of its integer transform of a half, the rounding
    can go either way, and with it a block; one in some hundred does.
    """
    images = (textures(16, 1, height, width) * 255).round() / 255
    found, expected = against_pillow(images, severity)
    near = (found - expected).abs() < 1.5
    assert float(near.double().mean()) > 0.95


@pytest.mark.parametrize("severity", [1, 3, 5])
@pytest.mark.parametrize("height, width", [(32, 32), (30, 21)])
def test_jpeg_of_colour_images_against_pillow(textures, severity, height, width):
    """Pillow also rounds luma and chroma to bytes, which moves more coefficients over a half."""
    images = (textures(16, 3, height, width) * 255).round() / 255
    found, expected = against_pillow(images, severity)
    apart, loss = (found - expected).abs().mean(), (expected - 255 * images).abs().mean()
    assert float(apart) < 0.25 * float(loss)


def test_quality_50_has_the_tables_of_the_standard():
    expected = torch.tensor(LUMA_TABLE, dtype=torch.float32)
    torch.testing.assert_close(_steps(LUMA_TABLE, 50) * 255, expected)
    assert float(_steps(LUMA_TABLE, 100).max()) == pytest.approx(1 / 255)
    assert float(_steps(LUMA_TABLE, 1).min()) == pytest.approx(1)
