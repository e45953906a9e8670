"""Where does it fail? Slices of the inputs that a small tree finds, in words.

A tree is grown on one half of the test set, so that its leaves are unlike in `confidence − correct`
or in errors. The leaf with the largest gap in either direction is tested on the other half, which
had no part in finding it. A slice with more errors than elsewhere that are stated as such is a
fact, no fault.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from polymode.audits.checks.calibration import LEAST, gap_test, severity_of
from polymode.audits.checks.columns import Columns, columns_of
from polymode.audits.checks.registry import CHECKS, NotApplicable, need_one_class
from polymode.audits.finding import LEVEL, Finding, interval_text, percent
from polymode.audits.subject import Subject
from polymode.metrics.rejection import clopper_pearson

DEPTH = 3
SMALLEST = 40  # part of a half that a leaf holds at least: one in so many
VALUES = 20  # of a group that the tree can ask for, the most frequent ones
EQUAL = " = "


@CHECKS.register("slices")
def slices(subject: Subject) -> Iterator[Finding]:
    """Yield slices with the largest gaps in confidence, tested, and the one with most errors."""
    need_one_class(subject)
    features = slice_features(subject)
    confidence, correct = subject.confidence.numpy(), subject.correct.numpy()
    order = subject.generator("slices").permutation(len(correct))
    learn, judge = order[: len(order) // 2], order[len(order) // 2 :]
    if len(learn) < 2 * LEAST:
        raise NotApplicable(f"{len(correct)} examples are too few to be halved")
    tree = grown(features.values[learn], (confidence - correct)[learn])
    places, leaves = tree.apply(features.values[judge]), tree.apply(features.values[learn])
    totals = {k: float((confidence - correct)[learn][leaves == k].sum()) for k in np.unique(leaves)}
    weights = {k: total / np.sqrt((leaves == k).sum()) for k, total in totals.items()}
    for pick, word in ((max, "overconfident"), (min, "underconfident")):
        leaf = pick(weights, key=lambda k: weights[k])
        chosen = judge[places == leaf]
        if len(chosen) >= LEAST and len(weights) > 1 and (weights[leaf] > 0) == (pick is max):
            words = path_words(tree, int(leaf), features.names)
            yield _gap(f"{word} where {words}", confidence[chosen], correct[chosen])
    yield from _errors(features, 1.0 - correct, learn, judge)


def slice_features(subject: Subject) -> Columns:
    """Return what a slice may speak of: columns of the inputs, and values of groups as 0 or 1."""
    parts, names = [], []
    try:
        columns = columns_of(subject.test[0])
        complete = np.isfinite(columns.values).all(0)
        parts.append(columns.values[:, complete].astype(np.float32))
        names += [name for name, finite in zip(columns.names, complete, strict=True) if finite]
    except NotApplicable as reason:
        if not subject.groups:
            raise NotApplicable(f"{reason}, and no groups were given") from reason
    for column, values in subject.groups.items():
        levels, counts = np.unique(values, return_counts=True)
        for level in levels[np.argsort(-counts, kind="stable")[:VALUES]]:
            parts.append((values == level)[:, None].astype(np.float32))
            names.append(f"{column}{EQUAL}{level}")
    return Columns(np.concatenate(parts, axis=1), names)


def grown(values: np.ndarray, targets: np.ndarray) -> Any:
    """Return a small regression tree."""
    from sklearn.tree import DecisionTreeRegressor

    smallest = max(LEAST, len(targets) // SMALLEST)
    tree = DecisionTreeRegressor(max_depth=DEPTH, min_samples_leaf=smallest, random_state=0)
    return tree.fit(values, targets)


def path_words(tree: Any, leaf: int, names: list[str]) -> str:
    """Return the conditions that lead to a leaf: "x3 > 1.2 and city = Ulm"."""
    nodes = tree.tree_
    parents = {int(nodes.children_left[k]): (k, True) for k in range(nodes.node_count)}
    parents |= {int(nodes.children_right[k]): (k, False) for k in range(nodes.node_count)}
    upper: dict[str, float] = {}
    lower: dict[str, float] = {}
    place, columns = leaf, list[str]()
    while place:
        place, left = parents[place]
        name, limit = names[nodes.feature[place]], float(nodes.threshold[place])
        columns.insert(0, name)
        if left:
            upper[name] = min(limit, upper.get(name, limit))
        else:
            lower[name] = max(limit, lower.get(name, limit))
    return " and ".join(
        _condition(name, lower.get(name), upper.get(name)) for name in dict.fromkeys(columns)
    )


def _condition(name: str, low: float | None, high: float | None) -> str:
    if EQUAL in name:
        return name if high is None else name.replace(EQUAL, " ≠ ", 1)
    if low is None:
        return f"{name} ≤ {high:.3g}"
    return f"{name} > {low:.3g}" if high is None else f"{low:.3g} < {name} ≤ {high:.3g}"


def _gap(name: str, confidence: np.ndarray, correct: np.ndarray) -> Finding:
    size, right = len(correct), int(correct.sum())
    low, high = clopper_pearson(right, size, LEVEL)
    claimed = float(confidence.mean())
    gap = claimed - right / size
    return Finding(
        check="slices",
        name=f"slice {name}",
        text=f"{name[0].upper()}{name[1:]}: claims {percent(claimed, 1)}, right"
        f" {percent(right / size, 1)} {interval_text(low, high, 1)} (on the half that was not used"
        " to find it).",
        remedy="Collect labelled data there, or recalibrate this slice by itself.",
        severity=severity_of(gap),
        estimate=gap,
        low=claimed - high,
        high=claimed - low,
        unit="confidence − accuracy",
        p_value=gap_test(confidence, correct),
        n=size,
    )


def _errors(
    features: Columns, errors: np.ndarray, learn: np.ndarray, judge: np.ndarray
) -> Iterator[Finding]:
    """Yield the slice with the highest error rate, as a fact."""
    tree = grown(features.values[learn], errors[learn])
    if tree.tree_.node_count == 1:
        return
    leaves = tree.apply(features.values[learn])
    leaf = int(max(np.unique(leaves), key=lambda k: errors[learn][leaves == k].mean()))
    inside = tree.apply(features.values[judge]) == leaf
    size, wrong = int(inside.sum()), int(errors[judge][inside].sum())
    if not 0 < size < len(judge):
        return
    low, high = clopper_pearson(wrong, size, LEVEL)
    words = path_words(tree, leaf, features.names)
    yield Finding(
        check="slices",
        name="most errors",
        text=f"Most errors are where {words}: {percent(wrong / size, 1)}"
        f" {interval_text(low, high, 1)}, elsewhere {percent(errors[judge][~inside].mean(), 1)}.",
        kind="fact",
        estimate=wrong / size,
        low=low,
        high=high,
        unit="error rate",
        n=size,
    )
