"""BatchEnsemble and TabM: rank-one members against whole networks, and training in common."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import polymode as pm
from polymode.nets.conversion.conversion import Sample, convert
from polymode.nets.conversion.rank_one import Adapters, plan
from polymode.tracing.calling import Calling

STREAM = torch.Generator().manual_seed(0)
X = torch.randn(16, 3, 8, 8, generator=STREAM)
LABELS = torch.arange(16) % 3
ROWS = torch.randn(32, 4, generator=STREAM)
CLASSES = (ROWS[:, 0] > 0).long()
QUIET = {"progress": "silent", "epochs": 0}


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))


class Tokens(nn.Module):
    """A table, positions and torch's transformer layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(6, 8)
        self.positions = nn.Parameter(torch.randn(1, 5, 8))
        self.block = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(self.words(x) + self.positions).mean(1))


def layers() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1, padding_mode="circular"), nn.BatchNorm2d(6), nn.ReLU(),
        nn.Conv2d(6, 4, 3, groups=2), nn.ConvTranspose2d(4, 6, 2, stride=2, groups=2),
        nn.Flatten(2),
        nn.Conv1d(6, 2, 5, stride=3), nn.ConvTranspose1d(2, 3, 2), nn.Flatten(), nn.LayerNorm(144),
        nn.Linear(144, 3),
    )  # fmt: skip


def whole(converted: nn.Module, original: nn.Module) -> nn.Module:
    """The original network with the weights W ∘ (s rᵀ), written in einsum."""
    held = dict(converted.named_parameters()) | dict(converted.named_buffers())
    state: dict[str, Any] = {}
    for name, tensor in original.state_dict().items():
        path, _, leaf = name.rpartition(".")
        layer = original.get_submodule(path)
        shared = {"in_proj_weight": f"{path}.in_proj_shared"}.get(leaf, name)
        shared = shared if shared in held else f"{path}.shared"
        value, s = held[shared].detach(), held.get(f"{path}.s")
        if s is None or leaf not in ("weight", "in_proj_weight"):
            state[name] = value
            continue
        groups = getattr(layer, "groups", 1)
        if isinstance(layer, nn.Embedding):
            state[name] = value * s
        elif isinstance(layer, nn.modules.conv._ConvTransposeNd):  # (in, out/groups, ...)
            parts = value.unflatten(0, (groups, -1))
            r = held[f"{path}.r"].view(groups, -1)
            parts = torch.einsum("gio...,gi,go->gio...", parts, r, s.view(groups, -1))
            state[name] = parts.flatten(0, 1)
        else:  # (out, in/groups, ...)
            parts = value.unflatten(0, (groups, -1))
            r = held[f"{path}.r"].view(groups, -1)
            parts = torch.einsum("goi...,gi,go->goi...", parts, r, s.view(groups, -1))
            state[name] = parts.flatten(0, 1)
        assert tensor.shape == state[name].shape, name
    original.load_state_dict(state)
    return original.eval()


@pytest.mark.parametrize("name", ["mlp", "layers", "tokens", "lenet", "resnet8", "vit"])
@pytest.mark.parametrize("method", ["batch_ensemble", "tabm"])
def test_members_are_networks_with_rank_one_weights(method, name, tmp_path) -> None:
    """In float64 to 1e-12, after a step; loaded, sliced, in every execution the same."""
    x = {"mlp": ROWS[:16], "tokens": torch.randint(6, (16, 5), generator=STREAM)}.get(name, X)
    if name in ("lenet", "resnet8"):
        x = torch.randn(16, 3, 16, 16, generator=STREAM)
    net = {"mlp": mlp, "layers": layers, "tokens": Tokens}.get(name) or getattr(pm.nets, name)
    labels = LABELS % 2 if name == "mlp" else LABELS
    task = pm.Task(train=(x, labels), likelihood="categorical")
    options = {"num_modes": 3, "epochs": 1, "batch_size": 8, "dtype": torch.float64}
    posts = [
        pm.fit(method, net=net, task=task, execution=way, progress="silent", **options)
        for way in ("loop", "batched")
    ]
    first, second = (post.predict(x).log_probs for post in posts)
    torch.testing.assert_close(first, second, rtol=1e-8, atol=1e-10)
    build = net
    if name not in ("mlp", "layers", "tokens"):
        build = lambda: net(tuple(x.shape[1:]), 3)  # noqa: E731
    xs = x if name == "tokens" else x.double()
    outputs = posts[0].stack(xs)
    for k, member in enumerate(posts[0].members):
        torch.testing.assert_close(
            whole(member, build().double())(xs), outputs[k], rtol=1e-10, atol=1e-12
        )
    stack = posts[0].stack
    assert stack.shares
    assert all(len(t.untyped_storage()) == t[0].nbytes for t in stack.frozen.values())
    posts[0].save(tmp_path)
    torch.testing.assert_close(pm.load(tmp_path, net=net).predict(x).log_probs, first)
    assert torch.equal(posts[0][:2].predict(x).log_probs, first[:2])


