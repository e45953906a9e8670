"""Densities around networks: the share of their variance that comes from the weights."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import Tensor

from polymode.likelihoods.components import Moments
from polymode.likelihoods.kinds import Gaussian
from polymode.prediction import MixturePrediction, Prediction, predict_from
from polymode.recalibration import scale as scaling

from .made_up import mixture

SUMMARIES = (
    "mean variance aleatoric_variance epistemic_variance std predictive_entropy expected_entropy"
    " mutual_information"
).split()


def with_share(shape: tuple[int, int, int] = (3, 4, 2), seed: int = 0) -> MixturePrediction:
    bare = mixture(shape, seed)
    stream = torch.Generator().manual_seed(seed + 1)
    share = 0.95 * torch.rand(shape, generator=stream, dtype=torch.float64)
    return MixturePrediction(bare.loc, bare.scale, epistemic=share)


def test_one_density_in_closed_form() -> None:
    """N(2, 5²) with 16/25 of the variance from the weights: noise 3, spread 4."""
    pred = MixturePrediction(torch.full((1, 1, 1), 2.0).double(), 5.0, epistemic=0.64)
    assert pred.aleatoric_variance.item() == pytest.approx(9.0)
    assert pred.epistemic_variance.item() == pytest.approx(16.0)
    assert pred.variance.item() == pytest.approx(25.0)
    entropy = 0.5 * math.log(2 * math.pi * math.e)
    assert pred.expected_entropy.item() == pytest.approx(entropy + math.log(3.0))
    assert pred.predictive_entropy.item() == pytest.approx(entropy + math.log(5.0))
    assert pred.mutual_information.item() == pytest.approx(0.5 * math.log(1 / (1 - 0.64)))
    assert pred.has_epistemic and "epistemic s.d." in pred._repr_html_()
    assert not MixturePrediction(pred.loc, 5.0).has_epistemic


def test_no_share_is_a_share_of_zero_and_moves_no_bit() -> None:
    bare = mixture((3, 4, 2))
    zero = MixturePrediction(bare.loc, bare.scale, epistemic=0.0)
    assert bare.epistemic is None and zero.epistemic is not None
    for name in SUMMARIES:
        assert torch.equal(getattr(zero, name), getattr(bare, name)), name
    # what each was before there were shares
    assert torch.equal(bare.aleatoric_variance, bare.scale.square().mean(0))
    centred = bare.loc - bare.loc.mean(0)
    assert torch.equal(bare.epistemic_variance, centred.square().mean(0))


def test_the_share_moves_between_the_parts_and_changes_nothing_else() -> None:
    pred, bare = with_share(), mixture((3, 4, 2))
    y = torch.randn(4, 2, dtype=torch.float64)
    for name in ("mean", "variance", "predictive_entropy"):
        torch.testing.assert_close(getattr(pred, name), getattr(bare, name))
    assert torch.equal(pred.log_prob(y), bare.log_prob(y))
    assert torch.equal(pred.quantile(0.2), bare.quantile(0.2))
    assert (pred.epistemic_variance > bare.epistemic_variance).all()
    assert (pred.mutual_information > bare.mutual_information).all()
    difference = pred.predictive_entropy - pred.expected_entropy
    torch.testing.assert_close(pred.mutual_information, difference)


def test_parts_are_those_of_drawn_networks() -> None:
    """Variances of 20,000 networks drawn from the moments of 3 modes, against the closed form.

    The variance of one mode's locations has a relative standard error of √(2 / 20,000) = 1 %, and
    the whole no larger one; 5 % is 5 of them: one seed in 10⁵ fails at one of the 8 numbers.
    The noise is the same for all networks, so the other part is exact.
    """
    stream = torch.Generator().manual_seed(0)
    loc = torch.randn(3, 4, 2, generator=stream, dtype=torch.float64)
    spread = torch.rand(3, 4, 2, generator=stream, dtype=torch.float64)
    likelihood, moments = Gaussian(noise=(0.5, 1.5)), Moments(loc, spread)
    closed = predict_from(likelihood.closed(moments, {}))
    assert (closed.num_modes, closed.num_samples) == (3, 3)
    outputs = moments.draw(20_000, [1, 2, 3])
    drawn = predict_from(likelihood.components(outputs, {}))
    assert (drawn.num_modes, drawn.samples_per_mode) == (3, 20_000)
    torch.testing.assert_close(closed.aleatoric_variance, drawn.aleatoric_variance)
    torch.testing.assert_close(
        closed.epistemic_variance, drawn.epistemic_variance, rtol=0.05, atol=0
    )
    y = loc[0]
    torch.testing.assert_close(closed.log_prob(y), drawn.log_prob(y), rtol=0, atol=0.05)


def test_mutual_information_is_that_of_drawn_networks() -> None:
    """200 networks of each of 2 modes; the largest error in 20 seeds was 0.06 nats."""
    loc = torch.tensor([[-1.0, 0.0, 0.0], [1.0, 0.1, 3.0]], dtype=torch.float64).unsqueeze(-1)
    spread = torch.tensor([[0.5, 0.1, 0.0], [0.5, 2.0, 1.0]], dtype=torch.float64).unsqueeze(-1)
    likelihood, moments = Gaussian(noise=0.7), Moments(loc, spread)
    closed = predict_from(likelihood.closed(moments, {}))
    drawn = predict_from(likelihood.components(moments.draw(200, [4, 5]), {}))
    for name in ("mutual_information", "within_modes", "between_modes"):
        torch.testing.assert_close(getattr(closed, name), getattr(drawn, name), rtol=0, atol=0.12)
    assert (closed.within_modes > 0.05).all()


def test_the_share_is_kept_by_all_that_makes_predictions_of_predictions() -> None:
    pred = with_share()
    share = pred.epistemic
    assert share is not None

    def share_of(other: Prediction) -> Tensor:
        assert isinstance(other, MixturePrediction) and other.epistemic is not None
        return other.epistemic

    assert torch.equal(share_of(pred.rescale(1.0, 3.0)), share)
    assert torch.equal(share_of(pred[1:3]), share[:, 1:3])
    assert torch.equal(share_of(Prediction.cat([pred[:1], pred[1:]])), share)
    assert torch.equal(share_of(Prediction.join([pred, pred])), torch.cat([share, share]))
    assert torch.equal(share_of(pred.take_modes([2, 0])), share[[2, 0]])
    assert torch.equal(share_of(predict_from(pred.by_mode)), share)
    assert torch.equal(share_of(pred.double()), share)
    assert torch.equal(share_of(scaling.apply({"factor": 2.0}, pred)), share)
    tensors, rest = pred.to_arrays()
    again = Prediction.from_arrays(tensors, json.loads(json.dumps(rest)))
    for name in SUMMARIES:
        assert torch.equal(getattr(again, name), getattr(pred, name))
    with pytest.raises(ValueError, match="of the same kind"):
        Prediction.cat([pred, mixture((3, 4, 2))])


def test_one_share_serves_all() -> None:
    loc = torch.zeros(2, 3, 1)
    narrow = MixturePrediction(loc, 1.0, epistemic=torch.tensor([0.5, 0.25])[:, None, None])
    assert narrow.epistemic is not None and narrow.epistemic.shape == loc.shape
    assert narrow.aleatoric_variance.flatten().tolist() == pytest.approx([0.625] * 3)


@pytest.mark.parametrize(
    ("share", "df", "message"),
    [
        (1.0, None, r"in \[0, 1\), but is not at sample 0, input 0"),
        (-0.1, None, r"in \[0, 1\)"),
        (math.nan, None, r"in \[0, 1\)"),
        (torch.zeros(2, 4, 1), None, "`epistemic` must broadcast"),
        (0.5, 4.0, "share of Gaussian densities.*df = 4.0"),
    ],
)
def test_what_is_not_a_share_is_refused(share: Tensor | float, df: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MixturePrediction(torch.zeros(2, 3, 1), 1.0, df, share)
