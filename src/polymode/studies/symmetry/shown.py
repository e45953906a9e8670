"""Tables and figures of the study, from its runs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from polymode.examinations import findings_of
from polymode.metrics.paired import mean_and_error
from polymode.metrics.table import decimals_for, number
from polymode.plots import Display
from polymode.studies.study import Runs, Table
from polymode.studies.symmetry.published import TABLES, Printed
from polymode.studies.symmetry.setup import OOD
from polymode.symmetry.plots import mass_profile, plane_steps

EXPERIMENTS = ("zoo", "toy", "mass")


class Column(NamedTuple):
    """A column of the table: its field in the paper's, and where ours is in results."""

    field: str
    dataset: str
    metric: str
    factor: int = 1


def tables_of(runs: Runs) -> list[str]:
    """Return the parts that are tables."""
    return [part for part in runs.parts if part not in EXPERIMENTS]


def label_of(runs: Runs, part: str) -> str:
    """Return the label of the examination `symmetry` in the results of a part."""
    for each in runs.all(part):
        for label in findings_of(each):
            if label.startswith("symmetry:"):
                return label
    return "symmetry"


def columns_of(runs: Runs, part: str) -> dict[str, Column]:
    """Return the columns of a part's table."""
    examined, ood = f"examined:{label_of(runs, part)}", f"ood:{OOD[part]}"
    return {
        "MMD ↓": Column("mmd", examined, "mmd"),
        "NS, sorted ↓": Column("ns", examined, "ns_sorted"),
        "NS, aligned ↓": Column("", examined, "ns_aligned"),
        "accuracy % ↑": Column("accuracy", "test", "accuracy", 100),
        "ECE % ↓": Column("ece", "test", "ece", 100),
        "ACE % ↓": Column("ace", "test", "classwise_ace", 100),
        "Brier % ↓": Column("brier", "test", "brier", 100),
        "AUPR % ↑": Column("aupr", ood, "aupr_out_one_minus_confidence", 100),
        "FPR95 % ↓": Column("fpr95", ood, "fpr95_one_minus_confidence", 100),
        "ID MI, nats × 100": Column("id_mi", "test", "mutual_information", 100),
        "OOD MI, nats × 100": Column("ood_mi", ood, "mutual_information", 100),
    }


def tables(runs: Runs) -> dict[str, Table]:
    """Return, for each data set, the table and what lies behind its first columns; the paper's."""
    found: dict[str, Table] = {}
    if runs.arms("zoo"):
        found["zoo"] = zoos(runs)
    for part in tables_of(runs):
        found[f"table_{part}"] = table(runs, part)
        found[f"quality_{part}"] = quality(runs, part)
    for name in TABLES if tables_of(runs) else ():
        found[f"paper_{name}"] = published(name)
    return found


def zoos(runs: Runs) -> Table:
    """Return scores, diversity and exchangeability of the reference networks."""
    measures = {
        "networks": ("networks", 1, 0), "accuracy %": ("accuracy", 100, 2),
        "ID MI of pairs, nats × 100": ("id_pair_mi", 100, 2),
        "OOD MI of pairs, nats × 100": ("ood_pair_mi", 100, 2),
        "correlation of the two": ("correlation", 1, 2), "corollary p": ("corollary_p", 1, 2),
    }  # fmt: skip
    lines = []
    for arm in runs.arms("zoo"):
        for findings in list(runs.findings("zoo", arm).values())[:1]:
            cells = [arm]
            for metric, factor, digits in measures.values():
                row = findings[metric]
                value, error = (
                    None if each is None else factor * each
                    for each in (row.value, row.standard_error)
                )
                cells.append(number(value, error, digits))
            lines.append(tuple(cells))
    return Table(
        title="The zoo",
        head=("zoo", *measures),
        lines=tuple(lines),
        note="mean ± s.e. over networks, of pairs by the jackknife over networks; corollary p:"
        " smallest of the layers' times their number",
    )


