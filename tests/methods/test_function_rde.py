"""Function-space repulsion: pull-back against a dense Jacobian, points, priors, edges."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev

import polymode as pm
from polymode.likelihoods.kinds import Categorical, Gaussian, HeteroscedasticGaussian, Likelihood
from polymode.methods.function_rde import FunctionRDE, compared, function_force, init, step
from polymode.methods.method import Problem
from polymode.methods.particles.estimators import (
    ESTIMATORS,
    kde,
    lengthscale,
    median_lengthscale,
    sge,
    ssge,
)
from polymode.methods.particles.kernel import rbf, squared_distances
from polymode.stack.stack import Stack
from polymode.training.loop import Batch, Divergence

X = torch.randn(9, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
LABELS = (X.sum(1) > 0).long()
VALUES = X[:, :1].sin()
POINTS = torch.randn(5, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
QUICK = {"epochs": 3, "batch_size": 4, "progress": "silent"}
SGD = {"optimizer": lambda p: torch.optim.SGD(p, lr=1.0)}
N = 200


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def with_statistics() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2))


def stack_of(num_modes: int, make=net) -> Stack:
    return Stack(make, num_modes, seed=1, dtype=torch.float64, execution="batched").train()


def flat(tensors) -> Tensor:
    return torch.cat([t.detach().flatten(1) for t in tensors], 1)


def classes() -> pm.Task:
    return pm.Task(train=(X, LABELS), likelihood="categorical")


def one_step(config: FunctionRDE, likelihood: Likelihood, y: Tensor, stack: Stack) -> Tensor:
    """Return by how much a step of plain descent at rate 1 changes the parameters, (M, P)."""
    problem = Problem(likelihood, N, 2 if likelihood.classification else y.shape[1], 3)
    before = flat(stack.params.values())
    state, info = step(config, problem, init(config, problem, stack), Batch(X, y))
    assert info.loss.shape == (stack.num_modes,)
    assert state.step == 1
    return flat(state.stack.params.values()) - before


# ------------------------------------------------------------------------------------ the gradient


def jacobians(stack: Stack, inputs: Tensor, view) -> tuple[Tensor, Tensor]:
    """Return view(f_i(inputs)) (M, Q, C) and its dense Jacobians (M, Q·C, P), member by member."""
    values, dense = [], []
    for module in stack.members():
        parameters = {name: p.detach() for name, p in module.named_parameters()}

        def function(params: dict[str, Tensor], module: nn.Module = module) -> Tensor:
            return view(functional_call(module, params, (inputs,))).flatten()

        parts = jacrev(function)(parameters)
        dense.append(torch.cat([parts[n].flatten(1) for n in stack.params], 1))
        values.append(function(parameters))
    return torch.stack(values), torch.stack(dense)


VIEWS = {
    "probs": (Categorical(), LABELS, lambda f: f.softmax(-1)),
    "logits": (Categorical(), LABELS, lambda f: f),
    "means": (HeteroscedasticGaussian(), VALUES, lambda f: f[..., :1]),
}


@pytest.mark.parametrize("kind", sorted(VIEWS))
@pytest.mark.parametrize("points", ["batch", "given"])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_pull_back_against_a_dense_jacobian(kind, points, estimator) -> None:
    """One step in float64 against Jᵀφ/N, with φ by the formulas and J written out."""
    likelihood, y, view = VIEWS[kind]
    stack, lam = stack_of(4), 0.3
    prior = lam * flat(stack.params.values())
    inputs = X if points == "batch" else POINTS
    raw, raw_jacobian = jacobians(stack, X, lambda f: f)
    leaf = raw.view(4, 9, 2).clone().requires_grad_()
    (score,) = torch.autograd.grad(N * likelihood.log_prob(leaf, y, {}).mean(1).sum(), leaf)
    score = score.flatten(1)
    values, jacobian = jacobians(stack, inputs, view)
    if estimator == "svgd":
        squared = squared_distances(values, values)
        h = median_lengthscale(squared)
        kernel = rbf(squared, h)
        score, prior = kernel @ score / 4, prior * kernel.mean(1, keepdim=True)
        away = (2 / h) * (values[:, None] - values[None]) * kernel[..., None]  # ∂K_ij/∂f_j
        repulsion = away.sum(1) / 4
    else:
        repulsion = -{"kde": kde, "sge": sge, "ssge": ssge}[estimator](values)
    expected = torch.einsum("mqp,mq->mp", raw_jacobian, score)
    expected += torch.einsum("mqp,mq->mp", jacobian, repulsion)
    expected -= prior
    config = FunctionRDE(
        estimator=estimator,
        outputs=kind if kind != "means" else "probs",
        points="batch" if points == "batch" else POINTS,
        prior_precision=lam,
        **SGD,
    )
    found = one_step(config, likelihood, y, stack)
    assert torch.allclose(found, expected / N, rtol=1e-8, atol=1e-12)


def test_repulsion_alone_lowers_the_log_density_of_the_outputs() -> None:
    """At γ = 0 the step descends Σ_i log Σ_j k(f_i, f_j), h and references fixed: differences."""
    stack, eps = stack_of(3), 1e-6
    config = FunctionRDE(annealing="linear", outputs="logits", points=POINTS, **SGD)
    references, _ = jacobians(stack, POINTS, lambda f: f)
    h = lengthscale("kde", squared_distances(references, references))
    weight = stack.params["0.weight"].detach()
    slopes = []
    for k in range(3):
        for sign in (1, -1):
            weight[k, 2, 1] += sign * eps
            moved, _ = jacobians(stack, POINTS, lambda f: f)
            slopes.append(rbf(squared_distances(moved[k : k + 1], references), h).sum().log())
            weight[k, 2, 1] -= sign * eps
    expected = [(slopes[2 * k] - slopes[2 * k + 1]).item() / (2 * eps * N) for k in range(3)]
    before = weight.clone()
    one_step(config, Categorical(), LABELS, stack)
    found = (before - stack.params["0.weight"].detach())[:, 2, 1].tolist()
    assert found == pytest.approx(expected, rel=1e-5)


def test_learned_noise_follows_its_gradient_alone() -> None:
    task = pm.Task(train=(X, VALUES), likelihood=Gaussian(noise="learned"))
    options = {"net": lambda: nn.Linear(3, 1), "task": task, "epochs": 1, "batch_size": 9}
    options |= {"num_modes": 3, "progress": "silent", "optimizer": "sgd", "lr": 0.1}
    ours, plain = (pm.fit(name, **options).stack for name in ("function_rde", "map"))
    torch.testing.assert_close(ours.extra["log_noise"], plain.extra["log_noise"])
    assert not torch.allclose(ours.params["weight"], plain.params["weight"], rtol=1e-4)
    waiting = pm.fit("function_rde", annealing="linear", **options).stack  # one step, at γ = 0
    start = pm.fit("map", **{**options, "epochs": 0}).stack
    assert torch.equal(waiting.extra["log_noise"], start.extra["log_noise"])


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.cpu_seconds(6)
def test_reaches_the_exact_posterior_of_linear_regression(estimator) -> None:
    """64 members against the exact Gaussian posterior; deterministic, so no false alarms.

    A linear network is as good a particle by its outputs as by its weights. The mean lies within a
    tenth of the standard error of 64 exact draws, and the variances are between 0.6 and 1 of the
    exact ones with sge, ssge and svgd; the blur of kde leaves 0.35 to 0.5, a deep ensemble 0.
    """
    task = pm.task("linear_regression")
    options = {
        "net": lambda: nn.Linear(3, 1),
        "task": task,
        "num_modes": 64,
        "epochs": 500,
        "holdout": 0,
    }
    options |= {"batch_size": 50, "lr": 0.1, "schedule": "linear", "execution": "batched"}
    options |= {"dtype": torch.float64, "progress": "silent"}
    post = pm.fit("function_rde", estimator=estimator, **options)
    theta, variances = flat(post.stack.params.values()), task.exact.covariance.diagonal()
    assert ((theta.mean(0) - task.exact.mean).abs() < 0.1 * (variances / 64).sqrt()).all()
    ratio = theta.var(0) / variances
    low, high = (0.35, 0.5) if estimator == "kde" else (0.6, 1.0)
    assert ((ratio > low) & (ratio < high)).all()


# ------------------------------------------------------------------------------------ the prior


def test_function_prior_is_ssge_of_fresh_networks() -> None:
    """The difference to the step without a prior is Jᵀ ∇ log p(f) / N, from the drawn networks.

    Their spread is 1/√λ = 0.5 within five standard errors: false-alarm rate 6e-7.
    """
    options = {"outputs": "logits", "points": POINTS, **SGD}
    without = one_step(
        FunctionRDE(prior_precision=0.0, **options), Categorical(), LABELS, stack_of(4)
    )
    config = FunctionRDE(prior="function", prior_precision=4.0, **options)
    problem, stack = Problem(Categorical(), N, 2, 3), stack_of(4)
    values, jacobian = jacobians(stack, POINTS, lambda f: f)
    state = init(config, problem, stack)
    before = flat(stack.params.values())
    state, _ = step(config, problem, state, Batch(X, LABELS))
    found = flat(stack.params.values()) - before
    drawn = flat(state.prior.params.values())
    assert drawn.std().item() == pytest.approx(0.5, abs=5 * 0.5 / math.sqrt(2 * drawn.numel()))
    samples, _ = jacobians(state.prior, POINTS, lambda f: f)
    h = 4 * median_lengthscale(squared_distances(samples, samples))
    expected = torch.einsum("mqp,mq->mp", jacobian, ssge(samples, h, at=values)) / N
    torch.testing.assert_close(found - without, expected, rtol=1e-7, atol=1e-12)
    state, _ = step(config, problem, state, Batch(X, LABELS))
    assert not torch.equal(drawn, flat(state.prior.params.values()))


@pytest.mark.parametrize("gamma", [1.0, 0.3])
def test_the_kernel_of_svgd_smooths_the_prior_as_it_does_the_likelihood(gamma) -> None:
    """The force of the prior of other estimators, mixed by K / M; repulsion is the same without."""
    problem, stack = Problem(Categorical(), N, 2, 3), stack_of(4)
    values = stack(POINTS).detach()
    forces = {}
    for prior in ("function", "weight"):
        for estimator in ("svgd", "sge"):
            config = FunctionRDE(
                estimator=estimator, prior=prior, prior_precision=4.0, outputs="logits", **SGD
            )
            state = init(config, problem, stack_of(4))
            found = function_force(config, problem, state, values, POINTS, gamma)
            forces[prior, estimator] = found[1].flatten(1)
            if estimator == "svgd":
                mixing = found[0]
    driving = forces["function", "sge"] - forces["weight", "sge"]
    smoothed = forces["function", "svgd"] - forces["weight", "svgd"]
    torch.testing.assert_close(smoothed, mixing @ driving, rtol=1e-7, atol=1e-12)


def test_function_prior_of_a_linear_network() -> None:
    """Oracle: f = Φ w with w ~ N(0, I), so Φᵀ ∇ log p(f) = −w.

    64 prior samples, 64 functions. Over 40 seeds the cosine to −w is 0.86 ± 0.045 and the size
    along it 1.33 ± 0.19; bounds of five spreads: false-alarm rate 1e-6.
    """
    task = pm.task("linear_regression")
    config = FunctionRDE(prior="function", num_modes=64)
    problem = Problem(task.likelihood, 50, 1, 1)
    stack = Stack(lambda: nn.Linear(3, 1), 64, dtype=torch.float64, execution="batched").train()
    x = task.train.x.double()
    state = init(config, problem, stack)
    for seed, tensor in enumerate(stack.params.values()):
        stream = torch.Generator().manual_seed(seed)
        tensor.data.copy_(torch.randn(tensor.shape, generator=stream, dtype=tensor.dtype))
    values = stack(x).detach()
    _, with_prior = function_force(config, problem, state, values, x, 1.0)
    _, without = function_force(config, problem, state._replace(prior=None), values, x, 1.0)
    score = (50 * (without - with_prior)).squeeze(-1) @ torch.cat([x, torch.ones(50, 1)], 1)
    true = -flat(stack.params.values())
    cosine = (score * true).sum() / score.norm() / true.norm()
    assert cosine > 0.63
    assert 0.38 < (score * true).sum() / true.square().sum() < 2.29


@pytest.mark.parametrize("estimator", ["kde", "svgd"])
def test_function_prior_resumes(estimator, tmp_path) -> None:
    options = {"net": with_statistics, "task": classes(), "prior": "function", "num_modes": 3}
    options |= {"estimator": estimator, "progress": "silent", "batch_size": 4, "points": POINTS}
    whole = pm.fit("function_rde", epochs=4, **options)

    def interrupt(event) -> None:
        if event.kind == "checkpoint" and event.step >= 5:
            raise RuntimeError("stop")

    kept = options | {"checkpoint": tmp_path, "checkpoint_seconds": 0, "epochs": 4}
    with pytest.raises(RuntimeError, match="stop"):
        pm.fit("function_rde", on_event=interrupt, **kept)
    resumed = pm.fit("function_rde", **kept)
    for name, tensor in whole.stack.tensors().items():
        assert torch.equal(tensor, resumed.stack.tensors()[name]), name


# ------------------------------------------------------------------------------------ points


@pytest.mark.parametrize("execution", ["batched", "loop", "threads", "chunked"])
def test_points_leave_the_statistics_of_the_data(execution) -> None:
    """After one step the running statistics are those of the batch, wherever members repel."""
    options = {"net": with_statistics, "task": classes(), "epochs": 1, "batch_size": 9}
    options |= {"num_modes": 3, "progress": "silent", "execution": execution}
    plain = pm.fit("map", **options).stack.buffers
    for points in ("batch", "perturbed", POINTS + 7):
        ours = pm.fit("function_rde", points=points, **options).stack.buffers
        for name, tensor in plain.items():
            torch.testing.assert_close(ours[name], tensor, rtol=1e-5, atol=1e-6)


def test_perturbed_points_are_the_batch_with_noise() -> None:
    """As the noise vanishes the step becomes that of the batch; with noise it differs."""
    batch, near, far = (
        one_step(
            FunctionRDE(points_noise=noise, points=points, **SGD),
            Categorical(),
            LABELS,
            stack_of(3),
        )
        for points, noise in (("batch", 0.25), ("perturbed", 1e-9), ("perturbed", 1.0))
    )
    torch.testing.assert_close(near, batch, rtol=1e-6, atol=1e-10)
    assert not torch.allclose(far, batch, rtol=1e-3)


def test_members_differ_where_they_repel() -> None:
    """Far from the data, members with repulsion there disagree more than a deep ensemble's."""
    task = pm.task("two_moons")
    away = torch.tensor([[4.0, -4.0], [-4.0, 4.0], [4.0, 4.0], [-4.0, -4.0]])
    options = {"net": pm.nets.mlp, "task": task, "num_modes": 5, "epochs": 60, "lr": 0.01}
    spread = {}
    for name, more in (("deep_ensemble", {}), ("function_rde", {"points": away})):
        post = pm.fit(name, progress="silent", **options, **more)
        spread[name] = post.predict(away).mutual_information.mean().item()
    assert spread["function_rde"] > 5 * spread["deep_ensemble"]


