"""Calibration errors by hand and against plain twins, binned, smooth and debiased; how well an
ECE is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polymode.metrics import calibration as k
from polymode.metrics.calibration import smooth_calibration_error
from polymode.metrics.score import CLASSIFICATION, NotDefined
from polymode.prediction import CategoricalPrediction, MixturePrediction

from .made_up import binary, draw, of, simulate

ERRORS = [k.ece, k.adaptive_ece, k.classwise_ace, k.mce, k.smooth_ece, k.debiased_ece]


def coarse(batch: int, classes: int, seed: int):
    """Probabilities in tenths, so that many confidences are equal, and labels."""
    rng = np.random.default_rng(seed)
    probs = torch.from_numpy(rng.multinomial(10, np.full(classes, 1 / classes), size=batch) / 10)
    return of(probs), torch.from_numpy(rng.integers(classes, size=batch))


def plain_bins(values, num_bins, equal):
    """Return the bin of each value, one at a time, from the definition."""
    n = len(values)
    if equal == "width":
        edges = [b / num_bins for b in range(1, num_bins)]
    else:
        edges = [sorted(values)[math.ceil(b * n / num_bins) - 1] for b in range(1, num_bins)]
    return [sum(value > edge for edge in edges) for value in values]


def plain_error(values, hits, num_bins, equal):
    bins, total = plain_bins(values, num_bins, equal), 0.0
    for b in set(bins):
        inside = [i for i, own in enumerate(bins) if own == b]
        gap = np.mean([hits[i] for i in inside]) - np.mean([values[i] for i in inside])
        total += len(inside) / len(values) * abs(gap)
    return total


def test_bins_of_equal_width_by_hand():
    confidence = torch.tensor([0.0, 0.2, 0.25, 0.3, 0.9, 1.0], dtype=torch.float64)
    bins = k.reliability_bins(confidence, torch.tensor([0, 1, 1, 0, 1, 0]), num_bins=4)
    assert bins.count.tolist() == [3, 1, 0, 2]
    np.testing.assert_allclose(bins.confidence, [0.15, 0.3, 0.625, 0.95])
    np.testing.assert_allclose(bins.accuracy, [2 / 3, 0, 0.625, 0.5])
    np.testing.assert_allclose(bins.lower, [0, 0.25, 0.5, 0.75])
    np.testing.assert_allclose(bins.upper, [0.25, 0.5, 0.75, 1])


@pytest.mark.parametrize("num_bins", [5, 10, 15])
def test_lower_precision_falls_into_the_bins_of_float64(num_bins):
    """float32's 0.6 is 0.60000002: on the edge, which belongs to the bin below it."""
    edges = torch.arange(1, num_bins + 1, dtype=torch.float64) / num_bins
    hits = torch.ones(num_bins)
    exact = k.reliability_bins(edges, hits, num_bins)
    assert exact.count.tolist() == [1] * num_bins
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        assert k.reliability_bins(edges.to(dtype), hits, num_bins).count.tolist() == [1] * num_bins
    confidence = edges[edges > 0.5]
    probs = torch.stack([confidence, 1 - confidence], 1)
    labels = torch.arange(len(confidence)) % 2
    whole, half = (
        k.ece(CategoricalPrediction(probs.to(dtype).log()[None]), labels, num_bins).value
        for dtype in (torch.float64, torch.float32)
    )
    assert half == pytest.approx(whole, abs=1e-6)


def test_bins_of_equal_mass_by_hand():
    """Seven in three bins: ranks 3 and 5 close the first two; the tie at .5 stays together."""
    confidence = torch.tensor([0.9, 0.1, 0.5, 0.2, 0.5, 0.3, 0.7], dtype=torch.float64)
    correct = torch.tensor([True, False, True, True, False, True, True])
    bins = k.reliability_bins(confidence, correct, num_bins=3, equal="mass")
    assert bins.count.tolist() == [3, 2, 2]
    np.testing.assert_allclose(bins.confidence, [0.2, 0.5, 0.8])
    np.testing.assert_allclose(bins.accuracy, [2 / 3, 0.5, 1])
    np.testing.assert_allclose(bins.upper, [0.3, 0.5, 1])


