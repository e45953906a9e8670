"""Mixtures on a line against scipy's distributions and adaptive quadrature."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats
from torch import Tensor

from polymode.likelihoods import densities

DFS = [None, 0.5, 1.0, 2.0, 4.0, 50.0]


def column(*numbers: float) -> Tensor:
    """Return one mixture, (S, 1, 1)."""
    return torch.tensor(numbers, dtype=torch.float64)[:, None, None]


def law(df: float | None, loc: float, scale: float) -> stats.rv_frozen:
    return stats.norm(loc, scale) if df is None else stats.t(df, loc, scale)


@pytest.mark.parametrize("df", DFS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_cdf_keeps_its_digits_in_the_lower_tail(df: float | None, dtype: torch.dtype) -> None:
    z = torch.tensor([-math.inf, -12.0, -5.0, -1.0, 0.0, 2.0, math.inf], dtype=dtype)
    found = densities.standard_cdf(z, df)
    expected = torch.as_tensor(law(df, 0.0, 1.0).cdf(z.double().numpy())).to(dtype)
    assert found.dtype == dtype
    torch.testing.assert_close(
        found, expected, rtol=2e-5 if dtype == torch.float32 else 1e-13, atol=0
    )


@pytest.mark.parametrize("df", DFS)
@pytest.mark.parametrize("prob", [1e-12, 1e-3, 0.3, 0.5, 0.95, 1 - 1e-9])
def test_quantile_of_one_component_is_its_own(df: float | None, prob: float) -> None:
    found = densities.quantile(prob, column(3.0), column(0.2), df).item()
    assert found == pytest.approx(law(df, 3.0, 0.2).ppf(prob), rel=1e-8, abs=2e-9)


mixtures = st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(-7.0, 7.0)), min_size=1, max_size=6)


@given(mixtures, st.floats(1e-6, 1 - 1e-6), st.sampled_from(DFS))
@settings(max_examples=150, deadline=None)
def test_quantile_inverts_the_cdf(
    parts: list[tuple[float, float]], prob: float, df: float | None
) -> None:
    """Some y within 1e-6 of the smallest scale (or 1e-12 of y) has its cdf on each side of prob."""
    loc = column(*(m for m, _ in parts))
    scale = column(*(math.exp(s) for _, s in parts))
    y = densities.quantile(prob, loc, scale, df)
    slack = 1e-6 * scale.min() + 1e-12 * y.abs()
    below, above = (densities.cdf(y + s, loc, scale, df).item() for s in (-slack, slack))
    assert below <= prob + 1e-13 and above >= prob - 1e-13


def test_median_of_two_distant_components_is_where_their_tails_balance() -> None:
    """The cdf is 0.5 in float64 all over the gap; a plain bisection stops at one of its edges."""
    for separation in (1.0, 5.0, 1e3, 1e8):
        loc = column(-separation, separation)
        found = densities.quantile(0.5, loc, column(0.1, 0.1), None).item()
        assert found == pytest.approx(0.0, abs=1e-8 * separation)
    uneven = densities.quantile(0.5, column(0.0, 6.0), column(1.0, 0.5), None).item()
    assert stats.norm.sf(uneven) == pytest.approx(stats.norm.cdf(uneven, 6.0, 0.5), rel=1e-5)


def test_quantile_of_many_mixtures_and_of_none() -> None:
    draw = torch.Generator().manual_seed(0)
    loc, scale = torch.randn(4, 50, 2, generator=draw), torch.rand(4, 50, 2, generator=draw) + 0.01
    y = densities.quantile(0.9, loc, scale, None)
    assert y.shape == (50, 2) and y.dtype == torch.float64
    level = densities.cdf(y, loc.double(), scale.double(), None)
    torch.testing.assert_close(level, torch.full_like(level, 0.9), rtol=0.0, atol=1e-8)
    assert densities.quantile(0.9, loc[:, :0], scale[:, :0], None).shape == (0, 2)


def test_quantile_beyond_float64_is_refused() -> None:
    with pytest.raises(ValueError, match="beyond the range of float64"):
        densities.quantile(1e-300, column(0.0), column(1.0), 3.0)


@pytest.mark.parametrize("df", [*DFS, 1e4, 1e9])
def test_entropy_of_one_component_is_that_of_scipy(df: float | None) -> None:
    expected = stats.norm.entropy() if df is None or df > 1e8 else stats.t(df).entropy()
    assert densities.standard_entropy(df) == pytest.approx(expected, abs=1e-8)


def test_entropy_series_joins_the_formula() -> None:
    below, above = (densities.standard_entropy(1e6 * (1 + e)) for e in (-1e-9, 1e-9))
    assert below == pytest.approx(above, abs=1e-8)
    below, above = (densities.student_log_norm(1e6 * (1 + e)) for e in (-1e-9, 1e-9))
    assert below == pytest.approx(above, abs=1e-8)


def information(df: float | None, loc: list[float], scale: list[float]) -> float:
    """Return I = H[p] - mean H[q] by brute force: a trapezium rule on asinh-spaced points."""
    reach = 9.0 if df is None else float(-stats.t(df).ppf(1e-10))
    z = np.sinh(np.linspace(-np.arcsinh(reach), np.arcsinh(reach), 4001))
    y = np.unique(np.concatenate([m + s * z for m, s in zip(loc, scale, strict=True)]))
    logs = np.stack([law(df, m, s).logpdf(y) for m, s in zip(loc, scale, strict=True)])
    parts = np.exp(logs)
    mixture = parts.mean(0)
    plogp = mixture * np.log(np.maximum(mixture, 1e-320))
    return float(integrate.trapezoid((parts * np.maximum(logs, -1e4)).mean(0) - plogp, y))


@pytest.mark.parametrize("df", [None, 0.5, 1.0, 3.0, 30.0])
@pytest.mark.parametrize(
    ("loc", "scale"),
    [
        ([0.0, 1.0], [1.0, 1.0]),
        ([0.0, 0.1], [1.0, 0.01]),
        ([-3.0, 0.0, 4.0], [1.0, 1e-3, 2.0]),
        ([0.0, 0.0, 0.0], [1e-3, 1.0, 1e3]),
        ([0.0, 5.0, 5.5, 100.0], [1.0, 0.3, 0.3, 10.0]),
    ],
)
def test_mutual_information_is_that_of_brute_force(
    df: float | None, loc: list[float], scale: list[float]
) -> None:
    found = densities.mutual_information(column(*loc), column(*scale), df).item()
    assert found == pytest.approx(information(df, loc, scale), abs=1e-4)


@pytest.mark.parametrize("df", [None, 1.0, 4.0])
def test_mutual_information_at_its_bounds(df: float | None) -> None:
    same = densities.mutual_information(column(2.0, 2.0, 2.0), column(0.5, 0.5, 0.5), df)
    apart = densities.mutual_information(column(-1e12, 0.0, 1e12), column(1.0, 1e-3, 1.0), df)
    assert 0.0 <= same.item() < 1e-12
    assert apart.item() == pytest.approx(math.log(3), abs=1e-4) and apart.item() <= math.log(3)


def test_small_mutual_information_keeps_its_digits() -> None:
    """For locations +-e and scale 1 it is e^2 / 2 - O(e^4): here 5e-9 nats."""
    found = densities.mutual_information(column(-1e-4, 1e-4), column(1.0, 1.0), None).item()
    assert found == pytest.approx(5e-9, rel=1e-3)


@given(mixtures, st.floats(-5.0, 5.0), st.floats(-3.0, 3.0))
@settings(max_examples=50, deadline=None)
def test_mutual_information_does_not_depend_on_units(
    parts: list[tuple[float, float]], shift: float, log_factor: float
) -> None:
    loc, scale = column(*(m for m, _ in parts)), column(*(math.exp(s) for _, s in parts))
    found = densities.mutual_information(loc, scale, None)
    factor = math.exp(log_factor)
    again = densities.mutual_information(shift + factor * loc, factor * scale, None)
    assert 0.0 <= found.item() <= math.log(len(parts)) + 1e-12
    torch.testing.assert_close(found, again, rtol=0.0, atol=1e-6)


def test_mutual_information_of_each_element_is_its_own() -> None:
    """Elements are computed in chunks; here in several, of unequal length."""
    draw = torch.Generator().manual_seed(0)
    loc, scale = torch.randn(40, 7, 2, generator=draw), torch.rand(40, 7, 2, generator=draw) + 0.1
    found = densities.mutual_information(loc, scale, None)
    assert found.shape == (7, 2)
    one = densities.mutual_information(loc[:, 4:5, 1:], scale[:, 4:5, 1:], None)
    torch.testing.assert_close(found[4, 1], one[0, 0])
    assert densities.mutual_information(loc[:, :0], scale[:, :0], None).shape == (0, 2)
