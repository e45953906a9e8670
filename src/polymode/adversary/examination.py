"""The examination `attack`: one attack at rising ε, adaptive or not, and its detection.

`polymode run --task digits --method deep_ensemble --examine attack:kind=pgd,eps=0.1`

Images are attacked as pixels: the task's `input_scaling` is undone, ε is in units of the range
[0, 1], which is the box. Other inputs, or images outside [0, 1], are attacked in the networks'
units, without a box: several inputs together, and identifiers at the output of their embedding. The
numbers are those of the largest ε; the curves show all.

`N` examples, `E` radii, `T` steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polymode.adversary.attack import CHECKS, KEPT, ORIGINS
from polymode.adversary.attack_kinds import KINDS
from polymode.adversary.ball import NORMS
from polymode.adversary.detection import Sweep, sweep
from polymode.adversary.gradient_free import check_norm
from polymode.adversary.movable import NothingMoves, movable_of
from polymode.adversary.objective import ADAPTIVE, LOSSES
from polymode.core.checks import check_call, check_keywords, is_number
from polymode.core.options import Config, option, rule
from polymode.examinations.examination import EXAMINATIONS
from polymode.examinations.findings import (
    Findings,
    NotApplicable,
    measure,
    require_one_target,
)
from polymode.likelihoods.scaling import Scaling
from polymode.metrics.results import Row
from polymode.posterior import Posterior
from polymode.tasks import Task
from polymode.training.data import Arrays, Pair, first_inputs

SHOWN = 4  # examples whose inputs on the way are kept
MOMENTS = 7  # steps of these that are kept
ROUNDING = 1e-4  # pixels may leave [0, 1] by this much when their scaling is undone
NATS = "nats"


OF_KINDS = ("steps", "step_size", "restarts", "queries")
PASSED_ON = (
    *OF_KINDS, "kind", "norm", "adaptive", "loss", "away_from", "keep", "samples_per_mode",
    "eval_samples_per_mode", "rejection", "checks",
)  # fmt: skip
"""Options that `attack` and `sweep` take as they are; None stands for their default."""


def radii_of(eps: float | Sequence[float]) -> list[float]:
    """Return the radii: those given, or for a single number 0 and five up to it."""
    if isinstance(eps, int | float) and not isinstance(eps, bool):
        return [float(eps) * part / 5 for part in range(6)] if eps > 0 else [float(eps)]
    return list(eps) if isinstance(eps, list | tuple) and eps else [eps]  # type: ignore[list-item]


def _are_radii(value: Any) -> bool:
    return all(is_number(radius) and radius >= 0 for radius in radii_of(value))


_AS_ATTACK = "as in `adversary.attack`"


@dataclass(frozen=True, kw_only=True)
class Attack(Config):
    """Options of `attack`, the examination."""

    called = "an attack"
    kind: str = option("pgd", doc="of the attack, see `adversary.attack`")
    eps: float | Sequence[float] = option(
        0.1,
        rule=rule("a finite number >= 0, or several", _are_radii),
        doc="one radius, whose fifths are attacked as well, or several",
    )
    norm: str = option("linf", choices=NORMS, doc="of the ball")
    target: int | None = option(
        None,
        rule=rule("a class, an integer", lambda value: type(value) is int),
        doc="class that inputs of all other classes should become",
        none="is any but the label",
    )
    adaptive: str | None = option(
        None, choices=ADAPTIVE, doc="score that the attack keeps low", none="is not adaptive"
    )
    loss: str = option("log_prob", choices=LOSSES, doc=_AS_ATTACK)
    away_from: str = option("labels", choices=ORIGINS, doc=_AS_ATTACK)
    keep: str | None = option(
        None, choices=[name for name in KEPT if name], doc=_AS_ATTACK, none="is that of the kind"
    )
    steps: int | None = option(None, ge=1, doc="of the kind")
    step_size: float | None = option(None, gt=0, doc="of the kind")
    restarts: int | None = option(None, ge=1, doc="of the kind")
    queries: int | None = option(None, ge=1, doc="of the kind")
    samples_per_mode: int | None = option(None, ge=1, doc=_AS_ATTACK)
    eval_samples_per_mode: int | None = option(None, ge=1, doc=_AS_ATTACK)
    num_examples: int = option(200, ge=1, doc="of the test set, at most")
    rejection: float = option(
        0.05, gt=0, lt=1, doc="share of clean inputs that a threshold may reject"
    )
    checks: str = option("full", choices=CHECKS, doc=_AS_ATTACK)

    def __post_init__(self) -> None:
        super().__post_init__()
        kind = KINDS.get(self.kind).value  # names the kinds there are
        of_kind = {name: value for name in OF_KINDS if (value := getattr(self, name)) is not None}
        check_keywords(kind, f"the attack '{self.kind}'", of_kind)
        if self.kind == "square":
            check_norm(self.norm)


@EXAMINATIONS.register(
    "attack",
    summary="an adversarial attack on the predictive, and whether uncertainty detects it",
    measures={
        "attacked_accuracy": "share of labels that are still predicted under the attack, at the"
        " largest eps",
        "unattacked_accuracy": "the same of the same inputs before",
        "attack_success": "share of inputs on which the attack gets what it wants: the target, or"
        " any class but the label",
        "attacked_entropy": "mean predictive entropy of attacked inputs",
        "attacked_mutual_information": "mean mutual information of attacked inputs",
        "detection_by_entropy": "AUROC of attacked against clean inputs by predictive entropy; 1/2"
        " is chance",
        "detection_by_mutual_information": "AUROC of attacked against clean inputs by mutual"
        " information; 1/2 is chance",
        "accepted_accuracy": "accuracy on attacked inputs whose predictive entropy is below a"
        " threshold that rejects a given share of clean ones",
        "accepted_wrong": "share of all attacked inputs that this threshold accepts, and that are"
        " wrong",
        "attack_flags": "signs that the attack says less than it seems: see docs/adversary.md",
    },
    options=Attack,
)
def attack_examination(post: Posterior, task: Task, options: Attack) -> Findings:
    """Attack the first test inputs; see the module."""
    require_one_target("an attack", post.likelihood)
    _require_movable(post, task)
    x, y, scaling, box = inputs_of(task, options.num_examples)
    target = options.target
    if target is not None:
        x, y = x[y != target], y[y != target]
    passed = {name: getattr(options, name) for name in PASSED_ON}
    curves = sweep(
        post, x, y, eps=radii_of(options.eps), targets=target, scaling=scaling, box=box,
        trajectories=SHOWN,
        **{name: value for name, value in passed.items() if value is not None},
    )  # fmt: skip
    return Findings(tuple(_rows(curves)), arrays_of(curves))


def _require_movable(post: Posterior, task: Task) -> None:
    """Refuse identifiers without the one embedding whose output could move."""
    if task.test is None or not post.likelihood.classification:
        return  # refused elsewhere
    try:
        movable_of(post, first_inputs(task.test, 2))
    except NothingMoves as reason:
        raise NotApplicable(str(reason)) from None


def inputs_of(
    task: Task, num_examples: int
) -> tuple[Any, Tensor, Scaling | None, tuple[float, float] | None]:
    """Return raw test inputs, labels, the scaling to the networks' inputs, and the box."""
    check_call(inputs_of, locals())
    if task.test is None:
        raise ValueError(f"task '{task.name}' has no test set to attack; give it one")
    if isinstance(task.test, Arrays):
        x, y = task.test.head(num_examples)
    else:
        pairs: list[Pair] = []
        for pair in task.test.batches(64):
            pairs.append(pair)
            if sum(len(labels) for _, labels in pairs) >= num_examples:
                break
        x, y = (torch.cat([pair[part] for pair in pairs])[:num_examples] for part in (0, 1))
    scaling = task.input_scaling
    if isinstance(x, Tensor) and x.is_floating_point() and x.dim() == 4:
        raw = x if scaling is None else scaling.inverse(x)
        if raw.min() >= -ROUNDING and raw.max() <= 1 + ROUNDING:
            return raw.clamp(0, 1), y, scaling, (0.0, 1.0)
    return x, y, None, None


