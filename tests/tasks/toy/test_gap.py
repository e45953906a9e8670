from __future__ import annotations

import math

import pytest
import torch

from polymode.likelihoods.kinds import Gaussian
from polymode.tasks import task


def test_numbers_do_not_change_from_release_to_release():
    own = task("gap_regression")
    found = torch.cat([own.train.x[:2], own.train.y[:2]], dim=1)
    expected = torch.tensor([[1.7659297, -0.3359572], [-0.9960932, -0.7715504]])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_sets_lie_where_they_should():
    own = task("gap_regression")
    for split in (own.train, own.val, own.test):
        size = split.x.abs()
        assert (size >= 0.7).all() and (size <= 2.0).all()
        assert (split.x > 0).any() and (split.x < 0).any()
    assert (own.ood["gap"].x.abs() < 0.7).all()
    outside = own.ood["outside"].x.abs()
    assert (outside > 2.0).all() and (outside < 3.5).all()
    assert own.input_shape == (1,) and own.train.y.shape == (100, 1)
    assert own.near_ood == ("gap",)


def test_truth_and_noise():
    """Residuals have mean 0 and the stated standard deviation, 4 standard errors (rate 1.3e-4)."""
    own = task("gap_regression", noise_std=0.2, num_test=4000)
    residuals = own.test.y - own.truth(own.test.x)
    assert abs(float(residuals.mean())) < 4 * 0.2 / math.sqrt(4000)
    assert float(residuals.std()) == pytest.approx(0.2, abs=4 * 0.2 / math.sqrt(8000))
    x = torch.tensor([[0.5]])
    assert float(own.truth(x)) == pytest.approx(math.sin(1.5) + 0.25)
    assert own.likelihood == Gaussian(noise=0.2)
