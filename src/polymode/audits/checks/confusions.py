"""Which two classes are confused more than the stated probabilities allow?

Of an example predicted as a, the label is b with the stated probability p(b). So the number of
confusions of a pair {a, b} is a sum of independent draws, whose law is exact. The pair with the
smallest p-value is named, and that p-value is multiplied by the number of pairs (Bonferroni).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from polymode.audits.checks.laws import excess_bound, excess_test
from polymode.audits.checks.registry import CHECKS, need_one_class
from polymode.audits.finding import Evidence, Finding
from polymode.audits.subject import Subject

TESTED = 3  # pairs whose law is computed; the smallest p-value of all is no larger
SHOWN = 5
SMALL, LARGE = 0.05, 0.2  # share of the pair's predictions confused beyond the expectation


@CHECKS.register("confusions")
def confusions(subject: Subject) -> Iterator[Finding]:
    """Yield the pair of classes that is confused most beyond what the probabilities state."""
    need_one_class(subject)
    names = subject.class_names
    probs = subject.prediction.mean.double().numpy()
    predicted, labels = subject.predicted.numpy(), subject.targets.numpy()
    counts, expected = confusion_tables(probs, predicted, labels)
    first, second = np.triu_indices(len(names), 1)
    count, total = counts[first, second], expected[first, second]
    order = np.argsort(excess_bound(total, count), kind="stable")
    p_values = {}
    for place in order[:TESTED]:
        rates = pair_rates(probs, predicted, (int(first[place]), int(second[place])))
        p_values[int(place)] = excess_test(rates, int(count[place]))
    worst = min(p_values, key=lambda place: (p_values[place], -count[place]))
    size = int(np.isin(predicted, (first[worst], second[worst])).sum())
    excess = float(count[worst] - total[worst]) / max(size, 1)
    pair = f"{names[first[worst]]} and {names[second[worst]]}"
    lines = [
        [
            f"{names[first[place]]} and {names[second[place]]}",
            f"{int(count[place]):,}",
            f"{total[place]:.1f}",
        ]
        for place in order[:SHOWN]
    ]
    yield Finding(
        check="confusions",
        name=f"classes {pair} confused",
        text=f"Classes {pair} are taken for one another in {int(count[worst])} of {size:,}"
        f" predictions; the stated probabilities allow {total[worst]:.1f}.",
        remedy="Look at these examples: labels or outputs of the two classes may be swapped.",
        severity="low" if excess < SMALL else "medium" if excess < LARGE else "high",
        estimate=excess,
        unit="share of the pair's predictions confused − stated",
        p_value=min(1.0, len(first) * p_values[worst]),
        n=size,
        evidence=(
            Evidence(
                title="Confusions against the stated probabilities",
                head=("classes", "confused", "expected"),
                lines=lines,
                note=f"the first of {len(first)} pairs; p-values are multiplied by their number",
            ),
        ),
    )


def confusion_tables(
    probs: np.ndarray, predicted: np.ndarray, labels: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return how often two classes were confused, in either direction, and the expectation."""
    num_classes = probs.shape[1]
    expected = np.zeros((num_classes, num_classes))
    np.add.at(expected, predicted, probs)
    flat = np.bincount(predicted * num_classes + labels, minlength=num_classes**2)
    counts = flat.reshape(num_classes, num_classes)
    return counts + counts.T, expected + expected.T


def pair_rates(probs: np.ndarray, predicted: np.ndarray, pair: tuple[int, int]) -> np.ndarray:
    """Return the stated probability of a confusion of examples predicted as one of two classes."""
    first, second = pair
    return np.concatenate([probs[predicted == first, second], probs[predicted == second, first]])
