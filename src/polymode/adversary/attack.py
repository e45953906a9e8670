"""`attack`: one attack on the predictive distribution of a posterior, and its outcome.

Shapes: `N` examples, `B` batch, `S` samples.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polymode.adversary.attack_checks import (
    check_box,
    check_choice,
    check_inputs,
    check_number,
    check_targets,
    warn_of_raw_inputs,
)
from polymode.adversary.attack_kinds import KINDS, check_steps
from polymode.adversary.attacked import Attacked, Cost
from polymode.adversary.ball import Ball, Box
from polymode.adversary.flags import LOOKED_AT, Flag, gradient_flags, masking_flags
from polymode.adversary.movable import attacked_posterior
from polymode.adversary.objective import ADAPTIVE, LOSSES, Aim
from polymode.adversary.search import CURVES, Search
from polymode.adversary.victim import Victim
from polymode.core.checks import check_call, check_keywords
from polymode.core.rows import Rows
from polymode.core.warn import warn
from polymode.likelihoods.scaling import Scaling
from polymode.posterior import Posterior
from polymode.prediction import CategoricalPrediction, Prediction
from polymode.stack.vocabulary import explain_ids

CHECKS = ("none", "quick", "full")
ORIGINS = ("labels", "predicted")
KEPT = ("best", "last", None)


@torch.inference_mode(False)
def attack(
    post: Posterior,
    x: Any,
    y: Any,
    *,
    kind: str = "pgd",
    eps: float,
    norm: str = "linf",
    targets: Any = None,
    adaptive: str | None = None,
    weight: float | None = None,
    loss: str = "log_prob",
    away_from: str = "labels",
    keep: str | None = None,
    known: Any = None,
    samples_per_mode: int | None = None,
    eval_samples_per_mode: int | None = None,
    box: Box | None = (0.0, 1.0),
    scaling: Scaling | None = None,
    checks: str = "quick",
    trajectories: int = 0,
    seed: int = 0,
    batch_size: int = 256,
    **options: Any,
) -> Attacked:
    r"""Attack the predictive distribution of a posterior of classes.

    Args:
        post: any posterior of classes. y: (N,) labels.
        x: (N, *input_shape) raw inputs in the box, floating point. Of several inputs, in a
            dictionary or tuple, all floating-point ones move together, and the others stay. Of
            identifiers the output of the one embedding that takes them moves; see `movable.py`.
        kind: "fgsm", "bim" (iterative FGSM), "pgd", "square" (no gradients) or "noise" (random).
        eps: radius of the ball in the units of x, or of the embedding, ≥ 0; 0 moves nothing, `inf`
            leaves the box alone.
        norm: "linf" or "l2".
        targets: (N,) classes to reach, or one class for all; None moves away from the label.
        adaptive: a score that the attack also drives down, "predictive_entropy" or
            "mutual_information" (with at least 2 samples); None for none.
        weight: of that score in the loss, > 0; 1 by default.
        loss: "log_prob", "margin" or "member_margin", see `objective.py`.
        away_from: "labels", or "predicted", the classes predicted at x, as Li and Gal (2017) do.
        keep: "best" input found for each example, or "last"; by default that of the kind.
        known: inputs to judge first, such as the `adversarial` ones of a smaller ball.
        samples_per_mode: L for each gradient, drawn afresh; by default the posterior's number.
        eval_samples_per_mode: L for judging steps, and for the final predictions.
        box: smallest and largest legal value; None for no box, as embeddings need it.
        scaling: the networks get scaling(x), `post.input_scaling` for images; None for x itself,
            with a warning if x looks unscaled.
        checks: "quick" raises the flags that a few gradients show, "full" also attacks without
            gradients, "none" raises none.
        trajectories: number of examples whose inputs on the way are kept.
        seed: of samples and random points. batch_size: rows at a time; it does not change results.
        options: of the kind: `steps`, `step_size` (bim, pgd), `restarts` (pgd), `queries`, `area`
            (square), `draws` (noise).

    Losses use log-probabilities, so a probability that has become 0 does no harm. A gradient that
    is 0 or not finite moves nothing, and is flagged.

    >>> import polymode as pm
    >>> task = pm.task("two_moons")
    >>> post = pm.fit("map", net=pm.nets.mlp, task=task, epochs=5, progress="silent")
    >>> found = attack(post, *task.test.head(50), kind="fgsm", eps=0.5, box=None)
    >>> bool(found.accuracy < found.clean_accuracy), found.cost.gradients
    (True, 1)
    """
    check_call(attack, locals(), but=("box",))
    start = time.perf_counter()
    chosen = KINDS.get(kind)
    check_keywords(chosen.value, f"the attack '{kind}'", options)
    check_number("eps", eps, zero=True, infinite=True)
    check_choice("loss", loss, LOSSES)
    check_choice("away_from", away_from, ORIGINS)
    check_choice("checks", checks, CHECKS)
    check_choice("keep", keep, KEPT)
    movable, labels = check_inputs(post, x, y, norm, scaling)
    inputs = movable.start
    check_box(movable, box, eps)
    if scaling is None and movable.is_whole:
        warn_of_raw_inputs(post, inputs)
    wanted = check_targets(targets, labels, post.target_size)
    samples = _samples(post, batch_size, samples_per_mode, eval_samples_per_mode)
    _check_adaptive(post, adaptive, weight, samples)
    if wanted is not None and away_from != "labels":
        warn(f"`away_from={away_from!r}` has no effect with `targets`: the attack leads to these")
    if known is not None and keep == "last":
        raise ValueError("`known` inputs are of no use with keep='last'; leave one of them out")
    start_from = None if known is None else movable.read(post, known)

    moving = None if movable.is_whole else movable
    victim = Victim(attacked_posterior(post, movable), scaling, *samples, seed, moving)
    ball = Ball(inputs, float(eps), norm, box)
    try:
        clean = _evaluate(victim, inputs, batch_size)
    except IndexError as error:
        explain_ids(error, post.weights.like, movable.inputs)
        raise
    origin = labels if away_from == "labels" else clean.classes
    aim = Aim(origin, wanted, loss, adaptive, 1.0 if weight is None else float(weight))
    searches, paths = [], []
    for first in range(0, len(inputs), batch_size):
        rows = slice(first, first + batch_size)
        how = keep or ("best" if start_from is not None else chosen.metadata["keep"])
        search = Search(victim.rows(rows), aim.rows(rows), ball.rows(rows), how, first)
        if start_from is not None:
            search.look(search.ball.project(start_from[rows]), record=False)
        paths.append(_first(chosen.value(search, **options), trajectories - first))
        searches.append(search)

    adversarial = torch.cat([search.best for search in searches])
    reached = torch.cat([search.reached for search in searches])
    flags = _flags(victim, aim, ball, reached, checks, chosen.metadata["gradients"])
    settings = {
        "targeted": targets is not None, "adaptive": adaptive, "weight": weight, "loss": loss,
        "away_from": away_from, "keep": searches[0].keep, "seed": seed, **options,
    }  # fmt: skip
    attacked = _evaluate(victim, adversarial, batch_size)
    cost = Cost(
        searches[0].gradients,
        searches[0].queries,
        victim.samples * post.num_modes,
        victim.judge_samples * post.num_modes,
        time.perf_counter() - start,
    )
    given = movable.inputs.tree if isinstance(movable.inputs, Rows) else movable.inputs
    return Attacked(
        kind, float(eps), norm, settings, given, movable.as_given(adversarial), labels, wanted,
        clean, attacked, _curves(searches), torch.cat(paths, 1), tuple(flags), cost, movable.space,
    )  # fmt: skip


def _samples(
    post: Posterior, batch_size: int, gradient: int | None, judge: int | None
) -> tuple[int, int]:
    """Return L for gradients and for judging; refuse wrong numbers of them or of rows."""
    requested = {"samples_per_mode": gradient, "eval_samples_per_mode": judge}
    counts = {name: number for name, number in requested.items() if number is not None}
    check_steps("an attack", batch_size=batch_size, **counts)
    usual = post.weights.samples_per_mode
    return usual if gradient is None else gradient, usual if judge is None else judge


def _check_adaptive(
    post: Posterior, adaptive: str | None, weight: float | None, samples: tuple[int, int]
) -> None:
    """Refuse a score that needs more samples, and warn of a weight without a score."""
    check_choice("adaptive", adaptive, (*ADAPTIVE, None))
    if weight is not None:
        check_number("weight", weight)
        if adaptive is None:
            warn("`weight` has no effect without `adaptive`, the score that it weighs")
    if adaptive == "mutual_information" and post.num_modes * min(samples) < 2:
        raise ValueError(
            "`adaptive` is 'mutual_information', which needs at least 2 samples, for gradients and"
            " for judging them, and there is 1; take more samples, or 'predictive_entropy'"
        )


def _evaluate(victim: Victim, x: Tensor, batch_size: int) -> CategoricalPrediction:
    parts = [slice(first, first + batch_size) for first in range(0, len(x), batch_size)]
    prediction = Prediction.cat([victim.rows(p).judge(x[p], "evaluate") for p in parts])
    assert isinstance(prediction, CategoricalPrediction)
    return prediction


def _first(path: list[Tensor], count: int) -> Tensor:
    """Return the inputs on the way, (T + 1, n, ...), of the first `count` examples of a batch."""
    return torch.stack([x[: max(0, count)] for x in path])


def _curves(searches: list[Search]) -> dict[str, np.ndarray]:
    """Return the curves along the first climb, (T + 1, N)."""
    return {
        name: torch.cat([torch.stack(s.curves[name]) for s in searches], 1).cpu().numpy()
        for name in CURVES
    }


def _flags(
    victim: Victim, aim: Aim, ball: Ball, reached: Tensor, checks: str, gradients: bool
) -> list[Flag]:
    if checks == "none" or not gradients:
        return []
    few = slice(0, LOOKED_AT)
    victim = victim.rows(few)
    flags = gradient_flags(victim, aim.rows(few), ball.centre[few])
    if checks == "full":
        flags += masking_flags(victim, aim.rows(few), ball.rows(few), reached[few])
    return flags
