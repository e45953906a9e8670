"""The figures of a report, made of the predictions that results keep.

Figures with all methods come first. Of figures with one method each there are at most `MOST` per
section, for the methods with the lowest test NLL; tables have them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import numpy as np

from polymode.examinations import findings_of
from polymode.metrics.diversity import ensemble_size_curve, pairwise_disagreement
from polymode.metrics.leaderboard import Entry, Leaderboard
from polymode.metrics.results import Results
from polymode.plots import (
    Display,
    Style,
    confidence_gap,
    cost_pareto,
    diversity_heat_map,
    diversity_plane,
    entropy_scatter,
    map_limits,
    map_pictures,
    ood_histogram,
    palette,
    pixel_reliability,
    regression_band,
    regression_calibration,
    reliability,
    risk_coverage,
    severity,
    severity_spread,
    size_curve,
    uncertainty_maps,
)
from polymode.plots.ood_histogram import scores
from polymode.plots.regression_band import default_view
from polymode.plots.reliability import default_start, pooled
from polymode.plots.severity import shifts
from polymode.prediction import CategoricalPrediction
from polymode.report.method_tables import ood_sets, ranked
from polymode.report.mistakes import Plain, by_class, confusions, example_rows, pictures

MOST = 4  # methods with a figure of their own
POOLED = 20_000  # confidences that a diagram pools: fewer seeds if the test set is large
SCATTERS = 2  # methods with a scatter of their entropies, which takes many bytes
EXAMPLES = 1000  # of the test set, that members are compared on
SIZES = 6  # numbers of modes on the curve, at most
SUBSETS = 10  # of modes that each of them is averaged over
REFERENCE = "deep_ensemble"  # its networks are the unit in which others are counted
SHIFTS = 3  # with more kinds of shift than this, none has a figure of its own

Maker = Callable[[Leaderboard], Sequence[Display]]


def figures(board: Leaderboard) -> tuple[dict[str, list[Display]], dict[str, list[str]]]:
    """Return the displays by section, and why something was not drawn where that is so."""
    displays: dict[str, list[Display]] = {}
    reasons: dict[str, list[str]] = {}
    for anchor, makers in MAKERS.items():
        for maker in makers:
            try:
                displays.setdefault(anchor, []).extend(maker(board))
            except ValueError as reason:  # these data cannot be drawn so; the page is worth more
                reasons.setdefault(anchor, []).append(str(reason))
    return displays, reasons


def _gaps(board: Leaderboard) -> list[Display]:
    able = {k: r for k, r in _pooled(_with_classes(board)).items() if not _has_bins(r)}
    return [confidence_gap(able, styles=_styles_of(board, able))] if len(able) > 1 else []


def _reliability(board: Leaderboard) -> list[Display]:
    styles = palette(board.labels)
    pixels = {k: r for k, r in _by_label(board).items() if _has_bins(r)}
    if pixels:
        return [pixel_reliability(r, label=k, style=styles[k]) for k, r in _first(pixels).items()]
    able = _pooled(_first(_with_classes(board)))
    if not able:
        return []
    diagrams = {k: reliability(seeds, label=k, style=styles[k]) for k, seeds in able.items()}
    start = default_start(list(diagrams.values()))
    for (
        label,
        display,
    ) in diagrams.items():  # not drawn yet: all axes begin at the same place
        confidence, _ = pooled(able[label], "test", "reliability")
        counts, edges = np.histogram(confidence, len(display.data["histogram"]), (start, 1))
        display.data |= {"histogram": counts, "histogram_edges": edges, "start": np.array([start])}
    return list(diagrams.values())


def _quantiles(board: Leaderboard) -> list[Display]:
    styles = palette(board.labels)
    able = {k: r for k, r in _keeping(board, "test").items() if not _classes(r[0])}
    return [
        regression_calibration(seeds, label=label, style=styles[label])
        for label, seeds in _first(able).items()
    ]


def _risks(board: Leaderboard) -> list[Display]:
    able = _with_classes(board)
    return [risk_coverage(able, styles=_styles_of(board, able))] if able else []


def _confusions(board: Leaderboard) -> list[Display]:
    return confusions(_first(_with_classes(board)), palette(board.labels))


def _pictures(board: Leaderboard) -> list[Display]:
    return pictures(_with_examples(board), palette(board.labels))


def _map_pictures(board: Leaderboard) -> list[Display]:
    """Return images with their maps, of the first seed of each method."""
    styles = palette(board.labels)
    return [
        map_pictures(seeds[0], label=label, style=styles[label])
        for label, seeds in _first(_keeping(board, "maps")).items()
    ]


def mistakes(board: Leaderboard) -> tuple[list[Plain], list[Plain]]:
    """Return the table by class, and the single examples where they are not pictures."""
    return by_class(_first(_with_classes(board))), example_rows(_with_examples(board))


def _with_examples(board: Leaderboard) -> dict[str, Results]:
    """Return the first seed's results of the methods that keep examples."""
    return {label: seeds[0] for label, seeds in _first(_keeping(board, "examples")).items()}


