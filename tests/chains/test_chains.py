"""R-hat and effective sample size: against ArviZ, closed forms, and what they are there to find."""

from __future__ import annotations

import math

import pytest
import torch

from polymode.chains import (
    autocorrelation,
    autocovariance,
    ess_bulk,
    ess_mean,
    ess_tail,
    nested_rhat,
    rhat,
)


def walks(length: int, chains: int, phi: float, seed: int = 0, size: int = 1) -> torch.Tensor:
    """Return stationary AR(1) chains x_t = φ x_(t−1) + √(1 − φ²) ε, (L, M, size)."""
    stream = torch.Generator().manual_seed(seed)
    noise = torch.randn(length, chains, size, dtype=torch.float64, generator=stream)
    draws = [noise[0]]
    for step in noise[1:]:
        draws.append(phi * draws[-1] + math.sqrt(1 - phi**2) * step)
    return torch.stack(draws)


def made_up(length: int, chains: int, phi: float) -> torch.Tensor:
    """Return numbers without a generator: a congruence, filtered; apart and rounded by φ."""
    values, number = [], 12345
    for _ in range(length * chains):
        number = (1103515245 * number + 12345) % 2**31
        values.append(number / 2**31 - 0.5)
    draws = torch.tensor(values, dtype=torch.float64).view(chains, length).T.clone()
    for step in range(1, length):
        draws[step] += phi * draws[step - 1]
    if phi == 0.5:
        draws[:, 0] += 1
    return (8 * draws).round() if phi == 0.9 else draws


CASES = [(100, 4, 0.0), (101, 2, 0.5), (37, 8, 0.9), (9, 3, -0.6), (500, 4, 0.9), (5, 4, 0.0)]
ARVIZ = {
    (100, 4, 0.0): [1.0039589235862354, 422.5498708002688, 374.88069567676484, 429.9370468678516],
    (101, 2, 0.5): [1.751712785522863, 3.392086315606663, 63.140886269668485, 3.04834383302941],
    (37, 8, 0.9): [1.6341750080737045, 16.34273815088682, 17.053523424997117, 15.903604433883814],
    (9, 3, -0.6): [0.939260741073809, 33.12506980107854, 33.12506980107854, 33.12506980107854],
    (500, 4, 0.9): [1.0281468631944548, 144.33362331193226, 294.66528208336854, 143.69461245750603],
    (5, 4, 0.0): [1.1152547178283352, 19.265919722494797, 19.265919722494797, 19.265919722494797],
}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_numbers_are_those_of_arviz(case) -> None:
    """To 1e-9: odd lengths, ties, chains apart, anticorrelation; from arviz-stats 0.8.0."""
    draws = made_up(*case)
    found = [f(draws).item() for f in (rhat, ess_bulk, ess_tail, ess_mean)]
    assert found == pytest.approx(ARVIZ[case], rel=1e-9)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_numbers_are_those_of_the_arviz_that_is_installed(case) -> None:
    reason = "arviz-stats is in the extra `peers`: pip install polymode[peers]"
    base = pytest.importorskip("arviz_stats.base", reason=reason)
    assert arviz_numbers(base.array_stats, case) == pytest.approx(ARVIZ[case], rel=1e-9)


def arviz_numbers(stats, case: tuple[int, int, float]) -> list[float]:
    """Return R-hat and bulk, tail and mean ESS by `arviz_stats.base.array_stats`."""
    draws = made_up(*case).T.numpy()
    axes = {"chain_axis": 0, "draw_axis": 1}
    found = [stats.rhat(draws, method="rank", **axes), stats.ess(draws, method="bulk", **axes)]
    found.append(stats.ess(draws, method="tail", prob=(0.05, 0.95), **axes))
    return [float(value) for value in (*found, stats.ess(draws, method="mean", **axes))]


@pytest.mark.parametrize("phi", [0.0, 0.6, 0.9])
def test_the_effective_size_of_an_autoregression(phi) -> None:
    """N (1 − φ)/(1 + φ) for the mean of a stationary AR(1). Over 200 quantities of 4 × 1,000 draws
    the mean estimate is within a tenth; single ones spread by 5 to 15 %, so chance would have to
    move the mean by more than 8 of its standard errors."""
    draws = walks(1000, 4, phi, size=200)
    expected = 4000 * (1 - phi) / (1 + phi)
    for estimate in (ess_mean, ess_bulk):
        assert estimate(draws).mean().item() == pytest.approx(expected, rel=0.1)