def test_what_is_shared_follows_the_mean_and_the_rest_its_own_loss() -> None:
    """A step of SGD against autograd over whole weights, in float64 to 1e-12, prior included:
    once for what is shared, none for adapters."""
    options = {"num_modes": 3, "batch_size": 32, "data_order": "shared", "optimizer": "sgd",
               "lr": 0.1, "prior_precision": 4.0, "progress": "silent"}  # fmt: skip
    task = pm.Task(train=(ROWS, CLASSES), likelihood="categorical")
    before, after = (
        pm.fit("batch_ensemble", net=mlp, task=task, dtype=torch.float64, epochs=n, holdout=0,
               **options).stack
        for n in (0, 1)
    )  # fmt: skip
    shared = {n: t[0].clone().requires_grad_() for n, t in before.frozen.items()}
    own = {n: t.detach().clone().requires_grad_() for n, t in before.params.items()}
    losses = []
    for k in range(3):
        z = ROWS.double()
        for path in ("0", "2"):
            weight = shared[f"{path}.weight"] * torch.outer(
                own[f"{path}.s"][k], own[f"{path}.r"][k]
            )
            z = z @ weight.T + own[f"{path}.bias"][k]
            z = torch.tanh(z) if path == "0" else z
        losses.append(nn.functional.cross_entropy(z, CLASSES))
    total = torch.stack(losses).sum()
    grads = torch.autograd.grad(total, [*shared.values(), *own.values()])
    for (name, value), grad in zip([*shared.items(), *own.items()], grads, strict=True):
        strength = 0.0 if name.endswith((".r", ".s")) else 4.0 / 32
        mean = grad / 3 if name in shared else grad
        expected = value.detach() - 0.1 * (mean + strength * value.detach())
        found = after.frozen[name][0] if name in shared else after.params[name]
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("clip", [None, 0.05])
def test_executions_train_alike(clip) -> None:
    """Losses and weights of all executions, in float64 to 1e-9; loop and threads to the bit."""
    task = pm.Task(train=(ROWS, CLASSES), likelihood="categorical")
    stacks = {
        way: pm.fit("batch_ensemble", net=mlp, task=task, execution=way, num_modes=3, epochs=4,
                    chunk_size=2, batch_size=8, dtype=torch.float64, clip_norm=clip,
                    progress="silent").stack.tensors()
        for way in ("loop", "threads", "batched", "chunked")
    }  # fmt: skip
    for name, tensor in stacks["loop"].items():
        assert torch.equal(stacks["threads"][name], tensor)
        for way in ("batched", "chunked"):
            torch.testing.assert_close(stacks[way][name], tensor, rtol=1e-9, atol=1e-11)


def test_members_start_as_published() -> None:
    """Adapters are ±1 in equal shares (|z| < 4 of 2,000 fair signs, false alarms below 1e-4), or
    around 1; those of TabM are ±1 in the first layer and 1 elsewhere, and heads differ."""
    wide = lambda: nn.Sequential(nn.Linear(4, 1000), nn.ReLU(), nn.Linear(1000, 2))  # noqa: E731
    task = pm.Task(train=(ROWS, CLASSES), likelihood="categorical")
    signs = pm.fit("batch_ensemble", net=wide, task=task, num_modes=2, **QUIET).stack.params
    s = signs["0.s"].detach()
    assert set(s.unique().tolist()) == {-1.0, 1.0}
    assert abs(s.sum()) < 4 * 2000**0.5
    assert not torch.equal(s[0], s[1])
    near = pm.fit("batch_ensemble", net=wide, task=task, adapters="normal", num_modes=2, **QUIET)
    values = near.stack.params["0.s"]
    assert abs(values.mean() - 1) < 4 * 0.5 / 2000**0.5
    assert abs(values.std() - 0.5) < 4 * 0.5 / 4000**0.5
    tab = pm.fit("tabm", net=wide, task=task, **QUIET).stack
    assert len(tab) == 32
    assert set(tab.params["0.r"].unique().tolist()) == {-1.0, 1.0}
    assert (tab.params["0.s"] == 1).all()
    assert "2.weight" in tab.params and "2.r" not in tab.params
    assert not torch.equal(tab.params["2.weight"][0], tab.params["2.weight"][1])
    assert list(tab.frozen) == ["0.weight"]


def test_a_posterior_is_trained_on_and_modules_stay_as_they_are() -> None:
    task = pm.Task(train=(ROWS, CLASSES), likelihood="categorical")
    post = pm.fit("batch_ensemble", net=mlp, task=task, num_modes=2, **QUIET)
    more = pm.fit("batch_ensemble", net=post, task=task, epochs=2, progress="silent")
    assert post.stack.params.keys() == more.stack.params.keys()
    assert not torch.equal(post.stack.frozen["0.weight"], more.stack.frozen["0.weight"])
    module = mlp()
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    pm.fit("batch_ensemble", net=[module, mlp()], task=task, epochs=2, progress="silent")
    assert all(p.requires_grad for p in module.parameters())
    assert all(torch.equal(t, state[name]) for name, t in module.state_dict().items())


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells, self.head = nn.GRU(4, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cells(x[:, None])[0][:, -1])


@pytest.mark.parametrize("method", ["batch_ensemble", "tabm"])
def test_a_layer_without_conversion_is_named(method) -> None:
    task = pm.Task(train=(ROWS, CLASSES), likelihood="categorical")
    with pytest.raises(ValueError, match=rf"{method} has no conversion for 'cells' \(GRU\)"):
        pm.fit(method, net=Recurrent, task=task, **QUIET)


def test_conversions_keep_what_is_frozen() -> None:
    net = mlp()
    sample = Sample(mlp(), ROWS, frozenset(["2.weight", "2.bias"]), Calling())
    conversion = plan(sample, Adapters("tabm", "sign", 1.0, 1.0, own_heads=False))
    converted = convert(net, conversion)
    assert type(converted[0]) is nn.Linear
    assert converted[0].weight is net[0].weight
