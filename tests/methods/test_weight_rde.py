"""Weight-space repulsion: dense twin, log-density by differences, exact posterior, edges."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn

import polymode as pm
from polymode.likelihoods.kinds import Categorical, Gaussian
from polymode.methods.method import Problem
from polymode.methods.particles.annealing import annealing_factor
from polymode.methods.particles.estimators import ESTIMATORS, direction
from polymode.methods.weight_rde import WeightRDE, init, repel, step
from polymode.stack.stack import Stack
from polymode.training.loop import Batch, Divergence

X = torch.randn(20, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
LABELS = (X.sum(1) > 0).long()
VALUES = X[:, :2].sin()
QUICK = {"epochs": 3, "batch_size": 8, "progress": "silent"}


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def stack_of(num_modes: int, **options) -> Stack:
    return Stack(net, num_modes, seed=1, dtype=torch.float64, execution="batched", **options)


def flat(tensors) -> Tensor:
    return torch.cat([t.detach().flatten(1) for t in tensors], 1)


def moved(config: WeightRDE, problem: Problem, stack: Stack, y: Tensor) -> Tensor:
    """Return what one step of plain descent at rate 1 subtracts from the parameters, (M, P)."""
    before = flat(stack.params.values())
    state, _ = step(config, problem, init(config, problem, stack), Batch(X, y))
    return before - flat(state.stack.params.values())


# ------------------------------------------------------------------------------------ the gradient


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("annealing", ["none", "linear"])
def test_step_against_a_dense_twin(estimator, annealing) -> None:
    """−φ/N with the log-posterior of each member written out and the particles as one matrix."""
    config = WeightRDE(
        estimator=estimator,
        annealing=annealing,
        optimizer=lambda p: torch.optim.SGD(p, lr=1.0),
        prior_precision=0.7,
        epochs=50,
    )
    problem = Problem(Categorical(), 500, 2, 3)
    stack = stack_of(4)
    state = init(config, problem, stack)._replace(step=60)
    gamma = 60 / 150 if annealing == "linear" else 1.0
    scores = []
    for module in stack.members():
        outputs = module(X)
        log_posterior = -500 * nn.functional.cross_entropy(outputs, LABELS)
        for p in module.parameters():
            log_posterior = log_posterior - 0.35 * p.square().sum()
        grads = torch.autograd.grad(log_posterior, list(module.parameters()))
        scores.append(torch.cat([g.flatten() for g in grads]))
    before = flat(stack.params.values())
    expected = direction(estimator, before, gamma * torch.stack(scores)) / 500
    state, info = step(config, problem, state, Batch(X, LABELS))
    found = flat(stack.params.values()) - before
    assert torch.allclose(found, expected, rtol=1e-8, atol=1e-11)
    assert info.loss.shape == (4,)
    assert state.step == 61


def test_kde_repulsion_descends_the_log_density() -> None:
    """Finite differences of log Σ_j k(θ_i, θ_j), the others and the kernel's width held fixed."""
    stack = stack_of(3)
    theta, eps = flat(stack.params.values()), 1e-5
    for p in stack.params.values():
        p.grad = torch.zeros_like(p)
    repel(stack, "kde", 1.0)
    found = flat(p.grad for p in stack.params.values())
    squared = torch.cdist(theta, theta).square()
    h = squared.flatten().median() / math.log(4)  # nine numbers: no middle pair

    def log_density(at: Tensor) -> Tensor:
        return torch.exp(-(at - theta).square().sum(1) / h).sum().log()

    for i in range(3):
        for p in range(theta.shape[1]):
            shift = eps * torch.eye(theta.shape[1], dtype=torch.float64)[p]
            slope = (log_density(theta[i] + shift) - log_density(theta[i] - shift)) / (2 * eps)
            assert found[i, p].item() == pytest.approx(slope.item(), rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_learned_noise_is_not_repelled(estimator) -> None:
    """The likelihood's own parameters move exactly as in `map`."""
    task = pm.Task(train=(X, VALUES), likelihood=Gaussian(noise="learned"))
    one_step = {"net": net, "task": task, "epochs": 1, "batch_size": 20, "num_modes": 3}
    quiet = {"progress": "silent", "dtype": torch.float64, "optimizer": "sgd", "lr": 0.1}
    ours = pm.fit("weight_rde", estimator=estimator, **one_step, **quiet).stack
    plain = pm.fit("map", **one_step, **quiet).stack
    assert torch.equal(ours.extra["log_noise"], plain.extra["log_noise"])
    assert not torch.equal(ours.params["0.weight"], plain.params["0.weight"])
    waiting = pm.fit("weight_rde", annealing="linear", **one_step, **quiet).stack  # at γ = 0
    with pytest.warns(UserWarning, match="epochs=0"):
        start = pm.fit("map", **{**one_step, "epochs": 0}, **quiet).stack
    assert torch.equal(waiting.extra["log_noise"], start.extra["log_noise"])


# ------------------------------------------------------------------------------------ edges


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_one_member_is_map(estimator) -> None:
    task = pm.Task(train=(X, LABELS), likelihood="categorical")
    ours = pm.fit("weight_rde", estimator=estimator, num_modes=1, net=net, task=task, **QUICK)
    plain = pm.fit("map", net=net, task=task, **QUICK)
    for name, tensor in plain.stack.tensors().items():
        assert torch.equal(tensor, ours.stack.tensors()[name]), name


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_equal_members_are_told_and_stay_equal(estimator) -> None:
    other, first = stack_of(2).members()
    second = copy.deepcopy(first)
    options = {"net": [other, first, second], "num_modes": 3, "data_order": "shared", **QUICK}
    task = pm.Task(train=(X, LABELS), likelihood="categorical")
    with pytest.warns(UserWarning, match="members 1 and 2 start at the same weights"):
        post = pm.fit("weight_rde", estimator=estimator, task=task, **options)
    for tensor in post.stack.params.values():
        assert torch.isfinite(tensor).all()
        torch.testing.assert_close(tensor[1], tensor[2], rtol=1e-9, atol=1e-12)


@pytest.mark.cpu_seconds(6)
def test_members_end_further_apart_than_without_repulsion() -> None:
    task = pm.task("linear_regression")
    options = {
        "net": lambda: nn.Linear(3, 1),
        "task": task,
        "num_modes": 2,
        "epochs": 500,
        "holdout": 0,
    }
    options |= {"batch_size": 50, "lr": 0.1, "progress": "silent", "schedule": "linear"}
    apart = [
        (pm.fit(name, **options).stack.params["weight"].detach().diff(dim=0)).norm().item()
        for name in ("weight_rde", "deep_ensemble")
    ]
    assert apart[0] > 0.1
    assert apart[1] < 0.01


def test_annealing_starts_with_repulsion_alone() -> None:
    """At γ = 0 the first step is A θ / N, whatever the data."""
    config = WeightRDE(annealing="hyper", optimizer=lambda p: torch.optim.SGD(p, lr=1.0), epochs=50)
    problem = Problem(Categorical(), 100, 2, 3)
    first, second = (moved(config, problem, stack_of(3), y) for y in (LABELS, 1 - LABELS))
    assert annealing_factor("hyper", 0, 150) == 0
    assert torch.equal(first, second)
    assert first.abs().max() > 0


def test_divergence_is_told_as_in_other_methods() -> None:
    task = pm.task("linear_regression")
    with pytest.raises(Divergence, match="diverged at step"):
        pm.fit("weight_rde", net=lambda: nn.Linear(3, 1), task=task, optimizer="sgd", lr=1e20,
               progress="silent", epochs=50)  # fmt: skip


def test_bad_options() -> None:
    with pytest.raises(ValueError, match=r"`estimator` of WeightRDE must be one of.*'ssge'"):
        WeightRDE(estimator="ssg")
    with pytest.raises(ValueError, match=r"`annealing` of WeightRDE must be one of.*'hyper'"):
        WeightRDE(annealing="hyp")
    with pytest.raises(ValueError, match="`prior_precision` of WeightRDE"):
        WeightRDE(prior_precision=-1)


# ------------------------------------------------------------------------------------ exactness


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.cpu_seconds(6)
def test_reaches_the_exact_posterior_of_linear_regression(estimator) -> None:
    """64 members against the exact Gaussian posterior; deterministic, so no false alarms.

    The mean lies within a tenth of the standard error of 64 exact draws. The covariance differs by
    less, in Frobenius norm, than that of 64 exact draws does on average,
    E‖Ĉ − C‖² = (tr C² + (tr C)²) / 63, with sge, ssge and svgd. Variances are at least 0.9 of the
    exact ones with sge and svgd, and 0.75 with ssge, whose kernel is narrower; none are larger.
    kde, whose blur is wider than the narrow directions, gets within half of the covariance's norm.
    A deep ensemble ends with a covariance of 0.
    """
    task = pm.task("linear_regression")
    exact = task.exact
    options = {
        "net": lambda: nn.Linear(3, 1),
        "task": task,
        "num_modes": 64,
        "epochs": 500,
        "holdout": 0,
    }
    options |= {"batch_size": 50, "lr": 0.1, "schedule": "linear", "execution": "batched"}
    options |= {"dtype": torch.float64, "progress": "silent"}

    def error(name: str, **more) -> float:
        theta = flat(pm.fit(name, **options, **more).stack.params.values())
        standard = (exact.covariance.diagonal() / 64).sqrt()
        assert ((theta.mean(0) - exact.mean).abs() < 0.1 * standard).all()
        least = {"sge": 0.9, "ssge": 0.75, "svgd": 0.9}.get(more.get("estimator", ""), 0.0)
        ratio = theta.var(0) / exact.covariance.diagonal()
        assert ((ratio >= least) & (ratio < 1)).all()
        return (torch.cov(theta.T) - exact.covariance).norm().item()

    size = exact.covariance.norm().item()
    draws = math.sqrt((size**2 + exact.covariance.trace().item() ** 2) / 63)
    ours = error("weight_rde", estimator=estimator)
    assert ours < (0.5 * size if estimator == "kde" else draws)
    if estimator == "kde":
        assert error("deep_ensemble") > 0.99 * size


@pytest.mark.cpu_seconds(6)
def test_the_default_reaches_the_variance_of_a_gaussian_posterior() -> None:
    """0.94 of it with 32 members; kde, which blurs, has 0.03 in its narrowest direction.

    Why not 1: `methods/particles/estimators.py` derives what members lack as they are few. A kernel
    narrower by ln 33, as in the released code, would reach 0.69.
    """
    task = pm.task("linear_regression")
    options = {
        "net": lambda: nn.Linear(3, 1),
        "task": task,
        "num_modes": 32,
        "epochs": 500,
        "holdout": 0,
    }
    options |= {"batch_size": 50, "lr": 0.1, "schedule": "linear", "execution": "batched"}
    exact = task.exact.covariance.diagonal()

    def least_ratio(**more) -> float:
        post = pm.fit("weight_rde", dtype=torch.float64, progress="silent", **options, **more)
        return (flat(post.stack.params.values()).var(0) / exact).min().item()

    assert 0.88 < least_ratio() < 1.0
    assert least_ratio(estimator="kde") < 0.1
