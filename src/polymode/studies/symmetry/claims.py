"""What the paper says, and whether it holds in our runs: paired over seeds, 95 % intervals."""

from __future__ import annotations

import numpy as np

from polymode.metrics.paired import paired
from polymode.studies.study import Claim, Runs
from polymode.studies.symmetry.setup import NAMES, OOD
from polymode.studies.symmetry.tables import label_of, tables_of
from polymode.studies.table_cells import Column, difference_text, judge_sign

WEAK = 0.5  # correlations below are called weak
REACHED = 0.005  # excess over m*, relative, that counts as reached
LEVEL = 0.05  # of the corollary's test, all layers together


def claims(runs: Runs) -> list[Claim]:
    """Return the claims of the paper with their verdicts, those whose parts were run."""
    claimed: list[Claim] = []
    for part in tables_of(runs):
        ood, examined = f"ood:{OOD[part]}", f"examined:{label_of(runs, part)}"
        claimed += [
            _several(runs, part, text, column, sign, unit)
            for text, column, sign, unit in (
                ("accuracy is higher", Column("test", "accuracy", 100), 1, "points"),
                ("ECE is lower", Column("test", "ece", 100), -1, "points"),
                ("the Brier score is lower", Column("test", "brier", 100), -1, "points"),
                ("diversity on the test set is higher", Column("test", "mutual_information"), 1,
                 "nats"),
                ("diversity on the OOD set is higher", Column(ood, "mutual_information"), 1,
                 "nats"),
                ("MMD to independent networks is lower", Column(examined, "mmd"), -1, ""),
            )
        ]  # fmt: skip
        claimed += _chain(runs, part)
    return claimed + _zoo(runs) + _mass(runs)


def _several(runs: Runs, part: str, text: str, column: Column, sign: int, unit: str) -> Claim:
    """Several modes against one: the mean over methods, by seed."""
    gaps: dict[str, dict[int, float]] = {}
    for name in NAMES:
        many, single = (
            runs.values(part, f"{name}, {modes}", column.dataset, column.metric)
            for modes in ("multi", "one")
        )
        gap = {seed: many[seed] - single[seed] for seed in many if seed in single}
        if gap:
            gaps[name] = gap
    seeds = sorted(set.intersection(*(set(g) for g in gaps.values()))) if gaps else []
    mean = paired([float(np.mean([g[seed] for g in gaps.values()])) for seed in seeds])
    by_method = ", ".join(
        f"{name} {column.factor * float(np.mean(list(g.values()))):+.3g}"
        for name, g in gaps.items()
    ).replace("-", "−")
    what, digits = f"multi − one, {unit}".rstrip(", "), 2 if column.factor == 100 else 4
    return Claim(
        f"{part}: with several modes instead of one, {text} (mean over methods)",
        "all methods of the table but ECE of Laplace"
        if column.metric == "ece"
        else "all of the table",
        f"{difference_text(mean, what, digits=digits, factor=column.factor)}; {by_method}",
        judge_sign(mean, sign=sign),
    )


def _chain(runs: Runs, part: str) -> list[Claim]:
    """The corollary fails for one chain."""
    label = f"examined:{label_of(runs, part)}"
    p = runs.values(part, "SGHMC, one", label, "corollary_p")
    if not p:
        return []
    worst = max(p.values())
    verdict = (
        "holds" if worst < LEVEL else "does not hold" if min(p.values()) > LEVEL else "undecided"
    )
    return [
        Claim(
            f"{part}: the largest weight's index is not uniform for a single chain",
            "figure, 3 chains of HMC",
            f"p at most {worst:.2g}, {len(p)} seeds, SGHMC with one mode",
            verdict,
        )
    ]


def _zoo(runs: Runs) -> list[Claim]:
    claimed = []
    for arm in runs.arms("zoo"):
        for findings in runs.findings("zoo", arm).values():
            p, r = findings["corollary_p"], findings["correlation"]
            least = findings["least_id_pair_mi"]
            assert p.value is not None
            claimed.append(
                Claim(
                    f"{arm}: the largest weight's index is uniform for independent networks",
                    "figure, deep ensemble",
                    f"p = {p.value:.2g}, the smallest of its layers times their number,"
                    f" {p.n:,} networks",
                    "holds" if p.value > LEVEL else "does not hold",
                )
            )
            if r.value is None or r.standard_error is None or least.value is None:
                continue
            low, high = (r.value + side * 1.96 * r.standard_error for side in (-1, 1))
            inside, outside = max(-low, high) < WEAK, low > WEAK or high < -WEAK
            interval = f"[{low:.2f}, {high:.2f}]"
            claimed.append(
                Claim(
                    f"{arm}: ID and OOD diversity of pairs are only weakly correlated"
                    f" (r within ±{WEAK:g})",
                    "a round joint density, no number",
                    f"r = {r.value:.2f} {interval}, jackknife over {r.n:,} networks",
                    "holds" if inside else "does not hold" if outside else "undecided",
                )
            )
            mean = findings["id_pair_mi"].value or 0.0
            claimed.append(
                Claim(
                    f"{arm}: no functional collapse: no pair has a mutual information near 0",
                    "nearly all in 0.104 to 0.112 nats",
                    f"smallest {least.value:.4f} nats, mean {mean:.4f}, {least.n:,} pairs",
                    "holds" if least.value > 0.1 * mean else "does not hold",
                )
            )
    return claimed


def _mass(runs: Runs) -> list[Claim]:
    claimed = []
    for arm in runs.arms("mass"):
        for findings in runs.findings("mass", arm).values():
            excess, least = findings["excess"], findings["least_excess"]
            if excess.value is None or least.value is None:
                continue
            spread = 1.96 * (excess.standard_error or 0.0)
            holds = excess.value - spread > 0 and least.value > REACHED
            low, high = (100 * (excess.value + side * spread) for side in (-1, 1))
            claimed.append(
                Claim(
                    f"{arm}: weight decay does not reach the minimum mass m*",
                    "almost all networks 2 to 55 % above",
                    f"{100 * excess.value:.1f} % above at the end [{low:.1f}, {high:.1f}], the"
                    f" nearest {100 * least.value:.1f} %, {excess.n:,} networks",
                    "holds" if holds else "does not hold",
                )
            )
    return claimed
