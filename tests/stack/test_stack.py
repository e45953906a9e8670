"""Stacks: every execution gives the numbers of the members alone."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polymode.likelihoods.kinds import Categorical
from polymode.stack.execution import chunks
from polymode.stack.fast.plan import Plan
from polymode.stack.stack import Stack

EXECUTIONS = ("batched", "loop", "threads", "chunked", "auto")


class Residual(nn.Module):
    """A dense network with a skip connection, LayerNorm and functional activations."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.norm = nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x.flatten(1)))
        h = h + F.gelu(self.second(self.norm(h)))
        return self.last(h) * 0.5


class Convolutional(nn.Module):
    """Convolutions with BatchNorm, written with a view that only vmap understands."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)
        self.last = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm(self.conv(x.view(x.shape[0], 1, 2, 3).repeat(1, 1, 2, 2))))
        return self.last(h.mean((2, 3)))


class Tied(nn.Module):
    """One weight used twice, a frozen layer, and a tensor kept as a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.again = nn.Linear(6, 6), nn.Linear(6, 6)
        self.again.weight = self.first.weight
        self.frozen = nn.Linear(6, 3).requires_grad_(False)
        self.scale = torch.rand(1) + 0.5

    def forward(self, x: Tensor) -> Tensor:
        return self.frozen(torch.sin(self.again(torch.tanh(self.first(x))))) * self.scale


class Counting(nn.Module):
    """A buffer that the forward pass binds anew, and one that it changes in place."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        out = self.layer(x)
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * out.detach().mean(0)
            self.calls.add_(1)
        return out - self.mean


def batch_norm_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def dropout_mlp() -> nn.Module:
    return nn.Sequential(nn.Dropout(0.2), nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3))


def dropout_conv() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 3)),
        nn.Conv2d(1, 4, 2),
        nn.Dropout2d(0.5),
        nn.Flatten(),
        nn.Linear(8, 3),
    )


NETWORKS: list[Callable[[], nn.Module]] = [
    Residual, Convolutional, Tied, Counting, batch_norm_mlp, dropout_mlp, dropout_conv,
]  # fmt: skip


@pytest.fixture
def data() -> tuple[Tensor, Tensor]:
    stream = torch.Generator().manual_seed(1)
    return torch.randn(16, 6, generator=stream), torch.randint(3, (16,), generator=stream)


def loss(outputs: Tensor, y: Tensor, extra: dict[str, Tensor]) -> Tensor:
    return Categorical().nll(outputs, y, extra)


def build(
    net: Callable[[], nn.Module], execution: str, dtype: torch.dtype, count: int = 5
) -> Stack:
    return Stack(net, count, seed=3, execution=execution, chunk_size=2, dtype=dtype)


@pytest.mark.parametrize(
    ("net", "dtype", "tolerance"),
    [(net, torch.float64, 1e-10) for net in NETWORKS]
    + [(net, torch.float32, 1e-5) for net in (Convolutional, dropout_mlp)],
)
@pytest.mark.parametrize("own", [False, True])
def test_executions_agree(net, dtype, tolerance, own, data) -> None:
    """Outputs, gradients and buffers after three training passes are the loop's everywhere."""
    x, y = data[0].to(dtype), data[1]
    if own:
        x, y = (
            torch.stack([x.roll(k, 0) for k in range(5)]),
            torch.stack([y.roll(k) for k in range(5)]),
        )
    results = {}
    for execution in EXECUTIONS:
        stack = build(net, execution, dtype).train()
        for step in range(3):
            losses = stack.gradients(loss, x, y, own=own, step=step)
        with torch.no_grad():
            outputs = stack.eval()(x, own=own)
        gradient = torch.cat([p.grad.flatten(1) for p in stack.leaves()], dim=1)
        results[execution] = [losses, outputs, gradient, *stack.buffers.values()]
    for execution in EXECUTIONS:
        for mine, theirs in zip(results[execution], results["loop"], strict=True):
            scale = theirs.abs().max().item() + 1e-30
            assert (mine - theirs).abs().max().item() <= tolerance * scale, execution


