"""Running statistics computed anew: against torch's cumulative average, and by hand."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from polymode.stack.stack import Stack

X = torch.randn(24, 3, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4, momentum=0.3),
        nn.Flatten(),
        nn.Linear(16, 5),
        nn.BatchNorm1d(5),
    )


@pytest.mark.parametrize("channels_last", [False, True])
def test_equal_batches_give_torchs_cumulative_average(channels_last) -> None:
    """`momentum=None` in torch is that average. Parameters, momenta and mode are left alone, and
    old statistics do not count."""
    stack = Stack(net, 3, dtype=torch.float64)
    stack.train()(X)
    stack.eval()
    stack.lay_out(channels_last)
    params = {name: tensor.detach().clone() for name, tensor in stack.params.items()}
    modules = [copy.deepcopy(module).train() for module in stack.members()]
    stack.recompute_statistics(X.split(8))
    for k, module in enumerate(modules):
        for layer in (module[1], module[4]):
            layer.momentum = None
            layer.reset_running_stats()
        for x in X.split(8):
            module(x)
        for name in ("1.running_mean", "1.running_var", "4.running_mean", "4.running_var"):
            expected = dict(module.named_buffers())[name]
            torch.testing.assert_close(stack.buffers[name][k], expected, rtol=1e-9, atol=1e-12)
    assert all(torch.equal(t, params[name]) for name, t in stack.params.items())
    assert stack.mode == "eval"
    assert [stack.module(k)[1].momentum for k in range(3)] == [0.3] * 3


def test_batches_weigh_by_their_size() -> None:
    stack = Stack(lambda: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(48)), 2, dtype=torch.float64)
    sizes = [10, 10, 4]
    stack.recompute_statistics(X.split(sizes))
    flat = [x.flatten(1) for x in X.split(sizes)]
    variance = sum(len(x) * x.var(0) for x in flat) / 24
    for k in range(2):
        torch.testing.assert_close(stack.buffers["1.running_mean"][k], X.flatten(1).mean(0))
        torch.testing.assert_close(stack.buffers["1.running_var"][k], variance)


def test_networks_without_statistics_are_left_alone() -> None:
    """Not even the batches are asked for."""

    def batches():
        raise AssertionError("a pass")
        yield

    stack = Stack(lambda: nn.Sequential(nn.Flatten(), nn.Linear(48, 2), nn.LayerNorm(2)), 2)
    assert not stack.has_statistics
    stack.recompute_statistics(batches())


def test_drawn_weights_get_their_own_statistics_and_leave_others() -> None:
    stack = Stack(net, 2, dtype=torch.float64)
    drawn = stack.with_tensors(
        {name: 2.0 * tensor.detach() for name, tensor in stack.params.items()},
        {name: tensor.clone() for name, tensor in stack.buffers.items()},
    )
    stack.recompute_statistics(X.split(8))
    before = {name: tensor.clone() for name, tensor in stack.buffers.items()}
    drawn.recompute_statistics(X.split(8))
    assert all(torch.equal(t, before[name]) for name, t in stack.buffers.items())
    torch.testing.assert_close(
        drawn.buffers["1.running_mean"], 2.0 * stack.buffers["1.running_mean"]
    )
    torch.testing.assert_close(drawn.buffers["1.running_var"], 4.0 * stack.buffers["1.running_var"])


@pytest.mark.parametrize("execution", ["batched", "chunked", "auto"])
def test_cumulative_averages_of_members_that_run_together(execution) -> None:
    """`momentum=None`: after three batches, statistics and gradients are those of a loop, also of
    members that had seen different numbers of batches before."""

    def net() -> nn.Module:
        norm = nn.BatchNorm1d(5, momentum=None)
        return nn.Sequential(nn.Linear(3, 5), norm, nn.ReLU(), nn.Linear(5, 1)).double()

    made = [net() for _ in range(3)]
    made[1][1].num_batches_tracked += 4
    generator = torch.Generator().manual_seed(0)
    batches = torch.randn(3, 8, 3, generator=generator, dtype=torch.float64)
    stacks = [Stack(made, execution=how).train() for how in ("loop", execution)]
    for number, x in enumerate(batches):
        for stack in stacks:
            stack.gradients(lambda out, y, _: (out - y).square().mean((-2, -1)), x, x[:, :1],
                            step=number)  # fmt: skip
    loop, other = stacks
    for name, tensor in loop.buffers.items():
        torch.testing.assert_close(other.buffers[name], tensor)
    assert loop.buffers["1.num_batches_tracked"].tolist() == [3, 7, 3]
    for mine, theirs in zip(other.leaves(), loop.leaves(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)
