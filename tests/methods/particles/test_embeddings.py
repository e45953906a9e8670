"""Tokens and several inputs of methods that differentiate with respect to their inputs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import polymode as pm
from polymode.stack.embedded import embeddings_of
from polymode.stack.stack import Stack

STREAM = torch.Generator().manual_seed(0)
IDS = torch.randint(6, (24, 5), generator=STREAM)
LENGTHS = torch.rand(24, 1, generator=STREAM)
LABELS = torch.arange(24) % 3
TABLE = torch.randn(6, 4, generator=STREAM)


class Embedded(nn.Module):
    """A network that takes what an embedding gives, and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(21, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, e: Tensor, length: Tensor) -> Tensor:
        return self.body(torch.cat([e.flatten(1), length], 1))


class Tokens(Embedded):
    """The same behind a frozen table of embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding.from_pretrained(TABLE)

    def forward(self, ids: Tensor, length: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(self.words(ids), length)


def fit(method: str, net: Any, x: Any, **options: Any) -> pm.Posterior:
    task = pm.Task(train=(x, LABELS), likelihood="categorical")
    usual = {"num_modes": 3, "epochs": 3, "batch_size": 8, "lr": 0.01, "progress": "silent"}
    return pm.fit(method, net=net, task=task, dtype=torch.float64, **(usual | options))


@pytest.mark.parametrize("execution", ["loop", "batched", "threads"])
@pytest.mark.parametrize("method", ["forde", "lit"])
def test_tokens_are_repelled_as_their_embeddings_would_be(method, execution) -> None:
    """The gradient with respect to an embedding is that of a network which begins behind it."""
    post = fit(method, Tokens, (IDS, LENGTHS), execution=execution)
    embedded = fit(method, Embedded, (TABLE[IDS].double(), LENGTHS), execution="loop")
    for name, tensor in embedded.stack.params.items():
        torch.testing.assert_close(post.stack.params[name], tensor, rtol=1e-9, atol=1e-12)
    alone = fit("deep_ensemble", Tokens, (IDS, LENGTHS), data_order="shared")
    weight = post.stack.params["body.0.weight"]
    assert not torch.allclose(weight, alone.stack.params["body.0.weight"], atol=1e-4)  # it repels


@pytest.mark.parametrize("method", ["forde", "lit"])
def test_several_inputs_are_repelled_together(method) -> None:
    """As one vector that holds all their numbers."""

    class Joined(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x)

    class Parts(Joined):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:  # type: ignore[override]
            return self.body(torch.cat([a, b], 1))

    x = torch.randn(24, 5, generator=torch.Generator().manual_seed(1))
    options = {"lengthscales": "pca"} if method == "forde" else {}
    parts = fit(method, Parts, (x[:, :2], x[:, 2:]), **options)
    joined = fit(method, Joined, x, **options)
    for name, tensor in joined.stack.params.items():
        torch.testing.assert_close(parts.stack.params[name], tensor, rtol=1e-8, atol=1e-10)


def test_which_embeddings_take_the_inputs() -> None:
    class Many(nn.Module):
        """Words, columns by themselves, positions that the network makes, a word table twice."""

        def __init__(self) -> None:
            super().__init__()
            self.words, self.columns = nn.Embedding(6, 4), nn.Embedding(6, 3)
            self.places, self.twice = nn.Embedding(5, 4), nn.Embedding(6, 2)

        def forward(self, ids: Tensor) -> Tensor:
            self.places(torch.arange(ids.shape[1]).expand_as(ids))
            self.twice(ids), self.twice(ids)
            return torch.cat([self.words(ids).sum(1), self.columns(ids[:, 1])], 1)

    assert embeddings_of(Stack(Many, 2), IDS) == {"words": (5, 4), "columns": (3,)}


def test_scales_of_the_inputs_need_numbers() -> None:
    with pytest.raises(ValueError, match="lengthscales='pca' needs real-valued inputs, got torch"):
        fit("forde", Tokens, (IDS, LENGTHS), lengthscales="pca")