def _rows(curves: Sweep) -> list[Row]:
    last, detected = curves.attacks[-1], curves.detections[-1]
    n = len(last)

    def share(name: str, mean: float, direction: str, count: int = n) -> Row:
        error = math.sqrt(mean * (1 - mean) / count) if count else None
        facts: dict[str, Any] = {"n": count, "unit": "fraction", "direction": direction}
        note = "" if count else "n/a (none is accepted)"
        return measure(name, mean if count else None, standard_error=error, note=note, **facts)

    def mean_of(name: str, values: Tensor) -> Row:
        spread = values.double().std().item() / math.sqrt(n) if n > 1 else None
        return measure(name, values.double().mean().item(), n=n, unit=NATS, standard_error=spread)

    entropy = detected["predictive_entropy"]
    rows = [
        share("unattacked_accuracy", last.clean_accuracy, "up"),
        share("attacked_accuracy", last.accuracy, "up"),
        share("attack_success", last.success_rate, "down"),
        mean_of("attacked_entropy", last.attacked.predictive_entropy),
    ]
    if last.attacked.num_samples > 1:
        rows.append(mean_of("attacked_mutual_information", last.attacked.mutual_information))
    for name, title in (("predictive_entropy", "entropy"), ("mutual_information",) * 2):
        if name in detected:
            area = detected[name]
            rows.append(
                measure(
                    f"detection_by_{title}",
                    area.auroc,
                    n=2 * n,
                    unit="probability",
                    direction="up",
                    standard_error=area.standard_error,
                )
            )
    accepted = round(entropy.accepted * n)
    rows.append(share("accepted_accuracy", entropy.accepted_accuracy, "up", accepted))
    rows.append(share("accepted_wrong", entropy.accepted_wrong, "down"))
    return [*rows, measure("attack_flags", len(last.flags), n=n, direction="down")]


