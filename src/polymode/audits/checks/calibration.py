"""Are confidences right? Overall, in shape, and for the examples predicted as each class."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from scipy.stats import norm
from torch import Tensor

from polymode.audits.checks.laws import EXACT, sum_law
from polymode.audits.checks.registry import CHECKS, need_classes
from polymode.audits.finding import LEVEL, Evidence, Finding, interval_text, percent
from polymode.audits.subject import Subject
from polymode.metrics.rejection import clopper_pearson
from polymode.prediction import CategoricalPrediction, Prediction

BINS = 10  # of equal mass, for the test of shape and its table
DRAWS = 2000  # simulated sets of labels
LEAST = 30  # examples of a class or group that are tested
SMALL, LARGE = 0.02, 0.05  # gaps between confidence and accuracy: low below, high above


def severity_of(gap: float) -> str:
    """Return how severe a gap between confidence and accuracy is."""
    return "low" if abs(gap) < SMALL else "medium" if abs(gap) < LARGE else "high"


def gap_test(confidence: np.ndarray, correct: np.ndarray) -> float:
    """Return the p-value of "labels are right with the stated confidences", two-sided.

    Under it the number of mistakes is a sum of independent draws of probabilities 1 − cᵢ. Its law
    is computed exactly where its variance is small, else it is normal with a correction for
    continuity.

    >>> gap_test(np.full(10, 0.5), np.ones(10)) == 2 * 0.5**10
    True
    """
    rates = 1.0 - np.clip(confidence, 0.0, 1.0)
    mistakes = len(correct) - int(correct.sum())
    variance = float((rates * (1 - rates)).sum())
    if variance > EXACT:
        distance = max(abs(mistakes - float(rates.sum())) - 0.5, 0.0)
        return float(2 * norm.sf(distance / math.sqrt(variance)))
    law = sum_law(rates)
    if mistakes >= len(law):
        return 0.0
    return min(1.0, 2 * float(min(law[: mistakes + 1].sum(), law[mistakes:].sum())))


@CHECKS.register("calibration")
def calibration(subject: Subject) -> Iterator[Finding]:
    """Yield the gap between mean confidence and accuracy, the shape, and each predicted class."""
    need_classes(subject)
    confidence, correct = subject.confidence.numpy(), subject.correct.numpy()
    n = len(correct)
    gap = float(confidence.mean() - correct.mean())
    low, high = clopper_pearson(int(correct.sum()), n, LEVEL)
    yield Finding(
        check="calibration",
        name="overconfident" if gap > 0 else "underconfident",
        text=f"{'Overconfident' if gap > 0 else 'Underconfident'}: claims"
        f" {percent(confidence.mean(), 1)}, right {percent(correct.mean(), 1)}"
        f" {interval_text(low, high, 1)}.",
        remedy=_temperature(subject),
        severity=severity_of(gap),
        estimate=gap,
        low=confidence.mean() - high,
        high=confidence.mean() - low,
        unit="confidence − accuracy",
        p_value=gap_test(confidence, correct),
        n=n,
    )
    yield _shape(subject, confidence, correct)
    yield from _by_class(subject, confidence, correct)


def _temperature(subject: Subject) -> str:
    """Return which temperature mends it, if there are validation data."""
    if subject.val is None or subject.val_prediction is None:
        return "Fit a temperature on labelled validation data (give `val`)."
    from polymode.recalibration import fit_temperature

    mixture = log_mixture(subject.val_prediction)
    value = float(fit_temperature(mixture, subject.val[1]))
    return f"A temperature of {value:.2f}, found on the validation data, mends most of it."


def log_mixture(prediction: Prediction) -> Tensor:
    """Return the logarithm of the mean probabilities, (N, C)."""
    assert isinstance(prediction, CategoricalPrediction)
    return prediction.log_probs.logsumexp(0) - math.log(prediction.num_samples)


def binned(confidence: np.ndarray, correct: np.ndarray) -> np.ndarray:
    """Return the bin of each example: `BINS` of equal mass, in order of confidence."""
    order = np.argsort(confidence, kind="stable")
    places = np.empty(len(order), dtype=int)
    places[order] = np.arange(len(order)) * min(BINS, max(1, len(order) // 20)) // len(order)
    return places


def _shape(subject: Subject, confidence: np.ndarray, correct: np.ndarray) -> Finding:
    """Compare accuracy with confidence bin by bin; the law of the statistic is simulated."""
    bins = binned(confidence, correct)
    sizes = np.bincount(bins)

    def statistic(outcomes: np.ndarray) -> np.ndarray:
        gaps = np.stack([np.bincount(bins, row - confidence) for row in np.atleast_2d(outcomes)])
        return (gaps**2 / sizes).sum(-1) / len(confidence)

    generator = subject.generator("calibration shape")
    draws = generator.random((DRAWS, len(confidence)), dtype=np.float32) < confidence
    simulated = statistic(draws.astype(np.float64))
    observed = float(statistic(correct)[0])
    p_value = float((1 + (simulated >= observed).sum()) / (DRAWS + 1))
    error = math.sqrt(max(0.0, observed - float(simulated.mean())))
    lines = []
    for k, size in enumerate(sizes):
        chosen = bins == k
        right = int(correct[chosen].sum())
        low, high = clopper_pearson(right, int(size), LEVEL)
        lines.append(
            [
                f"{confidence[chosen].min():.3f} to {confidence[chosen].max():.3f}",
                f"{size:,}",
                percent(confidence[chosen].mean(), 1),
                f"{percent(right / size, 1)} {interval_text(low, high, 1)}",
            ]
        )
    table = Evidence(
        title="Accuracy by confidence",
        head=("confidence", "examples", "claimed", "right"),
        lines=lines,
        note="bins of equal mass; 95 % intervals, exact",
    )
    return Finding(
        check="calibration",
        name="miscalibrated",
        text=f"Confidences are off by {percent(error, 1)} (root mean square over {len(sizes)} bins,"
        " beyond what chance gives).",
        remedy="If a temperature does not mend it, recalibrate with `isotonic` or `dirichlet`.",
        severity=severity_of(error),
        estimate=error,
        unit="RMS of confidence − accuracy, debiased",
        p_value=p_value,
        n=len(correct),
        evidence=(table,),
    )


def _by_class(subject: Subject, confidence: np.ndarray, correct: np.ndarray) -> Iterator[Finding]:
    predicted = subject.predicted.numpy()
    for k, name in enumerate(subject.class_names):
        chosen = predicted == k
        if chosen.sum() < LEAST:
            continue
        gap = float(confidence[chosen].mean() - correct[chosen].mean())
        low, high = clopper_pearson(int(correct[chosen].sum()), int(chosen.sum()), LEVEL)
        yield Finding(
            check="calibration",
            name=f"class {name}",
            text=f"Predictions of class {name} claim {percent(confidence[chosen].mean(), 1)}"
            f" and are right {percent(correct[chosen].mean(), 1)} {interval_text(low, high, 1)}.",
            remedy="Recalibrate by class (`vector`), and look at the mistakes of this class.",
            severity=severity_of(gap),
            estimate=gap,
            low=confidence[chosen].mean() - high,
            high=confidence[chosen].mean() - low,
            unit="confidence − accuracy",
            p_value=gap_test(confidence[chosen], correct[chosen]),
            n=int(chosen.sum()),
        )
