"""How well an ECE is known: its standard error, and its interval."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from polymode.metrics import calibration as k
from polymode.metrics.score import NotDefined

from .made_up import binary, draw, simulate

# --- standard error -----------------------------------------------------------------------------


def test_standard_error_equals_that_of_resampled_examples():
    """Against 4,000 true resamples of 300 examples; the ratio has a standard deviation of
    sqrt(1 / 1,000 + 1 / 8,000) = 0.034, and 15 % fails with p < 1e-5."""
    rng = np.random.default_rng(4)
    confidence, hit = simulate(300, lambda c: c - 0.1, rng)
    prediction, labels = binary(confidence, hit)
    edges = np.linspace(0, 1, 16)[1:-1]
    which, gap = np.searchsorted(edges, confidence), hit - confidence
    rows = rng.integers(300, size=(4000, 300))
    cells = which[rows] + 15 * np.arange(4000)[:, None]
    sums = np.bincount(cells.ravel(), gap[rows].ravel(), 15 * 4000).reshape(4000, 15)
    expected = np.abs(sums / 300).sum(1).std(ddof=1)
    assert k.ece(prediction, labels).standard_error == pytest.approx(expected, rel=0.15)


def test_standard_error_is_the_spread_over_data_sets():
    """Over 300 sets of 1,000 examples with errors far above the noise: the standard deviation is
    known to 4 %, the mean standard error to 0.4 %; 20 % fails with p < 1e-5."""
    rng = np.random.default_rng(5)
    scores = [k.ece(*binary(*simulate(1000, np.square, rng))) for _ in range(300)]
    spread = np.std([score.value for score in scores], ddof=1)
    assert np.mean([score.standard_error for score in scores]) == pytest.approx(spread, rel=0.2)


def test_standard_error_where_only_confidences_vary():
    """All right and in the last bin: 1 - mean confidence, whose error is known; 500 resamples know
    theirs to 3.2 %, and 15 % fails with p < 1e-5."""
    confidence = np.linspace(0.95, 1, 200)
    score = k.ece(*binary(confidence, [1] * 200))
    assert score.value == pytest.approx(0.025, rel=1e-9)
    assert score.standard_error == pytest.approx(confidence.std() / math.sqrt(200), rel=0.15)


def test_standard_error_does_not_depend_on_global_streams():
    prediction, labels = draw(2, 40, 3)
    torch.manual_seed(1)
    first = k.ece(prediction, labels)
    torch.manual_seed(2)
    assert k.ece(prediction, labels) == first
    assert k.ece(prediction[0], labels[:1]).standard_error is None


# --- interval -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("accuracy", "truth"),
    [(lambda c: c, 0.0), (lambda c: c - 0.05, 0.05), (np.square, 1 / 6)],
    ids=["calibrated", "near the noise", "far from calibrated"],
)
def test_interval_holds_the_true_binned_error(accuracy, truth):
    """500 examples, level 0.95; over 4,000 sets each the coverage was 0.972, 0.928 and 0.947. At
    0.928, fewer than 168 of 200 have probability 7e-6. Percentiles of the plain bootstrap never
    hold 0."""
    rng = np.random.default_rng(8)
    held = 0
    for _ in range(200):
        prediction, labels = binary(*simulate(500, accuracy, rng))
        found = k.ece_interval(prediction, labels, num_resamples=200)
        held += found.low <= truth <= found.high
    assert held >= 168


def test_interval_is_ordered_below_ece_and_reproducible():
    prediction, labels = binary(*simulate(400, lambda c: c - 0.1, np.random.default_rng(9)))
    found = k.ece_interval(prediction, labels)
    assert 0 < found.low < found.value < found.high < 1
    assert found.value < k.ece(prediction, labels).value
    assert (found.n, found.level) == (400, 0.95)
    assert k.ece_interval(prediction, labels) == found
    assert k.ece_interval(prediction, labels, seed=1) != found
    narrow = k.ece_interval(prediction, labels, level=0.5)
    assert found.low < narrow.low < narrow.high < found.high


def test_interval_inverts_what_it_says():
    """At each end the ECE seen is the quantile of the ECEs that the resamples have around it."""
    rng = np.random.default_rng(10)
    prediction, labels = binary(*simulate(400, lambda c: np.where(c > 14 / 15, c - 0.4, c), rng))
    found = k.ece_interval(prediction, labels, level=0.9)
    confidence, hit = prediction.confidence, (prediction.classes == labels).double()
    bins = (confidence * 15).ceil().long() - 1
    gaps, resampled = k._resample(confidence, hit, bins, 15, 1000, seed=0)
    np.testing.assert_allclose(gaps, torch.bincount(bins, hit - confidence, 15) / 400, atol=1e-12)
    noise, seen = resampled - gaps, k.ece(prediction, labels).value
    kept = np.zeros(15)
    for b in gaps.nonzero()[0]:
        kept[b] = gaps[b] * max(0, 1 - noise[:, b].var() / gaps[b] ** 2)
    for t, direction, q in (
        (found.low, kept, 0.95),
        (found.value, gaps, 0.5),
        (found.high, gaps, 0.05),
    ):
        around = np.abs(t * direction / np.abs(direction).sum() + noise).sum(1)
        assert 0 < t < seen + 0.1
        assert np.mean(around < seen) == pytest.approx(q, abs=0.0021)


def test_interval_of_certain_and_right_is_zero():
    assert k.ece_interval(*binary([1.0] * 9, [1] * 9))[:3] == (0, 0, 0)


def test_interval_of_a_constant_gap_has_the_normal_width():
    """One bin, 400 of confidence .8, right .6: sd sqrt(.24 / 400) = .0245, so .2 -+ .048."""
    found = k.ece_interval(*binary([0.8] * 400, [1] * 240 + [0] * 160), num_resamples=4000)
    np.testing.assert_allclose([found.low, found.value, found.high], [0.152, 0.2, 0.248], atol=4e-3)


def test_interval_refuses_bad_input():
    prediction, labels = draw(2, 5, 3)
    with pytest.raises(ValueError, match=r"`level` of ece_interval must be in \(0, 1\), got 95"):
        k.ece_interval(prediction, labels, level=95)
    with pytest.raises(ValueError, match="`num_resamples` must be an integer of at least 100"):
        k.ece_interval(prediction, labels, num_resamples=10)
    with pytest.raises(NotDefined, match="needs >= 2 examples"):
        k.ece_interval(prediction[0], labels[:1])
