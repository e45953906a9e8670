"""MNIST: accuracy and NLL of the MLP and the CNN at α = 0, 0.5 and 1, and what K costs.

paper: 2 × 100 ReLUs with dropout 0.5 before every dense layer, inputs included; two 3x3
convolutions of 32 channels, pooling, 100 ReLUs, dropout 0.5 before the two dense layers; SGD at
0.01, batches of 128, 500 epochs; K = 10 in training, 100 in prediction; weight decay 1e-6 ‖W‖²
beside a mean loss, which is λ = 2 · 10⁻⁶ N. The time against K is measured with an MLP 4 × 1024.

cpu: the same networks on 10,000 images, Adam, 40 and 8 epochs, 50 passes in prediction, half of the
test set; time against K with the small MLP on 2,000 images. smoke has the small digits instead.

With K = 1 the objective does not know α; that arm is written as α = 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polymode.plots import Display, sweep
from polymode.runs.part import Arm, Experiment, Part
from polymode.studies.alpha_dropout import published
from polymode.studies.alpha_dropout.published import name_of
from polymode.studies.study import Claim, Runs, Table
from polymode.studies.table_cells import (
    Column,
    by_seed,
    difference_text,
    judge_sign,
    mean_cell,
    seeds_of,
)

PLAIN = "NN"
NETS = ("mnist_mlp", "mnist_cnn")
PASSES = "mnist_passes"
COUNTS = (1, 10, 100)
_SAMPLES = {"smoke": 10, "cpu": 50, "paper": 100}
_DECAY = 2e-6  # torch's: twice the factor of ‖W‖²


def arms(
    training: dict[str, Any], dropped: dict[str, Any], samples_per_mode: int
) -> dict[str, Arm]:
    """Return the plain network by maximum likelihood, and dropout with each α.

    Args:
        training: options of all. dropped: options of the network that switch its dropout on.
        samples_per_mode: passes of a prediction.
    """
    noisy = {**training, "num_passes": 10, "samples_per_mode": samples_per_mode}
    named = {PLAIN: Arm("map", {**training, "prior_precision": 0.0})}
    for alpha in published.ALPHAS:
        named[name_of(alpha)] = Arm("dropout", {**noisy, "alpha": alpha}, dict(dropped))
    return named


def task_options(preset: str, size: int, num_test: int) -> dict[str, Any]:
    """Return the options of the task: all of digits, or as much of MNIST as the preset takes."""
    if preset == "smoke":
        return {}
    few = {"num_test": num_test} if preset == "cpu" else {}
    return {"num_train": size, "num_val": 0, "shifts": [], "ood": [], **few}


def parts(preset: str) -> dict[str, Part | Experiment]:
    """Return the two networks and the time against K."""
    size = {"smoke": 1197, "cpu": 10_000, "paper": 60_000}[preset]
    name = "digits" if preset == "smoke" else "mnist"
    task = task_options(preset, size, num_test=5000)
    decay = {"prior_precision": _DECAY * size}
    training: dict[str, Any] = {"batch_size": 128, **decay}
    if preset == "paper":
        training |= {"optimizer": "sgd", "lr": 0.01, "epochs": 500}
    else:
        training |= {"lr": 1e-3}
    lengths = {"smoke": (1, 1), "cpu": (40, 8), "paper": (500, 500)}[preset]
    seeds = (0, 1) if preset == "smoke" else (0, 1, 2)
    dense, samples = {"dropout": 0.5, "input_dropout": 0.5}, _SAMPLES[preset]
    return {
        "mnist_mlp": Part(
            task=name, task_options=task, net="mlp", net_options={"hidden": [100, 100]},
            arms=arms({**training, "epochs": lengths[0]}, dense, samples), seeds=seeds,
        ),
        "mnist_cnn": Part(
            task=name, task_options=task, net="cnn",
            arms=arms({**training, "epochs": lengths[1]}, {"dropout": 0.5}, samples), seeds=seeds,
        ),
        PASSES: _passes(preset, name, task, training, seeds),
    }  # fmt: skip


def _passes(
    preset: str,
    name: str,
    task: dict[str, Any],
    training: dict[str, Any],
    seeds: tuple[int, ...],
) -> Part:
    size = {"smoke": 1197, "cpu": 2000, "paper": 60_000}[preset]
    hidden = [1024] * 4 if preset == "paper" else [100, 100]
    counts = COUNTS[:2] if preset == "smoke" else COUNTS
    shared = {
        **training, "samples_per_mode": _SAMPLES[preset], "prior_precision": _DECAY * size,
        "epochs": {"smoke": 1, "cpu": 30, "paper": 500}[preset],
    }  # fmt: skip
    return Part(
        task=name,
        task_options={**task, "num_train": size} if task else {},
        net="mlp",
        net_options={"hidden": hidden, "dropout": 0.5, "input_dropout": 0.5},
        arms={
            f"K = {k}": Arm("dropout", {**shared, "num_passes": k, "alpha": float(k > 1)})
            for k in counts
        },
        seeds=seeds,
    )


def tables(runs: Runs) -> dict[str, Table]:
    """Return accuracy and NLL of each network, and the cost of K passes."""
    by_part = {part: _scores(runs, part) for part in NETS if part in runs.parts}
    return by_part | ({PASSES: _costs(runs)} if PASSES in runs.parts else {})


def _scores(runs: Runs, part: str) -> Table:
    lines = []
    for arm in runs.arms(part):
        lines.append((arm, *_cells(runs, part, arm)))
    net = {"mnist_mlp": "MLP 2 × 100", "mnist_cnn": "CNN"}[part]
    seeds = len(runs.of(part, runs.arms(part)[0]))
    return Table(
        f"MNIST, {net}",
        ("arm", "accuracy % ↑", "NLL ↓", "ECE ↓"),
        tuple(lines),
        f"mean ± s.e. over {seeds} seeds; {PLAIN}: maximum likelihood without dropout",
    )


def _costs(runs: Runs) -> Table:
    lines = []
    plain = _seconds(runs, "K = 1")
    for arm in runs.arms(PASSES):
        seconds = _seconds(runs, arm)
        ratio = f"{np.median(seconds) / np.median(plain):.1f}" if plain else "n/a"
        lines.append((arm, f"{np.median(seconds):.1f}", ratio, *_cells(runs, PASSES, arm)[:2]))
    return Table(
        "MNIST: K passes in a training step, α = 1",
        ("arm", "training, s", "to K = 1", "accuracy % ↑", "NLL ↓"),
        tuple(lines),
        "median of the seconds over seeds, scores mean ± s.e.; equal numbers of steps",
    )


def _seconds(runs: Runs, arm: str) -> list[float]:
    times = (cell.cost.train_seconds for cell in runs.of(PASSES, arm))
    return [seconds for seconds in times if seconds is not None]


def _cells(runs: Runs, part: str, arm: str) -> list[str]:
    """Return accuracy in per cent, NLL and ECE of an arm."""
    scores = Column("test", "accuracy", 100), Column("test", "nll"), Column("test", "ece")
    return [
        mean_cell(column.values(runs, part, arm), 2 if column.factor == 100 else 4)
        for column in scores
    ]


def figures(runs: Runs) -> dict[str, Display]:
    """Return NLL and training time against K."""
    arms = [f"K = {k}" for k in COUNTS if runs.of(PASSES, f"K = {k}")]
    if len(arms) < 2:
        return {}
    seeds = seeds_of(runs, PASSES, arms)
    times = [
        {cell.seed: cell.cost.train_seconds or np.nan for cell in runs.of(PASSES, arm)}
        for arm in arms
    ]
    curves = {
        "test NLL (nats)": by_seed(
            [runs.values(PASSES, arm, "test", "nll") for arm in arms], seeds
        ),
        "training (s)": by_seed(times, seeds),
    }
    counts = [int(arm.removeprefix("K = ")) for arm in arms]
    return {PASSES: sweep(counts, curves, name="K, passes in a training step")}


def claims(runs: Runs) -> list[Claim]:
    """Return what the paper says of its figures on MNIST."""
    claimed = []
    for part, sign in (("mnist_mlp", 1), ("mnist_cnn", -1)):
        if part in runs.parts:
            claimed += [_nll(runs, part), _accuracy(runs, part, sign)]
    return claimed + ([_ten_passes(runs)] if PASSES in runs.parts else [])


def _nll(runs: Runs, part: str) -> Claim:
    """On the MLP α = 0.5 is below α = 0; on the CNN their curves lie on top of each other, which is
    refuted by a clear difference and shown by none."""
    gap = runs.difference(part, name_of(0.5), name_of(0.0), "test", "nll")
    text, verdict = "has a lower NLL than", judge_sign(gap, sign=-1)
    if part == "mnist_cnn":
        text = "has about the NLL of"
        verdict = "not run" if gap is None else "does not hold" if gap.clear else "undecided"
    return Claim(
        f"{part}: α = 0.5 {text} α = 0",
        "figure, no numbers",
        difference_text(gap, "NLL, α = 0.5 − α = 0, nats", digits=4),
        verdict,
    )


def _accuracy(runs: Runs, part: str, sign: int) -> Claim:
    gap = runs.difference(part, name_of(1.0), name_of(0.0), "test", "accuracy")
    return Claim(
        f"{part}: α = 1 has a {'higher' if sign > 0 else 'lower'} accuracy than α = 0",
        "figure, no numbers",
        difference_text(gap, "accuracy, α = 1 − α = 0", digits=4),
        judge_sign(gap, sign=sign),
    )


def _ten_passes(runs: Runs) -> Claim:
    gap = runs.difference(PASSES, "K = 10", "K = 1", "test", "nll")
    return Claim(
        "MNIST: ten passes in a training step reach a lower NLL than one",
        "0.050 and 0.060 nats after 3,000 s (figure)",
        difference_text(gap, "NLL, K = 10 − K = 1, nats", digits=4),
        judge_sign(gap, sign=-1),
    )
