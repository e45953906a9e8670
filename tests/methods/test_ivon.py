"""IVON: the known optimum, its update against a plain twin, gradient accumulation."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import polymode as pm
from polymode.likelihoods.kinds import Gaussian
from polymode.methods import IVON, Problem, ivon
from polymode.stack.stack import Stack
from polymode.training.loop import Batch

NOISE, N, D = 0.5, 100, 3


def regression() -> tuple[torch.Tensor, torch.Tensor, pm.Task]:
    stream = torch.Generator().manual_seed(0)
    mix = torch.tensor([[1, 0, 0], [0.6, 0.8, 0], [0.3, 0.2, 0.9]], dtype=torch.float64)
    x = torch.randn(N, D, generator=stream, dtype=torch.float64) @ mix.T
    y = x @ torch.tensor([1.0, -0.5, 0.3], dtype=torch.float64)
    y = (y + NOISE * torch.randn(N, generator=stream, dtype=torch.float64))[:, None]
    task = pm.Task(train=(x, y), likelihood=Gaussian(noise=NOISE), target_scaling=None)
    return x, y, task


def linear() -> nn.Module:
    return nn.Linear(D, 1, bias=False)


@pytest.mark.cpu_seconds(6)
def test_reaches_the_mean_field_optimum() -> None:
    """Mean and diagonal of the posterior's precision. Eight modes are independent runs; their mean
    is within 4 standard errors plus 2 % of σ (the Riemannian term of h biases it by about 1/2 of
    its relative variance), false-alarm rate below 1e-3."""
    x, y, task = regression()
    precision = x.T @ x / NOISE**2 + torch.eye(D, dtype=torch.float64)
    mean = torch.linalg.solve(precision, x.T @ y / NOISE**2).squeeze()
    post = pm.fit(
        "ivon", net=linear, task=task, num_modes=8, epochs=2000, batch_size=N, lr=0.1,
        hessian_memory=0.995, dtype=torch.float64, progress="silent",
    )  # fmt: skip
    std = precision.diag().rsqrt()
    error = (post.stack.params["weight"].detach().squeeze(1) - mean) / std
    spread = post.weights.std["weight"].squeeze(1).log() - std.log()
    for values in (error, spread):
        bound = 4 * values.std(0) / math.sqrt(len(values)) + 0.02
        assert (values.mean(0).abs() < bound).all(), values.mean(0)


def problem_of(task: pm.Task) -> Problem:
    return Problem(task.likelihood, N, 1, 2, task.train)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.25},
        {"num_passes": 3, "temperature": 4.0},
        {"accumulate": 2, "temperature": 0.25, "schedule": "linear"},
        {"accumulate": 3, "num_passes": 2, "momentum": 0.0},
    ],
)
def test_steps_are_those_of_the_paper(options) -> None:
    """Seven steps against Algorithm 1 written out for one network: every draw of its own, sums over
    passes and batches, and the first updates, whose average gradient is young."""
    x, y, task = regression()
    usual = {"lr": 0.2, "schedule": "constant", "prior_precision": 3.0, "hessian_memory": 0.9}
    usual["clip_radius"] = None
    config = IVON(epochs=5, **(usual | options))
    problem, total = problem_of(task), 10
    stack = Stack(linear().double(), seed=3)
    state = ivon.init(config, problem, stack)
    m = stack.params["weight"].detach().clone()
    g, h, delta = torch.zeros_like(m), torch.ones_like(m), 3.0 / N
    slopes, bends, updates = [], [], 0
    stack.train()
    for t in range(7):
        batch = Batch(x[: 50 + t], y[: 50 + t])
        sigma = torch.sqrt(config.temperature / (N * (h + delta)))
        losses = []
        for k in range(config.num_passes):
            theta = (m + sigma * stack.normal("ivon", t, k)["weight"]).requires_grad_()
            losses.append(task.likelihood.nll(batch.x @ theta[0].T, batch.y, {}))
            slopes.append(torch.autograd.grad(losses[-1], theta)[0])
            bends.append(slopes[-1] * (theta.detach() - m) / sigma**2)
        q = torch.distributions.Normal(m, sigma)
        prior = torch.distributions.Normal(torch.zeros_like(m), 3.0**-0.5)
        bound = torch.distributions.kl_divergence(q, prior) + (1 - config.temperature) * q.entropy()
        told = sum(losses).detach() / len(losses) + bound.sum() / N
        if (t + 1) % config.accumulate == 0:
            ghat, hhat = (sum(each) / len(each) for each in (slopes, bends))
            slopes, bends, updates = [], [], updates + 1
            g = config.momentum * g + (1 - config.momentum) * ghat
            h = 0.9 * h + 0.1 * hhat + 0.5 * 0.1**2 * (h - hhat) ** 2 / (h + delta)
            rate = 0.2 * (1 if config.schedule == "constant" else 1 - t / total)
            young = 1 - config.momentum**updates
            m = m - rate * (g / young + delta * m) / (h + delta)
        state, info = ivon.step(config, problem, state, batch)
        torch.testing.assert_close(info.loss[0], told, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(stack.params["weight"].detach(), m, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(state.hessian["weight"], h, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(info.hessian, h.mean().view(1))
    std = ivon.finish(config, problem, state).std["weight"]
    torch.testing.assert_close(std, torch.sqrt(config.temperature / (N * (h + delta))))


def test_learned_noise_follows_the_mean_gradient_of_the_passes() -> None:
    """Three passes on one batch: Adam's first step is the same for any scale of the gradient, so
    the second moment is looked at, (mean of the three)² × 0.001."""
    x, y, _ = regression()
    likelihood = Gaussian(noise="learned")
    problem = Problem(likelihood, N, 1, 2)
    config = IVON(num_passes=3, epochs=2)
    stack = Stack(linear().double(), seed=3)
    state = ivon.init(config, problem, stack)
    stack.train()
    (name,) = stack.extra
    log_noise = stack.extra[name].detach().clone()
    m, sigma = stack.params["weight"].detach().clone(), 1 / math.sqrt(N * (1 + 1 / N))
    grads = []
    for k in range(3):
        theta = m + sigma * stack.normal("ivon", 0, k)["weight"]
        own = log_noise[0].clone().requires_grad_()
        loss = likelihood.nll(x @ theta[0].T, y, {name: own})
        grads.append(torch.autograd.grad(loss, own)[0])
    ivon.step(config, problem, state, Batch(x, y))
    torch.testing.assert_close(stack.extra[name].grad[0], sum(grads) / 3)


def test_accumulated_batches_make_one_update() -> None:
    """Four batches move nothing until the fourth, whose update has the mean of their sums."""
    x, y, task = regression()
    config = IVON(accumulate=4, epochs=8)
    state = ivon.init(config, problem_of(task), Stack(linear().double(), seed=3))
    first, slopes = state.stack.params["weight"].detach().clone(), []
    state.stack.train()
    for t in range(4):
        assert torch.equal(state.stack.params["weight"].detach(), first)
        state, _ = ivon.step(config, problem_of(task), state, Batch(x[t::4], y[t::4]))
        slopes.append(state.stack.params["weight"].grad.clone())
    assert not torch.equal(state.stack.params["weight"].detach(), first)
    expected = 0.1 * sum(slopes) / 4
    torch.testing.assert_close(state.gradient["weight"], expected, rtol=1e-10, atol=1e-12)
    assert all((t == 0).all() for t in state.gradient_sum.values())


def test_a_run_too_short_for_one_update_is_refused() -> None:
    _, _, task = regression()
    with pytest.raises(ValueError, match="accumulate=3 batches .* has 2: .* accumulate <= 2"):
        pm.fit("ivon", net=linear, task=task, batch_size=10**6, epochs=2, accumulate=3)


def test_the_hessian_stays_positive() -> None:
    """Whatever the noise: h + δ is multiplied by 1 + z + z²/2 > 0 in each update."""
    x, y, task = regression()
    post = pm.fit(
        "ivon", net=lambda: nn.Sequential(nn.Linear(D, 8), nn.Tanh(), nn.Linear(8, 1)), task=task,
        epochs=15, batch_size=5, hessian_memory=0.5, lr=1e-3, progress="silent",
    )  # fmt: skip
    assert all((std > 0).all() and std.isfinite().all() for std in post.weights.std.values())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": 0.0}, "`lr` of IVON must be > 0, got 0.0"),
        ({"hessian_init": -1.0}, "`hessian_init` of IVON must be > 0, got -1.0"),
        ({"hessian_memory": 1.0}, r"`hessian_memory` of IVON must be in \[0, 1\), got 1.0"),
        ({"accumulate": 0}, "`accumulate` of IVON must be an integer of at least 1, got 0"),
        ({"schedule": "cosin"}, "Did you mean 'cosine'"),
    ],
)
def test_bad_options(options, message) -> None:
    with pytest.raises(ValueError, match=message):
        IVON(**options)


def test_passes_of_all_steps_draw_masks_of_their_own() -> None:
    """With dropout and K > 1 passes, no pass has the forward noise of another one."""
    numbers = []

    class Watched(Stack):
        def gradients(self, *args, step=0, **options):
            numbers.append(step)
            return super().gradients(*args, step=step, **options)

    def net() -> nn.Module:
        return nn.Sequential(nn.Linear(D, 4), nn.Dropout(0.5), nn.Linear(4, 1)).double()

    x, y, _ = regression()
    stack = Watched(net, 2)
    config = IVON(num_passes=3, epochs=1)
    problem = Problem(Gaussian(noise=NOISE), N, 1, 4, None, 0)
    state = ivon.init(config, problem, stack.set_mode("train"))
    for _ in range(4):
        state, _ = ivon.step(config, problem, state, Batch(x, y, False))
    assert len(numbers) == len(set(numbers)) == 12
