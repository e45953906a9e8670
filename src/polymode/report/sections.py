"""The sections between leaderboard and methods: one question each, with tables and figures."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from polymode.metrics.leaderboard import OOD_MEANS, SHIFT_MEAN, Leaderboard
from polymode.metrics.results import EXAMINED, family_of, is_headline
from polymode.report.embed import Group, rows
from polymode.report.figures import figures, mistakes
from polymode.report.method_tables import (
    SHIFTED,
    Table,
    examinations,
    joined,
    leaderboard,
    of_family,
    of_metric,
    of_shifts,
    ood_sets,
)
from polymode.report.mistakes import Plain

QUESTIONS = {
    "leaderboard": (
        "Leaderboard",
        "Leaderboard",
        "Mean ± standard error over seeds, or over examples if there is one seed. Arrows point to"
        " the better direction. A method links to its configuration, a metric to its definition.",
        "All quality scores, by data set",
    ),
    "calibration": (
        "Calibration",
        "Calibration",
        "Does the method know how often it is wrong? Of all predictions made with 80 % confidence,"
        " 80 % should be right; of all 90 % intervals, 90 % should contain the target.",
        "Calibration under shift and elsewhere",
    ),
    "selective": (
        "Selective",
        "Selective prediction",
        "If the method may decline to answer, does it decline where it is wrong? Risk is the error"
        " rate of the answers that remain when the least certain ones are left out.",
        "Selective prediction under shift",
    ),
    "mistakes": (
        "Mistakes",
        "Mistakes",
        "Which answers are wrong, and which test examples are hardest? The most uncertain ones"
        " should be hard for people too. Confident mistakes deserve a look, since some may be wrong"
        " labels or measurements.",
        "Single examples",
    ),
    "ood": (
        "OOD",
        "Out of distribution",
        "Are inputs from elsewhere more uncertain than the test set? OOD is the positive class"
        " throughout, and a higher score means more likely OOD: an AUROC of 1 is perfect, 0.5 is"
        " chance, and less is worse than chance. Near sets resemble the training data, far ones do"
        " not.",
        "All OOD scores and measures, by data set",
    ),
    "shift": (
        "Shift",
        "Shift",
        "What happens as the test set is disturbed more and more? A good method loses accuracy late"
        " and becomes less sure as it does: its NLL stays low.",
        "More about the shifts",
    ),
    "uncertainty": (
        "Uncertainty",
        "Uncertainty, and where it comes from",
        "Aleatoric uncertainty is noise that more data would not remove; epistemic uncertainty is"
        " ignorance about the network, and should grow where there are no data. These numbers"
        " describe; they do not score.",
        "More measures of uncertainty",
    ),
    "diversity": (
        "Diversity",
        "Diversity",
        "Do the members differ, and how? An ensemble gains from members that are each good and"
        " wrong about different inputs.",
        "More measures of diversity",
    ),
    "examinations": (
        "Examinations",
        "Examinations",
        "Measurements of the posteriors themselves: not what they predict, but how they were found"
        " and what they are.",
        "Loss curves in numbers",
    ),
}
PER_CELL = 3  # columns of a table that fit into a quarter of a row
STACKED = 2  # tables that stand one below the other next to figures
CURVES = "convergence"  # the examination that every run has
FAMILIES = {
    "calibration": ("calibration", "intervals"),
    "selective": ("selective",),
}


TOLD = (
    "predictive_entropy",
    "mutual_information",
    "epistemic_share",
    "epistemic_std",
    "sharpness",
)  # unfolded


class Section(NamedTuple):
    """One question: tables to read first, more of them to unfold, figures, what is missing.

    `aside` is how many of the first tables stand next to the figures. `plain` are tables of another
    form, `rows` single examples.
    """

    anchor: str
    short: str
    title: str
    text: str
    unfold: str
    tables: list[Table]
    more: list[Table]
    figures: list[list[Group]]
    reasons: list[str]
    aside: int = 0
    plain: list[Plain] = []
    rows: list[Plain] = []


def sections(board: Leaderboard) -> list[Section]:
    """Return the sections for which there is something to show; the first is the leaderboard's."""
    drawn, reasons = figures(board)
    sections = []
    for anchor, (short, title, text, unfold) in QUESTIONS.items():
        first, more = _tables(board, anchor)
        figure_rows = rows(drawn.get(anchor, []), board.labels)
        missing = reasons.get(anchor, [])
        plain, examples = mistakes(board) if anchor == "mistakes" else ([], [])
        if first or more or figure_rows or missing or plain or examples:
            aside = len(first) if anchor != "leaderboard" and _fit(first, figure_rows) else 0
            if anchor == "uncertainty" and not aside:
                first = joined("Means over the examples of each data set", first)
            sections.append(
                Section(
                    anchor,
                    short,
                    title,
                    text,
                    unfold,
                    first,
                    more,
                    figure_rows,
                    missing,
                    aside,
                    plain,
                    examples,
                )  # fmt: skip
            )
    return sections


def _fit(tables: list[Table], figure_rows: list[list[Group]]) -> bool:
    """Return whether tables have room next to the only row of figures, one below the other."""
    if len(figure_rows) != 1 or len(tables) > STACKED:
        return False
    left = figure_rows[0][-1].span - figure_rows[0][-1].used
    fit = (len(table.heads) <= PER_CELL * left and not table.turned for table in tables)
    return left > 1 and all(fit)


def _tables(board: Leaderboard, anchor: str) -> tuple[list[Table], list[Table]]:
    """Return the tables of a section, and those that are to be unfolded."""
    if anchor == "examinations":  # the numbers behind loss curves are for those who look closer
        every = examinations(board)
        curves = [table for table in every if table.title.startswith(CURVES)]
        return [table for table in every if table not in curves], curves
    outside = [*OOD_MEANS.values(), *ood_sets(board)]
    if anchor == "leaderboard":
        return [leaderboard(board)], _by_dataset(board, "quality", _datasets(board))
    if anchor == "ood":
        metrics = [metric for metric in _metrics(board, "ood") if is_headline(metric)]
        first = _known(of_metric(board, metric, outside) for metric in metrics)
        return joined("OOD is the positive class", first), _by_dataset(board, "ood", outside)
    if anchor == "shift":
        first = _known(of_shifts(board, metric) for metric in SHIFTED)
        return joined("Mean over the severities of each shift", first), []
    everywhere = ["test", SHIFT_MEAN, *outside]
    if anchor == "uncertainty":
        metrics = [m for m in _metrics(board, "uncertainty") if m != "disagreement"]
        metrics = sorted(metrics, key=lambda metric: metric not in TOLD)
        every = _known(of_metric(board, metric, everywhere) for metric in metrics)
        return every[:2], every[2:]
    if anchor == "diversity":
        return _known([of_metric(board, "disagreement", everywhere)]), []
    families = FAMILIES.get(anchor, ())
    first = _known(of_family(board, family, "test") for family in families)
    elsewhere = [name for name in _datasets(board) if name != "test"]
    return first, [t for family in families for t in _by_dataset(board, family, elsewhere)]


def _known(tables: Iterable[Table | None]) -> list[Table]:
    return [table for table in tables if table is not None]


def _metrics(board: Leaderboard, family: str) -> list[str]:
    names = dict.fromkeys(column.metric for column in board.columns)
    return [name for name in names if family_of(name) == family]


def _datasets(board: Leaderboard) -> list[str]:
    return [name for name in board.groups(full=True) if not name.startswith(EXAMINED)]


def _by_dataset(board: Leaderboard, family: str, datasets: list[str]) -> list[Table]:
    return _known(of_family(board, family, name) for name in datasets)
