"""Does it know when it is wrong, and which share should a person look at?"""

from __future__ import annotations

from collections.abc import Iterator

from scipy.stats import mannwhitneyu

from polymode.audits.checks.registry import CHECKS, NotApplicable, need_classes
from polymode.audits.finding import Evidence, Finding, percent
from polymode.audits.subject import Subject
from polymode.metrics.rejection import certified_threshold, risk_interval
from polymode.metrics.score import NotDefined

RISKS = (0.01, 0.02, 0.05, 0.1)
COVERAGES = (1.0, 0.95, 0.9, 0.8, 0.7, 0.5)


@CHECKS.register("rejection")
def rejection(subject: Subject) -> Iterator[Finding]:
    """Yield how well confidence tells mistakes, and thresholds whose risk is bounded."""
    need_classes(subject)
    confidence, correct = subject.confidence.numpy(), subject.correct.numpy()
    wrong = correct == 0
    if not wrong.any() or wrong.all():
        raise NotApplicable("all answers are right" if not wrong.any() else "no answer is right")
    test = mannwhitneyu(confidence[~wrong], confidence[wrong], alternative="greater")
    auroc = float(test.statistic) / (int(wrong.sum()) * int((~wrong).sum()))
    yield Finding(
        check="rejection",
        name="confidence tells mistakes",
        text=f"A mistake is less confident than a right answer with probability {auroc:.3f}.",
        kind="fact",
        estimate=auroc,
        unit="AUROC of errors",
        n=len(correct),
        evidence=(_risks(subject), _thresholds(subject)),
    )
    yield Finding(
        check="rejection",
        name="confidence does not tell mistakes",
        text=f"Confidence does not tell mistakes from right answers: AUROC {auroc:.3f}.",
        remedy="Do not decline by confidence; an ensemble or a last-layer Laplace may rank better.",
        severity="high",
        estimate=auroc,
        unit="AUROC of errors",
        p_value=float(
            mannwhitneyu(confidence[~wrong], confidence[wrong], alternative="less").pvalue
        ),
        n=len(correct),
    )


def _risks(subject: Subject) -> Evidence:
    lines = []
    for coverage in COVERAGES:
        try:
            risk = risk_interval(subject.prediction, subject.targets, coverage)
        except NotDefined:
            continue
        span = f"[{100 * risk.low:.1f}, {100 * risk.high:.1f}] %"
        lines.append([percent(coverage), percent(1 - coverage), f"{percent(risk.value, 1)} {span}"])
    return Evidence(
        title="Errors when the least confident answers go to a person",
        head=("answered", "to a person", "errors among answers"),
        lines=lines,
        note="95 % intervals, exact",
    )


def _thresholds(subject: Subject) -> Evidence:
    prediction, labels, chosen_on = subject.prediction, subject.targets, "test"
    if subject.val is not None and subject.val_prediction is not None:
        prediction, labels, chosen_on = subject.val_prediction, subject.val[1], "validation"
    lines = []
    for risk in RISKS:
        try:
            rule = certified_threshold(prediction, labels, risk)
        except NotDefined:
            lines.append([percent(risk), "not certifiable with these data", "–"])
            continue
        accepted = (subject.confidence > rule.threshold).double().mean().item()
        lines.append([percent(risk), f"{max(rule.threshold, 0):.3f}", percent(1 - accepted, 1)])
    return Evidence(
        title="Thresholds whose risk is bounded",
        head=("error rate of answers at most", "answer above confidence", "to a person"),
        lines=lines,
        note=f"holds with probability 95 %; chosen on the {chosen_on} set",
    )
