"""The cut before all that is trained: where it may be made, and what it leaves as it is."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import polymode as pm
from polymode.stack import trunk as trunk_module
from polymode.stack.fast import dense
from polymode.stack.stack import Stack
from polymode.stack.trunk import features_of, trunk_of
from polymode.training.events import Event

X = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()
TASK = pm.Task(train=(X, Y), likelihood="categorical")
SHORT = {"epochs": 2, "batch_size": 16, "progress": "silent"}


def frozen(module: nn.Module) -> nn.Module:
    return module.requires_grad_(False)


class Nested(nn.Module):
    """A head two levels down, with a trunk of one layer."""

    def __init__(self, after=lambda out: out) -> None:
        super().__init__()
        self.body, self.top = frozen(nn.Linear(6, 8)), nn.Module()
        self.top.head = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))
        self.after = after

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.top.head(torch.tanh(self.body(x))))


def chain() -> nn.Sequential:
    return nn.Sequential(
        frozen(nn.Linear(6, 8)), nn.Tanh(), nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2)
    )


def stack_of(make, num_modes: int = 3) -> Stack:
    """Members with one body: that of the first."""
    networks = [make() for _ in range(num_modes)]
    first = dict(networks[0].named_parameters())
    for network in networks[1:]:
        for name, parameter in network.named_parameters():
            if not parameter.requires_grad:
                parameter.data = first[name].data.clone()
    return Stack(networks)


@pytest.mark.parametrize(("make", "paths"), [(Nested, ("top.head",)), (chain, ("2", "3", "4"))])
def test_cuts(make, paths) -> None:
    stack = stack_of(make)
    trunk = trunk_of(stack, X)
    assert trunk.paths == paths
    torch.testing.assert_close(trunk.late(trunk(X)), stack(X), rtol=1e-6, atol=1e-6)
    assert trunk.late.params.keys() == stack.params.keys()
    for name, leaf in trunk.late.params.items():
        assert leaf is stack.params[name]
    assert not trunk.late.frozen


class Twice(Nested):
    """The head is called on two tensors."""

    def forward(self, x: Tensor) -> Tensor:
        self.top.head(self.body(-x))
        return super().forward(x)


class Beside(nn.Module):
    """The output has a part that does not go through the head."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = frozen(nn.Linear(6, 2)), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        return self.head(h) + h


class Early(nn.Module):
    """What is trained is the first layer: nothing comes before it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 2), frozen(nn.Linear(2, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x))


class Tied(nn.Module):
    """A frozen weight of the trunk is used again after the cut."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = frozen(nn.Linear(6, 6)), nn.Sequential(nn.Linear(6, 6))
        self.head.append(nn.Linear(6, 2))
        self.head[0].weight = self.body.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


class OutputLayer(nn.Module):
    """The features are read again after the head, whose outputs are positive here."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = frozen(nn.Linear(6, 8)), nn.Linear(8, 2)
        nn.init.constant_(self.head.bias, 50.0)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.head(F.relu(self.body(x))), inplace=True)


class Branch(nn.Module):
    """Which layer comes last depends on the inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.other = frozen(nn.Linear(6, 8)), nn.Linear(8, 2), nn.Linear(8, 2)
        frozen(self.other)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        return self.head(h) if x[0, 0] * X[0, 0] > 0 else self.other(h)


@pytest.mark.parametrize(
    "make",
    [
        Twice,
        Branch,
        Beside,
        Early,
        Tied,
        OutputLayer,
        lambda: Nested(lambda out: out.abs()),
        lambda: Nested(lambda out: 2.0 * out),
        lambda: Nested(lambda out: out.squeeze(0)[:, :1]),
    ],
)
def test_networks_that_are_not_cut(make) -> None:
    assert trunk_of(stack_of(make), X) is None


def test_bodies_that_differ_are_not_cut() -> None:
    assert trunk_of(Stack([Nested() for _ in range(2)]), X) is None
    stack = stack_of(lambda: nn.Sequential(frozen(nn.BatchNorm1d(6)), nn.Linear(6, 2)))
    assert trunk_of(stack, X) is not None
    stack.buffers["0.running_mean"][1] += 1
    assert trunk_of(stack, X) is None


def kind(net, task=TASK, **options) -> str:
    torch.manual_seed(0)
    return pm.fit("deep_ensemble", net=net, task=task, num_modes=2, **SHORT, **options).weights.kind


@pytest.mark.parametrize("layer", [nn.Dropout(0.5), nn.BatchNorm1d(8, affine=False)])
def test_a_body_that_is_another_in_training(layer) -> None:
    """It is cut off only if the head was asked for, and then stays in evaluation mode."""
    body = nn.Sequential(nn.Linear(6, 8), layer)

    def net() -> nn.Module:
        return nn.Sequential(body, nn.Linear(8, 2))

    assert kind(net, trainable=r"^1\.") == "samples"
    assert kind(net, trainable="head") == "on_trunk/samples"
    assert kind(net, trainable="head", augment=lambda x, stream: x) == "samples"


