"""Frozen tensors that members have in common: one row in memory, one pass in computation."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import polymode as pm
from polymode.posterior import weights
from polymode.stack.sharing import is_shared, joined, num_bytes, replaced
from polymode.stack.stack import Stack
from polymode.stack.trainable import head_names, trained_names

X = torch.randn(20, 6, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


class Body(nn.Module):
    """Layers with all policies: statistics, dropout, a buffer that all members have."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.noise = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.4)
        self.register_buffer("positions", torch.arange(8.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.noise(torch.tanh(self.norm(self.first(x)) + 0.1 * self.positions))


class Net(nn.Module):
    """A frozen body that all networks share, and a head of its own."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body, self.head = body.requires_grad_(False), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def shared_body() -> Body:
    torch.manual_seed(3)
    return Body()


def stack_of(num_modes: int = 3, **options) -> Stack:
    body = shared_body()
    return Stack(lambda: Net(body), num_modes, **options)


def storage(stack: Stack) -> int:
    """Bytes of distinct memory of the frozen tensors."""
    held = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in stack.frozen.values()}
    return sum(s.nbytes() for s in held.values())


def test_a_body_is_held_once_and_not_copied() -> None:
    body = shared_body()
    stack = Stack(lambda: Net(body), 5)
    assert stack.shares
    assert stack.frozen["body.first.weight"].data_ptr() == body.first.weight.data_ptr()
    assert stack.frozen["body.first.weight"].shape == (5, 8, 6)
    assert stack.params["head.weight"].shape == (5, 2, 8)
    heads = [Net(body) for _ in range(5)]
    given = Stack(heads)  # modules that somebody holds are copied, once
    assert given.shares
    assert given.frozen["body.first.weight"].data_ptr() != body.first.weight.data_ptr()
    assert storage(given) == storage(stack) == sum(p.nbytes for p in body.parameters())
    assert stack.num_bytes < 5 * sum(t.nbytes for t in heads[0].state_dict().values())


def test_equal_bodies_are_held_once_and_others_are_not() -> None:
    equal = Stack([Net(copy.deepcopy(shared_body())) for _ in range(3)])
    assert equal.shares
    bodies = [shared_body() for _ in range(3)]
    with torch.no_grad():
        bodies[1].first.bias.add_(1)
    mixed = Stack([Net(body) for body in bodies])
    assert is_shared(mixed.frozen["body.first.weight"])
    assert not is_shared(mixed.frozen["body.first.bias"])
    for k, body in enumerate(bodies):
        assert torch.equal(mixed.frozen["body.first.bias"][k], body.first.bias)


@pytest.mark.parametrize("mode", ["eval", "train", "noisy"])
def test_executions_agree_with_the_members_alone(mode) -> None:
    """Outputs and gradients, with dropout in the frozen body, in float64."""
    results = {}
    for way in ("loop", "batched", "threads", "chunked", "auto"):
        stack = stack_of(4, execution=way, dtype=torch.float64, seed=1).set_mode(mode)

        def loss(out: Tensor, y: Tensor, extra: object) -> Tensor:
            rows = torch.arange(len(y))
            return -out.log_softmax(-1)[..., rows, y].mean(-1)

        x = X.double()
        out, losses = stack(x, step=5), stack.gradients(loss, x, Y, step=6)
        results[way] = [out, losses, *(leaf.grad for leaf in stack.leaves())]
    for way, values in results.items():
        for a, b in zip(values, results["loop"], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12, msg=way)
    if mode == "eval":
        for k, member in enumerate(stack.members()):
            torch.testing.assert_close(results["batched"][0][k], member(x), rtol=1e-10, atol=0)
    else:
        assert not torch.equal(results["batched"][0][0], results["batched"][0][1])


def test_the_body_runs_once() -> None:
    """In batched execution a frozen layer sees tensors without a member axis, if it is shared."""
    own = Stack([Net(Body()) for _ in range(3)], execution="batched")
    for stack, member_axis in ((stack_of(3, execution="batched"), False), (own, True)):
        seen = []
        layer = stack.network.template_in("train").body.norm
        layer.register_forward_hook(
            lambda *args, seen=seen: seen.append(torch._C._functorch.is_batchedtensor(args[2]))
        )
        stack.train()(X)
        assert member_axis is seen[-1]


class NoisyInputs(nn.Module):
    """Noise before anything of a member's own; of as many rows as members it could be mistaken."""

    def __init__(self, first: nn.Module) -> None:
        super().__init__()
        self.first, self.head = first.requires_grad_(False), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            x = nn.functional.dropout(x, 0.3) * (1 + 0.1 * torch.randn(len(x), 1))
        return self.head(self.first(x))


@pytest.mark.parametrize("rows", [3, 20])
def test_noise_before_anything_of_a_members_own(rows) -> None:
    first, outputs = nn.Linear(6, 4), {}
    for way in ("loop", "batched"):
        stack = Stack(lambda: NoisyInputs(first), 3, execution=way, dtype=torch.float64).train()
        outputs[way] = stack(X[:rows].double(), step=2)
    torch.testing.assert_close(outputs["loop"], outputs["batched"], rtol=1e-10, atol=1e-12)


def test_views_of_a_stack_keep_the_body_shared() -> None:
    stack = stack_of(4)
    parts = {
        "slice": stack[1:3], "list": stack[[0, 2, 2]], "clone": stack.clone(),
        "repeated": stack.repeated(3, {}), "values": stack.with_tensors({}),
        "one, repeated": stack_of(1).repeated(4, {}),
    }  # fmt: skip
    for name, part in parts.items():
        assert part.shares, name
        assert storage(part) == storage(stack), name
    assert parts["slice"].frozen["body.first.weight"].data_ptr() == (
        stack.frozen["body.first.weight"].data_ptr()
    )


def test_convolutions_are_laid_out_once() -> None:
    body = nn.Conv2d(1, 4, 3)

    class Images(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = body.requires_grad_(False), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.body(x).mean((2, 3)))

    stack, x = Stack(Images, 3), torch.randn(2, 1, 6, 6)
    wanted = stack(x)
    stack.lay_out(True)
    assert stack.shares
    assert stack.frozen["body.weight"].stride()[2:] == (1, 3, 1)
    torch.testing.assert_close(stack(x), wanted)


def test_other_values_take_the_place_of_a_shared_row() -> None:
    """They are never written into it: the network it comes from may hold it."""
    body = shared_body()
    before = copy.deepcopy(body.state_dict())
    stack = Stack(lambda: Net(body), 3)
    part = stack[:2]
    values = {name: tensor.clone() for name, tensor in stack.tensors().items()}
    values["network/body.first.bias"] += 1
    stack.load_tensors(values)
    assert stack.shares
    assert torch.equal(stack.frozen["body.first.bias"][2], body.first.bias + 1)
    values["network/body.first.bias"][1] += 1  # a member of its own
    stack.load_tensors(values)
    for k in range(3):
        assert torch.equal(stack.frozen["body.first.bias"][k], body.first.bias + 1 + (k == 1))
        assert torch.equal(stack.module(k).body.first.bias, body.first.bias + 1 + (k == 1))
    assert torch.equal(part.frozen["body.first.bias"][1], body.first.bias)
    assert all(torch.equal(t, before[name]) for name, t in body.state_dict().items())


def test_rows_that_agree_are_joined_to_one() -> None:
    row = torch.randn(1, 3)
    assert is_shared(joined([row.expand(2, 3), row.clone()]))
    assert not is_shared(joined([row.expand(2, 3), row + 1]))
    assert joined([row.expand(2, 3), row + 1]).shape == (3, 3)
    held = row.expand(4, 3)
    assert replaced(held, held.clone()) is held
    assert num_bytes(replaced(held, held + 1)) == 12


def test_frozen_normalisation_keeps_its_statistics() -> None:
    """Also in training; a body computes the same in every mode."""
    stack = stack_of(2)
    before = {name: tensor.clone() for name, tensor in stack.buffers.items()}
    for way in ("batched", "loop"):
        stack.execution, stack.plans = way, {}
        stack.train()(X)
        assert all(torch.equal(tensor, before[name]) for name, tensor in stack.buffers.items())
    assert not stack.has_statistics
    free = Stack(lambda: Net(shared_body()), 2, trainable="all")
    assert free.has_statistics


# ---------------------------------------------------------------- which are trained


def test_names_of_what_is_trained() -> None:
    net = Net(shared_body())
    assert trained_names(net, None) == ["head.weight", "head.bias"]
    assert len(trained_names(net, "all")) == 6
    assert trained_names(net, r"norm\.") == ["body.norm.weight", "body.norm.bias"]
    with pytest.raises(ValueError, match=r"'heed', but none of .* 6 .* 'body.first.weight',"):
        trained_names(net, "heed")
    with pytest.raises(ValueError, match="adapters"):
        trained_names(net, "lora")


class Branch(nn.Module):
    """The head is neither the last of `named_parameters` nor without a view."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.first = nn.Linear(8, 1), nn.Linear(6, 8)
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.scale * self.first(x)).reshape(-1, 1)


def test_the_head_is_seen_in_a_pass() -> None:
    net = Branch().train()
    assert head_names(net, X) == ["head.weight", "head.bias"]
    assert net.training
    assert net.first.training
    assert not net.head._forward_hooks
    assert head_names(nn.Linear(6, 2), X) == ["weight", "bias"]
    tied = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
    tied[2].weight = tied[0].weight
    assert head_names(tied, X) == ["0.weight", "2.bias"]


def test_a_network_without_a_head_is_told_so() -> None:
    class Sum(Branch):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + 1

    with pytest.raises(ValueError, match="not that of one layer"):
        head_names(Sum(), X)


def test_wrong_choices_have_one_line() -> None:
    task = pm.Task(train=(X, Y), likelihood="categorical")
    options = {"net": lambda: Net(shared_body()), "task": task, "epochs": 1, "progress": "silent"}
    for wrong, match in ((3, "got 3"), ("", "got ''"), ("[", "regular expression")):
        with pytest.raises(ValueError, match=match):
            pm.fit("map", trainable=wrong, **options)
    body = shared_body()
    with pytest.raises(ValueError, match=r"share 'body.first.weight' for members 0 and 1"):
        pm.fit("deep_ensemble", **{**options, "net": lambda: Net(body)}, trainable="all")


class Half(nn.Module):
    """A body in bfloat16 with a head in float32."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body, self.head = body.requires_grad_(False), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x.bfloat16()).float())


def test_types_stay_in_files(tmp_path) -> None:
    body = nn.Linear(6, 8).bfloat16()
    task = pm.Task(train=(X, Y), likelihood="categorical")
    post = pm.fit(
        "deep_ensemble", net=lambda: Half(body), task=task, num_modes=2, epochs=1,
        progress="silent",
    )  # fmt: skip
    assert post.stack.dtype == torch.float32
    assert post.stack.frozen["body.weight"].dtype == torch.bfloat16
    post.save(tmp_path)
    loaded = pm.load(tmp_path, net=lambda: Half(nn.Linear(6, 8)))
    assert loaded.stack.frozen["body.weight"].dtype == torch.bfloat16
    assert torch.equal(loaded.predict(X).mean, post.predict(X).mean)


def test_a_pass_that_meets_nothing_of_what_is_trained_has_gradients_of_zero() -> None:
    class Either(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trained, self.other = nn.Linear(6, 2), nn.Linear(6, 2).requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            return self.other(x)

    for way in ("loop", "batched"):
        stack = Stack(Either, 2, execution=way)
        losses = stack.gradients(lambda out, y, extra: out.square().mean((-1, -2)), X, Y)
        assert losses.shape == (2,)
        assert all(not leaf.grad.any() for leaf in stack.leaves())


def test_predictions_of_a_shared_body_are_made_by_pieces(monkeypatch) -> None:
    """As many rows at a time as suit the networks; the outputs are those of all rows at once."""
    monkeypatch.setattr(weights, "_MEMBER_ROWS", 24)
    stack = stack_of(3, dtype=torch.float64)
    sizes: list[int] = []
    call = Stack.__call__
    monkeypatch.setattr(Stack, "__call__", lambda s, x, **how: sizes.append(len(x)) or call(s, x))
    with torch.no_grad():
        pieces = weights.Samples(stack).outputs(1, 0)(X.double())
    assert sizes == [8, 8, 4]
    torch.testing.assert_close(pieces[:, 0], call(stack, X.double()).detach(), rtol=1e-12, atol=0)
    sizes.clear()
    weights.Samples(stack).outputs(1, 0)(X.double())  # gradients are recorded: one graph
    assert sizes == [20]
