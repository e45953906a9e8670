"""Figures of an audit's page: reliability and risk–coverage, or the calibration of a regression."""

from __future__ import annotations

from polymode.audits.subject import Subject
from polymode.metrics.results import Cost, Kept, Results
from polymode.plots.display import Display
from polymode.plots.regression_calibration import regression_calibration
from polymode.plots.reliability import reliability
from polymode.plots.risk_coverage import risk_coverage
from polymode.prediction import CategoricalPrediction, DensityPrediction

LEAST = 20  # examples of a figure


def figures_of(subject: Subject) -> list[Display]:
    """Return the figures that these data allow."""
    if not subject.has_labels or subject.prediction.num_axes or len(subject.targets) < LEAST:
        return []
    results = _results(subject)
    if isinstance(subject.prediction, CategoricalPrediction):
        figures: list[Display] = [reliability(results, label="network")]
        if 0 < float(subject.correct.mean()) < 1:
            figures.append(risk_coverage({"network": results}))
        return figures
    if isinstance(subject.prediction, DensityPrediction) and subject.task.likelihood.scales_targets:
        return [regression_calibration(results, label="network")]
    return []


def _results(subject: Subject) -> Results:
    """Return the test prediction as the figures take it, without numbers."""
    return Results(
        task="audit",
        method=subject.post.method,
        net=type(subject.post.stack.template).__name__,
        seed=subject.seed,
        config={},
        rows=(),
        cost=Cost(subject.post.num_modes, 1, 0, 0.0, len(subject.targets)),
        kept={"test": Kept(subject.prediction, subject.targets)},
    )
