"""Curves of one variable: laws of the inputs, truths, targets; the gap."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from polymode.likelihoods.kinds import Gaussian
from polymode.tasks import Task, task

OWN = {
    "x_sin_x": (lambda x: x * np.sin(x), [(1.5, 2.5), (4.5, 6.0)], (0, 7), 0.25),
    "cubic": (lambda x: x**3, [(-3.5, 3.5)], (-5, 5), 3.0),
    "linear": (lambda x: 3 * x, [(-2, 2)], (-3, 3), 0.05),
    "quadratic": (lambda x: 2 * x**2 - 1, [(-1, 1)], (-2.5, 2.5), 0.05),
    "shifted_cubic": (lambda x: (x - 3) ** 3, [(2, 4)], (0.5, 4.1), 0.05),
    "rising_sine": (
        lambda x: x * (1 + np.sin(x)), [(4.5, 5), (7.5, 8.5), (10, 11)], (2, 13), 0.6,
    ),
    "three_clusters": (
        lambda x: x - 0.1 * x**2 + np.cos(np.pi * x / 2),
        [(-1, 0), (1.7, 2.5), (4, 5)], (-3, 7), 0.25,
    ),
}  # fmt: skip


def build(name: str, **options) -> Task:
    own = ("x_sin_x", "three_clusters")
    return task(name, **options) if name in own else task("curve", function=name, **options)


def inputs(own: Task, x: torch.Tensor) -> np.ndarray:
    raw = x if own.input_scaling is None else own.input_scaling.inverse(x)
    return raw.double().numpy()[:, 0]


def inside(x: np.ndarray, intervals: list[tuple[float, float]]) -> np.ndarray:
    """Number of the interval in which each x lies, -1 for none; ends count with rounding."""
    found = np.full(len(x), -1)
    for i, (low, high) in enumerate(intervals):
        found[(x >= low - 1e-5) & (x <= high + 1e-5)] = i
    return found


@pytest.mark.parametrize("name", OWN)
def test_sets_lie_where_they_should(name):
    _, seen, (left, right), _ = OWN[name]
    own = build(name)
    for data in (own.train, own.val, own.test):
        found = inside(inputs(own, data.x), seen)
        counts = np.bincount(found, minlength=len(seen))
        assert found.min() == 0 and counts.max() - counts.min() <= 1
    gaps = [(a[1], b[0]) for a, b in zip(seen, seen[1:], strict=False)]
    assert own.near_ood == (("gap",) if gaps else ())
    if gaps:
        found = inside(inputs(own, own.ood["gap"].x), gaps)
        assert set(found) == set(range(len(gaps)))
    found = inside(inputs(own, own.ood["outside"].x), [(left, seen[0][0]), (seen[-1][1], right)])
    assert set(found) == {0, 1}
    grid = inputs(own, own.shifts["grid"][1].x)
    np.testing.assert_allclose(grid, np.linspace(left, right, 100), atol=1e-5)


@pytest.mark.parametrize("name", OWN)
def test_truth_is_the_published_function_and_noise_its_standard_deviation(name):
    function, _, (left, right), noise = OWN[name]
    own = build(name)
    x = np.linspace(left, right, 57)
    given = torch.tensor(x)[:, None]
    given = given if own.input_scaling is None else own.input_scaling(given)
    np.testing.assert_allclose(own.truth(given)[:, 0], function(x), rtol=1e-12, atol=1e-12)
    unit = 1.0 if own.target_scaling is None else own.target_scaling.scale.item()
    assert own.likelihood.noise * unit == pytest.approx(noise, rel=1e-6)


def test_a_gap_is_uniform_by_length():
    """Gaps of rising_sine have lengths 2.5 and 1.5: 125 of 200 in the first, 4 standard errors
    (rate 6e-5)."""
    own = task("curve", function="rising_sine")
    first = int((own.ood["gap"].x < 6.5 + 1).sum())
    assert abs(first - 125) < 4 * math.sqrt(200 * 0.625 * 0.375)


@pytest.mark.parametrize("name", ["three_clusters", "wiggle", "matern"])
def test_standardised_with_the_training_set_alone(name):
    own = task(name)
    assert float(own.train.x.mean()) == pytest.approx(0, abs=1e-5)
    assert float(own.train.x.std(correction=0)) == pytest.approx(1, abs=1e-5)
    scaled = own.target_scaling(own.train.y)
    assert float(scaled.mean()) == pytest.approx(0, abs=1e-5)
    assert float(scaled.std(correction=0)) == pytest.approx(1, abs=1e-5)
    assert abs(float(own.test.x.mean())) > 1e-4


def test_wiggle_inputs_and_truth():
    """Inputs have mean 5 and standard deviation 2.5 within 4 standard errors (rate 1.3e-4)."""
    own = task("wiggle", num_test=4000)
    x = inputs(own, own.test.x)
    assert x.mean() == pytest.approx(5, abs=4 * 2.5 / math.sqrt(4000))
    assert x.std() == pytest.approx(2.5, abs=4 * 2.5 / math.sqrt(8000))
    beyond = np.abs(inputs(own, own.ood["outside"].x) - 5) / 2.5
    assert beyond.min() > 4 - 1e-5 and beyond.max() < 6 + 1e-5
    x = np.linspace(-5, 15, 31)
    given = own.input_scaling(torch.tensor(x)[:, None])
    expected = np.sin(np.pi * x) + 0.2 * np.cos(np.pi * x * 4) - 0.3 * x
    np.testing.assert_allclose(own.truth(given)[:, 0], expected, rtol=1e-10, atol=1e-10)


def test_unknown_function_suggests_the_nearest():
    with pytest.raises(ValueError, match="'cubik'. Did you mean 'cubic'.*x_sin_x"):
        task("curve", function="cubik")


def test_numbers_do_not_change_from_release_to_release():
    own = task("gap_regression")
    found = torch.cat([own.train.x[:2], own.train.y[:2]], dim=1)
    expected = torch.tensor([[1.7659297, -0.3359572], [-0.9960932, -0.7715504]])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_sets_lie_in_and_outside_the_gap():
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
