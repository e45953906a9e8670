"""Rotated Fashion-MNIST: who is invariant under C4, C8 and C16, in and out of distribution.

Each group has its own training: images are turned by a random element in every batch. *only DA* are
the members of the ensemble one by one, *DeepEns+DA* is the mean of their probabilities; likewise
for networks behind a learned canonicalisation, for group averages, and for networks of escnn where
that is installed. All ensembles have the same number of members.

Of the talk's set-up its table is known: groups, methods, orbit same predictions. The network
(LeNet), the images for training, the OOD sets (MNIST, grey CIFAR-10, and normal noise), the number
of members, optimiser and epochs are our choice. paper: all 60,000 images, 100 members, 50 epochs,
with CIFAR-10 whole. cpu: 3,000 images, 10 members, 10 epochs, 4 seeds; escnn 3 epochs, 3 seeds.
smoke: digits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from polymode.equivariance.orbits import chance_level
from polymode.equivariance.steerable import escnn_is_installed
from polymode.plots import Comparison, Display
from polymode.plots.axes import over_seeds
from polymode.runs.part import Experiment, Part
from polymode.studies.equivariance import comparison, published
from polymode.studies.equivariance.comparison import cell, curves, mean_over, outside
from polymode.studies.study import Claim, Runs, Table, paired_difference
from polymode.studies.table_cells import (
    difference_text,
    judge_not_below,
    judge_sign,
    mean_or_none,
    present,
)

PART, STEERED = "rotated", "rotated_escnn"
PLAIN, CANON = "augmented", "canonical"
FIELDS = {"C4": [4, 8, 16], "C8": [2, 4, 8], "C16": [1, 2, 4]}


def arm(group: str, method: str) -> str:
    """Return the name of a training.

    >>> arm("C4", "augmented")
    'C4, augmented'
    """
    return f"{group}, {method}"


def parts(preset: str) -> dict[str, Part | Experiment]:
    """Return the comparison, and escnn's networks where they can be made."""
    options = _options(preset)
    seeds = {"smoke": (0, 1), "cpu": (0, 1, 2, 3), "paper": tuple(range(5))}[preset]
    groups = published.GROUPS[: 2 if preset == "smoke" else 3]
    average = {"smoke": 4, "cpu": 40, "paper": 1000}[preset]
    data = () if preset == "smoke" else ("fashion_mnist", "mnist", _colour(preset))
    arms: dict[str, dict[str, Any]] = {}
    for group in groups:
        plain = {**options, "group": group, "num_average": average}
        arms[arm(group, PLAIN)] = {**plain, "method": PLAIN}
        arms[arm(group, CANON)] = {**options, "group": group, "method": CANON}
    parts: dict[str, Part | Experiment] = {
        PART: Experiment(function=comparison.trained, arms=arms, seeds=seeds, data=data)
    }
    if escnn_is_installed():
        epochs = {"smoke": 1, "cpu": 3, "paper": 50}[preset]
        steered = {**options, "epochs": epochs, "method": "steerable"}
        parts[STEERED] = Experiment(
            function=comparison.trained,
            arms={
                arm(group, "escnn"): {**steered, "group": group, "fields": FIELDS[group]}
                for group in groups
            },
            seeds=seeds[:3],
            data=data,
        )
    return parts


def _colour(preset: str) -> str:
    return "cifar10" if preset == "paper" else "cifar10_subset"


def _options(preset: str) -> dict[str, Any]:
    if preset == "smoke":
        return {"task": "digits", "num_modes": 2, "epochs": 1, "num_inputs": 8}
    sizes = {"cpu": {"num_train": 3000, "num_test": 300}, "paper": {"num_train": 60_000}}[preset]
    task = {**sizes, "num_val": 0, "ood": ["mnist", _colour(preset)], "shifts": []}
    small = preset == "cpu"
    return {
        "task": "fashion_mnist", "task_options": task, "num_modes": 10 if small else 100,
        "epochs": 10 if small else 50, "lr": 3e-3 if small else 1e-3,
        "num_inputs": 300 if small else 10_000,
    }  # fmt: skip


class Line(NamedTuple):
    """A line of the table: its title, the talk's line, the training, and whose numbers."""

    title: str
    talk: str
    method: str
    who: str


LINES = (
    Line("only DA", published.ONE, PLAIN, "member"),
    Line("DeepEns+DA", published.ENSEMBLE, PLAIN, "ensemble"),
    Line("canonicalised", published.CANON, CANON, "member"),
    Line("ensemble of canonicalised", "", CANON, "ensemble"),
    Line("group average of one", "", PLAIN, "average_member"),
    Line("group average of all", "", PLAIN, "average_ensemble"),
    Line("escnn", published.STEERED, "escnn", "member"),
    Line("ensemble of escnn", "", "escnn", "ensemble"),
)
ONE, ALL, CANONICAL, ALL_CANONICAL = LINES[:4]


def of(runs: Runs, line: Line, group: str, where: str, metric: str) -> dict[int, float]:
    """Return a number by seed; "ood" is the mean over the OOD sets of images."""
    part = STEERED if line.method == "escnn" else PART
    name = arm(group, line.method)

    def look(dataset: str) -> dict[int, float]:
        return runs.measured(part, name, f"{dataset}_{line.who}_{metric}")

    return mean_over(outside(runs, part), look) if where == "ood" else look(where)


def _groups(runs: Runs) -> list[str]:
    names = {label.partition(",")[0] for label in runs.arms(PART)}
    return [group for group in published.GROUPS if group in names]


