"""The reference posterior: HMC fitted once and cached, and the distance of a posterior from it.

`reference(task, net=...)` runs `hmc` with enough chains and trajectories to serve as a yardstick,
keeps it in the user's cache, and checks it by the examination `chains`. The examination `reference`
compares another posterior's predictions with it.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import shutil
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from polymode import nets
from polymode._version import __version__
from polymode.chains.examination import chains, r_hat_of
from polymode.chains.rhat import check
from polymode.core.checks import check_call
from polymode.core.html import html_block
from polymode.core.options import Config, declarations, option, rule
from polymode.core.registry import suggest
from polymode.core.rng import fold
from polymode.core.safe_files import (
    FileProblem,
    cache_folder,
    json_digest,
    json_safe,
    read_json,
    take_lock,
    write_json,
)
from polymode.core.warn import warn
from polymode.examinations.examination import EXAMINATIONS
from polymode.examinations.findings import Findings, measure
from polymode.methods import HMC, fit
from polymode.methods.fit import check_options
from polymode.metrics.reference import agreement, total_variation, w1, w1_top, w2
from polymode.metrics.results import Row
from polymode.metrics.score import PairMetric
from polymode.nets.user_network import networks_for
from polymode.posterior import Posterior, load
from polymode.posterior.manifest import MANIFEST
from polymode.posterior.manifest import SCHEMA as POSTERIOR_SCHEMA
from polymode.prediction import Prediction
from polymode.stack.stack import Stack
from polymode.tasks import Task
from polymode.tasks.named import as_task
from polymode.tracing.code import network_mark
from polymode.training.data import Arrays, Data

USUAL: dict[str, Any] = {
    "num_modes": 8, "epochs": 2000, "leapfrog_steps": 50, "samples_per_mode": 100,
}  # fmt: skip
UNMIXED = 1.1  # R-hat above which the chains have not mixed
TRAINING_BATCH = 128
SCHEMA = 1  # of the cached files; a new one changes the key
MARK = "reference.json"  # marks the posterior beside it as the reference of this key


@dataclass(frozen=True, repr=False)
class Reference:
    """A reference posterior with the convergence of its chains.

    Attributes:
        post: the posterior of `hmc`. convergence: of its chains, see the examination `chains`.
        folder: in the cache.
    """

    post: Posterior
    convergence: Findings
    folder: Path

    def predict(self, x: Any, **options: Any) -> Prediction:
        """Return its prediction at x, see `Posterior.predict`."""
        return self.post.predict(x, **options)

    def __repr__(self) -> str:
        return f"reference posterior, {self._summary()}\n{self.convergence.table()}"

    def _repr_html_(self) -> str:
        return html_block(f"Reference posterior: {self._summary()}", self.convergence._repr_html_())

    def _summary(self) -> str:
        post = self.post
        return f"{post.num_modes} chains × {post.weights.samples_per_mode} draws, {self.folder}"


def reference(
    task: Task | str,
    *,
    net: Any,
    seed: int = 0,
    training_steps: int = 2000,
    progress: str = "auto",
    **options: Any,
) -> Reference:
    """Return the reference posterior of a network on a task, fitted by `hmc` once and cached.

    It is stored in `references/` of the cache (`$POLYMODE_CACHE`, or `polymode` in
    `$XDG_CACHE_HOME`), under a key of the training data, the likelihood, the network with its code
    and initial values, the options, the seed and the release. An interrupted fit resumes from its
    last checkpoint.

    Args:
        task: with training data; a name stands for `pm.task(name)`.
        net: as in `fit`: a builder or a function that returns a new network.
        seed: of the chains. progress: as in `fit`.
        training_steps: of the `deep_ensemble` from which the chains start (Adam, rate 0.01, cosine,
            batches of at most 128), so that burn-in is not spent on finding a maximum; 0 starts at
            new networks.
        options: of `hmc`; by default 8 chains of 2,000 trajectories with 50 leapfrog steps, half of
            them burn-in, and 100 kept draws each.

    >>> import polymode as pm
    >>> found = pm.reference(
    ...     "two_moons", net=pm.nets.mlp, num_modes=2, epochs=8, leapfrog_steps=2,
    ...     samples_per_mode=4, progress="silent",
    ... )  # too short to be one
    >>> found.predict(pm.task("two_moons").test).num_samples
    8
    """
    check_call(reference, locals())
    task = as_task(task, "reference")
    if task.train is None:
        raise ValueError("the task has no training data: give pm.Task(train=...)")
    check_options("hmc", options)
    config = HMC(**(USUAL | options))
    steps = config.kept_steps(config.total_steps(task.train.num_batches(config.batch_size)))
    check(torch.empty(len(steps), config.num_modes or HMC.usual_modes))  # before the fit
    networks = networks_for(net, task.input_shape, task.num_outputs)
    if isinstance(networks, (nn.Module, list, tuple)):
        raise ValueError(
            "`net` of reference must be a builder from pm.nets or a function that returns a new"
            " network: every chain begins at one of its own"
        )
    if type(training_steps) is not int or training_steps < 0:
        raise ValueError(
            f"`training_steps` of reference must be an integer of at least 0, got"
            f" {training_steps!r}"
        )
    key = _key(task, networks, config, seed, training_steps)
    folder = cache_folder() / "references" / key
    with _held(folder):
        post = _kept(folder, key, networks)
        if post is None:
            settings = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
            begin = networks
            if training_steps:
                begin = _trained(task, networks, config, seed, training_steps, folder)
            post = fit(
                "hmc", net=begin, task=task, seed=seed, progress=progress,
                checkpoint=folder / "training", **settings,
            )  # fmt: skip
            _keep(folder, key, post)
            post = load(folder, net=networks)
    convergence = chains(post, task).signed("chains")
    _warn(convergence, config)
    return Reference(post, convergence, folder)


def _trained(
    task: Task, networks: Any, config: HMC, seed: int, steps: int, folder: Path
) -> Posterior:
    """Return a deep ensemble, at whose members the chains start."""
    assert task.train is not None
    batches: dict[str, Any] = {}  # a loader has its batch size
    if isinstance(task.train, Arrays):
        batches["batch_size"] = min(TRAINING_BATCH, len(task.train))
    return fit(
        "deep_ensemble", net=networks, task=task, seed=seed, progress="silent",
        num_modes=config.num_modes or HMC.usual_modes, prior_precision=config.prior_precision,
        epochs=-(-steps // task.train.num_batches(batches.get("batch_size", 1))), lr=0.01,
        schedule="cosine", checkpoint=folder / "start", **batches,
    )  # fmt: skip


def _warn(convergence: Findings, config: HMC) -> None:
    value = r_hat_of(convergence["r_hat"])
    if value is not None and value > UNMIXED and config.burn_in != 0 and convergence["r_hat"].n:
        total = config.num_epochs(1)
        if total >= 100:  # shorter runs are trials
            warn(
                f"the chains of the reference have not mixed: R-hat of predictions is up to"
                f" {value:.3g}, more than {UNMIXED}; take more epochs (now {total}) or"
                f" leapfrog_steps (now {config.leapfrog_steps})"
            )


def _key(task: Task, networks: Any, config: HMC, seed: int, training_steps: int) -> str:
    """Return the key of a reference in the cache."""
    stack = Stack(networks, 1, seed=seed)
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in stack.tensors().items():
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    assert task.train is not None
    scaling = task.target_scaling
    described = {
        "schema": SCHEMA,
        "data": _mark(task.train),
        "likelihood": task.likelihood.to_config(),
        "scaling": scaling and scaling.to_dict(),
        "release": __version__,
        "network": network_mark(stack.template),
        "values": digest.hexdigest(),
        "options": json_safe(dataclasses.asdict(config)),
        "seed": seed,
        "training_steps": training_steps,
    }
    return json_digest(json_safe(described))


def _mark(data: Data) -> str:
    """Return a hash of the values of the training data; a loader is read once."""
    if isinstance(data, Arrays):
        return data.fingerprint()
    pairs = list(data.epoch(256, fold(0, "whole")))
    x, y = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    return Arrays(x, y).fingerprint()


def _kept(folder: Path, key: str, networks: Any) -> Posterior | None:
    """Return the cached reference, or None if there is none.

    Anything else in its place is ignored with a warning: the reference is fitted again.
    """
    manifest = folder / MANIFEST
    if not manifest.exists():
        return None
    try:
        mark = read_json(folder / MARK, SCHEMA)
        if mark.get("key") != key or mark.get("posterior") != _digest(manifest):
            raise FileProblem(f"{manifest} is not the one that was written")
        return load(folder, net=networks)
    except FileProblem as problem:
        warn(
            f"what is kept in {folder} is not the reference asked for ({problem}): it is fitted"
            " anew"
        )
        return None


def _keep(folder: Path, key: str, post: Posterior) -> None:
    """Store a reference; its mark comes last, so that an interrupted fit is completed."""
    (folder / MARK).unlink(missing_ok=True)
    post.save(folder)
    digest = _digest(folder / MANIFEST)
    write_json(folder / MARK, {"schema": SCHEMA, "key": key, "posterior": digest})
    for name in ("start", "training"):
        shutil.rmtree(folder / name, ignore_errors=True)


def _digest(path: Path) -> str:
    """Return the digest of a posterior's manifest, which contains the digests of its tensors."""
    return json_digest(read_json(path, POSTERIOR_SCHEMA))


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Lock the folder, so that other processes that need the same reference wait for it.

    A read-only cache is used without a lock if it has the reference.
    """
    path = folder / "reference.lock"
    if path.is_fifo():  # opening it would wait for a reader
        raise FileProblem(f"{path} is not a plain file; remove it")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open(path, "ab")
    except OSError as error:
        if (folder / MARK).is_file():
            yield
            return
        raise FileProblem(
            f"the reference cannot be kept in {folder}: {error.strerror or error}; set"
            " POLYMODE_CACHE to a folder that can be written"
        ) from None
    with file:
        take_lock(file.fileno(), wait=True)
        yield


def fresh(template: nn.Module) -> nn.Module:
    """Return a network of this architecture with new initial values."""
    module = copy.deepcopy(template).to_empty(device="cpu").requires_grad_(True)
    for layer in module.modules():
        tensors = [*layer.parameters(recurse=False), *layer.buffers(recurse=False)]
        reset = getattr(layer, "reset_parameters", None)
        if tensors and reset is None:
            raise ValueError(
                f"layers of type {type(layer).__name__} have no `reset_parameters`, so no new"
                " networks can be made of this posterior's; call pm.reference(task, net=...), which"
                " takes a function that makes them, and pm.metrics.reference for the distances"
            )
        if reset is not None:
            reset()
    return module


_HMC = declarations(HMC)


def _are_widths(value: Any) -> bool:
    several = isinstance(value, list | tuple)
    return several and all(type(width) is int and width >= 1 for width in value)


@dataclass(frozen=True, kw_only=True)
class AgainstReference(Config):
    """Options of `reference`, the examination."""

    called = "reference"
    chains: int = option(USUAL["num_modes"], ge=1, doc="chains of the reference")
    trajectories: int = option(USUAL["epochs"], ge=1, doc="trajectories of each chain")
    leapfrog_steps: int = option(USUAL["leapfrog_steps"], ge=1, doc="of a trajectory, mean")
    draws: int = option(USUAL["samples_per_mode"], ge=1, doc="kept draws of each chain")
    mass: str = option(HMC.mass, choices=_HMC["mass"].choices, doc="as in `hmc`")
    seed: int = option(
        1000, ge=0, doc="of the reference, not one of the posteriors compared with it"
    )
    net: str | None = option(
        None, doc="of `pm.nets`, the reference's network", none="takes the posterior's"
    )
    hidden: Sequence[int] | None = option(
        None,
        rule=rule("integers of at least 1", _are_widths),
        doc="its hidden layers, if it has such an option",
        none="is the usual of `net`",
    )


@EXAMINATIONS.register(
    "reference",
    summary="distance of the predictions to those of HMC on the same task, network and prior",
    measures={
        "agreement": "share of test inputs with the same most probable class as the reference",
        "total_variation": "half the summed distance of class probabilities to the reference's",
        "w1_top": "Wasserstein-1 distance between the spreads of the probability of the"
        " reference's most probable class",
        "w1": "Wasserstein-1 distance of predictive densities to the reference's",
        "w2": "Wasserstein-2 distance of predictive densities to the reference's",
        "std_ratio": "geometric mean of the ratio of predictive standard deviations to the"
        " reference's",
        "reference_r_hat": "largest R-hat of the reference's own predictions",
        "reference_r_hat_median": "median R-hat of the reference's own predictions",
        "reference_total_variation": "total variation between the halves of the reference's chains",
        "reference_w1": "Wasserstein-1 distance between the halves of the reference's chains",
        **{
            f"{name}_{place}": f"the same on {text}"
            for name in ("agreement", "total_variation", "w1_top", "w1", "w2", "std_ratio")
            for place, text in (("ood", "all OOD sets of the task together"),)
        },
    },
    options=AgainstReference,
)
def against_reference(post: Posterior, task: Task, options: AgainstReference) -> Findings:
    """Return the distance of predictions from the reference's, on test and OOD inputs.

    The reference has the network and the `prior_precision` of the posterior; it is fitted at the
    first call and cached.
    """
    if task.test is None:
        raise ValueError(f"task '{task.name}' has no test data: give pm.Task(test=...)")
    yardstick = reference(
        task,
        net=_network(post, options.net, options.hidden),
        seed=options.seed,
        progress="silent",
        num_modes=options.chains,
        epochs=options.trajectories,
        leapfrog_steps=options.leapfrog_steps,
        samples_per_mode=options.draws,
        mass=options.mass,
        prior_precision=float(post.config.get("prior_precision", 1.0)),
    )
    predicted = _predicted(yardstick, task)
    rows = list(_distances(post.predict(task.test), predicted.test, ""))
    if predicted.ood is not None:
        ours = Prediction.cat([post.predict(data) for data in task.ood.values()])
        rows += _distances(ours, predicted.ood, "_ood")
    for name in ("r_hat", "r_hat_median"):
        row = yardstick.convergence[name]
        rows.append(measure(f"reference_{name}", row.value, direction="down", n=row.n))
    rows += predicted.halves
    return Findings(tuple(rows))


class _Predicted(NamedTuple):
    """What a reference predicts on a task: test set, OOD inputs, and its halves' distance."""

    folder: Path
    test: Prediction
    ood: Prediction | None
    halves: list[Row]


