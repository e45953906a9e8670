"""MIMO against a network written by hand, and what its members see of each other."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import polymode as pm
from polymode.methods import METHODS, mimo
from polymode.methods.method import Problem
from polymode.nets.conversion import convert
from polymode.nets.conversion.conversion import Sample, but_common, common_names
from polymode.nets.conversion.joint import plan
from polymode.stack.common import train_in_common
from polymode.stack.stack import Stack
from polymode.tracing.calling import Calling
from polymode.training.loop import Batch

STREAM = torch.Generator().manual_seed(0)
ROWS = torch.randn(24, 4, generator=STREAM)
IMAGES = torch.randn(24, 1, 8, 8, generator=STREAM)
CLASSES = torch.arange(24) % 3
M = 3


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def images() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, padding_mode="reflect"), nn.ReLU(), nn.Flatten(),
        nn.Linear(256, 5), nn.Tanh(), nn.Linear(5, 3),
    )  # fmt: skip


class Residual(nn.Module):
    """A stem, a block with a skip, LayerNorm, and code of its own before and behind."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.block = nn.Linear(4, 6), nn.Linear(6, 6)
        self.norm, self.head = nn.LayerNorm(6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x.flatten(1) * 2 - 1)
        return self.head(self.norm(h + torch.relu(self.block(h)))).view(len(x), 3)


NETWORKS = {"mlp": (mlp, ROWS), "images": (images, IMAGES), "residual": (Residual, ROWS)}


def started(name: str, **options) -> tuple[Stack, Problem, mimo.State, mimo.MIMO]:
    """A stack, converted and split, in float64, before its first step."""
    build, x = NETWORKS[name]
    with torch.random.fork_rng():
        torch.manual_seed(1)
        first = build().double()
    sample = Sample(first, x[:2].double(), frozenset(n for n, _ in first.named_parameters()),
                    Calling())  # fmt: skip
    conversion = plan(sample)
    stack = Stack(lambda: convert(build().double(), conversion), M, trainable=but_common(None))
    train_in_common(stack, common_names(stack.template))
    config = mimo.MIMO(num_modes=M, optimizer="sgd", lr=0.1, **options)
    problem = Problem(pm.likelihoods.Categorical(), 24, 3, 3)
    stack.train()
    return stack, problem, mimo.init(config, problem, stack), config


class ByHand(nn.Module):
    """M inputs, first weights and heads, written out for one network of the above."""

    def __init__(self, stack: Stack, parts: Tensor) -> None:
        super().__init__()
        self.path = mimo.first_weight(stack).removesuffix(".weight")
        self.body = stack.views.build(0, share=False).train()
        self.parts = nn.Parameter(parts.detach().clone())
        self.heads = nn.ParameterDict(
            {n.replace(".", "/"): t.detach().clone() for n, t in stack.params.items()}
        )
        for p in self.body.parameters():
            p.requires_grad_()

    def forward(self, xs: Tensor) -> Tensor:
        first, hidden = self.body.get_submodule(self.path), []
        for x, weight in zip(xs, self.parts, strict=True):
            h = x.flatten(1) * 2 - 1 if isinstance(self.body, Residual) else x
            if isinstance(first, nn.Conv2d):
                padded = nn.functional.pad(h, (1, 1, 1, 1), mode="reflect")
                hidden.append(nn.functional.conv2d(padded, weight))
            else:
                hidden.append(h @ weight.T)
        bias = first.bias.view(-1, 1, 1) if isinstance(first, nn.Conv2d) else first.bias
        h = torch.stack(hidden).sum(0) + bias
        if isinstance(self.body, Residual):
            h = self.body.norm(h + torch.relu(self.body.block(h)))
        else:
            for layer in list(self.body)[1:-1]:
                h = layer(h)
        bias, weight = (self.heads[name] for name in sorted(self.heads))
        return torch.einsum("bi,mki->mbk", h, weight) + bias[:, None]


