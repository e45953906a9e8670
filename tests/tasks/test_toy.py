from __future__ import annotations

import math

import pytest
import torch

from polymode.core.likelihoods import Categorical, Gaussian
from polymode.tasks import task


def rows(x: torch.Tensor) -> set[tuple[float, ...]]:
    return {tuple(row) for row in x.flatten(1).tolist()}


@pytest.mark.parametrize("name", ["two_moons", "gap_regression"])
def test_same_seed_agrees_other_seed_differs_splits_disjoint(name):
    first, again, other = task(name, seed=5), task(name, seed=5), task(name, seed=6)
    for split in ("train", "val", "test"):
        x, y = getattr(first, split).x, getattr(first, split).y
        assert torch.equal(x, getattr(again, split).x) and torch.equal(y, getattr(again, split).y)
        assert not torch.equal(x, getattr(other, split).x)
    assert not rows(first.train.x) & rows(first.test.x)
    assert not rows(first.train.x) & rows(first.val.x)
    assert not rows(first.val.x) & rows(first.test.x)


@pytest.mark.parametrize("name", ["two_moons", "gap_regression"])
def test_global_random_state_is_neither_read_nor_moved(name):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = task(name)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(2)
    assert torch.equal(first.train.x, task(name).train.x)


def test_size_of_one_set_leaves_the_others():
    small, large = task("two_moons", num_train=10), task("two_moons", num_train=300)
    assert (len(small.train), len(large.train)) == (10, 300)
    assert torch.equal(small.test.x, large.test.x)


def test_moons_without_noise_lie_on_their_circles():
    own = task("two_moons", noise=0.0)
    x, y = own.train.x, own.train.y
    centre = torch.where(y[:, None] == 1, torch.tensor([1.0, 0.5]), torch.tensor([0.0, 0.0]))
    torch.testing.assert_close((x - centre).norm(dim=1), torch.ones(len(x)))
    assert (x[y == 0, 1] >= 0).all() and (x[y == 1, 1] <= 0.5).all()
    assert y.bincount().tolist() == [100, 100]
    assert own.likelihood == Categorical() and own.num_outputs == 2


def test_moons_noise_has_the_stated_size():
    """Distance from the circle has this standard deviation up to curvature; 4 standard errors."""
    own = task("two_moons", noise=0.05, num_test=4000)
    upper = own.test.x[own.test.y == 0]
    spread = float((upper.norm(dim=1) - 1).std())
    assert spread == pytest.approx(0.05, abs=4 * 0.05 / math.sqrt(2 * 2000) + 0.05**2)


def test_ring_is_far_from_every_training_point():
    own = task("two_moons")
    assert float(torch.cdist(own.ood["ring"], own.train.x).min()) > 3


def test_gap_regression_sets_lie_where_they_should():
    own = task("gap_regression")
    for split in (own.train, own.val, own.test):
        size = split.x.abs()
        assert (size >= 0.7).all() and (size <= 2.0).all()
        assert (split.x > 0).any() and (split.x < 0).any()
    assert (own.ood["gap"].x.abs() < 0.7).all()
    outside = own.ood["outside"].x.abs()
    assert (outside > 2.0).all() and (outside < 3.5).all()
    assert own.input_shape == (1,) and own.train.y.shape == (100, 1)


def test_gap_regression_truth_and_noise():
    """Residuals have mean 0 and the stated standard deviation, 4 standard errors (rate 1.3e-4)."""
    own = task("gap_regression", noise_std=0.2, num_test=4000)
    residuals = own.test.y - own.truth(own.test.x)
    assert abs(float(residuals.mean())) < 4 * 0.2 / math.sqrt(4000)
    assert float(residuals.std()) == pytest.approx(0.2, abs=4 * 0.2 / math.sqrt(8000))
    x = torch.tensor([[0.5]])
    assert float(own.truth(x)) == pytest.approx(math.sin(1.5) + 0.25)


def test_gap_regression_noise_of_the_likelihood():
    assert task("gap_regression").likelihood == Gaussian(noise=0.1)
    learned = task("gap_regression", noise="learned")
    assert learned.likelihood == Gaussian(noise="learned")
    assert torch.equal(learned.train.y, task("gap_regression").train.y)


@pytest.mark.parametrize(
    "name, options, message",
    [
        ("two_moons", {"noise": -0.1}, "`noise` of two_moons must be >= 0, got -0.1"),
        ("two_moons", {"num_test": 0}, "`num_test` of two_moons must be >= 1, got 0"),
        ("gap_regression", {"noise": 0.3}, "its standard deviation is `noise_std`"),
        ("gap_regression", {"noise_std": 0.0}, "must be > 0, got 0.0"),
        ("gap_regression", {"num_train": 0}, "`num_train` of gap_regression must be >= 1, got 0"),
    ],
)
def test_bad_options(name, options, message):
    with pytest.raises(ValueError, match=message):
        task(name, **options)
