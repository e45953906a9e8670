"""The training loop: which batches and which streams of augmentation every step sees."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import polymode as pm
from polymode.training.events import Event

X = torch.arange(11.0).view(11, 1)
Y = (X[:, 0] > 5).long()


class Rows(Dataset):
    def __len__(self) -> int:
        return 11

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return X[index], Y[index]


SOURCES = {
    "arrays": lambda: (X, Y),
    "dataset": Rows,
    "loader": lambda: DataLoader(TensorDataset(X, Y), batch_size=3, shuffle=True),
}


class Seen:
    """An augmentation that changes nothing: it notes its inputs and what its stream draws."""

    def __init__(self) -> None:
        self.rows: list[list[float]] = []
        self.draws: list[float] = []

    def __call__(self, x: Tensor, stream: torch.Generator) -> Tensor:
        self.rows.append(x.flatten().tolist())
        self.draws.append(torch.rand((), generator=stream, dtype=torch.float64).item())
        return x


def see(source: str = "arrays", seen: Seen | None = None, **options) -> Seen:
    """Return what two epochs of four batches see."""
    seen = seen or Seen()
    task = pm.Task(train=SOURCES[source](), likelihood="categorical")
    options |= {} if source == "loader" else {"batch_size": 3}
    net = {"net": lambda: nn.Linear(1, 2), "progress": "silent"}
    pm.fit("map", task=task, epochs=2, augment=seen, **net, **options)
    return seen


def test_every_batch_is_augmented_by_a_stream_of_its_own() -> None:
    """Also the same batch of another epoch; members that share batches share what is drawn."""
    draws = see(num_modes=2, data_order="shared").draws
    assert len(set(draws)) == len(draws) == 8
    assert see(num_modes=2, data_order="shared").draws == draws
    assert not set(see(seed=1, data_order="shared").draws) & set(draws)


def test_members_with_orders_of_their_own_have_streams_of_their_own() -> None:
    """Member 0 of two draws what it draws alone."""
    seen = see(num_modes=2, data_order="own")
    assert len(set(seen.draws)) == len(seen.draws) == 16
    assert seen.rows[::2] != seen.rows[1::2]
    alone = see(num_modes=1, data_order="own")
    assert (alone.draws, alone.rows) == (seen.draws[::2], seen.rows[::2])


@pytest.mark.parametrize("source", SOURCES)
def test_members_see_different_batches_by_default(source) -> None:
    seen = see(source, num_modes=2)
    assert seen.rows[::2] != seen.rows[1::2]
    for member in range(2):
        rows = sum(seen.rows[member:8:2], [])
        assert sorted(rows) == list(range(11))


def test_members_share_batches_of_a_source_with_one_order_with_a_warning() -> None:
    task = pm.Task(train=DataLoader(TensorDataset(X, Y), 3), likelihood="categorical")
    options = {"net": lambda: nn.Linear(1, 2), "task": task, "epochs": 1, "progress": "silent"}
    seen = Seen()
    with pytest.warns(UserWarning, match="see the same batches.*DataLoader that shuffles"):
        pm.fit("deep_ensemble", augment=seen, num_modes=2, **options)
    assert len(seen.rows) == 4  # those of one pass, not one for each member
    pm.fit("deep_ensemble", num_modes=2, data_order="shared", **options)
    pm.fit("map", **options)


@pytest.mark.parametrize("order", ["shared", "own"])
@pytest.mark.parametrize("source", SOURCES)
def test_a_resumed_run_skips_and_repeats_nothing(source, order, tmp_path: Path) -> None:
    """Stopped within an epoch: both parts see what the whole run sees, rows and draws."""
    whole = see(source, data_order=order)

    def interrupt(event: Event) -> None:
        if event.kind == "checkpoint" and event.step == 5:
            os.kill(os.getpid(), signal.SIGINT)

    options = {"data_order": order, "checkpoint": tmp_path, "checkpoint_seconds": 0}
    first = Seen()
    with pytest.raises(KeyboardInterrupt):
        see(source, first, on_event=interrupt, **options)
    second = see(source, **options)
    assert 4 < len(first.rows) < 8  # within the second epoch
    assert first.rows + second.rows == whole.rows
    assert first.draws + second.draws == whole.draws
    for epoch in (whole.rows[:4], whole.rows[4:]):
        assert sorted(row for batch in epoch for row in batch) == list(range(11))


def test_a_loader_that_yields_less_than_it_says_is_refused() -> None:
    """It would be asked for the batches that lack for ever."""

    class Short:
        def __len__(self) -> int:
            return 4

        def __iter__(self):
            yield from DataLoader(TensorDataset(X, Y), batch_size=4)

    task = pm.Task(train=Short(), likelihood="categorical")
    with pytest.raises(ValueError, match="ended after 3 batches, but should have 4"):
        pm.fit("map", net=lambda: nn.Linear(1, 2), task=task, epochs=2, progress="silent")
