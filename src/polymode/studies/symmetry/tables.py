"""Tables and figures of the study, from its runs."""

from __future__ import annotations

import numpy as np

from polymode.examinations import findings_of
from polymode.metrics.text_table import number
from polymode.plots import Display
from polymode.studies.study import Runs, Table
from polymode.studies.symmetry.published import TABLES, Printed
from polymode.studies.symmetry.setup import OOD
from polymode.studies.table_cells import Column, column_cells, count_seeds
from polymode.symmetry.plots import mass_profile, plane_steps

EXPERIMENTS = ("toy", "zoo", "mass")


def tables_of(runs: Runs) -> list[str]:
    """Return the parts that are tables."""
    return [part for part in runs.parts if part not in EXPERIMENTS]


def label_of(runs: Runs, part: str) -> str:
    """Return the label of the examination `symmetry` in the results of a part."""
    for results in runs.all(part):
        for label in findings_of(results):
            if label.startswith("symmetry:"):
                return label
    return "symmetry"


def columns_of(runs: Runs, part: str) -> dict[str, Column]:
    """Return the columns of a part's table."""
    examined, ood = f"examined:{label_of(runs, part)}", f"ood:{OOD[part]}"
    return {
        "MMD ↓": Column(examined, "mmd", field="mmd"),
        "NS, sorted ↓": Column(examined, "ns_sorted", field="ns"),
        "NS, aligned ↓": Column(examined, "ns_aligned"),
        "accuracy % ↑": Column("test", "accuracy", 100, "accuracy"),
        "ECE % ↓": Column("test", "ece", 100, "ece"),
        "ACE % ↓": Column("test", "classwise_ace", 100, "ace"),
        "Brier % ↓": Column("test", "brier", 100, "brier"),
        "AUPR % ↑": Column(ood, "aupr_out_one_minus_confidence", 100, "aupr"),
        "FPR95 % ↓": Column(ood, "fpr95_one_minus_confidence", 100, "fpr95"),
        "ID MI, nats × 100": Column("test", "mutual_information", 100, "id_mi"),
        "OOD MI, nats × 100": Column(ood, "mutual_information", 100, "ood_mi"),
    }


def tables(runs: Runs) -> dict[str, Table]:
    """Return, for each data set, the table and what lies behind its first columns; the paper's."""
    by_name: dict[str, Table] = {}
    if runs.arms("zoo"):
        by_name["zoo"] = zoos(runs)
    for part in tables_of(runs):
        by_name[f"table_{part}"] = table(runs, part)
        by_name[f"quality_{part}"] = quality(runs, part)
    for name in TABLES if tables_of(runs) else ():
        by_name[f"paper_{name}"] = published(name)
    return by_name


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
        findings = runs.first_findings("zoo", arm)
        if findings is None:
            continue
        cells = [arm]
        for metric, factor, digits in measures.values():
            row = findings[metric]
            value, error = (
                None if x is None else factor * x for x in (row.value, row.standard_error)
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
    texts = [column_cells(runs, part, arms, column) for column in columns.values()]
    return Table(
        title=f"Quality of posteriors: {part}",
        head=("method", *columns),
        lines=tuple(zip(arms, *texts, strict=True)),
        note=f"mean ± s.e. over {count_seeds(runs, part, arms)} seeds; MMD: unbiased MMD² of all"
        " weights against independent networks, mean over 20 kernels; NS: the same after removal of"
        f" the symmetries; OOD set: {OOD[part]}",
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
    columns = [
        column_cells(runs, part, arms, Column(examined, metric)) for metric in names.values()
    ]
    return Table(
        title=f"MMD² with its null: {part}",
        head=("method", *(name.strip() for name in names)),
        lines=tuple(zip(arms, *columns, strict=True)),
        note=f"mean ± s.e. over {count_seeds(runs, part, arms)} seeds; null s.d. and p from"
        " networks divided at random, as if all samples were independent; between modes: from pairs"
        " of different modes alone; corollary p: smallest of the layers' times their number",
    )


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
    displays: dict[str, Display] = {}
    for part in EXPERIMENTS:
        for arm in runs.arms(part):
            findings = runs.first_findings(part, arm)
            if findings is None:
                continue
            arrays = {name: np.asarray(values) for name, values in findings.arrays.items()}
            if part == "zoo":
                pairs = findings.signed("pairs").displays(label=arm)
                displays |= {f"pairs_{arm}_{name}": display for name, display in pairs.items()}
            elif part == "toy":
                displays["toy"] = plane_steps(arrays)
            else:
                displays[f"mass_{arm}"] = mass_profile(arrays, label=arm)
    return displays
