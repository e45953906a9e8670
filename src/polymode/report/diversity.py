"""The figures of a report about members: how they differ, and what their number is worth.

They use the first `EXAMPLES` inputs of the test set and the first seed, which is enough.
"""

from __future__ import annotations

from collections.abc import Iterable

from polymode.metrics.diversity import ensemble_size_curve, pairwise_disagreement
from polymode.metrics.leaderboard import Leaderboard
from polymode.metrics.results import Results
from polymode.plots import (
    Display,
    Style,
    diversity_heat_map,
    diversity_plane,
    palette,
    size_curve,
)
from polymode.prediction import CategoricalPrediction

EXAMPLES = 1000
SIZES = 6  # numbers of modes on the curve, at most
SUBSETS = 10  # of modes that each of them is averaged over
REFERENCE = "deep_ensemble"  # its networks are the unit in which others are counted


def planes(board: Leaderboard, members: dict[str, Results]) -> list[Display]:
    """Return accuracy and disagreement of all methods' pairs, in one figure."""
    found, classes = {}, 2
    for label, results in members.items():
        prediction, targets, _ = results.kept["test"]
        if not isinstance(prediction, CategoricalPrediction) or targets is None:
            return []
        some, classes = prediction[:EXAMPLES], prediction.mean.shape[-1]
        assert isinstance(some, CategoricalPrediction)
        hits = some.log_probs.argmax(-1) == targets[:EXAMPLES].to(some.log_probs.device)
        found[label] = (hits.double().mean(-1).tolist(), pairwise_disagreement(some))
    if not found:
        return []
    styles = styles_of(board, found)
    return [_said(diversity_plane(found, num_classes=classes, styles=styles), members)]


def curves(board: Leaderboard, members: dict[str, Results]) -> list[Display]:
    """Return the NLL against the number of modes, all methods in one figure, if any has several."""
    found = {}
    for label, results in members.items():
        prediction, targets, _ = results.kept["test"]
        if targets is not None:
            found[label] = ensemble_size_curve(
                prediction[:EXAMPLES],
                targets[:EXAMPLES],
                sizes=_sizes(prediction.num_modes),
                num_subsets=SUBSETS,
            )
    if not any(len(curve.sizes) > 1 for curve in found.values()):
        return []
    reference = next((k for k in found if members[k].method == REFERENCE), None)
    styles = styles_of(board, found)
    return [_said(size_curve(found, reference=reference, styles=styles), members)]


def maps(board: Leaderboard, members: dict[str, Results]) -> list[Display]:
    """Return the disagreement of each pair of members, one figure per method, on shared colours."""
    found = {}
    for label, results in members.items():
        prediction = results.kept["test"].prediction
        if not isinstance(prediction, CategoricalPrediction):
            return []
        if prediction.num_samples > 2:
            found[label] = pairwise_disagreement(prediction[:EXAMPLES])
    top = max((float(matrix.max()) for matrix in found.values()), default=0.0)
    return [
        _said(
            diversity_heat_map(
                matrix, label=label, limits=(0.0, top or 1.0), unit="fraction of inputs"
            ),
            members,
        )
        for label, matrix in found.items()
    ]


def styles_of(board: Leaderboard, labels: Iterable[str]) -> dict[str, Style]:
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


def _said(display: Display, members: dict[str, Results]) -> Display:
    """Add to the caption which data the figure shows."""
    first = next(iter(members.values()))
    n = min(EXAMPLES, len(first.kept["test"].prediction))
    display.shared += f" Test set, n = {n:,}, seed {first.seed}."
    return display