def batch_of(x: Tensor, own: bool = True) -> Batch:
    orders = torch.stack([torch.randperm(24, generator=STREAM)[:8] for _ in range(M)])
    if own:
        return Batch(x.double()[orders], CLASSES[orders], own=True)
    return Batch(x.double()[orders[0]], CLASSES[orders[0]], own=False)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_step_is_that_of_a_network_written_by_hand(name) -> None:
    """Losses, all parameters and running statistics after a step of SGD, in float64 to 1e-12."""
    stack, problem, state, config = started(name, prior_precision=2.0)
    twin = ByHand(stack, state.parts)
    batch = batch_of(NETWORKS[name][1])
    state, info = mimo.step(config, problem, state, batch)
    optimizer = torch.optim.SGD(
        [p for n, p in twin.named_parameters() if not n.startswith(f"body.{twin.path}.weight")],
        lr=0.1,
    )
    outputs = twin(batch.x)
    losses = torch.stack(
        [nn.functional.cross_entropy(out, y) for out, y in zip(outputs, batch.y, strict=True)]
    )
    heads = {n.replace("/", ".") for n in twin.heads}
    first = f"{twin.path}.weight"
    shared = [p for n, p in twin.body.named_parameters() if n not in heads | {first}]
    prior = sum(p.square().sum() for p in (*shared, twin.parts, *twin.heads.values()))
    (losses.sum() + 2.0 / 24 / 2 * prior).backward()
    optimizer.step()
    assert (info.loss > losses).all()
    close = {"rtol": 1e-12, "atol": 1e-12}
    torch.testing.assert_close(state.parts, twin.parts, **close)
    torch.testing.assert_close(stack.common[first][0], twin.parts.sum(0), **close)
    for n, p in twin.body.named_parameters():
        if n in heads:
            torch.testing.assert_close(stack.params[n], twin.heads[n.replace(".", "/")], **close)
        elif n != first:
            torch.testing.assert_close(stack.common[n][0], p, **close)
    for n, t in twin.body.named_buffers():
        torch.testing.assert_close(stack.buffers[n], t.expand_as(stack.buffers[n]), **close)


@pytest.mark.parametrize("name", NETWORKS)
def test_members_are_the_wide_network_on_equal_inputs(name) -> None:
    """In float64 to 1e-10, after some steps."""
    stack, problem, state, config = started(name)
    x = NETWORKS[name][1]
    for _ in range(3):
        state, _ = mimo.step(config, problem, state, batch_of(x))
    stack.eval()
    weights = mimo.finish(config, problem, state)
    twin = ByHand(stack, state.parts).eval()
    twin.body.eval()
    same = x.double().expand(M, *x.shape)
    torch.testing.assert_close(weights.stack(x.double()), twin(same), rtol=1e-10, atol=1e-10)
    assert sorted(weights.stack.params) == sorted(n.replace("/", ".") for n in twin.heads)
    assert weights.stack.shares


def test_heads_do_not_see_the_labels_of_other_inputs() -> None:
    """Other labels of input 1 leave the gradients of the other heads as they were, to the bit, and
    change its own; other inputs of member 1 change all."""
    stack, problem, state, _ = started("mlp")
    batch = batch_of(ROWS)

    def gradients(x: Tensor, y: Tensor) -> Tensor:
        mimo.gradients(stack, state.parts, problem, x, y, 0)
        return stack.params["3.weight"].grad.clone()

    before, y = gradients(batch.x, batch.y), batch.y.clone()
    y[1] = (y[1] + 1) % 3
    after = gradients(batch.x, y)
    assert torch.equal(after[[0, 2]], before[[0, 2]])
    assert not torch.equal(after[1], before[1])
    x = batch.x.clone()
    x[1] += 1
    assert not torch.equal(gradients(x, batch.y)[0], before[0])


@pytest.mark.parametrize("order", ["own", "shared"])
@pytest.mark.parametrize("name", NETWORKS)
def test_one_member_is_map(name, order) -> None:
    """In float64 to 1e-10."""
    build, x = NETWORKS[name]
    task = pm.Task(train=(x, CLASSES), likelihood="categorical")
    options = {"num_modes": 1, "epochs": 5, "batch_size": 8, "dtype": torch.float64, "lr": 0.01,
               "data_order": order, "progress": "silent"}  # fmt: skip
    one, plain = (pm.fit(method, net=build, task=task, **options) for method in ("mimo", "map"))
    torch.testing.assert_close(
        one.predict(x).log_probs, plain.predict(x).log_probs, rtol=1e-10, atol=1e-10
    )


