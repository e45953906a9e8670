"""Choose rates and lengths of the study `symmetry`: `python -m benchmarks.symmetry_tuning`.

It takes 5 minutes.

Candidates of each arm are trained on the training part of the digits and scored on their
validation part: the NLL of a posterior with one mode, mean over posteriors that start and shuffle
by streams of their own, none of which the study uses. The test set is not read. Rule: of the
candidates within one standard error of the lowest NLL those of the shortest training, and of these
the lowest NLL. What trains the zoo is chosen first, as dropout and Laplace are trained by it.
Writes `results/symmetry/tuning.json`; a test compares the study with what it says.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import torch

import polymode as pm
from polymode.runs.part import Arm
from polymode.studies.symmetry.setup import parts
from polymode.training.loop import Divergence

RESULTS = Path(__file__).parents[1] / "results" / "symmetry" / "tuning.json"
POSTERIORS, SEED = 4, 1000
Candidate = dict[str, Any]


def grid(**values: tuple[Any, ...]) -> list[Candidate]:
    """Return all combinations."""
    found: list[Candidate] = [{}]
    for name, each in values.items():
        found = [{**one, name: value} for one in found for value in each]
    return found


CANDIDATES: dict[str, list[Candidate]] = {
    "DE": grid(lr=(0.01, 0.02, 0.05, 0.1), epochs=(8, 15, 30)),
    "Dropout": grid(dropout=(0.05, 0.1, 0.2)),
    "Laplace": grid(evidence=(None, "trained")),
    "SWAG": grid(lr=(0.01, 0.02, 0.05, 0.1), epochs=(15, 30, 60)),
    "viBNN": grid(lr=(3e-3, 1e-2, 3e-2), epochs=(20, 40)),
    "SGHMC": grid(lr=(3e-3, 1e-2, 2e-2, 3e-2), epochs=(40, 80)),
}


def arm_of(name: str, candidate: Candidate, trained: Candidate) -> Arm:
    """Return the study's arm with one mode, with a candidate's options and the zoo's training."""
    arms = parts("cpu")["digits"].arms  # type: ignore[union-attr]
    own: Any = arms["DE" if name == "DE" else f"{name}, one"]
    options, net_options = {**own.options}, {**own.net_options}
    if name in ("Dropout", "Laplace"):
        options |= trained
    for key, value in candidate.items():
        (net_options if key == "dropout" else options)[key] = value
    return Arm(own.method, {**options, "num_modes": POSTERIORS}, net_options)


def validation_nll(task: pm.Task, arm: Arm) -> list[float]:
    """Return the NLL of each mode taken alone, nats per example of the validation set."""
    x, y = next(iter(task.val.batches(len(task.val))))  # type: ignore[union-attr, arg-type]
    post = pm.fit(
        arm.method,
        net=lambda: pm.nets.lenet(task.input_shape, task.num_outputs, **arm.net_options),
        task=task, seed=SEED, progress="silent", **arm.options,
    )  # fmt: skip
    log_probs = post.predict(x).log_probs.double()  # type: ignore[attr-defined]
    by_mode = log_probs.unflatten(0, (POSTERIORS, -1))
    mean = by_mode.logsumexp(1) - math.log(by_mode.shape[1])
    return [-float(each[torch.arange(len(y)), y].mean()) for each in mean]


def scored(candidate: Candidate, task: pm.Task, arm: Arm) -> dict[str, Any]:
    """Return a candidate with its mean NLL and standard error; None where training diverged."""
    try:
        values = torch.tensor(validation_nll(task, arm))
    except Divergence:
        return {"candidate": candidate, "nll": None, "error": None}
    error = float(values.std() / len(values) ** 0.5)
    return {"candidate": candidate, "nll": float(values.mean()), "error": error}


def chosen(rows: list[dict[str, Any]]) -> Candidate:
    """Return the candidate that the rule takes."""
    rows = [row for row in rows if row["nll"] is not None]
    best = min(rows, key=lambda row: row["nll"])
    near = [row for row in rows if row["nll"] <= best["nll"] + best["error"]]
    taken = min(near, key=lambda row: (row["candidate"].get("epochs", 0), row["nll"]))
    return dict(taken["candidate"])


def main() -> None:
    task, found, trained = pm.task("digits"), {}, {}
    for name, candidates in CANDIDATES.items():
        rows = []
        for candidate in candidates:
            rows.append(scored(candidate, task, arm_of(name, candidate, trained)))
            print(name, rows[-1], file=sys.stderr, flush=True)
        found[name] = {"candidates": rows, "chosen": chosen(rows)}
        if name == "DE":
            trained = found[name]["chosen"]
    about = {"torch": torch.__version__, "posteriors": POSTERIORS, "seed": SEED,
             "examples": len(task.val)}  # type: ignore[arg-type]  # fmt: skip
    RESULTS.write_text(json.dumps({"about": about, "arms": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