_PREDICTED: weakref.WeakKeyDictionary[Task, _Predicted] = weakref.WeakKeyDictionary()
"""Of the last reference of a task: all methods of a run are held against the same."""


def _predicted(yardstick: Reference, task: Task) -> _Predicted:
    """Return the reference's predictions, made once for a task."""
    predicted = _PREDICTED.get(task)
    if predicted is None or predicted.folder != yardstick.folder:
        outside = [yardstick.predict(data) for data in task.ood.values()]
        halves = [_yardstick(yardstick.post, task.test)] if yardstick.post.num_modes > 1 else []
        predicted = _Predicted(
            yardstick.folder,
            yardstick.predict(task.test),
            Prediction.cat(outside) if outside else None,
            halves,
        )
        _PREDICTED[task] = predicted
    return predicted


def _yardstick(post: Posterior, test: Any) -> Row:
    """Return the distance between the halves of the reference's chains: a posterior closer to the
    reference than that is indistinguishable from it."""
    half = post.num_modes // 2
    parts = post[:half].predict(test), post[half:].predict(test)
    row = next(row for row in _distances(*parts, "") if row.direction == "down")
    return measure(
        f"reference_{row.metric}", row.value, unit=row.unit, direction="down", n=row.n,
        standard_error=row.standard_error,
    )  # fmt: skip


