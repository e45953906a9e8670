"""α-divergences: closed forms, limits, gradients with fixed masks, and the learned noise."""

from __future__ import annotations

import math
import os
import signal
import warnings

import pytest
import torch
from torch import Tensor, nn

import polymode as pm
from polymode.likelihoods.kinds import Categorical, Gaussian
from polymode.methods import alpha_loss
from polymode.methods.dropout import loss_of_passes
from polymode.stack.fast.passes import gradients_of_passes
from polymode.stack.stack import Stack
from polymode.training.events import Event

STREAM = torch.Generator().manual_seed(0)
X = torch.randn(10, 6, generator=STREAM, dtype=torch.float64)
Y = (X[:, 0] > 0).long()
LOGS = torch.randn(7, 5, generator=STREAM, dtype=torch.float64) * 3


class GaussianWeight(nn.Module):
    """f = x (m + s ε), another ε for each row: a linear model whose q is N(m, s²)."""

    def __init__(self, mean: float = 0.7, spread: float = 0.4) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.tensor([[mean]], dtype=torch.float64))
        self.spread = spread

    def forward(self, x: Tensor) -> Tensor:
        return x * (self.mean + self.spread * torch.randn_like(x))


def closed_form(x: Tensor, y: Tensor, alpha: float, noise: float, q: GaussianWeight) -> Tensor:
    """−(1/α) log E_q[N(y; x w, σ²)^α] of each datum, and −E_q[log N] for α = 0."""
    mean, variance = (x * q.mean).flatten(), (x.square() * q.spread**2).flatten()
    error, constant = (y.flatten() - mean).square(), 0.5 * math.log(2 * math.pi * noise**2)
    if alpha == 0:
        return constant + (error + variance) / (2 * noise**2)
    wider = 1 + alpha * variance / noise**2
    return constant + wider.log() / (2 * alpha) + error / (2 * noise**2 * wider)


@pytest.mark.parametrize("alpha", [0.0, 1e-4, 0.5, 1.0])
def test_the_objective_tends_to_its_gaussian_closed_form(alpha) -> None:
    """K = 100,000 passes of a linear model under a Gaussian q, through the method's own loss.

    The standard error comes from 20 parts of the passes; the bias, about variance/2 of a part's
    relative error, is below a tenth of it. Beyond 5 of it in one seed of two million; the seed is
    fixed.
    """
    x = torch.tensor([[0.5], [-1.0], [2.0]], dtype=torch.float64)
    y = torch.tensor([[0.2], [-1.1], [0.9]], dtype=torch.float64)
    law, passes, parts = Gaussian(noise=0.5), 5000, 20
    net = GaussianWeight()
    stack = Stack(net, dtype=torch.float64).train()
    loss = loss_of_passes(law, passes, alpha)
    found = torch.stack(
        [gradients_of_passes(stack, passes, loss, x, y, own=False, step=n) for n in range(parts)]
    )
    wanted = closed_form(x, y, alpha, 0.5, net).mean().detach()
    error = found.std() / math.sqrt(parts)
    assert abs(found.mean() - wanted) < 5 * error
    assert error < 0.01 * wanted.abs()  # so the test can tell


def test_closed_forms_tell_alphas_apart() -> None:
    """What the test above compares with differs by far more than its tolerance."""
    x, y, net = torch.tensor([[2.0]]), torch.tensor([[0.9]]), GaussianWeight()
    values = [closed_form(x, y, alpha, 0.5, net).item() for alpha in (0.0, 0.5, 1.0)]
    assert values[0] > values[1] + 0.1 > values[2] + 0.15


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_small_alphas_tend_to_the_variational_loss(dtype) -> None:
    """l_α = l_0 − (α/2) Var_k + O(α²), the variance over passes; also in single precision."""
    logs = LOGS.to(dtype)
    zero = alpha_loss(logs, 0.0)
    torch.testing.assert_close(zero, -logs.mean())
    spread = logs.var(0, correction=0).mean()
    for alpha in (1e-3, 1e-5, 1e-9, 1e-25, 1e-40):
        gap = zero - alpha_loss(logs, alpha)
        rounding = 4 * torch.finfo(dtype).eps * logs.abs().max()
        assert abs(gap - 0.5 * alpha * spread) < 0.05 * alpha * spread + rounding


def test_it_is_the_formula() -> None:
    for alpha in (0.3, 1.0, 4.0):
        wanted = -(torch.logsumexp(alpha * LOGS, 0) - math.log(7)).mean() / alpha
        torch.testing.assert_close(alpha_loss(LOGS, alpha), wanted)
    stacked = torch.stack([LOGS, 2 * LOGS])
    torch.testing.assert_close(alpha_loss(stacked, 0.5)[1], alpha_loss(2 * LOGS, 0.5))


