"""Networks of several inputs with every method: as the same network of one tensor, to the bit.

Two inputs by position, and tokens with a mask by name, are compared with a network that takes one
tensor and takes it apart itself. Batches of a loader differ in length, which one tensor cannot;
they are fitted, resumed, saved and loaded. No method has code of its own here.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import polymode as pm
from polymode.methods import METHODS
from polymode.training.events import Event

from .small_fits import needs

STREAM = torch.Generator().manual_seed(0)
A, B = torch.randn(16, 3, generator=STREAM), torch.randn(16, 2, generator=STREAM)
IDS = torch.randint(6, (16, 5), generator=STREAM)
MASK = (torch.arange(5) < torch.randint(2, 6, (16, 1), generator=STREAM)).long()
LABELS = torch.arange(16) % 2
OPTIONS = {
    "cyclical_sgmcmc": {"num_cycles": 2},
    "snapshot": {"num_cycles": 2},
    "hmc": {"leapfrog_steps": 2},
    **{
        method: {"samples_per_mode": 2}
        for method in (
            "vi",
            "ivon",
            "laplace",
            "laplace_map",
            "dropout",
            "concrete_dropout",
            "vbll",
            "evidential",
        )
    },
}

ONE_INPUT = ("mimo",)  # methods that take inputs apart themselves

pytestmark = [
    pytest.mark.parametrize("method", [name for name in METHODS.names() if name not in ONE_INPUT]),
    pytest.mark.filterwarnings("ignore::UserWarning"),  # of so short fits, and of one order
]


def layers(first: int, normalised: bool) -> nn.Module:
    """Layers with noise, as some methods need, and with statistics for others."""
    between = [nn.BatchNorm1d(4)] if normalised else []
    return nn.Sequential(nn.Linear(first, 4), *between, nn.Tanh(), nn.Dropout(0.2), nn.Linear(4, 2))


class Two(nn.Module):
    """Two inputs."""

    def __init__(self, normalised: bool = False) -> None:
        super().__init__()
        self.body = layers(5, normalised)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.body(torch.cat([a, b], 1))


class TwoInOne(Two):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x[:, :3], x[:, 3:])


class Tokens(nn.Module):
    """The mean of embeddings, which returns a dictionary as encoders do. Targets would be one
    argument too many."""

    def __init__(self, normalised: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(6, 4)
        self.body = layers(4, normalised)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        mask = attention_mask.unsqueeze(-1).to(self.words.weight.dtype)
        h = (self.words(input_ids) * mask).sum(1) / mask.sum(1)
        return {"hidden": h, "logits": self.body(h)}


class TokensInOne(Tokens):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x[:, 0], x[:, 1])["logits"]


KINDS: dict[str, tuple[Any, type[nn.Module], Any, type[nn.Module]]] = {
    "two inputs": ((A, B), Two, torch.cat([A, B], 1), TwoInOne),
    "tokens": (
        {"input_ids": IDS, "attention_mask": MASK},
        Tokens,
        torch.stack([IDS, MASK], 1),
        TokensInOne,
    ),
}


class Batches:
    """Dictionaries of different lengths, padded batch by batch."""

    def __init__(self, labelled: bool) -> None:
        self.labelled = labelled

    def __len__(self) -> int:
        return 4

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        for start in range(0, 16, 4):
            rows = slice(start, start + 4)
            length = int(MASK[rows].sum(1).max())
            batch = {"input_ids": IDS[rows, :length], "attention_mask": MASK[rows, :length]}
            yield batch | ({"labels": LABELS[rows]} if self.labelled else {})


def fit(method: str, net: Any, train: Any, **options: Any) -> pm.Posterior:
    task = pm.Task(train=train, likelihood="categorical", target_size=2)
    usual = {"epochs": 2, "batch_size": 4, "num_modes": 2, "progress": "silent"}
    options = usual | OPTIONS.get(method, {}) | options
    return pm.fit(method, net=taken_by(method, net), task=task, **options)


def taken_by(method: str, net: Any) -> Any:
    """The network with what the method needs."""
    return partial(net, normalised=needs(method) == "BatchNorm")


@pytest.mark.parametrize("kind", KINDS)
def test_equal_to_one_tensor(method, kind, tmp_path) -> None:
    several, net, one, net_of_one = KINDS[kind]
    post = fit(method, net, (several, LABELS), execution="loop")
    try:
        other = fit(method, net_of_one, (one, LABELS), execution="loop")
    except ValueError as error:  # of identifiers and masks in one tensor, which no embedding takes
        assert "differentiates with respect to the inputs" in str(error)
        pytest.skip(str(error))
    for name, tensor in other.weights.tensors().items():
        assert torch.equal(tensor, post.weights.tensors()[name]), name
    prediction = post.predict(several)
    torch.testing.assert_close(prediction.log_probs, other.predict(one).log_probs)
    post.save(tmp_path)
    loaded = pm.load(tmp_path, net=taken_by(method, net))
    torch.testing.assert_close(loaded.predict(several).log_probs, prediction.log_probs)
    saved = loaded.weights.tensors()
    assert all(torch.equal(t, saved[name]) for name, t in post.weights.tensors().items())


def test_batches_of_different_lengths(method, tmp_path) -> None:
    """Fit, predict without targets, save and load; an interrupted run ends with the same bits."""
    whole = fit(method, Tokens, Batches(True))
    prediction = whole.predict(Batches(False))
    assert torch.equal(prediction.log_probs, whole.predict(Batches(True)).log_probs)
    padded = whole.predict({"input_ids": IDS, "attention_mask": MASK})
    torch.testing.assert_close(prediction.mean, padded.mean)
    whole.save(tmp_path / "post")
    loaded = pm.load(tmp_path / "post", net=taken_by(method, Tokens))
    assert torch.equal(loaded.predict(Batches(False)).log_probs, prediction.log_probs)

    def interrupt(event: Event) -> None:
        if event.kind == "checkpoint" and event.step >= 5:
            os.kill(os.getpid(), signal.SIGINT)

    options = {"checkpoint": tmp_path / "run", "checkpoint_seconds": 0}
    with pytest.raises(KeyboardInterrupt):
        fit(method, Tokens, Batches(True), on_event=interrupt, **options)
    resumed = fit(method, Tokens, Batches(True), **options)
    for name, tensor in whole.weights.tensors().items():
        assert torch.equal(tensor, resumed.weights.tensors()[name]), name


def test_every_member_shuffles_batches_of_different_lengths(method) -> None:
    """Members' batches cannot be stacked then, and members run one by one, whatever `execution` is.
    Methods in which members meet share their batches."""
    rows = torch.utils.data.DataLoader(range(16), 4, shuffle=True, collate_fn=_padded)
    several = fit(method, Tokens, rows)
    again = fit(method, Tokens, rows, execution="loop")
    for name, tensor in several.stack.tensors().items():
        torch.testing.assert_close(again.stack.tensors()[name], tensor, msg=name)
    mean = several.predict({"input_ids": IDS, "attention_mask": MASK}).mean
    torch.testing.assert_close(mean.sum(1), torch.ones(16))


def _padded(rows: list[int]) -> dict[str, Tensor]:
    length = int(MASK[rows].sum(1).max())
    batch = {"input_ids": IDS[rows, :length], "attention_mask": MASK[rows, :length]}
    return batch | {"labels": LABELS[rows]}