def test_bins_of_equal_mass_where_all_are_equal():
    bins = k.reliability_bins(torch.full((10,), 0.7), torch.arange(10) < 4, 5, "mass")
    assert bins.count.tolist() == [10, 0, 0, 0, 0]
    assert torch.stack(bins[1:]).isfinite().all()
    assert bins.accuracy[0].item() == pytest.approx(0.4)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from([i / 20 for i in range(21)]), min_size=1, max_size=40),
    st.integers(1, 17),
    st.sampled_from(["width", "mass"]),
    st.integers(0, 10**6),
)
def test_bins_equal_a_plain_twin(values, num_bins, equal, seed):
    hits = np.random.default_rng(seed).random(len(values)) < 0.5
    confidence = torch.tensor(values, dtype=torch.float64)
    bins = k.reliability_bins(confidence, torch.from_numpy(hits), num_bins, equal)
    which = plain_bins(values, num_bins, equal)
    assert bins.count.tolist() == [which.count(b) for b in range(num_bins)]
    gap = (bins.count * (bins.accuracy - bins.confidence).abs()).sum() / len(values)
    assert gap.item() == pytest.approx(plain_error(values, hits, num_bins, equal), abs=1e-12)
    assert torch.equal(bins.lower[1:], bins.upper[:-1])
    full = bins.count > 0
    assert ((bins.lower <= bins.confidence) & (bins.confidence <= bins.upper + 1e-12))[full].all()


def test_bins_refuse_what_is_no_confidence():
    hit = torch.tensor([1, 0])
    for wrong in ([0.5, 1.2], [-0.1, 0.5], [float("nan"), 0.5]):
        with pytest.raises(ValueError, match=r"`confidence` must be in \[0, 1\], got .*1 of 2"):
            k.reliability_bins(torch.tensor(wrong), hit)
    with pytest.raises(ValueError, match="`correct` must be booleans"):
        k.reliability_bins(torch.tensor([0.5, 0.6]), torch.tensor([1, 3]))
    with pytest.raises(ValueError, match=r"must have one shape .* got \(0,\) and \(0,\)"):
        k.reliability_bins(torch.zeros(0), torch.zeros(0))
    with pytest.raises(ValueError, match="`equal` must be 'width' or 'mass', got 'size'"):
        k.reliability_bins(torch.tensor([0.5, 0.6]), hit, equal="size")


def test_ece_by_hand_with_two_bins():
    """Bin (0, .5]: none; (.5, 1]: confidences .6 .8 1, hits 1 0 1: |2/3 - .8|."""
    prediction, labels = binary([0.6, 0.8, 1.0], [1, 0, 1])
    assert k.ece(prediction, labels, num_bins=2).value == pytest.approx(0.8 - 2 / 3, rel=1e-9)


def test_ece_counts_confidence_one():
    """All confident, half wrong: the whole of it lies in the last bin, and must not be lost."""
    prediction, labels = binary([1.0] * 10, [1, 0] * 5)
    assert k.ece(prediction, labels).value == pytest.approx(0.5)


def test_ece_has_no_bin_beyond_the_last():
    """.95 right and 1 wrong share (.9, 1]: |.5 - .975|; in bins of their own they make .525."""
    prediction, labels = binary([0.95, 1.0], [1, 0])
    assert k.ece(prediction, labels, num_bins=10).value == pytest.approx(0.475, rel=1e-9)


def test_ece_bins_are_closed_on_the_right():
    """0.5 is in (0, .5], 0.75 in (.5, 1]: the gaps +.5 and -.75 do not cancel."""
    prediction = of([[0.5, 0.25, 0.25], [0.75, 0.25, 0.0]])
    value = k.ece(prediction, torch.tensor([0, 1]), num_bins=2).value
    assert value == pytest.approx((0.5 + 0.75) / 2)


def test_ece_is_of_the_mean_prediction():
    """Two certain members that disagree say 1/2, and are right half of the time: no error."""
    log_probs = torch.tensor([[[1.0, 0.0]] * 2, [[0.0, 1.0]] * 2]).log()
    prediction = CategoricalPrediction(log_probs)
    assert k.ece(prediction, torch.tensor([0, 1])).value == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("metric", [k.ece, k.adaptive_ece, k.classwise_ace, k.smooth_ece])
