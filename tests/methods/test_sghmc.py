"""SGHMC on conjugate linear regression, of which `conjugate` has the posterior.

A step is then linear in (θ, m) and in its noise, so much of it is checked without chance.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from scipy.linalg import solve_discrete_lyapunov
from torch import Tensor, nn

import polymode as pm
from polymode.likelihoods.kinds import Gaussian
from polymode.methods import SGHMC, Problem, sghmc
from polymode.stack.stack import Stack
from polymode.training.loop import Batch

from .conjugate import LIKELIHOOD, PRECISION, N, P, X, Y, exact, linear, vectors

FRICTION = 0.7


def largest_curvature(copies: int = 1) -> float:
    """Of U/N: `lr` times this must stay below 4."""
    return float(torch.linalg.eigvalsh(exact(copies=copies)[1].inverse()).max()) / (copies * N)


@cache
def chains(temperature: float, copies: int, modes: int) -> pm.Posterior:
    """Return chains of 100 steps on the whole data, with half of the largest stable step. In the 15
    steps from one of its 4 samples to the next a chain forgets the past up to 10⁻³."""
    rows = (X.repeat(copies, 1), Y.repeat(copies, 1))
    task = pm.Task(train=rows, likelihood=LIKELIHOOD, target_scaling=None)
    return pm.fit(
        "sghmc",
        net=linear,
        task=task,
        num_modes=modes,
        prior_precision=PRECISION,
        lr=2.0 / largest_curvature(copies),
        friction=FRICTION,
        temperature=temperature,
        epochs=100,
        batch_size=copies * N,
        burn_in=40,
        thinning=15,
        samples_per_mode=4,
        dtype=torch.float64,
        progress="silent",
    )


def samples(temperature: float = 1.0, copies: int = 1, modes: int = 500) -> Tensor:
    """Return nearly independent samples (L, M, P)."""
    post = chains(temperature, copies, modes)
    return vectors(post.weights.tensors(), "kept/network/")


def step_matrices(config: SGHMC, copies: int = 1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return F, G, offset of one step (θ, m) ← F (θ, m) + G ε + offset, read off the code.

    Members begin at 0 and at unit vectors of (θ, m), once with next to no noise and once
    with noise that is known.
    """
    size = 2 * P + 1
    begin = torch.cat([torch.zeros(1, 2 * P), torch.eye(2 * P)]).double()
    problem = Problem(LIKELIHOOD, copies * N, 1, 1)
    results = []
    for temperature in (1e-30, config.temperature):
        stack = Stack(linear, size, dtype=torch.float64)
        options = {name: getattr(config, name) for name in ("lr", "friction", "prior_precision")}
        own = SGHMC(**options, temperature=temperature, epochs=1, samples_per_mode=1)
        state = sghmc.init(own, problem, stack)
        with torch.no_grad():
            stack.params["weight"].copy_(begin[:, None, :2])
            stack.params["bias"].copy_(begin[:, 2:P])
            state.momentum.copy_(begin[:, P:])
        noise = stack.normal_rows("sghmc", 0).numpy()
        state, _ = sghmc.step(own, problem, state, Batch(X, Y))
        theta = vectors({name: t.detach() for name, t in stack.params.items()}, "")
        results.append(torch.cat([theta, state.momentum], 1).numpy())
    quiet, noisy = results
    offset, added = quiet[0], noisy - quiet
    g, *_ = np.linalg.lstsq(noise, added, rcond=None)
    np.testing.assert_allclose(noise @ g, added, atol=1e-12)
    return (quiet[1:] - offset).T, g.T, offset


@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize("temperature", [1.0, 0.25])
@pytest.mark.parametrize(("stability", "friction"), [(0.1, 0.1), (2.0, 0.6), (3.9, 0.3), (2.0, 1)])
def test_the_chain_has_the_posterior_as_its_stationary_law(
    stability, friction, temperature, copies
) -> None:
    """Exactly, at every stable step: lr times the largest curvature is 0.1 to 3.9 of 4.

    A chain x ← F x + G ε + b has the covariance S = F S Fᵀ + G Gᵀ and the mean (I − F)⁻¹ b. The
    momentum has the temperature T, too. `copies` says that the data are a part of N: the gradient
    of N examples counts, and the noise is that of N.
    """
    lr = stability / largest_curvature(copies)
    config = SGHMC(lr=lr, friction=friction, temperature=temperature, prior_precision=PRECISION)
    f, g, offset = step_matrices(config, copies)
    assert np.abs(np.linalg.eigvals(f)).max() < 1
    mean, covariance = exact(copies=copies)
    found = solve_discrete_lyapunov(f, g @ g.T)
    np.testing.assert_allclose(
        found[:P, :P], temperature * covariance.numpy(), rtol=1e-8, atol=1e-12
    )
    np.testing.assert_allclose(
        found[P:, P:], temperature * lr / (copies * N) * np.eye(P), rtol=1e-8, atol=1e-14
    )
    np.testing.assert_allclose(np.linalg.solve(np.eye(2 * P) - f, offset)[:P], mean, rtol=1e-8)


