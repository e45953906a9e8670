"""PIT, coverage, widths and interval scores against SciPy, slow twins and calibrated draws."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from polymode.metrics import intervals as i
from polymode.metrics.score import REGRESSION
from polymode.prediction import CategoricalPrediction, MixturePrediction


def draw(samples: int = 3, batch: int = 40, outputs: int = 2, df: float | None = None, seed=0):
    """A prediction, and targets drawn from it: calibrated by construction."""
    stream = torch.Generator().manual_seed(seed)
    shape = (samples, batch, outputs)
    loc = 2 * torch.randn(shape, generator=stream, dtype=torch.float64)
    scale = 0.2 + torch.rand(shape, generator=stream, dtype=torch.float64)
    which = torch.randint(samples, (1, batch, 1), generator=stream).expand(-1, -1, outputs)
    noise = torch.randn(batch, outputs, generator=stream, dtype=torch.float64)
    if df is not None:
        chi = np.random.default_rng(seed).chisquare(df, (batch, outputs))
        noise *= torch.as_tensor(np.sqrt(df / chi))
    y = loc.gather(0, which)[0] + scale.gather(0, which)[0] * noise
    return MixturePrediction(loc, scale, df), y


def far_apart() -> MixturePrediction:
    """Members N(-5, .1) and N(5, .1)."""
    loc = torch.tensor([[[-5.0]], [[5.0]]], dtype=torch.float64)
    return MixturePrediction(loc, 0.1)


def registered(name: str):
    return REGRESSION.get(name).value


def test_pit_equals_scipy():
    for df, law in ((None, stats.norm), (3.0, stats.t(3.0))):
        prediction, y = draw(df=df)
        expected = law.cdf(((y - prediction.loc) / prediction.scale).numpy()).mean(0)
        np.testing.assert_allclose(i.pit(prediction, y), expected, rtol=1e-12)
        assert i.pit(prediction, y).dtype == torch.float64


def test_pit_of_members_far_apart():
    """Not the PIT of N(0, .1), 0 or 1 everywhere: one half in the gap, quarters at the members."""
    y = torch.tensor([[-5.0], [0.0], [5.0]])
    prediction = far_apart()[[0, 0, 0]]
    np.testing.assert_allclose(i.pit(prediction, y)[:, 0], [0.25, 0.5, 0.75], atol=1e-9)


@pytest.mark.parametrize("df", [None, 3.0])
def test_pit_of_the_truth_is_uniform(df):
    """Kolmogorov-Smirnov on 4,000 draws for each output; the bound fails with p = 1e-6 each."""
    prediction, y = draw(batch=4000, df=df)
    for column in i.pit(prediction, y).T:
        assert stats.kstest(column, "uniform").pvalue > 1e-6


def test_histogram_by_hand():
    """PIT .1 .5 .5 1 in four bins of output 0; the last one holds 1, and all 8 are counted."""
    z = stats.norm.ppf([[0.1, 0.3], [0.5, 0.3], [0.5, 0.3], [1 - 1e-17, 0.9]])
    y = torch.tensor(z).nan_to_num(posinf=50.0)
    found = i.pit_histogram(MixturePrediction(torch.zeros(1, 4, 2).double(), 1.0), y, num_bins=4)
    assert found.counts.T.tolist() == [[1, 0, 2, 1], [0, 3, 0, 1]]
    assert found.edges.tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert found.expected == 1.0


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5000), st.integers(1, 40))
def test_band_is_binomial(count, bins):
    low, high = (i._binomial_quantile(q, count, 1 / bins) for q in (0.025, 0.975))
    assert (low, high) == tuple(stats.binom.ppf([0.025, 0.975], count, 1 / bins))


def test_each_output_has_a_histogram_and_a_band_of_its_examples():
    """Columns are those of the outputs by themselves, with the same band."""
    prediction, y = draw(outputs=3, batch=120)
    found = i.pit_histogram(prediction, y, num_bins=6)
    for d in range(3):
        part = MixturePrediction(prediction.loc[..., d : d + 1], prediction.scale[..., d : d + 1])
        alone = i.pit_histogram(part, y[:, d : d + 1], num_bins=6)
        assert torch.equal(found.counts[:, d : d + 1], alone.counts)
        assert (found.expected, found.low, found.high) == (20, alone.low, alone.high)


def test_histogram_of_the_truth_keeps_to_the_band():
    """400 bins of independent sets, each outside with a chance of at most 5 %: 20 expected, and
    more than 45 has p < 1e-6. Of a prediction half as wide, the outermost bins are all outside."""
    outside = 0
    for seed in range(40):
        prediction, y = draw(outputs=1, batch=500, seed=seed)
        found = i.pit_histogram(prediction, y)
        outside += int(((found.counts < found.low) | (found.counts > found.high)).sum())
        assert found.counts.sum() == 500
    assert 0 < outside <= 45
    narrow = MixturePrediction(torch.zeros(1, 500, 1), 0.5)
    y = torch.randn(500, 1, generator=torch.Generator().manual_seed(0))
    counts = i.pit_histogram(narrow, y).counts
    assert counts[[0, -1]].min() > found.high


@pytest.mark.parametrize("df", [None, 3.0])
@pytest.mark.parametrize("level", [0.05, 0.5, 0.9, 0.95])
def test_coverage_equals_that_of_the_ends(level, df):
    """Without quantiles the same share as with them."""
    prediction, y = draw(batch=300, df=df)
    lower, upper = prediction.interval(level)
    inside = ((lower <= y) & (y <= upper)).double().mean(1)
    assert torch.equal(i.coverage(prediction, y, level).each, inside)


def test_coverage_of_the_truth_is_the_level():
    """20,000 draws: beyond 5 standard errors has p < 1e-6 for each of three levels."""
    prediction, y = draw(batch=20_000, outputs=1)
    for percent in (50, 90, 95):
        score = registered(f"coverage_{percent}")(prediction, y)
        assert score.value == pytest.approx(percent / 100, abs=5 * score.standard_error)
        share = percent / 100
        expected = math.sqrt(share * (1 - share) / 20_000)
        assert score.standard_error == pytest.approx(expected, rel=0.1)


def test_coverage_of_a_prediction_half_as_wide():
    """N(0, 1/2) of N(0, 1): 90 % covers P(|z| <= 0.82) = 0.589; s.e. 0.002, 5 of them: p < 1e-6."""
    y = torch.randn(60_000, 1, generator=torch.Generator().manual_seed(0))
    value = i.coverage(MixturePrediction(torch.zeros(1, 60_000, 1), 0.5), y, 0.9).value
    assert value == pytest.approx(2 * stats.norm.cdf(0.5 * stats.norm.ppf(0.95)) - 1, abs=0.01)


def test_members_far_apart_cover_their_own_means():
    """Parameters averaged to N(0, .1) would cover neither."""
    prediction, y = far_apart()[[0, 0]], torch.tensor([[-5.0], [5.0]])
    assert i.coverage(prediction, y, 0.9).value == 1.0
    assert i.width(prediction, 0.9).value == pytest.approx(10 + 0.2 * stats.norm.ppf(0.9), rel=1e-6)


def test_intervals_hold_their_ends():
    """y = 5 has a PIT of exactly 3/4: the upper end of the central half."""
    prediction, y = far_apart(), torch.tensor([[5.0]])
    assert i.coverage(prediction, y, 0.5).value == 1.0
    assert i.quantile_coverage(prediction, y, [0.49, 0.5]).tolist() == [0.0, 1.0]


def test_width_equals_scipy():
    for df, law in ((None, stats.norm), (3.0, stats.t(3.0))):
        scales = torch.tensor([[[1.0, 2.0], [3.0, 5.0]]], dtype=torch.float64)
        prediction = MixturePrediction(torch.zeros(1, 2, 2).double(), scales, df)
        for percent in (50, 90, 95):
            expected = 2 * law.ppf(0.5 + percent / 200) * np.array([1.5, 4.0])
            np.testing.assert_allclose(
                registered(f"width_{percent}")(prediction).each, expected, rtol=1e-6
            )


def test_winkler_by_hand():
    """[-1, 1] at 50 %, alpha = 1/2: inside the width 2, at 3 and -2 another 4 times 2 and 1."""
    scale = 1 / stats.norm.ppf(0.75)
    prediction = MixturePrediction(torch.zeros(1, 3, 1).double(), scale)
    score = i.winkler(prediction, torch.tensor([0.5, 3.0, -2.0]), 0.5)
    np.testing.assert_allclose(score.each, [2, 10, 6], rtol=1e-7)


def test_winkler_equals_a_slow_twin():
    prediction, y = draw(batch=15)
    lower, upper = (end.numpy() for end in prediction.interval(0.9))
    expected = np.zeros((15, 2))
    for place in np.ndindex(15, 2):
        low, high, value = lower[place], upper[place], y.numpy()[place]
        expected[place] = high - low
        if value < low:
            expected[place] += 2 / 0.1 * (low - value)
        if value > high:
            expected[place] += 2 / 0.1 * (value - high)
    each = registered("winkler_90")(prediction, y).each
    np.testing.assert_allclose(each, expected.mean(1), rtol=1e-12)


def test_winkler_over_all_levels_is_the_crps():
    """CRPS = integral over alpha of (alpha / 2) times the score at level 1 - alpha, over (0, 1)."""
    y = torch.tensor([1.3], dtype=torch.float64)
    prediction = MixturePrediction(torch.zeros(1, 1, 1).double(), 1.0)

    def weighted(alpha: float) -> float:
        return alpha / 2 * i.winkler(prediction, y, 1 - alpha).value

    kink = 2 * stats.norm.sf(1.3)
    total = sum(integrate.quad(weighted, *ends)[0] for ends in ((1e-12, kink), (kink, 1 - 1e-12)))
    expected = 1.3 * (2 * stats.norm.cdf(1.3) - 1) + 2 * stats.norm.pdf(1.3) - 1 / math.sqrt(np.pi)
    assert total == pytest.approx(expected, rel=1e-6)


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 4),
    st.integers(1, 20),
    st.lists(st.floats(0.02, 0.98), min_size=2, max_size=5),
    st.integers(0, 10**6),
)
def test_more_level_covers_more_and_is_wider(samples, batch, levels, seed):
    prediction, y = draw(samples, batch, 1, seed=seed)
    y = 1.5 * y
    levels = sorted(levels)
    for low, high in zip(levels, levels[1:], strict=False):
        assert i.coverage(prediction, y, low).value <= i.coverage(prediction, y, high).value
        assert i.width(prediction, low).value <= i.width(prediction, high).value + 1e-6
    for level in levels:
        score, wide = i.winkler(prediction, y, level), i.width(prediction, level)
        assert score.value >= wide.value
        if i.coverage(prediction, y, level).value == 1:
            assert score.value == pytest.approx(wide.value, rel=1e-6)
    curve = i.quantile_coverage(prediction, y, levels)
    each = [i.coverage(prediction, y, level).value for level in levels]
    np.testing.assert_allclose(curve, each, atol=1e-12)


def test_quantile_calibration_equals_a_slow_twin():
    """The definition of TorchUncertainty: 15 central levels, outputs together."""
    prediction, y = draw(batch=200)
    y = 1.3 * y
    gaps = []
    for level in np.linspace(0.05, 0.95, 15):
        lower, upper = prediction.interval(level)
        gaps.append(abs(((lower <= y) & (y <= upper)).double().mean().item() - level))
    score = i.quantile_calibration(prediction, y)
    assert score.value == pytest.approx(np.mean(gaps), rel=1e-12)
    assert score.n == 200


def test_quantile_calibration_at_its_ends():
    """All targets at the median, or all beyond every interval: the most it can be, one half."""
    prediction = MixturePrediction(torch.zeros(1, 9, 1), 1.0)
    for y in (0.0, 50.0):
        score = i.quantile_calibration(prediction, torch.full((9,), y))
        assert score.value == pytest.approx(0.5)
        assert score.standard_error == pytest.approx(0.0, abs=1e-12)


def test_quantile_calibration_standard_error_matches_simulation():
    """N(0, 1/2) of N(0, 1), n = 300: over 400 repetitions, the spread of the value is known to
    3.5 %, the mean of the standard errors to less; 20 % apart has p < 1e-6."""
    stream = torch.Generator().manual_seed(4)
    prediction = MixturePrediction(torch.zeros(1, 300, 1), 0.5)
    scores = [
        i.quantile_calibration(prediction, torch.randn(300, 1, generator=stream))
        for _ in range(400)
    ]
    spread = np.std([score.value for score in scores], ddof=1)
    assert np.mean([score.standard_error for score in scores]) == pytest.approx(spread, rel=0.2)


def test_quantile_calibration_of_the_truth_is_what_the_docstring_says():
    """0.31 / sqrt(n) in the mean over 400 sets of 400; the mean is known to 3 %, so 20 % off has
    p < 1e-6."""
    values = [
        i.quantile_calibration(*draw(batch=400, outputs=1, seed=seed)).value for seed in range(400)
    ]
    assert np.mean(values) * math.sqrt(400) == pytest.approx(0.31, rel=0.2)


def test_ends_are_computed_once_and_forgotten_with_the_prediction(monkeypatch):
    calls, inner = [], MixturePrediction.interval

    def counted(self, level):
        calls.append(level)
        return inner(self, level)

    monkeypatch.setattr(MixturePrediction, "interval", counted)
    prediction, y = draw()
    for _ in range(2):
        for name in ("width_90", "winkler_90", "width_95", "winkler_95", "width_50"):
            registered(name)(prediction, y)
    assert calls == [0.9, 0.95, 0.5]
    before = len(i._ENDS)
    del prediction
    assert len(i._ENDS) == before - 1


def test_levels_and_bins_are_checked():
    prediction, y = draw()
    for level in (0.0, 1.0, math.nan):
        for call in (i.coverage, i.winkler):
            with pytest.raises(ValueError, match=r"`level` of an interval must be in \(0, 1\)"):
                call(prediction, y, level)
        with pytest.raises(ValueError, match=r"`level` of an interval must be in \(0, 1\)"):
            i.width(prediction, level)
    for levels in ([], [0.5, 1.0], 0.5, [[0.5]]):
        with pytest.raises(ValueError, match=r"`levels` must be a list of numbers in \(0, 1\)"):
            i.quantile_coverage(prediction, y, levels)
    with pytest.raises(ValueError, match="`num_bins` of pit_histogram must be an integer of at"):
        i.pit_histogram(prediction, y, num_bins=0)


NAMES = ["coverage_90", "winkler_95", "quantile_calibration"]


@pytest.mark.parametrize("name", [*NAMES, "width_50"])
def test_one_example_has_no_standard_error(name):
    prediction, y = draw()
    assert registered(name)(prediction, y).standard_error is not None
    assert registered(name)(prediction[:1], y[:1]).standard_error is None


@pytest.mark.parametrize("metric", [i.pit, i.pit_histogram, *map(registered, NAMES)])
def test_bad_input_is_refused(metric):
    prediction, y = draw()
    with pytest.raises(ValueError, match=r"39 target\(s\) for 40"):
        metric(prediction, y[:39])
    with pytest.raises(ValueError, match="must be finite"):
        metric(prediction, y * math.nan)
    with pytest.raises(ValueError, match=r"2 dimension\(s\), got 1"):
        metric(prediction, y[:, :1])
    with pytest.raises(ValueError, match="0 examples"):
        metric(prediction[:0], y[:0])
    with pytest.raises(ValueError, match="scores predicted densities, got a Categorical"):
        metric(CategoricalPrediction(torch.zeros(1, 4, 2).log_softmax(-1)), y[:4])


def test_bad_input_of_widths_is_refused():
    with pytest.raises(ValueError, match="0 examples"):
        i.width(draw()[0][:0], 0.9)
    with pytest.raises(ValueError, match="scores predicted densities, got a Categorical"):
        i.width(CategoricalPrediction(torch.zeros(1, 4, 2).log_softmax(-1)), 0.9)
