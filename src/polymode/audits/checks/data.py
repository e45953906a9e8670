"""Is something wrong with the data? Classes that are missing, columns that do not vary, and a
column that gives the label away."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.stats import binom

from polymode.audits.checks.columns import Columns, columns_of
from polymode.audits.checks.laws import absence_test
from polymode.audits.checks.registry import CHECKS, NotApplicable, one_class
from polymode.audits.finding import LEVEL, Finding, interval_text, percent
from polymode.audits.subject import Subject
from polymode.metrics.rejection import clopper_pearson

ALONE = 0.97  # accuracy above which a single column gives the label away
COMMON = 0.9  # share of the largest class above which that says little
TRIED = 8  # columns that separate the classes best
LEAST = 100  # rows of each half
SHOWN = 10


@CHECKS.register("data")
def data(subject: Subject) -> Iterator[Finding]:
    """Yield missing classes, constant columns and a column that alone gives the label."""
    findings: list[Finding] = []
    if one_class(subject):
        findings += _classes(subject)
    try:
        columns = columns_of(subject.test[0])
    except NotApplicable as reason:
        if not findings:
            raise NotApplicable(str(reason)) from reason
        yield from findings
        return
    yield from findings
    yield from _constants(subject, columns)
    if one_class(subject):
        yield from _giveaway(subject, columns)


def _classes(subject: Subject) -> Iterator[Finding]:
    """Yield classes without test examples, and those that only the test set has."""
    names = subject.class_names
    counts = np.bincount(subject.targets.numpy(), minlength=len(names))
    if subject.train is None:
        missing = [name for name, count in zip(names, counts, strict=True) if count == 0]
        if missing:
            yield Finding(
                check="data",
                name="classes without test examples",
                text=f"The test set has no example of {_listed(missing)}: nothing is said of them.",
                kind="fact",
                n=len(subject.targets),
            )
        return
    seen = np.bincount(subject.train[1].numpy(), minlength=len(names))
    n_test, n_train = int(counts.sum()), int(seen.sum())
    for name, here, there, sizes, remedy in (
        ("training", counts, seen, (n_test, n_train),
         "The network cannot know them: add training examples, or take them out."),
        ("test", seen, counts, (n_train, n_test),
         "Add test examples: nothing is said of these classes."),
    ):  # fmt: skip
        absent = np.flatnonzero((there == 0) & (here > 0))
        p_values = [absence_test(int(here[k]), *sizes) for k in absent]
        yield Finding(
            check="data",
            name=f"classes without {name} examples",
            text=f"No {name} examples of {_listed([names[k] for k in absent])}"
            f" ({int(here[absent].sum()):,} in the other set)."
            if len(absent)
            else f"All classes have {name} examples.",
            remedy=remedy,
            severity="high" if name == "training" else "medium",
            estimate=float(len(absent)),
            unit="classes",
            p_value=min([1.0, *(len(names) * p for p in p_values)]),
            n=n_test + n_train,
        )


def _listed(names: list[str]) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:SHOWN])
    more = len(names) - SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


def _constants(subject: Subject, columns: Columns) -> Iterator[Finding]:
    """Yield columns that vary in one set only; a rare value may be missing by chance."""
    test = columns.values
    flat = np.flatnonzero((test == test[:1]).all(0))
    if subject.train is None:
        if len(flat):
            yield Finding(
                check="data",
                name="constant columns",
                text=f"Constant in the test set: {_listed([columns.names[k] for k in flat])}.",
                kind="fact",
                n=len(test),
            )
        return
    train = columns_of(subject.train[0]).values
    unvaried = np.flatnonzero((train == train[:1]).all(0))
    for name, places, fixed, varied, remedy in (
        ("training", unvaried, train, test,
         "What the network does with them was never learned: look at how the sets were made."),
        ("test", flat, test, train,
         "Look at how the test set was made: it is not like the training set."),
    ):  # fmt: skip
        differing = (varied[:, places] != fixed[0, places]).sum(0)
        sizes = (len(varied), len(fixed))
        changed = [columns.names[k] for k, count in zip(places, differing, strict=True) if count]
        p_values = [absence_test(int(count), *sizes) for count in differing if count]
        text = f"Constant in the {name} set only: {_listed(changed)}." if changed else (
            f"No column is constant in the {name} set only."
        )  # fmt: skip
        yield Finding(
            check="data",
            name=f"columns constant in the {name} set",
            text=text,
            remedy=remedy,
            severity="high" if name == "training" else "medium",
            estimate=float(len(changed)),
            unit="columns",
            p_value=min([1.0, *(len(columns.names) * p for p in p_values)]),
            n=sum(sizes),
        )


def _giveaway(subject: Subject, columns: Columns) -> Iterator[Finding]:
    """Yield the column that gives the label best, by a small tree on one half and tested on the
    other; its p-value is multiplied by the number of columns."""
    from sklearn.tree import DecisionTreeClassifier

    if subject.train is None:
        values, labels = columns.values, subject.targets.numpy()
    else:
        values, labels = columns_of(subject.train[0]).values, subject.train[1].numpy()
    kept_columns = np.flatnonzero(np.isfinite(values).all(0) & (values != values[:1]).any(0))
    counts = np.bincount(labels)
    if len(labels) < 2 * LEAST or not len(kept_columns) or counts.max() > COMMON * len(labels):
        return
    order = subject.generator("data").permutation(len(labels))
    learn, judge = order[: len(order) // 2], order[len(order) // 2 :]
    strength = separation(values[learn][:, kept_columns].astype(np.float64), labels[learn])
    best, right = -1, -1
    for k in kept_columns[np.argsort(-strength, kind="stable")[:TRIED]]:
        tree = DecisionTreeClassifier(max_leaf_nodes=2 * max(2, len(counts)), random_state=0)
        tree.fit(values[learn][:, [k]], labels[learn])
        count = int((tree.predict(values[judge][:, [k]]) == labels[judge]).sum())
        best, right = (int(k), count) if count > right else (best, right)
    low, high = clopper_pearson(right, len(judge), LEVEL)
    p_value = len(columns.names) * float(binom.sf(right - 1, len(judge), ALONE))
    yield Finding(
        check="data",
        name=f"column {columns.names[best]} gives the label",
        text=f"Column {columns.names[best]} alone gives the label for"
        f" {percent(right / len(judge), 1)} {interval_text(low, high, 1)} of the rows.",
        remedy="Ask whether it is there before the label is; if not, take it out and train again.",
        severity="medium",
        estimate=right / len(judge),
        low=low,
        high=high,
        unit="accuracy of one column",
        p_value=min(1.0, p_value),
        n=len(judge),
    )


def separation(values: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return for each column the share of its variance that lies between the classes.

    >>> values = np.array([[0.0, 1.0], [0.0, 2.0], [1.0, 1.0], [1.0, 2.0]])
    >>> separation(values, np.array([0, 0, 1, 1]))
    array([1., 0.])
    """
    total = ((values - values.mean(0)) ** 2).sum(0)
    between = np.zeros(values.shape[1])
    for k in np.unique(labels):
        rows = values[labels == k]
        between += len(rows) * (rows.mean(0) - values.mean(0)) ** 2
    return between / np.where(total > 0, total, 1.0)
