"""No dead flags: every option of every registered method changes something, or says why it cannot.

Other values come from an option's type, its default and what its refusal lists; with them a short
fit has other weights, another prediction or another history than without, or a refusal or a warning
names the option. `PARTNERS` are options without which another rests. Refused values do not count
where another is taken.
"""

from __future__ import annotations

import dataclasses
import re
import typing
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch

import polymode as pm
from polymode.likelihoods.kinds import Gaussian
from polymode.methods import METHODS, Problem
from polymode.posterior import Weights
from polymode.stack.stack import Stack
from polymode.training.data import Arrays
from polymode.training.loop import Batch
from polymode.training.options import Passes

from .test_methods import LABELS, X, net_for

BASE = {"epochs": 2, "batch_size": 8, "num_modes": 3, "lr": 0.02}
PARTNERS: dict[str, dict[str, Any]] = {
    "momentum": {"optimizer": "sgd"},
    "schedule_unit": {"schedule": partial(torch.optim.lr_scheduler.StepLR, step_size=1, gamma=0.5)},
    "alpha": {"lengthscales": "pca"},
    "num_components": {"lengthscales": "pca"},
    "directions": {"lengthscales": "pca", "num_components": 2},
    "points_noise": {"points": "perturbed"},
    "mc_samples": {"fisher": "mc"},
    "rank": {"structure": "low_rank"},
    "subnetwork": {"structure": "subnetwork", "subnetwork": "obd", "subnetwork_size": 9},
    "subnetwork_size": {"structure": "subnetwork", "subnetwork": "obd", "subnetwork_size": 9},
    "prior": {"evidence": "trained"},
    "unit": {"at": (1, 2)},
}
BASES: dict[str, dict[str, Any]] = {
    # without a given precision, every fit searches for the evidence's maximum, mode by mode
    "laplace": {"prior_precision": 2.0, "num_modes": 1},
}
ROOM: dict[str, dict[str, Any]] = {
    # six steps are too few for several cycles
    "schedule": {"num_cycles": 1},
    "exploration": {"num_cycles": 1},
    "samples_per_cycle": {"num_cycles": 1, "exploration": 0.1},
}


SAME = {"adamw"}  # without weight decay it is adam, under the name that people look for


def jitter(x: torch.Tensor, stream: torch.Generator) -> torch.Tensor:
    return x + 0.1 * torch.rand(x.shape, generator=stream, dtype=x.dtype)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "augment": jitter,
    "optimizer": partial(torch.optim.SGD, lr=0.1),
    "schedule": partial(torch.optim.lr_scheduler.StepLR, step_size=1, gamma=0.5),
}


def names_of(config: type[Passes], field: str) -> list[str]:
    """Return the names that the refusal of a nonsensical one lists."""
    try:
        config(**{field: "?"})
    except ValueError as error:
        listed = re.search(r"must be one of ([\w, ]+), got", str(error))
        return listed[1].split(", ") if listed else re.findall(r"'(\w+)'", str(error))
    except TypeError:
        pass
    return []


def others(config: type[Passes], field: str, value: Any) -> Iterator[list[Any]]:
    """Yield groups of values other than `value`, of each of which one has to change something.

    Every name and function is a group of its own; numbers are one.
    """
    hint = str(typing.get_type_hints(config)[field])
    if "str" in hint and "Sequence" not in hint:
        yield from (
            [name] for name in names_of(config, field) if name != value and name not in SAME
        )
    if field in FUNCTIONS:
        yield [FUNCTIONS[field]]
    if "bool" in hint:
        yield [not value]
    if isinstance(value, tuple):
        yield [value[:1]]
    numbers: list[Any] = []
    if "int" in hint:
        numbers = [0, 1, 2, 3] + ([value + 1] if isinstance(value, int) else [])
    elif "float" in hint:
        numbers = [0.5, 0.01] + ([value / 2] if isinstance(value, float) else [])
    if numbers := [number for number in numbers if number != value]:
        yield numbers


class Outcome(typing.NamedTuple):
    tensors: dict[str, torch.Tensor]
    history: str

    def same(self, other: Outcome) -> bool:
        mine, theirs = self.tensors, other.tensors
        return (
            self.history == other.history
            and mine.keys() == theirs.keys()
            and all(torch.equal(mine[name], theirs[name]) for name in mine)
        )


def outcome(method: str, options: dict[str, Any]) -> tuple[Outcome | None, str]:
    """Return what a short fit gives, None where it is refused, and all that was said."""
    task = pm.Task(train=(X[:24], LABELS[:24]), likelihood="categorical")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            post = pm.fit(method, net=net_for(method), task=task, progress="silent",
                          execution="batched", **options)  # fmt: skip
        except ValueError as error:
            return None, str(error)
    tensors = {**post.weights.tensors(), "predicted": post.predict(X[:5]).log_probs}
    history = repr(post.history._replace(seconds=0.0))
    return Outcome(tensors, history), " ".join(str(each.message) for each in told)


def is_alive(
    method: str, options: dict[str, Any], name: str, group: list[Any], usual: Outcome
) -> bool:
    """Whether a value that is taken changes something or is warned of; where none is taken, whether
    the refusals name the option or the value."""
    refusals = []
    for value in group:
        result, message = outcome(method, {**options, name: value})
        if result is None:
            refusals.append((value, message))
        elif not result.same(usual) or name in message:
            return True
    return len(refusals) == len(group) and all(
        re.search(rf"\b({name}|{re.escape(str(value))})\b", message) for value, message in refusals
    )


