"""Feature-space repulsion: its step against dense Jacobians, the cut at the head, edges."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev

import polymode as pm
from polymode.likelihoods.kinds import Categorical, Gaussian, Likelihood
from polymode.methods.feature_rde import (
    FeatureRDE,
    find_head,
    init,
    leading_directions,
    step,
    without_head,
)
from polymode.methods.method import Problem
from polymode.methods.particles.estimators import sge, ssge
from polymode.stack.stack import Stack
from polymode.training.data import Arrays
from polymode.training.loop import Batch

from .small_fits import same

STREAM = torch.Generator().manual_seed(0)
X = torch.randn(9, 3, generator=STREAM, dtype=torch.float64)
IMAGES = torch.randn(6, 2, 8, 8, generator=STREAM, dtype=torch.float64)
LABELS = (X.sum(1) > 0).long()
VALUES = X[:, :2].sin()
SGD = {"optimizer": lambda p: torch.optim.SGD(p, lr=1.0)}
N, M, S = 200, 4, 0.3
EXECUTIONS = ("loop", "threads", "batched", "chunked")


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Softplus(), nn.Dropout(0.2), nn.Flatten(),
        nn.Linear(108, 4), nn.Tanh(), nn.Linear(4, 3),
    )  # fmt: skip


def with_batch_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 2))


def stack_of(make=net, execution: str = "batched", num_modes: int = M) -> Stack:
    return Stack(make, num_modes, seed=1, dtype=torch.float64, execution=execution).train()


def problem_of(likelihood: Likelihood, x: Tensor = X, target_size: int = 2) -> Problem:
    return Problem(likelihood, N, target_size, 3, data=Arrays(x, x))


def flat(tensors) -> Tensor:
    return torch.cat([t.detach().flatten(1) for t in tensors], 1)


def one_step(config: FeatureRDE, likelihood: Likelihood, y: Tensor, stack: Stack) -> Tensor:
    """Return by how much a step of plain descent at rate 1 changes the parameters, (M, P)."""
    problem = problem_of(likelihood)
    before = flat(stack.params.values())
    state, info = step(config, problem, init(config, problem, stack), Batch(X, y))
    assert info.loss.shape == (len(stack),) and state.step == 1
    return flat(state.stack.params.values()) - before


# ------------------------------------------------------------------------------------ the gradient


def dense(stack: Stack) -> tuple[Tensor, Tensor]:
    """Return the features (M, B·F) of the networks without their last layer, and Jacobians."""
    values, jacobians = [], []
    for module in stack.members():
        parameters = {name: p.detach() for name, p in module.named_parameters()}

        def features(params: dict[str, Tensor], module: nn.Sequential = module) -> Tensor:
            return functional_call(module[:-1], params, (X,)).flatten()

        body = {name: p for name, p in parameters.items() if not name.startswith("2.")}
        parts = jacrev(features)(body)
        columns = [
            parts[name].flatten(1) if name in parts else torch.zeros(45, parameters[name].numel())
            for name in stack.params
        ]
        jacobians.append(torch.cat(columns, 1).double())
        values.append(features(body))
    return torch.stack(values), torch.stack(jacobians)


def plain_gradients(likelihood: Likelihood, stack: Stack, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of the mean losses by parameters (M, P) and by features (M, B·F)."""
    by_parameters, by_features = [], []
    for module in stack.members():
        features = module[:-1](X).detach().requires_grad_()
        loss = likelihood.nll(module[-1](features), y, {})
        by_features.append(torch.autograd.grad(loss, features)[0].flatten())
        loss = likelihood.nll(module(X), y, {})
        grads = torch.autograd.grad(loss, list(module.parameters()))
        by_parameters.append(torch.cat([grad.flatten() for grad in grads]))
    return torch.stack(by_parameters), torch.stack(by_features)