def test_frozen_bits_never_change() -> None:
    body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8))
    before = {name: tensor.clone() for name, tensor in body.state_dict().items()}
    pm.fit(
        "swag", net=lambda: nn.Sequential(body, nn.Linear(8, 2)), task=TASK, trainable="head",
        num_modes=2, **SHORT,
    )  # fmt: skip
    assert all(torch.equal(t, before[name]) for name, t in body.state_dict().items())


def test_loaders_and_arrays_give_the_same() -> None:
    """A loader's features are computed batch by batch; in float64, the same heads."""
    body = frozen(nn.Linear(6, 8))

    def net() -> nn.Module:
        return nn.Sequential(body, nn.Tanh(), nn.Linear(8, 2))

    loader = DataLoader(TensorDataset(X, Y), batch_size=len(X))
    posts = [
        pm.fit(
            "deep_ensemble", net=net, task=pm.Task(train=data, likelihood="categorical"),
            num_modes=2, dtype=torch.float64, data_order="shared", epochs=5, batch_size=len(X),
            progress="silent",
        )
        for data in ((X, Y), loader)
    ]  # fmt: skip
    assert all(post.weights.kind == "on_trunk/samples" for post in posts)
    for name, tensor in posts[0].stack.params.items():
        torch.testing.assert_close(tensor, posts[1].stack.params[name], rtol=1e-8, atol=1e-10)


def test_features_are_the_same_in_memory_and_in_a_file(monkeypatch) -> None:
    trunk = trunk_of(stack_of(Nested), X)
    kept = features_of(trunk, iter(X.split(16)), len(X))
    assert torch.equal(kept[:16], trunk(X[:16]))
    monkeypatch.setattr(trunk_module, "free_bytes", lambda device: 0)
    filed = features_of(trunk, iter(X.split(16)), len(X))
    assert torch.equal(kept, filed)
    monkeypatch.setattr(trunk_module.shutil, "disk_usage", lambda folder: _Usage(0))
    with pytest.raises(ValueError, match="features of 40 examples need .* DataLoader"):
        features_of(trunk, iter(X.split(16)), len(X))


class _Usage:
    def __init__(self, free: int) -> None:
        self.free = free


