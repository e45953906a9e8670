"""Shifts of the validation set: made of it alone, by a seed, harder with each severity."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from polymode.core.rng import fold
from polymode.likelihoods.kinds import Gaussian
from polymode.likelihoods.scaling import Scaling
from polymode.tasks import Task, task
from polymode.tasks.shifts import SEVERITIES, corrupt
from polymode.tasks.validation import NOISE_STDS, validation_shifts
from polymode.training.data import Arrays, Pixels

SCALING = Scaling(torch.tensor([0.4, 0.5, 0.6]).view(3, 1, 1), torch.tensor(0.25))


def stream(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def bytes_of(num: int, channels: int, seed: int, side: int = 12) -> torch.Tensor:
    """Smooth images in pale colours, as photographs have them."""
    coarse = torch.rand(num, 1 + channels, side // 4, side // 4, generator=stream(seed))
    coarse = 0.7 * coarse[:, :1] + 0.3 * coarse[:, 1:]
    images = torch.nn.functional.interpolate(coarse, (side, side), mode="bilinear")
    return (images * 255).to(torch.uint8)


def labels(num: int) -> torch.Tensor:
    return torch.arange(num) % 3


def images(channels: int = 3, **changes) -> Task:
    scaling = SCALING if channels == 3 else Scaling(torch.tensor(0.5), torch.tensor(0.25))
    parts = {
        key: Pixels(bytes_of(30, channels, seed), labels(30), scaling)
        for seed, key in enumerate(("train", "val", "test"))
    }
    own = {**parts, "likelihood": "categorical", "input_scaling": scaling}
    return Task(**{**own, **changes})


def table(num: int = 4000, **changes) -> Task:
    x = torch.randn(num, 2, generator=stream(0)) * torch.tensor([1.0, 10.0]) + 5
    own = {"train": (x[:50], x[:50, :1]), "val": (x, x[:, :1]), "likelihood": Gaussian(noise=0.1)}
    return Task(**{**own, **changes})


def made(shifts) -> dict[tuple[str, int], Arrays]:
    return {(kind, s): make() for kind, makers in shifts.items() for s, make in makers.items()}


@pytest.mark.parametrize("channels, last", [(1, "spatter"), (3, "saturate")])
def test_images_kept_as_bytes_get_the_four_corruptions_in_pixel_space(channels, last):
    own = images(channels)
    shifts = validation_shifts(own, seed=3)
    kinds = ["speckle_noise", "gaussian_blur", "spatter", "saturate"]
    assert list(shifts) == kinds[: 4 if last == "saturate" else 3]
    for (kind, severity), data in made(shifts).items():
        assert isinstance(data, Pixels) and data.y.equal(own.val.y)
        pixels = own.val.pixels.float() / 255
        wanted = corrupt(pixels, kind, severity, seed=fold(3, "validation"))
        torch.testing.assert_close(data.pixels.float() / 255, wanted, atol=0.5001 / 255, rtol=0)
        torch.testing.assert_close(data.x, own.val.scaling(data.pixels.float() / 255))


def test_images_in_floating_point_are_corrupted_before_their_normalisation():
    own = task("digits")
    shifts = validation_shifts(own)
    assert list(shifts) == ["speckle_noise", "gaussian_blur", "spatter"]
    scaling = own.input_scaling
    pixels = scaling.inverse(own.val.x).clamp(0, 1)
    for (kind, severity), data in made(shifts).items():
        wanted = corrupt(pixels, kind, severity, seed=fold(0, "validation"))
        torch.testing.assert_close(data.x, scaling(wanted))
        assert data.y.equal(own.val.y)


def test_images_in_the_unit_interval_need_no_scaling():
    x = bytes_of(20, 1, 0).float() / 255
    own = Task(train=(x, labels(20)), val=(x, labels(20)), likelihood="categorical")
    assert list(validation_shifts(own)) == ["speckle_noise", "gaussian_blur", "spatter"]
    wanted = corrupt(x, "spatter", 2, seed=fold(0, "validation"))
    assert validation_shifts(own)["spatter"][2]().x.equal(wanted)


@pytest.mark.parametrize(
    "x",
    [
        torch.rand(9, 1, 7, 12, generator=stream(0)),  # too small
        torch.rand(9, 2, 8, 8, generator=stream(0)),  # neither grey nor colour
        torch.randn(9, 1, 8, 8, generator=stream(0)),  # not pixels, and no scaling says how
        torch.rand(9, 8, 8, generator=stream(0)),
    ],
    ids=["small", "channels", "range", "axes"],
)
def test_other_inputs_get_noise(x):
    own = Task(train=(x, labels(9)), val=(x, labels(9)), likelihood="categorical")
    assert list(validation_shifts(own)) == ["noise"]


def test_noise_is_in_proportion_to_each_feature():
    """4,000 draws: a standard deviation is within 5 % by 4 standard errors, false alarm 1e-3."""
    own = table()
    spread = own.val.x.std(0, correction=0)
    for severity, make in validation_shifts(own)["noise"].items():
        size = (make().x - own.val.x).std(0) / spread
        assert ((size / NOISE_STDS[severity - 1] - 1).abs() < 0.05).all()


def test_a_constant_feature_stays():
    x = torch.stack([torch.arange(6.0), torch.full((6,), 2.5)], 1)
    own = table(val=(x, x[:, :1]))
    shifted = validation_shifts(own)["noise"][5]().x
    assert shifted[:, 1].equal(x[:, 1]) and not shifted[:, 0].equal(x[:, 0])


@pytest.mark.parametrize("own", [images(1), images(3), table()], ids=["grey", "colour", "table"])
def test_severity_raises_the_distance(own):
    for makers in validation_shifts(own).values():
        assert tuple(makers) == SEVERITIES
        far = [float((make().x - own.val.x).square().mean()) for make in makers.values()]
        assert far == sorted(far) and len(set(far)) == 5 and far[0] > 0


@pytest.mark.parametrize("own", [images(3), table(40)], ids=["images", "table"])
def test_a_function_of_the_seed_that_leaves_the_data_and_global_state_alone(own):
    before, state = own.val.x.clone(), torch.get_rng_state()
    first, again, other = (made(validation_shifts(own, seed=seed)) for seed in (0, 0, 1))
    assert all(first[key].x.equal(again[key].x) for key in first)
    random = [key for key in first if key[0] in ("noise", "speckle_noise", "spatter")]
    assert not any(first[key].x.equal(other[key].x) for key in random)
    makers = validation_shifts(own)
    for makers_of_kind in makers.values():
        assert makers_of_kind[2]().x.equal(makers_of_kind[2]().x)
    assert own.val.x.equal(before) and torch.get_rng_state().equal(state)


def test_the_test_set_is_not_looked_at():
    own, without = images(3), images(3, test=None)
    pairs = zip(
        made(validation_shifts(own)).values(),
        made(validation_shifts(without)).values(),
        strict=True,
    )
    assert all(a.x.equal(b.x) for a, b in pairs)
    own.test = own.shifts = own.ood = None  # whoever looked would fail
    made(validation_shifts(own))


def test_a_loader_is_read_whole():
    x, y = table(40).val.x, table(40).val.y
    loader = DataLoader(TensorDataset(x, y), 16, shuffle=True)
    first, again = (validation_shifts(table(40, val=loader))["noise"][1]() for _ in range(2))
    assert first.x.equal(again.x) and len(first) == 40
    torch.testing.assert_close(first.y.sort(0).values, y.sort(0).values)


def test_errors_say_what_to_do():
    with pytest.raises(ValueError, match=r"task 'own' has no validation set.*val=\(x, y\)"):
        validation_shifts(table(val=None))
    tokens = torch.arange(12).view(6, 2)
    own = Task(train=(tokens, labels(6)), val=(tokens, labels(6)), likelihood="categorical")
    with pytest.raises(ValueError, match=r"are torch.int64.*real-valued inputs"):
        validation_shifts(own)
