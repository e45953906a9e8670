import pytest
import torch

from polymode.likelihoods.scaling import Scaling


@pytest.mark.parametrize(
    ("per", "shape"), [("feature", (3, 4, 5)), ("channel", (3, 1, 1)), ("all", ())]
)
def test_training_data_come_out_with_mean_zero_and_variance_one(per, shape) -> None:
    x = 5 + 3 * torch.randn(200, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    scaling = Scaling.of(x, per)
    assert scaling.shift.shape == scaling.scale.shape == shape
    axes = {"feature": (0,), "channel": (0, 2, 3), "all": (0, 1, 2, 3)}[per]
    z = scaling(x)
    torch.testing.assert_close(
        z.mean(axes), torch.zeros(()).expand(z.mean(axes).shape), atol=1e-5, rtol=0
    )
    torch.testing.assert_close(z.var(axes, correction=0), torch.ones(()).expand(z.mean(axes).shape))
    torch.testing.assert_close(scaling.inverse(z), x)


@pytest.mark.parametrize("value", [0.0, 0.1, 1e6, -3e-9])
def test_a_constant_feature_is_shifted_and_not_blown_up(value) -> None:
    x = torch.stack([torch.full((1000,), value), torch.linspace(0, 1, 1000)], 1)
    scaling = Scaling.of(x)
    assert scaling.scale[0] == 1 and scaling.scale[1] < 1
    assert scaling(x)[:, 0].abs().max() <= abs(value) * 1e-6


def test_numbers_survive_json() -> None:
    scaling = Scaling.of(torch.randn(50, 2, dtype=torch.float64))
    again = Scaling.from_dict(scaling.to_dict())
    assert torch.equal(again.shift, scaling.shift) and torch.equal(again.scale, scaling.scale)


@pytest.mark.parametrize(
    ("shift", "scale", "message"),
    [(0.0, 0.0, "must be > 0, got 0"), (float("nan"), 1.0, "must be finite")],
)
def test_nonsense_is_refused(shift, scale, message) -> None:
    with pytest.raises(ValueError, match=message):
        Scaling(torch.tensor(shift), torch.tensor(scale))
    with pytest.raises(ValueError, match="`per` of Scaling.of"):
        Scaling.of(torch.randn(3, 2), "row")
