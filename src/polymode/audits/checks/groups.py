"""Whom does it fail? Groups that are given, each compared with all other examples."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.stats import fisher_exact

from polymode.audits.checks.calibration import LEAST, gap_test, severity_of
from polymode.audits.checks.registry import CHECKS, NotApplicable, need_classes
from polymode.audits.finding import LEVEL, Evidence, Finding, interval_text, percent
from polymode.audits.subject import Subject
from polymode.metrics.rejection import clopper_pearson


@CHECKS.register("groups")
def groups(subject: Subject) -> Iterator[Finding]:
    """Yield accuracy against the rest and calibration of every group with enough examples."""
    need_classes(subject)
    if not subject.groups:
        raise NotApplicable("no groups were given (`groups`, or --groups COLUMN)")
    confidence, correct = subject.confidence.numpy(), subject.correct.numpy()
    for column, values in subject.groups.items():
        lines = []
        for value in np.unique(values):
            chosen = values == value
            size, right = int(chosen.sum()), int(correct[chosen].sum())
            low, high = clopper_pearson(right, size, LEVEL)
            claimed = float(confidence[chosen].mean())
            share = f"{percent(right / size, 1)} {interval_text(low, high, 1)}"
            lines.append([str(value), f"{size:,}", percent(claimed, 1), share])
            if size < LEAST or size == len(correct):
                continue
            yield from _group(f"{column}={value}", chosen, confidence, correct)
        yield Finding(
            check="groups",
            name=f"groups of {column}",
            text=f"{len(lines)} groups of {column}.",
            kind="fact",
            n=len(correct),
            evidence=(
                Evidence(
                    title=f"Groups of {column}",
                    head=(column, "examples", "claimed", "right"),
                    lines=lines,
                    note="95 % intervals, exact",
                ),
            ),
        )


def _group(
    name: str, chosen: np.ndarray, confidence: np.ndarray, correct: np.ndarray
) -> Iterator[Finding]:
    size, right = int(chosen.sum()), int(correct[chosen].sum())
    others, others_right = len(correct) - size, int(correct[~chosen].sum())
    loss = others_right / others - right / size
    table = [[right, size - right], [others_right, others - others_right]]
    low, high = clopper_pearson(right, size, LEVEL)
    yield Finding(
        check="groups",
        name=f"accuracy of {name}",
        text=f"{name}: right {percent(right / size, 1)} {interval_text(low, high, 1)}, all others"
        f" {percent(others_right / others, 1)}.",
        remedy="Collect more labelled data of this group, or send it to a person.",
        severity="medium" if loss < 0.1 else "high",
        estimate=loss,
        unit="accuracy of the others − of the group",
        p_value=float(fisher_exact(table, alternative="less").pvalue),
        n=size,
    )
    gap = float(confidence[chosen].mean() - correct[chosen].mean())
    yield Finding(
        check="groups",
        name=f"calibration of {name}",
        text=f"{name}: claims {percent(confidence[chosen].mean(), 1)}, right"
        f" {percent(right / size, 1)} {interval_text(low, high, 1)}.",
        remedy="Recalibrate this group by itself, or use conformal sets by group.",
        severity=severity_of(gap),
        estimate=gap,
        low=confidence[chosen].mean() - high,
        high=confidence[chosen].mean() - low,
        unit="confidence − accuracy",
        p_value=gap_test(confidence[chosen], correct[chosen]),
        n=size,
    )