def euler_covariance(lr: float, friction: float) -> np.ndarray:
    """Of the paper's step v ← (1 − α) v − lr ∇U/N + √(2 α lr/N) ε, θ ← θ + v."""
    hessian = exact()[1].inverse().numpy() / N
    keeps, identity = 1 - friction, np.eye(P)
    f = np.block([[identity - lr * hessian, keeps * identity], [-lr * hessian, keeps * identity]])
    assert np.abs(np.linalg.eigvals(f)).max() < 1
    noise = np.vstack([identity, identity]) * np.sqrt(2 * friction * lr / N)
    return solve_discrete_lyapunov(f, noise @ noise.T)[:P, :P]


def test_the_papers_step_is_off_where_this_one_is_exact() -> None:
    """Along curvature κ of U/N it multiplies the variance by 1 / (1 − lr κ / (2 (1 + c))).

    At the step of `chains` that is 4.3 in the stiffest direction, which its samples deny; with a
    40th of the step and little friction it is 1.01: both approximate the same posterior.
    """
    covariance, lr = exact()[1].numpy(), 2.0 / largest_curvature()
    stiff = np.linalg.eigh(covariance)[1][:, 0]

    def factor(lr: float, friction: float) -> float:
        return stiff @ euler_covariance(lr, friction) @ stiff / (stiff @ covariance @ stiff)

    for step, friction in ((lr, FRICTION), (lr / 40, 0.05)):
        formula = 1 / (1 - step * largest_curvature() / (2 * (2 - friction)))
        assert factor(step, friction) == pytest.approx(formula, rel=1e-9)
    assert factor(lr, FRICTION) > 4.3
    along = (samples().flatten(0, 1) - exact()[0]) @ torch.from_numpy(stiff)
    assert along.var().item() < 0.3 * factor(lr, FRICTION) * (stiff @ covariance @ stiff)


