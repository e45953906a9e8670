"""Measure priors of `laplace` on validation parts: `python -m benchmarks.laplace_prior`, 2 minutes.

Networks are trained as by `map` and then given to `laplace` with priors found in several ways; the
NLL of the validation part is that of the predictive, next to that of the network alone. Writes
`results/laplace_prior.json`; with names of tasks, only those are measured again.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import polymode as pm
from polymode.posterior import Posterior
from polymode.tasks import Task

RESULTS = Path(__file__).parents[1] / "results" / "laplace_prior.json"
SEEDS = (0, 1, 2)
CASES: dict[str, tuple[str, Any, dict[str, Any], dict[str, Any]]] = {
    "digits, LeNet": ("digits", pm.nets.lenet, {}, {}),
    "two_moons, MLP": ("two_moons", pm.nets.mlp, {}, {"epochs": 200}),
    "gap_regression, MLP": ("gap_regression", pm.nets.mlp, {}, {"epochs": 500, "lr": 1e-2}),
    "uci_concrete, MLP": (
        "uci_concrete", pm.nets.mlp, {"noise": "learned"}, {"epochs": 100, "lr": 1e-2},
    ),
}  # fmt: skip
"""Task, network, options of the task, options of the training."""

PRIORS: dict[str, dict[str, Any]] = {
    "λ = 1": {"prior_precision": 1.0},
    "θ̃": {"evidence": "trained"},
    "θ*": {"evidence": "linear"},
    "θ*, per layer": {"evidence": "linear", "prior": "per_layer"},
    "θ*, last layer": {"evidence": "linear", "structure": "last_layer"},
}


def nll(post: Posterior, task: Task) -> float:
    """Return the mean −log p of the validation part."""
    assert task.val is not None
    y = next(iter(task.val.batches(len(task.val))))[1]
    return -float(post.predict(task.val).log_prob(y).mean())


def measured(case: str) -> list[dict[str, Any]]:
    """Return a row for each seed and prior."""
    name, net, of_task, training = CASES[case]
    rows = []
    for seed in SEEDS:
        task = pm.task(name, **of_task)
        trained = pm.fit("map", net=net, task=task, seed=seed, progress="silent", **training)
        rows.append({"case": case, "seed": seed, "prior": "MAP", "nll": nll(trained, task)})
        for prior, options in PRIORS.items():
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "the evidence switched")
                start = time.process_time()
                post = pm.fit(
                    "laplace", net=trained, task=task, seed=seed, progress="silent", **options
                )
                seconds = time.process_time() - start
            found = sorted({float(v[0]) for v in post.weights.precision.values()})  # type: ignore[attr-defined]
            row = {"nll": nll(post, task), "seconds": seconds, "precision": found}
            rows.append({"case": case, "seed": seed, "prior": prior, **row})
            print(rows[-1], flush=True)
    return rows


def main() -> None:
    wanted = sys.argv[1:] or list(CASES)
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    found = [row for row in kept if row["case"] not in wanted and row["case"] in CASES]
    for case in wanted:
        found += measured(case)
    found.sort(key=lambda row: list(CASES).index(row["case"]))
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
