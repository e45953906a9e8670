"""The plan of a run: cells (method × seed), network and options, all checked before it starts."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import Any, NamedTuple

from polymode import nets
from polymode._version import __version__
from polymode.cli.arguments import UsageProblem, parse_seeds, parse_settings
from polymode.cli.defaults import defaults_for
from polymode.core.augment import Augmentation
from polymode.core.data import Arrays
from polymode.core.registry import suggest
from polymode.core.store import json_safe
from polymode.methods import METHODS
from polymode.tasks import TASKS, Task
from polymode.tasks import task as build_task


class Cell(NamedTuple):
    """One fit: a method with its options, and a seed. `key` is the hash of all it depends on."""

    method: str
    options: dict[str, Any]
    seed: int
    key: str


@dataclass(frozen=True)
class Plan:
    """What a run will do."""

    task: Task
    task_name: str
    task_options: dict[str, Any]
    net_name: str
    net_options: dict[str, Any]
    methods: dict[str, dict[str, Any]]
    seeds: list[int]
    settings: list[str]

    @property
    def net(self) -> Any:
        """The builder of the network."""
        builder = getattr(nets, self.net_name)
        return partial(builder, **self.net_options) if self.net_options else builder

    @property
    def net_label(self) -> str:
        options = ", ".join(f"{key}={value}" for key, value in self.net_options.items())
        return f"{self.net_name}({options})" if options else self.net_name

    def data(self) -> dict[str, Any]:
        """Return what tells the data of this run from other data."""
        sets = {"train": self.task.train, "test": self.task.test}
        prints = {k: d.fingerprint() for k, d in sets.items() if isinstance(d, Arrays)}
        return {"task": self.task_name, "options": self.task_options, "fingerprint": prints}

    def cells(self) -> list[Cell]:
        """Return the cells, seed by seed, so that a run cut short still compares all methods."""
        common = {"version": __version__, "data": self.data(), "net": self.net_label}
        cells = []
        for seed in self.seeds:
            for method, options in self.methods.items():
                config = METHODS.get(method).value.config(**options)
                facts = {
                    **common,
                    "method": method,
                    "config": json_safe(asdict(config)),
                    "seed": seed,
                }
                text = json.dumps(facts, sort_keys=True)
                key = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
                cells.append(Cell(method, options, seed, key))
        return cells

    def command(self, out: str) -> str:
        """Return the line that runs this plan."""
        words = ["polymode", "run", "--task", self.task_name, "--net", self.net_name]
        for method in self.methods:
            words += ["--method", method]
        words += ["--seeds", ",".join(map(str, self.seeds))]
        for setting in self.settings:
            words += ["--set", setting]
        return shlex.join([*words, "--out", out])

    def to_dict(self, out: str) -> dict[str, Any]:
        """Return the merged configuration, JSON-safe."""
        return {
            "schema": 1,
            "command": self.command(out),
            "version": __version__,
            "data": self.data(),
            "net": {"name": self.net_name, "options": self.net_options},
            "methods": self.methods,
            "seeds": self.seeds,
        }


def make_plan(
    task: str, methods: Sequence[str], seeds: str, settings: Sequence[str], net: str | None
) -> Plan:
    """Return the plan, or raise `UsageProblem` before anything has run."""
    try:
        return _make_plan(task, methods, seeds, settings, net)
    except ValueError as error:
        raise UsageProblem(str(error)) from error


def _make_plan(
    task: str, methods: Sequence[str], seeds: str, settings: Sequence[str], net: str | None
) -> Plan:
    TASKS.get(task)
    for method in methods:
        METHODS.get(method)
    defaults = defaults_for(task)
    net_name = net or defaults.net
    if net_name not in nets.__all__:
        known = ", ".join(nets.__all__)
        raise UsageProblem(
            f"Unknown net '{net_name}'.{suggest(net_name, nets.__all__)} Known: {known}."
        )
    options: dict[str, dict[str, Any]] = {
        "task": {},
        "net": dict(defaults.net_options) if net_name == defaults.net else {},
        **{name: _having(name, defaults.options) for name in dict.fromkeys(methods)},
    }
    for owner, key, value in parse_settings(settings):
        if owner not in ("", *options):
            raise UsageProblem(
                f"--set {owner}.{key}: '{owner}' is not part of this run."
                f"{suggest(owner, options)} Parts: {', '.join(options)}."
            )
        for name in [owner] if owner else dict.fromkeys(methods):
            options[name][key] = value
    task_options, net_options = options.pop("task"), options.pop("net")
    built = build_task(task, **task_options)
    if isinstance(built.augment, Augmentation):  # the task's own, where the user says nothing
        for name in methods:
            options[name] = _having(name, {"augment": built.augment.to_config()}) | options[name]
    plan = Plan(
        task=built,
        task_name=task,
        task_options=task_options,
        net_name=net_name,
        net_options=net_options,
        methods=options,
        seeds=parse_seeds(seeds),
        settings=list(settings),
    )
    _check(plan)
    return plan


def _having(method: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the defaults that the method has as options."""
    known = {field.name for field in fields(METHODS.get(method).value.config)}
    return {key: value for key, value in options.items() if key in known}


def _check(plan: Plan) -> None:
    """Build every method's options and the network once, so that a typo costs no training."""
    for method, options in plan.methods.items():
        config = METHODS.get(method).value.config
        known = [field.name for field in fields(config)]
        for key in options:
            if key not in known:
                raise UsageProblem(
                    f"Unknown option '{key}' for method '{method}'.{suggest(key, known)}"
                    f" Options: {', '.join(known)}"
                )
        try:
            config(**options)
        except TypeError as error:
            raise UsageProblem(f"options of {method}: {error}") from error
    try:
        plan.net(plan.task.input_shape, plan.task.num_outputs)
    except TypeError as error:
        raise UsageProblem(f"options of net {plan.net_name}: {error}") from error
