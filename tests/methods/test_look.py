"""The look at a posterior: it names planted failures, and is silent about healthy fits."""

from __future__ import annotations

import warnings
from functools import cache

import pytest
import torch
from torch import Tensor, nn

import polymode as pm
from benchmarks import look as cases
from polymode.methods.look import DoubtfulPosterior, DoubtWarning

STREAM = torch.Generator().manual_seed(0)
X = torch.randn(200, 2, generator=STREAM)
LABELS = (X[:, 0] > 0).long()
TASK = pm.Task(train=(X, LABELS), likelihood="categorical")
QUICK = {"epochs": 60, "batch_size": 50, "progress": "silent", "lr": 0.01}


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 10), nn.ReLU(), nn.Linear(10, 2))


def concerns(method: str, task: pm.Task = TASK, net=small, **options) -> list[str]:
    """Return the names of what a fit is warned of, and in its configuration."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        post = pm.fit(method, net=net, task=task, **QUICK | options)
    names = cases.concerns(post)
    said = [str(w.message) for w in caught if issubclass(w.category, DoubtWarning)]
    assert len(said) == bool(names)  # one warning, whatever is found
    assert all(name in said[0] for name in names)
    return names


def deep() -> nn.Module:
    return pm.nets.mlp((2,), 2, hidden=[50] * 6)


def dead() -> nn.Module:
    net = small()
    nn.init.constant_(net[0].bias, -100.0)
    return net


def test_shuffled_labels_are_named_by_held_out_examples() -> None:
    order = torch.randperm(200, generator=STREAM)
    shuffled = pm.Task(train=(X, LABELS[order]), likelihood="categorical")
    assert concerns("deep_ensemble", shuffled) == ["no better than a constant"]


def test_constant_targets_are_named() -> None:
    same = pm.Task(train=(X, 0 * LABELS), likelihood="categorical", target_size=2)
    assert concerns("map", same) == ["constant targets"]
    value = pm.Task(train=(X, torch.full((200, 1), 3.0)), likelihood=pm.likelihoods.Gaussian(0.1))
    assert concerns("map", value, net=lambda: nn.Linear(2, 1)) == ["constant targets"]


def test_dead_members_are_counted() -> None:
    with pytest.warns(DoubtWarning, match="1 of 2 samples give the same output for all inputs"):
        pm.fit("deep_ensemble", net=[small(), dead()], task=TASK, **QUICK)


def test_a_rate_that_is_far_too_large_is_named() -> None:
    assert "constant output" in concerns("deep_ensemble", net=deep, num_modes=4, lr=1.0)


@cache
def trained() -> pm.Posterior:
    return pm.fit("map", net=small, task=TASK, **QUICK)


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("swag", ["a point", "not trained"]),
        ("sghmc", ["a point", "not trained"]),
        ("vi", ["not trained"]),
        ("ivon", ["not trained"]),
        ("map", []),
        ("deep_ensemble", []),
    ],
)
def test_posteriors_without_training_are_called_what_they_are(method, expected) -> None:
    options = {k: v for k, v in QUICK.items() if k != "lr"} | {"epochs": 0}
    post = pm.fit(method, net=trained(), task=TASK, **options)
    assert cases.concerns(post) == expected


def test_one_snapshot_is_a_point_and_dropout_of_given_networks_is_none() -> None:
    assert concerns("ema") == concerns("swa") == []  # they are meant to be points
    assert concerns("snapshot", num_cycles=1, lr=0.1) == ["a point"]
    noisy = nn.Sequential(nn.Linear(2, 10), nn.ReLU(), nn.Dropout(0.3), nn.Linear(10, 2))
    noisy.load_state_dict(
        {k.replace("2.", "3."): v for k, v in trained().members[0].state_dict().items()}
    )
    assert concerns("dropout", net=noisy, epochs=0) == []


def test_samples_far_apart_are_named() -> None:
    near = [trained().members[0] for _ in range(3)]
    far = trained().members[0]
    with torch.no_grad():
        far[2].weight.mul_(-1000)
    with pytest.warns(DoubtWarning, match="samples apart.*sample 3 of 4 errs by .* median one by"):
        pm.fit("deep_ensemble", net=[*near, far], task=TASK, **QUICK | {"epochs": 0})


def test_strict_raises_with_the_same_text() -> None:
    with pytest.raises(
        DoubtfulPosterior, match="epochs=0: the spread is that with which vi starts"
    ):
        pm.fit("vi", net=trained(), task=TASK, epochs=0, strict=True, progress="silent")
    pm.fit("map", net=small, task=TASK, strict=True, **QUICK)


@pytest.mark.cpu_seconds(6)
def test_healthy_fits_raise_nothing() -> None:
    """Some of the 200 of `python -m benchmarks.look`, of which fewer than 2 raise anything."""
    assert cases.false_alarms(4, seed=5) == []


def test_regression_is_judged_in_units_of_its_targets() -> None:
    y: Tensor = 1e6 + 1e4 * X[:, :1]
    likelihood = pm.likelihoods.Gaussian(noise="learned")
    task = pm.Task(train=(X, y), likelihood=likelihood)
    assert concerns("deep_ensemble", task, net=lambda: nn.Linear(2, 1), lr=0.05) == []
    noise = pm.Task(train=(X, y[torch.randperm(200, generator=STREAM)]), likelihood=likelihood)
    found = concerns("deep_ensemble", noise, net=lambda: nn.Linear(2, 1))
    assert found == ["no better than a constant"]
