"""What holds for every shift of images: the contract of `corrupt`."""

from __future__ import annotations

import pytest
import torch

from polymode.core.rng import generator
from polymode.tasks.shifts import CORRUPTIONS, SEVERITIES, SHIFTS, corrupt
from polymode.tasks.shifts.shift import block_size

KINDS = [*CORRUPTIONS, "rotation", "translation"]
RANDOM = [kind for kind in KINDS if SHIFTS.get(kind).value.random]


def distances(images, kind):
    """Root mean square distance to the clean image, a mean over images, at each severity."""
    return [
        float((corrupt(images, kind, s) - images).flatten(1).square().mean(1).sqrt().mean())
        for s in SEVERITIES
    ]


def test_all_are_there():
    assert len(CORRUPTIONS) == len(set(CORRUPTIONS)) == 19
    assert SHIFTS.names() == sorted(KINDS)
    groups = [SHIFTS.get(kind).value.group for kind in CORRUPTIONS]
    assert [groups.count(g) for g in ("noise", "blur", "weather", "digital")] == [4, 5, 5, 5]
    assert set(KINDS) - set(RANDOM) == {
        "defocus_blur", "zoom_blur", "gaussian_blur", "brightness", "contrast", "pixelate", "jpeg",
        "saturate", "rotation",
    }  # fmt: skip


@pytest.mark.parametrize("kind", CORRUPTIONS)
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("height, width, num", [(8, 8, 128), (32, 32, 48), (40, 56, 24)])
def test_severity_raises_the_distance(textures, kind, channels, height, width, num):
    found = distances(textures(num, channels, height, width), kind)
    assert found[0] > 0
    assert found == sorted(found) and len(set(found)) == 5


@pytest.mark.parametrize("kind", KINDS)
def test_severity_raises_the_distance_of_digits(digits, kind):
    found = distances(digits[0][:400], kind)
    assert found[0] > 0
    assert found == sorted(found) and len(set(found)) == 5


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_keeps_shape_type_range_and_input(textures, kind, dtype):
    for channels, height, width in ((1, 8, 8), (3, 19, 12)):
        images = textures(3, channels, height, width).to(dtype)
        images[0], images[1] = 0, 1  # black and white
        before = images.clone()
        for severity in SEVERITIES:
            shifted = corrupt(images, kind, severity)
            assert shifted.shape == images.shape and shifted.dtype == dtype
            assert float(shifted.min()) >= 0 and float(shifted.max()) <= 1
            assert shifted.isfinite().all()
        assert torch.equal(images, before)


@pytest.mark.parametrize("kind", KINDS)
def test_float64_twin(textures, kind):
    images = textures(4, 3, 16, 16)
    for severity in (1, 5):
        single, double = corrupt(images, kind, severity), corrupt(images.double(), kind, severity)
        # rounding can move a value over a threshold (a step of JPEG, an impulse), but rarely
        assert float(((single - double).abs() < 1e-4).double().mean()) > 0.98


@pytest.mark.parametrize("kind", KINDS)
def test_seeds(textures, kind):
    images = textures(4, 3, 12, 12)
    first, again, other = (corrupt(images, kind, 3, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert torch.equal(first, other) == (kind not in RANDOM)


@pytest.mark.parametrize("kind", RANDOM)
def test_images_draw_apart(textures, kind):
    """The same image twice is shifted in two ways."""
    image = textures(1, 1, 16, 16)
    twice = corrupt(image.expand(2, -1, -1, -1), kind, 5)
    assert not torch.equal(twice[0], twice[1])


@pytest.mark.parametrize("kind", KINDS)
def test_an_image_does_not_depend_on_those_after_it(textures, kind):
    """Neither on how many there are, nor on the blocks in which they are worked on."""
    images = textures(9, 3, 200, 200)
    size = block_size(3 * 200 * 200)
    assert size == 8
    whole = corrupt(images, kind, 2)
    torch.testing.assert_close(corrupt(images[:3], kind, 2), whole[:3], rtol=0, atol=1e-5)
    if kind in RANDOM:  # the second block has a stream of its own
        ninth = corrupt(images[8:], kind, 2)
        assert not torch.allclose(ninth, whole[8:], atol=1e-5)


def test_gaussian_noise_of_digits_is_that_of_the_first_release(digits):
    """results/demo.json rests on these numbers: one stream for all of up to 512 small images."""
    images = digits[0][:400]
    noise = torch.randn(images.shape, generator=generator(7, "gaussian_noise", 3))
    expected = (images + 0.3 * noise).clamp(0, 1)
    assert torch.equal(corrupt(images, "gaussian_noise", 3, seed=7), expected)


def test_channels_last_and_views(textures):
    images = textures(6, 3, 16, 16)
    expected = corrupt(images, "jpeg", 3)
    strided = images.contiguous(memory_format=torch.channels_last)
    for kind in CORRUPTIONS:
        torch.testing.assert_close(corrupt(strided, kind, 3), corrupt(images, kind, 3))
    torch.testing.assert_close(corrupt(images.repeat(1, 1, 1, 2)[..., :16], "jpeg", 3), expected)


def test_no_global_random_state():
    before = torch.get_rng_state()
    for kind in KINDS:
        corrupt(torch.full((1, 1, 8, 8), 0.5), kind, 1)
    assert torch.equal(before, torch.get_rng_state())


def test_photographs_of_224_pixels(textures):
    images = textures(1, 3, 224, 224)
    for kind in KINDS:
        assert float((corrupt(images, kind, 5) - images).abs().mean()) > 0.004


GOOD = torch.zeros(2, 1, 8, 8)


@pytest.mark.parametrize(
    "images, message",
    [
        (torch.zeros(2, 8, 8, 3), r"\(N, 1 or 3, H, W\), got shape \(2, 8, 8, 3\); images.permute"),
        (torch.zeros(2, 2, 8, 8), r"got shape \(2, 2, 8, 8\)$"),
        (torch.zeros(3, 8, 8), r"images\[:, None\] are grey images"),
        (torch.zeros(2, 1, 8, 7), "sides of at least 8 pixels"),
        (torch.zeros(0, 1, 8, 8), "at least one"),
        (torch.zeros(2, 1, 8, 8, dtype=torch.uint8), "floating-point in .0, 1., got torch.uint8"),
        (GOOD + 255.0, "from 255 to 255: shift before normalising, and divide bytes by 255"),
        (GOOD - 0.1, "from -0.1 to -0.1"),
        (GOOD + float("nan"), "images have 128 of 128 values NaN or infinite, the first in row 0"),
        (GOOD.numpy(), "must be a tensor, got ndarray"),
    ],
)
def test_bad_images(images, message):
    with pytest.raises(ValueError, match=message):
        corrupt(images, "fog", 1)


@pytest.mark.parametrize("severity", [0, 6, -1, 2.5, "3", True])
def test_bad_severity(severity):
    with pytest.raises(ValueError, match="`severity` must be 1, 2, 3, 4 or 5, got"):
        corrupt(GOOD, "fog", severity)


def test_unknown_kind_suggests_the_nearest():
    with pytest.raises(ValueError, match="Unknown shift 'gausian_noise'. Did you mean 'gaussian_n"):
        corrupt(GOOD, "gausian_noise", 1)