def test_the_autocovariance_is_the_sum_written_out() -> None:
    draws = walks(20, 3, 0.5, size=2)
    centred = draws - draws.mean(0)
    expected = torch.stack([(centred[: 20 - t] * centred[t:]).sum(0) / 20 for t in range(20)])
    torch.testing.assert_close(autocovariance(draws), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(autocorrelation(draws)[0], torch.ones(3, 2).double())


def test_r_hat_finds_chains_apart_in_place_in_spread_and_with_a_trend() -> None:
    """Four chains of 400 independent draws: below 1.01 for each of 20 quantities, which chance
    misses for fewer than 1 seed in 100 (the seed is fixed); each fault is above 1.05."""
    fine = walks(400, 4, 0.0, size=20)
    assert rhat(fine).max() < 1.015
    apart, wide, drift = fine.clone(), fine.clone(), fine.clone()
    apart[:, 0] += 1
    wide[:, 0] *= 3
    drift += torch.linspace(-1, 1, 400).double()[:, None, None]
    assert all(rhat(each).min() > 1.05 for each in (apart, wide, drift))


def test_r_hat_of_quantities_without_a_mean() -> None:
    """Cauchy draws have no variance; ranks do, so R-hat stays near 1 where chains agree."""
    draws = torch.tan(math.pi * (torch.special.ndtr(walks(400, 4, 0.0)) - 0.5))
    assert rhat(draws).item() < 1.015


def test_nested_r_hat_is_its_formula() -> None:
    """Written out; with one draw per chain it still compares groups, as R-hat cannot."""
    draws = walks(6, 8, 0.0, seed=3)[..., 0]
    groups = [draws[:, k : k + 2] for k in range(0, 8, 2)]
    between = torch.stack([g.mean() for g in groups]).var()
    within = torch.stack([g.mean(0).var() + g.var(0).mean() for g in groups]).mean()
    torch.testing.assert_close(nested_rhat(draws, 4), (1 + between / within).sqrt())
    one = walks(1, 64, 0.0, seed=4)
    assert nested_rhat(one, 4).item() < 1.2
    one[:, :16] += 3
    assert nested_rhat(one, 4).item() > 1.4


def test_too_little_to_compare_is_refused_with_the_numbers() -> None:
    with pytest.raises(ValueError, match="R-hat compares chains, and there is 1: fit with num_mod"):
        rhat(walks(100, 1, 0.0))
    with pytest.raises(ValueError, match="at least 4 draws per chain, got 3"):
        ess_bulk(walks(3, 4, 0.0))
    with pytest.raises(ValueError, match="must divide the 8 chains into at least 2 groups, got 3"):
        nested_rhat(walks(5, 8, 0.0), 3)

    with pytest.raises(ValueError, match=r"must be \(L, M, ...\), .* got \(10,\)"):
        rhat(torch.zeros(10))


def test_what_never_moves_has_no_number() -> None:
    still = torch.ones(20, 4, 2)
    assert all(torch.isnan(f(still)).all() for f in (rhat, ess_bulk, ess_tail, ess_mean))


def test_distances_from_the_median_that_are_alike_hide_nothing() -> None:
    """Two chains that stand still are as far from mixed as can be; draws of two values that all
    chains visit alike have mixed. The distances from the median, all the same, say neither."""
    assert rhat(torch.tensor([[1.0, 2.0]] * 6)).item() == math.inf
    visits = torch.tensor([[0.0, 1.0], [1.0, 0.0]] * 10)
    assert rhat(visits).item() == pytest.approx((9 / 10) ** 0.5)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_worse_of_both_tails_counts(sign) -> None:
    """A chain that stays long where it is high, and hardly where it is low, or the other way."""
    stream = torch.Generator().manual_seed(0)
    noise = torch.randn(4000, 4, generator=stream, dtype=torch.float64)
    slow = noise.clone()
    for k in range(1, 4000):
        slow[k] = 0.95 * slow[k - 1] + (1 - 0.95**2) ** 0.5 * noise[k]
    draws = torch.where(slow > 0, 3 + slow, torch.rand(4000, 4, generator=stream).double())
    found, turned = (float(ess_tail(sign * each)) for each in (draws, -draws))
    assert found == pytest.approx(turned, rel=0.02)
    high = float(ess_mean((draws <= draws.quantile(0.95)).double()))
    low = float(ess_mean((draws <= draws.quantile(0.05)).double()))
    assert high < 0.5 * low and found == pytest.approx(high, rel=0.05)
