"""The quick form of a network has the same outputs and gradients, bit by bit."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from polymode.core.stack import Stack
from polymode.core.trace import pool_by_2, quick_of, quicken, trace
from polymode.nets import lenet, resnet8


def resnet_a() -> nn.Module:
    return resnet8((1, 12, 12), 3, shortcut="padding")


class Residual(nn.Module):
    """ReLUs after BatchNorm, after a sum, and one whose input is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.second, self.last = nn.Conv2d(4, 4, 3, padding=1), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm(self.first(x)))
        twice = self.second(h)
        h = F.relu(F.relu(twice) * twice + h)
        return self.last(h.mean((2, 3)))


def images(channels_last: bool) -> Tensor:
    """Half of each image is black, so that windows of max-pooling hold equal values."""
    x = torch.randn(6, 1, 12, 12, generator=torch.Generator().manual_seed(0))
    x[..., :6] = 0
    return x.contiguous(memory_format=torch.channels_last) if channels_last else x


class Sums(nn.Module):
    """Sums of layers' results, of one that is used again and of one with another shape; ReLUs that
    share their gradient with another term of a sum, and one that is an output."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.second, self.narrow = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 1, 3, padding=1)
        self.last = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        start = self.first(x)
        a, b = F.relu(self.norm(start)), F.relu(self.second(start))
        h = a + b  # one gradient goes to both
        h = F.relu(self.second(h) + h)
        h = F.relu(self.narrow(h) + self.second(h))  # of other shapes
        h = F.relu(start + self.second(h))
        h = self.second(h)
        h = h + h
        return F.relu(self.last((h + start).mean((2, 3))))


@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("net", [lambda: lenet((1, 12, 12), 3), Residual, Sums, resnet_a])
def test_no_bit_changes(net, channels_last) -> None:
    torch.manual_seed(1)
    template, x = net(), images(channels_last)
    results = []
    for quick in (False, True):
        module, graph = trace(template)
        assert not quick or quicken(module, graph, gradients=True)
        module = fx.GraphModule(module, graph)
        out = module(x)
        of_output = 2 * out.detach()
        weights, before = list(module.parameters()), of_output.clone()
        grads = torch.autograd.grad(out, weights, of_output, retain_graph=True)
        again = torch.autograd.grad(out, weights, of_output, create_graph=True)
        assert torch.equal(of_output, before)
        results.append([out, *grads, *again])
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(*results, strict=True))
    module, graph = trace(template.eval())
    assert quicken(module, graph, gradients=False)
    with torch.no_grad():
        assert torch.equal(fx.GraphModule(module, graph)(x), template(x))


@pytest.mark.parametrize("sides", [(12, 12), (7, 9), (2, 3)])
def test_pooling_by_slices(sides) -> None:
    x = torch.randn(2, 3, *sides).contiguous(memory_format=torch.channels_last)
    x[0, 0, 0, 0] = float("nan")
    assert torch.equal(pool_by_2(x).nan_to_num(9), F.max_pool2d(x, 2).nan_to_num(9))
    assert torch.equal(pool_by_2(x[1:].contiguous()), F.max_pool2d(x[1:], 2))


def test_what_draws_outside_of_torch_or_has_hooks_is_left_alone() -> None:
    class Random(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.relu(x + x) if random.random() < 2 else x

    hooked = lenet((1, 12, 12), 3)
    hooked[0].register_forward_hook(lambda *_: None)
    assert trace(Random()) is None and trace(hooked) is None
    assert quick_of(Stack(lambda: nn.Sequential(nn.Flatten(), nn.Linear(144, 3)), 2)) is None
