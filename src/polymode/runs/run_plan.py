"""The plan of a run: cells (method × seed), network and options, all checked before it starts."""

from __future__ import annotations

import hashlib
import inspect
import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch

from polymode import nets
from polymode._version import __version__
from polymode.core.checks import check_keywords
from polymode.core.registry import suggest
from polymode.core.safe_files import json_safe
from polymode.examinations import Findings, read_asked
from polymode.methods import METHODS
from polymode.methods.fit import check_options, with_augmentation
from polymode.metrics.text_table import align
from polymode.runs.defaults import defaults_for
from polymode.runs.part import Arm, Experiment, Part, Request
from polymode.runs.settings import Setting, UsageProblem, span
from polymode.stack.trainable import check_trainable
from polymode.tasks import TASKS, Task
from polymode.tasks import task as build_task
from polymode.tasks.augment import Augmentation
from polymode.tracing.modules import not_too_large
from polymode.training.data import Arrays

NOISE = 0.1  # dropout of a network that has none, for methods that need it
OF_FIT = ("trainable", "output")  # arguments of `fit` that a command line sets, as fit.NAME
EVERY_CELL = "convergence"  # the examination that is made of all that is trained


class Cell(NamedTuple):
    """One fit: a method with its options, further options of the network, and a seed.

    `key` is the hash of everything it depends on, `setup` of everything except the seed.
    """

    method: str
    options: dict[str, Any]
    seed: int
    key: str
    setup: str
    label: str = ""
    net_options: dict[str, Any] = {}

    @property
    def name(self) -> str:
        return f"{self.label or self.method}, seed {self.seed}"


class Recipe(NamedTuple):
    """What all cells share, by name, so that another process can build it.

    Cells of an experiment call `function`; it has the place of the task, and no network.
    """

    task_name: str
    task_options: dict[str, Any]
    net_name: str
    net_options: dict[str, Any]
    device: str = "cpu"
    validation: bool = False
    examine: tuple[str, ...] = ()
    function: Callable[..., Findings] | None = None

    def task(self) -> Task | None:
        """Build the task; an experiment has none."""
        if self.function is not None:
            return None
        return build_task(self.task_name, **self.task_options)

    def of(self, arm: Cell | Arm) -> Recipe:
        """Return the recipe with the network of one arm."""
        return self._replace(net_options={**self.net_options, **arm.net_options})

    @property
    def net(self) -> Any:
        """The builder of the network."""
        builder = getattr(nets, self.net_name)
        return partial(builder, **self.net_options) if self.net_options else builder

    @property
    def net_label(self) -> str:
        options = ", ".join(f"{key}={value}" for key, value in self.net_options.items())
        return f"{self.net_name}({options})" if options else self.net_name


