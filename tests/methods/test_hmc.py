"""`hmc` through `fit`, on conjugate linear regression.

Integrators, tuning and calibration are tested without networks in `full_batch/`.
"""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import polymode as pm
from polymode.likelihoods.kinds import Gaussian
from polymode.methods import HMC, Problem, hmc
from polymode.methods.full_batch import target as target_module
from polymode.methods.full_batch.target import LogPosterior, rows_of
from polymode.methods.sampling import keeping
from polymode.stack.stack import Stack
from polymode.training.loop import Batch, Divergence

from .conjugate import LIKELIHOOD, NOISE, PRECISION, TASK, N, X, Y, largest_score, linear, vectors


def fit(**options) -> pm.Posterior:
    usual = {"net": linear, "task": TASK, "prior_precision": PRECISION, "progress": "silent"}
    return pm.fit("hmc", **(usual | {"dtype": torch.float64} | options))


@pytest.mark.parametrize("temperature", [1.0, 0.25])
def test_samples_have_mean_and_covariance_of_the_posterior(temperature) -> None:
    """200 chains with 5 samples each; chance misses for 6 seeds in 100,000, and the seed is fixed.
    Another temperature is refused."""
    post = fit(
        num_modes=200, epochs=110, burn_in=80, thinning=6, samples_per_mode=5, leapfrog_steps=6,
        temperature=temperature,
    )  # fmt: skip
    theta = vectors(post.weights.kept)
    assert theta.shape == (5, 200, 3)
    assert largest_score(theta, temperature) < 4.5
    assert largest_score(theta, 1.5 * temperature) > 6
    assert (post.weights.facts["acceptance"] > 0.5).all()
    assert (post.weights.facts["divergences"] == 0).all()


def test_the_target_is_the_log_posterior_and_its_gradient(monkeypatch) -> None:
    """Against the sum written out and autograd, with learned noise and data in four batches."""
    monkeypatch.setattr(target_module, "ROWS", 8)
    likelihood = Gaussian(noise="learned")
    data = pm.Task(train=(X, Y), likelihood=likelihood, target_scaling=None).train
    problem = Problem(likelihood, N, 1, 1, data)
    config = HMC(prior_precision=PRECISION, epochs=2)
    state = hmc.init(config, problem, Stack(linear, 3, dtype=torch.float64))
    batches = target_module.whole(problem, Batch(X, Y))
    assert [len(x) for x, _ in batches] == [8, 8, 8, 6]
    target = LogPosterior(state.stack, problem, batches, PRECISION, temperature=0.5)
    rows = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    outputs = X @ rows[:, :2, None] + rows[:, 2, None, None]
    noise = rows[:, 3].exp()[:, None, None]
    log_likelihood = torch.distributions.Normal(outputs, noise).log_prob(Y).sum((1, 2))
    expected = (log_likelihood - 0.5 * PRECISION * rows[:, :3].square().sum(1)) / 0.5
    (gradient,) = torch.autograd.grad(expected.sum(), rows)
    value, found = target(rows.detach())
    torch.testing.assert_close(value, expected.detach(), rtol=1e-10, atol=0)
    torch.testing.assert_close(found, gradient, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(target.energy(value), -0.5 * expected.detach() / N)
    assert torch.equal(rows_of(state.stack), rows.detach())


def test_data_from_a_loader_are_the_same_target() -> None:
    """A shuffling loader is read once; the chain is that of the arrays up to rounding."""
    loader = DataLoader(TensorDataset(X, Y), batch_size=7, shuffle=True)
    data = {"likelihood": LIKELIHOOD, "target_scaling": None}
    options = {"burn_in": 4, "samples_per_mode": 2, "num_modes": 2, "leapfrog_steps": 3}
    loaded = fit(task=pm.Task(train=loader, **data), epochs=2, **options)
    arrays = fit(epochs=10, **options)
    a, b = (post.weights.tensors()["kept/network/weight"] for post in (loaded, arrays))
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def test_lengths_are_spread_evenly_around_their_mean() -> None:
    """All of 5 to 15 for a mean of 10; each is drawn 200 ± 5 standard deviations times."""
    lengths = torch.tensor([hmc.leapfrog_steps(10, 0, number) for number in range(2200)])
    counts = torch.bincount(lengths, minlength=17)
    assert counts[:5].sum() == counts[16:].sum() == 0
    assert (counts[5:16] - 200).abs().max() < 5 * 13.5
    assert hmc.leapfrog_steps(1, 0, 3) == 1


def test_normalisation_is_frozen_and_dropout_off_while_sampling() -> None:
    """Every sample has the statistics of the training inputs that the chains began with, and log π
    is that of the networks as they predict."""

    def net() -> nn.Module:
        return nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))

    post = fit(net=net, num_modes=2, epochs=6, samples_per_mode=2, leapfrog_steps=3)
    kept = post.weights.tensors()
    running = kept["kept/network/1.running_mean"]
    assert torch.equal(running[0], running[1])
    assert (running != 0).all()
    problem = Problem(LIKELIHOOD, N, 1, 1)
    config = HMC(epochs=6, prior_precision=PRECISION, leapfrog_steps=3)
    state = hmc.init(config, problem, Stack(post.members, dtype=torch.float64))
    target = LogPosterior(state.stack, problem, [(X, Y)], PRECISION, 1.0)
    value, _ = target(rows_of(state.stack))
    nll = -post.weights.stack(X).sub(Y).square().mul(-0.5 / NOISE**2).sum((1, 2))
    torch.testing.assert_close(
        target.energy(value) * N - 0.5 * PRECISION * rows_of(state.stack).square().sum(1),
        nll.detach() + N * (torch.tensor(NOISE * (2 * torch.pi) ** 0.5).double().log()),
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": 0.0}, "`lr` of HMC must be > 0, got 0.0"),
        ({"temperature": 0.0}, "`temperature` of HMC must be > 0 .*`map`.*, got 0.0"),
        ({"burn_in": 25}, "burn_in=25 leaves nothing to keep of a run of 20 steps; take more"),
        ({"target_acceptance": 1.0}, r"`target_acceptance` of HMC must be in \(0, 1\) or None"),
        ({"leapfrog_steps": 0}, "`leapfrog_steps` of HMC must be an integer of at least 1, got 0"),
        ({"mass": "diagnoal"}, "`mass` of HMC must be one of .* Did you mean 'diagonal'"),
        ({"augment": lambda x, g: x}, "`augment` of HMC must be None: chains on the whole data"),
    ],
)
def test_impossible_options_are_refused_with_the_numbers(options, message) -> None:
    with pytest.raises(ValueError, match=message):
        fit(epochs=20, **options)


