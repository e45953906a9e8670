"""Regression with default options: calibrated, in any units, from given networks, from loaders."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import polymode as pm
from polymode.likelihoods.kinds import Gaussian, HeteroscedasticGaussian, StudentT
from polymode.likelihoods.scaling import Scaling
from polymode.tasks.task import Task

QUICK = {"epochs": 3, "batch_size": 50, "progress": "silent", "dtype": torch.float64}


def sine(number: int, seed: int) -> tuple[Tensor, Tensor]:
    """y = sin 3x + 0.1 ε on [−1, 1]."""
    stream = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(number, 1, generator=stream) - 1
    return x, (3 * x).sin() + 0.1 * torch.randn(number, 1, generator=stream)


def wide(number: int, size: int = 1) -> tuple[Tensor, Tensor]:
    x, y = (t.double() for t in sine(number, seed=1))
    return x, torch.cat([y * 3**d + d for d in range(size)], 1)


@pytest.mark.parametrize("method", ["map", "deep_ensemble"])
@pytest.mark.cpu_seconds(12)
def test_a_noisy_sine_is_calibrated_with_default_options(method) -> None:
    """The noise is 0.1, and 0.9 of 1,000 new values lie in intervals of 90 %, ± 0.01 by chance."""
    task = pm.Task(train=sine(200, seed=0), likelihood=Gaussian(noise="learned"))
    x, y = sine(1000, seed=1)
    prediction = pm.fit(method, net=pm.nets.mlp, task=task, progress="silent").predict(x)
    assert 0.08 < prediction.aleatoric_variance.mean().sqrt() < 0.13
    low, high = prediction.interval(0.9)
    assert 0.82 < ((low < y) & (y < high)).double().mean() < 0.97


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize(
    ("likelihood", "in_other_units", "outputs"),
    [
        (Gaussian(noise="learned"), Gaussian(noise="learned"), 1),
        (Gaussian(noise=0.1), Gaussian(noise=0.1 * 2**20), 1),
        (StudentT(df=4.0, scale=0.1), StudentT(df=4.0, scale=0.1 * 2**20), 1),
        (HeteroscedasticGaussian(), HeteroscedasticGaussian(), 2),
    ],
)
def test_units_of_the_targets_do_not_matter(likelihood, in_other_units, outputs, size) -> None:
    """Targets 2²⁰ times as large and moved: predictions are those, as large and as far moved."""
    x, y = wide(60, size)
    factor, offset = 2.0**20, 2.0**22

    def predict(y: Tensor, law) -> pm.Prediction:
        options = {"net": lambda: nn.Linear(1, outputs * size), "num_modes": 2, **QUICK}
        return pm.fit("map", task=Task(train=(x, y), likelihood=law), **options).predict(x)

    small, large = predict(y, likelihood), predict(y * factor + offset, in_other_units)
    torch.testing.assert_close(large.mean, small.mean * factor + offset, rtol=1e-9, atol=0)
    torch.testing.assert_close(large.std, small.std * factor, rtol=1e-6, atol=0)


def test_known_noise_is_predicted_in_the_units_it_was_given_in() -> None:
    x, y = wide(60, size=2)
    for noise, expected in ((0.5, (0.25, 0.25)), ((0.5, 2.0), (0.25, 4.0))):
        task = pm.Task(train=(x, y), likelihood=Gaussian(noise=noise))
        assert task.likelihood == Gaussian(noise=noise)
        found = pm.fit("map", net=lambda: nn.Linear(1, 2), task=task, **QUICK).predict(x)
        expected = torch.tensor(expected, dtype=torch.float64).expand(60, 2)
        torch.testing.assert_close(found.aleatoric_variance, expected)


def test_none_and_a_scaling_of_ones_own_are_kept() -> None:
    x, y = wide(60)
    own = Scaling(torch.tensor([3.0]), torch.tensor([2.0]))
    for scaling in (None, own):
        task = pm.Task(train=(x, y), likelihood=Gaussian(noise=0.5), target_scaling=scaling)
        post = pm.fit("map", net=lambda: nn.Linear(1, 1), task=task, **QUICK)
        assert post.target_scaling is scaling
        assert post.likelihood == Gaussian(noise=0.5)
    with pytest.raises(ValueError, match=r'`target_scaling` of Task must be "auto"'):
        pm.Task(train=(x, y), likelihood=Gaussian(noise=0.5), target_scaling="none")
    labels = pm.Task(train=(x, (y[:, 0] > 0).long()), likelihood="categorical")
    assert labels.target_scaling is None


def test_networks_that_are_given_predict_in_the_units_of_the_targets() -> None:
    """Their noise is that of their errors, without a step of training."""
    x, y = wide(60)
    trained = nn.Linear(1, 1).double()
    task = pm.Task(train=(x, 1000 * y), likelihood=Gaussian(noise="learned"))
    post = pm.fit("map", net=trained, task=task, epochs=0, progress="silent")
    prediction = post.predict(x)
    with torch.no_grad():
        torch.testing.assert_close(prediction.mean, trained(x))
        errors = (trained(x) - 1000 * y).square().mean()
    torch.testing.assert_close(prediction.aleatoric_variance, errors.expand(60, 1))


def test_a_posterior_that_is_given_keeps_its_units(tmp_path) -> None:
    x, y = wide(60)
    task = pm.Task(train=(x, 1000 * y), likelihood=Gaussian(noise=80.0))
    options = {"progress": "silent", "dtype": torch.float64}
    first = pm.fit("map", net=lambda: nn.Linear(1, 1), task=task, **options, epochs=3)
    first.save(tmp_path / "post")
    loaded = pm.load(tmp_path / "post", net=lambda: nn.Linear(1, 1))
    other = pm.Task(train=(x[:30], 1000 * y[:30]), likelihood=Gaussian(noise=80.0))
    for data in (task, other):  # the second has another mean and standard deviation
        again = pm.fit("map", net=loaded, task=data, **options, epochs=0)
        torch.testing.assert_close(again.predict(x).mean, first.predict(x).mean)
        torch.testing.assert_close(again.predict(x).std, first.predict(x).std)


def test_noise_starts_from_targets_that_are_not_scaled() -> None:
    """Two networks that say 0: the root mean square of each output of the targets."""
    x, y = wide(60, size=2)
    net = nn.Linear(1, 2).double()
    nn.init.zeros_(net.weight), nn.init.zeros_(net.bias)
    for noise, axes in (("learned", (0, 1)), ("learned_per_output", 0)):
        task = pm.Task(train=(x, y), likelihood=Gaussian(noise=noise), target_scaling=None)
        post = pm.fit("map", net=[net, copy.deepcopy(net)], task=task, epochs=0, progress="silent")
        expected = y.square().mean(axes).sqrt()
        torch.testing.assert_close(post.stack.extra["log_noise"][1].exp(), expected)


def test_a_loader_is_scaled_as_arrays_are() -> None:
    x, y = wide(60)
    loader = DataLoader(TensorDataset(x, 7 * y + 2), batch_size=7, shuffle=True)
    before = torch.get_rng_state()
    found = pm.Task(train=loader, likelihood=Gaussian(noise="learned")).target_scaling
    assert torch.equal(before, torch.get_rng_state())
    expected = Scaling.of(7 * y + 2)
    torch.testing.assert_close(found.shift, expected.shift)
    torch.testing.assert_close(found.scale, expected.scale)


def test_targets_far_from_zero_are_moved_before_they_are_rounded() -> None:
    """At 10⁹, neighbours in float32 are 64 apart; the targets spread over 2."""
    x, y = wide(60)
    task = pm.Task(train=(x, y + 1e9), likelihood=Gaussian(noise="learned"))
    options = {"net": lambda: nn.Linear(1, 1), "epochs": 100, "lr": 0.05, "progress": "silent"}
    post = pm.fit("map", task=task, dtype=torch.float32, **options)
    assert post.predict(x.float()).aleatoric_variance.max().sqrt() < 0.5


def test_another_scaling_is_another_run(tmp_path) -> None:
    """A loader tells its length alone, so the scaling is a part of a checkpoint's identity."""
    x, y = wide(60)
    options = {"net": lambda: nn.Linear(1, 1), "checkpoint": tmp_path, **QUICK}

    def loader(factor: float) -> pm.Task:
        data = DataLoader(TensorDataset(x, factor * y), batch_size=50)
        return pm.Task(train=data, likelihood=Gaussian(noise="learned"))

    pm.fit("map", task=loader(1.0), **options)
    with pytest.raises(ValueError, match="target_scaling"):
        pm.fit("map", task=loader(2.0), **options)


