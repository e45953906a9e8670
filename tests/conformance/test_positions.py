"""Targets at positions: what every registered method does with pixels, tokens and labels.

A network that treats each position by itself, on a batch of B examples with E positions, is the
same network on B E rows. So a fit must give the same networks and samples.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import polymode as pm
from polymode.likelihoods import Categorical, Gaussian, HeteroscedasticGaussian, Positions
from polymode.methods import METHODS

from .small_fits import needs

STREAM = torch.Generator().manual_seed(0)
N, T = 12, 3  # examples, positions of each
X = torch.randn(N, T, 4, generator=STREAM, dtype=torch.float64)
Y = (X.sum(-1) > 0).long()
Y[torch.rand(N, T, generator=STREAM) < 0.2] = -100
VALUES = X[..., :2].sin()
IMAGES = torch.randn(16, 2, 4, 4, generator=STREAM)
MASKS = (IMAGES.sum(1) > 0).long()
DEPTHS = IMAGES[:, :1].sin()
SHORT = {"epochs": 8, "batch_size": 8, "progress": "silent"}


def takes_positions(method: str) -> bool:
    return METHODS.get(method).metadata.get("positions") != "no"


NETWORKS = ("network", "extra", "kept")  # groups of tensors that are weights

pytestmark = [
    pytest.mark.parametrize("method", [name for name in METHODS.names() if takes_positions(name)]),
    pytest.mark.filterwarnings("ignore:the linear model has no evidence:UserWarning"),
    pytest.mark.filterwarnings("ignore:chain:UserWarning"),
]


class OverPositions(nn.Module):
    """BatchNorm of the last axis, over all axes before it."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x.flatten(0, -2)).view_as(x)


def by_position(method: str):
    """A network whose linear layers act on the last axis, whatever the axes before it."""
    between = {"noise": lambda: nn.Dropout(0.2), "BatchNorm": lambda: OverPositions(8)}
    make = between.get(needs(method) or "", nn.Identity)
    return lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), make(), nn.Linear(8, 2))


class LastLinear(nn.Module):
    """Convolutions, then a linear layer over channels, as (B, H, W, K)."""

    def __init__(self, outputs: int, needed: str | None) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6) if needed == "BatchNorm" else nn.Identity()
        self.noise = nn.Dropout(0.2) if needed == "noise" else nn.Identity()
        self.last = nn.Linear(6, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.noise(torch.relu(self.norm(self.first(x))).movedim(1, -1)))


class OneBatch:
    """All data as one batch, always in the same order."""

    def __init__(self, *batch: torch.Tensor) -> None:
        self.batch = batch

    def __iter__(self):
        yield self.batch


def fit(method: str, x, y, likelihood, **options) -> pm.Posterior:
    task = pm.Task(train=OneBatch(x, y), likelihood=likelihood, target_scaling=None)
    return pm.fit(
        method, net=by_position(method), task=task, dtype=torch.float64, epochs=8,
        data_order="shared", progress="silent", **options,
    )  # fmt: skip


def assert_same_networks(a: pm.Posterior, b: pm.Posterior) -> None:
    first, second = a.weights.tensors(), b.weights.tensors()
    names = [name for name in first if name.split("/")[0] in NETWORKS]
    assert names
    for name in names:
        torch.testing.assert_close(first[name], second[name], rtol=1e-7, atol=1e-9, msg=name)


def first_loss(post: pm.Posterior) -> tuple:
    return post.history.train_loss[0]


def test_positions_are_rows(method) -> None:
    """With ignored targets: the first loss, all networks, samples and predictions.

    Methods for which an example is more than its observations, by its input gradient, its masks or
    its batch, or by what stands beside it, are held to it with one position per example.
    """
    last = Positions(Categorical(), axes=1, outputs="last")
    positions = fit(method, X, Y, last)
    rows = fit(method, X.flatten(0, 1), Y.flatten(), Positions(Categorical(), axes=0))
    one_each = fit(method, X[:, :1], Y[:, :1], last)
    alone = fit(method, X[:, 0], Y[:, 0], Positions(Categorical(), axes=0))
    torch.testing.assert_close(first_loss(one_each), first_loss(alone), rtol=1e-9, atol=0)
    assert_same_networks(one_each, alone)
    summary = METHODS.get(method).metadata["summary"]
    if needs(method) or "input gradients" in summary or "several inputs" in summary:
        return
    torch.testing.assert_close(first_loss(positions), first_loss(rows), rtol=1e-9, atol=0)
    assert_same_networks(positions, rows)
    if positions.weights.kind == "samples":
        maps, flat = positions.predict(X), rows.predict(X.flatten(0, 1))
        torch.testing.assert_close(maps.mean.flatten(0, 1), flat.mean)
        seen, expected = maps.observations(Y), Y.flatten()[Y.flatten() >= 0]
        torch.testing.assert_close(seen.targets, expected)


def test_positions_of_regressions_are_rows(method) -> None:
    values = VALUES.masked_fill(torch.rand(N, T, 1, generator=STREAM) < 0.2, math.nan)
    base = Gaussian(noise="learned")
    likelihood = Positions(base, axes=1, outputs="last", ignore=math.nan)
    positions = fit(method, X[:, :1], values[:, :1], likelihood)
    rows = fit(method, X[:, 0], values[:, 0], Positions(base, axes=0, ignore=math.nan))
    torch.testing.assert_close(first_loss(positions), first_loss(rows), rtol=1e-9, atol=0)
    assert_same_networks(positions, rows)


@pytest.mark.cpu_seconds(6)
def test_weights_of_one_change_nothing(method) -> None:
    """Targets that come with weights take every way through the data that others take."""
    x, y = X.flatten(0, 1), Y.flatten().clamp(min=0)
    given = {"train": (x, y), "likelihood": Positions(Categorical(), axes=0)}
    posts = [
        pm.fit(method, net=by_position(method), task=task, dtype=torch.float64, **SHORT)
        for task in (pm.Task(**given), pm.Task(**given, weights=torch.ones(len(y))))
    ]
    assert_same_networks(*posts)
    prediction = [post.predict(x).mean for post in posts]
    torch.testing.assert_close(*prediction)


def test_maps(method, tmp_path) -> None:
    """Fit, predict, log-probability, save and load on pictures: classes, and depths with noise."""
    net = lambda: LastLinear(2, needs(method))  # noqa: E731
    for targets, likelihood, size in (
        (MASKS, "categorical", 2),
        (DEPTHS, HeteroscedasticGaussian(), 1),
    ):
        task = pm.Task(train=(IMAGES, targets), likelihood=likelihood)
        post = pm.fit(method, net=net, task=task, **SHORT)
        prediction = post.predict(IMAGES)
        assert prediction.mean.shape == (16, 4, 4, size)
        assert prediction.mutual_information.shape[:3] == (16, 4, 4)
        assert prediction.log_prob(task.train.y).shape == (16, 4, 4)
        assert prediction.joint_log_prob(task.train.y).isfinite().all()
        post.save(tmp_path / str(size))
        loaded = pm.load(tmp_path / str(size), net=net)
        assert torch.equal(loaded.predict(IMAGES).mean, prediction.mean)
