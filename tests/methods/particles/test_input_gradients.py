"""What is kept between the passes of repelled members, and that it does not change the result."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from polymode.likelihoods.kinds import Categorical
from polymode.methods.particles import input_gradients
from polymode.methods.particles.input_gradients import repelled_gradients
from polymode.methods.particles.second_order import batch_norm
from polymode.stack.stack import Stack

from .true_logits import terms_of

X = torch.randn(8, 1, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.arange(8) % 3


def piecewise() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(27, 5),
        nn.ReLU(), nn.Linear(5, 3),
    )  # fmt: skip


def normed() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(108, 3)
    )


def smooth() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.Tanh(), nn.Linear(5, 3))


def dense() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.ReLU(), nn.Linear(5, 3))


def run(net, execution: str, chunk_size: int | None = None, rows: int = 8, steps: int = 1) -> Stack:
    stack = Stack(
        net, 4, seed=1, execution=execution, chunk_size=chunk_size, dtype=torch.float64
    ).train()
    terms = terms_of(rows)
    for number in range(steps):
        repelled_gradients(stack, terms, X, Y, number)
    return stack


def assert_same(one: Stack, other: Stack) -> None:
    for a, b in zip(one.leaves(), other.leaves(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-10, atol=1e-12)
    for name, buffer in one.buffers.items():
        torch.testing.assert_close(buffer, other.buffers[name], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("execution", "rows"), [("loop", 3), ("threads", 8), ("chunked", 8)])
@pytest.mark.parametrize("net", [normed, smooth])
def test_graphs_that_are_dropped_are_made_again(net, execution, rows, monkeypatch) -> None:
    """One graph kept or all: the same gradients, and running statistics that moved once."""
    monkeypatch.setattr(batch_norm, "_LARGE", 1)
    kept, dropped = run(net, "loop", rows=rows), run(net, execution, 1, rows=rows)
    assert kept.plans["repulsion"].chunk_size == 4
    assert_same(kept, dropped)


@pytest.mark.parametrize("net", [normed, smooth, piecewise])
def test_how_many_graphs_are_kept_changes_no_bit(net) -> None:
    """It depends on the memory that is free."""
    kept, dropped = run(net, "loop", steps=2), run(net, "loop", 1, steps=2)
    for a, b in zip(kept.leaves(), dropped.leaves(), strict=True):
        assert torch.equal(a.grad, b.grad)


def test_the_last_graphs_are_kept_and_freed_first(monkeypatch) -> None:
    """So that none of them waits while another member's is made."""
    seen = {"forward": [], "backward": []}

    class Watched(input_gradients.Plain):
        def forward(self, *args):
            seen["forward"].append(self.leaves[0].data_ptr())
            return super().forward(*args)

        def backward(self, *args):
            seen["backward"].append(self.leaves[0].data_ptr())
            return super().backward(*args)

    monkeypatch.setattr(input_gradients, "Plain", Watched)
    run(piecewise, "loop", chunk_size=1)
    forward, backward = seen["forward"][-7:], seen["backward"][-4:]  # trials went before
    assert backward == forward[:4][::-1]
    assert forward[4:] == backward[1:]


def test_gradients_do_not_pile_up() -> None:
    """Every step sets them anew."""
    for net in (piecewise, dense):
        for execution in ("loop", "batched"):
            assert_same(run(net, execution), run(net, execution, steps=3))


def test_constant_input_gradients() -> None:
    """With frozen weights there is nothing to repel, and biases follow the losses."""

    def frozen() -> nn.Module:
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
        net[1].weight.requires_grad_(False)
        return net

    stack = run(frozen, "loop")
    bias = stack.params["1.bias"].grad.clone()
    stack.gradients(Categorical().nll, X, Y)
    torch.testing.assert_close(bias, stack.params["1.bias"].grad)