def test_validation_is_in_the_units_of_every_target() -> None:
    """Two targets of different scale: the density of both, each in its own units."""
    x, y = wide(120, size=2)
    data = (x, y * torch.tensor([1.0, 100.0], dtype=torch.float64))
    task = pm.Task(train=data, val=data, likelihood=Gaussian(noise="learned_per_output"))
    options = QUICK | {"epochs": 200, "holdout": 0}
    post = pm.fit("map", net=lambda: nn.Linear(1, 2), task=task, **options)
    expected = -post.predict(x).log_prob(data[1]).mean().item()
    assert post.history.val_nll[-1][0] == pytest.approx(expected, rel=1e-6)


def test_validation_with_one_scale_for_several_targets() -> None:
    """A `Scaling` of one number stretches each of two targets: the NLL has its logarithm twice."""
    stream = torch.Generator().manual_seed(3)
    x = torch.randn(64, 2, generator=stream)
    y = 30 * x
    scaling = Scaling(torch.tensor(0.0), torch.tensor(30.0))
    likelihood = Gaussian(noise=0.5)
    task = pm.Task(train=(x, y), val=(x, y), likelihood=likelihood, target_scaling=scaling)
    post = pm.fit("map", net=nn.Linear(2, 2), task=task, epochs=400, progress="silent")
    expected = -post.predict(x).log_prob(y).mean().item()
    assert post.history.val_nll[-1][0] == pytest.approx(expected, rel=1e-5)