@pytest.mark.parametrize("net", NETWORKS)
@pytest.mark.parametrize("execution", EXECUTIONS)
def test_gradient_is_that_of_the_member_alone(net, execution, data) -> None:
    """Member 2's gradient is what plain torch gives for its module, not scaled by M."""
    if "dropout" in getattr(net, "__name__", ""):
        pytest.skip("plain torch draws its masks from another stream")
    x, y = data[0].double(), data[1]
    stack = build(net, execution, torch.float64).train()
    module = copy.deepcopy(stack.members()[2]).train()
    F.cross_entropy(module(x), y).backward()
    stack.gradients(loss, x, y)
    alone = {name: p.grad for name, p in module.named_parameters() if p.requires_grad}
    assert alone.keys() == stack.params.keys()
    for name, gradient in alone.items():
        torch.testing.assert_close(stack.params[name].grad[2], gradient, rtol=1e-9, atol=1e-12)
        assert stack.params[name].grad.stride() == stack.params[name].stride()


@pytest.mark.parametrize("execution", ["batched", "loop", "threads"])
@pytest.mark.parametrize("net", NETWORKS)
def test_outputs_are_differentiable(net, execution, data) -> None:
    """`stack(x)` can be differentiated with respect to stacked parameters and inputs."""
    x = data[0].double().requires_grad_()
    grads = {}
    for kind in (execution, "loop"):
        stack = build(net, kind, torch.float64)
        outputs = stack(x)
        assert outputs.shape == (5, 16, 3)
        grads[kind] = torch.autograd.grad(outputs.square().sum(), [*stack.params.values(), x])
    for mine, theirs in zip(grads[execution], grads["loop"], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("net", NETWORKS)
@pytest.mark.parametrize("execution", ["batched", "loop", "threads"])
def test_first_members_do_not_depend_on_their_number(net, execution, data) -> None:
    """Member k of 3 equals member k of 10: initialisation, dropout masks, statistics, gradients."""
    few, many = (build(net, execution, torch.float64, count).train() for count in (3, 10))
    for stack in (few, many):
        for step in range(2):
            stack.gradients(loss, data[0].double(), data[1], step=step)
    for name, tensor in few.tensors().items():
        torch.testing.assert_close(tensor, many.tensors()[name][:3], rtol=1e-12, atol=1e-14)
    for mine, theirs in zip(few.leaves(), many.leaves(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad[:3], rtol=1e-9, atol=1e-12)


def test_dropout_masks_differ_between_members_and_passes() -> None:
    module = nn.Sequential(nn.Linear(64, 64, bias=False), nn.Dropout(0.5))
    nn.init.eye_(module[0].weight)
    for execution in ("batched", "loop", "threads"):
        stack = Stack([copy.deepcopy(module) for _ in range(4)], execution=execution).train()
        ones = torch.ones(8, 64)
        with torch.no_grad():
            first, second = stack(ones), stack(ones)
            again = stack(ones, step=0)
        assert torch.equal(first, again)
        assert set(first.unique().tolist()) == {0.0, 2.0}
        assert not torch.equal(first, second)
        assert len({tuple(mask.flatten().tolist()) for mask in first}) == 4


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("mode", ["train", "noisy"])
def test_members_of_later_chunks_have_masks_of_their_own(mode, own, graph, size) -> None:
    """Those of the same members in one computation, pinned or not; gradients follow the masks."""
    stream = torch.Generator().manual_seed(0)
    x, y = torch.randn(5, 6, 4, generator=stream), torch.arange(6) % 3

    def net() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Tanh(), nn.Linear(16, 3))

    x, y = (x, y.expand(5, 6)) if own else (x[0], y)
    results = []
    for options in ({"execution": "batched"}, {"execution": "chunked", "chunk_size": size}):
        stack = Stack(net, 5, seed=3, **options)
        found = []
        for pinned in (None, 8) if mode == "noisy" and not own else (None,):
            stack.set_mode(mode, pinned)
            with torch.set_grad_enabled(graph):
                found.append(stack(x, own=own, step=4).detach())
            found.append(stack.gradients(loss, x, y, own=own, step=5))
            found += [leaf.grad.clone() for leaf in stack.leaves()]
        results.append(found)
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


def test_other_randomness_in_the_forward_pass_has_member_streams(data) -> None:
    """Noise that is no dropout layer: Gaussian noise, dropout inside attention, Gumbel softmax."""

    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attend = nn.MultiheadAttention(6, 2, dropout=0.3, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            h = self.attend(x[:, None], x[:, None], x[:, None], need_weights=False)[0][:, 0]
            return F.gumbel_softmax(h + 0.1 * torch.randn_like(h))[:, :3]

    results = []
    for execution in ("batched", "loop", "threads", "chunked"):
        stack = build(Noisy, execution, torch.float64).train()
        with torch.no_grad():
            results.append(stack(data[0].double(), step=7))
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], rtol=1e-9, atol=1e-12)
    assert (results[0][0] - results[0][1]).abs().max() > 1e-3