def dead_options(method: str) -> list[str]:
    """Return the options, as `name=value`, that change nothing and are not spoken of."""
    config = METHODS.get(method).value.config
    fields = {field.name: field for field in dataclasses.fields(config)}
    base = {name: value for name, value in BASE.items() if name in fields}
    base |= BASES.get(method, {})
    room = {name: more for name, more in ROOM.items() if more.keys() <= fields.keys()}
    settings = [(name, {**base, **room.get(name, {})}) for name in fields]
    settings += [
        (name, {**base, **partner})
        for name, partner in PARTNERS.items()
        if name in fields and partner.keys() <= fields.keys()
    ]
    dead = []
    usual_outcomes: dict[str, Outcome] = {}
    for name, options in settings:
        usual = usual_outcomes.get(repr(options))
        if usual is None:
            usual, message = outcome(method, options)
            assert usual is not None, message
            again, _ = outcome(method, options)
            assert again is not None and again.same(usual)
            usual_outcomes[repr(options)] = usual
        present = options.get(name, fields[name].default)
        for group in others(config, name, present):
            if not is_alive(method, options, name, group, usual):
                dead.append(f"{name}={group} beside {options}")
    return dead


@pytest.mark.parametrize("method", METHODS.names())
def test_every_option_changes_something(method) -> None:
    assert not dead_options(method)


# ------------------------------------------------- options away from their defaults, several modes

VALUES = torch.stack([X[:24, 0].sin(), 10 * X[:24, 1] + 3], 1)
TEMPERED = {"temperature": 0.25, "burn_in": 4, "preconditioner": "rmsprop"}
TOGETHER: dict[str, tuple[str, dict[str, Any]]] = {
    "map": ("map", {"clip_norm": 0.3, "schedule": "cosine", "prior_precision": 3.0}),
    "swag": ("swag", {"clip_norm": 0.3, "rank": 2, "samples_per_mode": 2}),
    "snapshot": ("snapshot", {"num_cycles": 2, "clip_norm": 0.3}),
    "sgld": ("sgld", TEMPERED),
    "sghmc": ("sghmc", TEMPERED),
    "sgnht": ("sgnht", TEMPERED),
    "cyclical": (
        "cyclical_sgmcmc", {"temperature": 0.25, "num_cycles": 2, "preconditioner": "rmsprop"}
    ),
    "hmc": ("hmc", {"temperature": 0.25, "burn_in": 14, "leapfrog_steps": 2}),
    "mile": ("mile", {"temperature": 0.25, "clip_norm": 0.3}),
    "vi, mixture": (
        "vi",
        {"estimator": "weights", "mixture": (0.4, 0.1), "kl_weight": 0.3, "temperature": 0.25},
    ),
    "vi, alpha": ("vi", {"alpha": 0.5, "num_passes": 3, "clip_norm": 0.3}),
    "ivon": ("ivon", {"num_passes": 2, "accumulate": 2, "temperature": 0.25}),
    "dropout": ("dropout", {"alpha": 0.5, "num_passes": 3}),
    "concrete dropout": ("concrete_dropout", {"alpha": 0.5, "num_passes": 3, "relaxation": 0.3}),
    "laplace, drawn": ("laplace", {"fisher": "mc", "mc_samples": 2, "prior": "per_layer"}),
    "laplace, sampled": ("laplace", {"predictive": "sampled", "prior_precision": 2.0}),
}  # fmt: skip
WHOLE = ("hmc", "mile", "laplace")  # they take all data in every step


def unequal_networks(method: str) -> Stack:
    """Three members whose weights, and so their gradients, are of different sizes."""
    stack = Stack(net_for(method), 3, seed=1, execution="batched", dtype=torch.float64)
    for tensor in stack.params.values():
        tensor.data *= torch.tensor([1.0, 3.0, 0.3]).view(3, *(1,) * (tensor.dim() - 1))
    return stack


def finished(method: str, options: dict[str, Any], stack: Stack, batches: torch.Tensor) -> Weights:
    """Return the weights after 20 steps; `batches` are rows of the data, (20, M, 8)."""
    core: Any = METHODS.get(method).value
    config = core.config(epochs=20, batch_size=24, **options)
    data = Arrays(X[:24].double(), VALUES.double())
    problem = Problem(Gaussian(noise="learned_per_output"), 24, 2, 1, data=data, seed=3)
    state = core.init(config, problem, stack)
    state.stack.train()
    for rows in () if core.post_hoc else batches:
        own = method not in WHOLE
        x, y = (data.x[rows], data.y[rows]) if own else (data.x, data.y)
        state, _ = core.step(config, problem, state, Batch(x, y, own))
    return core.finish(config, problem, state)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", TOGETHER)
def test_a_mode_among_others_is_what_it_is_alone(name) -> None:
    """Each with data, weights, noise and draws of its own."""
    method, options = TOGETHER[name]
    batches = torch.randint(24, (20, 3, 8), generator=torch.Generator().manual_seed(2))
    together = finished(method, options, unequal_networks(method), batches)
    for k in range(3):
        alone = finished(method, options, unequal_networks(method)[[k]], batches[:, k : k + 1])
        part = together[k : k + 1]
        for key, tensor in alone.tensors().items():
            torch.testing.assert_close(part.tensors()[key], tensor, rtol=1e-5, atol=1e-7)
        if alone.kind != "noisy":
            pair = (each.draw(0, 7).tensors() for each in (part, alone))
            torch.testing.assert_close(*pair, rtol=1e-5, atol=1e-7)
