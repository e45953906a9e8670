"""The factor on the width of a predictive density: closed form, SciPy, what it leaves alone."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.optimize import minimize_scalar

from polymode.prediction import CategoricalPrediction, MixturePrediction
from polymode.recalibration import recalibrate


def draw(samples: int, outputs: int, df=None, seed: int = 0, n: int = 200):
    generator = torch.Generator().manual_seed(seed)
    options = {"generator": generator, "dtype": torch.float64}
    loc = torch.randn(samples, n, outputs, **options)
    scale = 0.2 + torch.rand(samples, n, outputs, **options)
    targets = 3 * torch.randn(n, outputs, **options)
    return MixturePrediction(loc, scale, df), targets


@pytest.mark.parametrize("outputs", [1, 2])
def test_closed_form_of_one_gaussian(outputs) -> None:
    prediction, targets = draw(1, outputs)
    factor = recalibrate(prediction, targets, "scale").parameters["factor"]
    square = ((targets - prediction.mean) / prediction.std).square().mean()
    assert factor == pytest.approx(square.sqrt().item(), rel=1e-9)


@pytest.mark.parametrize(("samples", "outputs", "df"), [(5, 1, None), (5, 2, None), (3, 1, 4.0)])
def test_against_scipy_and_what_stays(samples, outputs, df) -> None:
    prediction, targets = draw(samples, outputs, df)
    map_ = recalibrate(prediction, targets, "scale")
    after, factor = map_(prediction), map_.parameters["factor"]

    def loss(u: float) -> float:
        mean = prediction.mean
        inner = mean + (targets - mean) / math.exp(u)
        return (outputs * u - prediction.log_prob(inner).mean()).item()

    best = minimize_scalar(loss, bounds=(-3, 3), method="bounded", options={"xatol": 1e-10})
    assert math.log(factor) == pytest.approx(best.x, abs=1e-6)
    assert -after.log_prob(targets).mean().item() == pytest.approx(best.fun, rel=1e-9)
    torch.testing.assert_close(after.mean, prediction.mean)
    torch.testing.assert_close(after.std, factor * prediction.std)
    torch.testing.assert_close(after.mutual_information, prediction.mutual_information)
    again = recalibrate(after, targets, "scale").parameters["factor"]
    assert again == pytest.approx(1.0, abs=1e-8)


@pytest.mark.parametrize("modes", [1, 2])
def test_the_share_of_the_weights_stays(modes) -> None:
    """Gaussians around networks, unlike in share: both variances have the factor squared, and what
    is known of modes is kept."""
    prediction, targets = draw(4, 2)
    share = torch.rand(4, 200, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    given = MixturePrediction(prediction.loc, prediction.scale, None, share, num_modes=modes)
    map_ = recalibrate(given, targets, "scale")
    after, square = map_(given), map_.parameters["factor"] ** 2
    assert (after.num_modes, after.samples_per_mode) == (modes, 4 // modes)
    for name in ("aleatoric_variance", "epistemic_variance"):
        torch.testing.assert_close(getattr(after, name), square * getattr(given, name))
    torch.testing.assert_close(after.mutual_information, given.mutual_information)
    torch.testing.assert_close(after.within_modes, given.within_modes)


def test_a_spread_too_wide_is_narrowed() -> None:
    """Members far apart: a factor on their scales alone would not help, this one does."""
    loc = torch.tensor([-5.0, 5.0]).view(2, 1, 1).expand(2, 400, 1)
    targets = 0.5 * torch.randn(400, 1, generator=torch.Generator().manual_seed(0))
    prediction = MixturePrediction(loc, torch.full_like(loc, 0.1))
    after = recalibrate(prediction, targets, "scale")(prediction)
    assert prediction.std[0, 0] > 5 and 0.3 < after.std[0, 0] < 0.7
    assert after.loc.dtype == torch.float32


def test_bounds_and_errors() -> None:
    prediction, targets = draw(1, 1)
    assert recalibrate(prediction, prediction.mean, "scale").parameters["factor"] == 0.01
    far = prediction.mean + 1e6
    assert recalibrate(prediction, far, "scale").parameters["factor"] == 100.0
    cauchy, targets = draw(2, 1, df=1.0)
    with pytest.raises(ValueError, match="df = 1.0 has no mean"):
        recalibrate(cauchy, targets, "scale")
    with pytest.raises(ValueError, match="regression; take 'scale'"):
        recalibrate(prediction, targets)
    with pytest.raises(ValueError, match="classes; take 'temperature'"):
        recalibrate(CategoricalPrediction.from_probs([[0.5, 0.5]]), torch.tensor([0]), "scale")
    with pytest.raises(ValueError, match="2 dimension"):
        recalibrate(draw(1, 2)[0], targets, "scale")
