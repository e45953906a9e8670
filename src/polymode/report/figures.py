"""The figures of a report, made of the predictions that results keep."""

from __future__ import annotations

from typing import NamedTuple

from polymode.metrics.leaderboard import Entry, Leaderboard
from polymode.metrics.results import Results
from polymode.plots import Display, ood_histogram, palette, regression_band, reliability, severity
from polymode.plots.ood import scores
from polymode.plots.regression import default_view
from polymode.plots.reliability import default_start
from polymode.plots.severity import shifts
from polymode.prediction import CategoricalPrediction


class Section(NamedTuple):
    """Figures that answer one question."""

    anchor: str
    title: str
    text: str
    displays: list[Display]


def sections(board: Leaderboard) -> list[Section]:
    """Return the sections for which the results keep what is needed."""
    made = [
        Section(
            "calibration",
            "Calibration",
            "On the dashed line, a class named with 80 % is right 80 % of the time. Points below it"
            " are overconfident.",
            _reliability(board),
        ),
        Section(
            "regression",
            "Regression",
            "Where there are no data the dark band should open: that is what the method does not"
            " know.",
            _bands(board),
        ),
        Section(
            "ood",
            "Out of distribution",
            "Inputs from elsewhere should be more uncertain than the test set. AUROC 1 is perfect,"
            " 0.5 is chance; OOD is the positive class.",
            _histograms(board),
        ),
        Section(
            "shift",
            "Shift",
            "The test set under growing shifts: a good method loses accuracy late, and says so"
            " (its NLL stays low).",
            _severities(board),
        ),
    ]
    return [section for section in made if section.displays]


def _reliability(board: Leaderboard) -> list[Display]:
    styles = palette(board.labels)
    able = {e.label: kept for e in board.entries if (kept := _keeping(e, "test"))}
    able = {label: kept for label, kept in able.items() if _classes(kept[0])}
    if not able:
        return []
    start = default_start([reliability(kept) for kept in able.values()])
    return [
        reliability(kept, label=label, start=start, style=styles[label])
        for label, kept in able.items()
    ]


def _bands(board: Leaderboard) -> list[Display]:
    styles = palette(board.labels)
    first = {e.label: kept[0] for e in board.entries if (kept := _keeping(e, "curve", "train"))}
    single = [r for r in first.values() if r.kept["curve"].prediction.mean.shape[-1] == 1]
    if not single or len(single) < len(first):
        return []
    views = [default_view(regression_band(results).data) for results in single]
    view = min(low for low, _ in views), max(high for _, high in views)
    return [
        regression_band(results, label=label, view=view, style=styles[label])
        for label, results in first.items()
    ]


def _histograms(board: Leaderboard) -> list[Display]:
    """Return, by score, one histogram a method, on bins shared by the methods."""
    styles = palette(board.labels)
    first = {e.label: kept[0] for e in board.entries if (kept := _keeping(e, "test"))}
    with_ood = {k: r for k, r in first.items() if any(name.startswith("ood:") for name in r.kept)}
    if not with_ood:
        return []
    classes = _classes(next(iter(with_ood.values())))
    names = ("predictive_entropy", "mutual_information") if classes else ("epistemic_variance",)
    displays: list[Display] = []
    for score in names:
        needs = 1 if score == "predictive_entropy" else 2
        able = {k: r for k, r in with_ood.items() if r.kept["test"].prediction.num_samples >= needs}
        values = [each for r in able.values() for each in scores(r, score).values()]
        if not values:
            continue
        limits = min(float(v.min()) for v in values), max(float(v.max()) for v in values)
        displays += [
            ood_histogram(r, score=score, label=label, limits=limits, style=styles[label])
            for label, r in able.items()
        ]
    return displays


def _severities(board: Leaderboard) -> list[Display]:
    styles = palette(board.labels)
    return [severity(board, name, styles=styles) for name in shifts(board)]


def _keeping(entry: Entry, *datasets: str) -> list[Results]:
    """Return the results of an entry that keep predictions of all these data sets."""
    return [r for r in entry.results if all(name in r.kept for name in datasets)]


def _classes(results: Results) -> bool:
    return isinstance(results.kept["test"].prediction, CategoricalPrediction)
