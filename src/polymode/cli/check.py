"""`polymode check`: does this installation give right answers, where exact ones are known?"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from polymode import nets
from polymode.methods import fit
from polymode.metrics import classification, compare, evaluate
from polymode.posterior import Posterior, load
from polymode.prediction import CategoricalPrediction
from polymode.report import report
from polymode.tasks import Task, task

TRAINING: dict[str, Any] = {"epochs": 1500, "lr": 3e-2, "schedule": "cosine", "batch_size": 50}
TOLERANCE = 1e-5  # a prior that is wrong by 2 % is off by 5e-4


class Outcome(NamedTuple):
    """One line of the self-test."""

    name: str
    passed: bool
    detail: str


def checks() -> Iterator[Outcome]:
    """Yield the outcome of each check as it is known; one that raises has not passed."""
    for name, check in (
        ("map finds the exact posterior mean", _map_is_exact),
        ("deep ensemble of 2 agrees on a convex task", _ensemble),
        ("scores match hand-worked values", _scores),
        ("save, load, predict again", _files),
        ("a report can be written", _report),
    ):
        yield _outcome(name, check)


def _outcome(name: str, check: Callable[[], tuple[bool, str]]) -> Outcome:
    try:
        return Outcome(name, *check())
    except Exception as error:
        return Outcome(name, False, f"{type(error).__name__}: {error}")


def _fit(method: str, **options: Any) -> tuple[Task, Posterior]:
    linear_task = task("linear_regression")
    linear = partial(nets.mlp, hidden=())
    post = fit(
        method,
        net=linear,
        task=linear_task,
        dtype=torch.float64,
        progress="silent",
        execution="loop",
        **TRAINING,
        **options,
    )
    return linear_task, post


def _distance(problem: Task, post: Posterior) -> float:
    """Return the largest distance of any member's parameter from the exact posterior mean."""
    assert problem.exact is not None
    rows = [torch.cat([p.detach().flatten() for p in m.parameters()]) for m in post.members]
    return max((row - problem.exact.mean).abs().max().item() for row in rows)


def _map_is_exact() -> tuple[bool, str]:
    far = _distance(*_fit("map"))
    return far < TOLERANCE, f"largest distance {far:.1e}, allowed {TOLERANCE:g}"


def _ensemble() -> tuple[bool, str]:
    problem, post = _fit("deep_ensemble", num_modes=2)
    far = _distance(problem, post)
    passed = far < TOLERANCE and post.num_modes == 2
    return passed, f"largest distance {far:.1e}, allowed {TOLERANCE:g}"


def _scores() -> tuple[bool, str]:
    probs = torch.tensor([[[1.0, 0.0]], [[0.5, 0.5]]], dtype=torch.float64)
    got = classification.nll(CategoricalPrediction(probs.log()), torch.tensor([1])).value
    right = math.isclose(got, math.log(4), rel_tol=1e-12)
    return right, f"NLL {got:.6f}, log 4 = {math.log(4):.6f}"


def _files() -> tuple[bool, str]:
    moons = task("two_moons")
    post = fit("deep_ensemble", net=nets.mlp, task=moons, num_modes=2, epochs=1, progress="silent")
    assert moons.test is not None
    with tempfile.TemporaryDirectory() as folder:
        post.save(folder)
        again = load(folder, net=nets.mlp)
    same = torch.equal(post.predict(moons.test).mean, again.predict(moons.test).mean)
    return same, "equal predictions" if same else "predictions differ"


def _report() -> tuple[bool, str]:
    moons = task("two_moons")
    post = fit("map", net=nets.mlp, task=moons, epochs=1, progress="silent")
    with tempfile.TemporaryDirectory() as folder:
        size = report(compare([evaluate(post, moons)]), Path(folder) / "r.html").stat().st_size
    return size > 10_000, f"{size / 1000:.0f} kB"
