"""MC BatchNorm: sample l is the network in training mode on batch l, layer by layer."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import polymode as pm
from polymode.methods import mc_batchnorm
from polymode.methods.mc_batchnorm import BatchStatistics

STREAM = torch.Generator().manual_seed(0)
ROWS = torch.randn(60, 4, generator=STREAM, dtype=torch.float64)
IMAGES = torch.randn(24, 2, 5, 5, generator=STREAM, dtype=torch.float64)
VOLUMES = torch.randn(24, 1, 3, 3, 3, generator=STREAM, dtype=torch.float64)


def mlp() -> nn.Module:
    first = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh()
    return nn.Sequential(*first, nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2))


def convnet() -> nn.Module:
    first = nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3, affine=False), nn.ReLU()
    second = nn.Conv2d(3, 4, 2, bias=False), nn.BatchNorm2d(4, momentum=None), nn.Tanh()
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(16, 2))


def volumes() -> nn.Module:
    return nn.Sequential(
        nn.Conv3d(1, 3, 2), nn.BatchNorm3d(3), nn.ReLU(), nn.Flatten(), nn.Linear(24, 2)
    )


CASES = {"1d": (mlp, ROWS), "2d": (convnet, IMAGES), "3d": (volumes, VOLUMES)}


@pytest.mark.parametrize("case", CASES)
def test_a_sample_is_the_network_in_training_mode_on_its_batch(case, monkeypatch) -> None:
    """With the batch itself as inputs, all layers normalise as torch's module in training mode
    does: to rounding in float64."""
    net, x = CASES[case]
    batches: list[torch.Tensor] = []
    plain = mc_batchnorm.random_batches

    def recorded(*args):
        for batch in plain(*args):
            batches.append(batch)
            yield batch

    monkeypatch.setattr(mc_batchnorm, "random_batches", recorded)
    task = pm.Task(train=(x, torch.arange(len(x)) % 2), likelihood="categorical")
    post = pm.fit(
        "mc_batchnorm", net=net, task=task, num_modes=2, epochs=2, batch_size=12, holdout=0,
        samples_per_mode=7, dtype=torch.float64, progress="silent",
    )  # fmt: skip
    assert isinstance(post.weights, BatchStatistics)
    assert len(batches) == 14
    for mode, member in enumerate(post.members):
        for number, batch in enumerate(batches[7 * mode : 7 * mode + 7]):
            drawn = post.weights.draw(number, 0)(batch)[mode]
            with torch.no_grad():
                expected = member.train()(batch)
            torch.testing.assert_close(drawn.detach(), expected, rtol=1e-10, atol=1e-10)
    first, second = (post.predict(x, batch_size=size).log_probs for size in (5, 24))
    torch.testing.assert_close(first, second)


def test_statistics_are_those_of_other_batches_for_each_mode_and_sample() -> None:
    """Small batches spread more than large ones; a mode has the statistics it has alone."""
    task = pm.Task(train=(ROWS, torch.arange(60) % 2), likelihood="categorical")
    trained = pm.fit("map", net=mlp, task=task, num_modes=3, epochs=30, progress="silent", seed=1)

    def spread(size: int) -> float:
        post = pm.fit("mc_batchnorm", net=trained, task=task, statistics_batch_size=size,
                      progress="silent", seed=1)  # fmt: skip
        means = post.weights.statistics["1.running_mean"]
        assert len(means.flatten(0, 1).unique(dim=0)) == 90
        return float(means.std(1).mean())

    assert spread(4) > 1.5 * spread(20)


def test_a_network_without_batchnorm_is_refused_in_one_line() -> None:
    task = pm.Task(train=(ROWS, torch.arange(60) % 2), likelihood="categorical")
    net = lambda: nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 2))  # noqa: E731
    with pytest.raises(ValueError, match=r"needs a network with BatchNorm, but this Sequential"):
        pm.fit("mc_batchnorm", net=net, task=task, epochs=1, progress="silent")