def test_errors_of_a_calibrated_predictor_are_near_zero(metric):
    """Labels drawn from the predicted probabilities. Mean |gap| of a bin is about sqrt(2 v / pi n);
    summed over 15 bins it is below 0.01 at n = 100,000; the bound 0.02 fails with p < 1e-6."""
    stream = torch.Generator().manual_seed(1)
    probs = torch.softmax(torch.randn(100_000, 4, generator=stream, dtype=torch.float64), 1)
    labels = torch.multinomial(probs, 1, generator=stream)[:, 0]
    assert metric(CategoricalPrediction(probs.log()[None]), labels).value < 0.02


@pytest.mark.parametrize("metric", [k.ece, k.adaptive_ece])
def test_errors_of_a_known_miscalibrated_predictor(metric):
    """Confidence c even on (.5, 1), right with c^2: E[c - c^2] = 1/6. At n = 200,000 the standard
    deviation is below 0.0011; the bound of 5 of them fails with p < 1e-6."""
    prediction, labels = binary(*simulate(200_000, np.square, np.random.default_rng(0)))
    score = metric(prediction, labels)
    assert score.value == pytest.approx(1 / 6, abs=0.0055)
    assert 0.0008 < score.standard_error < 0.0013


def test_adaptive_ece_without_ties_is_that_of_a_split_list():
    prediction, labels = draw(2, 90, 4)
    order = prediction.confidence.argsort()
    gap = (prediction.classes == labels).double() - prediction.confidence
    expected = sum(part.mean().abs().item() for part in gap[order].tensor_split(15)) / 15
    assert k.adaptive_ece(prediction, labels).value == pytest.approx(expected, rel=1e-12)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40), st.integers(2, 4), st.integers(0, 10**6))
def test_adaptive_ece_with_ties_equals_a_plain_twin(batch, classes, seed):
    prediction, labels = coarse(batch, classes, seed)
    hits = (prediction.classes == labels).double().tolist()
    expected = plain_error(prediction.confidence.tolist(), hits, 15, "mass")
    assert k.adaptive_ece(prediction, labels).value == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("metric", [k.ece, k.adaptive_ece, k.mce, k.smooth_ece])
def test_constant_confidence_leaves_one_gap(metric):
    """All say .8, 60 of 100 are right: the error is .2, in the adaptive bins as in the others."""
    prediction, labels = binary([0.8] * 100, [1] * 60 + [0] * 40)
    assert metric(prediction, labels).value == pytest.approx(0.2, abs=1e-6)


def test_classwise_ace_by_hand():
    """Two bins of two. Class 0: probabilities .1 .3 | .6 .9, labels 0 1 | 1 1: gaps .3 and .25;
    class 1 mirrors them."""
    prediction = of([[0.9, 0.1], [0.1, 0.9], [0.6, 0.4], [0.3, 0.7]])
    value = k.classwise_ace(prediction, torch.tensor([0, 1, 0, 0]), num_bins=2).value
    assert value == pytest.approx((0.3 + 0.25) / 2, rel=1e-12)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40), st.integers(2, 5), st.booleans(), st.integers(0, 10**6))
def test_classwise_ace_equals_a_plain_twin(batch, classes, ties, seed):
    prediction, labels = coarse(batch, classes, seed) if ties else draw(2, batch, classes, seed)
    expected = np.mean(
        [
            plain_error(prediction.mean[:, c].tolist(), (labels == c).double().tolist(), 15, "mass")
            for c in range(classes)
        ]
    )
    assert k.classwise_ace(prediction, labels).value == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_classwise_ace_of_lower_precision(dtype):
    prediction, labels = draw(3, 60, 4)
    lower = CategoricalPrediction(prediction.log_probs.to(dtype))
    value = k.classwise_ace(prediction, labels).value
    assert k.classwise_ace(lower, labels).value == pytest.approx(value, abs=0.02)


