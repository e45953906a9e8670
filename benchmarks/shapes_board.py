"""Methods on `shapes`, whose truth is known: `python -m benchmarks.shapes_board`, 2 CPU minutes.

Three small U-Nets by each method, one seed: methods are paired image by image, which says whether
these posteriors differ and not how methods vary between runs. Writes `results/shapes.json`: scores,
differences from the first method, and how near the entropy of a pixel is to the known one. With
`--images N` there are so many training and test images, for a trial.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from scipy.stats import spearmanr

import polymode as pm
from polymode.metrics.results import Results
from polymode.posterior import Posterior
from polymode.tasks import Task

RESULTS = Path(__file__).parents[1] / "results" / "shapes.json"
TRAINING: dict[str, Any] = {
    "num_modes": 3,
    "epochs": 12,
    "batch_size": 25,
    "lr": 1e-2,
    "progress": "silent",
}
METHODS: dict[str, dict[str, Any]] = {
    "deep_ensemble": {},
    "dropout": {},
    "swag": {},
    "laplace": {"structure": "last_layer", "output_covariance": "position",
                "prior_precision": 1.0},
    "forde": {},
}  # fmt: skip
SCORES = ("nll", "brier", "miou", "ece", "error_auroc")
PAIRED = ("nll", "miou")
OOD = (("stars", "auroc_mutual_information_top"), ("stars", "pixel_auroc_mutual_information"),
       ("pasted", "auroc_mutual_information_top"))  # fmt: skip


def unet(dropout: float = 0.0) -> torch.nn.Module:
    """Return the network of all methods, 5,816 parameters."""
    return pm.nets.unet((3, 32, 32), 4, channels=(8, 16), skips=(4,), dropout=dropout)


def fitted(method: str, task: Task, members: list[torch.nn.Module]) -> Posterior:
    """Return the posterior of a method; Laplace takes the ensemble's networks."""
    options = METHODS[method]
    if method == "laplace":
        return pm.fit(method, net=members, task=task, progress="silent", **options)
    net = (lambda: unet(0.1)) if method == "dropout" else unet
    return pm.fit(method, net=net, task=task, seed=0, **TRAINING, **options)


def against_truth(post: Posterior, task: Task) -> dict[str, float]:
    """Return how near predictions are to what labels were drawn from."""
    pred, probs = post.predict(task.test.x), task.exact.probs["test"]
    entropy, truth = pred.predictive_entropy, task.exact.entropy("test")
    divergence = torch.special.xlogy(probs, probs) - probs * pred.log_mean
    return {
        "rank correlation": float(spearmanr(entropy.flatten(), truth.flatten())[0]),
        "entropy less the known": (entropy - truth).mean().item(),
        "KL from the known": divergence.sum(-1).mean().item(),
    }


def measure(images: int | None) -> dict[str, Any]:
    sizes = {} if images is None else {"num_train": images, "num_test": images}
    task = pm.task("shapes", shifts=(), **sizes)
    members: list[torch.nn.Module] = []
    every: list[Results] = []
    rows = []
    for method in METHODS:
        started = time.process_time()
        post = fitted(method, task, members)
        members = members or post.members
        row = {"method": method, "cpu_seconds": time.process_time() - started}
        every.append(pm.evaluate(post, task, keep=False))
        row |= against_truth(post, task)
        rows.append(row)
        print(method, row, flush=True)
    board = pm.compare(every)
    for row, label, results in zip(rows, board.labels, every, strict=True):
        for dataset, score in [("test", score) for score in SCORES] + [
            (f"ood:{name}", score) for name, score in OOD
        ]:
            number = results[dataset, score]
            row[f"{dataset} {score}"] = [number.value, number.standard_error]
        for score in PAIRED if label != board.labels[0] else ():
            gap = board.difference(label, board.labels[0], score)
            row[f"difference {score}"] = None if gap is None else [gap.mean, gap.low, gap.high]
    return {"training": TRAINING, "methods": METHODS, "rows": rows,
            "torch": torch.__version__}  # fmt: skip


def main() -> None:
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    images = int(sys.argv[sys.argv.index("--images") + 1]) if "--images" in sys.argv else None
    report = measure(images)
    if images is None:
        RESULTS.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
