"""Augmentation by the orbit of a group: full, random, partial; targets; the training loop."""

from __future__ import annotations

import json

import pytest
import torch

import polymode as pm
from polymode.core.rng import generator
from polymode.equivariance import group
from polymode.tasks.augment import Flip, Orbit, augmentation

X = torch.randn(6, 1, 4, 4, generator=generator(0))
Y = torch.arange(6)


def test_full_orbit_has_every_element_of_every_example() -> None:
    x, y = augmentation("orbit:C4").pairs(X, Y, generator(1))
    assert torch.equal(x.unflatten(0, (4, 6)), group("C4").orbit(X))
    assert torch.equal(y, Y.repeat(4))
    assert torch.equal(augmentation("orbit:C4")(X, generator(1)), x)


def test_a_part_of_the_group() -> None:
    x, y = augmentation("orbit:C4:full:0-2").pairs(X, Y, generator(1))
    assert torch.equal(x, torch.cat([X, X.rot90(2, (2, 3))])) and torch.equal(y, Y.repeat(2))
    x, y = Orbit("C4", elements=(3,)).pairs(X, Y, generator(1))
    assert torch.equal(x, X.rot90(3, (2, 3))) and torch.equal(y, Y)


@pytest.mark.parametrize("name", ["C4", "C8", "D4"])
def test_random_elements_are_of_the_orbit_and_uniform(name) -> None:
    """4,000 draws: each element's share within 5 standard errors; false alarm below 1e-5."""
    image, g = X[:1].expand(4000, -1, -1, -1), group(name)
    x, y = augmentation(f"orbit:{name}:random").pairs(image, torch.arange(4000), generator(2))
    assert torch.equal(y, torch.arange(4000))
    near = (x[:, None] - g.orbit(X[0])[None]).abs().amax((2, 3, 4)) < 1e-5
    assert near.any(1).all()
    share, p = near.double().mean(0), 1 / len(g)
    assert ((share - p).abs() < 5 * (p * (1 - p) / 4000) ** 0.5).all()


@pytest.mark.parametrize("elements", [(0, 2), (1, 3), (3,)])
def test_random_elements_of_a_part_are_of_that_part(elements) -> None:
    """Targets move by the same element as their inputs."""
    orbit = Orbit("C4", "random", elements)
    x, _ = orbit.pairs(X[:1].expand(60, -1, -1, -1), torch.arange(60), generator(2))
    near = (x[:, None] - group("C4").orbit(X[0])[None]).abs().amax((2, 3, 4)) < 1e-5
    assert tuple(near.any(0).nonzero().flatten().tolist()) == elements
    pairs = torch.randn(40, 6, generator=generator(3), dtype=torch.float64)
    chosen = tuple(4 * element + 1 for element in elements)
    name = "SO3-octahedral->input"
    moved, targets = Orbit(name, "random", chosen).pairs(pairs, pairs, generator(5))
    torch.testing.assert_close(moved, targets)
    found = group(name)
    whole = torch.stack([found.act(pairs, element) for element in chosen])
    assert ((moved - whole).abs().amax(2) < 1e-9).any(0).all()


def test_targets_move_where_the_group_acts_on_them() -> None:
    x = torch.randn(5, 6, generator=generator(3), dtype=torch.float64)
    y = torch.linalg.cross(x[:, :3], x[:, 3:])
    for how in ("full", "random"):
        orbit = augmentation(f"orbit:SO3-octahedral->input:{how}")
        moved, targets = orbit.pairs(x, y, generator(4))
        assert len(moved) == (24 * 5 if how == "full" else 5) and orbit.moves_targets
        torch.testing.assert_close(torch.linalg.cross(moved[:, :3], moved[:, 3:]), targets)


def test_in_a_sum_and_as_configuration() -> None:
    joined = augmentation("orbit:C4:random:0-1+flip:1.0")
    assert joined.steps == (Orbit("C4", "random", (0, 1)), Flip(1.0)) and not joined.moves_targets
    again = augmentation(json.loads(json.dumps(joined.to_config())))
    assert again == joined
    x, y = augmentation("flip:1.0+orbit:C2").pairs(X, Y, generator(0))
    assert torch.equal(x, torch.cat([X.flip(3), X.flip(2)])) and torch.equal(y, Y.repeat(2))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: augmentation("orbit:c4"), "Did you mean 'C4'"),
        (lambda: augmentation("orbit:C4:rnd"), "'full' or 'random', got 'rnd'"),
        (lambda: augmentation("orbit:C4:full:0-4"), "numbers of 0 ... 3 for C4"),
        (lambda: augmentation("orbit:C4:full:a"), "numbers of 0 ... 3 for C4"),
        (lambda: Orbit("C4")(torch.zeros(2, 1, 4, 6), generator(0)), "needs square ones"),
        (
            lambda: Orbit("C4->input").pairs(X, Y, generator(0)),
            "integer labels have no group action",
        ),
    ],
)
def test_what_cannot_be_is_refused(make, message) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("order", ["shared", "own"])
def test_a_fit_with_the_full_orbit_is_the_fit_on_augmented_data(order) -> None:
    """One full batch: the orbit on the hook gives the networks of data that hold the orbit. The
    prior's weight is per example, and an orbit counts as one."""

    def net():
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3))

    labels = Y % 3
    options = {"net": net, "epochs": 3, "num_modes": 2, "seed": 1, "lr": 0.05, "progress": "silent",
               "optimizer": "sgd", "data_order": order}  # fmt: skip
    given = pm.Task(train=(X, labels), likelihood="categorical", target_size=3)
    whole = pm.Task(
        train=(group("C4").orbit(X).flatten(0, 1), labels.repeat(4)),
        likelihood="categorical", target_size=3,
    )  # fmt: skip
    first = pm.fit("deep_ensemble", task=given, augment="orbit:C4", batch_size=6,
                   prior_precision=0.5, **options)  # fmt: skip
    second = pm.fit("deep_ensemble", task=whole, batch_size=24, prior_precision=2.0, **options)
    for name, values in first.stack.params.items():
        torch.testing.assert_close(values, second.stack.params[name], atol=1e-5, rtol=0)
    assert first.config["augment"] == Orbit("C4").to_config()


def test_scaled_targets_do_not_turn() -> None:
    x = torch.randn(8, 6, generator=generator(5))
    y = torch.linalg.cross(x[:, :3], x[:, 3:])
    options = {"net": pm.nets.mlp, "augment": "orbit:SO3-tetrahedral->input", "epochs": 1,
               "progress": "silent"}  # fmt: skip
    with pytest.raises(ValueError, match="give the task target_scaling=None"):
        pm.fit(
            "map",
            task=pm.Task(train=(x, y), likelihood=pm.likelihoods.Gaussian(noise=1.0)),
            **options,
        )
    plain = pm.Task(
        train=(x, y), likelihood=pm.likelihoods.Gaussian(noise=1.0), target_scaling=None
    )
    assert pm.fit("map", task=plain, **options).num_modes == 1