def test_torch_stream_is_left_alone(data) -> None:
    """Building and evaluating a stack neither reads nor moves torch's global stream."""
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    stack = Stack(dropout_mlp, 3).train()
    stack.gradients(loss, *data)
    assert torch.equal(torch.rand(3), expected)


def test_batch_norm_has_statistics_of_each_member(data) -> None:
    for execution in ("batched", "loop", "threads", "chunked"):
        stack = build(batch_norm_mlp, execution, torch.float64).train()
        modules = [module.train() for module in stack.members()]
        stack.gradients(loss, data[0].double(), data[1])
        for k, module in enumerate(modules):
            module(data[0].double())
            torch.testing.assert_close(stack.buffers["1.running_mean"][k], module[1].running_mean)
            torch.testing.assert_close(stack.buffers["1.running_var"][k], module[1].running_var)
        assert stack.buffers["1.num_batches_tracked"].tolist() == [1] * 5


def test_converts_to_modules_and_back(data) -> None:
    stack = Stack(Tied, 4, seed=5)
    modules = stack.members()
    assert all(m.again.weight is m.first.weight for m in modules)
    assert not modules[0].frozen.weight.requires_grad
    again = Stack(modules)
    with torch.no_grad():
        alone = torch.stack([module(data[0]) for module in modules])
        torch.testing.assert_close(stack(data[0]), alone)
        assert torch.equal(again(data[0]), stack(data[0]))
        modules[0].first.weight.zero_()
        torch.testing.assert_close(stack(data[0])[1:], alone[1:])
        torch.testing.assert_close(stack(data[0])[0], alone[0])


def test_members_with_different_plain_attributes_stay_different(data) -> None:
    class Tempered(nn.Module):
        def __init__(self, temperature: float) -> None:
            super().__init__()
            self.layer, self.temperature = nn.Linear(6, 3), temperature

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) / self.temperature

    modules = [Tempered(t) for t in (1.0, 2.0, 4.0)]
    expected = torch.stack([module(data[0]) for module in modules]).detach()
    for execution in ("auto", "loop", "threads"):
        stack = Stack(modules, execution=execution)
        with torch.no_grad():
            torch.testing.assert_close(stack(data[0]), expected)
            torch.testing.assert_close(stack[1:](data[0]), expected[1:])
        torch.testing.assert_close(stack.members()[2](data[0]), expected[2])
    with pytest.raises(ValueError, match="differ in temperature"):
        Stack(modules, execution="batched")(data[0])


@pytest.mark.parametrize("channels", [1, 3])
def test_channels_last_is_in_the_strides(channels) -> None:
    """Also for one channel, where torch calls both formats contiguous but its kernels do not."""
    stack = Stack(lambda: nn.Conv2d(channels, 4, 3), 2)
    before = stack.params["weight"].detach().clone()
    stack.lay_out(True)
    module = nn.Conv2d(channels, 4, 3).to(memory_format=torch.channels_last)
    for part in (stack, stack[:1], stack[[1, 0]], stack.clone()):
        assert part.module(0).weight.stride() == module.weight.stride()
    assert torch.equal(stack.params["weight"], before)


