"""What `fit` warns of, or refuses, before a training and after it."""

from __future__ import annotations

import dataclasses
from typing import Any

from polymode.core.warn import warn
from polymode.distributed import ranks
from polymode.likelihoods.base import Likelihood
from polymode.stack.stack import Stack
from polymode.tasks.task import Task
from polymode.training.data import Examples, Loader
from polymode.training.history import Recorder
from polymode.training.optimiser import Training
from polymode.training.options import Passes

POINT_ESTIMATES = (
    "map", "deep_ensemble", "snapshot", "checkpoint_ensemble", "ema", "swa", "swag", "dropout",
    "packed", "batch_ensemble", "tabm", "masksembles", "mimo", "mc_batchnorm", "sngp", "ddu",
    "feature_rde", "lit",
)  # fmt: skip
"""Methods that minimise whatever loss there is; a spread comes from elsewhere."""
OF_CURVATURE = ("laplace", "laplace_map", "vbll", "evidential")
"""Methods that need the density of the targets itself."""
OF_POWERS = ("dropout", "concrete_dropout", "vi")
"""Methods whose `alpha` > 0 takes powers of that density."""


def require_trainable(stack: Stack) -> None:
    """Refuse to train networks of which nothing changes."""
    if stack.params or stack.common:
        return
    frozen = sum(tensor[0].numel() for tensor in stack.frozen.values())
    why = f"all {frozen:,} are frozen" if frozen else "it has none"
    raise ValueError(
        f"the network has no parameter to train: {why}. Name what shall learn by"
        " `trainable`; networks that are trained already are taken as they are with epochs=0"
    )


def warn_of_little_effect(config: Passes, trained: bool, task: Task) -> None:
    """Warn of networks that are never trained, of a rate that a function of yours does not know,
    and of a batch size that a loader does not take."""
    if config.epochs == 0 and not trained:
        warn(
            "epochs=0 with a function that makes new networks: they keep their initial weights"
            " and have learnt nothing. Use epochs >= 1, or give trained networks, net=my_module",
        )
    if isinstance(config, Training) and callable(config.optimizer):
        if config.lr != type(config).lr:
            warn(
                f"lr={config.lr:g} has no effect: the optimizer is a function with its own rate",
            )
    if not isinstance(task.train, Loader) or isinstance(task.train, Examples):
        return
    loaded = getattr(task.train.loader, "batch_size", None)
    if config.batch_size not in (loaded, type(config).batch_size):
        warn(
            f"batch_size={config.batch_size} has no effect: the DataLoader keeps its own",
        )


def check_departure(name: str, config: Passes, likelihood: Likelihood) -> None:
    """Warn, or refuse, where what is trained by is not the likelihood that a method is made of."""
    departure = likelihood.departure or getattr(config.augment, "departure", "")
    if departure and getattr(config, "prior_precision", None) == "auto":
        raise ValueError(
            f"prior_precision='auto' takes the evidence of a likelihood, and {departure}; give a"
            " number"
        )
    powers = name in OF_POWERS and getattr(config, "alpha", 0.0) > 0
    if not departure or (name in POINT_ESTIMATES and not powers):
        return
    if name in OF_CURVATURE or powers:
        raise ValueError(
            f"{name} approximates p(weights | data) by the likelihood itself, and {departure}: its"
            " result would be centred on the optimum of something else. Leave that out, or take a"
            " method such as deep_ensemble"
        )
    warn(
        f"{name} has a posterior as its target, and {departure}: what it gives is exp(-loss) times"
        " the prior, normalised, and its spread has no meaning as a probability",
    )


def warn_of_one_order(config: Passes, task: Task) -> None:
    """Warn of members that see the same batches, because their source has only one order."""
    if config.data_order == "own" and task.train is not None and not task.train.can_reorder:
        warn(
            "all members see the same batches, so their errors are more alike than they need be:"
            " the loader comes in one order. Give arrays, a Dataset or a DataLoader that shuffles,"
            " or say data_order='shared' if this is meant",
        )


def warn_of_divergence(config: Passes, recorder: Recorder) -> None:
    """Warn of members whose loss has grown. Chains may: they sample, and do not descend."""
    first, last = recorder.first, recorder.last
    if not isinstance(config, Training) or config.ends_sampling or first is None or last is None:
        return
    grown = [k for k, (a, b) in enumerate(zip(first, last, strict=True)) if b > a + max(1, 2 * a)]
    if grown:
        worst = max(grown, key=lambda k: last[k])
        warn(
            f"training has diverged: the loss of member {ranks.mode_number(worst)} was"
            f" {first[worst]:.4g} at the first"
            f" step and is {last[worst]:.4g} at the end ({len(grown)} of {len(last)} members)."
            f" {config.advice}",
        )


def warn_of_idle_options(name: str, config: Any) -> None:
    """Warn of options of training where nothing is trained."""
    usual = type(config)()
    fields = [field.name for field in dataclasses.fields(Training) if field.name != "batch_size"]
    idle = [f for f in fields if getattr(config, f, None) != getattr(usual, f, None)]
    if idle:
        warn(
            f"{name} uses the given networks as they are: {', '.join(idle)} have no effect",
        )
