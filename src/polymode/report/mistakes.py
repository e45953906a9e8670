"""Where methods are wrong: confusion matrices, a table by class, and single test examples.

Matrices and the table pool all seeds. Examples are those of the first seed, kept by `evaluate`:
pictures where the inputs are images, else rows of a table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from polymode.metrics.examples import is_image, telling
from polymode.metrics.results import Kept, Results
from polymode.metrics.text_table import decimals_for, number
from polymode.plots import Display, Style, confusion, example_pictures
from polymode.plots.confusion import class_names, shares_of
from polymode.plots.sources import numbers
from polymode.prediction import CategoricalPrediction, DensityPrediction

PICTURES = 4  # in each of the two rows of a method
CLASSES = 12  # lines of the table by class; of more, those with the lowest recall
FEATURES = 8  # of an input that a row shows
ORDERS = ("most uncertain", "surely wrong")


class Plain(NamedTuple):
    """A table of words and numbers: headings, groups that span them, lines and a note."""

    title: str
    head: list[str]
    lines: list[list[str]]
    note: str = ""
    groups: list[tuple[str, int]] = []


def confusions(able: Mapping[str, list[Results]], styles: Mapping[str, Style]) -> list[Display]:
    """Return one confusion matrix per method."""
    return [confusion(seeds, label=label, style=styles[label]) for label, seeds in able.items()]


def pictures(able: Mapping[str, Results], styles: Mapping[str, Style]) -> list[Display]:
    """Return the examples of each method whose inputs are images."""
    return [
        example_pictures(results, label=label, most=PICTURES, style=styles[label])
        for label, results in able.items()
        if _pictured(results)
    ]


def _pictured(results: Results) -> bool:
    prediction, _, inputs = results.kept["examples"]
    classes = isinstance(prediction, CategoricalPrediction)
    return classes and inputs is not None and is_image(inputs.shape[1:])


def by_class(able: Mapping[str, list[Results]]) -> list[Plain]:
    """Return recall, precision and the most frequent mistake for each class, methods side by side.

    Counts are pooled over seeds.
    """
    if not able:
        return []
    matrices = {label: confusion(seeds).data["count"] for label, seeds in able.items()}
    first = next(iter(able.values()))
    size = len(next(iter(matrices.values())))
    names = class_names(first[0], size)
    recalls = np.diag(shares_of(next(iter(matrices.values()))))
    chosen = np.sort(np.argsort(recalls, kind="stable")[:CLASSES])
    examples = next(iter(matrices.values())).sum(1) / len(first)
    lines = [
        [
            names[i],
            f"{examples[i]:,.0f}",
            *(text for m in matrices.values() for text in _line(m, names, i)),
        ]
        for i in chosen
    ]
    seeds = max(map(len, able.values()))
    pooled = f"{seeds} seeds pooled" if seeds > 1 else "one seed"
    few = f"; the {CLASSES} of {size} classes with the lowest recall of {next(iter(able))}"
    return [
        Plain(
            "By class",
            ["class", "n", *(word for _ in able for word in ("recall", "precision", "taken for"))],
            lines,
            f"{pooled}{few if size > CLASSES else ''}. Recall: share of a class that is found;"
            " precision: share of the answers that are right; taken for: the most frequent wrong"
            " answer, as a share of the class.",
            [("", 2), *((label, 3) for label in able)],
        )
    ]


def _line(counts: np.ndarray, names: Sequence[str], place: int) -> list[str]:
    """Return recall, precision and the most frequent mistake of one class."""
    right, all_of, answers = counts[place, place], counts[place].sum(), counts[:, place].sum()
    wrong = counts[place].copy()
    wrong[place] = 0
    most = int(wrong.argmax())
    mistake = f"{names[most]} ({100 * wrong[most] / all_of:.0f} %)" if wrong[most] else "–"
    return [
        f"{right / all_of:.3f}" if all_of else "n/a",
        f"{right / answers:.3f}" if answers else "n/a",
        mistake,
    ]


def example_rows(able: Mapping[str, Results]) -> list[Plain]:
    """Return the examples of each method whose inputs are not images, one table per method."""
    return [_rows(label, r) for label, r in able.items() if not _pictured(r)]


def _rows(label: str, results: Results) -> Plain:
    examples = results.kept["examples"]
    assert examples.targets is not None and examples.inputs is not None
    x = numbers(examples.inputs.flatten(1))
    num_features = min(FEATURES, x.shape[1])
    digits = [decimals_for(x[:, i].tolist()) for i in range(num_features)]
    head, texts = _answers(results, examples)
    lines = []
    for order, places in zip(ORDERS, telling(examples.prediction, examples.targets), strict=True):
        for place in places.tolist():
            inputs = [_shown(results, x[place, i], i, digits[i]) for i in range(num_features)]
            lines.append([order, *texts[place], *inputs])
    hidden = x.shape[1] - num_features
    more = f"; {hidden:,} more inputs are not shown" if hidden else ""
    names = [f"input {i + 1}" for i in range(num_features)] if num_features > 1 else ["input"]
    if results.columns:
        names = [name for name, _, _ in results.columns[:num_features]]
    classes = isinstance(examples.prediction, CategoricalPrediction)
    wrong = "the most confident mistakes" if classes else "the largest errors in units of std"
    note = f"Seed {results.seed}{more}. Surely wrong: {wrong}."
    return Plain(label, ["", *head, *names], lines, note)


def _shown(results: Results, value: float, place: int, digits: int) -> str:
    """Return a value of an input as its column has it."""
    _, kind, labels = results.columns[place] if results.columns else ("", "number", [])
    if not np.isfinite(value):
        return "missing"
    if kind == "category":
        return labels[int(value)]
    if kind == "boolean":
        return str(bool(value))
    if kind == "date":
        return str(np.datetime64(round(value), "D"))
    return number(float(value), None, digits)


def _answers(results: Results, examples: Kept) -> tuple[list[str], list[list[str]]]:
    """Return headings and, for each example, what is true, what was predicted, and how surely."""
    prediction, targets = examples.prediction, examples.targets
    assert targets is not None
    if isinstance(prediction, CategoricalPrediction):
        names = class_names(results, prediction.mean.shape[-1])
        columns: list[Any] = [
            [names[int(label)] for label in targets],
            [names[int(label)] for label in prediction.classes],
            [f"{value:.3f}" for value in numbers(prediction.confidence)],
            [f"{value:.3f}" for value in numbers(prediction.predictive_entropy)],
        ]
        head = ["true class", "predicted", "confidence", "entropy [nats]"]
        return head, [list(row) for row in zip(*columns, strict=True)]
    assert isinstance(prediction, DensityPrediction)
    parts = numbers(targets), numbers(prediction.mean), numbers(prediction.std)
    worst = (np.abs(parts[0] - parts[1]) / parts[2]).argmax(-1)
    rows = np.arange(len(worst))
    true, mean, std = (part[rows, worst] for part in parts)
    digits = decimals_for([*true.tolist(), *mean.tolist()], std.tolist())
    texts = [
        [number(t, None, digits), number(m, s, digits), f"{(t - m) / s:+.1f}".replace("-", "−")]
        for t, m, s in zip(true, mean, std, strict=True)
    ]
    return ["target", "mean ± std", "error / std"], texts
