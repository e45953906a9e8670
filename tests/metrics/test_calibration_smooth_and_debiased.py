"""Calibration errors without the bias of bins, against a dense twin, by hand and over many sets."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from polymode.metrics import calibration as k
from polymode.metrics.calibration import smooth_calibration_error
from polymode.metrics.score import NotDefined

from .made_up import binary, simulate

# --- smooth -------------------------------------------------------------------------------------


def dense_smooth_error(confidence, correct, points=4000):
    """The fixed point by bisection; kernel sums over examples and their mirror images."""
    t = (np.arange(points) + 0.5) / points
    images = np.concatenate([2 * m + s * confidence for m in range(-2, 3) for s in (1, -1)])
    residual = np.tile(correct - confidence, 10) / len(confidence)

    def error(sigma):
        kernel = np.exp(-0.5 * ((t[:, None] - images) / sigma) ** 2)
        return np.abs(kernel @ residual).mean() / (sigma * math.sqrt(2 * math.pi))

    low, high = 0.0, 1.0
    for _ in range(16):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if error(middle) > middle else (low, middle)
    return 0.5 * (low + high)


@pytest.mark.parametrize(
    "accuracy",
    [lambda c: c, np.square, lambda c: 1 - c, lambda c: 0 * c, lambda c: c + 0.1 * np.sin(30 * c)],
)
def test_smooth_ece_equals_a_dense_twin(accuracy):
    rng = np.random.default_rng(6)
    confidence = np.append(rng.uniform(0.02, 1, 48), [0.0, 1.0])
    correct = (rng.random(50) < accuracy(confidence)).astype(float)
    found = smooth_calibration_error(torch.from_numpy(confidence), torch.from_numpy(correct))
    assert found == pytest.approx(dense_smooth_error(confidence, correct), rel=1e-3, abs=2e-5)


@pytest.mark.parametrize("gap", [0.001, 0.03, 0.4, 1.0])
def test_smooth_ece_of_a_gap_of_one_sign_is_the_gap(gap):
    """No kernel changes the integral of a residual of one sign; reflected, none of it is lost."""
    confidence = torch.linspace(gap, 1, 50, dtype=torch.float64)
    found = smooth_calibration_error(confidence, confidence - gap)
    assert found == pytest.approx(gap, rel=1e-3)


def test_smooth_ece_changes_little_where_ece_jumps():
    """200 right and 100 wrong, all with confidence 2/3, on the same side of an edge or a hair to
    either side of it: the ECE goes from nothing to 4/9."""
    edge, hits = 10 / 15, [1] * 200 + [0] * 100
    near, far = (binary([edge + 1e-9] * 200 + [edge + s] * 100, hits) for s in (1e-9, -1e-9))
    assert k.ece(*near).value < 1e-6
    assert k.ece(*far).value > 0.4
    assert k.smooth_ece(*far).value == pytest.approx(k.smooth_ece(*near).value, abs=1e-4)


def test_smooth_ece_of_certain_and_right_is_zero():
    assert k.smooth_ece(*binary([1.0] * 5, [1] * 5)).value == 0


# --- debiased -----------------------------------------------------------------------------------


def test_debiased_ece_by_hand():
    """Two bins of two: .6 .6 with 1 0, .9 .9 with 0 0: (.01 - .25/1) / 2 + (.81 - 0) / 2."""
    prediction, labels = binary([0.6, 0.6, 0.9, 0.9], [1, 0, 0, 0])
    value = k.debiased_ece(prediction, labels, num_bins=2).value
    assert value == pytest.approx(math.sqrt((0.01 - 0.25 + 0.81) / 2), rel=1e-9)


def test_debiased_ece_is_cut_at_zero_and_leaves_single_examples_out():
    assert k.debiased_ece(*binary([0.6, 0.6], [1, 0])).value == 0
    with_single, labels = binary([0.6, 0.6, 0.9], [0, 0, 0])
    value = k.debiased_ece(with_single, labels, num_bins=2).value
    assert value == pytest.approx(math.sqrt(0.36 * 2 / 3), rel=1e-9)


def test_debiased_ece_needs_a_bin_of_two():
    with pytest.raises(NotDefined, match="needs a bin with >= 2 examples, got 1 in 15 bins"):
        k.debiased_ece(*binary([0.6], [1]))


def test_debiased_ece_of_a_calibrated_predictor_is_near_zero():
    """E is near N(0, s) with s = sqrt(2 / 15) v / (n / 15) < 2e-5 at n = 100,000: the bound
    0.02^2 is 20 s away."""
    rng = np.random.default_rng(2)
    prediction, labels = binary(*simulate(100_000, lambda c: c, rng))
    assert k.debiased_ece(prediction, labels).value < 0.02


def test_debiased_square_is_unbiased_where_the_plain_one_is_not():
    """Gap .2 everywhere, 300 examples, 400 sets: the mean square is within 4 standard errors of
    .04 (p < 1e-4), the plain one more than 4 above. No set comes near the cut at zero."""
    rng, squares, plain = np.random.default_rng(7), [], []
    for _ in range(400):
        confidence, hit = simulate(300, lambda c: c - 0.2, rng)
        value = k.debiased_ece(*binary(confidence, hit)).value
        assert value > 0
        squares.append(value**2)
        bins = k.reliability_bins(torch.from_numpy(confidence), torch.from_numpy(hit), 15, "mass")
        plain.append((bins.count * (bins.accuracy - bins.confidence) ** 2).sum().item() / 300)
    error = np.std(squares) / 20
    assert abs(np.mean(squares) - 0.04) < 4 * error
    assert np.mean(plain) - 0.04 > 4 * error
