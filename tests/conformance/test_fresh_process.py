"""What any method saved is loaded by a process that has imported nothing but polymode."""

from __future__ import annotations

import importlib
import json
import pkgutil
import subprocess
import sys

import pytest
import torch
from torch import nn

import polymode
import polymode as pm
from polymode.likelihoods.kinds import Gaussian
from polymode.methods import METHODS
from polymode.posterior.weights import Weights, kind_named, kind_names

X = torch.randn(24, 4, generator=torch.Generator().manual_seed(0))
CLASSES = pm.Task(train=(X, (X[:, 0] > 0).long()), likelihood="categorical")
VALUES = pm.Task(train=(X, X[:, :2].sin()), likelihood=Gaussian(noise="learned"))
FIXED = {"prior_precision": 1.0}
CASES = {
    **{name: (name, {}) for name in METHODS.names()},
    "laplace, diag": ("laplace", {"structure": "diag", **FIXED}),
    "laplace, full": ("laplace", {"structure": "full", "task": VALUES, **FIXED}),
    "laplace, last_layer": ("laplace", {"structure": "last_layer", **FIXED}),
    "laplace, low_rank": ("laplace", {"structure": "low_rank", "rank": 3, **FIXED}),
    "laplace, subnetwork": (
        "laplace",
        {"structure": "subnetwork", "subnetwork": [3, 4, 50], "task": VALUES, **FIXED},
    ),
    "laplace, sampled": ("laplace", {"predictive": "sampled", "samples_per_mode": 3, **FIXED}),
    "laplace, probit": ("laplace", {"link": "probit", **FIXED}),
    "laplace, variances alone": ("laplace", {"output_covariance": "diagonal", **FIXED}),
    "concrete_dropout, soft masks": ("concrete_dropout", {"relaxation": 0.6}),
    "laplace, two files": ("laplace", {"modes_per_file": 1, **FIXED}),
    "concrete_dropout, two files": ("concrete_dropout", {"modes_per_file": 1}),
    "sghmc, two files, values": ("sghmc", {"modes_per_file": 1, "task": VALUES}),
}


def net() -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 2)
    )


CHILD = """
import json, sys
import polymode as pm

import torch
from torch import nn

def net():
    return nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 2)
    )

torch.set_num_threads(1)
x = torch.tensor(json.loads(sys.argv[2]))
for name in sys.argv[3:]:
    try:
        post = pm.load(f"{sys.argv[1]}/{name}", net=net)
        prediction = post.predict(x, seed=3)
        print(json.dumps([prediction.mean.tolist(), prediction.variance.tolist()]))
    except Exception as error:
        print(json.dumps(f"{type(error).__name__}: {error}"))

from pathlib import Path
from polymode.posterior.hub import card
print(json.dumps(card(post, Path(sys.argv[1]) / name)))
"""


@pytest.fixture(scope="module")
def predictions(tmp_path_factory) -> dict[str, tuple[object, object]]:
    """What a posterior of each case predicts here, and in a new process that has loaded it."""
    folder, here = tmp_path_factory.mktemp("saved"), {}
    for name, (method, options) in CASES.items():
        own = {"task": CLASSES, "modes_per_file": None, **options}
        per_file = own.pop("modes_per_file")
        post = pm.fit(
            method, net=net, num_modes=2, epochs=3, batch_size=12, progress="silent", **own
        )
        post.save(folder / name, modes_per_file=per_file)
        if per_file is not None:  # modes of several files are evaluated apart from each other
            post = pm.load(folder / name, net=net)
        prediction = post.predict(X, seed=3)
        here[name] = [prediction.mean.tolist(), prediction.variance.tolist()]
    command = [sys.executable, "-c", CHILD, str(folder), json.dumps(X.tolist()), *CASES]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    *there, card = [json.loads(line) for line in run.stdout.splitlines()]
    found = {name: (here[name], answer) for name, answer in zip(CASES, there, strict=True)}
    return found | {"card": ("", card)}


@pytest.mark.parametrize("name", CASES)
def test_a_saved_posterior_predicts_the_same_in_a_new_process(name, predictions) -> None:
    """To the last bit; nothing of the method was imported there."""
    here, there = predictions[name]
    assert there == here


def test_the_card_of_a_loaded_posterior_says_what_its_method_is(predictions) -> None:
    """Also where no method was used: the posterior was loaded to be published."""
    _, card = predictions["card"]
    assert "| method | `sghmc`: " in card
    assert "## Limits" in card and "## Reference" in card


def test_every_kind_of_weights_that_can_be_saved_is_known_by_its_name() -> None:
    """All subclasses of `Weights` in the package, but those that are saved as others."""
    for module in pkgutil.walk_packages(polymode.__path__, "polymode."):
        if ".methods." in module.name or ".posterior." in module.name:
            importlib.import_module(module.name)
    kinds, waiting = {}, [Weights]
    while waiting:
        below = waiting.pop().__subclasses__()
        waiting += below
        kinds |= {kind.kind: kind for kind in below if kind.__module__.startswith("polymode.")}
    plain = {name: kind for name, kind in kinds.items() if "/" not in name}
    assert plain.keys() - {"shards", "ranked"} == set(kind_names())
    for name in set(kind_names()) - {"on_trunk"}:
        assert kind_named(name) is kinds[name]
        assert "layout" in vars(kinds[name]), f"{name} does not say what its files hold"
        on_trunk = kind_named(f"on_trunk/{name}")
        assert on_trunk is not None and on_trunk.inner_kind is kinds[name]
    assert kind_named("on_trunk") is None  # that is half a name
