"""Chains of linear layers and ReLUs: which networks are such, and the gradients of autograd."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import nn

from polymode.core.memory import saved_bytes
from polymode.methods.particles.input_gradients import repelled_gradients
from polymode.methods.particles.second_order.dense_chain import dense_chain
from polymode.stack.stack import Stack

from ..true_logits import terms_of

STREAM = torch.Generator().manual_seed(0)
X = torch.randn(9, 2, 3, generator=STREAM, dtype=torch.float64)
Y = torch.arange(9) % 4
BASIS = torch.linalg.qr(torch.randn(6, 2, generator=STREAM, dtype=torch.float64)).Q


class Functions(nn.Module):
    """ReLUs as functions, an attribute that is no layer of the chain's, a further argument."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.first = nn.Linear(5, 4), nn.Linear(6, 5)  # not in their order
        self.nothing = nn.Identity()

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        x = torch.flatten(x, 1)
        return self.last(self.nothing(torch.relu(self.first(x))))


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(torch.flatten(x, 1)).relu()
        return self.last(torch.relu(self.first(x)))


class Residual(Twice):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.flatten(x, 1)
        return self.last(torch.relu(self.first(x)) + x)


class Unused(Twice):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.flatten(x, 1))


def layers(*modules: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Flatten(), *modules)


def deep() -> nn.Module:
    return layers(
        nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 7), nn.ReLU(inplace=True), nn.Linear(7, 4)
    )


def linear() -> nn.Module:
    return layers(nn.Linear(6, 4))


def wide_head() -> nn.Module:
    return layers(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 20))


def frozen() -> nn.Module:
    net = deep()
    net[1].weight.requires_grad_(False)
    return net


OTHERS = {
    "no bias": lambda: layers(nn.Linear(6, 5, bias=False), nn.ReLU(), nn.Linear(5, 4)),
    "tanh": lambda: layers(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4)),
    "dropout": lambda: layers(nn.Linear(6, 5), nn.ReLU(), nn.Dropout(), nn.Linear(5, 4)),
    "two linear layers": lambda: layers(nn.Linear(6, 5), nn.Linear(5, 4)),
    "two ReLUs": lambda: layers(nn.Linear(6, 5), nn.ReLU(), nn.ReLU(), nn.Linear(5, 4)),
    "ReLU first": lambda: layers(nn.ReLU(), nn.Linear(6, 4)),
    "ReLU last": lambda: layers(nn.Linear(6, 4), nn.ReLU()),
    "linear over the last axis": lambda: nn.Sequential(nn.Linear(3, 4), nn.Flatten()),
    "nothing": nn.Flatten,
    "a layer twice": Twice,
    "residual": Residual,
    "unused layer": Unused,
    "frozen": frozen,
}


def stack_of(net, execution: str = "batched", chunk_size: int | None = None) -> Stack:
    how = {"execution": execution, "chunk_size": chunk_size}
    return Stack(net, 4, seed=1, dtype=torch.float64, **how).train()


def found_with(chains: bool, net, x: torch.Tensor, rows: int, basis=None, **how) -> tuple:
    stack, terms = stack_of(net, **how), terms_of(rows, basis, chains)
    assert dense_chain(stack, x) is not None
    for number in range(2):  # gradients are set, not added up
        losses, values = repelled_gradients(stack, terms, x, Y, number)
    return losses, values, {name: leaf.grad for name, leaf in stack.params.items()}


HOW = [
    {"execution": "batched"},
    {"execution": "chunked", "chunk_size": 3},
    {"execution": "loop", "chunk_size": 1},
    {"execution": "threads"},
]


@pytest.mark.parametrize("how", HOW, ids=lambda how: how["execution"])
@pytest.mark.parametrize(("rows", "basis"), [(9, None), (4, None), (4, BASIS)])
@pytest.mark.parametrize("net", [deep, linear, wide_head, Functions])
def test_gradients_are_those_of_autograd(net, rows, basis, how) -> None:
    found = found_with(True, net, X, rows, basis, **how)
    torch.testing.assert_close(found, plain(net, rows, basis is None), rtol=1e-10, atol=1e-12)


@cache
def plain(net, rows: int, inputs: bool) -> tuple:
    return found_with(False, net, X, rows, None if inputs else BASIS)


@pytest.mark.parametrize("size", [1, 11, 12, 30])
def test_narrow_and_wide_inputs(size) -> None:
    """Narrow ones lie column by column in memory."""
    x = torch.randn(9, size, generator=STREAM, dtype=torch.float64)

    def net() -> nn.Module:
        return nn.Sequential(nn.Linear(size, 5), nn.ReLU(), nn.Linear(5, 4))

    found = [found_with(chains, net, x, 7) for chains in (True, False)]
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", OTHERS)
def test_other_networks(name) -> None:
    assert dense_chain(stack_of(OTHERS[name]), X) is None


def test_inputs_of_several_axes_must_be_flattened() -> None:
    stack = stack_of(lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4)))
    assert dense_chain(stack, X.flatten(1)) is not None
    assert dense_chain(stack, X.view(9, 1, 6)) is None


def test_members_and_likelihoods_with_more_parameters() -> None:
    stack = stack_of(deep)
    stack.add_parameters({"scale": torch.zeros(4, 1, dtype=torch.float64)})
    assert dense_chain(stack, X) is None


def test_what_is_kept_is_counted() -> None:
    """So that members who do not fit into memory are made again."""
    chain = dense_chain(stack_of(deep), X)
    whole, few = (
        saved_bytes(lambda rows=rows: chain.forward(terms_of(rows), X, Y)) for rows in (9, 1)
    )
    hidden, outputs = 5 + 7, 4
    assert whole >= 8 * (X.numel() + 4 * 9 * 3 * hidden)  # activations, masks, slopes
    assert whole - few >= 8 * (4 * 8 * hidden + 8 * outputs)
