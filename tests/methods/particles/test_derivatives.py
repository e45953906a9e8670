"""Second derivatives of convolutions against torch's own, in float64."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from polymode.methods.particles.derivatives import QuickDerivatives

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


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_joint_backward_equals_torch(case, channels_last) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(out_channels=4, **case), nn.Tanh(), nn.Conv2d(4, 3, 2), nn.Flatten(), nn.Tanh()
    ).double()
    x = torch.randn(3, case["in_channels"], 9, 8, dtype=torch.float64)
    if channels_last:
        net, x = (t.to(memory_format=torch.channels_last) for t in (net, x))
    cotangent = torch.randn_like(x)

    def gradients(mode: QuickDerivatives | None) -> list[torch.Tensor]:
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
        grads = torch.autograd.grad([loss, j], parameters, [torch.ones_like(loss), cotangent])
        return [out.detach(), j.detach(), *grads]

    for found, expected in zip(gradients(QuickDerivatives()), gradients(None), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-11)


def test_it_ends_with_the_context() -> None:
    x, weight = torch.randn(1, 1, 4, 4), torch.randn(1, 1, 2, 2, requires_grad=True)
    with QuickDerivatives():
        inside = torch.conv2d(x, weight, None, 1, 0, 1, 1)
    outside = torch.conv2d(x, weight, None, 1, 0, 1, 1)
    assert "_Convolution" in type(inside.grad_fn).__name__
    assert type(inside.grad_fn) is not type(outside.grad_fn)
    assert torch.equal(inside, outside)