def test_saved_and_loaded_with_points(tmp_path) -> None:
    post = pm.fit("function_rde", net=net, task=classes(), points=POINTS.float(), **QUICK)
    post.save(tmp_path)
    loaded = pm.load(tmp_path, net=net)
    assert torch.equal(post.predict(X.float()).mean, loaded.predict(X.float()).mean)


def test_members_with_batches_of_their_own_repel_at_given_points() -> None:
    with pytest.raises(ValueError, match="needs data_order='shared'"):
        FunctionRDE(data_order="own")
    task = classes()
    post = pm.fit("function_rde", net=net, task=task, points=POINTS, data_order="own", **QUICK)
    assert all(torch.isfinite(t).all() for t in post.stack.params.values())


# ------------------------------------------------------------------------------------ edges


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("points", ["batch", "perturbed"])
def test_one_member_is_map(estimator, points) -> None:
    options = {"net": net, "task": classes(), "dtype": torch.float64, **QUICK}
    ours = pm.fit("function_rde", estimator=estimator, num_modes=1, points=points, **options)
    plain = pm.fit("map", data_order="shared", **options)
    for name, tensor in plain.stack.tensors().items():
        torch.testing.assert_close(tensor, ours.stack.tensors()[name], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_equal_members_are_told_and_stay_equal(estimator) -> None:
    first, second = net(), net()
    second.load_state_dict(first.state_dict())
    options = {"net": [net(), first, second], "dtype": torch.float64, **QUICK}
    task = pm.Task(train=(X, LABELS), likelihood="categorical")
    with pytest.warns(UserWarning, match="members 1 and 2 start at the same weights"):
        post = pm.fit("function_rde", estimator=estimator, task=task, **options)
    for tensor in post.stack.params.values():
        assert torch.isfinite(tensor).all()
        torch.testing.assert_close(tensor[1], tensor[2], rtol=1e-5, atol=1e-6)


def test_what_is_compared() -> None:
    """Probabilities, logits, or means without the scales."""
    stack, outputs = stack_of(3), torch.randn(3, 4, 2, dtype=torch.float64)
    classes = Problem(Categorical(), N, 2, 1)
    torch.testing.assert_close(
        compared(FunctionRDE(), classes, outputs, stack), outputs.softmax(-1)
    )
    assert compared(FunctionRDE(outputs="logits"), classes, outputs, stack) is outputs
    scales = Problem(HeteroscedasticGaussian(), N, 1, 1)
    assert torch.equal(compared(FunctionRDE(), scales, outputs, stack), outputs[..., :1])


def test_divergence_is_told_as_in_other_methods() -> None:
    task = pm.task("linear_regression")
    with pytest.raises(Divergence, match="diverged at step"):
        pm.fit("function_rde", net=lambda: nn.Linear(3, 1), task=task, optimizer="sgd", lr=1e20,
               progress="silent", epochs=50)  # fmt: skip


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"estimator": "kd"}, "`estimator` of FunctionRDE"),
        ({"annealing": "x"}, "`annealing` of FunctionRDE"),
        ({"outputs": "softmax"}, "`outputs` of FunctionRDE"),
        ({"points": "test"}, "`points` of FunctionRDE must be one of batch, perturbed"),
        ({"points": torch.zeros(0, 3)}, r"at least one, got a tensor of shape \(0, 3\)"),
        ({"points": [[math.nan]]}, "finite inputs"),
        ({"points_noise": 0.0}, "`points_noise` of FunctionRDE must be > 0, got 0.0"),
        ({"prior": "none"}, "`prior` of FunctionRDE"),
        ({"prior": "function", "prior_precision": 0.0}, "must be > 0, got 0"),
    ],
)
def test_bad_options(options, message) -> None:
    with pytest.raises(ValueError, match=message):
        FunctionRDE(**options)


def test_points_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match=r"one training input has \(3,\); give \(Q, 3\)"):
        pm.fit("function_rde", net=net, task=classes(), points=torch.zeros(2, 4), **QUICK)
