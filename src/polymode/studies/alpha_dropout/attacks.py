"""Attacks on MNIST: the paper's two, and what an attacker does who knows the detector.

paper: an MLP 3 × 1000 by maximum likelihood and three by dropout at α = 0, 0.5 and 1, K = 10 for
attacks and predictions. FGSM, η = 0 ... 0.5, steps away from the predicted class; iterative FGSM
towards class 0 with steps of 0.01. It reads rising entropy as detection, and has no attack on it.

Later work starts from the opposite end: posteriors, those by HMC included, and detection by their
uncertainty fall to plain attacks (Y. Feng, T. G. J. Rudner, N. Tsilivis, J. Kempe, Attacking Bayes,
arXiv:2404.19640). So beside each curve of the paper stands PGD with and without knowledge of the
predictive entropy, and a deep ensemble and FoRDE are attacked alike. The original's FGSM on the
dropout networks took a softmax of probabilities; here all are attacked through log p(y|x).

smoke: digits, which needs no files. cpu: 2 × 200 on 10,000 images, 300 attacked ones, η in steps of
0.05, 5 seeds; about 14 minutes of one core.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from polymode.adversary.examination import radii_of
from polymode.examinations import read_asked
from polymode.metrics.paired import Difference, mean_and_error, paired
from polymode.metrics.table import number
from polymode.plots import (
    Comparison,
    Display,
    attack_curves,
    attack_trajectory,
    detection_curves,
    palette,
)
from polymode.plots.axes import over_seeds
from polymode.runs.part import Arm, Experiment, Part
from polymode.studies.alpha_dropout.mnist import PLAIN, arms
from polymode.studies.alpha_dropout.published import name_of
from polymode.studies.study import Claim, Runs, Table, judged, said

PART = "mnist_attacks"
ENSEMBLE, FORDE = "DE", "FoRDE"
KNOWN = "predictive_entropy"
TARGET = 0
SHOWN_ETAS = (0.1, 0.2, 0.3, 0.5)
SHOWN_STEPS = (5, 10, 20, 30, 40)
STRONG = 0.2  # η of the claims: where the paper says that the plain network is confidently wrong
_DECAY = 2e-6
_SAMPLES = 10


def examinations(preset: str) -> dict[str, str]:
    """Return the four attacks as `--examine` takes them."""
    size = {"smoke": 20, "cpu": 300, "paper": 1000}[preset]
    count = {"smoke": 5, "cpu": 10, "paper": 25}[preset]
    etas = [round(0.5 * step / count, 4) for step in range(count + 1)]
    radii = {"smoke": [0.0, STRONG], "cpu": [0.0, 0.05, 0.1, STRONG]}.get(
        preset, [0.0, 0.05, 0.1, STRONG, 0.3]
    )
    steps = {"smoke": 2, "cpu": 20, "paper": 50}[preset]
    path = {"smoke": 5, "cpu": 40, "paper": 100}[preset]
    pgd = f"attack:eps={radii},kind=pgd,num_examples={size},steps={steps}"
    texts = {
        "fgsm": f"attack:away_from=predicted,checks=quick,eps={etas},kind=fgsm,num_examples={size}",
        "targeted": f"attack:checks=quick,eps=[1.0],keep=last,kind=bim,num_examples={size},"
        f"step_size=0.01,steps={path},target={TARGET}",
        "pgd": pgd,
        "adaptive": f"{pgd},adaptive={KNOWN}",
    }
    return {name: str(read_asked(text)) for name, text in texts.items()}


def parts(preset: str) -> dict[str, Part | Experiment]:
    """Return the part whose posteriors are attacked."""
    size = {"smoke": 1197, "cpu": 10_000, "paper": 60_000}[preset]
    task: dict[str, Any] = {}
    if preset != "smoke":
        task = {"num_train": size, "num_val": 0, "shifts": [], "ood": []}
    if preset == "cpu":
        task["num_test"] = 2000
    training: dict[str, Any] = {"batch_size": 128, "prior_precision": _DECAY * size}
    if preset == "paper":
        training |= {"optimizer": "sgd", "lr": 0.01, "epochs": 500}
    else:
        training |= {"lr": 1e-3, "epochs": 1 if preset == "smoke" else 12}
    found = arms(training, {"dropout": 0.5, "input_dropout": 0.5}, _SAMPLES)
    members = {**training, "num_modes": {"smoke": 2, "cpu": 5, "paper": 10}[preset]}
    found[ENSEMBLE] = Arm("deep_ensemble", members)
    found[FORDE] = Arm("forde", members)
    return {
        PART: Part(
            task="digits" if preset == "smoke" else "mnist", task_options=task, net="mlp",
            net_options={"hidden": [1000] * 3 if preset == "paper" else [200, 200]},
            arms=found, seeds=(0, 1) if preset == "smoke" else (0, 1, 2, 3, 4),
            examine=tuple(examinations(preset).values()),
        )
    }  # fmt: skip


class Found:
    """The curves of one attack on one arm, by seed."""

    def __init__(self, runs: Runs, arm: str, label: str) -> None:
        found = runs.findings(PART, arm, label) if label else {}
        self.by_seed = {seed: findings.arrays for seed, findings in found.items()}

    def at(self, curve: str, place: float, axis: str = "eps") -> dict[int, float]:
        """Return a number of a curve by seed, at a radius or at a step; none where it is not."""
        values = {}
        for seed, arrays in self.by_seed.items():
            if curve not in arrays:
                continue
            places = arrays[axis] if axis == "eps" else np.arange(len(arrays[curve]))
            hit = np.flatnonzero(np.isclose(places, place))
            if len(hit) and np.isfinite(arrays[curve][hit[0]]):
                values[seed] = float(arrays[curve][hit[0]])
        return values

    def mean(self) -> dict[str, np.ndarray]:
        """Return the curves' means over seeds, and the flags of all; images are those of the
        first."""
        several = list(self.by_seed.values())
        first = dict(several[0])
        first["flags"] = np.concatenate([each["flags"] for each in several])
        for name, values in first.items():
            if np.ndim(values) == 1 and np.asarray(values).dtype.kind == "f":
                first[name] = np.mean([each[name] for each in several], 0)
        return first


def _labels(runs: Runs) -> dict[str, str]:
    """Return the four attacks as these runs have them, whatever the preset."""
    labels = {name for each in runs.all(PART) for name in each.arrays if name.startswith("attack")}
    kinds = {}
    for label in sorted(labels):
        options = read_asked(label).options
        kind = {"fgsm": "fgsm", "bim": "targeted"}.get(options["kind"], "pgd")
        kinds["adaptive" if "adaptive" in options else kind] = label
    return kinds


def tables(runs: Runs) -> dict[str, Table]:
    """Return one table per attack."""
    labels = _labels(runs)
    found = {}
    if "fgsm" in labels:
        found["attack_fgsm"] = _fgsm(runs, labels["fgsm"])
    if "targeted" in labels:
        found["attack_targeted"] = _targeted(runs, labels["targeted"])
    if "pgd" in labels and "adaptive" in labels:
        found["attack_adaptive"] = _adaptive(runs, labels)
    return found


def _cell(values: dict[int, float], digits: int = 3) -> str:
    return number(*mean_and_error(list(values.values())), digits) if values else "n/a"


def _seeds(runs: Runs) -> str:
    return over_seeds(max(len(runs.of(PART, arm)) for arm in runs.arms(PART)))


def _fgsm(runs: Runs, label: str) -> Table:
    etas = [eta for eta in SHOWN_ETAS if any(np.isclose(_radii(label), eta))]
    lines = []
    for arm in runs.arms(PART):
        found = Found(runs, arm, label)
        for title, curve in (
            ("accuracy", "accuracy"),
            ("entropy, nats", "predictive_entropy"),
            ("AUROC by entropy", "auroc predictive_entropy"),
        ):
            lines.append((f"{arm}, {title}", *(_cell(found.at(curve, eta)) for eta in etas)))
    head = ("arm", *(f"η = {eta:g}" for eta in etas))
    note = f"{_seeds(runs)}; one step away from the predicted class, which knows no detector"
    return Table("MNIST under FGSM", head, tuple(lines), note)


def _radii(label: str) -> list[float]:
    return radii_of(read_asked(label).options["eps"])


def _targeted(runs: Runs, label: str) -> Table:
    last = int(read_asked(label).options["steps"])
    steps = [step for step in SHOWN_STEPS if step <= last]
    lines = []
    for arm in runs.arms(PART):
        found = Found(runs, arm, label)
        for title, curve in (
            ("predicted 0", "step success"),
            ("entropy, nats", "step predictive_entropy"),
        ):
            cells = (_cell(found.at(curve, step, "step")) for step in steps)
            lines.append((f"{arm}, {title}", *cells))
    note = f"{_seeds(runs)}; steps of 0.01 towards class 0, all other digits"
    head = ("arm", *(f"step {step}" for step in steps))
    return Table("MNIST under targeted iterative FGSM", head, tuple(lines), note)


def _adaptive(runs: Runs, labels: dict[str, str]) -> Table:
    columns = (
        ("accuracy ↑", "accuracy"),
        ("entropy, nats", "predictive_entropy"),
        ("AUROC ↑", "auroc predictive_entropy"),
        ("AUROC, successful ↑", "auroc successful predictive_entropy"),
        ("accepted and wrong ↓", "accepted wrong"),
    )
    lines = []
    for arm in runs.arms(PART):
        for name in ("pgd", "adaptive"):
            found = Found(runs, arm, labels[name])
            cells = (_cell(found.at(curve, STRONG)) for _, curve in columns)
            lines.append((f"{arm}, {name}", *cells))
    note = (
        f"{_seeds(runs)}; AUROC of attacked against clean inputs by predictive entropy; accepted:"
        " below the entropy that 5 % of clean inputs exceed; adaptive: the loss has the predictive"
        " entropy in it"
    )
    title = f"MNIST under PGD, η = {STRONG:g}, without and with knowledge of the detector"
    return Table(title, ("arm", *(head for head, _ in columns)), tuple(lines), note)


def figures(runs: Runs) -> dict[str, Display]:
    """Return the paper's two figures, detection without and with an adaptive attack, and images."""
    labels, styles = _labels(runs), palette(runs.arms(PART))
    found: dict[str, Display] = {}
    curves = {
        name: {
            arm: made.mean() for arm in runs.arms(PART) if (made := Found(runs, arm, label)).by_seed
        }
        for name, label in labels.items()
    }
    if curves.get("fgsm"):
        found["attack_fgsm"] = attack_curves(curves["fgsm"], label="FGSM", styles=styles)
        found["attack_fgsm_detection"] = detection_curves(
            curves["fgsm"], label="FGSM, detection", styles=styles
        )
    if curves.get("targeted"):
        panels = ["success", "predictive_entropy", "mutual_information"]
        found["attack_targeted"] = attack_curves(
            curves["targeted"], against="step", metrics=panels,
            label="iterative FGSM towards class 0", styles=styles,
        )  # fmt: skip
        for arm, arrays in curves["targeted"].items():
            if arm in (PLAIN, name_of(0.5)) and "images" in arrays:
                name = "plain" if arm == PLAIN else "dropout"
                found[f"attack_images_{name}"] = attack_trajectory(arrays, label=arm)
    for name, title in (("pgd", "PGD"), ("adaptive", "PGD that knows the predictive entropy")):
        if curves.get(name):
            found[f"attack_{name}"] = detection_curves(curves[name], label=title, styles=styles)
    return found


