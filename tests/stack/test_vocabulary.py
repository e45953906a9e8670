"""Identifiers that a network has no embedding for."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import polymode as pm

IDS = torch.randint(6, (32, 3), generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(32) % 2


def words() -> nn.Module:
    return nn.Sequential(nn.Embedding(6, 4), nn.Flatten(), nn.Linear(12, 2))


def fit(ids: torch.Tensor) -> pm.Posterior:
    task = pm.Task(train=(ids, LABELS), likelihood="categorical")
    return pm.fit("deep_ensemble", net=words, task=task, epochs=1, num_modes=2, progress="silent")


@pytest.mark.parametrize("row", [0, 31])  # seen in the first two examples, or in training
def test_they_are_named_in_training(row) -> None:
    ids = IDS.clone()
    ids[row, 1] = 9
    with pytest.raises(ValueError, match=r"'0' of the network has 6 entries.*lie in \[0, 9\]"):
        fit(ids)


@pytest.mark.parametrize("wrong", [-1, 6])
def test_they_are_named_in_a_prediction(wrong) -> None:
    post, ids = fit(IDS), IDS.clone()
    ids[5, 0] = wrong
    with pytest.raises(ValueError, match=rf"'0' of the network .*{wrong}.*tokenizer") as refused:
        post.predict(ids)
    assert "\n" not in str(refused.value)


def test_other_errors_of_an_index_stay_as_they_are() -> None:
    class Picks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x[torch.arange(len(x)) + (x[0, 0] > 0).long() * 99])

    task = pm.Task(train=(-torch.ones(8, 3), LABELS[:8]), likelihood="categorical")
    post = pm.fit("map", net=Picks, task=task, epochs=1, progress="silent")
    with pytest.raises(IndexError, match="out of"):
        post.predict(torch.ones(8, 3))
