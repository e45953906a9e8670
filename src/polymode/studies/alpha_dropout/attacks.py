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

from typing import Any

import numpy as np

from polymode.adversary.examination import radii_of
from polymode.examinations import read_asked
from polymode.metrics.paired import Difference
from polymode.plots import (
    Display,
    attack_curves,
    attack_trajectory,
    detection_curves,
    palette,
)
from polymode.plots.axes import over_seeds
from polymode.runs.part import Arm, Experiment, Part
from polymode.studies.alpha_dropout.mnist import PLAIN, arms, task_options
from polymode.studies.alpha_dropout.published import name_of
from polymode.studies.study import Claim, Runs, Table, paired_difference
from polymode.studies.table_cells import difference_text, judge_sign, mean_cell

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
    task = task_options(preset, size, num_test=2000)
    training: dict[str, Any] = {"batch_size": 128, "prior_precision": _DECAY * size}
    if preset == "paper":
        training |= {"optimizer": "sgd", "lr": 0.01, "epochs": 500}
    else:
        training |= {"lr": 1e-3, "epochs": 1 if preset == "smoke" else 12}
    attacked = arms(training, {"dropout": 0.5, "input_dropout": 0.5}, _SAMPLES)
    members = {**training, "num_modes": {"smoke": 2, "cpu": 5, "paper": 10}[preset]}
    attacked[ENSEMBLE] = Arm("deep_ensemble", members)
    attacked[FORDE] = Arm("forde", members)
    return {
        PART: Part(
            task="digits" if preset == "smoke" else "mnist", task_options=task, net="mlp",
            net_options={"hidden": [1000] * 3 if preset == "paper" else [200, 200]},
            arms=attacked, seeds=(0, 1) if preset == "smoke" else (0, 1, 2, 3, 4),
            examine=tuple(examinations(preset).values()),
        )
    }  # fmt: skip


class AttackCurves:
    """The curves of one attack on one arm, by seed."""

    def __init__(self, runs: Runs, arm: str, label: str) -> None:
        findings = runs.findings(PART, arm, label) if label else {}
        self.by_seed = {seed: f.arrays for seed, f in findings.items()}

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
        seeds = list(self.by_seed.values())
        mean = dict(seeds[0])
        mean["flags"] = np.concatenate([arrays["flags"] for arrays in seeds])
        for name, values in mean.items():
            if np.ndim(values) == 1 and np.asarray(values).dtype.kind == "f":
                mean[name] = np.mean([arrays[name] for arrays in seeds], 0)
        return mean


def _labels(runs: Runs) -> dict[str, str]:
    """Return the four attacks as these runs have them, whatever the preset."""
    labels = {name for r in runs.all(PART) for name in r.arrays if name.startswith("attack")}
    kinds = {}
    for label in sorted(labels):
        options = read_asked(label).options
        kind = {"fgsm": "fgsm", "bim": "targeted"}.get(options["kind"], "pgd")
        kinds["adaptive" if "adaptive" in options else kind] = label
    return kinds


def tables(runs: Runs) -> dict[str, Table]:
    """Return one table per attack."""
    labels = _labels(runs)
    by_name = {}
    if "fgsm" in labels:
        by_name["attack_fgsm"] = _fgsm(runs, labels["fgsm"])
    if "targeted" in labels:
        by_name["attack_targeted"] = _targeted(runs, labels["targeted"])
    if "pgd" in labels and "adaptive" in labels:
        by_name["attack_adaptive"] = _adaptive(runs, labels)
    return by_name


def _seeds(runs: Runs) -> str:
    return over_seeds(max(len(runs.of(PART, arm)) for arm in runs.arms(PART)))


