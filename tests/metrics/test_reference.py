"""Agreement, total variation, W1 and W2 against closed forms and scipy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.stats import wasserstein_distance

from polymode.metrics.reference import agreement, total_variation, w1, w1_top, w2
from polymode.prediction import CategoricalPrediction, MixturePrediction


def gaussians(loc: list[float], scale: list[float], **more) -> MixturePrediction:
    """One sample each, B inputs."""
    return MixturePrediction(torch.tensor(loc)[None, :, None], torch.tensor(scale)[None, :, None])


def test_classes_by_hand() -> None:
    """The mixture counts, not the samples: two of three inputs have the same class."""
    probs = torch.tensor(
        [[[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]], [[0.7, 0.3], [0.4, 0.6], [0.6, 0.4]]]
    )
    other = torch.tensor([[0.5, 0.5], [0.3, 0.7], [0.1, 0.9]])
    mine, theirs = (CategoricalPrediction.from_probs(p) for p in (probs, other))
    assert agreement(mine, theirs).value == pytest.approx(2 / 3)
    score = total_variation(mine, theirs)
    assert score.each.tolist() == pytest.approx([0.3, 0.0, 0.5], abs=1e-6)
    assert score.n == 3
    assert total_variation(mine, mine).value == 0


def test_spreads_of_the_top_class_against_scipy() -> None:
    """W1 of 7 and 11 samples of a probability, for each of five inputs; a shift is its size, and
    samples that are repeated change nothing."""
    stream = torch.Generator().manual_seed(0)
    ours, theirs = (
        CategoricalPrediction(torch.randn(n, 5, 3, generator=stream).double().log_softmax(-1))
        for n in (7, 11)
    )
    top = theirs.mean.argmax(1)
    expected = [
        wasserstein_distance(*(side.log_probs[:, row, top[row]].exp() for side in (ours, theirs)))
        for row in range(5)
    ]
    np.testing.assert_allclose(w1_top(ours, theirs).each.numpy(), expected, rtol=1e-6)
    twice = CategoricalPrediction(ours.log_probs.repeat(2, 1, 1))
    assert w1_top(ours, twice).value < 1e-12 < w1_top(ours, theirs).value
    one, other = (CategoricalPrediction.from_probs(torch.tensor([[p, 1 - p]])) for p in (0.7, 0.9))
    assert w1_top(one, other).value == pytest.approx(0.2, abs=1e-6)


def test_two_gaussians_have_closed_forms() -> None:
    """W2² = (μ − μ*)² + (σ − σ*)²; W1 = |μ − μ*| for equal scales, and |σ − σ*| √(2/π) for equal
    locations; each within 1 % of the smaller scale."""
    mine = gaussians([0.0, 1.0, 0.0, 2.0], [1.0, 0.5, 1.0, 3.0])
    theirs = gaussians([0.7, 1.0, 0.0, -4.0], [1.0, 2.0, 1.0, 0.2])
    expected = np.sqrt([0.49, 2.25, 0.0, 36 + 2.8**2])
    error = 0.01 * np.array([1.0, 0.5, 1.0, 0.2])
    assert (np.abs(w2(mine, theirs).each.numpy() - expected) < error).all()
    first = w1(mine, theirs).each.numpy()
    assert abs(first[0] - 0.7) < 0.01
    assert abs(first[1] - 1.5 * (2 / np.pi) ** 0.5) < 0.005
    assert first[2] < 1e-12


def test_mixtures_against_samples_of_scipy() -> None:
    """W1 of mixtures of 40 and 25 components of very different width, two outputs, against 200,000
    samples, whose own W1 has an error of about 1 %."""
    stream = torch.Generator().manual_seed(0)
    predictions = [
        MixturePrediction(
            torch.randn(number, 2, 2, generator=stream) * 2,
            torch.rand(number, 2, 2, generator=stream) ** 3 + 0.01,
        )
        for number in (40, 25)
    ]
    expected = np.zeros((2, 2))
    rng = np.random.default_rng(0)
    for row in range(2):
        for column in range(2):
            samples = []
            for each in predictions:
                chosen = rng.integers(each.num_samples, size=200_000)
                loc, scale = (t[:, row, column].numpy()[chosen] for t in (each.loc, each.scale))
                samples.append(loc + scale * rng.standard_normal(200_000))
            expected[row, column] = wasserstein_distance(*samples)
    np.testing.assert_allclose(w1(*predictions).each.numpy(), expected.mean(1), rtol=0.03)
    assert w2(*predictions).value >= w1(*predictions).value


@pytest.mark.parametrize("df", [3.0, 8.0])
def test_student_t_and_gaussian_of_one_scale_are_apart(df) -> None:
    """W1 = ∫ |F_t − Φ| dy of scipy's distribution functions within six scales, as in the metric;
    the two differ in `df` alone, in either order, with several components."""
    y = np.linspace(-6, 6, 200_001)
    for loc, scale in ((0.0, 1.0), (2.0, 0.3)):
        expected = scale * np.trapezoid(np.abs(stats.t.cdf(y, df) - stats.norm.cdf(y)), y)
        gaussian = gaussians([loc] * 2, [scale] * 2)
        heavy = MixturePrediction(gaussian.loc, gaussian.scale, df=df)
        assert expected > 0.03 * scale
        for pair in ((gaussian, heavy), (heavy, gaussian)):
            np.testing.assert_allclose(w1(*pair).each.numpy(), expected, rtol=0.02)
            assert (w2(*pair).each > w1(*pair).each).all()
        assert w1(heavy, heavy).value == 0


def test_what_cannot_be_compared_is_refused() -> None:
    classes = CategoricalPrediction.from_probs(torch.tensor([[0.5, 0.5]]))
    density = gaussians([0.0], [1.0])
    with pytest.raises(ValueError, match="takes predictions of classes; of densities use `w1`"):
        agreement(density, density)
    with pytest.raises(ValueError, match="takes predictions of densities; of classes use `agree"):
        w1(classes, classes)
    with pytest.raises(ValueError, match=r"same inputs, got \(1, 1\) and \(2, 1\)"):
        w2(density, gaussians([0.0, 1.0], [1.0, 1.0]))
