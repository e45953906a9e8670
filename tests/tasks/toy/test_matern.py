from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import Matern

from polymode.tasks import task
from polymode.tasks.toy.matern import OUTER, SPACING, matern_32


@pytest.fixture(scope="module")
def own():
    return task("matern", num_train=150)


def original(own, x: torch.Tensor) -> np.ndarray:
    return own.input_scaling.inverse(x.double()).numpy()


def test_posterior_against_scikit_learn(own):
    """In the units before standardising, with the kernel of scikit-learn."""
    twin = GaussianProcessRegressor(Matern(0.5, nu=1.5), alpha=0.15**2, optimizer=None)
    twin.fit(original(own, own.train.x), own.train.y.double().numpy()[:, 0])
    x = torch.cat([own.test.x, own.ood["gap"].x, own.ood["outside"].x])
    mean, std = twin.predict(original(own, x), return_std=True)
    got_mean, got_variance = own.exact.predict(x)
    np.testing.assert_allclose(got_mean[:, 0], mean, atol=1e-8)
    np.testing.assert_allclose(got_variance[:, 0] - 0.15**2, std**2, atol=1e-8)
    assert own.exact.log_evidence == pytest.approx(twin.log_marginal_likelihood_value_, rel=1e-9)


def test_inputs_lie_where_they_should(own):
    for data in (own.train, own.val, own.test):
        x = original(own, data.x)
        left = (x > -2 - 1e-5) & (x < -1 + 1e-5)
        right = (x > 0.5 - 1e-5) & (x < 2.5 + 1e-5)
        assert (left | right).all() and abs(int(left.sum()) - int(right.sum())) <= 1
    gap = original(own, own.ood["gap"].x)
    assert gap.min() > -1 - 1e-5 and gap.max() < 0.5 + 1e-5
    outside = original(own, own.ood["outside"].x)
    assert (
        ((outside > -3.5) & (outside < -2 + 1e-5)) | ((outside > 2.5 - 1e-5) & (outside < 4))
    ).all()


def test_curve_lacks_little_variance_between_its_places():
    """The process given its values at the places: its variance is largest halfway between."""
    places = torch.arange(OUTER[0], OUTER[1] + SPACING / 2, SPACING, dtype=torch.float64)[:, None]
    near = places[300:500]  # the rest does not matter to the middle
    middle = near[100:101] + SPACING / 2
    covariance = matern_32((near - near.T).abs(), 1.0, 0.5)
    cross = matern_32((middle - near.T).abs(), 1.0, 0.5)
    left = 1 - cross @ torch.linalg.solve(covariance, cross.T)
    assert 0 < float(left) < 2e-6


def test_predictive_is_calibrated_over_seeds():
    """Standardised errors at one place of the gap over 60 seeds: Kolmogorov-Smirnov test.

    False-alarm rate 0.001 over the choice of seeds, which are fixed.
    """
    errors = []
    for seed in range(60):
        own = task("matern", seed=seed, num_train=20, num_val=1, num_test=1)
        mean, variance = own.exact.predict(own.ood["gap"].x[:1])
        errors.append(float((own.ood["gap"].y[:1] - mean) / variance.sqrt()))
    assert stats.kstest(errors, "norm").pvalue > 0.001


def test_truth_is_close_to_the_posterior_where_data_are_and_far_where_not(own):
    mean, variance = own.exact.predict(own.test.x)
    seen = ((own.truth(own.test.x) - mean).square().mean()).sqrt()
    assert float(seen) < 0.15 < math.sqrt(float(own.exact.predict(own.ood["gap"].x)[1].max()))
    assert float(variance.min()) > 0.15**2