class Pair(nn.Module):
    """Two inputs by name, and an output by name."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body, self.head = frozen(body), nn.Linear(8, 2)

    def forward(self, left: Tensor, right: Tensor) -> dict[str, Tensor]:
        return {"hidden": left, "logits": self.head(self.body(left + right))}


def test_several_inputs_and_named_outputs() -> None:
    body = nn.Linear(6, 8)
    task = pm.Task(train=({"left": X, "right": X}, Y), likelihood="categorical")
    assert kind(lambda: Pair(body), task) == "on_trunk/samples"
    trunk = trunk_of(stack_of(Nested, 1), X)
    assert trunk is not None  # one mode has features, too


def test_a_run_resumes_and_its_checkpoint_has_no_trunk(tmp_path) -> None:
    body = nn.Sequential(nn.Linear(6, 512), nn.Tanh())

    def fit(**options) -> pm.Posterior:
        net = lambda: nn.Sequential(body, nn.Linear(512, 2))  # noqa: E731
        return pm.fit(
            "deep_ensemble", net=net, task=TASK, trainable="head", num_modes=2, **SHORT, **options
        )

    def interrupt(event: Event) -> None:
        if event.kind == "checkpoint":
            raise KeyboardInterrupt

    whole = fit()
    with pytest.raises(KeyboardInterrupt):
        fit(checkpoint=tmp_path, checkpoint_seconds=0, on_event=interrupt)
    (file,) = tmp_path.glob("*.safetensors")
    assert file.stat().st_size < 4 * 3 * 2 * 1026 + 12_000  # weights and two moments of two heads
    resumed = fit(checkpoint=tmp_path)
    for name, tensor in whole.stack.params.items():
        assert torch.equal(tensor, resumed.stack.params[name])
    with torch.no_grad():
        body[0].bias.add_(1)
    with pytest.raises(ValueError, match="another run: frozen was"):
        fit(checkpoint=tmp_path)


def test_predictions_are_differentiable_through_the_trunk() -> None:
    body = nn.Sequential(nn.Linear(6, 8), nn.Tanh())
    post = pm.fit(
        "deep_ensemble", net=lambda: nn.Sequential(body, nn.Linear(8, 2)), task=TASK,
        trainable="head", num_modes=2, dtype=torch.float64, **SHORT,
    )  # fmt: skip
    x = X[:2].double().requires_grad_()
    (gradient,) = torch.autograd.grad(post.predict_batch(x).log_prob(Y[:2]).sum(), x)
    shift = torch.zeros_like(x)
    shift[1, 2] = 1e-6
    up, down = (post.predict_batch(x.detach() + s).log_prob(Y[:2]).sum() for s in (shift, -shift))
    assert gradient[1, 2].item() == pytest.approx((up - down).item() / 2e-6, rel=1e-5, abs=1e-8)


# ---------------------------------------------------------------- files without trunks


@pytest.mark.parametrize("method", ["deep_ensemble", "laplace", "swag"])
@pytest.mark.parametrize("modes_per_file", [None, 1])
def test_heads_alone_in_files(method, modes_per_file, tmp_path) -> None:
    torch.manual_seed(1)
    body = nn.Sequential(nn.Linear(6, 512), nn.Tanh())

    def net() -> nn.Module:
        return nn.Sequential(body, nn.Linear(512, 2))

    post = pm.fit(method, net=net, task=TASK, trainable="head", num_modes=2, **SHORT)
    post.save(tmp_path, trunk=False, modes_per_file=modes_per_file)
    with_trunk = sum(t.nbytes for t in body.parameters())
    post.save(tmp_path / "whole", modes_per_file=modes_per_file)
    sizes = [
        sum(p.stat().st_size for p in folder.glob("*.safetensors"))
        for folder in (tmp_path, tmp_path / "whole")
    ]
    files = 1 if modes_per_file is None else 2
    assert abs(sizes[1] - sizes[0] - files * with_trunk) < 1_000 * files
    loaded = pm.load(tmp_path, net=net)
    torch.testing.assert_close(loaded.predict(X).mean, post.predict(X).mean)  # file by file
    assert torch.equal(loaded[:1].predict(X).mean, post[:1].predict(X).mean)
    loaded.save(tmp_path / "again", trunk=False)
    assert torch.equal(pm.load(tmp_path / "again", net=net).predict(X).mean, post.predict(X).mean)
    with torch.no_grad():
        body[0].bias.add_(1e-3)
    with pytest.raises(ValueError, match="frozen parameters of the network given are not those"):
        pm.load(tmp_path, net=net).predict(X)
    torch.manual_seed(2)
    other = nn.Sequential(nn.Sequential(nn.Linear(6, 256), nn.Tanh()), nn.Linear(256, 2))
    with pytest.raises(ValueError, match="another architecture"):
        pm.load(tmp_path, net=other).predict(X)


def test_what_has_no_trunk_is_told_so(tmp_path) -> None:
    post = pm.fit("map", net=lambda: nn.Linear(6, 2), task=TASK, **SHORT)
    with pytest.raises(ValueError, match="nothing of these networks is frozen"):
        post.save(tmp_path, trunk=False)
    bodies = pm.fit("deep_ensemble", net=Nested, task=TASK, num_modes=2, **SHORT)
    with pytest.raises(ValueError, match=r"2 frozen parameters, such as 'body.weight', differ"):
        bodies.save(tmp_path, trunk=False)


# ---------------------------------------------------------------- heads on shared features


def test_heads_on_shared_features_are_one_layer(monkeypatch) -> None:
    """Many inputs, few outputs and several members; outputs and gradients as one by one."""
    features = torch.randn(64, 1024, dtype=torch.float64)
    labels = torch.arange(64) % 3
    calls = []
    as_one = dense.linear_as_one
    monkeypatch.setattr(dense, "linear_as_one", lambda *args: calls.append(1) or as_one(*args))
    results = []
    for execution in ("batched", "loop"):
        stack = Stack(
            lambda: nn.Sequential(nn.Linear(1024, 3), nn.Tanh()), 4, execution=execution,
            dtype=torch.float64,
        )  # fmt: skip

        def loss(out: Tensor, y: Tensor, extra: object) -> Tensor:
            return -out.log_softmax(-1)[..., torch.arange(64), y].mean(-1)

        losses = stack.gradients(loss, features, labels)
        results.append([stack(features), losses, *(leaf.grad for leaf in stack.leaves())])
    assert len(calls) == 2
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
    stack = Stack(lambda: nn.Linear(1024, 64), 4, execution="batched", dtype=torch.float64)
    stack(features)
    assert len(calls) == 2  # of many outputs nothing is gained


def test_what_was_trained_is_told() -> None:
    body = nn.Linear(6, 8)
    post = pm.fit(
        "deep_ensemble", net=lambda: nn.Sequential(body, nn.Linear(8, 2)), task=TASK,
        trainable="head", num_modes=2, **SHORT,
    )  # fmt: skip
    assert "18 of 74 parameters, the rest held once" in repr(post)
    assert "18 of 74, the rest held once" in post._repr_html_()
    assert post.config["trained"] == "18 of 74 parameters, the rest held once"
    task = pm.Task(train=(X, Y), test=(X, Y), likelihood="categorical")
    cost = pm.evaluate(post, task).cost
    assert cost.parameters == 2 * 18
    assert cost.memory_bytes == 4 * (2 * 18 + 56)


def test_parameters_without_axes_are_shared_and_saved(tmp_path) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.head = nn.Parameter(torch.tensor(2.0)), nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.scale * x)

    post = pm.fit("deep_ensemble", net=Scaled, task=TASK, trainable="head", num_modes=2, **SHORT)
    for trunk in (True, False):
        post.save(tmp_path, trunk=trunk)
        loaded = pm.load(tmp_path, net=Scaled)
        assert torch.equal(loaded.predict(X).mean, post.predict(X).mean)
