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
from polymode.core.registry import Registry
from polymode.methods import fit
from polymode.metrics import compare, evaluate
from polymode.metrics.score import CLASSIFICATION, OOD_CLASSIFICATION, REGRESSION
from polymode.posterior import Posterior, load
from polymode.prediction import CategoricalPrediction, MixturePrediction, Prediction
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
        ("class scores match hand-worked values", _class_scores),
        ("regression scores match hand-worked values", _regression_scores),
        ("OOD scores match hand-worked values", _ood_scores),
        ("members that disagree make a wide prediction", _mixture),
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
    problem, post = _fit("deep_ensemble", num_modes=2, holdout=0)
    far = _distance(problem, post)
    passed = far < TOLERANCE and post.num_modes == 2
    return passed, f"largest distance {far:.1e}, allowed {TOLERANCE:g}"


def _class_scores() -> tuple[bool, str]:
    """Two members that give the label 0 and 1/2; four examples in two bins of confidence."""
    sure = CategoricalPrediction.from_probs(_rows([[1.0, 0.0]], [[0.5, 0.5]]))
    label = torch.tensor([1])
    four = CategoricalPrediction.from_probs(_rows([[0.75, 0.25]] * 2 + [[0.55, 0.45]] * 2))
    labels = torch.tensor([0, 1, 0, 0])
    return _compare(
        {
            "nll": (_score(CLASSIFICATION, "nll", sure, label), math.log(4)),
            "brier": (_score(CLASSIFICATION, "brier", sure, label), 2 * 0.75**2),
            "accuracy": (_score(CLASSIFICATION, "accuracy", four, labels), 0.75),
            "ece": (_score(CLASSIFICATION, "ece", four, labels), (0.25 + 0.45) / 2),
        }
    )


def _regression_scores() -> tuple[bool, str]:
    """One standard normal at its own mean."""
    zero = torch.zeros(1, 1, 1, dtype=torch.float64)
    normal, target = MixturePrediction(zero, zero + 1), zero[0]
    scores = {
        "nll": 0.5 * math.log(2 * math.pi),
        "rmse": 0.0,
        "crps": (math.sqrt(2) - 1) / math.sqrt(math.pi),
    }
    return _compare(
        {
            name: (_score(REGRESSION, name, normal, target), exact)
            for name, exact in scores.items()
            if name in REGRESSION
        }
    )


def _ood_scores() -> tuple[bool, str]:
    """Of four pairs, three have the OOD example as the more uncertain one."""
    test = CategoricalPrediction.from_probs(_rows([[0.9, 0.1], [0.6, 0.4]]))
    outside = CategoricalPrediction.from_probs(_rows([[0.5, 0.5], [0.8, 0.2]]))
    name = "auroc_predictive_entropy"
    return _compare({name: (_score(OOD_CLASSIFICATION, name, test, outside), 0.75)})


def _mixture() -> tuple[bool, str]:
    """N(-5, 0.1²) and N(5, 0.1²) in equal parts have the variance 25 + 0.01."""
    loc = torch.tensor([-5.0, 5.0], dtype=torch.float64).reshape(2, 1, 1)
    mixture = MixturePrediction(loc, torch.full_like(loc, 0.1))
    exact = {"variance": 25.01, "epistemic_variance": 25.0, "aleatoric_variance": 0.01}
    return _compare({name: (getattr(mixture, name).item(), value) for name, value in exact.items()})


def _rows(*members: list[list[float]]) -> torch.Tensor:
    return torch.tensor(members, dtype=torch.float64)


def _score(table: Registry[Any], name: str, prediction: Prediction, reference: Any) -> float:
    return float(table.get(name).value(prediction, reference).value)


def _compare(pairs: dict[str, tuple[float, float]]) -> tuple[bool, str]:
    """Return whether each first number is the second, with those that are not, or all."""
    wrong = {k: p for k, p in pairs.items() if not math.isclose(*p, rel_tol=1e-9, abs_tol=1e-12)}
    texts = [f"{k} {got:.6g}, exactly {right:.6g}" for k, (got, right) in (wrong or pairs).items()]
    return not wrong, "; ".join(texts)


def _files() -> tuple[bool, str]:
    moons = task("two_moons")
    post = fit(
        "deep_ensemble",
        net=nets.mlp,
        task=moons,
        num_modes=2,
        epochs=20,
        lr=0.02,
        progress="silent",
    )
    assert moons.test is not None
    with tempfile.TemporaryDirectory() as folder:
        post.save(folder)
        again = load(folder, net=nets.mlp)
    same = torch.equal(post.predict(moons.test).mean, again.predict(moons.test).mean)
    return same, "equal predictions" if same else "predictions differ"


def _report() -> tuple[bool, str]:
    moons = task("two_moons")
    post = fit("map", net=nets.mlp, task=moons, epochs=20, lr=0.02, progress="silent")
    with tempfile.TemporaryDirectory() as folder:
        size = report(compare([evaluate(post, moons)]), Path(folder) / "r.html").stat().st_size
    return size > 10_000, f"{size / 1000:.0f} kB"
