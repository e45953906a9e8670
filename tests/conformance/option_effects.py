"""Which options of a method change nothing."""

from __future__ import annotations

import dataclasses
import re
import typing
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

import polymode as pm
from polymode.methods import METHODS
from polymode.training.options import Passes

from .small_fits import LABELS, X, net_for

BASE = {"epochs": 2, "batch_size": 8, "num_modes": 3, "lr": 0.02}


PARTNERS: dict[str, dict[str, Any]] = {
    "momentum": {"optimizer": "sgd"},
    "schedule_unit": {"schedule": partial(torch.optim.lr_scheduler.StepLR, step_size=1, gamma=0.5)},
    "alpha": {"lengthscales": "pca"},
    "num_components": {"lengthscales": "pca"},
    "directions": {"lengthscales": "pca", "num_components": 2},
    "ungrouped": {"gamma": 2},
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
    "holdout": {"num_cycles": 1},
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
        quiet = [
            group
            for group in others(config, name, present)
            if not is_alive(method, options, name, group, usual)
        ]
        if present is None and quiet and isinstance(quiet[0][0], str):
            quiet = quiet[1:]  # None stands for one of the names
        dead += [f"{name}={group} beside {options}" for group in quiet]
    return dead
