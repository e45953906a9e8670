"""Local independence training: its step against the joint loss, its limits, its options."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

import polymode as pm
from polymode.likelihoods.kinds import Categorical, Gaussian, HeteroscedasticGaussian, Likelihood
from polymode.methods.lit import LIT, init, similarity, step
from polymode.methods.method import Problem
from polymode.stack.stack import Stack
from polymode.training.loop import Batch

from .small_fits import same

STREAM = torch.Generator().manual_seed(0)
X = torch.randn(12, 4, generator=STREAM, dtype=torch.float64)
IMAGES = torch.randn(6, 2, 8, 8, generator=STREAM, dtype=torch.float64)
LABELS = torch.arange(12) % 3


def mlp(outputs: int = 3, inputs: int = 4) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 7), nn.Tanh(), nn.Linear(7, outputs))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.Softplus(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(27, 3)
    )


def with_batch_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3))


def stack_of(net=mlp, execution: str = "loop", num_modes: int = 4) -> Stack:
    return Stack(net, num_modes, seed=1, dtype=torch.float64, execution=execution).train()


def joint_loss(likelihood, stack, x, y, weight, scalar) -> torch.Tensor:
    """Σ_i nll_i + w/(M − 1) Σ_{i<j} mean_b cos²_ij, pair by pair, nothing held constant."""
    inputs = x.expand(len(stack), *x.shape).clone().requires_grad_()
    outputs = stack(inputs, own=True, step=0)
    j = torch.autograd.grad(scalar(outputs, y).sum(), inputs, create_graph=True)[0].flatten(2)
    total = likelihood.nll(outputs, y, stack.extra).sum()
    for a in range(len(stack)):
        for b in range(a + 1, len(stack)):
            cosine = torch.nn.functional.cosine_similarity(j[a], j[b], dim=-1)
            total = total + weight / (len(stack) - 1) * cosine.square().mean()
    return total


def assert_step_follows_the_joint_loss(
    likelihood: Likelihood, net, x, y, scalar, execution="loop", kind="logit"
) -> None:
    config = LIT(weight=2.0, prior_precision=0.0, scalar=kind)
    size = 3 if likelihood.classification else y.shape[1]
    problem = Problem(likelihood, 100, size, 10)
    stack, twin = stack_of(net, execution), stack_of(net)
    state = init(config, problem, stack)
    _, info = step(config, problem, state, Batch(x, y))
    twin.add_parameters(likelihood.init(len(twin), size))
    loss = joint_loss(likelihood, twin, x, y, 2.0, scalar)
    names = {**twin.params, **twin.extra}
    expected = torch.autograd.grad(loss, list(names.values()), materialize_grads=True)
    leaves = {**stack.params, **stack.extra}
    for name, grad in zip(names, expected, strict=True):
        torch.testing.assert_close(leaves[name].grad, grad, rtol=1e-8, atol=1e-11, msg=name)
    assert ((info.similarity >= 0) & (info.similarity <= 1)).all()


def true_logit(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return outputs[:, torch.arange(len(y)), y]


# -------------------------------------------------------------------------------- the step itself


@pytest.mark.parametrize("execution", ["loop", "threads", "batched", "chunked"])
@pytest.mark.parametrize("net", [mlp, cnn, with_batch_norm])
def test_gradient_is_that_of_the_joint_loss(net, execution) -> None:
    x = IMAGES if net is cnn else X
    y = LABELS[: len(x)]
    assert_step_follows_the_joint_loss(Categorical(), net, x, y, true_logit, execution)


def test_log_probability_and_regression() -> None:
    def log_prob(outputs, y):
        return true_logit(outputs.log_softmax(-1), y)

    assert_step_follows_the_joint_loss(Categorical(), mlp, X, LABELS, log_prob, kind="log_prob")
    values = X[:, :2].sin()
    noise = Gaussian(noise="learned")
    assert_step_follows_the_joint_loss(noise, lambda: mlp(2), X, values, lambda out, _: out.sum(-1))
    assert_step_follows_the_joint_loss(
        HeteroscedasticGaussian(), lambda: mlp(4), X, values, lambda out, _: out[..., :2].sum(-1)
    )


def test_derivative_by_finite_differences() -> None:
    """Of R_i by member i's own gradients, the others constant."""
    j = torch.randn(4, 3, 5, generator=STREAM, dtype=torch.float64)
    _, derivative = similarity(j)
    eps = 1e-6
    for place in [(0, 0, 0), (1, 2, 3), (3, 1, 4)]:
        there, back = j.clone(), j.clone()
        there[place] += eps
        back[place] -= eps
        slope = (similarity(there)[0] - similarity(back)[0])[place[0]].item() / (2 * eps)
        assert derivative[place].item() == pytest.approx(slope, rel=1e-7, abs=1e-9)


def test_value_is_the_mean_squared_cosine_to_the_others() -> None:
    j = torch.randn(5, 7, 3, generator=STREAM, dtype=torch.float64)
    cosine = torch.nn.functional.cosine_similarity(j.unsqueeze(0), j.unsqueeze(1), dim=-1)
    squares = cosine.square().mean(-1)  # (M, M), ones on the diagonal
    torch.testing.assert_close(similarity(j)[0], (squares.sum(1) - 1) / 4)