def kde_by_hand(z: Tensor) -> Tensor:
    """∇ ln Σ_j exp(−|z_i − z_j|²/h) at each particle, by autograd, pair by pair."""
    squared = torch.tensor([[((a - b) ** 2).sum() for b in z] for a in z])
    h = squared.median() if M % 2 else squared.flatten().sort().values[M * M // 2 - 1 :][:2].mean()
    h = h / math.log(M + 1)
    at = z.clone().requires_grad_()
    value = sum(torch.exp(-((at - other) ** 2).sum(1) / h) for other in z).log().sum()
    return torch.autograd.grad(value, at)[0]


@pytest.mark.parametrize("kind", ["classes", "values"])
@pytest.mark.parametrize("components", [2, None])
@pytest.mark.parametrize("estimator", ["kde", "sge", "ssge"])
def test_step_against_a_dense_jacobian(kind, components, estimator) -> None:
    """Projection by a singular value decomposition, Jacobians written out, float64."""
    likelihood, y = (Categorical(), LABELS) if kind == "classes" else (Gaussian(noise=0.5), VALUES)
    stack, lam = stack_of(), 0.3
    prior = lam / N * flat(stack.params.values())
    features, jacobian = dense(stack)
    plain, by_features = plain_gradients(likelihood, stack, y)
    axes = torch.linalg.svd(by_features, full_matrices=False).Vh[:components]
    z = features @ axes.T
    estimate = {"kde": kde_by_hand, "sge": sge, "ssge": ssge}[estimator]
    leaf = features.clone().requires_grad_()
    (cauchy,) = torch.autograd.grad(torch.log1p(S * leaf**2).sum(), leaf)
    force = estimate(z) @ axes + cauchy
    expected = -plain - prior - torch.einsum("mqp,mq->mp", jacobian, force) / len(X)
    config = FeatureRDE(
        estimator=estimator, num_components=components, prior_scale=S, prior_precision=lam, **SGD
    )
    found = one_step(config, likelihood, y, stack)
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-11)


