"""Actions of highest expected utility, and abstaining at a cost."""

from __future__ import annotations

import math

import pytest
import torch

from polymode.prediction import CategoricalPrediction, MixturePrediction

from .made_up import categorical, mixture

TREAT = torch.tensor([[0.0, -10.0], [-1.0, -1.0]])  # wait or treat; healthy or ill


def test_actions_by_hand() -> None:
    """Treating costs 1, an untreated illness 10: treat from a probability of 0.1 on."""
    probs = torch.tensor([[0.95, 0.05], [0.85, 0.15]])
    decision = CategoricalPrediction.from_probs(probs).act(TREAT)
    assert decision.action.tolist() == [0, 1]
    torch.testing.assert_close(decision.utility, torch.tensor([-0.5, -1.0]))
    torch.testing.assert_close(decision.gain, torch.tensor([0.5, 0.5]))


def test_no_other_action_has_a_higher_expected_utility() -> None:
    pred = categorical((3, 50, 4))
    table = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    decision = pred.act(table.tolist())
    every = torch.stack([(pred.mean * row).sum(-1) for row in table], -1)
    torch.testing.assert_close(decision.utility, every.amax(-1))
    assert (decision.gain >= 0).all() and torch.equal(decision.action, every.argmax(-1))
    right = torch.eye(4, dtype=torch.float64)
    assert torch.equal(pred.act(right).action, pred.mean.argmax(-1))


def test_abstaining_is_one_more_action() -> None:
    pred = categorical((3, 200, 4))
    table = torch.cat([torch.eye(4) - 1, torch.full((1, 4), -0.4)]).double()
    assert torch.equal(pred.abstain(0.4), pred.act(table).action == 4)
    assert 0 < pred.abstain(0.4).sum() < 200 and not pred.abstain(1.0).any()
    values = mixture((3, 20, 2))
    assert torch.equal(values.abstain(2.0), values.variance.sum(-1) > 2.0)


def test_the_newsvendor_orders_the_quantile() -> None:
    """Bought at 1, sold at 4: the best stock is the quantile at 3/4. Of N(0, 1), E min(y, s) is
    s - s Phi(s) - phi(s); 200 quantiles leave 2e-3 of it."""
    stocks = torch.linspace(-2.0, 3.0, 101, dtype=torch.float64)
    loc = torch.tensor([[[0.0], [1.0]]], dtype=torch.float64)
    pred = MixturePrediction(loc, 1.0)

    def profit(y: torch.Tensor) -> list[torch.Tensor]:
        return [4.0 * torch.minimum(y, s) - s for s in stocks]

    decision = pred.act(profit)
    best = torch.distributions.Normal(0.0, 1.0).icdf(torch.tensor(0.75))
    ordered = stocks[decision.action]
    torch.testing.assert_close(ordered, torch.stack([best, best + 1]).double(), atol=0.05, rtol=0.0)
    normal = torch.distributions.Normal(0.0, 1.0)
    s = ordered[0]
    exact = 4.0 * (s - s * normal.cdf(s) - normal.log_prob(s).exp()) - s
    torch.testing.assert_close(decision.utility[0], exact, atol=8e-3, rtol=0.0)
    mean = pred.act(lambda y: [y, -y])
    assert mean.action[1] == 0 and mean.utility[1] == pytest.approx(1.0, abs=1e-9)


def test_wrong_calls() -> None:
    pred = categorical((2, 3, 4))
    with pytest.raises(ValueError, match=r"a column per class, \(A, 4\), got shape \(2, 2\)"):
        pred.act(TREAT)
    with pytest.raises(ValueError, match="must be finite"):
        pred.act(torch.full((2, 4), torch.nan))
    with pytest.raises(ValueError, match="`cost` of abstain must be a finite number >= 0, got -1"):
        pred.abstain(-1)
    values = MixturePrediction(torch.zeros(1, 2, 1), 1.0)
    with pytest.raises(ValueError, match="must be a function of y"):
        values.act(TREAT)
    with pytest.raises(
        ValueError, match=r"must return values of shape \(A, 200, 2\), got \(1, 2\)"
    ):
        values.act(lambda y: y.mean(0)[None])
    with pytest.raises(ValueError, match="must be finite"):
        values.act(lambda y: [y, y * math.inf])
    with pytest.raises(ValueError, match="one output and no positions"):
        mixture((2, 3, 2)).act(lambda y: [y])
