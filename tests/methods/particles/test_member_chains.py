"""Chains of images, one member at a time: which networks are such, and the same gradients as
autograd's."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from polymode.core.choice import Plan
from polymode.core.memory import saved_bytes
from polymode.core.stack import Stack
from polymode.methods.particles.chains import member_chain
from polymode.methods.particles.input_gradients import repelled_gradients

from .true_logits import terms_of

STREAM = torch.Generator().manual_seed(0)
Y = torch.arange(6) % 4


def images(channels: int, side: int) -> torch.Tensor:
    x = torch.randn(6, channels, side, side + 1, generator=STREAM, dtype=torch.float64)
    x[:, :, : side // 2] = 0  # an even background: windows with equal values
    return x


GREY, RGB = images(1, 12), images(3, 11)


def net(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers)


class Functions(nn.Module):
    """ReLUs as functions, layers not in their order, an unused argument."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.nothing = nn.Linear(60, 4), nn.Identity()
        self.pool, self.conv = nn.MaxPool2d(2), nn.Conv2d(1, 3, 4)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return self.last(self.nothing(torch.flatten(self.pool(torch.relu(self.conv(x))), 1)))


CHAINS = {
    "LeNet": (GREY, lambda: net(
        nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 9, 3), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(9, 5), nn.ReLU(), nn.Linear(5, 4),
    )),
    "functions": (GREY, Functions),
    "two convolutions, pooling by 3": (RGB, lambda: net(
        nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(6, 9, 3, bias=False),
        nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1, ceil_mode=True), nn.Flatten(),
        nn.Linear(270, 4),
    )),
    "stride, dilation, groups": (RGB, lambda: net(
        nn.Conv2d(3, 6, 3, stride=2, padding=(1, 0)), nn.ReLU(),
        nn.Conv2d(6, 9, 2, dilation=2, groups=3), nn.ReLU(), nn.Flatten(), nn.Linear(108, 4),
    )),
    "pooling of a convolution without a ReLU": (GREY, lambda: net(
        nn.Conv2d(1, 7, 4, padding=2, bias=False), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(294, 4),
    )),
    "images to the last": (GREY, lambda: net(
        nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 4, (10, 11)), nn.Flatten(),
    )),
    "a ReLU last": (GREY, lambda: net(nn.Conv2d(1, 4, (12, 13)), nn.Flatten(), nn.ReLU())),
    "linear layers": (GREY, lambda: net(
        nn.Flatten(), nn.Linear(156, 5, bias=False), nn.ReLU(), nn.Linear(5, 6), nn.Linear(6, 4),
    )),
}  # fmt: skip

OTHERS = {
    "average pooling": lambda: net(nn.Conv2d(1, 2, 3), nn.AvgPool2d(2), nn.Flatten()),
    "tanh": lambda: net(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten()),
    "BatchNorm": lambda: net(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten()),
    "dropout": lambda: net(nn.Conv2d(1, 2, 3), nn.Dropout(), nn.Flatten()),
    "reflected": lambda: net(nn.Conv2d(1, 2, 3, padding=1, padding_mode="reflect"), nn.Flatten()),
    "padding by name": lambda: net(nn.Conv2d(1, 2, 3, padding="same"), nn.Flatten()),
    "ReLU first": lambda: net(nn.ReLU(), nn.Conv2d(1, 2, 3), nn.Flatten()),
    "pooling first": lambda: net(nn.MaxPool2d(2), nn.Conv2d(1, 2, 3), nn.Flatten()),
    "linear over the last axis": lambda: net(nn.Conv2d(1, 2, 3), nn.Linear(11, 4)),
    "nothing": nn.Flatten,
}


def stack_of(make_net, channels_last: bool = False, chunk_size: int | None = None) -> Stack:
    stack = Stack(make_net, 4, seed=1, dtype=torch.float64, execution="loop").train()
    stack.lay_out(channels_last)
    stack.plans["repulsion"] = Plan("loop", channels_last, chunk_size)
    return stack


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(
    ("rows", "chunk_size", "components"), [(6, None, 0), (4, None, 3), (6, 1, 3), (1, 2, 0)]
)
@pytest.mark.parametrize("name", CHAINS)
def test_gradients_are_those_of_autograd(name, rows, chunk_size, components, channels_last) -> None:
    x, make_net = CHAINS[name]
    basis = None
    if components:
        numbers = torch.randn(x[0].numel(), components, generator=STREAM, dtype=x.dtype)
        basis = torch.linalg.qr(numbers).Q
    found = []
    for chains in (True, False):
        stack = stack_of(make_net, channels_last, chunk_size)
        assert member_chain(stack, 1, x) is not None
        terms = terms_of(rows, basis, chains)
        for number in range(2):  # gradients are set, not added up
            losses, values = repelled_gradients(stack, terms, x, Y, number)
        found.append((losses, values, {n: leaf.grad for n, leaf in stack.params.items()}))
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-12)
    assert (x[:, :, : x.shape[2] // 2] == 0).all(), "the inputs are as they were"


@pytest.mark.parametrize("name", OTHERS)
def test_other_networks(name) -> None:
    assert member_chain(stack_of(OTHERS[name]), 0, GREY) is None


def test_inputs_must_have_the_axes_of_the_first_layer() -> None:
    assert member_chain(stack_of(CHAINS["LeNet"][1]), 0, GREY[0]) is None
    stack = stack_of(lambda: net(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4)))
    assert member_chain(stack, 0, GREY.view(6, 26, 6)) is None
    assert member_chain(stack, 0, GREY.view(-1, 6)) is not None


def test_what_is_kept_is_counted() -> None:
    """So that members who do not fit into memory are made again."""
    x, make_net = CHAINS["LeNet"]
    chain = member_chain(stack_of(make_net), 0, x)
    found = []
    for rows in (6, 1):
        terms = terms_of(rows)
        found.append(saved_bytes(lambda terms=terms: chain.forward(terms, x, Y, False)))
    pooled, last = 3 * 5 * 5, 9 + 5  # numbers of the first layer and of the last ones, per input
    assert found[0] > 8 * (x.numel() + 6 * (pooled + last))  # activations
    assert found[0] - found[1] >= 5 * (8 * (pooled + last) + 3 * pooled)  # slopes, places, masks
