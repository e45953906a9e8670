"""Shared batches against an order of each member's own: deep ensembles, paired seeds.

    python -m benchmarks.data_order [--tasks digits concrete fashion_mnist] [--seeds 10]
        [--json results/data_order.json]

Each seed fits the same members twice, once with shared batches and once with orders of their own,
at a constant rate on all training data to the last step, and scores both on the test set. Given
tasks replace those in the file.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polymode as pm

TASKS: dict[str, tuple[Callable[[int], pm.Task], dict[str, Any], dict[str, Any]]] = {
    "digits": (lambda seed: pm.task("digits"), {"hidden": (100, 100)}, {"epochs": 60}),
    "concrete": (lambda seed: pm.task("uci_concrete", split=seed), {"hidden": (50,)}, {}),
    "fashion_mnist": (
        lambda seed: pm.task("fashion_mnist", num_train=6000, num_test=5000, ood=()),
        {"hidden": (128, 128)},
        {"epochs": 20},
    ),
}
"""Task of a seed, network and training; the network is an MLP, members are 8."""

MEMBERS = 8


def scores(name: str, seed: int, order: str) -> dict[str, float]:
    """Return test NLL, error (of classes) or root mean square error, and CPU seconds."""
    make, net, options = TASKS[name]
    task = make(seed)
    began = time.process_time()
    post = pm.fit(
        "deep_ensemble",
        net=lambda input_shape, num_outputs: pm.nets.mlp(input_shape, num_outputs, **net),
        task=task, seed=seed, num_modes=MEMBERS, data_order=order, holdout=0, progress="silent",
        **options,
    )  # fmt: skip
    seconds = time.process_time() - began
    prediction, y = post.predict(task.test.x), task.test.y
    nll = -prediction.log_prob(y).double().mean().item()
    if task.likelihood.classification:
        error = (prediction.mean.argmax(-1) != y).double().mean().item()
    else:
        error = (prediction.mean - y).double().square().mean().sqrt().item()
    return {"nll": nll, "error": error, "seconds": seconds}


def main() -> None:
    """Measure, and write what was measured after each pair."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--json", type=Path, default=Path("results/data_order.json"))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    held = json.loads(options.json.read_text()) if options.json.exists() else {}
    for name in options.tasks:
        held[name] = []
        for seed in range(options.seeds):
            orders = ("shared", "own") if seed % 2 else ("own", "shared")
            held[name].append({order: scores(name, seed, order) for order in orders})
            options.json.write_text(json.dumps(held, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
