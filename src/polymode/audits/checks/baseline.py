"""Is it better than the version before? Both answer the same examples, so they are compared in
pairs: mistakes by McNemar's exact test, the NLL by its differences."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from scipy.stats import norm

from polymode.audits.checks.calibration import LEAST
from polymode.audits.checks.laws import loss_test
from polymode.audits.checks.registry import CHECKS, NotApplicable, need_one_class
from polymode.audits.finding import LEVEL, Evidence, Finding, percent
from polymode.audits.subject import Subject

SMALL, LARGE = 0.01, 0.05  # loss of accuracy: low below, high above
Z = float(norm.ppf(0.5 + LEVEL / 2))


@CHECKS.register("baseline")
def baseline(subject: Subject) -> Iterator[Finding]:
    """Yield losses of accuracy and NLL against an older version, overall and by group."""
    need_one_class(subject)
    if subject.baseline_prediction is None:
        raise NotApplicable("no older version was given (`baseline`, or --baseline FILE)")
    before = subject.baseline_prediction
    old = (before.mean.argmax(-1) == subject.targets).numpy()
    new = subject.correct.numpy() > 0
    yield _accuracy("all examples", old, new, remedy="Keep the older version, or find out why.")
    gains = (
        subject.prediction.log_prob(subject.targets) - before.log_prob(subject.targets)
    ).double()
    yield _nll(gains.numpy())
    for column, values in subject.groups.items():
        lines = []
        for value in np.unique(values):
            chosen = values == value
            lines.append(_line(str(value), old[chosen], new[chosen]))
            if chosen.sum() >= LEAST and not chosen.all():
                yield _accuracy(
                    f"{column}={value}", old[chosen], new[chosen],
                    remedy="Look at the examples of this group that were right before.",
                )  # fmt: skip
        table = Evidence(
            title=f"Older and new version by {column}",
            head=(column, "examples", "older", "new", "lost", "gained"),
            lines=lines,
            note="lost: right before, wrong now; gained: wrong before, right now",
        )
        yield Finding(
            check="baseline",
            name=f"versions by {column}",
            text=f"Both versions on {len(lines)} groups of {column}.",
            kind="fact",
            n=len(new),
            evidence=(table,),
        )


def _line(name: str, old: np.ndarray, new: np.ndarray) -> list[str]:
    counts = (int((old & ~new).sum()), int((~old & new).sum()))
    shares = (percent(old.mean(), 1), percent(new.mean(), 1))
    return [name, f"{len(new):,}", *shares, *map(str, counts)]


def _accuracy(name: str, old: np.ndarray, new: np.ndarray, remedy: str) -> Finding:
    """Return the change of accuracy of some examples, tested for a loss."""
    losses, gains, n = int((old & ~new).sum()), int((~old & new).sum()), len(new)
    change = (gains - losses) / n
    error = math.sqrt(max((losses + gains) / n - change**2, 0.0) / n)
    low, high = change - Z * error, change + Z * error
    worse = change < 0
    drop = -change
    return Finding(
        check="baseline",
        name=f"regression of {name}",
        text=f"{name[0].upper()}{name[1:]}: right {percent(new.mean(), 1)}, before"
        f" {percent(old.mean(), 1)}, a change of {100 * change:+.1f} points"
        f" [{100 * low:+.1f}, {100 * high:+.1f}]; {losses} answers lost, {gains} gained.",
        remedy=remedy if worse else "",
        severity="low" if drop < SMALL else "medium" if drop < LARGE else "high",
        estimate=change,
        low=low,
        high=high,
        unit="accuracy, new − older",
        p_value=loss_test(losses, gains),
        n=n,
        kind="problem" if worse else "gain",
    )


def _nll(gains: np.ndarray) -> Finding:
    """Return the change of the NLL, tested for a loss by its mean and standard error."""
    n, mean = len(gains), float(gains.mean())
    error = float(gains.std(ddof=1)) / math.sqrt(n) if n > 1 else math.inf
    p_value = float(norm.cdf(mean / error)) if error > 0 else float(mean >= 0)
    return Finding(
        check="baseline",
        name="regression of NLL",
        text=f"NLL against the older version: a change of {-mean:+.4f} nats per example"
        f" [{-mean - Z * error:+.4f}, {-mean + Z * error:+.4f}].",
        remedy="Recalibrate the new version, or keep the older one." if mean < 0 else "",
        severity="low" if mean > -0.02 else "medium" if mean > -0.1 else "high",
        estimate=-mean,
        low=-mean - Z * error,
        high=-mean + Z * error,
        unit="nats per example, new − older",
        p_value=p_value,
        n=n,
        kind="problem" if mean < 0 else "gain",
    )