def test_repulsion_by_finite_differences() -> None:
    """Of ln Σ_j k(V φ_i, z_j) + Σ ln(1 + s φ_i²), with V, h and references constant."""
    stack, eps = stack_of(), 1e-6
    references, _ = dense(stack)
    _, by_features = plain_gradients(Categorical(), stack, LABELS)
    axes = torch.linalg.svd(by_features, full_matrices=False).Vh[:3]
    z = references @ axes.T
    squared = ((z[:, None] - z[None]) ** 2).sum(-1).flatten().sort().values
    h = (squared[M * M // 2 - 1] + squared[M * M // 2]) / 2 / math.log(M + 1)
    weight, slopes = stack.params["0.weight"].detach(), []
    for k in range(M):
        for sign in (1, -1):
            weight[k, 2, 1] += sign * eps
            moved, _ = dense(stack)
            density = torch.exp(-((moved[k] @ axes.T - z) ** 2).sum(1) / h).sum().log()
            slopes.append((density + torch.log1p(S * moved[k] ** 2).sum()).item())
            weight[k, 2, 1] -= sign * eps
    expected = [(slopes[2 * k] - slopes[2 * k + 1]) / (2 * eps) for k in range(M)]
    both, alone = (
        one_step(
            FeatureRDE(weight=w, num_components=3, prior_scale=S, **SGD),
            Categorical(), LABELS, stack_of(),
        )
        for w in (1.0, 0.0)
    )  # fmt: skip
    place = 2 * 3 + 1
    assert (alone - both)[:, place].tolist() == pytest.approx(expected, rel=1e-6)


def test_weights_by_name() -> None:
    found = {
        weight: one_step(FeatureRDE(weight=weight, **SGD), Categorical(), LABELS, stack_of())
        for weight in ("batch", 1 / 9, "data", 1 / N)
    }
    assert torch.equal(found["batch"], found[1 / 9])
    assert torch.equal(found["data"], found[1 / N])
    assert not torch.allclose(found["batch"], found["data"])


@pytest.mark.parametrize("make", [cnn, net])
def test_executions_agree(make) -> None:
    """Three steps with BatchNorm, dropout and images, running statistics included."""
    x = IMAGES if make is cnn else X
    y, found = torch.arange(len(x)) % 2, {}
    problem = problem_of(Categorical(), x, 3 if make is cnn else 2)
    for execution in EXECUTIONS:
        stack = stack_of(make, execution)
        if execution == "threads":
            stack.lay_out(True)
        config = FeatureRDE(lr=0.01, optimizer="sgd")
        state = init(config, problem, stack)
        for _ in range(3):
            state, _ = step(config, problem, state, Batch(x, y))
        found[execution] = stack.tensors()
    for execution in EXECUTIONS[1:]:
        for name, tensor in found["loop"].items():
            torch.testing.assert_close(found[execution][name], tensor, rtol=1e-8, atol=1e-10)


def test_leading_directions() -> None:
    gradients = torch.randn(5, 40, generator=STREAM, dtype=torch.float64)
    axes = leading_directions(gradients, 3)
    torch.testing.assert_close(axes @ axes.T, torch.eye(3, dtype=torch.float64))
    wanted = torch.linalg.svd(gradients, full_matrices=False).Vh[:3]
    torch.testing.assert_close(axes.T @ axes, wanted.T @ wanted)
    assert leading_directions(gradients, None).shape == (5, 40)
    assert leading_directions(gradients[:1].expand(5, 40), 3).shape == (1, 40)  # one direction
    assert leading_directions(torch.zeros(5, 40), 3).shape == (0, 40)


# ------------------------------------------------------------------------------------ the head


class Block(nn.Module):
    """Its last layer is neither registered nor called in order."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(4, 2, bias=False)
        self.first = nn.Linear(3, 4)
        self.second = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).tanh()
        return self.out(h + self.second(h).tanh())


@pytest.mark.parametrize(("make", "head"), [(net, "2"), (cnn, "7"), (Block, "out")])
def test_the_cut_is_at_the_layer_whose_outputs_are_the_networks(make, head) -> None:
    x = IMAGES if make is cnn else X
    stack = stack_of(make).eval()
    assert find_head(stack, x[:2]) == head
    body = without_head(stack, head)
    weight, bias = stack.params[f"{head}.weight"], stack.params.get(f"{head}.bias")
    outputs = body(x) @ weight.mT + (0 if bias is None else bias.unsqueeze(1))
    torch.testing.assert_close(outputs, stack(x))
    for name, tensor in body.params.items():
        assert tensor is stack.params[name]
    assert {*stack.params} - {*body.params} == {f"{head}.weight"} | (
        set() if bias is None else {f"{head}.bias"}
    )


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = net()

    def forward(self, x: Tensor) -> Tensor:
        return 2 * self.layers(x)


def tied() -> nn.Module:
    layers = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    layers[2].weight = layers[0].weight
    return layers


@pytest.mark.parametrize(
    "make",
    [Scaled, lambda: nn.Linear(3, 2), lambda: nn.Sequential(nn.Flatten(), nn.Linear(3, 2)), tied],
    ids=["scaled", "linear", "no layers before", "tied"],
)
def test_networks_without_a_head_are_refused(make) -> None:
    config, stack = FeatureRDE(), stack_of(make, num_modes=2)
    with pytest.raises(ValueError, match="are not those of an nn.Linear .*or use function_rde"):
        init(config, problem_of(Categorical()), stack)


def test_a_frozen_head_stays_and_its_features_move() -> None:
    def frozen() -> nn.Module:
        layers = net()
        layers[2].requires_grad_(False)
        return layers

    stack = stack_of(frozen)
    before = {name: tensor.clone() for name, tensor in stack.frozen.items()}
    assert one_step(FeatureRDE(**SGD), Categorical(), LABELS, stack).abs().min() > 0
    assert all(torch.equal(stack.frozen[name], tensor) for name, tensor in before.items())


def test_a_shared_head_is_one_and_follows_the_mean_loss() -> None:
    stack = stack_of()
    with torch.no_grad():
        for name in ("2.weight", "2.bias"):
            stack.params[name][1:] = stack.params[name][0]
    config = FeatureRDE(head="shared", prior_precision=0.0, **SGD)
    plain, _ = plain_gradients(Categorical(), stack, LABELS)
    moved = one_step(config, Categorical(), LABELS, stack)
    size = 5 * 2 + 2
    expected = -plain[:, -size:].mean(0).expand(M, size)
    torch.testing.assert_close(moved[:, -size:], expected, rtol=1e-9, atol=1e-12)
    task = pm.Task(train=(X, LABELS), likelihood="categorical")
    options = {"net": net, "task": task, "epochs": 20, "batch_size": 4, "progress": "silent"}
    post = pm.fit("feature_rde", head="shared", num_modes=3, clip_norm=0.1, **options)
    for name in ("2.weight", "2.bias"):
        assert (post.stack.params[name] == post.stack.params[name][0]).all()
    assert not torch.equal(post.stack.params["0.weight"][0], post.stack.params["0.weight"][1])


def test_trained_networks_stay_as_they_are_without_training() -> None:
    task = pm.Task(train=(X, LABELS), likelihood="categorical")
    options = {"net": [net(), net()], "task": task, "epochs": 0, "progress": "silent"}
    for head in ("own", "shared"):
        post = pm.fit("feature_rde", head=head, num_modes=2, **options)
        for k, module in enumerate(options["net"]):
            assert torch.equal(post.stack.params["2.weight"][k], module[2].weight)


def test_shared_heads_resume_where_they_stopped(tmp_path) -> None:
    settings = {"num_modes": 3, "head": "shared"}
    whole = fit("feature_rde", **settings)
    assert same(whole, fit("feature_rde", checkpoint=tmp_path, **settings))
    assert same(whole, fit("feature_rde", checkpoint=tmp_path, **settings))


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
    assert same(fit("feature_rde", num_modes=3, weight=0.0), fit("deep_ensemble", num_modes=3))
    assert same(fit("feature_rde", num_modes=1), fit("map"))
    assert not same(fit("feature_rde", num_modes=3), fit("deep_ensemble", num_modes=3))


def test_the_same_classes_without_an_end_of_their_own_go_without_weight() -> None:
    """Where nothing repels, any network will do."""
    assert fit("feature_rde", net=Scaled, num_modes=2, weight=0.0).num_modes == 2


def test_features_move_apart() -> None:
    """The projected spread of the features, beside their size, exceeds a deep ensemble's."""
    x = torch.randn(200, 3, generator=torch.Generator().manual_seed(3))
    task = pm.Task(train=(x, (x[:, 0] > 0).long()), likelihood="categorical")
    options = {"net": net, "task": task, "num_modes": 6, "progress": "silent"}
    options |= {"epochs": 40, "batch_size": 50, "lr": 0.01}
    spread = {}
    for method, more in (("deep_ensemble", {}), ("feature_rde", {"weight": 0.3})):
        stack = pm.fit(method, **options, **more).stack
        with torch.no_grad():
            features = without_head(stack, "2")(x).flatten(1)
        spread[method] = (features - features.mean(0)).square().sum().item()
    assert spread["feature_rde"] > 1.1 * spread["deep_ensemble"]


def test_coincident_members_are_warned_of_and_finite() -> None:
    (module, other), problem = stack_of(num_modes=2).members(), problem_of(Categorical())
    stack = Stack([module, copy.deepcopy(module), other]).train()
    config = FeatureRDE()
    with pytest.warns(UserWarning, match="members 0 and 1 start at the same weights"):
        state = init(config, problem, stack)
    for _ in range(3):
        state, info = step(config, problem, state, Batch(X, LABELS))
        assert torch.isfinite(info.loss).all()
    assert all(torch.isfinite(p).all() for p in stack.params.values())
    torch.testing.assert_close(stack.params["0.weight"][0], stack.params["0.weight"][1])


@pytest.mark.parametrize("estimator", ["kde", "sge", "ssge"])
def test_zero_heads_give_no_direction_and_no_repulsion(estimator) -> None:
    """All gradients by features are 0: what is left is the prior."""

    def zero_head() -> nn.Module:
        layers = net()
        nn.init.zeros_(layers[2].weight)
        return layers

    config = FeatureRDE(estimator=estimator, prior_scale=0.0, **SGD)
    moved = one_step(config, Categorical(), LABELS, stack_of(zero_head))
    plain = one_step(FeatureRDE(weight=0.0, **SGD), Categorical(), LABELS, stack_of(zero_head))
    torch.testing.assert_close(moved, plain)


def test_own_batches_are_refused() -> None:
    problem, stack = problem_of(Categorical()), stack_of(num_modes=2)
    batch = Batch(torch.stack([X, X]), torch.stack([LABELS, LABELS]), own=True)
    with pytest.raises(ValueError, match="same inputs"):
        step(FeatureRDE(), problem, init(FeatureRDE(), problem, stack), batch)


def test_options_are_checked() -> None:
    for options, message in (
        ({"weight": -1}, "`weight` of FeatureRDE must be .* got -1"),
        ({"estimator": "svgd"}, "`estimator` of FeatureRDE must be one of kde, sge, ssge"),
        ({"num_components": 0}, "`num_components` of FeatureRDE must be an integer of at least 1"),
        ({"prior_scale": -1.0}, "`prior_scale` of FeatureRDE must be finite and ≥ 0"),
        ({"head": "common"}, "`head` of FeatureRDE must be one of own, shared"),
        ({"data_order": "own"}, "`data_order` of FeatureRDE must be 'shared' .*, got 'own'"),
    ):
        with pytest.raises(ValueError, match=message):
            FeatureRDE(**options)
    with pytest.raises(ValueError, match="needs the training data"):
        init(FeatureRDE(), Problem(Categorical(), N, 2, 3), stack_of())
