"""What can be said of test data without labels: what is claimed of them, and whether it is less
than what is claimed of the labelled validation data."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.stats import ks_2samp

from polymode.audits.checks.registry import CHECKS
from polymode.audits.finding import Evidence, Finding, percent
from polymode.audits.subject import Subject


@CHECKS.register("unlabelled")
def unlabelled(subject: Subject) -> Iterator[Finding]:
    """Yield the accuracy that is claimed, and a test of confidences against validation data."""
    if subject.has_labels or not subject.classification or subject.prediction.num_axes:
        return
    confidence = subject.confidence.numpy()
    counts = np.bincount(subject.predicted.numpy(), minlength=len(subject.class_names))
    lines = [
        [name, f"{count:,}", percent(count / len(confidence), 1)]
        for name, count in zip(subject.class_names, counts, strict=True)
    ]
    yield Finding(
        check="unlabelled",
        name="claims",
        text=f"The test data have no labels. The network claims to be right on"
        f" {percent(confidence.mean(), 1)} of them.",
        kind="fact",
        estimate=float(confidence.mean()),
        unit="mean confidence",
        n=len(confidence),
        evidence=(
            Evidence(title="Predicted classes", head=("class", "examples", "share"), lines=lines),
        ),
    )
    if subject.val_prediction is None:
        return
    before = subject.val_prediction.mean.amax(-1).double().numpy()
    yield Finding(
        check="unlabelled",
        name="test data differ from validation data",
        text=f"Claims {percent(confidence.mean(), 1)} of the test data and"
        f" {percent(before.mean(), 1)} of the validation data.",
        remedy="What holds on the validation data may not hold here: label some of the test data.",
        severity="medium",
        estimate=float(confidence.mean() - before.mean()),
        unit="difference of mean confidence",
        p_value=float(ks_2samp(confidence, before).pvalue),
        n=len(confidence),
    )