def test_slices_share_memory_and_index_lists_copy() -> None:
    stack = Stack(Residual, 4)
    part, copied = stack[1:3], stack[[1, 2]]
    with torch.no_grad():
        stack.params["last.bias"][1] = 7.0
    assert (part.params["last.bias"][0] == 7.0).all()
    assert (copied.params["last.bias"][0] != 7.0).all()
    assert part.params["last.bias"].is_leaf


def test_the_users_module_is_not_changed(data) -> None:
    module = batch_norm_mlp().train()
    before = copy.deepcopy(module.state_dict())
    stack = Stack(module).train()
    stack.gradients(loss, *data)
    with torch.no_grad():
        stack.params["0.weight"].zero_()
    assert module.training
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_a_factorys_module_is_not_changed_either(data) -> None:
    module = Tied()
    before, scale = copy.deepcopy(module.state_dict()), module.scale
    stack = Stack(lambda: module).train()
    stack.gradients(loss, *data)
    with torch.no_grad():
        stack.params["first.weight"].zero_()
    assert module.scale is scale
    assert "scale" not in dict(module.named_buffers())
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, before[name])


@pytest.mark.parametrize(
    ("networks", "count", "message"),
    [
        (Residual, 0, "at least 1, got 0"),
        (Residual, 2.5, "integer of at least 1"),
        ([], None, "at least one nn.Module"),
        (lambda: "network", 2, "returned a str"),
        (3, None, "must be a factory"),
        (Residual(), 3, "would be identical"),
        ([Residual(), Residual()], 3, "2 modules were given"),
    ],
)
def test_bad_networks(networks, count, message) -> None:
    with pytest.raises(ValueError, match=message):
        Stack(networks, count)


def test_a_factory_must_build_anew() -> None:
    module, trunk = Residual(), nn.Linear(6, 6)
    with pytest.raises(ValueError, match="the same network for members 0 and 1"):
        Stack(lambda: module, 2)
    with pytest.raises(ValueError, match="share .0.weight"):
        Stack(lambda: nn.Sequential(trunk, nn.Linear(6, 3)), 2)
    with pytest.raises(ValueError, match="same module twice"):
        Stack([module, module])


def test_architectures_must_agree() -> None:
    with pytest.raises(ValueError, match="'weight' has shape .3, 6. in member 1"):
        Stack([nn.Linear(6, 4), nn.Linear(6, 3)])
    with pytest.raises(ValueError, match="lacks 'bias'"):
        Stack([nn.Linear(6, 4), nn.Linear(6, 4, bias=False)])


def test_unknown_execution_suggests_the_nearest() -> None:
    with pytest.raises(ValueError, match="Did you mean 'threads'"):
        Stack(Residual, 2, execution="thread")
    with pytest.raises(ValueError, match="`chunk_size` must be an integer of at least 1"):
        Stack(Residual, 2, chunk_size=0)


def test_own_inputs_need_a_batch_for_each_member(data) -> None:
    with pytest.raises(ValueError, match="one batch per member"):
        Stack(Residual, 3)(data[0], own=True)


@pytest.mark.parametrize("views", [True, False])
def test_chunks_are_built_once_and_follow_the_stack(views) -> None:
    stack, plan = Stack(lambda: nn.Linear(2, 3), 5), Plan("chunked", chunk_size=2)
    parts = chunks(stack, plan, views=views)
    assert [(a, b) for _, a, b in parts] == [(0, 2), (2, 4), (4, 5)]
    stack.eval()
    with torch.no_grad():
        stack.params["weight"].add_(1.0)
    again = chunks(stack, plan, views=views)
    for (new, *_), (old, *_) in zip(again, parts, strict=True):
        assert views or new is old  # those with graphs are views of the present tensors
        assert not new.training
    for part, a, b in again:
        assert torch.equal(part.params["weight"], stack.params["weight"][a:b])
    stack.add_parameters({"noise": torch.zeros(5)})
    assert "noise" in chunks(stack, plan, views=views)[0][0].extra