@dataclass(frozen=True)
class Plan:
    """What a run will do: arms × seeds, one task and network.

    In the part of a study (`study`: its name and the part's) arms have names of their own; else
    they are called as their methods. `examined` are the examinations that were asked for besides
    those of the part.
    """

    recipe: Recipe
    task: Task | None
    arms: dict[str, Arm]
    seeds: tuple[int, ...]
    settings: tuple[Setting, ...]
    preset: str
    study: tuple[str, str] | None = None
    examined: tuple[str, ...] = ()

    @property
    def methods(self) -> dict[str, dict[str, Any]]:
        """Options by the arm's name."""
        return {name: arm.options for name, arm in self.arms.items()}

    @cached_property
    def data(self) -> dict[str, Any]:
        """What tells the data of this run from other data."""
        task = self.task
        sets = {} if task is None else {"train": task.train, "test": task.test}
        prints = {k: d.fingerprint() for k, d in sets.items() if isinstance(d, Arrays)}
        name, options = self.recipe[:2]
        return {"task": name, "options": options, "fingerprint": prints}

    def cells(self) -> list[Cell]:
        """Return the cells, seed by seed, so that a run cut short still compares all methods."""
        common: dict[str, Any] = {"version": __version__, "data": self.data}
        if self.recipe.examine:
            common["examine"] = list(self.recipe.examine)
        cells = []
        for seed in self.seeds:
            for name, arm in self.arms.items():
                config, (method, options, net_options) = arm.options, arm
                if self.recipe.function is None:
                    config = asdict(with_augmentation(_config(method, options)))
                facts = {**common, "net": self.recipe.of(arm).net_label}
                facts |= {"method": method, "config": json_safe(config)}
                if of_fit := {key: options[key] for key in OF_FIT if key in options}:
                    facts["fit"] = of_fit
                key = _hash({**facts, "seed": seed})
                label = name if self.study else ""
                setup = _hash(facts)
                cells.append(Cell(method, options, seed, key, setup, label, net_options))
        return cells

    def command(self, out: str, *extra: str) -> str:
        """Return the line that runs this plan, with nothing but itself needed."""
        if self.study:
            words = ["polymode", "run", self.study[0], "--part", self.study[1]]
        else:
            names = ["--task", self.recipe.task_name, "--net", self.recipe.net_name]
            words = ["polymode", "run", *names]
            for method in self.arms:
                words += ["--method", method]
        words += ["--seeds", span(self.seeds)]
        words += ["--preset", self.preset] if self.preset != "cpu" else []
        for setting in self.settings:
            words += ["--set", str(setting)]
        for examination in self.examined:
            words += ["--examine", examination]
        words += ["--device", self.recipe.device] if self.recipe.device != "cpu" else []
        return shlex.join([*words, *extra, "--out", out])

    def to_dict(self, out: str, *extra: str) -> dict[str, Any]:
        """Return the merged configuration, JSON-safe; `extra` as in `command`."""
        return {
            "command": self.command(out, *extra),
            "version": __version__,
            "data": self.data,
            "net": {"name": self.recipe.net_name, "options": self.recipe.net_options},
            "methods": self.methods,
            "seeds": list(self.seeds),
            "preset": self.preset,
            "device": self.recipe.device,
            "examine": list(self.recipe.examine),
        }

    def describe(self, cell: Cell) -> dict[str, Any]:
        """Return the configuration of one cell, JSON-safe."""
        return {
            "key": cell.key,
            "task": {"name": self.recipe.task_name, **self.recipe.task_options},
            "net": self.recipe.of(cell).net_label,
            "method": cell.method,
            "options": cell.options,
            "seed": cell.seed,
        }

    def text(self) -> str:
        """Return the plan for people: what is learnt, and each method with its options."""
        shared = {"preset": self.preset, "device": self.recipe.device}
        details = "".join(f", {k} {v}" for k, v in shared.items() if v != "cpu")
        details += "".join(f", examined: {examination}" for examination in self.recipe.examine)
        rows = [[f"  {name}", ", ".join(_listed(arm))] for name, arm in self.arms.items()]
        width = max(len(options) for _, options in rows)
        options = [[method, listed.ljust(width)] for method, listed in rows]
        seeds = f"seed{'s' if len(self.seeds) > 1 else ''} {span(self.seeds)}"
        net = f" with {self.recipe.net_label}" if self.recipe.net_label else ""
        head = f"{self.recipe.task_name}{net}, {seeds}{details}"
        return "\n".join([head, align(options[0], options[1:])])


def _listed(arm: Arm) -> list[str]:
    """Return the options of an arm for people."""
    options = [f"{key}={json_safe(value)}" for key, value in arm.options.items()]
    return options + [f"net.{key}={json_safe(value)}" for key, value in arm.net_options.items()]


