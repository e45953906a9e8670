"""Log-density, coverage and calibration of posteriors over images against closed forms."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from polymode.core.rng import generator
from polymode.tomography.operator import LinearOperator
from polymode.tomography.reconstruction import ImagePosterior, Reconstruction, image_posteriors
from polymode.tomography.scores import (
    calibration,
    coverage,
    coverage_error,
    image_noise,
    log_density,
    patches,
)


@pytest.fixture
def case():
    """A posterior of 5 x 4 pixels with a covariance, and a draw of it."""
    root = torch.randn(20, 20, generator=generator(0), dtype=torch.float64) / 4
    covariance = root @ root.T + 0.01 * torch.eye(20, dtype=torch.float64)
    mean = torch.randn(20, generator=generator(1), dtype=torch.float64)
    truth = mean + torch.linalg.cholesky(covariance) @ torch.randn(
        20, generator=generator(2), dtype=torch.float64
    )
    posterior = ImagePosterior((5, 4), mean, covariance.diagonal(), covariance=covariance)
    return posterior, truth.view(5, 4)


@pytest.mark.parametrize("side", [1, 2, 5])
def test_log_density_is_that_of_a_gaussian_a_patch(case, side) -> None:
    from scipy.stats import multivariate_normal

    posterior, truth = case
    total, floor = 0.0, 1e-3
    for places in patches((5, 4), side):
        own = posterior.covariance[places][:, places].numpy()
        own = 0.5 * (own + np.diag(np.diag(own))) + floor * np.eye(len(own))
        mean = posterior.mean[places].numpy()
        total += multivariate_normal(mean, own).logpdf(truth.flatten()[places].numpy())
    found = log_density(posterior, truth, side=side, floor=floor)
    assert found == pytest.approx(total / 20)


def test_log_density_of_some_pixels(case) -> None:
    """The pixels of two halves, weighed by their counts, are all of them."""
    posterior, truth = case
    left = torch.arange(4).expand(5, 4) < 1
    halves = [log_density(posterior, truth, where=where) for where in (left, ~left)]
    assert 0.25 * halves[0] + 0.75 * halves[1] == pytest.approx(log_density(posterior, truth))
    with pytest.raises(ValueError, match="`where` chooses pixels, so it needs side=1, got side=2"):
        log_density(posterior, truth, side=2, where=left)


@pytest.mark.parametrize("number", [3, 100])
def test_image_noise_is_the_mean_diagonal_of_the_pseudo_inverse(number) -> None:
    matrix = torch.randn(12, 20, generator=generator(0), dtype=torch.float64)
    found = image_noise(LinearOperator.from_matrix(matrix, (5, 4)), 0.09, number)
    _, values, right = np.linalg.svd(matrix.numpy(), full_matrices=False)
    kept = right[:number]
    inverse = kept.T @ np.diag(values[: len(kept)] ** -2.0) @ kept
    assert found == pytest.approx(0.09 * np.diag(inverse).mean(), rel=1e-6)


def test_patches_cover_every_pixel_once() -> None:
    places = torch.cat(patches((5, 7), 3))
    assert sorted(places.tolist()) == list(range(35))


def test_samples_and_covariance_are_scored_alike(case) -> None:
    """40,000 samples of the same Gaussian: the log-density agrees to a hundredth of a nat."""
    posterior, truth = case
    root = torch.linalg.cholesky(posterior.covariance)
    noise = torch.randn(40_000, 20, generator=generator(3), dtype=torch.float64)
    samples = (posterior.mean + noise @ root.T).view(-1, 1, 1, 5, 4)
    (drawn,) = image_posteriors(Reconstruction.from_samples(samples))
    for side in (1, 2):
        exact, sampled = (log_density(each, truth, side=side) for each in (posterior, drawn))
        assert sampled == pytest.approx(exact, abs=0.05)


def test_coverage_of_calibrated_and_of_too_narrow_posteriors() -> None:
    """10,000 pixels: five standard errors of a share are at most 0.025."""
    mean = torch.zeros(10_000, dtype=torch.float64)
    truth = 0.3 * torch.randn(100, 100, generator=generator(4), dtype=torch.float64)
    right, narrow = (
        ImagePosterior((100, 100), mean, torch.full_like(mean, v)) for v in (0.09, 0.0225)
    )
    assert coverage(right, truth) == pytest.approx([0.5, 0.9, 0.95], abs=0.025)
    assert coverage(narrow, truth)[1] == pytest.approx(0.589, abs=0.025)  # 2 Φ(1.645 / 2) − 1
    assert coverage_error(right, truth) < 0.02 < 0.15 < coverage_error(narrow, truth)
    assert log_density(right, truth) > log_density(narrow, truth)


def test_calibration_bins_pixels_by_predicted_deviation() -> None:
    """Errors twice as large as predicted; 500 pixels a bin, five standard errors."""
    spread = torch.linspace(0.1, 1.0, 5000).double()
    truth = 2 * spread * torch.randn(5000, generator=generator(5), dtype=torch.float64)
    posterior = ImagePosterior((50, 100), torch.zeros(5000).double(), spread.square())
    found = calibration([posterior], [truth.view(50, 100)])
    assert len(found.predicted) == 10 and (np.diff(found.predicted) > 0).all()
    np.testing.assert_allclose(found.actual / found.predicted, 2.0, atol=2 * 5 / np.sqrt(1000))


def test_a_bin_predicts_the_root_of_its_mean_variance() -> None:
    """Of pixels of two images that are pooled, unequal within a bin; the floor is a variance."""
    variances = torch.tensor([[1.0, 16.0], [4.0, 25.0]]).double()
    posteriors = [ImagePosterior((1, 2), torch.zeros(2).double(), each) for each in variances]
    truths = [torch.tensor([[3.0, 0.0]]), torch.tensor([[1.0, 6.0]])]
    found = calibration(posteriors, truths, bins=2, floor=0.5)
    np.testing.assert_allclose(found.predicted, [3.0**0.5, 21.0**0.5])
    np.testing.assert_allclose(found.actual, [5.0**0.5, 18.0**0.5])


def test_truth_of_another_shape_is_refused(case) -> None:
    with pytest.raises(ValueError, match=r"must have the shape \(5, 4\) of the image, got \(4, 5"):
        log_density(case[0], case[1].T)
