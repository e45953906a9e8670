"""Second derivatives of layers against torch's own, in float64."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn

from polymode.core.trace import quicken, trace
from polymode.methods.particles.derivatives import QuickDerivatives
from polymode.nets import resnet8

CASES = [
    {"in_channels": 1, "kernel_size": 5},
    {"in_channels": 2, "kernel_size": (3, 2), "padding": (1, 0)},
    {"in_channels": 2, "kernel_size": 2, "padding": 2},
    {"in_channels": 1, "kernel_size": 3, "stride": 2, "padding": 1},
    {"in_channels": 4, "kernel_size": 3, "groups": 2, "bias": False},
    {"in_channels": 3, "kernel_size": 3, "dilation": 2, "stride": (2, 1)},
    {"in_channels": 3, "kernel_size": 3, "padding": "same"},
    {"in_channels": 3, "kernel_size": 3, "padding": 1, "padding_mode": "circular"},
]


class Residual(nn.Module):
    """Max-pooling, ReLU in and out of place, BatchNorm with a channel at γ = 0, a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(4), nn.BatchNorm2d(4, eps=0.1)
        self.relu, self.head = nn.ReLU(inplace=True), nn.Linear(48, 3)
        with torch.no_grad():
            for norm in (self.norm1, self.norm2):
                norm.weight.copy_(torch.tensor([0.0, -0.5, 1.0, 2.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(self.relu(self.norm1(self.conv1(x))), 3, 2, 1)
        x = torch.relu(self.norm2(self.conv2(x)) + x)
        return self.head(F.max_pool2d(x, (1, 2), ceil_mode=True).flatten(1)[:, :48]).exp()


def piecewise() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 4, 2), nn.MaxPool2d(2, 1),
        nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(16, 5), nn.ReLU(), nn.Linear(5, 2),
    )  # fmt: skip


def gradients(net: nn.Module, x: torch.Tensor, mode: QuickDerivatives | None) -> list[torch.Tensor]:
    """Outputs, input gradient and the gradients of a joint backward pass."""
    leaf = x.detach().requires_grad_()
    if mode is None:
        out = net(leaf)
    else:
        mode.inputs = leaf.data_ptr()
        with mode:
            out = net(leaf)
        mode.inputs_only = True
    (j,) = torch.autograd.grad(out.sum(), leaf, create_graph=True)
    if mode is not None:
        mode.inputs_only = False
    loss, parameters = out.square().sum(), list(net.parameters())
    heads = [torch.ones_like(loss), x.flip(0).cos()]
    grads = torch.autograd.grad([loss, j], parameters, heads)
    return [out.detach(), j.detach(), *grads]


def assert_as_torch(net: nn.Module, x: torch.Tensor, channels_last: bool) -> None:
    net = net.double()
    if channels_last:
        net, x = (t.to(memory_format=torch.channels_last) for t in (net, x))
    twin = copy.deepcopy(net)
    found, expected = gradients(net, x, QuickDerivatives()), gradients(twin, x, None)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-11)
    for one, other in zip(net.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("size", [(9, 8), (8, 12)])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_convolutions(case, size, channels_last) -> None:
    """Images of 8 × 12 pixels divide into the blocks of a turned convolution, 9 × 8 do not."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(out_channels=4, **case), nn.Tanh(), nn.Conv2d(4, 3, 2), nn.Flatten(), nn.Tanh()
    )
    x = torch.randn(3, case["in_channels"], *size, dtype=torch.float64)
    assert_as_torch(net, x, channels_last)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("make", [Residual, piecewise])
def test_masks_and_norms(make, channels_last) -> None:
    torch.manual_seed(0)
    side = 12 if make is Residual else 10
    assert_as_torch(make(), torch.randn(5, 1, side, side, dtype=torch.float64), channels_last)


@pytest.mark.parametrize("channels_last", [False, True])
def test_strided_pairs(channels_last) -> None:
    """The quick form of a residual network under the mode against the plain one under torch."""
    torch.manual_seed(0)
    template = resnet8((1, 8, 8), 3, width=4).double()
    module, graph = trace(template)
    quicken(module, graph, gradients=True)
    quick, x = fx.GraphModule(module, graph), torch.randn(5, 1, 8, 8, dtype=torch.float64)
    if channels_last:
        x = x.to(memory_format=torch.channels_last)
    found, expected = gradients(quick, x, QuickDerivatives()), gradients(template, x, None)
    names = ["outputs", "j", *dict(quick.named_parameters())]
    theirs = dict(zip(["outputs", "j", *dict(template.named_parameters())], expected, strict=True))
    for name, one in zip(names, found, strict=True):
        torch.testing.assert_close(one, theirs[name], rtol=1e-9, atol=1e-10)


def test_norms_of_features_and_of_evaluation() -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 3, dtype=torch.float64)
    net = nn.Sequential(nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4), nn.Tanh())
    assert_as_torch(net, x, False)
    assert_as_torch(net.eval(), x, False)
    assert_as_torch(
        nn.Sequential(nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4, affine=False)), x, False
    )


def test_it_ends_with_the_context() -> None:
    x, weight = torch.randn(1, 1, 4, 4), torch.randn(1, 1, 2, 2, requires_grad=True)
    with QuickDerivatives():
        inside = torch.conv2d(x, weight, None, 1, 0, 1, 1)
    outside = torch.conv2d(x, weight, None, 1, 0, 1, 1)
    assert "_Convolution" in type(inside.grad_fn).__name__
    assert type(inside.grad_fn) is not type(outside.grad_fn)
    assert torch.equal(inside, outside)
