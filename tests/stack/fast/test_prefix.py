"""One wide convolution for all members gives each member's own numbers."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polymode.likelihoods.kinds import Categorical, Gaussian
from polymode.nets import lenet
from polymode.stack.fast.plan import Plan
from polymode.stack.fast.prefix import prefix_of
from polymode.stack.stack import Stack

WIDE = Plan("threads", channels_last=True, wide=True)


def residual() -> nn.Module:
    """A skip connection, BatchNorm in the suffix, a strided first convolution without bias."""

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv2d(3, 4, 3, stride=2, padding=1, bias=False)
            self.second, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
            self.last = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = F.relu(self.first(x))
            h = h + F.relu(self.norm(self.second(h)))
            return self.last(h.mean((2, 3)))

    return Residual()


def frozen_start() -> nn.Module:
    module = residual()
    module.first.requires_grad_(False)
    return module


def small_lenet() -> nn.Module:
    return lenet((3, 8, 8), 3)


@pytest.mark.parametrize("net", [residual, frozen_start, small_lenet])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_numbers_are_the_loops(net, dtype, tolerance) -> None:
    """Losses, gradients, buffers and outputs, after three training passes."""
    stream = torch.Generator().manual_seed(0)
    x = torch.randn(12, 3, 8, 8, generator=stream, dtype=dtype)
    y = torch.randint(3, (12,), generator=stream)
    results = []
    for plan in (WIDE, Plan("loop")):
        stack = Stack(net, 5, dtype=dtype, execution="loop").train()
        stack.lay_out(plan.channels_last)
        stack.plans = {"gradients": plan, "outputs": plan}
        for step in range(3):
            losses = stack.gradients(Categorical().nll, x, y, step=step)
        gradient = torch.cat([leaf.grad.flatten(1) for leaf in stack.leaves()], dim=1)
        with torch.no_grad():
            outputs = stack.eval()(x)
        results.append([losses, gradient, outputs, *stack.buffers.values()])
        assert (("prefix, gradients True", "train") in stack.network._programs) is plan.wide
    for mine, theirs in zip(*results, strict=True):
        assert (mine - theirs).abs().max().item() <= tolerance * theirs.abs().max().item()


def test_gradients_with_respect_to_inputs_are_the_loops() -> None:
    """And the wide convolution is in the graph, which ends at the inputs alone."""
    stream = torch.Generator().manual_seed(0)
    x = torch.randn(12, 3, 8, 8, generator=stream, dtype=torch.float64).requires_grad_()
    found = []
    for plan in (Plan("loop", channels_last=True, wide=True), Plan("loop")):
        stack = Stack(small_lenet, 5, dtype=torch.float64).repeated(1, {})
        stack.lay_out(plan.channels_last)
        stack.plans = {"graph": plan}
        outputs = stack(x)
        found.append([outputs.detach(), *torch.autograd.grad(outputs.logsumexp(0).sum(), x)])
        assert (("prefix, gradients True", "eval") in stack.network._programs) is plan.wide
        assert not any(
            leaf.requires_grad for k in range(5) for leaf in stack.module(k).parameters()
        )
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12)


def test_learned_noise_is_trained_along() -> None:
    x, y = torch.randn(6, 3, 8, 8, dtype=torch.float64), torch.randn(6, 3, dtype=torch.float64)
    likelihood = Gaussian(noise="learned")
    gradients = []
    for plan in (WIDE, Plan("loop")):
        stack = Stack(small_lenet, 2, dtype=torch.float64).train()
        stack.add_parameters(likelihood.init(2, 3, dtype=torch.float64))
        stack.lay_out(plan.channels_last)
        stack.plans = {"gradients": plan}
        stack.gradients(likelihood.nll, x, y)
        gradients.append([leaf.grad for leaf in stack.leaves()])
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)


def test_what_can_be_cut() -> None:
    def steps(module: nn.Module) -> int | None:
        prefix = prefix_of(Stack(lambda: module))
        return None if prefix is None else len(prefix.steps)

    conv = nn.Conv2d(1, 2, 3)
    assert (
        steps(nn.Sequential(conv, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(2, 2))) == 2
    )
    assert steps(nn.Sequential(conv, nn.Conv2d(2, 2, 3))) == 0
    assert steps(nn.Sequential(nn.Flatten(), nn.Linear(4, 2))) is None
    assert steps(nn.Sequential(nn.Conv2d(2, 2, 3, groups=2), nn.Flatten())) is None
    assert steps(nn.Sequential(nn.Conv2d(1, 2, 3, padding_mode="reflect", padding=1))) is None

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 1, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(self.conv(x))

    class Skip(Twice):
        def forward(self, x: Tensor) -> Tensor:
            return self.conv(x) + x

    assert steps(Skip()) is None
    assert steps(Twice()) is None
