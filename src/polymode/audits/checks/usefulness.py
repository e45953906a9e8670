"""Is the network better than trivial predictions?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from scipy.stats import norm

from polymode.audits.checks.registry import CHECKS, need_classes
from polymode.audits.finding import Finding
from polymode.audits.subject import Subject

Z = 1.96


@CHECKS.register("usefulness")
def usefulness(subject: Subject) -> Iterator[Finding]:
    """Compare the NLL with that of the class frequencies, example by example."""
    need_classes(subject)
    source = subject.train or subject.val
    labels = subject.targets if source is None else source[1]
    counts = torch.bincount(labels, minlength=subject.prediction.num_outputs).double() + 0.5
    guess = -(counts / counts.sum()).log()[subject.targets]
    own = -subject.prediction.log_prob(subject.targets).double()
    gains = (guess - own).numpy()
    n, mean = len(gains), float(np.mean(gains))
    error = float(np.std(gains, ddof=1) / np.sqrt(n)) if n > 1 else float("inf")
    low, high = mean - Z * error, mean + Z * error
    whose = "these labels" if source is None else "training" if subject.train else "validation"
    yield Finding(
        check="usefulness",
        name="worse than a guess",
        text=f"NLL {own.mean():.3f} nats per example; the frequencies of {whose} have"
        f" {guess.mean():.3f}: a gain of {mean:.3f} [{low:.3f}, {high:.3f}].",
        remedy="Do not use its probabilities: they say less than the class frequencies. Train"
        " again, or recalibrate first if accuracy is good.",
        severity="high",
        estimate=mean,
        low=low,
        high=high,
        unit="nats per example",
        p_value=float(norm.cdf(mean / error)) if error > 0 else float(mean <= 0),
        n=n,
    )
