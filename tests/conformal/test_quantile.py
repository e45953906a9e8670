"""The finite-sample quantile: ranks as written, too few examples, the law of its coverage."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from polymode.conformal import conformal_quantile, conformal_rank


@example(99, 70)
@given(st.integers(0, 10_000), st.integers(1, 999))
def test_rank_is_that_of_the_level_as_written(n, thousandths) -> None:
    """0.07 * 100 is 7.000000000000001 in floating point, and would be rank 8."""
    assert conformal_rank(n, thousandths / 1000) == math.ceil(Fraction(thousandths, 1000) * (n + 1))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(-5, 5), min_size=1, max_size=30), st.floats(0.01, 0.99))
def test_definition(scores, level) -> None:
    """The k-th smallest, ties included, of each column; inf if there is none."""
    rank = conformal_rank(len(scores), level)
    expected = sorted(scores)[rank - 1] if rank <= len(scores) else math.inf
    values = torch.tensor(scores, dtype=torch.float32)
    assert conformal_quantile(values, level).item() == expected
    assert conformal_quantile(torch.stack([values, -values], 1), level)[0].item() == expected
    assert conformal_quantile(values, level).dtype == torch.float64


def test_coverage_of_uniform_scores() -> None:
    """Follows Beta(k, n + 1 - k) given the calibration. False alarms: 1e-3 (Kolmogorov-Smirnov)."""
    draws = torch.rand(20, 2000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    coverage = conformal_quantile(draws, 0.9)
    assert stats.kstest(coverage.numpy(), stats.beta(19, 2).cdf).pvalue > 1e-3


def test_the_plain_quantile_covers_less() -> None:
    """What is said of it: 18.1 / 21. False alarms: 6e-5 (four standard errors)."""
    draws = torch.rand(20, 4000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    plain = draws.quantile(0.9, 0)
    assert abs(plain.mean() - 18.1 / 21) < 4 * plain.std() / math.sqrt(4000)


@pytest.mark.parametrize("level", [0.0, 1.0, -0.1, 90, math.nan])
def test_bad_level(level) -> None:
    with pytest.raises(ValueError, match=r"in \(0, 1\)"):
        conformal_rank(10, level)
