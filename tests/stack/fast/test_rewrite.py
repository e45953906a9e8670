"""The quick form of a network has the same outputs and gradients, bit by bit."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from polymode.nets import lenet
from polymode.stack.fast.rewrite import pool_by_2, quick_module, quicken
from polymode.tracing.graph import trace


class Pooled(nn.Module):
    """Max-pooling after a ReLU, after a ReLU whose result is used twice, and after nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.pool = nn.Conv2d(1, 4, 3, padding=1), nn.MaxPool2d(2)
        self.second, self.last = nn.Conv2d(4, 4, 3, padding=1), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.pool(F.relu(self.first(x)))
        h = F.relu(self.second(h))
        h = self.pool(h) + self.pool(self.second(h))
        return self.last(F.max_pool2d(h, 3).mean((2, 3)) + h.mean((2, 3)))


def images(channels_last: bool) -> Tensor:
    """Half of each image is black, so that windows of max-pooling hold equal values."""
    x = torch.randn(6, 1, 12, 12, generator=torch.Generator().manual_seed(0))
    x[..., :6] = 0
    return x.contiguous(memory_format=torch.channels_last) if channels_last else x


@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("net", [lambda: lenet((1, 12, 12), 3), Pooled])
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
    plain = nn.Sequential(nn.Flatten(), nn.Linear(144, 3))
    assert quick_module(plain, gradients=True) is None