def _maps(board: Leaderboard) -> list[Display]:
    styles = palette(board.labels)
    able = {k: r[0] for k, r in _first(_keeping(board, "plane", "train")).items()}
    if not able:
        return []
    limits = map_limits(able.values())
    return [
        uncertainty_maps(results, label=label, limits=limits, style=styles[label])
        for label, results in able.items()
    ]


def _scatters(board: Leaderboard) -> list[Display]:
    """Return the two parts of the entropy on the test set and on the first, nearest OOD set."""
    styles = palette(board.labels)
    outside = [name for name in ood_sets(board)][:1]
    able = {k: r[0] for k, r in _with_classes(board, *outside).items() if outside}
    able = {k: r for k, r in able.items() if r.kept["test"].prediction.num_samples > 1}
    if not able:
        return []
    parts = [r.kept[name].prediction for r in able.values() for name in ("test", *outside)]
    limits = tuple(
        max(float(getattr(part, name).max()) for part in parts)
        for name in ("expected_entropy", "mutual_information")
    )
    return [
        entropy_scatter(
            results,
            ood=outside[0].removeprefix("ood:"),
            label=label,
            limits=(limits[0], limits[1]),
            style=styles[label],
        )
        for label, results in list(_first(able).items())[:SCATTERS]
    ]


def _bands(board: Leaderboard) -> list[Display]:
    styles = palette(board.labels)
    first = {k: seeds[0] for k, seeds in _first(_keeping(board, "curve", "train")).items()}
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
    """Return, by score, one histogram per method with all its seeds, on shared bins."""
    styles = palette(board.labels)
    with_ood = _first(_keeping(board, "test", *ood_sets(board)[:1])) if ood_sets(board) else {}
    if not with_ood:
        return []
    classes = _classes(next(iter(with_ood.values()))[0])
    names = ("predictive_entropy", "mutual_information") if classes else ("epistemic_variance",)
    displays: list[Display] = []
    for score in names:
        able = with_ood
        if score != "predictive_entropy":
            able = {k: r for k, r in able.items() if r[0].kept["test"].prediction.has_epistemic}
        values = [v for seeds in able.values() for r in seeds for v in scores(r, score).values()]
        if not values:
            continue
        limits = min(float(v.min()) for v in values), max(float(v.max()) for v in values)
        displays += [
            ood_histogram(seeds, score=score, label=label, limits=limits, style=styles[label])
            for label, seeds in able.items()
        ]
    return displays


def _severities(board: Leaderboard) -> list[Display]:
    """Return all kinds of shift in one figure if there are several, and each if they are few."""
    styles, kinds = palette(board.labels), shifts(board)
    together = [severity_spread(board, styles=styles)] if len(kinds) > 2 else []
    single = [severity(board, name, styles=styles) for name in kinds if len(kinds) <= SHIFTS]
    return [*together, *single]


def _costs(board: Leaderboard) -> list[Display]:
    timed = any(r.cost.train_seconds is not None for e in board.entries for r in e.results)
    scored = any(column[:2] == ("test", "nll") for column in board.columns)
    if len(board.entries) < 2 or not timed or not scored:
        return []
    return [cost_pareto(board, styles=palette(board.labels))]


def _planes(board: Leaderboard) -> list[Display]:
    """Return accuracy and disagreement of all methods' pairs, in one figure."""
    pairs, classes = {}, 2
    for label, results in _with_members(board).items():
        prediction, targets, _ = results.kept["test"]
        if not isinstance(prediction, CategoricalPrediction) or targets is None:
            return []
        some, classes = _some(results), prediction.mean.shape[-1]
        first = prediction[some]
        assert isinstance(first, CategoricalPrediction)
        hits = first.log_probs.argmax(-1) == targets[some].to(first.log_probs.device)
        pairs[label] = (hits.double().mean(-1).tolist(), pairwise_disagreement(first))
    if not pairs:
        return []
    plane = diversity_plane(pairs, num_classes=classes, styles=_styles_of(board, pairs))
    return [_with_sample(plane, board)]


def _curves(board: Leaderboard) -> list[Display]:
    """Return the NLL against the number of modes, all methods in one figure, if any has several."""
    members, by_size = _with_members(board), {}
    for label, results in members.items():
        prediction, targets, _ = results.kept["test"]
        if targets is not None:
            by_size[label] = ensemble_size_curve(
                prediction[_some(members[label])],
                targets[_some(members[label])],
                sizes=_sizes(prediction.num_modes),
                num_subsets=SUBSETS,
            )
    if not any(len(curve.sizes) > 1 for curve in by_size.values()):
        return []
    reference = next((k for k in by_size if members[k].method == REFERENCE), None)
    curve = size_curve(by_size, reference=reference, styles=_styles_of(board, by_size))
    return [_with_sample(curve, board)]


