"""What is kept between the passes of repelled members, and that it does not change the result."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from polymode.core.likelihoods import Categorical
from polymode.core.stack import Stack
from polymode.methods.particles import input_gradients
from polymode.methods.particles.input_gradients import Terms, repelled_gradients
from polymode.methods.particles.repulsion import repulsion

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


def true_logit(outputs, targets, extra) -> torch.Tensor:
    return outputs.gather(-1, targets.expand(outputs.shape[:-1]).unsqueeze(-1)).squeeze(-1)


def run(net, execution: str, chunk_size: int | None = None, rows: int = 8, steps: int = 1) -> Stack:
    stack = Stack(
        net, 4, seed=1, execution=execution, chunk_size=chunk_size, dtype=torch.float64
    ).train()
    terms = Terms(Categorical().nll, true_logit, partial(repulsion), 0.7, rows)
    for number in range(steps):
        repelled_gradients(stack, terms, X, Y, number)
    return stack


def assert_same(one: Stack, other: Stack) -> None:
    for a, b in zip(one.leaves(), other.leaves(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-10, atol=1e-12)
    for name, buffer in one.buffers.items():
        torch.testing.assert_close(buffer, other.buffers[name], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("rows", [3, 8])
@pytest.mark.parametrize("execution", ["loop", "threads", "chunked"])
@pytest.mark.parametrize("net", [piecewise, normed, smooth, dense])
def test_graphs_that_are_dropped_are_made_again(net, execution, rows) -> None:
    """One graph kept or all: the same gradients, and running statistics that moved once."""
    kept, dropped = run(net, "loop", rows=rows), run(net, execution, 1, rows=rows)
    assert kept.plans["repulsion"].chunk_size == 4
    assert_same(kept, dropped)


def test_the_last_graphs_are_kept_and_freed_first(monkeypatch) -> None:
    """So that none of them waits while another member's is made."""
    seen = {"_forward": [], "_backward": []}

    def watch(name: str, made, unit, *rest):
        seen[name].append(unit.grads[0].data_ptr())
        return made(unit, *rest)

    for name in seen:
        wrapped = partial(watch, name, getattr(input_gradients, name))
        monkeypatch.setattr(input_gradients, name, wrapped)
    run(piecewise, "loop", chunk_size=1)
    forward, backward = seen["_forward"][-7:], seen["_backward"][-4:]  # trials went before
    assert backward == forward[:4][::-1]
    assert forward[4:] == backward[1:]


def test_gradients_do_not_pile_up() -> None:
    """Products are added in place to the gradients of the losses, which every step sets anew."""
    for net in (piecewise, dense):
        for execution in ("loop", "batched"):
            assert_same(run(net, execution), run(net, execution, steps=3))


@pytest.mark.parametrize(
    ("net", "execution", "apart"),
    [
        (piecewise, "loop", True),
        (dense, "loop", True),
        (dense, "batched", True),
        (normed, "loop", False),
        (smooth, "loop", False),
        (smooth, "batched", False),
    ],
)
def test_piecewise_linear_networks_free_their_activations(
    net, execution, apart, monkeypatch
) -> None:
    """Without curvature, the losses have their backward pass before the members meet."""
    seen, forward = [], input_gradients._forward

    def watch(*args):
        found = forward(*args)
        seen.append(found[0])
        return found

    monkeypatch.setattr(input_gradients, "_forward", watch)
    run(net, execution)
    assert {not passed.losses.requires_grad for passed in seen} == {apart}


def test_input_gradients_keep_less_than_the_activations(monkeypatch) -> None:
    """Of pooling and ReLU what is kept for the second derivative is small numbers and bytes."""
    kept, forward = [], input_gradients._forward

    def watch(*args):
        found = forward(*args)
        kept.append(_kept_bytes(found[0].graph.node))
        return found

    monkeypatch.setattr(input_gradients, "_forward", watch)
    run(pooled, "loop")
    convolved = 8 * 16 * 8 * 8 * 8  # bytes of what the convolution gives for the batch
    pooled_ = convolved // 4
    most = pooled_ + pooled_ // 4 + pooled_ // 8  # gradient in float64, places in int16, bytes
    assert max(kept) < 1.05 * most + 8 * 3 * 256 + 10_000  # and weights


def pooled() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(256, 3),
    )  # fmt: skip


def _kept_bytes(node) -> int:
    """Bytes that the graph from this node on keeps, each storage counted once."""
    todo, seen, storages = [node], set(), {}
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        for tensor in getattr(node, "saved_tensors", ()):
            storage = tensor.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
        todo += [source for source, _ in node.next_functions]
    return sum(storages.values())


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
