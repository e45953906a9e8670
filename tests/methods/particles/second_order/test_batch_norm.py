"""BatchNorm's second derivative in closed form against torch.autograd's, in float64."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from polymode.methods.particles.second_order import batch_norm
from polymode.methods.particles.second_order.batch_norm import QuickBatchNorm
from polymode.methods.particles.second_order.plain import Plain

from ..true_logits import terms_of


class Residual(nn.Module):
    """ReLU in and out of place, a channel at γ = 0, a shortcut, a curved end."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(4), nn.BatchNorm2d(4, eps=0.1)
        self.relu, self.head = nn.ReLU(inplace=True), nn.Linear(64, 4)
        with torch.no_grad():
            self.norm1.weight.copy_(torch.tensor([0.0, -0.5, 1.0, 2.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.relu(self.norm1(self.conv1(x)))
        x = torch.relu(self.norm2(self.conv2(x)) + x)
        return self.head(x.flatten(1)).exp()


def features() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(36, 5, bias=False), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 4)
    )


def without_scale() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 4), nn.BatchNorm1d(4, affine=False))


def evaluated() -> nn.Module:
    return features().eval()


def gradients(net: nn.Module, x: torch.Tensor, quick: bool) -> list[torch.Tensor]:
    def network(inputs: torch.Tensor) -> torch.Tensor:
        if not quick:
            return net(inputs)
        with QuickBatchNorm():
            return net(inputs)

    way = Plain(network, list(net.parameters()), {}, None, True)
    terms, y = terms_of(len(x)), torch.arange(len(x)) % 4
    losses, j, kept = way.forward(terms, x, y)
    return [losses, j, *way.backward(terms, kept, j.flip(1).cos()), *net.buffers()]


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("make", [Residual, features, without_scale, evaluated])
def test_gradients_and_statistics_are_torchs(make, channels_last, monkeypatch) -> None:
    monkeypatch.setattr(batch_norm, "_LARGE", 1)
    torch.manual_seed(0)
    net, x = make().double(), torch.randn(7, 1, 6, 6, dtype=torch.float64)
    if channels_last:
        net, x = (t.to(memory_format=torch.channels_last) for t in (net, x))
    found, expected = (gradients(copy.deepcopy(net), x, quick) for quick in (True, False))
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize(("rows", "own"), [(2**15 - 1, False), (2**15, True)])
def test_only_large_layers_and_only_within_the_context(rows, own) -> None:
    x, scale = torch.randn(rows, 1), torch.ones(1, requires_grad=True)
    shift = torch.zeros(1, requires_grad=True)
    with QuickBatchNorm():
        inside = F.batch_norm(x, None, None, scale, shift, True)
    outside = F.batch_norm(x, None, None, scale, shift, True)
    assert (type(inside.grad_fn) is not type(outside.grad_fn)) == own
    torch.testing.assert_close(inside, outside)
