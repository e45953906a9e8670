"""Every sampler through `fit`: conjugate linear regression, what is kept, what is refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import polymode as pm
from polymode.likelihoods.kinds import Gaussian
from polymode.methods import METHODS, CyclicalSGMCMC, Problem, cyclical_sgmcmc
from polymode.methods.sampling import keeping
from polymode.stack.stack import Stack
from polymode.training.loop import Batch, Divergence

from ..conjugate import NOISE, PRECISION, TASK, N, X, Y, largest_score, linear, vectors

WHOLE = {"batch_size": N, "prior_precision": PRECISION, "dtype": torch.float64}
CHAINS = {
    "sgld": {"lr": 0.15},
    "sghmc": {"lr": 0.1, "friction": 0.3},
    "sgnht": {"lr": 0.05, "friction": 0.3},
    "cyclical_sgmcmc": {"lr": 0.1, "friction": 0.3, "exploration": 0.25},
}
NAMES = [*CHAINS, "snapshot", "checkpoint_ensemble"]


def fit(name: str, **options) -> pm.Posterior:
    usual = {"net": linear, "task": TASK, "progress": "silent", "epochs": 20, "num_modes": 2}
    return pm.fit(name, **usual | WHOLE | options)


@pytest.mark.parametrize("name", CHAINS)
def test_samples_of_conjugate_regression(name) -> None:
    """100 chains; chance misses for 6 seeds in 100,000, and the seed is fixed. A temperature of 1.5
    is seen."""
    kept = {"burn_in": 400, "samples_per_mode": 15} if name != "cyclical_sgmcmc" else {
        "num_cycles": 10, "samples_per_cycle": 2
    }  # fmt: skip
    post = fit(name, num_modes=100, epochs=700, **CHAINS[name] | kept)
    theta = vectors(post.weights.kept)
    assert largest_score(theta) < 4.5
    assert largest_score(theta, 1.5) > 4.5


def test_cycles_learn_a_preconditioner_while_they_explore() -> None:
    """It is frozen while they sample, so that the posterior is what they have: chance misses for 6
    seeds in 100,000, and the seed is fixed."""
    options = {**CHAINS["cyclical_sgmcmc"], "preconditioner": "rmsprop", "num_cycles": 5}
    post = fit("cyclical_sgmcmc", num_modes=100, epochs=700, samples_per_cycle=2, **options)
    assert largest_score(vectors(post.weights.kept)) < 4.5
    config = CyclicalSGMCMC(epochs=40, prior_precision=PRECISION, **options)
    problem = Problem(TASK.likelihood, N, 1, 1)
    state, learnt = cyclical_sgmcmc.init(config, problem, Stack(linear, 2, dtype=X.dtype)), []
    for _ in range(16):
        before = state.metric["scale"].clone()
        state, _ = cyclical_sgmcmc.step(config, problem, state, Batch(X, Y))
        learnt.append(not torch.equal(state.metric["scale"], before))
    assert learnt == 2 * [True, True, *6 * [False]]


@pytest.mark.parametrize("name", [*NAMES, "hmc", "mile", "swag", "vi", "ivon"])
def test_chains_from_one_builder_share_nothing(name) -> None:
    """A second chain begins where the first began, and does not move it."""
    method = METHODS.get(name).value
    config = method.config(epochs=9, num_modes=2)
    problem = Problem(Gaussian(noise=1.0), N, 1, 1, data=TASK.train)

    def chain():
        state = method.init(config, problem, Stack(linear, 2, dtype=torch.float64))
        for _ in range(5):
            state, _ = method.step(config, problem, state, Batch(X, Y))
        return state

    first = chain()
    before = {name: tensor.clone() for name, tensor in first.stack.tensors().items()}
    second = chain()
    assert first.step == second.step == 5
    for key, tensor in first.stack.tensors().items():
        assert torch.equal(tensor, before[key])
        assert torch.equal(tensor, second.stack.tensors()[key])


@pytest.mark.parametrize("name", ["sgld", "sghmc", "sgnht", "checkpoint_ensemble"])
def test_burn_in_counts_steps(name) -> None:
    """Not tensors, of which there are four; and no validation data are needed to keep anything."""
    config_of = METHODS.get(name).value.config
    config = config_of(epochs=10, burn_in=6, thinning=2, num_modes=1, lr=0.01)
    problem = Problem(Gaussian(noise=1.0), N, 1, 1)
    method = METHODS.get(name).value

    def net() -> nn.Module:
        return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))

    state, seen = method.init(config, problem, Stack(net, 1, dtype=torch.float64)), []
    for _ in range(10):
        state, _ = method.step(config, problem, state, Batch(X, Y))
        seen.append(state.stack.params["0.weight"].detach().clone())
    weights = method.finish(config, problem, state)
    assert weights.samples_per_mode == 2
    for number, step in enumerate((8, 10)):
        assert torch.equal(weights.draw(number, 0).params["0.weight"], seen[step - 1])


@pytest.mark.parametrize("name", CHAINS)
def test_temperature_zero_is_refused(name) -> None:
    """Without noise nothing is sampled, and what predicts as if it were is one network."""
    with pytest.raises(ValueError, match=r"`temperature` of .* must be > 0 \(.* by `map`\), got 0"):
        fit(name, temperature=0)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("sgld", {"lr": 0.0}, "`lr` of SGLD must be > 0, got 0.0"),
        ("sgld", {"integrator": "eulr"}, "one of .*, got 'eulr'.* Did you mean 'euler'"),
        ("sghmc", {"friction": -0.1}, r"`friction` of SGHMC must be in \(0, 1\], got -0.1"),
        ("sghmc", {"preconditioner": "adam"}, "`preconditioner` of SGHMC must be 'rmsprop'"),
        ("sgnht", {"friction": 1.0}, r"`friction` of SGNHT must be in \(0, 1\), got 1.0"),
        ("sgnht", {"thermostat": 0}, "`thermostat` of SGNHT must be > 0, got 0"),
        ("sgnht", {"burn_in": 20}, "burn_in=20 leaves nothing to keep of a run of 20"),
        ("sgld", {"preconditioner": "rmsprop", "burn_in": 0}, "is learnt during burn_in, .* 0"),
        (
            "cyclical_sgmcmc",
            {"preconditioner": "rmsprop", "exploration": 0},
            "is learnt during exploration, which is 0 of a cycle",
        ),
        ("cyclical_sgmcmc", {"lr": -1}, "`lr` of CyclicalSGMCMC must be > 0, got -1"),
        ("cyclical_sgmcmc", {"friction": 0}, r"`friction` of .* must be in \(0, 1\], got 0"),
        ("cyclical_sgmcmc", {"exploration": 1.0}, r"`exploration` of .* must be in \[0, 1\)"),
        ("cyclical_sgmcmc", {"num_cycles": 21}, "21 cycles need as many steps, but there are 20"),
        (
            "cyclical_sgmcmc",
            {"samples_per_cycle": 2, "exploration": 0.8},
            "2 samples per cycle, but of the 5 steps of a cycle 1 are left after exploration=0.8",
        ),
        ("snapshot", {"num_cycles": 21}, "21 cycles need as many steps, but there are 20"),
        ("snapshot", {"samples_per_mode": 6}, "must be at most num_cycles=5, .* got 6"),
        ("snapshot", {"schedule_unit": "step"}, "`schedule_unit` of Snapshot belongs"),
        ("checkpoint_ensemble", {"unit": "step"}, "`unit` of .* belongs to `at`"),
        ("checkpoint_ensemble", {"at": [3, 2]}, "`at` of .* must be ascending whole numbers"),
        ("checkpoint_ensemble", {"at": [5, 21]}, "names epoch 21, but there are 20"),
        ("checkpoint_ensemble", {"at": [5], "thinning": 2}, "leave out thinning"),
    ],
)
def test_impossible_options_are_refused_with_the_numbers(name, options, message) -> None:
    with pytest.raises(ValueError, match=message):
        fit(name, **options)


@pytest.mark.parametrize("name", NAMES)
def test_samples_that_would_not_fit_are_refused_before_training(name, monkeypatch) -> None:
    monkeypatch.setattr(keeping, "free_bytes", lambda device: 100.0)
    with pytest.raises(ValueError, match=r"samples of each of 2 modes need \d+ B, more than half"):
        fit(name)


@pytest.mark.parametrize("name", ["swag", "vi", "ivon"])
def test_draws_that_would_not_fit_are_refused_before_training(name, monkeypatch) -> None:
    """Those of networks with running statistics are kept; others are made when they are needed."""

    def batch_norm() -> nn.Module:
        return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))

    size = sum(t.numel() * 8 for t in batch_norm().state_dict().values())
    monkeypatch.setattr(keeping, "free_bytes", lambda device: 2 * 50.0 * 2 * size)
    with pytest.raises(ValueError, match=r"1000 samples of each of 2 modes need .* more than half"):
        fit(name, net=batch_norm, samples_per_mode=1000)
    fit(name, samples_per_mode=1000)


@pytest.mark.parametrize("name", CHAINS)
def test_a_step_too_large_says_what_to_try(name) -> None:
    with pytest.raises(Divergence, match=r"diverged at step .*Try lr=.* instead of 1000"):
        fit(name, lr=1000.0, epochs=400, step_limit=None)


def test_chains_that_run_hot_say_so() -> None:
    """Batches of one at a large step; with all the data in a batch there is nothing to say."""
    options = {"lr": 0.1, "epochs": 10, "prior_precision": 1.0}
    with pytest.warns(UserWarning, match=r"ran at a kinetic temperature of \d.*, not 1: .*lr=0.01"):
        fit("sghmc", batch_size=1, **options)
    fit("sghmc", **options | {"epochs": 300})
    fit("sghmc", temperature=4.0, **options | {"epochs": 300})  # as hot as they should be


def test_cold_chains_that_run_at_the_temperature_of_the_posterior_are_hot() -> None:
    options = {"lr": 5e-4, "epochs": 20, "prior_precision": 1.0, "batch_size": 1}
    fit("sghmc", **options)
    with pytest.warns(UserWarning, match=r"ran at a kinetic temperature of 0\.\d.*, not 0.05: "):
        fit("sghmc", temperature=0.05, **options)


def test_preconditioned_chains_take_learned_noise_and_resume(tmp_path) -> None:
    """Parameters that are one number per chain, and a state that is more than the networks."""
    task = pm.Task(train=(X, Y), likelihood=Gaussian(noise="learned"), target_scaling=None)
    options = {"task": task, "preconditioner": "rmsprop", "epochs": 12}
    for name in CHAINS:
        whole = fit(name, **options)

        def stop(event) -> None:
            if event.step == 8:
                raise KeyboardInterrupt

        folder = tmp_path / name
        with pytest.raises(KeyboardInterrupt):
            fit(name, **options, checkpoint=folder, checkpoint_seconds=0, on_event=stop)
        again = fit(name, **options, checkpoint=folder)
        assert len(noise := whole.weights.kept["extra/log_noise"].flatten()) == len(noise.unique())
        for key, tensor in whole.weights.tensors().items():
            assert torch.equal(tensor, again.weights.tensors()[key]), key


# -------------------------------------------------------------- snapshots and checkpoints of a run


def path(name: str, **options) -> tuple[list[Tensor], list[float], pm.Posterior]:
    """Return the weights after each of 20 steps of a loop written out, rates, and the fit."""
    method = METHODS.get(name).value
    config = method.config(epochs=20, num_modes=2, **options)
    problem = Problem(Gaussian(noise=NOISE), N, 1, 1)
    state, seen, rates = method.init(config, problem, Stack(linear, 2, dtype=torch.float64)), [], []
    for _ in range(20):
        state, _ = method.step(config, problem, state, Batch(X, Y))
        seen.append(state.stack.params["weight"].detach().clone())
        rates.append(state.optimization.optimizer.param_groups[0]["lr"])
    weights = method.finish(config, problem, state)
    return seen, rates, weights


def test_snapshots_end_cycles_of_the_paper() -> None:
    """Rates of equation 2 in cycles of 5 steps, networks after steps 5, 10, 15 and 20."""
    seen, rates, weights = path("snapshot", num_cycles=4, lr=0.02)
    cycle = [0.01 * (torch.pi * torch.tensor(k / 5.0)).cos().add(1).item() for k in range(5)]
    assert rates == pytest.approx(cycle * 4, rel=1e-6)
    assert weights.samples_per_mode == 4
    for number, step in enumerate((5, 10, 15, 20)):
        assert torch.equal(weights.draw(number, 0).params["weight"], seen[step - 1])
    last = path("snapshot", num_cycles=4, lr=0.02, samples_per_mode=2)[2]
    assert torch.equal(last.draw(0, 0).params["weight"], seen[14])


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({"at": (2, 7, 20)}, (2, 7, 20)),
        ({"at": [4], "unit": "step"}, (4,)),
        ({"burn_in": 8, "samples_per_mode": 3}, (12, 16, 20)),
    ],
)
def test_checkpoints_are_those_that_were_chosen(options, steps) -> None:
    seen, _, weights = path("checkpoint_ensemble", **options)
    assert weights.samples_per_mode == len(steps)
    for number, step in enumerate(steps):
        assert torch.equal(weights.draw(number, 0).params["weight"], seen[step - 1])
    assert fit("checkpoint_ensemble", **options).num_samples == 2 * len(steps)
