"""Sparsification curves against hand-worked tables, a slow twin and known orders."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from polymode.metrics import sparsification as s
from polymode.metrics.score import NotDefined
from polymode.prediction import CategoricalPrediction, MixturePrediction


def curve_of(order: list[float]) -> list[float]:
    """Errors in the order of rising uncertainty -> error left, plainly."""
    whole = np.mean(order)
    return [np.mean(order[: len(order) - k]) / whole for k in range(len(order))]


def of(variances, errors) -> tuple[MixturePrediction, torch.Tensor]:
    """One Gaussian for each example at zero, and targets with the given errors."""
    scale = torch.tensor(variances, dtype=torch.float64).sqrt()[None, :, None]
    return MixturePrediction(torch.zeros_like(scale), scale), torch.tensor(errors).double()


def test_by_hand():
    """Errors squared 1, 4, 9, 4 by rising variance; left 18/4, 14/3, 5/2, 1 against the oracle's
    18/4, 9/3, 5/2, 1: only the second differs, by 5/3 of 9/2, over two pieces of 1/4."""
    prediction, y = of([1.0, 2.0, 3.0, 4.0], [1.0, -2.0, 3.0, 2.0])
    assert s.ause(prediction, y).value == pytest.approx((5 / 3) / 4.5 / 4, rel=1e-12)
    curve = s.sparsification(torch.arange(4.0), torch.tensor([1.0, 4.0, 9.0, 4.0]))
    np.testing.assert_allclose(curve.removed, [0, 0.25, 0.5, 0.75])
    np.testing.assert_allclose(curve.error * 4.5, [18 / 4, 14 / 3, 5 / 2, 1])
    np.testing.assert_allclose(curve.oracle * 4.5, [18 / 4, 9 / 3, 5 / 2, 1])
    assert curve.area_random == pytest.approx((1 / 3 + 4 / 9 + 7 / 18) / 4, rel=1e-12)


numbers = st.lists(st.integers(0, 6), min_size=2, max_size=40).filter(any)


@settings(max_examples=60, deadline=None)
@given(numbers, st.integers(0, 10**6))
def test_equals_a_slow_twin(errors, seed):
    order = np.random.default_rng(seed).permutation(len(errors))
    e = torch.tensor(errors, dtype=torch.float64)
    curve = s.sparsification(torch.tensor(order), e)
    expected = curve_of([errors[k] for k in np.argsort(order)])
    np.testing.assert_allclose(curve.error, expected, rtol=1e-12)
    oracle = curve_of(sorted(errors))
    np.testing.assert_allclose(curve.oracle, oracle, rtol=1e-12)
    area = np.trapezoid(np.subtract(expected, oracle), np.arange(len(errors)) / len(errors))
    assert curve.area == pytest.approx(area, abs=1e-12)
    assert (curve.oracle <= curve.error + 1e-12).all()
    assert 0 <= curve.area and 0 <= curve.area_random <= 1


def test_ties_are_the_mean_over_all_orders():
    """Uncertainty 1 2 2 2 3: the six orders of the three in the middle, averaged."""
    errors = [5.0, 1.0, 2.0, 9.0, 4.0]
    orders = [curve_of([5.0, *middle, 4.0]) for middle in itertools.permutations(errors[1:4])]
    curve = s.sparsification(torch.tensor([1.0, 2, 2, 2, 3]), torch.tensor(errors))
    np.testing.assert_allclose(curve.error, np.mean(orders, 0), rtol=1e-12)


@settings(max_examples=30, deadline=None)
@given(numbers)
def test_constant_uncertainty_is_random_and_the_error_itself_perfect(errors):
    e = torch.tensor(errors, dtype=torch.float64)
    constant = s.sparsification(torch.ones(len(e)), e)
    np.testing.assert_allclose(constant.error, np.ones(len(e)), rtol=1e-12)
    assert constant.area == pytest.approx(constant.area_random, abs=1e-12)
    assert s.sparsification(e, e).area == 0.0
    assert s.sparsification(e.square() + 1, e).area == pytest.approx(0.0, abs=1e-12)
    assert s.sparsification(-e, e).area >= constant.area - 1e-12


def test_the_order_of_examples_does_not_matter():
    stream = torch.Generator().manual_seed(0)
    u, e = torch.randint(5, (50,), generator=stream), torch.rand(50, generator=stream).double()
    mixed = torch.randperm(50, generator=stream)
    assert s.sparsification(u[mixed], e[mixed]).area == pytest.approx(s.sparsification(u, e).area)


def test_random_orders_average_to_the_random_area():
    """The mean of 2,000 areas has a standard error of 0.3 %: 5 of them have p < 1e-6."""
    stream = torch.Generator().manual_seed(1)
    e = torch.rand(60, generator=stream).double()
    areas = [s.sparsification(torch.randperm(60, generator=stream), e).area for _ in range(2000)]
    expected = s.sparsification(torch.zeros(60), e).area_random
    assert np.mean(areas) == pytest.approx(expected, abs=5 * np.std(areas) / math.sqrt(2000))


def test_normal_errors_of_equal_variance():
    """What the docstring says, 0.77, from the quantiles of the chi-square distribution."""
    squares = torch.tensor(stats.chi2.ppf((np.arange(20_000) + 0.5) / 20_000, 1))
    assert s.sparsification(torch.ones(20_000), squares).area == pytest.approx(0.767, abs=2e-3)


def test_the_variance_of_the_mixture_orders():
    """Members that differ where the error is large, all with the same noise: an order by averaged
    noise would know nothing."""
    spread = torch.tensor([0.1, 0.2, 3.0, 4.0], dtype=torch.float64)[:, None]
    prediction = MixturePrediction(torch.stack([-spread, spread]), 1.0)
    y = torch.tensor([0.1, 0.2, 2.0, 3.0])
    assert s.ause(prediction, y).value == pytest.approx(0.0, abs=1e-12)


def test_outputs_sum_their_variances_and_average_their_errors():
    stream = torch.Generator().manual_seed(2)
    scale = 0.1 + torch.rand(1, 30, 3, generator=stream, dtype=torch.float64)
    y = torch.randn(30, 3, generator=stream, dtype=torch.float64)
    prediction = MixturePrediction(torch.zeros_like(scale), scale)
    expected = s.sparsification(scale[0].square().sum(1), y.square().mean(1)).area
    score = s.ause(prediction, y)
    assert score.value == pytest.approx(expected, rel=1e-12)
    assert (score.n, score.standard_error) == (30, None)


def test_where_it_is_not_defined():
    prediction, y = of([1.0, 2.0], [0.0, 0.0])
    with pytest.raises(NotDefined, match="every error is zero"):
        s.ause(prediction, y)
    with pytest.raises(NotDefined, match="at least 2 examples, got 1"):
        s.ause(*of([1.0], [1.0]))
    heavy = MixturePrediction(prediction.loc, prediction.scale, 2.0)
    with pytest.raises(NotDefined, match="infinite variance: df = 2 <= 2"):
        s.ause(heavy, y + 1)


def test_bad_input_is_refused():
    prediction, y = of([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match=r"2 target\(s\) for 3"):
        s.ause(prediction, y[:2])
    with pytest.raises(ValueError, match="must be finite"):
        s.ause(prediction, y * math.nan)
    with pytest.raises(ValueError, match="0 examples"):
        s.ause(prediction[:0], y[:0])
    with pytest.raises(ValueError, match="scores predicted densities, got a Categorical"):
        s.ause(CategoricalPrediction(torch.zeros(1, 3, 2).log_softmax(-1)), y)
    for uncertainty, error, says in (
        (y[:2], y, r"must both have shape \(B,\), got \(2,\) and \(3,\)"),
        (y[:, None], y[:, None], r"must both have shape \(B,\)"),
        (y * math.nan, y, "`uncertainty` has 3 NaN"),
        (y, -y, "finite and >= 0, but 3 of 3 are not"),
        (y, y / 0, "finite and >= 0, but 3 of 3 are not"),
    ):
        with pytest.raises(ValueError, match=says):
            s.sparsification(uncertainty, error)