def test_orthogonal_and_parallel_gradients_feel_no_force() -> None:
    eye = torch.eye(3, dtype=torch.float64).unsqueeze(1)
    value, derivative = similarity(5 * eye)
    assert value.eq(0).all() and derivative.eq(0).all()
    alike = torch.ones(3, 2, 4, dtype=torch.float64) * torch.tensor([1.0, -2.0, 3.0]).view(3, 1, 1)
    value, derivative = similarity(alike)
    torch.testing.assert_close(value, torch.ones(3, dtype=torch.float64))
    assert derivative.abs().max() < 1e-15


def test_more_members_than_dimensions_cannot_be_orthogonal() -> None:
    """M directions in D dimensions: the mean penalty is at least (M/D − 1)/(M − 1)."""
    j = torch.randn(6, 1, 2, generator=STREAM, dtype=torch.float64)
    rate = 0.3
    for _ in range(2000):
        j = j - rate * similarity(j)[1]
    assert similarity(j)[0].mean().item() == pytest.approx((6 / 2 - 1) / 5, abs=1e-6)


def test_one_input_dimension_uses_the_tangent() -> None:
    slopes = torch.tensor([0.5, 2.0], dtype=torch.float64).view(2, 1, 1)
    value, derivative = similarity(slopes)
    cosine = (1 + 0.5 * 2) / math.sqrt(1.25 * 5)
    torch.testing.assert_close(value, torch.full((2,), cosine**2, dtype=torch.float64))
    assert derivative.shape == (2, 1, 1) and derivative[0].item() > 0 > derivative[1].item()


@pytest.mark.parametrize("member", [0, 2])
def test_zero_gradients_are_harmless(member) -> None:
    j = torch.randn(3, 4, 5, generator=STREAM)
    j[member] = 0
    value, derivative = similarity(j)
    assert value[member] == 0 and derivative[member].eq(0).all()
    assert torch.isfinite(value).all() and torch.isfinite(derivative).all()


# -------------------------------------------------------------------------------------- reductions


def fit(method: str, **options) -> pm.Posterior:
    task = pm.Task(train=(X.float(), LABELS), likelihood="categorical")
    own = {
        "net": with_batch_norm,
        "task": task,
        "epochs": 6,
        "batch_size": 5,
        "data_order": "shared",
    }
    return pm.fit(method, **own | {"progress": "silent"} | options)


def test_without_weight_it_is_a_deep_ensemble_and_alone_it_is_map_bit_for_bit() -> None:
    assert same(fit("lit", num_modes=3, weight=0.0), fit("deep_ensemble", num_modes=3))
    assert same(fit("lit", num_modes=1), fit("map"))
    assert not same(fit("lit", num_modes=3), fit("deep_ensemble", num_modes=3))


def test_members_become_independent() -> None:
    """On a task that two of four inputs solve alike, members come to use different ones."""
    x = torch.randn(200, 4, generator=torch.Generator().manual_seed(3))
    x[:, 1] = x[:, 0]
    task = pm.Task(train=(x, (x[:, 0] > 0).long()), likelihood="categorical")
    options = {"net": lambda: mlp(2), "task": task, "num_modes": 2, "progress": "silent"}
    options |= {"epochs": 40, "batch_size": 50, "lr": 0.01}
    alike = {}
    for method in ("deep_ensemble", "lit"):
        stack = pm.fit(method, **options).stack
        inputs = x.expand(2, *x.shape).clone().requires_grad_()
        summed = true_logit(stack(inputs, own=True), (x[:, 0] > 0).long()).sum()
        alike[method] = similarity(torch.autograd.grad(summed, inputs)[0])[0].mean().item()
    assert alike["lit"] < 0.1 < 0.5 < alike["deep_ensemble"]


def test_coincident_members_are_warned_of_and_finite() -> None:
    (module, other), problem = stack_of(num_modes=2).members(), Problem(Categorical(), 100, 3, 10)
    stack = Stack([module, copy.deepcopy(module), other]).train()
    with pytest.warns(UserWarning, match="members 0 and 1 start at the same weights"):
        state = init(LIT(), problem, stack)
    for _ in range(3):
        state, info = step(LIT(), problem, state, Batch(X, LABELS))
        assert torch.isfinite(info.similarity).all()
    assert all(torch.isfinite(p).all() for p in stack.params.values())
    torch.testing.assert_close(stack.params["0.weight"][0], stack.params["0.weight"][1])


# --------------------------------------------------------------------------------------- bad input


def test_options_and_inputs_are_checked() -> None:
    for options, message in (
        ({"weight": -1}, "`weight` of LIT must be finite and ≥ 0, got -1"),
        ({"weight": "batch"}, "`weight` of LIT"),
        ({"scalar": "logits"}, "`scalar` of LIT must be one of logit, log_prob"),
        ({"data_order": "own"}, "`data_order` of LIT must be 'shared' .*, got 'own'"),
    ):
        with pytest.raises(ValueError, match=message):
            LIT(**options)

    def words() -> nn.Module:
        return nn.Sequential(nn.EmbeddingBag(5, 3), nn.Linear(3, 3))

    problem, stack = Problem(Categorical(), 100, 3, 10), Stack(words, 2)
    tokens = torch.randint(5, (4, 2), generator=STREAM)
    with pytest.raises(ValueError, match=r"lit differentiates .*int64.*no nn\.Embedding"):
        step(LIT(), problem, init(LIT(), problem, stack), Batch(tokens, LABELS[:4]))