def distances(found: Tensor, mean: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
    """Return by how many standard errors means (P,) and covariances (P, P) of independent Gaussian
    samples are off."""
    number, variance = len(found), covariance.diagonal()
    deviations = found - mean
    products = deviations.T @ deviations / number
    error = ((variance[:, None] * variance + covariance**2) / number).sqrt()
    return deviations.mean(0) / (variance / number).sqrt(), (products - covariance) / error


@pytest.mark.parametrize("copies", [1, 2])
def test_samples_of_conjugate_regression(copies) -> None:
    """2,000 samples, independent up to 10⁻³: 3 means and 6 covariances within 4.5 standard errors,
    which chance misses for 6 seeds in 100,000. The seed is fixed. With two copies of the data the
    covariance is about half."""
    found, (mean, covariance) = samples(copies=copies).flatten(0, 1), exact(copies=copies)
    of_mean, of_covariance = distances(found, mean, covariance)
    assert of_mean.abs().max() < 4.5
    assert of_covariance.abs().max() < 4.5
    other = exact(copies=3 - copies)[1]
    assert distances(found, mean, other)[1].abs().max() > 10  # the test can tell


def test_samples_of_a_chain_are_nearly_independent() -> None:
    """What `chains` says about its thinning."""
    config = SGHMC(lr=2.0 / largest_curvature(), friction=FRICTION, prior_precision=PRECISION)
    f, *_ = step_matrices(config)
    assert np.abs(np.linalg.eigvals(f)).max() ** 15 < 1e-3


def test_temperature_scales_the_spread() -> None:
    """Noise grows with √T and the chain is linear, so deviations from the maximum scale exactly:
    T = 1/4 halves them."""
    mean, _ = exact()
    hot = samples()[:, :5] - mean  # chain k does not depend on how many there are
    quarter = samples(temperature=0.25, modes=5)
    torch.testing.assert_close(quarter - mean, hot / 2, rtol=0, atol=1e-9)


def test_kinetic_temperature_is_one_on_average() -> None:
    """Over 300 chains and 3 steps far apart, 2,700 squares of normal numbers: within 5 standard
    errors of 0.027, which chance misses for 6 seeds in 10 million. The seed is fixed."""
    config = SGHMC(
        num_modes=300,
        lr=2.0 / largest_curvature(),
        friction=FRICTION,
        prior_precision=PRECISION,
        epochs=70,
        samples_per_mode=1,
    )
    problem = Problem(LIKELIHOOD, N, 1, 1)
    state = sghmc.init(config, problem, Stack(linear, 300, dtype=torch.float64))
    found = []
    for number in range(1, 71):
        state, info = sghmc.step(config, problem, state, Batch(X, Y))
        if number in (40, 55, 70):
            found.append(info.temperature)
    assert info.temperature.shape == info.loss.shape == (300,)
    assert abs(torch.cat(found).mean().item() - 1) < 5 * (2 / 2700) ** 0.5


# ------------------------------------------------------------------------------ what is kept


def short(**options) -> pm.Posterior:
    usual = {"epochs": 20, "batch_size": N, "lr": 0.01, "progress": "silent"}
    task = pm.Task(train=(X, Y), likelihood=LIKELIHOOD, target_scaling=None)
    return pm.fit("sghmc", **({"net": linear, "task": task, "num_modes": 2} | usual | options))


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, range(11, 21)),
        ({"burn_in": 4, "samples_per_mode": 3}, [10, 15, 20]),
        ({"burn_in": 0, "thinning": 7, "samples_per_mode": 2}, [13, 20]),
        ({"burn_in": 6, "thinning": 2}, range(8, 21, 2)),
        ({"burn_in": 19, "samples_per_mode": 1}, [20]),
    ],
)
def test_the_steps_that_are_kept(options, kept) -> None:
    """Against the networks after each step of a loop written out."""
    config = SGHMC(epochs=20, batch_size=N, lr=0.01, num_modes=2, **options)
    problem = Problem(LIKELIHOOD, N, 1, 1)
    state = sghmc.init(config, problem, Stack(linear, 2))
    path = []
    for _ in range(20):
        state, _ = sghmc.step(config, problem, state, Batch(X.float(), Y.float()))
        path.append(state.stack.params["weight"].detach().clone())
    weights = sghmc.finish(config, problem, state)
    assert weights.samples_per_mode == len(kept)
    for number, step in enumerate(kept):
        assert torch.equal(weights.draw(number, seed=0).params["weight"], path[step - 1]), step
    assert short(**options).num_samples == 2 * len(kept)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"burn_in": 0, "thinning": 8, "samples_per_mode": 3},
            "3 to keep, 8 steps apart, need 24 steps after burn_in=0, but of 20 in all 20 are left",
        ),
        ({"burn_in": 25}, "burn_in=25 leaves nothing to keep of a run of 20 steps"),
        ({"burn_in": 15, "samples_per_mode": 6}, "6 to keep, .* of 20 in all 5 are left"),
        ({"burn_in": -1}, "`burn_in` of SGHMC must be an integer of at least 0, got -1"),
        ({"friction": 0.0}, r"`friction` of SGHMC must be in \(0, 1\], got 0.0"),
        ({"temperature": -1.0}, "`temperature` of SGHMC must be > 0 .*, got -1.0"),
    ],
)
def test_impossible_options_are_refused_with_the_numbers(options, message) -> None:
    with pytest.raises(ValueError, match=message):
        short(**options)


def test_learned_noise_is_part_of_the_samples() -> None:
    """Each density of a prediction has the noise of its own sample."""
    task = pm.Task(train=(X, Y), likelihood=Gaussian(noise="learned"), target_scaling=None)
    post = short(task=task, samples_per_mode=3)
    noise = post.weights.tensors()["kept/extra/log_noise"].exp()  # (L, M)
    assert len(noise.unique()) == 6
    scale = post.predict(X).scale.unflatten(0, (2, 3))  # (M, L, B, D)
    torch.testing.assert_close(scale, noise.T[..., None, None].expand_as(scale))
    some = post.predict(X, samples_per_mode=2).scale.unflatten(0, (2, 2))
    torch.testing.assert_close(some, scale[:, :2])


def test_batch_norm_statistics_are_those_of_the_moment() -> None:
    """Each sample has the running statistics of the step after which it was kept."""

    def net() -> nn.Module:
        return nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))

    config = SGHMC(epochs=6, burn_in=2, thinning=2, lr=0.01, num_modes=2)
    problem = Problem(LIKELIHOOD, N, 1, 1)
    state = sghmc.init(config, problem, Stack(net, 2, dtype=torch.float64))
    state.stack.train()
    seen = []
    for _ in range(6):
        state, _ = sghmc.step(config, problem, state, Batch(X, Y))
        seen.append(state.stack.buffers["1.running_var"].clone())
    weights = sghmc.finish(config, problem, state._replace(stack=state.stack.eval()))
    assert all(
        weights.draw(j, 0).buffers["1.running_var"].equal(seen[s]) for j, s in ((0, 3), (1, 5))
    )
    outputs = weights.outputs(2, seed=0)(X)
    for j in range(2):
        module = weights.draw(j, 0).members()[1]
        torch.testing.assert_close(outputs[1, j], module(X), rtol=1e-10, atol=1e-12)