def test_options_that_rest_are_told() -> None:
    with pytest.warns(UserWarning, match="data_order='own' has no effect: the whole data have no"):
        fit(epochs=4, data_order="own")
    with pytest.warns(UserWarning, match="mass='identity' has no effect: a burn-in of 2 traj"):
        fit(epochs=4, mass="identity")


def test_samples_that_would_not_fit_are_refused_before_sampling(monkeypatch) -> None:
    monkeypatch.setattr(keeping, "free_bytes", lambda device: 100.0)
    with pytest.raises(ValueError, match="10 samples of each of 2 modes need 480 B, more"):
        fit(epochs=20, num_modes=2)


def test_divergence_is_told_with_number_cause_and_remedy() -> None:
    """A step of 2 where 0.2 is stable: no trajectory is accepted. A target that is not finite where
    the chain begins stops at once."""
    message = "chain 0: 50 of 50 trajectories after burn-in diverged.*too long.*try lr=0.67"
    with pytest.warns(UserWarning, match=message):
        post = fit(epochs=100, lr=2.0, target_acceptance=None, num_modes=2)
    assert post.weights.facts["acceptance"].tolist() == [0.0, 0.0]
    with pytest.warns(UserWarning, match="5 of 5 trajectories after burn-in diverged"):
        fit(epochs=10, lr=2.0, target_acceptance=None, num_modes=2)
    with pytest.warns(UserWarning, match="4 of 4 .* diverged.* or a longer burn_in"):
        fit(epochs=4, lr=100.0, burn_in=0, num_modes=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(epochs=100, num_modes=2, leapfrog_steps=4)

    def lost() -> nn.Module:
        net = linear()
        nn.init.constant_(net.weight, 1e30)
        return net

    with pytest.raises(Divergence, match="no step before it was finite.*Try lr=0.001 instead"):
        fit(net=lost, epochs=100, dtype=torch.float32)
