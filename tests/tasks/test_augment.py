from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import polymode as pm
from polymode.tasks.augment import Compose, Crop, Flip, Rotate, augmentation

STEPS = [Crop(), Crop(3, "reflect"), Flip(), Rotate(20.0), Crop(2) + Flip() + Rotate()]


def stream(seed=0):
    return torch.Generator().manual_seed(seed)


def batch(num=6, channels=3, height=12, width=12, dtype=torch.float32):
    return torch.randn(num, channels, height, width, generator=stream(9), dtype=dtype)


@pytest.mark.parametrize("step", STEPS, ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(6, 3, 12, 12), (5, 1, 9, 14), (1, 3, 16, 8)])
def test_contract(step, dtype, shape):
    x = batch(*shape, dtype=dtype)
    before = x.clone()
    first, again, other = step(x, stream()), step(x, stream()), step(x, stream(5))
    assert first.shape == x.shape and first.dtype == dtype
    assert torch.equal(first, again)
    assert torch.equal(x, before)
    if len(x) > 1:
        assert not torch.equal(first, other)


@pytest.mark.parametrize("outside, mode", [("zero", "constant"), ("reflect", "reflect")])
@pytest.mark.parametrize("shape", [(40, 3, 8, 8), (40, 1, 7, 11)])
def test_crop_is_a_window_of_the_padded_image(outside, mode, shape):
    x, padding = batch(*shape), 3
    cropped = Crop(padding, outside)(x, stream())
    padded = torch.nn.functional.pad(x, (padding,) * 4, mode=mode)
    places = torch.randint(-padding, padding + 1, (2, len(x)), generator=stream()) + padding
    height, width = shape[2:]
    for k, (row, column) in enumerate(places.T.tolist()):
        window = padded[k, :, row : row + height, column : column + width]
        assert torch.equal(cropped[k], window)
    assert len(places.T.unique(dim=0)) > 20


def test_crop_reaches_all_places_and_no_others():
    """Of 49 places none is missed in 2,000 draws (rate 49 (48/49)^2000 < 1e-16)."""
    x = torch.arange(1.0, 65.0).view(1, 1, 8, 8).expand(2000, 1, 8, 8)
    corners = Crop(3)(x, stream())[:, 0, 3:5, 3:5].flatten(1)
    assert len(corners.unique(dim=0)) == 49


def test_flip_mirrors_about_half_of_the_images():
    """5 standard errors, false-alarm rate 6e-7."""
    x = batch(1000, 1, 4, 4)
    flipped = Flip()(x, stream())
    mirrored = (flipped == x.flip(-1)).flatten(1).all(1)
    same = (flipped == x).flatten(1).all(1)
    assert torch.equal(mirrored, ~same)
    assert abs(int(mirrored.sum()) - 500) < 5 * 1000**0.5 / 2
    assert torch.equal(Flip(1.0)(x, stream()), x.flip(-1))
    assert torch.equal(Flip(0.0)(x, stream()), x)


@pytest.mark.parametrize("height, width", [(33, 33), (33, 65)])
def test_rotate_turns_by_at_most_the_degrees(height, width):
    rows = torch.arange(height, dtype=torch.float64)[:, None] - (height - 1) / 2
    columns = torch.arange(width, dtype=torch.float64) - (width - 1) / 2
    spot = torch.exp(-((columns - 9) ** 2 + rows**2) / 8).expand(500, 1, height, width)
    turned = Rotate(30.0)(spot, stream())[:, 0]
    mass = turned.sum((1, 2))
    right, down = (turned * columns).sum((1, 2)) / mass, (turned * rows).sum((1, 2)) / mass
    torch.testing.assert_close(
        torch.hypot(right, down), torch.full_like(mass, 9), atol=0.05, rtol=0
    )
    degrees = torch.atan2(-down, right).rad2deg()
    assert float(degrees.abs().max()) < 30.2
    assert float(degrees.min()) < -28 and float(degrees.max()) > 28  # missed at a rate of 1e-7


