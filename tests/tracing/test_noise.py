"""Random operations inside of a forward pass: each as torch has it, from the members' streams."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from polymode.tracing.noise import BatchAxis, MemberNoise, Streams

RATES = torch.tensor([0.0, 0.25, 0.5, 0.9, 1.0], dtype=torch.float64)
MEANS = torch.tensor([-3.0, 0.0, 5.0, 5.0, 7.0], dtype=torch.float64)
STDS = torch.tensor([0.0, 1.0, 2.0, 0.5, 0.1], dtype=torch.float64)
ROWS = 4000

# what is called, and the mean and variance of its columns
OPERATIONS = {
    "bernoulli": (lambda: torch.bernoulli(RATES.repeat(ROWS, 1)), RATES, RATES * (1 - RATES)),
    "bernoulli_": (
        lambda: torch.empty(ROWS, 5, dtype=torch.float64).bernoulli_(RATES),
        RATES,
        RATES * (1 - RATES),
    ),
    "normal, both": (lambda: torch.normal(MEANS.repeat(ROWS, 1), STDS), MEANS, STDS**2),
    "normal, mean": (lambda: torch.normal(MEANS.repeat(ROWS, 1), 2.0), MEANS, 4.0),
    "normal, std": (lambda: torch.normal(1.0, STDS.repeat(ROWS, 1)), 1.0, STDS**2),
    "normal, size": (lambda: torch.normal(1.0, 2.0, (ROWS, 5)), 1.0, 4.0),
    "randint": (lambda: torch.randint(6, (ROWS, 5)), 2.5, 35 / 12),
    "randint, low": (lambda: torch.randint(1, 7, (ROWS, 5)), 3.5, 35 / 12),
    "rand": (lambda: torch.rand(ROWS, 5), 0.5, 1 / 12),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_have_their_moments_and_a_stream(name) -> None:
    """The mean of 4,000 rows lies within 5 standard errors in each of 5 columns, which chance
    misses for 3 seeds in a million. The stream alone decides, and torch's stays as it was."""
    draw, mean, variance = OPERATIONS[name]
    before = torch.get_rng_state()
    with MemberNoise(Streams([1]), stacked=False):
        drawn, more = draw(), draw()
    with MemberNoise(Streams([1]), stacked=False):
        again = draw()
    assert torch.equal(torch.get_rng_state(), before)
    with torch.random.fork_rng(devices=[]):
        assert drawn.dtype == draw().dtype
    assert torch.equal(drawn, again) and not torch.equal(drawn, more)
    error = (torch.as_tensor(variance, dtype=torch.float64) / ROWS).sqrt()
    assert ((drawn.double().mean(0) - mean).abs() <= 5 * error + 1e-12).all()


def test_examples_share_the_draw_and_keep_their_own_rates() -> None:
    """With pinned noise an example with a higher rate has all the ones of one with a lower."""

    def drawn(rates: Tensor) -> Tensor:
        streams = Streams([3], [BatchAxis(0)])
        with MemberNoise(streams, stacked=False):
            return torch.bernoulli(rates)

    rates = torch.linspace(0, 1, 9)[:, None].expand(9, 200)
    masks = drawn(rates)
    assert (masks.diff(dim=0) >= 0).all()
    assert masks.sum(1).unique().numel() > 5
    assert torch.equal(drawn(rates[3:4]), masks[3:4])