def _network(post: Posterior, net: str | None, hidden: Sequence[int] | None) -> Any:
    """Return the builder of the reference's networks."""
    if net is None:
        template = post.weights.like.template
        return lambda: fresh(template)
    if net not in nets.__all__:
        raise ValueError(f"Unknown net '{net}'.{suggest(net, nets.__all__)}")
    return partial(getattr(nets, net), **({} if hidden is None else {"hidden": tuple(hidden)}))


def _distances(ours: Prediction, theirs: Prediction, suffix: str) -> Iterator[Row]:
    """Yield the distances of two predictions of the same inputs."""
    classes = hasattr(ours, "log_probs")
    metrics: dict[str, tuple[PairMetric, str, str]] = (
        {
            "agreement": (agreement, "fraction", "up"),
            "total_variation": (total_variation, "probability", "down"),
            "w1_top": (w1_top, "probability", "down"),
        }
        if classes
        else {"w1": (w1, "units of y", "down"), "w2": (w2, "units of y", "down")}
    )
    for name, (metric, unit, direction) in metrics.items():
        score = metric(ours, theirs)
        yield measure(
            f"{name}{suffix}", score.value, unit=unit, direction=direction, n=score.n,
            standard_error=score.standard_error,
        )  # fmt: skip
    if not classes:
        ratio = (ours.std / theirs.std).double().log().mean().exp()
        yield measure(f"std_ratio{suffix}", float(ratio), n=len(ours))