@pytest.mark.parametrize(
    "steps",
    [
        (Crop(2), Flip()),
        (Flip(), Crop(2)),
        (Crop(3, "reflect"), Flip(0.7), Flip(0.4)),
        (Flip(), Crop(3, "reflect"), Flip()),
        (Crop(2), Flip(), Crop(3, "reflect"), Crop(1)),
        (Flip(), Rotate(10.0), Crop(2), Flip()),
    ],
    ids=repr,
)
@pytest.mark.parametrize("shape", [(40, 3, 12, 12), (40, 1, 9, 14)])
def test_a_sum_is_its_steps_in_turn(steps, shape):
    """Bit by bit, although moves in a row are read at once."""
    x, source = batch(*shape), stream()
    expected = x
    for step in steps:
        expected = step(expected, source)
    assert torch.equal(Compose(steps)(x, stream()), expected)


def test_sums():
    both = Crop(2) + Flip()
    assert both == Compose((Crop(2), Flip()))
    assert (both + Rotate()).steps == (Crop(2), Flip(), Rotate())
    assert (Rotate() + both).steps == (Rotate(), Crop(2), Flip())
    with pytest.raises(TypeError):
        Crop() + "flip"


@pytest.mark.parametrize(
    "text, expected",
    [
        ("crop", Crop(4)),
        ("crop+flip", Crop(4) + Flip()),
        ("crop:2:reflect + flip:0.25", Crop(2, "reflect") + Flip(0.25)),
        ("rotate:10", Rotate(10)),
        ("rotate:7.5+crop:3+flip", Rotate(7.5) + Crop(3) + Flip()),
    ],
)
def test_names(text, expected):
    assert augmentation(text) == expected


@given(
    st.lists(
        st.one_of(
            st.builds(Crop, st.integers(1, 9), st.sampled_from(["zero", "reflect"])),
            st.builds(Flip, st.floats(0, 1)),
            st.builds(Rotate, st.floats(0.1, 180)),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_configurations_round_trip_through_json(steps):
    own = steps[0] if len(steps) == 1 else Compose(tuple(steps))
    again = augmentation(json.loads(json.dumps(own.to_config())))
    assert again == own and hash(again) == hash(own) and repr(again) == repr(own)


def test_configurations_tell_the_steps_apart():
    configs = [json.dumps(augmentation(name).to_config()) for name in ("crop", "flip", "rotate")]
    assert len(set(configs)) == 3


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: Crop(0), "`padding` of Crop must be an integer >= 1, got 0"),
        (lambda: Crop(2.5), "`padding` of Crop must be an integer >= 1, got 2.5"),
        (lambda: Crop(2, "reflekt"), "one of zero, reflect, got 'reflekt'. Did you mean 'reflect'"),
        (lambda: Crop(8, "reflect")(batch(2, 1, 8, 8), stream()), "can be mirrored by at most 7"),
        (lambda: Flip(1.5), r"`probability` of Flip must be in \[0, 1\], got 1.5"),
        (lambda: Rotate(0), r"`degrees` of Rotate must be in \(0, 180\], got 0"),
        (lambda: Compose(()), "`steps` of Compose must be augmentations"),
        (lambda: augmentation("crop+flp"), "Unknown augmentation 'flp'. Did you mean 'flip'"),
        (lambda: augmentation(""), "Unknown augmentation ''"),
        (lambda: augmentation("flip:0.5:3"), "'flip' takes 1 option, got 'flip:0.5:3'"),
        (lambda: augmentation("crop:x"), "`padding` of Crop must be an integer >= 1, got 'x'"),
        (lambda: augmentation(3), "a string such as 'crop.flip', got 3"),
        (lambda: Flip()(torch.zeros(4, 8), stream()), r"batches \(B, C, H, W\).*shape \(4, 8\)"),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("order", ["shared", "own"])
def test_in_the_training_loop(order):
    """A run with augmentation repeats, and differs from one without."""
    task = pm.task("digits")
    options = {"epochs": 1, "progress": "silent", "data_order": order, "num_modes": 2}
    fits = [
        pm.fit("deep_ensemble", net=pm.nets.lenet, task=task, augment=augment, **options)
        for augment in (augmentation("crop:1+flip"), augmentation("crop:1+flip"), None)
    ]
    first, again, without = (post.predict(task.test.x[:20]).mean for post in fits)
    assert torch.equal(first, again) and not torch.equal(first, without)