def test_it_falls_with_alpha_and_does_not_know_alpha_for_one_pass() -> None:
    """Power means rise with their exponent; a mean of one number has none."""
    values = [alpha_loss(LOGS, alpha).item() for alpha in (0.0, 0.1, 0.5, 1.0, 10.0)]
    assert values == sorted(values, reverse=True)
    assert values[0] > values[-1] + 1
    for alpha in (0.0, 0.5, 3.0):
        torch.testing.assert_close(alpha_loss(LOGS[:1], alpha), -LOGS[0].mean())


def test_likelihoods_that_underflow_have_a_value() -> None:
    """One pass of probability 0 is outvoted; all of them make an infinite loss, not NaN."""
    some, none = torch.tensor([[-1.0], [-math.inf]]), torch.full((2, 1), -math.inf)
    assert alpha_loss(some, 1.0).item() == pytest.approx(1 + math.log(2))
    assert alpha_loss(torch.tensor([[-1.0], [-5000.0]]), 1.0).item() == pytest.approx(1.6931, 1e-4)
    assert alpha_loss(some, 0.0).item() == alpha_loss(none, 0.5).item() == math.inf


@pytest.mark.parametrize("alpha", [-0.1, math.nan, math.inf, "0.5", True, None])
def test_alphas_that_are_none_are_refused(alpha) -> None:
    with pytest.raises(ValueError, match="`alpha` of alpha_loss must be finite and ≥ 0, got"):
        alpha_loss(LOGS, alpha)
    with pytest.raises(ValueError, match="`alpha` of Dropout must be finite and ≥ 0, got"):
        pm.methods.Dropout(alpha=alpha)


def test_other_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match=r"must be \(..., K, N\) with K ≥ 1 passes, got \(5,\)"):
        alpha_loss(LOGS[0], 0.5)
    with pytest.raises(ValueError, match="`num_passes` of Dropout must be an integer of at least"):
        pm.methods.Dropout(num_passes=0)


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.4), nn.Linear(8, 2))