def table(runs: Runs, part: str) -> Table:
    """Return the table of a data set."""
    arms, columns = runs.arms(part), columns_of(runs, part)
    texts = [_column(runs, part, arms, column) for column in columns.values()]
    return Table(
        title=f"Quality of posteriors: {part}",
        head=("method", *columns),
        lines=tuple(zip(arms, *texts, strict=True)),
        note=f"mean ± s.e. over {_seeds(runs, part, arms)} seeds; MMD: unbiased MMD² of all weights"
        " against independent networks, mean over 20 kernels; NS: the same after removal of the"
        f" symmetries; OOD set: {OOD[part]}",
    )


def quality(runs: Runs, part: str) -> Table:
    """Return MMD² and NS with the spread that chance gives them, and the corollary."""
    arms, examined = runs.arms(part), f"examined:{label_of(runs, part)}"
    names = {
        "MMD": "mmd", "null s.d.": "mmd_null_std", "p": "mmd_p",
        "MMD, mean of layers": "mmd_layers", "MMD, between modes": "mmd_between",
        "NS, sorted": "ns_sorted", "null s.d. ": "ns_sorted_null_std", "p ": "ns_sorted_p",
        "NS, sorted, between modes": "ns_sorted_between",
        "NS, aligned": "ns_aligned", "null s.d.  ": "ns_aligned_null_std", "p  ": "ns_aligned_p",
        "NS, aligned, between modes": "ns_aligned_between",
        "corollary p": "corollary_p",
    }  # fmt: skip
    columns = [_column(runs, part, arms, Column("", examined, metric)) for metric in names.values()]
    return Table(
        title=f"MMD² with its null: {part}",
        head=("method", *(name.strip() for name in names)),
        lines=tuple(zip(arms, *columns, strict=True)),
        note=f"mean ± s.e. over {_seeds(runs, part, arms)} seeds; null s.d. and p from networks"
        " divided at random, as if all samples were independent; between modes: from pairs of"
        " different modes alone; corollary p: smallest of the"
        " layers' times their number",
    )


def _seeds(runs: Runs, part: str, arms: list[str]) -> str:
    return " to ".join(map(str, sorted({len(runs.of(part, arm)) for arm in arms})))


def _column(runs: Runs, part: str, arms: list[str], column: Column) -> list[str]:
    found = []
    for arm in arms:
        values = runs.values(part, arm, column.dataset, column.metric)
        scaled = [column.factor * value for value in values.values()]
        found.append(mean_and_error(scaled) if scaled else (None, None))
    digits = decimals_for(*zip(*found, strict=True))
    most = 2 if column.factor == 100 else 4
    return [number(mean, error, min(digits, most)) for mean, error in found]


def published(name: str) -> Table:
    """Return the paper's table."""
    fields = Printed._fields
    heads = {
        "mmd": "MMD ↓", "ns": "NS ↓", "accuracy": "accuracy % ↑", "ece": "ECE % ↓",
        "ace": "ACE % ↓", "brier": "Brier % ↓", "aupr": "AUPR % ↑", "fpr95": "FPR95 % ↓",
        "id_mi": "ID MI", "ood_mi": "OOD MI",
    }  # fmt: skip
    lines = [(arm, *(f"{value:g}" for value in row)) for arm, row in TABLES[name].items()]
    return Table(
        title=f"Paper: {name}, ResNet-18",
        head=("method", *(heads[field] for field in fields)),
        lines=tuple(lines),
        note="as printed; the unit of MMD and NS is not published; MI probably in nats × 100",
    )


def figures(runs: Runs) -> dict[str, Display]:
    """Return the toy, the pairs of the zoo with diversity by modes, and the mass profiles."""
    found: dict[str, Display] = {}
    for arm in runs.arms("toy"):
        for findings in list(runs.findings("toy", arm).values())[:1]:
            found["toy"] = plane_steps(findings.arrays)
    for arm in runs.arms("zoo"):
        for findings in list(runs.findings("zoo", arm).values())[:1]:
            shown = findings.signed("pairs").displays(label=arm)
            found |= {f"pairs_{arm}_{name}": display for name, display in shown.items()}
    for arm in runs.arms("mass"):
        for findings in list(runs.findings("mass", arm).values())[:1]:
            arrays = {name: np.asarray(values) for name, values in findings.arrays.items()}
            found[f"mass_{arm}"] = mass_profile(arrays, label=arm)
    return found
