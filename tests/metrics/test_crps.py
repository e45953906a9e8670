"""CRPS against numerical integration, closed forms, slow twins and simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, special, stats

from polymode.metrics import crps as c
from polymode.metrics.score import NotDefined
from polymode.prediction import CategoricalPrediction, MixturePrediction


def draw(samples: int = 4, batch: int = 30, outputs: int = 1, df: float | None = None, seed=0):
    stream = torch.Generator().manual_seed(seed)
    loc = 2 * torch.randn(samples, batch, outputs, generator=stream, dtype=torch.float64)
    scale = torch.randn(samples, batch, outputs, generator=stream, dtype=torch.float64).exp()
    y = 3 * torch.randn(batch, outputs, generator=stream, dtype=torch.float64)
    return MixturePrediction(loc, scale, df), y


def of(loc, scale, df=None) -> MixturePrediction:
    """One example and one output, with the given components."""
    column = torch.tensor(loc, dtype=torch.float64)[:, None, None]
    return MixturePrediction(column, torch.tensor(scale, dtype=torch.float64)[:, None, None], df)


def integral(y, loc, scale, df) -> float:
    """The definition, by adaptive quadrature between y and the centres of the components."""
    law = stats.norm if df is None else stats.t(df)

    def squared(x, tail):
        return tail((x - loc) / scale).mean() ** 2

    cuts = np.sort([*(loc + scale * z for z in (-3, 0, 3)), np.full_like(loc, y)], None)
    total = 0.0
    for low, high in zip([-np.inf, *cuts], [*cuts, np.inf], strict=True):
        tail = law.cdf if high <= y else law.sf
        total += integrate.quad(squared, low, high, (tail,), epsabs=1e-10, limit=200)[0]
    return total


def of_one_student(y, df) -> float:
    """Jordan, Krueger & Lerch, Evaluating probabilistic forecasts with scoringRules, 2019."""
    last = special.beta(0.5, df - 0.5) / special.beta(0.5, 0.5 * df) ** 2
    return (
        y * (2 * stats.t.cdf(y, df) - 1)
        + 2 * stats.t.pdf(y, df) * (df + y * y) / (df - 1)
        - 2 * math.sqrt(df) / (df - 1) * last
    )


def by_pairs(samples: np.ndarray, y: np.ndarray, divisor: int) -> np.ndarray:
    """The estimate by its definition, over all pairs."""
    pairs = np.abs(samples[:, None] - samples[None, :]).sum((0, 1))
    return np.abs(samples - y).mean(0) - pairs / (2 * divisor)


@pytest.mark.parametrize("df", [None, 3.0])
def test_equals_the_integral_of_its_definition(df):
    prediction, y = draw(batch=12, df=df)
    loc, scale = prediction.loc[..., 0].numpy(), prediction.scale[..., 0].numpy()
    expected = [integral(y[i].item(), loc[:, i], scale[:, i], df) for i in range(12)]
    tolerance = 1e-8 if df is None else 2e-6
    np.testing.assert_allclose(c.crps(prediction, y).each, expected, rtol=tolerance)


def test_one_gaussian_in_closed_form():
    """Gneiting & Raftery 2007, equation 21."""
    z = np.linspace(-40, 40, 81)
    expected = z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - 1 / math.sqrt(math.pi)
    prediction = MixturePrediction(torch.zeros(1, 81, 1, dtype=torch.float64), 1.0)
    np.testing.assert_allclose(c.crps(prediction, torch.as_tensor(z)).each, expected, rtol=1e-12)


@pytest.mark.parametrize("df", [1.01, 1.3, 2.0, 2.5, 5.0, 30.0, 1e3, 1e7])
def test_one_student_in_closed_form(df):
    """Also far out, beyond all nodes, and with tails that have barely a mean."""
    z = np.array([-1e6, -1e3, -30, -4, -1, 0, 0.3, 2.0, 11, 400, 1e5])
    prediction = MixturePrediction(torch.zeros(1, 11, 1, dtype=torch.float64), 1.0, df)
    expected = [of_one_student(value, min(df, 1e6)) for value in z]  # beta() overflows
    np.testing.assert_allclose(c.crps(prediction, torch.as_tensor(z)).each, expected, rtol=2e-6)


@pytest.mark.parametrize("df", [1.5, 4.0])
def test_student_mixtures_hard_to_integrate(df):
    """Components narrow inside wide ones, and far from all others."""
    for loc, scale, y in (
        ([0.0, 0.3], [100.0, 1e-3], 0.3),
        ([-5.0, 5.0], [0.1, 0.1], 4.9),
        ([0.0, 1e6], [1.0, 1e-2], 3e5),
        ([1e4, 1e4 + 1e-3, -7.0], [1e-4, 2e-4, 50.0], 1e4),
    ):
        expected = integral(y, np.array(loc), np.array(scale), df)
        value = c.crps(of(loc, scale, df), torch.tensor([y], dtype=torch.float64)).value
        assert value == pytest.approx(expected, rel=2e-6)


def test_many_degrees_of_freedom_are_gaussian():
    prediction, y = draw(samples=5, df=1e6)
    gaussian = MixturePrediction(prediction.loc, prediction.scale)
    np.testing.assert_allclose(c.crps(prediction, y).each, c.crps(gaussian, y).each, rtol=5e-6)


def test_members_far_apart_by_hand():
    """N(-5, .1), N(5, .1) at 0 and at 5. Between the members F is 1/2, so the score is 10/4 less
    what rounds the corners, 2 (A(0, .1) / 2) / 2 of noise: nothing like the CRPS of N(0, .1)."""
    prediction = of([-5.0, 5.0], [0.1, 0.1])
    within, point = 0.2 / math.sqrt(math.pi), 0.1 * math.sqrt(2 / math.pi)
    at_zero = 5 - (10 + within) / 4
    at_five = (10 + point) / 2 - (10 + within) / 4
    for y, expected in ((0.0, at_zero), (5.0, at_five)):
        value = c.crps(prediction, torch.tensor([y])).value
        assert value == pytest.approx(expected, rel=1e-12)


def test_outputs_are_averaged_one_by_one():
    prediction, y = draw(outputs=3)
    each = [
        c.crps(MixturePrediction(prediction.loc[..., d, None], prediction.scale[..., d, None]), y_d)
        for d, y_d in enumerate(y.unbind(1))
    ]
    expected = np.mean([score.each.numpy() for score in each], 0)
    np.testing.assert_allclose(c.crps(prediction, y).each, expected, rtol=1e-12)


@pytest.mark.parametrize("df", [None, 4.0])
def test_the_size_of_chunks_changes_nothing(df, monkeypatch):
    prediction, y = draw(samples=7, df=df)
    whole = c.crps(prediction, y).each
    monkeypatch.setattr(c, "_CHUNK", 1)
    np.testing.assert_allclose(c.crps(prediction, y).each, whole, rtol=1e-6)


cases = {
    "samples": st.integers(1, 6),
    "df": st.sampled_from([None, 1.5, 5.0]),
    "seed": st.integers(0, 10**6),
}


@settings(max_examples=40, deadline=None)
@given(**cases, shift=st.floats(-1e3, 1e3), scale=st.floats(1e-2, 1e2))
def test_moves_with_location_and_scale(samples, df, seed, shift, scale):
    prediction, y = draw(samples, 5, df=df, seed=seed)
    there = c.crps(prediction.rescale(shift, scale), shift + scale * y).value
    assert there == pytest.approx(scale * c.crps(prediction, y).value, rel=1e-8 if not df else 4e-6)


@settings(max_examples=40, deadline=None)
@given(**cases, copies=st.integers(2, 5))
def test_copies_of_the_components_change_nothing(samples, df, seed, copies):
    prediction, y = draw(samples, 5, df=df, seed=seed)
    many = (t.repeat(copies, 1, 1) for t in (prediction.loc, prediction.scale))
    value = c.crps(MixturePrediction(*many, df), y).value
    assert value == pytest.approx(c.crps(prediction, y).value, rel=1e-9)


@settings(max_examples=40, deadline=None)
@given(**cases)
def test_never_above_the_mean_of_the_members(samples, df, seed):
    """The score is convex in F; and never negative."""
    prediction, y = draw(samples, 5, df=df, seed=seed)
    members = [MixturePrediction(*pair, df) for pair in zip(
        prediction.loc.split(1), prediction.scale.split(1), strict=True
    )]  # fmt: skip
    own = np.mean([c.crps(member, y).value for member in members])
    assert 0 < c.crps(prediction, y).value <= own * (1 + 1e-5)


def test_is_proper():
    """Targets from N(0, 1): wider, narrower or shifted predictions score worse. The differences of
    the means, from 0.02, have standard errors below 0.002 at n = 50,000: p < 1e-20."""
    stream = torch.Generator().manual_seed(2)
    y = torch.randn(50_000, 1, generator=stream, dtype=torch.float64)
    zero = torch.zeros(1, 50_000, 1, dtype=torch.float64)
    truth = c.crps(MixturePrediction(zero, 1.0), y).value
    for shift, scale in ((0.0, 1.6), (0.0, 0.6), (0.4, 1.0)):
        assert c.crps(MixturePrediction(zero + shift, scale), y).value > truth + 0.01


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 9), st.integers(1, 6), st.integers(0, 10**6))
def test_samples_equal_the_sum_over_pairs(samples, batch, seed):
    rng = np.random.default_rng(seed)
    draws, y = rng.normal(1e3, 5, (samples, batch)), rng.normal(1e3, 5, batch)
    draws[0] = draws[1]  # a tie
    for fair, divisor in ((True, samples * (samples - 1)), (False, samples**2)):
        score = c.crps_from_samples(torch.tensor(draws), torch.tensor(y), fair=fair)
        np.testing.assert_allclose(score.each, by_pairs(draws, y, divisor), atol=1e-9)
        assert score.each.min() >= -1e-9


def test_unfair_estimate_is_the_crps_of_points():
    """Of one point it is the absolute error; and that of Gaussians around them with no width."""
    stream = torch.Generator().manual_seed(0)
    draws = torch.randn(6, 20, generator=stream, dtype=torch.float64)
    y = torch.randn(20, generator=stream, dtype=torch.float64)
    one = c.crps_from_samples(draws[:1], y, fair=False)
    np.testing.assert_allclose(one.each, (draws[0] - y).abs())
    narrow = c.crps(MixturePrediction(draws[..., None], 1e-12), y)
    unfair = c.crps_from_samples(draws, y, fair=False)
    np.testing.assert_allclose(unfair.each, narrow.each, rtol=1e-10)


def test_fair_estimate_is_unbiased_and_the_usual_one_is_not():
    """10 draws of N(0, 1) and y = 0.5. Over 200,000 repetitions the mean of the estimates has a
    standard error of 0.0003; the bounds of 0.002 fail with p < 1e-10. The usual form is too large
    by 1/(10 sqrt(pi)) = 0.056: what torchmetrics reports."""
    stream = torch.Generator().manual_seed(1)
    draws = torch.randn(10, 200_000, generator=stream, dtype=torch.float64)
    y = torch.full((200_000,), 0.5, dtype=torch.float64)
    exact = c.crps(of([0.0], [1.0]), y[:1]).value
    assert c.crps_from_samples(draws, y).value == pytest.approx(exact, abs=0.002)
    usual = c.crps_from_samples(draws, y, fair=False).value
    assert usual - exact == pytest.approx(0.0564, abs=0.002)


def test_fair_estimate_of_a_mixture_is_its_closed_form():
    """20 draws from each of 3,000 mixtures with 2 outputs: the difference of the scores of an
    example has a mean of zero, so beyond 5 standard errors has p < 1e-6."""
    prediction, y = draw(3, 3000, 2, seed=7)
    stream = torch.Generator().manual_seed(8)
    which = torch.randint(3, (20, 3000, 1), generator=stream).expand(-1, -1, 2)
    noise = torch.randn(20, 3000, 2, generator=stream, dtype=torch.float64)
    draws = prediction.loc.gather(0, which) + prediction.scale.gather(0, which) * noise
    difference = c.crps_from_samples(draws, y).each - c.crps(prediction, y).each
    assert difference.mean().abs() < 5 * difference.std() / math.sqrt(3000)


def test_fair_estimate_by_hand():
    """Two draws around y score 0, however far; y outside scores its distance from the nearer."""
    samples = torch.tensor([[-1.0, -1.0], [3.0, 3.0]])
    score = c.crps_from_samples(samples, torch.tensor([1.0, 5.0]))
    assert score.each.tolist() == [0.0, 2.0]


def test_standard_error_needs_two_examples():
    prediction, y = draw()
    score = c.crps(prediction, y)
    assert score.standard_error == pytest.approx(np.std(score.each.numpy(), ddof=1) / math.sqrt(30))
    assert c.crps(prediction[:1], y[:1]).standard_error is None


def test_without_first_moment_there_is_no_crps():
    for df in (0.3, 1.0):
        prediction, y = draw(df=df)
        with pytest.raises(NotDefined, match=f"no first moment: df = {df:g} <= 1"):
            c.crps(prediction, y)


def test_bad_input_is_refused():
    prediction, y = draw(outputs=2)
    with pytest.raises(ValueError, match=r"29 target\(s\) for 30"):
        c.crps(prediction, y[:29])
    with pytest.raises(ValueError, match="must be finite"):
        c.crps(prediction, y * math.nan)
    with pytest.raises(ValueError, match=r"2 dimension\(s\), got 1"):
        c.crps(prediction, y[:, 0])
    with pytest.raises(ValueError, match="0 examples"):
        c.crps(prediction[:0], y[:0])
    with pytest.raises(ValueError, match="scores predicted densities, got a Categorical"):
        c.crps(CategoricalPrediction(torch.zeros(1, 4, 2).log_softmax(-1)), y[:4])


def test_bad_samples_are_refused():
    samples, y = torch.zeros(3, 4), torch.zeros(4)
    for wrong, targets, says in (
        (samples.long(), y, r"floats of shape \(S, B\) or \(S, B, D\), got torch.int64"),
        (samples[0], y, r"got torch.float32 \(4,\)"),
        (samples[:, :0], y[:0], r"got torch.float32 \(3, 0\)"),
        (samples[:1], y, "needs at least 2 samples, got 1"),
        (samples + math.nan, y, "must be finite, but 12 of 12 are not"),
        (samples, y[:3], r"3 target\(s\) for samples of 4"),
        (samples[..., None].expand(3, 4, 2), y, r"2 dimension\(s\), got 1"),
        (samples, y * math.nan, "must be finite, got"),
    ):
        with pytest.raises(ValueError, match=says):
            c.crps_from_samples(wrong, targets)