class DropConnect(nn.Module):
    """Noise that the whole batch shares."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        weight = nn.functional.dropout(self.layer.weight, 0.4, self.training)
        return nn.functional.linear(x, weight, self.layer.bias)


def with_noise() -> nn.Module:
    return nn.Sequential(nn.Dropout(0.2), nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 1))


@pytest.mark.parametrize("execution", ["loop", "batched"])
@pytest.mark.parametrize("alpha", [0.0, 0.5])
@pytest.mark.parametrize("net", [layers, DropConnect, with_noise])
def test_gradients_against_finite_differences_with_fixed_masks(net, alpha, execution) -> None:
    """Every parameter of two members, learned noise included; central differences, float64."""
    law, y = (Gaussian(noise="learned"), X[:, :1].sin()) if net is with_noise else (None, Y)
    stack = Stack(net, 2, seed=1, dtype=torch.float64, execution=execution).train()
    if law is not None:
        stack.add_parameters({"log_noise": torch.tensor([0.1, -0.3])})
    loss = loss_of_passes(law or Categorical(), 3, alpha)

    def losses() -> Tensor:
        return gradients_of_passes(stack, 3, loss, X, y, own=False, step=4)

    losses()
    gradients = [leaf.grad.clone() for leaf in stack.leaves()]
    for leaf, gradient in zip(stack.leaves(), gradients, strict=True):
        for k in range(2):
            place = (k, *(0,) * (leaf.dim() - 1))
            slopes = []
            for sign in (1, -1):
                with torch.no_grad():
                    leaf[place] += sign * 1e-6
                slopes.append(sign * losses())
                with torch.no_grad():
                    leaf[place] -= sign * 1e-6
            slope = sum(slopes)[k].item() / 2e-6
            assert gradient[place].item() == pytest.approx(slope, abs=1e-8, rel=1e-6)
            assert not alpha or gradient.abs().max() > 1e-4


@pytest.mark.parametrize("execution", ["loop", "batched"])
def test_passes_of_a_step_are_passes_over_repeated_rows(execution) -> None:
    """With the layers before the noise computed once or K times; also where batches are own."""
    own = torch.stack([X, X.flip(0)])
    for x, y, each in ((X, Y, False), (own, torch.stack([Y, Y.flip(0)]), True)):
        stack = Stack(layers, 2, dtype=torch.float64, execution=execution).train()
        loss = loss_of_passes(Categorical(), 4, 0.5)
        once = gradients_of_passes(stack, 4, loss, x, y, own=each, step=2)
        first = [leaf.grad.clone() for leaf in stack.leaves()]
        rows = x.repeat(1, 4, 1) if each else x.repeat(4, 1)
        again = stack.gradients(loss, rows, y, own=each, step=2)
        torch.testing.assert_close(once, again)
        for gradient, leaf in zip(first, stack.leaves(), strict=True):
            torch.testing.assert_close(gradient, leaf.grad)


@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_the_prior_weighs_as_one_nth(alpha) -> None:
    """One step of plain SGD with rate 1: the prior moves every parameter by −λ θ / N more."""
    task = pm.Task(train=(X, Y), likelihood="categorical")
    moved = [
        pm.fit(
            "dropout", net=layers, task=task, alpha=alpha, num_passes=3, epochs=1, lr=1.0,
            optimizer="sgd", prior_precision=prior, dtype=torch.float64, progress="silent",
        ).stack.params
        for prior in (0.0, 2.5)
    ]  # fmt: skip
    start = Stack(layers, 1, dtype=torch.float64).params
    for name, theta in start.items():
        torch.testing.assert_close(moved[1][name] - moved[0][name], -2.5 * theta / len(X))


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_learned_noise_reaches_that_of_the_data(alpha) -> None:
    """The sign of log τ: with the printed one the noise would grow without end.

    A linear model of 400 values with noise 0.3, and hardly any dropout: the estimate's standard
    error is 0.3/√800, 3.5 %, and the test allows for 15 %, a false alarm for one seed in 50,000.
    The noise starts at the errors of the untrained network, three times as large.
    """
    stream = torch.Generator().manual_seed(3)
    x = torch.randn(400, 3, generator=stream)
    y = x @ torch.tensor([[1.0], [-0.5], [0.3]]) + 0.3 * torch.randn(400, 1, generator=stream)
    task = pm.Task(train=(x, y), likelihood=Gaussian(noise="learned"), target_scaling=None)
    post = pm.fit(
        "dropout", net=lambda: nn.Sequential(nn.Dropout(1e-3), nn.Linear(3, 1)), task=task,
        alpha=alpha, num_passes=4, epochs=60, lr=1e-2, progress="silent",
    )  # fmt: skip
    assert post.stack.extra["log_noise"].exp().item() == pytest.approx(0.3, rel=0.15)


def test_one_pass_warns_that_alpha_has_no_effect() -> None:
    task = pm.Task(train=(X, Y), likelihood="categorical")

    def fit(**options) -> pm.Posterior:
        return pm.fit("dropout", net=layers, task=task, epochs=2, progress="silent", **options)

    with pytest.warns(UserWarning, match="alpha=0.5 has no effect with num_passes=1"):
        one = fit(alpha=0.5, num_passes=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plain, ten = fit(), fit(alpha=0.5)
    assert all(torch.equal(t, plain.stack.params[n]) for n, t in one.stack.params.items())
    assert not all(torch.equal(t, plain.stack.params[n]) for n, t in ten.stack.params.items())
    assert ten.config["alpha"] == 0.5


def test_resume_and_executions_give_the_same_with_several_passes(tmp_path) -> None:
    """An interrupted run continues bit by bit; executions agree in float64 to 1e-8."""
    task = pm.Task(train=(X, Y), likelihood="categorical")
    options = {
        "net": layers, "task": task, "alpha": 0.5, "num_passes": 3, "num_modes": 2, "epochs": 12,
        "batch_size": 4, "progress": "silent", "dtype": torch.float64,
    }  # fmt: skip
    whole = pm.fit("dropout", execution="loop", **options)

    def interrupt(event: Event) -> None:
        if event.kind == "checkpoint" and event.step >= 20:
            os.kill(os.getpid(), signal.SIGINT)

    kept = {"checkpoint": tmp_path, "checkpoint_seconds": 0, "execution": "loop"}
    with pytest.raises(KeyboardInterrupt):
        pm.fit("dropout", on_event=interrupt, **kept, **options)
    resumed = pm.fit("dropout", **kept, **options)
    for execution in ("batched", "threads", "chunked"):
        other = pm.fit("dropout", execution=execution, **options)
        for name, tensor in whole.stack.params.items():
            torch.testing.assert_close(other.stack.params[name], tensor, rtol=1e-8, atol=1e-10)
    assert all(torch.equal(t, resumed.stack.params[n]) for n, t in whole.stack.params.items())
