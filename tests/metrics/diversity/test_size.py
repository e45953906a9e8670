"""Curves over the number of members: all subsets by hand, the draws, and the equivalent."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polymode.metrics import classification, regression
from polymode.metrics.diversity import SizeCurve, deep_ensemble_equivalent, ensemble_size_curve
from polymode.prediction import CategoricalPrediction, MixturePrediction


def draw(samples, batch=30, classes=4, seed=0):
    stream = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(samples, batch, classes, generator=stream, dtype=torch.float64)
    labels = torch.randint(classes, (batch,), generator=stream)
    return CategoricalPrediction.from_logits(logits), labels


def test_by_hand():
    """Members give the label 1/2, 1/4, 1/8: pairs 3/8, 5/16, 3/16, all 7/24."""
    probs = torch.tensor([[[p, 1 - p]] for p in (0.5, 0.25, 0.125)], dtype=torch.float64)
    curve = ensemble_size_curve(CategoricalPrediction.from_probs(probs), torch.tensor([0]))
    log = math.log
    expected = [log(4), -(log(3 / 8) + log(5 / 16) + log(3 / 16)) / 3, -log(7 / 24)]
    np.testing.assert_allclose(curve.mean, expected, rtol=1e-12)
    assert curve.sizes == (1, 2, 3) and curve.num_subsets == (3, 3, 1)
    assert curve.standard_error == (0.0, 0.0, 0.0)
    assert (curve.metric, curve.direction) == ("nll", "down")


@pytest.mark.parametrize("metric", ["nll", "accuracy", "brier"])
def test_all_subsets_and_the_whole_are_exact(metric):
    prediction, labels = draw(5)
    curve = ensemble_size_curve(prediction, labels, metric, num_subsets=10)
    score = classification.CLASSIFICATION.get(metric).value
    for size, mean in zip(curve.sizes, curve.mean, strict=True):
        parts = [prediction.log_probs[list(subset)] for subset in combinations(range(5), size)]
        values = [score(CategoricalPrediction(part), labels).value for part in parts]
        assert mean == pytest.approx(np.mean(values), rel=1e-12)
    assert curve.mean[-1] == pytest.approx(score(prediction, labels).value, rel=1e-12)


def test_members_are_modes_with_all_their_samples():
    """6 samples: as 3 modes of 2, subsets are whole modes; as samples, any of the 6."""
    prediction, labels = draw(6)
    modes = CategoricalPrediction(prediction.log_probs, num_modes=3)
    curve = ensemble_size_curve(modes, labels)
    assert curve.sizes == (1, 2, 3) and curve.num_subsets == (3, 3, 1)
    alone = [
        classification.nll(CategoricalPrediction(prediction.log_probs[2 * m : 2 * m + 2]), labels)
        for m in range(3)
    ]
    assert curve.mean[0] == pytest.approx(np.mean([score.value for score in alone]), rel=1e-12)
    samples = ensemble_size_curve(modes, labels, members="samples")
    assert samples == ensemble_size_curve(prediction, labels) and samples.sizes[-1] == 6
    assert ensemble_size_curve(modes, None, "disagreement").sizes == (1, 2, 3)
    single = CategoricalPrediction(prediction.log_probs, num_modes=1)
    assert ensemble_size_curve(single, labels).sizes == (1,)
    with pytest.raises(ValueError, match="'modes' or 'samples', got 'networks'"):
        ensemble_size_curve(modes, labels, members="networks")


def test_one_mode_with_an_epistemic_share_has_an_epistemic_part():
    prediction = MixturePrediction(torch.zeros(3, 5, 1), 1.0, epistemic=0.75)
    curve = ensemble_size_curve(prediction, None, "epistemic_std")
    assert curve.sizes == (1, 2, 3) and curve.mean[0] == pytest.approx(0.75**0.5)


def test_regression():
    stream = torch.Generator().manual_seed(0)
    loc = torch.randn(4, 20, 2, generator=stream, dtype=torch.float64)
    scale = torch.rand(4, 20, 2, generator=stream, dtype=torch.float64) + 0.5
    targets = torch.randn(20, 2, generator=stream, dtype=torch.float64)
    for df in (None, 5.0):
        curve = ensemble_size_curve(MixturePrediction(loc, scale, df), targets, "nll")
        singles = [
            regression.nll(MixturePrediction(loc[[k]], scale[[k]], df), targets).value
            for k in range(4)
        ]
        assert curve.mean[0] == pytest.approx(np.mean(singles), rel=1e-12)
    assert ensemble_size_curve(MixturePrediction(loc, scale), targets, "rmse").sizes == (1, 2, 3, 4)


def test_draws_are_fixed_by_the_seed_distinct_and_their_error_is_that_of_a_finite_population():
    prediction, labels = draw(9)
    first = ensemble_size_curve(prediction, labels, sizes=[4], num_subsets=15, seed=1)
    assert first == ensemble_size_curve(prediction, labels, sizes=[4], num_subsets=15, seed=1)
    assert first != ensemble_size_curve(prediction, labels, sizes=[4], num_subsets=15, seed=2)
    everything = ensemble_size_curve(prediction, labels, sizes=[4], num_subsets=10**4)
    assert everything.num_subsets == (126,) and everything.standard_error == (0.0,)
    nearly = ensemble_size_curve(prediction, labels, sizes=[4], num_subsets=125)
    values = [
        classification.nll(CategoricalPrediction(prediction.log_probs[list(s)]), labels).value
        for s in combinations(range(9), 4)
    ]
    spread = np.std(values, ddof=1)
    assert nearly.standard_error[0] == pytest.approx(
        math.sqrt((1 - 125 / 126) / 125) * spread, rel=0.05
    )
    assert abs(nearly.mean[0] - everything.mean[0]) < 10 * spread / 126


def test_standard_error_covers():
    """The mean of 20 subsets is within 3 standard errors of that of all 120, in 36 of 40 draws.

    By t with 19 degrees of freedom one draw in 136 misses; 5 or more of 40 do by chance once in
    80,000. The seeds are fixed.
    """
    prediction, labels = draw(10, batch=10)
    truth = ensemble_size_curve(prediction, labels, sizes=[3], num_subsets=120).mean[0]
    misses = 0
    for seed in range(40):
        curve = ensemble_size_curve(prediction, labels, sizes=[3], seed=seed)
        misses += abs(curve.mean[0] - truth) > 3 * curve.standard_error[0]
    assert misses <= 4


def test_default_sizes():
    prediction, labels = draw(40, batch=3)
    curve = ensemble_size_curve(prediction, labels, num_subsets=2)
    assert curve.sizes[0] == 1 and curve.sizes[-1] == 40 and len(curve.sizes) <= 16
    assert list(curve.sizes) == sorted(set(curve.sizes))
    pairs = ensemble_size_curve(draw(4)[0], None, "disagreement")
    assert pairs.sizes == (2, 3, 4) and pairs.direction == ""
    assert len(set(np.round(pairs.mean, 12))) == 1  # a mean over pairs does not depend on k


def test_impossible_labels_of_a_subset_count_much_and_are_not_nan():
    probs = torch.tensor([[[0.0, 1.0]]] * 2 + [[[0.5, 0.5]]] * 8, dtype=torch.float64)
    prediction = CategoricalPrediction.from_probs(probs)
    curve = ensemble_size_curve(prediction, torch.tensor([0]), sizes=[2, 10], num_subsets=44)
    assert 1.0 < curve.mean[0] < 745.2 / 44 + 1.5
    assert math.isfinite(curve.standard_error[0])
    assert curve.mean[1] == pytest.approx(-math.log(0.4))


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 8), st.integers(0, 10**6))
def test_an_ensembles_own_curve_gives_back_its_sizes(samples, seed):
    """The NLL of the mean falls with every member (Jensen), so k networks are worth k."""
    prediction, labels = draw(samples, seed=seed)
    curve = ensemble_size_curve(prediction, labels, num_subsets=100)
    for size, mean in zip(curve.sizes, curve.mean, strict=True):
        assert deep_ensemble_equivalent(curve, mean) == pytest.approx(size, abs=1e-6)


def curve_of(mean, direction="down", sizes=None) -> SizeCurve:
    sizes = sizes or tuple(range(1, len(mean) + 1))
    return SizeCurve("nll", direction, sizes, tuple(mean), (0.0,) * len(mean), (1,) * len(mean))


def test_equivalent_by_hand():
    down = curve_of([1.0, 0.8, 0.7])
    assert deep_ensemble_equivalent(down, 0.9) == pytest.approx(1.5)
    assert deep_ensemble_equivalent(down, 0.725) == pytest.approx(2.75)
    assert deep_ensemble_equivalent(down, 5.0) == 1.0
    assert deep_ensemble_equivalent(down, 0.69) == math.inf
    up = curve_of([0.5, 0.7, 0.8], "up", (1, 5, 10))
    assert deep_ensemble_equivalent(up, 0.6) == pytest.approx(3.0)
    assert deep_ensemble_equivalent(up, 0.81) == math.inf
    assert deep_ensemble_equivalent(up, 0.2) == 1.0


def test_equivalent_takes_the_first_crossing_and_bears_infinity():
    turning = curve_of([1.0, 0.8, 0.9, 0.7])
    assert deep_ensemble_equivalent(turning, 0.85) == pytest.approx(1.75)
    assert deep_ensemble_equivalent(turning, 0.75) == pytest.approx(3.75)
    assert deep_ensemble_equivalent(curve_of([math.inf, 0.8]), 0.9) == 2.0
    assert deep_ensemble_equivalent(turning, math.inf) == 1.0


def test_bad_input_is_refused():
    prediction, labels = draw(4)
    for changes, message in [
        ({"metric": "nl"}, "Did you mean 'nll'"),
        ({"sizes": [5]}, "from 1 to 4, got 5"),
        ({"sizes": [0]}, "from 1 to 4, got 0"),
        ({"sizes": []}, "empty"),
        ({"num_subsets": 1}, "at least 2"),
        ({"metric": "disagreement", "sizes": [1]}, "from 2 to 4, got 1"),
    ]:
        with pytest.raises(ValueError, match=message):
            ensemble_size_curve(prediction, labels, **changes)
    with pytest.raises(ValueError, match="at least 2 samples, got 1"):
        ensemble_size_curve(draw(1)[0], labels, "disagreement")
    with pytest.raises(ValueError, match="does not score"):
        deep_ensemble_equivalent(curve_of([1.0], ""), 1.0)
    with pytest.raises(ValueError, match="nan"):
        deep_ensemble_equivalent(curve_of([1.0]), math.nan)