def arrays_of(found: Sweep) -> dict[str, np.ndarray]:
    """Return the arrays behind the figures: curves against ε and step, inputs on the way."""
    check_call(arrays_of, locals())
    last = found.attacks[-1]
    arrays: dict[str, np.ndarray] = {
        "eps": found.eps,
        "accuracy": found.accuracy,
        "success": found.success_rate,
        "examples": np.array([len(last)]),
        "flags": np.array([str(flag) for flag in last.flags] or [""]),
    }
    for name in ("predictive_entropy", "mutual_information"):
        if name not in found.scores:
            continue
        arrays[name] = found.mean_score(name)
        arrays[f"step {name}"] = last.curves[name].mean(1)
    for score in found.scores:
        arrays[f"auroc {score}"] = found.of(score)
        arrays[f"auroc successful {score}"] = found.of(score, "auroc_successful")
    arrays["accepted accuracy"] = found.of("predictive_entropy", "accepted_accuracy")
    arrays["accepted wrong"] = found.of("predictive_entropy", "accepted_wrong")
    if last.space != "inputs":
        arrays["space"] = np.array([last.space])
    classes = torch.as_tensor(last.curves["classes"])
    wanted = classes != last.labels if last.targets is None else classes == last.targets
    arrays["step accuracy"] = (classes == last.labels).double().mean(1).numpy()
    arrays["step success"] = wanted.double().mean(1).numpy()
    return arrays | _trajectories(last)


def _trajectories(last: Any) -> dict[str, np.ndarray]:
    """Return images (n, t, ...) at a few steps with their predictions; nothing for other inputs."""
    path = last.trajectories  # (T + 1, n, ...)
    if path.dim() != 5 or path.shape[2] not in (1, 3) or len(path) != len(last.curves["classes"]):
        return {}
    count = path.shape[1]
    moments = np.unique(np.linspace(0, len(path) - 1, min(MOMENTS, len(path))).round().astype(int))
    return {
        "images": path[moments].transpose(0, 1).float().cpu().numpy(),
        "image step": moments,
        "image class": last.curves["classes"][moments, :count].T,
        "image entropy": last.curves["predictive_entropy"][moments, :count].T,
        "image label": last.labels[:count].cpu().numpy(),
    }