def test_mce_by_hand():
    """Bins (0, .5], (.5, 1] have |1 - .4| and |1/2 - .75|; the ECE is their weighted mean."""
    prediction = of([[0.4, 0.3, 0.3], [0.6, 0.4, 0.0], [0.9, 0.1, 0.0]])
    labels = torch.tensor([0, 0, 1])
    assert k.mce(prediction, labels, num_bins=2).value == pytest.approx(0.6)
    assert k.ece(prediction, labels, num_bins=2).value == pytest.approx((0.6 + 2 * 0.25) / 3)


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 40), st.integers(2, 5), st.booleans(), st.integers(0, 10**6))
def test_ranges_and_order(batch, classes, ties, seed):
    """All are in [0, 1], the ECE is at most the MCE; the order of the examples does not matter,
    whatever is tied, nor do the names of the classes."""
    prediction, labels = coarse(batch, classes, seed) if ties else draw(2, batch, classes, seed)
    rng = np.random.default_rng(seed)
    order = torch.from_numpy(rng.permutation(batch))
    shuffled = CategoricalPrediction(prediction.log_probs[:, order])
    assert k.ece(prediction, labels).value <= k.mce(prediction, labels).value + 1e-12
    for metric in ERRORS:
        try:
            value = metric(prediction, labels).value
        except NotDefined:
            continue
        assert 0 <= value <= 1
        assert metric(shuffled, labels[order]).value == pytest.approx(value, abs=1e-7)
    if not ties:  # of equally probable classes the first is named, whatever it is called
        names = torch.from_numpy(rng.permutation(classes))
        renamed = CategoricalPrediction(prediction.log_probs[:, :, names])
        for metric in (k.ece, k.adaptive_ece, k.classwise_ace, k.mce, k.smooth_ece):
            value = metric(prediction, labels).value
            assert metric(renamed, names.argsort()[labels]).value == pytest.approx(value, abs=1e-7)


@pytest.mark.parametrize("metric", [*ERRORS, k.ece_interval])
def test_bad_input_is_refused(metric):
    prediction, labels = draw(2, 5, 3)
    with pytest.raises(ValueError, match=r"4 label\(s\) for 5 prediction"):
        metric(prediction, labels[:4])
    with pytest.raises(ValueError, match="must be integers"):
        metric(prediction, labels.float())
    with pytest.raises(ValueError, match="out of range"):
        metric(prediction, labels + 9)
    with pytest.raises(ValueError, match="0 examples"):
        metric(prediction[:0], labels[:0])
    with pytest.raises(ValueError, match="scores class probabilities, got a MixturePrediction"):
        metric(MixturePrediction(torch.zeros(1, 5, 1), 1.0), labels)


@pytest.mark.parametrize("metric", [k.ece, k.adaptive_ece, k.classwise_ace, k.mce, k.debiased_ece])
def test_number_of_bins_is_checked(metric):
    prediction, labels = draw(2, 5, 3)
    with pytest.raises(ValueError, match="`num_bins` must be an integer of at least 1, got 0"):
        metric(prediction, labels, num_bins=0)
    for wrong in (2.5, 10**14):
        with pytest.raises(ValueError, match="`num_bins` of .* must be an integer of at most"):
            metric(prediction, labels, num_bins=wrong)


@pytest.mark.parametrize("metric", [k.ece, k.adaptive_ece, k.mce, k.smooth_ece])
def test_one_example(metric):
    assert metric(*binary([0.7], [0])).value == pytest.approx(0.7, rel=1e-6)
    assert metric(*binary([0.7], [0])).standard_error is None


def test_labels_of_one_class_only():
    """Always class 0, always said with .75: each error of the top class is .25; of class-wise bins
    too, as class 1 is said with .25 and never is."""
    prediction, labels = binary([0.75] * 30, [1] * 30)
    for metric in ERRORS:
        assert metric(prediction, labels).value == pytest.approx(0.25, rel=1e-5)


def test_rounding_above_one_is_no_confidence_above_one():
    """Predictions may be off normalisation by 1e-3, and sums in float32 are by 1e-7."""
    prediction, labels = of([[1.0005, 0.0]] * 40), torch.zeros(40, dtype=torch.int64)
    for metric in (k.ece, k.adaptive_ece, k.mce, k.smooth_ece, k.debiased_ece):
        assert metric(prediction, labels).value == 0
    assert k.classwise_ace(prediction, labels).value < 1e-3


def test_registered_with_their_words():
    names = ["ece", "adaptive_ece", "classwise_ace", "mce", "smooth_ece", "debiased_ece"]
    entries = [CLASSIFICATION.get(name) for name in names]
    assert [entry.value for entry in entries] == ERRORS
    ranks = [entry.metadata["rank"] for entry in entries]
    assert ranks == sorted(ranks)
    assert [entry.metadata["headline"] for entry in entries] == [True] + [False] * 5
    assert {entry.metadata["family"] for entry in entries} == {"calibration"}


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