def _fgsm(runs: Runs, label: str) -> Table:
    etas = [eta for eta in SHOWN_ETAS if any(np.isclose(_radii(label), eta))]
    lines = []
    for arm in runs.arms(PART):
        curves = AttackCurves(runs, arm, label)
        for title, curve in (
            ("accuracy", "accuracy"),
            ("entropy, nats", "predictive_entropy"),
            ("AUROC by entropy", "auroc predictive_entropy"),
        ):
            lines.append(
                (f"{arm}, {title}", *(mean_cell(curves.at(curve, eta), 3) for eta in etas))
            )
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
        curves = AttackCurves(runs, arm, label)
        for title, curve in (
            ("predicted 0", "step success"),
            ("entropy, nats", "step predictive_entropy"),
        ):
            cells = (mean_cell(curves.at(curve, step, "step"), 3) for step in steps)
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
            curves = AttackCurves(runs, arm, labels[name])
            cells = (mean_cell(curves.at(curve, STRONG), 3) for _, curve in columns)
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
    displays: dict[str, Display] = {}
    curves: dict[str, dict[str, dict[str, np.ndarray]]] = {}
    for name, label in labels.items():
        attacks = {arm: AttackCurves(runs, arm, label) for arm in runs.arms(PART)}
        curves[name] = {arm: attack.mean() for arm, attack in attacks.items() if attack.by_seed}
    if curves.get("fgsm"):
        displays["attack_fgsm"] = attack_curves(curves["fgsm"], label="FGSM", styles=styles)
        displays["attack_fgsm_detection"] = detection_curves(
            curves["fgsm"], label="FGSM, detection", styles=styles
        )
    if curves.get("targeted"):
        panels = ["success", "predictive_entropy", "mutual_information"]
        displays["attack_targeted"] = attack_curves(
            curves["targeted"], against="step", metrics=panels,
            label="iterative FGSM towards class 0", styles=styles,
        )  # fmt: skip
        for arm, arrays in curves["targeted"].items():
            if arm in (PLAIN, name_of(0.5)) and "images" in arrays:
                name = "plain" if arm == PLAIN else "dropout"
                displays[f"attack_images_{name}"] = attack_trajectory(arrays, label=arm)
    for name, title in (("pgd", "PGD"), ("adaptive", "PGD that knows the predictive entropy")):
        if curves.get(name):
            displays[f"attack_{name}"] = detection_curves(curves[name], label=title, styles=styles)
    return displays


def claims(runs: Runs) -> list[Claim]:
    """Return what the paper reads from its figures, and what the adaptive attack leaves of it."""
    labels = _labels(runs)
    if PART not in runs.parts or len(labels) < 4:
        return []
    half, last = name_of(0.5), int(read_asked(labels["targeted"]).options["steps"])
    fgsm = {arm: AttackCurves(runs, arm, labels["fgsm"]) for arm in runs.arms(PART)}
    path = {arm: AttackCurves(runs, arm, labels["targeted"]) for arm in runs.arms(PART)}
    entropy, area, figure = "predictive_entropy", "auroc predictive_entropy", "figure, no numbers"
    claimed = [
        _claim(
            f"FGSM: at η = {STRONG:g} dropout with α = 0.5 is less certain than the plain network",
            figure,
            "entropy, α = 0.5 − NN, nats",
            paired_difference(fgsm[half].at(entropy, STRONG), fgsm[PLAIN].at(entropy, STRONG)),
        ),
        _claim(
            "FGSM: the entropy of dropout, α = 0.5, keeps growing with η",
            "grows up to η = 0.5 (figure)",
            f"entropy at η = 0.5 − at {STRONG:g}, nats",
            paired_difference(fgsm[half].at(entropy, 0.5), fgsm[half].at(entropy, STRONG)),
        ),
        _claim(
            "FGSM: α = 1 is more robust than α = 0",
            figure,
            "accuracy at η = 0.1, α = 1 − α = 0",
            paired_difference(*(fgsm[name_of(alpha)].at("accuracy", 0.1) for alpha in (1.0, 0.0))),
        ),
        _claim(
            f"Targeted: after {last} steps dropout, α = 0.5, is less certain than the plain"
            " network",
            figure,
            "entropy, α = 0.5 − NN, nats",
            paired_difference(
                *(path[arm].at(f"step {entropy}", last, "step") for arm in (half, PLAIN))
            ),
        ),
    ]
    for arm in runs.arms(PART):
        areas = [
            AttackCurves(runs, arm, labels[name]).at(area, STRONG) for name in ("adaptive", "pgd")
        ]
        claimed.append(
            _claim(
                f"An attack that knows the entropy lowers the detection of {arm}, η = {STRONG:g}",
                "not tried; arXiv:2404.19640 breaks such detectors",
                "AUROC, adaptive − plain PGD",
                paired_difference(*areas),
                sign=-1,
            )
        )
    return claimed


def _claim(text: str, paper: str, what: str, gap: Difference | None, sign: int = 1) -> Claim:
    return Claim(text, paper, difference_text(gap, what), judge_sign(gap, sign=sign))
