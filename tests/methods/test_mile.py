"""`mile` through `fit`: its phases, and the law of its chains on conjugate linear regression."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import polymode as pm
from polymode.likelihoods.kinds import Gaussian
from polymode.methods import MILE, Problem, mile
from polymode.methods import map as map_
from polymode.methods.full_batch.leapfrog import Point
from polymode.methods.full_batch.microcanonical import directions, langevin_step
from polymode.methods.full_batch.microcanonical_tuning import start, tune
from polymode.methods.full_batch.target import LogPosterior, rows_of
from polymode.stack.stack import Stack
from polymode.training.loop import Batch

from .conjugate import LIKELIHOOD, PRECISION, TASK, N, X, Y, largest_score, linear, vectors


def fit(**options) -> pm.Posterior:
    usual = {"net": linear, "task": TASK, "prior_precision": PRECISION, "progress": "silent"}
    return pm.fit("mile", **(usual | {"dtype": torch.float64, "batch_size": N} | options))


def test_samples_have_mean_and_covariance_of_the_posterior() -> None:
    """120 chains with 8 samples each, at an energy variance whose bias is below a standard error;
    chance misses for 6 seeds in 100,000, and the seed is fixed. Another temperature is refused.
    Each chain has its own step."""
    post = fit(
        num_modes=120, epochs=760, burn_in=520, training_steps=20, thinning=30, samples_per_mode=8,
        energy_variance=1e-5, lr=0.05,
    )  # fmt: skip
    theta = vectors(post.weights.kept)
    assert theta.shape == (8, 120, 3)
    assert largest_score(theta) < 4.5
    assert largest_score(theta, 1.5) > 6
    facts = post.weights.facts
    assert len(facts["step_size"].unique()) == 120
    assert 0.2e-5 < facts["energy_variance"].mean() < 5e-5


def test_the_members_are_those_of_a_deep_ensemble_before_sampling() -> None:
    """Bit by bit the steps of `map` with the same batches; then chains leave them."""
    config = MILE(epochs=40, burn_in=20, training_steps=10, num_modes=2, lr=0.05)
    problem = Problem(LIKELIHOOD, N, 1, 1)
    state = mile.init(config, problem, Stack(linear, 2, dtype=torch.float64))
    plain = map_.init(config, problem, Stack(linear, 2, dtype=torch.float64))
    for _ in range(10):
        state, info = mile.step(config, problem, state, Batch(X, Y))
        plain, told = map_.step(config, problem, plain, Batch(X, Y))
        assert torch.equal(info.loss, told.loss)
        assert (info.energy_change == 0).all()
    assert torch.equal(state.stack.params["weight"], plain.stack.params["weight"])
    state, info = mile.step(config, problem, state, Batch(X, Y))
    assert (info.energy_change != 0).all()
    assert not torch.equal(state.stack.params["weight"], plain.stack.params["weight"])


def test_chains_begin_at_networks_that_are_given() -> None:
    """`training_steps=0`: the first step is one of the chain, as long as its first step size."""
    torch.manual_seed(0)
    modules = [linear(), linear()]
    config = MILE(epochs=4, burn_in=2, training_steps=0)
    problem = Problem(LIKELIHOOD, N, 1, 1)
    state = mile.init(config, problem, Stack(modules, dtype=torch.float64))
    before = torch.cat([t.detach().flatten(1).clone() for t in state.stack.leaves()], 1)
    state, info = mile.step(config, problem, state, Batch(X, Y))
    after = torch.cat([t.detach().flatten(1) for t in state.stack.leaves()], 1)
    length = (after - before).norm(dim=1)
    torch.testing.assert_close(length, info.step_size, rtol=2e-2, atol=0)  # the path is curved


def test_a_chain_is_its_steps_one_after_another() -> None:
    """Tuning and sampling against a loop that carries point, direction and tuning by hand, at
    T = 0.25: a chain that draws a new direction at every step has the same law, but diffuses."""
    config = MILE(epochs=12, burn_in=8, training_steps=0, temperature=0.25, prior_precision=2.0)
    problem = Problem(LIKELIHOOD, N, 1, 1)
    state = mile.init(config, problem, Stack(linear, 2, dtype=torch.float64))
    target = LogPosterior(Stack(linear, 2, dtype=torch.float64), problem, [(X, Y)], 2.0, 0.25)
    rows = rows_of(state.stack)
    point, tuning = Point(rows, *target(rows)), start(rows, 8)
    velocity = directions(state.stack.normal_rows("mile", "start"))
    for number in range(12):
        noise = state.stack.normal_rows("mile", number)
        sizes = tuning["step_size"], tuning["decoherence"]
        move = langevin_step(target, point, velocity, noise, *sizes)
        state, info = mile.step(config, problem, state, Batch(X, Y))
        point, velocity = move.point, move.velocity
        if number < 8:
            tuning = tune(tuning, move, number, 8, config.energy_variance)
        torch.testing.assert_close(rows_of(state.stack), point.position, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(state.velocity, velocity, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(info.energy_change, move.energy_change, rtol=1e-6, atol=1e-9)


def test_a_single_parameter_is_refused() -> None:
    """In one dimension a direction cannot turn; a weight with learned noise beside it has two."""

    def one() -> nn.Module:
        return nn.Linear(1, 1, bias=False)

    task = pm.Task(train=(X[:, :1], Y), likelihood=LIKELIHOOD, target_scaling=None)
    with pytest.raises(ValueError, match="mile needs at least 2 parameters .* has 1; take hmc"):
        fit(net=one, task=task, epochs=8)
    learned = pm.Task(train=(X[:, :1], Y), likelihood=Gaussian(noise="learned"))
    assert fit(net=one, task=learned, epochs=8, num_modes=2).num_modes == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.0}, "`temperature` of MILE must be > 0 .*`map`.*, got 0.0"),
        ({"energy_variance": 0.0}, "`energy_variance` of MILE must be > 0, got 0.0"),
        ({"burn_in": 25}, "burn_in=25 leaves nothing to keep of a run of 20 steps"),
        ({"training_steps": 16}, "`training_steps` of MILE must be at most burn_in, which is 15"),
        ({"burn_in": 5, "training_steps": 6}, "`training_steps` of MILE must be at most burn_in=5"),
        ({"augment": lambda x, g: x}, "`augment` of MILE must be None: chains on the whole data"),
    ],
)
def test_impossible_options_are_refused_with_the_numbers(options, message) -> None:
    with pytest.raises(ValueError, match=message):
        fit(epochs=20, **options)


def test_lost_steps_are_told_with_number_cause_and_remedy() -> None:
    """A network whose outputs are not finite beyond a bound: chains are thrown back from there."""

    class Cliff(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            far = torch.where(self.weight[:1] > -0.3, torch.inf, 0.0)
            return (x @ self.weight)[:, None] + far

    def net() -> nn.Module:
        module = Cliff()
        with torch.no_grad():
            module.weight.copy_(torch.tensor([-0.6, -1.0]))
        return module

    message = r"steps of 50 × 2 after burn-in left the finite.*too long.*energy_variance=5e-05"
    with pytest.warns(UserWarning, match=message):
        post = fit(net=[net(), net()], epochs=100, burn_in=50, training_steps=0)
    assert (post.weights.facts["divergences"] > 0).any()
    assert torch.isfinite(post.predict(X).mean).all()
