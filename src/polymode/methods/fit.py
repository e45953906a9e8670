"""`fit`: from a method, a network and a task to a posterior. No mathematics lives here.

Where the options leave something to choose (`Search`), every candidate is trained from the same
seed, in a checkpoint folder of its own, and the one with the lowest score is the posterior.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from polymode._version import __version__
from polymode.core.checks import Count, Seed, check_call
from polymode.core.devices import usable_device
from polymode.core.registry import suggest
from polymode.core.rng import global_stream
from polymode.core.safe_files import json_safe
from polymode.core.warn import warn
from polymode.distributed import ranks
from polymode.likelihoods.kinds import Likelihood
from polymode.likelihoods.positions import Positions
from polymode.likelihoods.scaling import Scaling
from polymode.methods.fit_warnings import (
    check_departure,
    require_trainable,
    warn_of_divergence,
    warn_of_idle_options,
    warn_of_little_effect,
    warn_of_one_order,
)
from polymode.methods.head_evidence import with_prior, work_of_choice
from polymode.methods.look import look_at, tell
from polymode.methods.method import METHODS, Method, Problem, Search
from polymode.methods.work import tell_work
from polymode.nets.conversion.conversion import but_common, common_names, convert_networks
from polymode.nets.standardised import standardised
from polymode.nets.user_network import check_network, choice_of, networks_for
from polymode.posterior import Posterior
from polymode.posterior.on_trunk import behind
from polymode.posterior.ranked import on_all_ranks
from polymode.stack.common import train_in_common
from polymode.stack.sharing import is_shared
from polymode.stack.stack import Stack
from polymode.stack.trainable import check_trainable
from polymode.stack.trunk import FEATURE_ROWS, Trunk, features_of, trunk_of
from polymode.tasks.augment import Augmentation, augmentation
from polymode.tasks.named import as_task
from polymode.tasks.row_scales import scales_text
from polymode.tasks.task import Task
from polymode.tracing.calling import calling_for
from polymode.tracing.code import network_mark
from polymode.training.data import Arrays, Data, Loader
from polymode.training.events import Event, Observer, Reporter, Told, progress_observer
from polymode.training.history import Recorder, joined_histories, validation_for
from polymode.training.holdout import Division, Selection, divide
from polymode.training.loop import Checkpoint, run
from polymode.training.options import Passes

ELSEWHERE = {
    "learning_rate": "lr",
    **dict.fromkeys(("weight_decay", "wd", "l2"), "prior_precision"),
    **dict.fromkeys(("num_epochs", "n_epochs"), "epochs"),
    **dict.fromkeys(("n_members", "num_members", "ensemble_size", "n_models"), "num_modes"),
    **dict.fromkeys(("n_estimators", "num_estimators", "num_models"), "num_modes"),
    **dict.fromkeys(("n_samples", "num_samples"), "samples_per_mode"),
    **dict.fromkeys(("hessian_structure", "subset_of_weights"), "structure"),
}
"""Names that other libraries have for options, and ours."""


def fit(
    method: str | Passes,
    *,
    net: Any,
    task: Task | str,
    seed: Seed = 0,
    execution: str = "auto",
    chunk_size: Count | None = None,
    dtype: torch.dtype | None = None,
    device: str | torch.device = "cpu",
    output: str | int | None = None,
    trainable: str | None = None,
    progress: str = "auto",
    on_event: Observer | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_seconds: float = 30.0,
    strict: bool = False,
    **options: Any,
) -> Posterior:
    """Fit an approximate posterior and return it.

    Args:
        method: a name (`polymode.list_methods()`), with its options as further arguments, or an
            options object such as `pm.methods.DeepEnsemble(num_modes=10, epochs=20)`.
        net: a builder from `pm.nets` or its name, a function without arguments that returns a new
            `nn.Module`, a module that is already trained (one mode; copied, never changed), a list
            of modules (one per mode), or a posterior (its networks, one per mode). With networks
            that are given, training continues from their weights, and `epochs=0` takes them as they
            are; methods that work on trained networks (laplace) do not train them. Snapshots of one
            run are for `pm.methods.swag.from_snapshots`.
        task: what to learn, `pm.task("digits")` or `pm.Task(train=..., likelihood=...)`; a name
            stands for `pm.task(name)`.
        seed: seed of everything random; the same seed gives the same posterior.
        execution: how members are evaluated, see `stack/execution.py`.
        chunk_size: members whose computation is held in memory at a time; less memory, more time.
            By default as many as half of the free memory holds.
        dtype: floating-point type of the networks; by default the one they come with.
        device: "cpu", "cuda", ...
        output: name or place of the logits in what the network returns, where that is a dictionary,
            a tuple or a dataclass; by default what is called "logits".
        trainable: which parameters have a posterior; the others are frozen, and held once where
            all members have the same. None: those that require gradients. "all"; "head", the layer
            whose result is the output; "lora", adapters of peft and what it trains beside them; or
            a regular expression that is searched in the parameters' names.
        progress: "auto" (a bar on a terminal, otherwise a line for every tenth), "bar", "lines" or
            "silent".
        on_event: a function that is called with each `Event` (step, total, loss, eta, ...).
        checkpoint: folder in which the run is kept; the same call continues from there. If
            options are chosen by a search, every candidate has its own folder in it.
        checkpoint_seconds: time between checkpoints.
        strict: raise where the look at the finished posterior (`methods/look.py`) finds it
            doubtful, in place of a warning: predictions that are not finite or no better than a
            constant, samples far apart, no spread.

    Returns:
        The posterior, a source of networks that predicts, saves and loads.

    >>> import polymode as pm
    >>> task = pm.task("two_moons")
    >>> post = pm.fit("map", net=pm.nets.mlp, task=task, epochs=1, progress="silent")
    >>> post.predict(task.test.x[:3]).mean.shape
    torch.Size([3, 2])
    """
    check_call(fit, locals(), but=("task", "trainable"))
    check_trainable(trainable)
    name, core, config = _resolve(method, options)
    task = as_task(task, "fit")
    ranks.start()
    with ranks.in_step():
        device = usable_device(device)
        if task.train is None:
            raise ValueError("the task has no training data: give pm.Task(train=...)")
        ranks.same("methods, options or seeds", (name, json_safe(dataclasses.asdict(config)), seed))
    observers = tuple(o for o in (progress_observer(progress), on_event) if o is not None)
    observers = observers if ranks.is_first() else ()
    folder = None if checkpoint is None else Path(checkpoint)
    search = core.search(config, task) if core.search is not None else None

    if output is None and isinstance(net, Posterior) and net.weights.like.calling is not None:
        output = net.weights.like.calling.output

    def train(options: Passes, observers: tuple[Observer, ...], folder: Path | None) -> Posterior:
        networks, number, trained = _networks(net, task, options)
        choice = choice_of(trainable, task.train, options.batch_size, output)
        if core.convert is not None:
            conversion = partial(core.convert, options, number)
            networks = convert_networks(networks, conversion, task.train, choice, output, seed=seed)
            choice = but_common(choice)
        if task.inner_scaling is not None and not trained:
            networks = standardised(networks, task.inner_scaling)
            warn(scales_text(task.inner_scaling))
        share = ranks.share_of(number)
        stack = Stack(
            networks, number, seed=seed, modes=share.modes, execution=execution,
            chunk_size=chunk_size, dtype=dtype, device=device,
            trainable=choice,
        )  # fmt: skip
        together = [n for n in common_names(stack.template) if n in stack.frozen]
        if together:
            ranks.require_one(f"{name} trains weights that its members share")
            train_in_common(stack, together)
        stack.call_by(calling_for(stack.template, task.input_shape, output))
        warn_of_little_effect(options, trained, task)
        if number > 1 and not (trained and core.post_hoc):
            warn_of_one_order(options, task)
        units = _units(net, task, trained)
        _check_targets(config.augment, units)
        check_departure(name, config, units.likelihood)
        plan = _Plan(
            name, core, options, task, units, seed, trained and core.post_hoc, observers, folder,
            checkpoint_seconds, trainable,
        )  # fmt: skip
        with ranks.sharing(share):
            post, steps, held_out = _train(plan, stack)
        concerns = look_at(post, task.train, steps, held_out)
        if concerns:
            post.config["concerns"] = [concern._asdict() for concern in concerns]
        tell(concerns, strict)
        return post

    with ranks.in_step():
        if search is None:
            return train(config, observers, folder)
        return _best(search, config, train, observers, folder)


class Units(NamedTuple):
    """How targets are scaled for training, and their likelihood in those units."""

    likelihood: Likelihood
    scaling: Scaling | None


def _units(net: Any, task: Task, trained: bool) -> Units:
    """Return the units to train in: those of the networks where these are given."""
    scaling = task.target_scaling
    if not task.scales_itself:
        return Units(task.likelihood, scaling)
    if trained:
        scaling = net.target_scaling if isinstance(net, Posterior) else None
    if scaling is None:
        return Units(task.likelihood, None)
    return Units(task.likelihood.scaled(scaling.scale, task.target_size), scaling)


def _check_targets(augment: Any, units: Units) -> None:
    """Refuse targets that are to move with their inputs, but were scaled entry by entry."""
    if isinstance(augment, Augmentation) and units.likelihood.num_axes > 1:
        raise ValueError(
            f"{augment!r} moves pixels of inputs, but not of the targets at these positions; give"
            " a function of your own with a method pairs(x, y, generator) that moves both"
        )
    if getattr(augment, "moves_targets", False) and units.scaling is not None:
        raise ValueError(
            f"{augment!r} acts on targets, but these are shifted and scaled for training, with"
            " which a group's action does not commute; give the task target_scaling=None"
        )


def _in_units(data: Data, units: Units, stack: Stack) -> Data:
    """Return the data as the networks take them; scaled first, which large offsets need."""
    if units.scaling is not None:
        data = data.scale_targets(units.scaling)
    return data.to(stack.dtype, stack.device)


@dataclass(frozen=True)
class _Plan:
    """What one fit does with a stack.

    Attributes:
        name, core, config: the method and its options.
        task, units: what is learned, and in which units.
        seed: of everything random.
        ready: whether the networks are taken as they are.
        observers: what hears of it.
        folder, seconds: where checkpoints are kept, if anywhere, and the time between them.
        trainable: which parameters were asked for.
    """

    name: str
    core: Method
    config: Any
    task: Task
    units: Units
    seed: int
    ready: bool
    observers: tuple[Observer, ...]
    folder: Path | None
    seconds: float
    trainable: str | None = None


def _train(plan: _Plan, stack: Stack) -> tuple[Posterior, int, Tensor | None]:
    """Train the stack, unless it is ready; return it as a posterior, how many steps there were, and
    what members gain over a constant at examples that they left out."""
    core, config, task, units = plan.core, plan.config, plan.task, plan.units
    assert task.train is not None
    data = _in_units(task.train, units, stack)
    if task.weighting is not None:
        data = task.weighting(data).to(stack.dtype, stack.device)
    first = next(iter(data.batches(config.batch_size)))
    target_size, likelihood = check_network(stack, *first, units.likelihood, task.target_size)
    units = units._replace(likelihood=likelihood)
    if not plan.ready and config.epochs != 0:
        require_trainable(stack)
    identity = _identity(plan, data, stack) if plan.folder is not None else {}
    val = None if task.val is None else _in_units(task.val, units, stack)
    given, trained = data, {"trained": stack.trained} if stack.frozen else {}
    trunk = _trunk(plan, stack, first[0])
    if trunk is not None:
        stack, data = trunk.late, _features(trunk, data, plan.observers)
        val = None if val is None else _features(trunk, val)
    division = Division(data, None)
    if not plan.ready:
        together = bool(stack.common)
        division = divide(data, val, config, plan.seed, stack.num_modes, one_fold=together)
    steps = division.train.num_batches(config.batch_size)
    share = len(division.train) / len(data)
    number = num_observations(given, likelihood, config.batch_size) * share
    problem = Problem(
        likelihood, number, target_size, steps, data, plan.seed, validation=val
    )  # fmt: skip
    usual = 0 if plan.ready else Passes().num_epochs(data.num_batches(Passes().batch_size))
    tell_work(work_of_choice(config, problem, stack), usual, number, stack.num_parameters)
    whole = problem._replace(
        num_examples=number / share, steps_per_epoch=data.num_batches(config.batch_size)
    )
    config, prior_choice = with_prior(config, whole, stack, plan.observers)
    state = core.init(config, problem, stack)
    recorder = _recorder(config, problem, stack, val, units)
    selection = None
    if division.evidence is not None and not plan.ready:
        selection = Selection(division.evidence, likelihood, stack, core.config)
        problem = problem._replace(selection=selection)
    tell_work(core.work(config, problem, stack), usual, number, stack.num_parameters)
    num_modes = ranks.num_modes(stack.num_modes)
    what = f"{plan.name}, {num_modes} mode{'s' if num_modes > 1 else ''}"
    if plan.ready:
        warn_of_idle_options(plan.name, config)
    else:
        checkpoint = None
        if plan.folder is not None:
            checkpoint = Checkpoint(plan.folder, identity, plan.seconds)
        state = run(
            partial(core.step, config, problem),
            state,
            division.train,
            config,
            seed=plan.seed,
            what=what,
            observers=plan.observers,
            checkpoint=checkpoint,
            recorder=recorder,
            selection=selection,
        )
        warn_of_divergence(config, recorder)
    reported: Any = Told(data, what, plan.observers)
    with ranks.together():
        weights = core.finish(config, problem._replace(data=reported), state)
        chosen = dict(weights.chosen)
        weights = weights if trunk is None else behind(trunk, weights)
    done = dataclasses.asdict(config) | {"num_modes": num_modes, "epochs": config.num_epochs(steps)}
    done |= trained | chosen | prior_choice
    if selection is not None:
        done["stopping"] = selection.facts()
    post = Posterior(
        on_all_ranks(weights),
        units.likelihood,
        method=plan.name,
        config=json_safe(done),
        seed=plan.seed,
        input_shape=task.input_shape,
        target_size=target_size,
        input_scaling=task.input_scaling,
        encoder=task.encoder,
        target_scaling=units.scaling,
        history=joined_histories(ranks.everyones(recorder.history())),
    )
    return post, state.step, None if selection is None else selection.gain(state.stack)


def num_observations(data: Data, likelihood: Likelihood, batch_size: int) -> float:
    """Return N, the sum of the weights of all training targets; of a loader by one pass."""
    if not isinstance(likelihood, Positions):
        return len(data)
    if isinstance(data, Arrays):
        number = likelihood.num_observations(data.y)
    else:
        with global_stream(0):
            number = sum(likelihood.num_observations(y) for _, y in data.batches(batch_size))
    if not number:
        raise ValueError("the training data have no observation: all targets are ignored")
    return number


def _trunk(plan: _Plan, stack: Stack, x: Any) -> Trunk | None:
    """Return the frozen trunk to cut off, None where the whole network is wanted or needed.

    A trunk that is not the same in training, as one with dropout, is cut off if the head alone was
    asked for: it then stays in evaluation mode.
    """
    if plan.config.augment is not None or plan.core.uses_inputs(plan.config):
        return None
    trunk = None if stack.common else trunk_of(stack, x)
    if trunk is None or not (plan.trainable == "head" or trunk.is_quiet(x)):
        return None
    needs_noise = METHODS.get(plan.name).metadata.get("needs") == "noise"
    return None if needs_noise and not trunk.late_draws(x) else trunk


def _features(trunk: Trunk, data: Data, observers: tuple[Observer, ...] = ()) -> Data:
    """Return data whose inputs are the trunk's features: of arrays all of them, computed once, of a
    loader batch by batch."""
    if isinstance(data, Loader):
        return data.mapped(torch.no_grad()(trunk))
    passes: Any = Told(data, "features of the frozen trunk", observers)
    batches = (x for x, _ in passes.batches(FEATURE_ROWS))
    return Arrays(features_of(trunk, batches, len(data)), data.y)


def _recorder(
    config: Any, problem: Problem, stack: Stack, data: Data | None, units: Units
) -> Recorder:
    """Return what keeps the loss curves, with validation if the task has data for it."""
    assert problem.data is not None
    train, per_epoch, log_scale = problem.data, problem.steps_per_epoch, 0.0
    total = config.total_steps(per_epoch)
    if units.scaling is not None:
        scale = units.scaling.scale.double().expand(problem.target_size)
        log_scale = float(scale.log().sum())
    trained = len(train) * config.num_epochs(per_epoch)
    validation = validation_for(data, units.likelihood, total, trained, log_scale)
    return Recorder(total, stack.num_modes, validation)


def _best(
    search: Search,
    config: Any,
    train: Callable[[Passes, tuple[Observer, ...], Path | None], Posterior],
    observers: tuple[Observer, ...],
    folder: Path | None,
) -> Posterior:
    """Train every candidate, one after another, and return the one with the lowest score.

    Its `config` has the options as they were given, with what was chosen in their place, and under
    "search" the score of every candidate.
    """
    progress = _Progress(observers, len(search.candidates))
    best: Posterior | None = None
    chosen: dict[str, Any] = {}
    scores: list[dict[str, Any]] = []
    lowest = math.inf
    for tried, options in search.candidates:
        label = "-".join(f"{key}={value}" for key, value in tried.items())
        post = train(options, (progress,) if observers else (), folder and folder / label)
        progress.next()
        score = search.score(post)
        scores.append({**tried, "score": score})
        if best is None or score < lowest:
            best, chosen, lowest = post, tried, score
    assert best is not None
    report = {"criterion": search.criterion, "chosen": chosen, "candidates": scores}
    prior = {
        name: best.config[name]
        for name in ("prior_precision", "prior_choice")
        if name in best.config
    }
    best.config = json_safe({**dataclasses.asdict(config), **prior, **chosen, "search": report})
    return best


class _Progress:
    """Tells of several runs as of one, whose steps are the steps of all."""

    def __init__(self, observers: tuple[Observer, ...], number: int) -> None:
        self.observers, self.number = observers, number
        self.done = 0  # candidates
        self.reporter: Reporter | None = None  # once there is something to tell

    def next(self) -> None:
        self.done += 1

    def __call__(self, event: Event) -> None:
        step, last = self.done * event.total + event.step, self.done == self.number - 1
        if self.reporter is None:
            if event.step == event.total and not last:
                return  # it was trained before: the run resumes behind it
            what = f"{event.what}, {self.number} candidates"
            self.reporter = Reporter(what, self.number * event.total, self.observers)
            self.reporter.first_step = step
            if step and event.kind != "resume":
                self.reporter.tell("resume", step, event.epoch, event.loss)
        elif event.kind in ("resume", "start") and self.reporter.first_step != step:
            return  # of a later candidate
        kind = "progress" if event.kind == "end" and not last else event.kind
        self.reporter.tell(kind, step, event.epoch, event.loss)


def _resolve(method: str | Passes, options: dict[str, Any]) -> tuple[str, Method, Any]:
    """Return the method's name, core and checked options."""
    if isinstance(method, str):
        core = METHODS.get(method).value
        check_options(method, options)
        return method, core, with_augmentation(core.config(**options))
    if options:
        raise ValueError(
            f"options {sorted(options)} were given together with an options object; put them into"
            " it"
        )
    for name in METHODS.names():
        if METHODS.get(name).value.config is type(method):
            return name, METHODS.get(name).value, with_augmentation(method)
    raise ValueError(f"a {type(method).__name__} is not a method's options; see pm.list_methods()")


