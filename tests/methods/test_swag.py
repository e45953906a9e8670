"""SWAG: its Gaussian is that of the snapshots, across layers; its draws are of that Gaussian."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import polymode as pm
from polymode.likelihoods.kinds import Gaussian as GaussianNoise
from polymode.methods import SWAG, Problem, swag
from polymode.posterior import Gaussian, Samples
from polymode.stack.stack import Stack
from polymode.training.loop import Batch

STREAM = torch.Generator().manual_seed(0)
X = torch.randn(40, 2, generator=STREAM, dtype=torch.float64)
Y = X[:, :1].sin() + 0.1 * torch.randn(40, 1, generator=STREAM, dtype=torch.float64)
LIKELIHOOD = GaussianNoise(noise=0.3)
TASK = pm.Task(train=(X, Y), likelihood=LIKELIHOOD, target_scaling=None)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1))


def batch_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1))


def flat(params: dict[str, Tensor]) -> Tensor:
    """Return the parameters of each mode as one vector (M, P)."""
    return torch.cat([tensor.detach().flatten(1) for tensor in params.values()], 1)


def path(config: SWAG, modes: int = 2) -> tuple[swag.State, Problem, Tensor]:
    """Return the state after a loop written out, and all weights on the way (steps, M, P)."""
    problem = Problem(LIKELIHOOD, 40, 1, 4)
    state = swag.init(config, problem, Stack(net, modes, dtype=torch.float64))
    state.stack.train()
    seen = []
    for number in range(4 * config.epochs):
        rows = slice(10 * (number % 4), 10 * (number % 4) + 10)
        state, _ = swag.step(config, problem, state, Batch(X[rows], Y[rows]))
        seen.append(flat(state.stack.params))
    return state, problem, torch.stack(seen)


def assembled(weights: Gaussian) -> Tensor:
    """Return the covariance over all parameters of each mode, (M, P, P)."""
    modes, size = flat(weights.stack.params).shape
    covariance = torch.zeros(modes, size, size, dtype=torch.float64)
    if weights.std is not None:
        covariance += torch.diag_embed(flat(weights.std).square())
    if weights.deviations is not None:
        d = torch.cat([tensor.flatten(2) for tensor in weights.deviations.values()], 2)
        covariance += d.mT @ d
    return covariance


def by_hand(snapshots: Tensor, rank: int, diagonal: bool) -> tuple[Tensor, Tensor]:
    """Return mean (P,) and covariance (P, P) of snapshots (T, P), as the paper has it."""
    mean = snapshots.mean(0)
    variance = (snapshots - mean).square().mean(0)
    last = snapshots[-rank:] - mean if rank else snapshots[:0]
    parts = [torch.diag(variance)] if diagonal else []
    parts += [last.T @ last / (len(last) - 1)] if len(last) > 1 else []
    nothing = torch.zeros(len(mean), len(mean), dtype=torch.float64)
    return mean, sum(parts, nothing) / max(len(parts), 1)


@pytest.mark.parametrize("diagonal", [True, False])
@pytest.mark.parametrize("rank", [0, 2, 5, None])
def test_the_gaussian_is_that_of_the_snapshots(rank, diagonal) -> None:
    """Mean over the snapshots alone, and the whole covariance, between layers too. There are eight
    snapshots: rank 5 takes the last five of them, None all, and divides by seven."""
    config = SWAG(
        epochs=5, lr=0.05, burn_in=4, thinning=2, num_snapshots=8, rank=rank, diagonal=diagonal
    )
    state, problem, seen = path(config)
    weights = swag.finish(config, problem, state)
    assert isinstance(weights, Gaussian)
    snapshots = seen[5::2]  # after steps 6, 8, ..., 20
    assert len(snapshots) == 8
    for mode in range(2):
        mean, covariance = by_hand(snapshots[:, mode], 8 if rank is None else rank, diagonal)
        torch.testing.assert_close(flat(weights.stack.params)[mode], mean, rtol=1e-10, atol=1e-12)
        found = assembled(weights)[mode]
        torch.testing.assert_close(found, covariance, rtol=1e-8, atol=1e-16)
        layers = covariance[:6, 6:]  # between the first linear layer and the last
        assert (layers.abs().max().item() > 1e-6) is (rank != 0)
    assert weights.samples_per_mode == (30 if rank != 0 or diagonal else 1)


def test_draws_have_the_covariance_across_layers() -> None:
    """5 draws of 400 modes with one and the same Gaussian: 9 means and 45 covariances within 5.5
    standard errors, which chance misses for 2 seeds in a million. The seed is fixed. Draws that are
    independent from layer to layer would have no covariance between them."""
    config = SWAG(epochs=5, lr=0.05, burn_in=4, thinning=2, num_snapshots=8, rank=5)
    state, problem, _ = path(config, modes=1)
    one = swag.finish(config, problem, state)
    assert isinstance(one, Gaussian)
    member = one.stack.members()[0]
    stack = Stack([copy.deepcopy(member) for _ in range(400)], dtype=torch.float64)
    std, deviations = (
        {name: tensor.expand(400, *tensor.shape[1:]) for name, tensor in group.items()}
        for group in (one.std, one.deviations)
    )
    many, number = Gaussian(stack, std, deviations, 5), 2000
    drawn = torch.cat([flat(many.draw(j, seed=3).params) for j in range(5)])
    mean, covariance = flat(one.stack.params)[0], assembled(one)[0]
    offset = drawn - mean
    variance = covariance.diagonal()
    assert (offset.mean(0).abs() < 5.5 * (variance / number).sqrt()).all()
    error = ((variance[:, None] * variance + covariance**2) / number).sqrt()
    assert ((offset.T @ offset / number - covariance).abs() < 5.5 * error).all()
    assert (covariance[:6, 6:].abs() > 11 * error[:6, 6:]).any()  # so the test can tell


@pytest.mark.parametrize(
    ("options", "taken"),
    [
        ({"num_snapshots": 1}, 1),
        ({"num_snapshots": 2}, 2),
        ({"burn_in": 17}, 3),
        ({"burn_in": 0, "thinning": 10}, 2),
    ],
)
def test_few_snapshots(options, taken) -> None:
    """One snapshot has no spread and two have one direction; the divisors count what was taken."""
    config = SWAG(epochs=5, lr=0.05, **options)
    state, problem, seen = path(config, modes=1)
    weights = swag.finish(config, problem, state)
    assert isinstance(weights, Gaussian)
    steps = swag.snapshot_steps(config, problem)
    assert len(steps) == taken
    mean, covariance = by_hand(seen[[step - 1 for step in steps], 0], 20, True)
    torch.testing.assert_close(flat(weights.stack.params)[0], mean, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(assembled(weights)[0], covariance, rtol=1e-8, atol=1e-16)
    assert weights.samples_per_mode == (1 if taken == 1 else 30)


def fit(**options) -> pm.Posterior:
    usual = {"epochs": 4, "batch_size": 10, "dtype": torch.float64, "progress": "silent"}
    return pm.fit("swag", **({"net": net, "task": TASK, "samples_per_mode": 3} | usual | options))


@pytest.mark.parametrize("modes", [1, 3])
def test_statistics_of_each_sample_are_its_own(modes) -> None:
    """Against a plain loop over the training data with each drawn network: the mean of the batches'
    means and variances. The centres have theirs, too."""
    post = fit(net=batch_norm, num_modes=modes, epochs=6, lr=0.02)
    assert isinstance(post.weights, Samples) and post.weights.samples_per_mode == 3
    networks = [(k, m) for j in range(3) for k, m in enumerate(post.weights.draw(j, 0).members())]
    networks += list(enumerate(post.members))
    with torch.no_grad():
        for _, network in networks:
            hidden = [network[0](X[a : a + 10]) for a in range(0, 40, 10)]
            mean = torch.stack([h.mean(0) for h in hidden]).mean(0)
            variance = torch.stack([h.var(0) for h in hidden]).mean(0)
            torch.testing.assert_close(network[1].running_mean, mean, rtol=1e-9, atol=1e-12)
            torch.testing.assert_close(network[1].running_var, variance, rtol=1e-9, atol=1e-12)
        alone = torch.stack([network(X) for _, network in networks[: 3 * modes]])
    together = post.predict(X).loc.unflatten(0, (modes, 3)).transpose(0, 1).flatten(0, 1)
    torch.testing.assert_close(together, alone, rtol=1e-9, atol=1e-12)
    assert len({tuple(n[1].running_mean.tolist()) for _, n in networks}) == 4 * modes


def test_draws_with_statistics_are_those_of_the_gaussian() -> None:
    """The weights that are kept are the draws of the seed of the fit, untouched by the pass."""
    post = fit(net=batch_norm, seed=5)
    again = fit(net=batch_norm, seed=5)
    first, second = (p.weights.draw(0, 0).params["0.weight"] for p in (post, again))
    assert torch.equal(first, second)
    assert not torch.equal(first, post.weights.draw(1, 0).params["0.weight"])
    assert not torch.equal(first, post.stack.params["0.weight"])


def test_networks_that_are_not_trained_are_left_alone() -> None:
    """No snapshot: the networks that were given predict, with the statistics they came with."""
    module = batch_norm().double().train()
    module(X[:20])
    post = fit(net=module, epochs=0)
    with torch.no_grad():
        torch.testing.assert_close(post.predict(X).loc[0], module.eval()(X))
    assert post.num_samples == 1


@pytest.mark.parametrize("execution", ["loop", "batched"])
def test_modes_do_not_see_each_other(execution) -> None:
    """MultiSWAG: mode k of 1 + k and of 3 has the same Gaussian and the same draws."""
    whole = fit(num_modes=3, execution=execution)
    for k in range(3):
        part = fit(num_modes=k + 1, execution=execution)
        for name, tensor in part.weights.tensors().items():
            torch.testing.assert_close(
                tensor[k], whole.weights.tensors()[name][k], rtol=1e-8, atol=1e-12
            )
        mine, theirs = (p.weights.draw(1, seed=2).params["0.weight"][k] for p in (part, whole))
        torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-12)


def test_a_parameter_that_is_one_number_is_drawn_too() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.scale = nn.Linear(2, 1), nn.Parameter(torch.tensor(1.0))

        def forward(self, x: Tensor) -> Tensor:
            return F.softplus(self.scale) * self.layer(x)

    post = fit(net=Scaled)
    first, second = (post.weights.draw(j, 0).params["scale"] for j in (0, 1))
    assert first.shape == (1,) and first != second


def test_learned_noise_is_averaged_over_the_snapshots() -> None:
    task = pm.Task(train=(X, Y), likelihood=GaussianNoise(noise="learned"), target_scaling=None)
    post = fit(task=task, epochs=10, num_snapshots=2, thinning=19, burn_in=0, lr=0.02)
    one = fit(task=task, epochs=10, num_snapshots=1, lr=0.02)
    log_noise, last = (p.stack.extra["log_noise"].item() for p in (post, one))
    assert log_noise != last
    scale = post.predict(X).scale
    torch.testing.assert_close(scale, torch.full_like(scale, math.exp(log_noise)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 1}, "`rank` of SWAG must be 0 or at least 2"),
        ({"rank": 9}, "`rank` of SWAG is 9, but there are 8 snapshots; .* a rank of at most 8"),
        ({"diagonal": 1}, "`diagonal` of SWAG must be True or False, got 1"),
        ({"num_snapshots": 9}, "9 to keep, .* of 16 in all 8 are left"),
        ({"burn_in": 16}, "burn_in=16 leaves nothing to keep of a run of 16"),
        ({"samples_per_mode": 0}, "`samples_per_mode` of SWAG must be an integer of at least 1"),
    ],
)
def test_impossible_options_are_refused(options, message) -> None:
    with pytest.raises(ValueError, match=message):
        fit(**options)


# ------------------------------------------------------------------------- snapshots from elsewhere


def modules(number: int = 6, make=net) -> list[nn.Module]:
    """Return networks that wandered a little, in float64."""
    module, found = make().double(), []
    stream = torch.Generator().manual_seed(0)
    for _ in range(number):
        for parameter in module.parameters():
            step = torch.randn(parameter.shape, generator=stream, dtype=torch.float64)
            parameter.data += 0.1 * step
        found.append(copy.deepcopy(module))
    return found


def vector(module: nn.Module) -> Tensor:
    return nn.utils.parameters_to_vector(module.parameters()).detach()


@pytest.mark.parametrize("rank", [0, 3, None])
def test_the_gaussian_of_modules_is_that_of_a_fit(rank) -> None:
    """Mean and whole covariance by hand; predictions are made of its draws."""
    given = modules()
    post = swag.from_snapshots(given, task=TASK, rank=rank, samples_per_mode=4)
    mean, covariance = by_hand(
        torch.stack([vector(m) for m in given]), 6 if rank is None else rank, True
    )
    torch.testing.assert_close(vector(post.members[0]), mean, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(assembled(post.weights)[0], covariance, rtol=1e-8, atol=1e-16)
    assert post.predict(X).num_samples == post.num_samples == 4
    assert (post.method, post.config["num_snapshots"]) == ("swag", 6)


def test_snapshots_may_be_modules_states_posteriors_or_folders(tmp_path) -> None:
    """All of them give the same Gaussian; a list per snapshot has a network for each mode."""
    given = modules()
    states = [module.state_dict() for module in given]
    posts = [fit(net=module, epochs=0) for module in given]
    for number, post in enumerate(posts):
        post.save(tmp_path / str(number))
    folders = [tmp_path / str(number) for number in range(6)]
    expected = swag.from_snapshots(given, task=TASK).weights.tensors()
    for snapshots, builder in ((states, lambda: net().double()), (posts, None), (folders, net)):
        found = swag.from_snapshots(snapshots, task=TASK, net=builder).weights.tensors()
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    two = swag.from_snapshots([[module, copy.deepcopy(given[0])] for module in given], task=TASK)
    assert two.num_modes == 2
    assert torch.equal(two.weights.std["0.weight"][0], expected["std/0.weight"][0])
    assert two.weights.std["0.weight"][1].abs().max() < 1e-9


def test_snapshots_may_come_one_by_one_with_a_module_to_copy() -> None:
    """As state dictionaries from a generator; the module itself stays as it is."""
    mine, given = net().double(), modules()
    before = copy.deepcopy(mine.state_dict())
    states = (module.state_dict() for module in given)
    post = swag.from_snapshots(states, task=TASK, net=mine)
    other = swag.from_snapshots(given, task=TASK)
    for name, tensor in other.weights.tensors().items():
        torch.testing.assert_close(post.weights.tensors()[name], tensor)
    assert all(torch.equal(tensor, before[name]) for name, tensor in mine.state_dict().items())


def test_snapshots_of_fits_keep_units_and_statistics() -> None:
    """Targets far from 0 are scaled in the fit; the Gaussian predicts in their units. Draws of
    networks with BatchNorm have statistics of their own."""
    task = pm.Task(train=(X, 1000 + 50 * Y), likelihood=GaussianNoise(noise="learned"))
    posts = [fit(net=batch_norm, task=task, epochs=e, rank=0, diagonal=False) for e in (8, 9, 10)]
    post = swag.from_snapshots(posts, task=task, samples_per_mode=3)
    assert post.target_scaling is not None
    assert (post.predict(X).mean - 1000).abs().max() < 300
    assert isinstance(post.weights, Samples) and post.weights.samples_per_mode == 3
    running = post.weights.tensors()["kept/network/1.running_mean"]
    assert len(running[:, 0, 0].unique()) == 3


@pytest.mark.parametrize(
    ("snapshots", "options", "message"),
    [
        ([], {}, "at least one snapshot"),
        (modules(1)[0], {}, "must be a list"),
        (modules(3), {"rank": 4}, "`rank` of SWAG is 4, but there are 3 snapshots"),
        (modules(1), {"rank": 2}, "but there is 1 snapshot; .* or rank=0"),
        ([__file__], {"net": net}, "is a file, not the folder .* give what it holds"),
        ([module.state_dict() for module in modules(2)], {}, "need `net`"),
        ([*modules(2), nn.Linear(2, 1).double()], {}, "snapshot 2 is not like the first"),
        ([3, 4], {}, "got a int"),
    ],
)
def test_snapshots_that_cannot_be_are_refused(snapshots, options, message) -> None:
    with pytest.raises(ValueError, match=message):
        swag.from_snapshots(snapshots, task=TASK, **options)


def test_snapshots_do_not_wait_for_validation_data() -> None:
    """The same snapshots with and without a validation set, and exactly as many as were asked."""
    options = {"num_snapshots": 4, "epochs": 6, "seed": 3}
    with_data = pm.Task(train=(X, Y), val=(X, Y), likelihood=LIKELIHOOD, target_scaling=None)
    plain, judged = fit(**options).weights, fit(**options, task=with_data).weights
    assert plain.deviations["0.weight"].shape[1] == 4
    for name, tensor in plain.tensors().items():
        assert torch.equal(tensor, judged.tensors()[name])