def tables(runs: Runs) -> dict[str, Table]:
    """Return orbit same predictions outside and inside, on noise, and accuracies."""
    groups = _groups(runs)
    if not groups:
        return {}
    seeds = over_seeds(max(len(runs.of(PART, name)) for name in runs.arms(PART)))
    sets = " and ".join(outside(runs, PART))
    escnn = runs.arms(STEERED)
    extra = f"; escnn: {len(runs.of(STEERED, escnn[0]))} seeds" if escnn else "; escnn: not run"
    by_name = {}
    for where, title in (
        ("ood", f"Orbit same predictions out of distribution, mean over {sets}"),
        ("test", "Orbit same predictions on the test set"),
        ("noise", "Orbit same predictions on normal noise"),
    ):
        lines = []
        for line in LINES:
            cells = [cell(of(runs, line, group, where, "same_predictions")) for group in groups]
            talk = [_talk(line, group) for group in groups] if where == "ood" else []
            lines.append((line.title, *cells, *talk))
        chance = [f"{chance_level(int(group[1:]), 10):.1f}" for group in groups]
        lines.append(("chance", *chance, *(["–"] * len(groups) if where == "ood" else [])))
        head = ["", *(f"{group} (most {group[1:]})" for group in groups)]
        head += [f"talk, {group}" for group in groups] if where == "ood" else []
        by_name[f"rotated_{where}"] = Table(title, tuple(head), tuple(lines), seeds + extra)
    lines = [
        (line.title, *(cell(_percent(of(runs, line, group, "test", "orbit_accuracy")), 1)
                       for group in groups))
        for line in LINES
    ]  # fmt: skip
    note = f"{seeds}{extra}; group averages on fewer images"
    head = ["", *(f"{group}, % ↑" for group in groups)]
    by_name["rotated_accuracy"] = Table(
        "Accuracy on all turned test images", tuple(head), tuple(lines), note
    )
    return by_name


def _percent(shares: dict[int, float]) -> dict[int, float]:
    return {seed: 100 * share for seed, share in shares.items()}


def _talk(line: Line, group: str) -> str:
    value = published.OSP.get(line.talk, {}).get(group)
    return "–" if value is None else f"{value.mean:.2f} ± {value.spread:.2f}"


def figures(runs: Runs) -> dict[str, Display]:
    """Return OSP against the number of members, test set and OOD, for each group."""
    displays = {}
    for group in _groups(runs):
        lines = {
            f"{method}, {where}": (arm(group, method), where)
            for method in (PLAIN, CANON)
            for where in ("test", *outside(runs, PART))
        }
        displays[f"rotated_members_{group}"] = curves(runs, PART, lines, "same_share")
    return present(displays)


MARGIN = 0.01  # of |G|: less than this behind is level


def claims(runs: Runs) -> list[Claim]:
    """Return the talk's conclusions, group by group, inside and outside."""
    return [claim for group in _groups(runs) for claim in _of_group(runs, group)]


def _of_group(runs: Runs, group: str) -> list[Claim]:
    order, claimed = int(group[1:]), []
    for where, words in (("test", "test set"), ("ood", "OOD")):
        share = {line: of(runs, line, group, where, "same_share") for line in LINES[:4]}
        talk = "not in the table" if where == "test" else "OSP {} and {}"
        ensemble, member = (_talk(line, group) for line in (ALL, ONE))
        more = paired_difference(share[ALL], share[ONE])
        claimed.append(
            Claim(
                f"{group}, {words}: DeepEns+DA is above only DA",
                talk.format(ensemble, member),
                difference_text(more, "OSP / |G|, ensemble − member"),
                judge_sign(more, sign=1),
            )
        )
        lost = paired_difference(share[CANONICAL], 1.0)
        if order == 4:
            exact = all(value == 1.0 for value in share[CANONICAL].values())
            verdict = "not run" if lost is None else "holds" if exact else "does not hold"
            text = f"{group}, {words}: a canonicalised network is exactly invariant"
        else:
            verdict = judge_sign(lost, sign=-1)
            text = f"{group}, {words}: a canonicalised network is no longer exactly invariant"
        paper = talk.format(_talk(CANONICAL, group), "").removesuffix(" and ")
        claimed.append(Claim(text, paper, difference_text(lost, "OSP / |G| − 1"), verdict))
        if order == 4:
            continue
        for line in (CANONICAL, ALL_CANONICAL):
            ahead = paired_difference(share[ALL], share[line])
            paper = (
                "not compared"
                if line is ALL_CANONICAL
                else talk.format(ensemble, _talk(line, group))
            )
            claimed.append(
                Claim(
                    f"{group}, {words}: DeepEns+DA is level with or ahead of: {line.title}",
                    paper,
                    difference_text(ahead, "OSP / |G|, DeepEns+DA − it"),
                    judge_not_below(ahead, MARGIN, -MARGIN),
                )
            )
    return claimed


def comparisons(preset: str, runs: Runs) -> list[Comparison]:
    """Return the talk's table beside ours, at the preset with the talk's sizes."""
    if preset != "paper":
        return []
    rows = []
    for line in LINES:
        for group, paper in published.OSP.get(line.talk, {}).items():
            mean, error = mean_or_none(
                list(of(runs, line, group, "ood", "same_predictions").values())
            )
            tolerance = max(paper.spread, 0.01 * int(group[1:]))
            rows.append(
                Comparison(f"{line.title}, {group}, OSP OOD", paper.mean, paper.spread, mean, error,
                           tolerance, direction="up")
            )  # fmt: skip
    return rows