def test_statistics_of_inputs_move_once_in_a_step() -> None:
    """Of normalisation before the first layer: as those of `map` with one member, in float64."""
    task = pm.Task(train=(ROWS, CLASSES), likelihood="categorical")
    net = lambda: nn.Sequential(nn.BatchNorm1d(4, affine=False), mlp())  # noqa: E731
    options = {"net": net, "epochs": 5, "batch_size": 8, "progress": "silent"}
    post = pm.fit("mimo", task=task, **options)
    assert post.stack.buffers["0.num_batches_tracked"].tolist() == [15] * M
    one, plain = (
        pm.fit(method, task=task, num_modes=1, dtype=torch.float64, **options)
        for method in ("mimo", "map")
    )
    for name, tensor in plain.stack.buffers.items():
        torch.testing.assert_close(one.stack.buffers[name], tensor, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize(("times", "share"), [(1, 0.0), (3, 0.0), (2, 0.5), (1, 1.0)])
def test_rows_stand_side_by_side_as_asked(own, times, share) -> None:
    """Every example is there `times` times, with its target; a share of rows has equal inputs."""
    config = mimo.MIMO(batch_repetition=times, input_repetition=share)
    batch = batch_of(ROWS, own)
    x, y = mimo.rows_of(config, batch, M, seed=0, number=5)
    assert x.shape == (M, 8 * times, 4)
    same = round(8 * times * share)
    assert torch.equal(x[:, :same], x[:1, :same].expand(M, same, 4))
    labels = {tuple(row): int(label) for row, label in zip(ROWS.double().tolist(), CLASSES,
                                                           strict=True)}  # fmt: skip
    for k in range(M):
        assert [labels[tuple(row)] for row in x[k].tolist()] == y[k].tolist()
        if not share or not own:
            given = (batch.x[k] if own else batch.x).repeat(times, 1)
            assert torch.equal(x[k].sort(0).values, given.sort(0).values)
    if same < 8 * times:
        assert not torch.equal(x[0, same:], x[1, same:])
    again = mimo.rows_of(config, batch, M, seed=0, number=5)
    assert torch.equal(again[0], x)


def test_a_posterior_is_trained_on_from_its_function(tmp_path) -> None:
    task = pm.Task(train=(ROWS, CLASSES), likelihood="categorical")
    options = {"net": mlp, "epochs": 4, "batch_size": 8, "progress": "silent"}
    post = pm.fit("mimo", task=task, dtype=torch.float64, **options)
    assert len(post.predict(ROWS).log_probs) == METHODS.get("mimo").value.config.usual_modes == M
    post.save(tmp_path)
    loaded = pm.load(tmp_path, net=mlp)
    assert torch.equal(loaded.predict(ROWS).log_probs, post.predict(ROWS).log_probs)
    same = pm.fit("mimo", task=task, **options | {"net": loaded, "epochs": 0})
    torch.testing.assert_close(same.predict(ROWS).log_probs, post.predict(ROWS).log_probs)
    more = pm.fit("mimo", task=task, **options | {"net": loaded}, batch_repetition=2)
    assert not torch.equal(more.stack.frozen["0.weight"], post.stack.frozen["0.weight"])


def test_what_cannot_take_several_inputs_is_refused_in_one_line() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(4, 3)

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return self.body(a + b)

    for net, x, options, message in (
        (Two, (ROWS, ROWS), {}, "but the network has several inputs; take batch_ensemble"),
        (lambda: nn.Linear(4, 3), ROWS, {}, "first trained layer.*take a network with a hidden"),
        (mlp, ROWS, {"trainable": r"0\.bias|3\."}, "the weight of '0', which.*is frozen"),
        (mlp, ROWS, {"trainable": "^0"}, "its last layer is not trained"),
        (mlp, ROWS, {"input_repetition": 2.0}, "`input_repetition` of MIMO must be"),
    ):
        task = pm.Task(train=(x, CLASSES), likelihood="categorical")
        with pytest.raises(ValueError, match=message) as refused:
            pm.fit("mimo", net=net, task=task, progress="silent", **options)
        assert "\n" not in str(refused.value)