def _hash(facts: dict[str, Any]) -> str:
    text = json.dumps(facts, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def make_plan(request: Request, device: str = "cpu") -> Plan:
    """Return the plan, or raise `UsageProblem` before anything has run."""
    try:
        return _make_plan(request, device)
    except ValueError as error:
        raise UsageProblem(str(error)) from error


def _make_plan(request: Request, device: str) -> Plan:
    task, methods = request.task, request.methods
    TASKS.get(task)
    for method in methods:
        METHODS.get(method)
    device = check_device(device)
    defaults = defaults_for(task, request.preset)
    net = request.net or defaults.net
    if net not in nets.__all__:
        names = ", ".join(nets.__all__)
        raise UsageProblem(f"Unknown net '{net}'.{suggest(net, nets.__all__)} Known: {names}.")
    part = Part(
        task=task,
        task_options=dict(defaults.task_options),
        net=net,
        net_options=dict(defaults.net_options) if net == defaults.net else {},
        arms={
            name: Arm(name, _having(name, defaults.options), _noise_for(name, net))
            for name in methods
        },
        seeds=request.seeds,
    )
    return _plan_of(part, request.settings, request.preset, device, examine=request.examine)


def plan_part(
    part: Part,
    study: tuple[str, str],
    preset: str,
    *,
    settings: Sequence[Setting] = (),
    device: str = "cpu",
    examine: Sequence[str] = (),
) -> Plan:
    """Return the plan of one part of a study; `study` has the names of both."""
    try:
        return _plan_of(part, tuple(settings), preset, check_device(device), study, examine)
    except ValueError as error:
        raise UsageProblem(str(error)) from error


def plan_experiment(
    experiment: Experiment,
    study: tuple[str, str],
    preset: str,
    *,
    settings: Sequence[Setting] = (),
    device: str = "cpu",
) -> Plan:
    """Return the plan of an experiment, which is one part of a study."""
    arms = {name: Arm(study[1], dict(options)) for name, options in experiment.arms.items()}
    _apply(settings, {}, arms)
    try:
        for _, options, _ in arms.values():
            check_keywords(experiment.function, f"experiment '{study[1]}'", options)
    except ValueError as error:
        raise UsageProblem(str(error)) from error
    recipe = Recipe(study[1], {}, "", {}, check_device(device), function=experiment.function)
    return Plan(recipe, None, arms, experiment.seeds, tuple(settings), preset, study)


def _plan_of(
    part: Part,
    settings: tuple[Setting, ...],
    preset: str,
    device: str,
    study: tuple[str, str] | None = None,
    examine: Sequence[str] = (),
) -> Plan:
    """Return the plan of arms with their options, those of the settings over their own."""
    task_options, net_options = dict(part.task_options), dict(part.net_options)
    arms = {
        name: Arm(arm.method, dict(arm.options), dict(arm.net_options))
        for name, arm in part.arms.items()
    }
    of_nets = [net_options, *(arm.net_options for arm in arms.values() if arm.net_options)]
    of_fit = [arm.options for arm in arms.values()]
    _apply(settings, {"task": [task_options], "net": of_nets, "fit": of_fit}, arms)
    _check_fit(settings)
    named = dict.fromkeys(str(read_asked(text)) for text in (*part.examine, *examine))
    examinations = tuple(text for text in named if text != EVERY_CELL)
    recipe = Recipe(
        part.task, task_options, part.net, net_options, device, part.validation, examinations
    )
    built = _build(recipe)
    if isinstance(built.augment, Augmentation):  # the task's own, where nobody says anything
        usual = {"augment": built.augment.to_config()}
        arms = {
            name: arm._replace(options=_having(arm.method, usual) | arm.options)
            for name, arm in arms.items()
        }
    plan = Plan(recipe, built, arms, part.seeds, settings, preset, study, tuple(examine))
    _check(plan, built)
    return plan


def _apply(
    settings: Sequence[Setting],
    shared: dict[str, list[dict[str, Any]]],
    arms: dict[str, Arm],
) -> None:
    """Enter the settings into the options of their owners: task, net, an arm, a method, or all."""
    owners = {**shared, "": []}
    for name, (method, options, _) in arms.items():
        owners[""].append(options)
        for owner in dict.fromkeys((name, method)):
            owners.setdefault(owner, []).append(options)
    for owner, key, value in settings:
        if owner not in owners:
            names = [name for name in owners if name]
            raise UsageProblem(
                f"--set {owner}.{key}: '{owner}' is not part of this run."
                f"{suggest(owner, names)} Parts: {', '.join(names)}."
            )
        for options in owners[owner]:
            options[key] = value


def _build(recipe: Recipe) -> Task:
    try:
        return build_task(recipe.task_name, **recipe.task_options)
    except TypeError as error:  # an option of a type that its builder did not think of
        raise UsageProblem(f"options of task {recipe.task_name}: {error}") from error


def _having(method: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the defaults that the method has as options; rates and schedules are Adam's, so they
    are left out where a method has an optimiser or sampler of its own."""
    config = METHODS.get(method).value.config
    names = {field.name for field in fields(config)}
    if getattr(config, "optimizer", None) != "adam":
        names -= {"lr", "schedule"}
    return {key: value for key, value in options.items() if key in names}


def _noise_for(method: str, net: str) -> dict[str, Any]:
    """Return the options that let a network draw noise, for methods that need it."""
    takes = "dropout" in inspect.signature(getattr(nets, net)).parameters
    needs = METHODS.get(method).metadata.get("needs") == "noise"
    return {"dropout": NOISE} if takes and needs else {}


def _check(plan: Plan, task: Task) -> None:
    """Build every method's options and the network once, so that a typo costs no training."""
    for method, options, _ in plan.arms.values():
        check_options(method, [name for name in options if name not in OF_FIT])
        try:
            with_augmentation(_config(method, options))
        except TypeError as error:
            raise UsageProblem(f"options of {method}: {error}") from error
    for arm in plan.arms.values():
        _check_net(plan.recipe.of(arm), task)


def _config(method: str, options: Mapping[str, Any]) -> Any:
    """Return the options object of a method, without arguments of `fit`."""
    own = {name: value for name, value in options.items() if name not in OF_FIT}
    return METHODS.get(method).value.config(**own)


def _check_fit(settings: Sequence[Setting]) -> None:
    """Refuse arguments of `fit` that a command line does not set, and wrong values of others."""
    for owner, key, value in settings:
        if owner == "fit" and key not in OF_FIT:
            raise UsageProblem(
                f"--set fit.{key}: there is no such argument.{suggest(key, OF_FIT)}"
                f" Arguments: {', '.join(OF_FIT)}"
            )
        if owner == "fit" and key == "trainable":
            check_trainable(value)


def _check_net(recipe: Recipe, task: Task) -> None:
    name, options = recipe.net_name, recipe.net_options
    parameters = inspect.signature(getattr(nets, name)).parameters
    names = [key for key in parameters if key not in ("input_shape", "num_outputs")]
    passed_on = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for key in options:
        if key not in names and not passed_on:
            raise UsageProblem(
                f"Unknown option '{key}' for net '{name}'.{suggest(key, names)}"
                f" Options: {', '.join(names)}"
            )
    try:
        with not_too_large():
            recipe.net(task.input_shape, task.num_outputs)
    except TypeError as error:
        raise UsageProblem(f"options of net {name}: {error}") from error


def check_device(text: str) -> str:
    """Return the device as torch takes it, or say why it cannot be had here."""
    match = re.fullmatch(r"(cpu|cuda|mps)(?::(\d+))?", text.strip().lower())
    if match is None:
        near = suggest(text, ("cpu", "cuda", "cuda:0", "mps"))
        raise UsageProblem(f"--device takes cpu, cuda, cuda:0 or mps, got '{text}'.{near}")
    kind, number = match[1], match[2]
    if kind == "cuda":
        if not torch.cuda.is_available():
            raise UsageProblem(
                f"--device {text}: torch sees no CUDA GPU here; use --device cpu, or install a"
                " CUDA build of torch"
            )
        count = torch.cuda.device_count()
        if number is not None and int(number) >= count:
            raise UsageProblem(f"--device {text}: there is cuda:0 to cuda:{count - 1} here")
        return kind if number is None else f"{kind}:{int(number)}"
    if kind == "mps" and not torch.backends.mps.is_available():
        raise UsageProblem(f"--device {text}: torch has no MPS device here; use --device cpu")
    return kind