def claims(runs: Runs) -> list[Claim]:
    """Return what the paper reads from its figures, and what the adaptive attack leaves of it."""
    labels = _labels(runs)
    if PART not in runs.parts or len(labels) < 4:
        return []

    def gap(
        first: Callable[[], dict[int, float]], second: Callable[[], dict[int, float]]
    ) -> Difference | None:
        ours, theirs = first(), second()
        return paired([ours[seed] - theirs[seed] for seed in ours if seed in theirs])

    half, last = name_of(0.5), int(read_asked(labels["targeted"]).options["steps"])
    fgsm = {arm: Found(runs, arm, labels["fgsm"]) for arm in runs.arms(PART)}
    path = {arm: Found(runs, arm, labels["targeted"]) for arm in runs.arms(PART)}
    entropy, area = "predictive_entropy", "auroc predictive_entropy"
    found = []

    def add(text: str, paper: str, what: str, difference: Difference | None, sign: int = 1) -> None:
        found.append(Claim(text, paper, said(difference, what), judged(difference, sign=sign)))

    none = "figure, no numbers"
    add(
        f"FGSM: at η = {STRONG:g} dropout with α = 0.5 is less certain than the plain network",
        none,
        "entropy, α = 0.5 − NN, nats",
        gap(lambda: fgsm[half].at(entropy, STRONG), lambda: fgsm[PLAIN].at(entropy, STRONG)),
    )
    add(
        "FGSM: the entropy of dropout, α = 0.5, keeps growing with η",
        "grows up to η = 0.5 (figure)",
        f"entropy at η = 0.5 − at {STRONG:g}, nats",
        gap(lambda: fgsm[half].at(entropy, 0.5), lambda: fgsm[half].at(entropy, STRONG)),
    )
    add(
        "FGSM: α = 1 is more robust than α = 0",
        none,
        "accuracy at η = 0.1, α = 1 − α = 0",
        gap(
            lambda: fgsm[name_of(1.0)].at("accuracy", 0.1),
            lambda: fgsm[name_of(0.0)].at("accuracy", 0.1),
        ),
    )
    add(
        f"Targeted: after {last} steps dropout, α = 0.5, is less certain than the plain network",
        none,
        "entropy, α = 0.5 − NN, nats",
        gap(
            lambda: path[half].at(f"step {entropy}", last, "step"),
            lambda: path[PLAIN].at(f"step {entropy}", last, "step"),
        ),
    )
    for arm in runs.arms(PART):
        plain, known = (Found(runs, arm, labels[name]) for name in ("pgd", "adaptive"))
        add(
            f"An attack that knows the entropy lowers the detection of {arm}, η = {STRONG:g}",
            "not tried; arXiv:2404.19640 breaks such detectors",
            "AUROC, adaptive − plain PGD",
            gap(lambda a=known: a.at(area, STRONG), lambda a=plain: a.at(area, STRONG)),  # type: ignore[misc]
            -1,
        )
    return found


def comparisons(preset: str, runs: Runs) -> list[Comparison]:
    """The paper has figures alone."""
    return []