def _pairs(board: Leaderboard) -> list[Display]:
    """Return the disagreement of each pair of members, one figure per method, on shared colours."""
    matrices = {}
    for label, results in _first(_with_members(board)).items():
        prediction = results.kept["test"].prediction
        if not isinstance(prediction, CategoricalPrediction):
            return []
        if prediction.num_samples > 2:
            matrices[label] = pairwise_disagreement(prediction[_some(results)])
    top = max((float(matrix.max()) for matrix in matrices.values()), default=0.0)
    return [
        _with_sample(
            diversity_heat_map(
                matrix, label=label, limits=(0.0, top or 1.0), unit="fraction of inputs"
            ),
            board,
        )
        for label, matrix in matrices.items()
    ]


def _styles_of(board: Leaderboard, labels: Iterable[str]) -> dict[str, Style]:
    """Return how some methods look: as everywhere else on the page."""
    styles = palette(board.labels)
    return {label: styles[label] for label in labels}


def _sizes(modes: int) -> list[int]:
    """Return a few numbers of modes in even ratios, from the first to the last.

    >>> _sizes(5), _sizes(100)
    ([1, 2, 3, 4, 5], [1, 3, 6, 16, 40, 100])
    """
    if modes <= SIZES:
        return list(range(1, modes + 1))
    return sorted({round(modes ** (i / (SIZES - 1))) for i in range(SIZES)})


def _some(results: Results) -> slice:
    """Return which rows of the test set members are compared on: the first; of pixels, which lie
    image by image, every k-th."""
    step = len(results.kept["test"].prediction) // EXAMPLES if _has_bins([results]) else 1
    return slice(0, EXAMPLES * max(step, 1), max(step, 1))


def _with_sample(display: Display, board: Leaderboard) -> Display:
    """Add to the caption which data the figure shows."""
    first = next(iter(_with_members(board).values()))
    n = min(EXAMPLES, len(first.kept["test"].prediction))
    unit = " pixels, evenly spread" if _has_bins([first]) else ""
    display.shared += f" Test set, n = {n:,}{unit}, seed {first.seed}."
    return display


def _examined(board: Leaderboard) -> list[Display]:
    """Return the figures of examinations, of the first seed of each method."""
    styles, displays = palette(board.labels), list[Display]()
    entries = {entry.label: entry for entry in board.entries}
    for label in _first(dict.fromkeys(ranked(board))):
        for findings in findings_of(entries[label].results[0]).values():
            if findings.arrays:
                displays += findings.displays(label=label, style=styles[label]).values()
    return sorted(displays, key=lambda display: type(display).__name__)


MAKERS: dict[str, list[Maker]] = {
    "leaderboard": [_costs],
    "calibration": [_gaps, _reliability, _quantiles],
    "selective": [_risks],
    "mistakes": [_confusions, _pictures, _map_pictures],
    "ood": [_histograms],
    "shift": [_severities],
    "uncertainty": [_maps, _bands, _scatters],
    "diversity": [_planes, _curves, _pairs],
    "examinations": [_examined],
}
"""What is drawn, by section."""


def _with_classes(board: Leaderboard, *datasets: str) -> dict[str, list[Results]]:
    """Return the results that keep predictions of classes, by label, the best method first."""
    return {k: r for k, r in _keeping(board, "test", *datasets).items() if _classes(r[0])}


def _pooled(by_label: dict[str, list[Results]]) -> dict[str, list[Results]]:
    """Return as many seeds of each as a diagram pools."""
    sizes = {label: len(several[0].kept["test"].prediction) for label, several in by_label.items()}
    return {k: several[: max(1, POOLED // sizes[k])] for k, several in by_label.items()}


def _with_members(board: Leaderboard) -> dict[str, Results]:
    """Return the first seed's results of methods with at least two members, by label."""
    seeds = _keeping(board, "test")
    return {k: r[0] for k, r in seeds.items() if r[0].kept["test"].prediction.num_samples > 1}


def _has_bins(several: Sequence[Results]) -> bool:
    """Whether results are of labels at each pixel, with bins over them."""
    return all("bins" in results.arrays.get("pixels", {}) for results in several)


def _by_label(board: Leaderboard) -> dict[str, list[Results]]:
    """Return all results by label, the best method first."""
    entries = {entry.label: entry for entry in board.entries}
    return {label: list(entries[label].results) for label in ranked(board)}


def _keeping(board: Leaderboard, *datasets: str) -> dict[str, list[Results]]:
    """Return the results that keep predictions of these data sets, by label, the best first."""
    entries = {entry.label: entry for entry in board.entries}
    by_label = {label: _with_predictions(entries[label], datasets) for label in ranked(board)}
    return {label: results for label, results in by_label.items() if results}


def _with_predictions(entry: Entry, datasets: Sequence[str]) -> list[Results]:
    return [r for r in entry.results if all(name in r.kept for name in datasets)]


T = TypeVar("T")


def _first(by_label: dict[str, T]) -> dict[str, T]:
    """Return the methods that get a figure of their own."""
    return dict(list(by_label.items())[:MOST])


def _classes(results: Results) -> bool:
    return isinstance(results.kept["test"].prediction, CategoricalPrediction)