def check_options(method: str, options: Iterable[str]) -> None:
    """Refuse options that the method does not have, with the one that was probably meant."""
    names = [field.name for field in dataclasses.fields(METHODS.get(method).value.config)]
    for option in options:
        if option not in names:
            meant = ELSEWHERE.get(option)
            near = f" Did you mean '{meant}'?" if meant in names else suggest(option, names)
            raise ValueError(
                f"Unknown option '{option}' for method '{method}'.{near}"
                f" Options: {', '.join(names)}"
            )


def with_augmentation(config: Passes) -> Passes:
    """Return the options with the function that an augmentation's name stands for."""
    if not isinstance(config.augment, (str, Mapping)):
        return config
    return dataclasses.replace(config, augment=augmentation(config.augment))


def _networks(net: Any, task: Task, config: Any) -> tuple[Any, int, bool]:
    """Return the networks to begin with, how many they are, and whether they were given."""
    if isinstance(net, Posterior):
        stack = net.stack  # its modules share memory: a frozen body is not copied for each
        net = [stack.views.build(k, share=True) for k in range(stack.num_modes)]
    networks = networks_for(net, task.input_shape, task.num_outputs)
    number = config.num_modes
    if not isinstance(networks, (nn.Module, Sequence)):
        return networks, config.usual_modes if number is None else number, False
    modules = 1 if isinstance(networks, nn.Module) else len(networks)
    if number not in (None, modules):
        raise ValueError(
            f"`num_modes` is {number}, but {modules} trained"
            f" network{'s were' if modules > 1 else ' was'} given, one per mode; leave"
            " `num_modes` out, or give a factory such as net=lambda: MyNet()"
        )
    return networks, modules, True


def _digests(stack: Stack) -> list[str]:
    """Return hashes of what is frozen, one if all modes have the same."""
    if not stack.frozen:
        return []
    one = all(map(is_shared, stack.frozen.values()))
    local = {stack.digest_of_frozen(k) for k in range(1 if one else stack.num_modes)}
    return sorted(set().union(*ranks.everyones(local)))


def _identity(plan: _Plan, data: Data, stack: Stack) -> dict[str, Any]:
    """Return what two runs must have in common for one to continue the other."""
    return {
        "method": plan.name,
        "options": json_safe(dataclasses.asdict(plan.config)),
        "seed": plan.seed,
        "data": data.fingerprint(),
        "likelihood": plan.units.likelihood.to_config(),
        "target_scaling": plan.units.scaling and plan.units.scaling.to_dict(),
        "network": {
            key: [ranks.num_modes(len(t)), *t.shape[1:]] for key, t in stack.tensors().items()
        },
        "frozen": _digests(stack),
        "code": network_mark(stack.template),
        "release": __version__,
        "dtype": str(stack.dtype),
        **({} if stack.calling is None else {"output": stack.calling.output}),
    }
