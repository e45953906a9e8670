"""Actions of highest expected utility, and abstaining at a cost."""

from __future__ import annotations

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


def test_wrong_calls() -> None:
    pred = categorical((2, 3, 4))
    with pytest.raises(ValueError, match=r"a column per class, \(A, 4\), got shape \(2, 2\)"):
        pred.act(TREAT)
    with pytest.raises(ValueError, match="must be finite"):
        pred.act(torch.full((2, 4), torch.nan))
    with pytest.raises(ValueError, match="`cost` of abstain must be a finite number >= 0, got -1"):
        pred.abstain(-1)
    with pytest.raises(ValueError, match="Only classes have a table"):
        MixturePrediction(torch.zeros(1, 2, 1), 1.0).act(TREAT)
