"""Passes of a noisy network: where it is cut, and that cutting changes nothing but the time."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from polymode.stack.fast import passes
from polymode.stack.fast.passes import gradients_of_passes, halves_of, noisy_passes
from polymode.stack.stack import Stack

X = torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
NUMBERS = [11, 4, 7, 30]


def images() -> nn.Module:
    """Dropout behind the convolutions, as in a LeNet."""
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.ReLU(), nn.BatchNorm2d(3), nn.MaxPool2d(2), nn.Flatten(),
        nn.Dropout(0.3), nn.Linear(27, 6), nn.ReLU(inplace=True), nn.Dropout(0.3), nn.Linear(6, 2),
    )  # fmt: skip


def at_inputs() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.3), nn.Linear(64, 2))


class Residual(nn.Module):
    """Two values live where the noise comes; one does before the block."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.block, self.last = nn.Linear(64, 8), nn.Linear(8, 8), nn.Linear(8, 2)
        self.dropout = nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x.view(x.size(0), -1))
        return self.last(h + self.dropout(torch.relu(self.block(h))))


class SequenceFirst(nn.Module):
    """The batch is the second axis where the noise comes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x.flatten(1, 2)).transpose(0, 1)
        return self.last(nn.functional.dropout(h, 0.3, self.training).mean(0))


class Untraceable(nn.Module):
    """Python code that depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.dropout = nn.Linear(64, 2), nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        h = x.flatten(1)
        return self.layer(self.dropout(h) if h.sum() < 1e9 else h)


class Tied(nn.Module):
    """One tensor under two names, before and behind the noise."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 2)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        h = nn.functional.dropout(self.first(x.flatten(1)), 0.3, self.training)
        return self.last(self.second(h))


def layers_of(network) -> list[str]:
    return [] if network is None else [name for name, _ in network.template.named_children()]


@pytest.mark.parametrize(
    ("net", "early", "late"),
    [
        (images, ["0", "1", "2", "3", "4"], ["5", "6", "7", "8", "9"]),
        (at_inputs, [], []),
        (Residual, ["first"], ["block", "dropout", "last"]),
        (SequenceFirst, ["first"], ["last"]),
        (Untraceable, [], []),
        (Tied, [], []),
    ],
)
def test_where_a_network_is_cut(net, early, late) -> None:
    halves = halves_of(Stack(net, dtype=torch.float64), X)
    assert (layers_of(halves.early), layers_of(halves.late)) == (early, late)
    assert halves.grouped


@pytest.mark.parametrize("piece", [1, 2**25])
@pytest.mark.parametrize("execution", ["loop", "batched", "threads"])
@pytest.mark.parametrize("net", [images, at_inputs, Residual, SequenceFirst, Untraceable, Tied])
def test_passes_are_those_of_a_loop(net, execution, piece, monkeypatch) -> None:
    """Whatever the cut and however many passes stand in one batch; the inputs stay as they are."""
    if net is Untraceable and execution == "batched":
        return  # vmap cannot follow it
    monkeypatch.setattr(passes, "_PIECE", piece)
    stack = Stack(net, 2, dtype=torch.float64, execution=execution)
    x = X.clone()
    with torch.no_grad():
        found = noisy_passes(stack, x, NUMBERS)
        wanted = torch.stack([stack.set_mode("noisy", each)(X) for each in NUMBERS], 1)
    assert found.shape == (2, 4, 5, 2)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)
    assert (found[:, 0] - found[:, 1]).abs().max() > 1e-3
    assert torch.equal(x, X)


def test_pieces_bound_the_rows(monkeypatch) -> None:
    """As many passes at a time as their intermediate results have place, at least one."""
    seen = []
    plain = Stack.__call__
    monkeypatch.setattr(
        Stack, "__call__", lambda self, x, **how: (seen.append(x.shape), plain(self, x, **how))[1]
    )
    stack = Stack(at_inputs, 1, dtype=torch.float64)
    size = halves_of(stack, X).row_bytes
    assert 64 * 8 * 3 <= size <= 64 * 8 * 8  # dropout's mask, its scaling, the product; views
    monkeypatch.setattr(passes, "_PIECE", 3 * 5 * size)
    with torch.no_grad():
        noisy_passes(stack, X, range(7))
    assert [shape[0] for shape in seen] == [15, 15, 5]


def test_a_parameter_that_no_pass_uses_does_no_harm() -> None:
    """A graph has what a pass uses; then the inputs are repeated, and its gradient is 0."""

    class Idle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.idle, self.dropout = nn.Linear(64, 2), nn.Linear(3, 3), nn.Dropout(0.3)

        def forward(self, x: Tensor) -> Tensor:
            return self.dropout(self.used(x.flatten(1)))

    stack = Stack(Idle, 2, dtype=torch.float64, execution="loop").train()
    gradients_of_passes(
        stack, 3, lambda out, y, extra: out.square().mean((-2, -1)), X, X[:, 0], own=False, step=0
    )
    grads = {name: leaf.grad for name, leaf in stack.params.items()}
    assert grads["used.weight"].abs().sum() > 0
    assert grads["idle.weight"].abs().sum() == 0


def test_memory_format_is_that_of_the_stack() -> None:
    """The networks that repeat rows share memory with the stack: both have one format."""
    stack = Stack(images, 2, dtype=torch.float32).train()
    x = X.float()
    for step in range(2):
        gradients_of_passes(
            stack, 3, lambda out, y, extra: out.square().mean((-2, -1)), x, x, own=False, step=step
        )
        with torch.no_grad():
            for leaf in stack.leaves():
                leaf -= 0.1 * leaf.grad
    stack.eval()
    with torch.no_grad():
        together = stack(x)
        alone = torch.stack([member(x) for member in stack.members()])
    torch.testing.assert_close(together, alone)
