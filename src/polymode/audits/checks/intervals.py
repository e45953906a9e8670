"""Do intervals of a regression hold what they claim, in every group, and is it better than a guess?

A right prediction F gives F(y) uniform on [0, 1] (the probability integral transform, PIT), and its
central interval of 90 % contains y in 90 % of all cases.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from scipy.stats import binomtest, kstest, norm
from torch import Tensor

from polymode.audits.checks.registry import CHECKS, NotApplicable, need_labels
from polymode.audits.finding import LEVEL, Evidence, Finding, interval_text, percent
from polymode.audits.subject import Subject
from polymode.metrics.rejection import clopper_pearson
from polymode.prediction import DensityPrediction

LEVELS = (0.5, 0.9)
LEAST = 30  # rows of a group that is tested
SMALL, LARGE = 0.02, 0.1  # gaps of coverage: low below, high above


def _severity(gap: float) -> str:
    return "low" if abs(gap) < SMALL else "medium" if abs(gap) < LARGE else "high"


def _need_values(subject: Subject) -> tuple[DensityPrediction, Tensor]:
    """Return the prediction and the targets (N, D) of a regression."""
    if subject.classification:
        raise NotApplicable("it is for regressions")
    need_labels(subject)
    prediction = subject.prediction
    if not isinstance(prediction, DensityPrediction) or prediction.num_axes:
        raise NotApplicable("it is for one value, or a few, for each input")
    if not subject.task.likelihood.scales_targets:
        raise NotApplicable("the PIT of counts is not uniform")
    return prediction, subject.targets


def coverage_test(inside: int, num: int, level: float, fitted_on: int | None) -> float:
    """Return the p-value of "an interval contains the truth with probability `level`", two-sided.

    Where the width of Gaussian noise was itself fitted on `fitted_on` rows, its error adds to that
    of the share: the standard error of log σ is 1/√(2n), and the coverage of ± z σ changes by
    2 z φ(z) for each unit of log σ.

    >>> coverage_test(90, 100, 0.9, None), round(coverage_test(80, 100, 0.9, None), 4)
    (1.0, 0.0023)
    """
    if fitted_on is None:
        return float(binomtest(inside, num, level).pvalue)
    z = float(norm.ppf(0.5 + level / 2))
    variance = level * (1 - level) / num + (2 * z * norm.pdf(z)) ** 2 / (2 * fitted_on)
    return float(2 * norm.sf(abs(inside / num - level) / math.sqrt(variance)))


@CHECKS.register("intervals")
def intervals(subject: Subject) -> Iterator[Finding]:
    """Yield the coverage of intervals, overall and by group, the PIT, and the gain on a guess."""
    prediction, targets = _need_values(subject)
    pit = prediction.pit(targets).double().numpy()
    everyone = np.ones(len(pit), dtype=bool)
    lines: list[list[str]] = []
    for level in LEVELS:
        inside = np.abs(pit - 0.5) <= level / 2
        for place, name in enumerate(_outputs(subject, pit.shape[1])):
            yield _coverage(subject, inside[:, place], everyone, (level, name))
            lines.append(_line(level, name or "all", inside[:, place]))
            for column, values in subject.groups.items():
                for value in np.unique(values):
                    chosen = values == value
                    if level != LEVELS[-1]:
                        continue
                    label = f"{column}={value}{f', {name}' if name else ''}"
                    lines.append(_line(level, label, inside[chosen, place]))
                    if LEAST <= chosen.sum() < len(values):
                        yield _coverage(subject, inside[:, place], chosen, (level, label))
    yield _shape(subject, pit, lines)
    yield _gain(subject)


def _outputs(subject: Subject, num: int) -> list[str]:
    return [""] if num == 1 else [f"output {place}" for place in range(num)]


def _line(level: float, name: str, inside: np.ndarray) -> list[str]:
    low, high = clopper_pearson(int(inside.sum()), len(inside), LEVEL)
    share = f"{percent(inside.mean(), 1)} {interval_text(low, high, 1)}"
    return [name, f"{len(inside):,}", percent(level), share]


def _coverage(
    subject: Subject, inside: np.ndarray, chosen: np.ndarray, about: tuple[float, str]
) -> Finding:
    level, name = about
    num, count = int(chosen.sum()), int(inside[chosen].sum())
    low, high = clopper_pearson(count, num, LEVEL)
    gap = level - count / num
    side = "narrow" if gap > 0 else "wide"
    where = f"{name}: " if name else ""
    return Finding(
        check="intervals",
        name=f"intervals too {side}" + (f" for {name}" if name else f" at {percent(level)}"),
        text=f"{where}Intervals of {percent(level)} contain {percent(count / num, 1)}"
        f" {interval_text(low, high, 1)} of the values.",
        remedy="Recalibrate by `scale` on validation data, or use conformal intervals"
        + (" by group." if name else "."),
        severity=_severity(gap),
        estimate=gap,
        low=level - high,
        high=level - low,
        unit="level − coverage",
        p_value=coverage_test(count, num, level, subject.noise_fitted_on),
        n=num,
    )


def _shape(subject: Subject, pit: np.ndarray, lines: list[list[str]]) -> Finding:
    """Test the shape of the distributions; with noise that was fitted here it is a fact."""
    tests = [kstest(column, "uniform") for column in pit.T]
    worst = max(float(test.statistic) for test in tests)
    p_value = min(1.0, len(tests) * min(float(test.pvalue) for test in tests))
    fitted = subject.noise_fitted_on is not None
    table = Evidence(
        title="Coverage of central intervals",
        head=("rows", "number", "claimed", "contain the value"),
        lines=lines,
        note="95 % intervals, exact",
    )
    return Finding(
        check="intervals",
        name="shape of the distributions",
        text=f"Distribution functions are off by at most {percent(worst, 1)} (PIT).",
        remedy="If a scale does not mend it, recalibrate by `quantile_cdf`, or choose another"
        " likelihood.",
        severity="none" if fitted else _severity(worst),
        estimate=worst,
        unit="Kolmogorov distance of the PIT",
        p_value=None if fitted else p_value,
        n=len(pit),
        kind="fact" if fitted else "problem",
        evidence=(table,),
    )


def _gain(subject: Subject) -> Finding:
    """Compare the NLL with that of one Gaussian for all rows, example by example."""
    source = subject.train or subject.val
    values = (subject.targets if source is None else source[1]).double()
    mean, std = values.mean(0), values.std(0).clamp_min(1e-12)
    z = (subject.targets.double() - mean) / std
    guess = (0.5 * z.square() + std.log() + 0.5 * math.log(2 * math.pi)).sum(-1)
    nll = -subject.prediction.log_prob(subject.targets).double()
    gains = (guess - nll).numpy()
    gain = float(gains.mean())
    error = float(gains.std(ddof=1) / math.sqrt(len(gains))) if len(gains) > 1 else math.inf
    low, high = gain - 1.96 * error, gain + 1.96 * error
    return Finding(
        check="intervals",
        name="worse than a guess",
        text=f"NLL {nll.mean():.3f} nats per example; one Gaussian for all has {guess.mean():.3f}:"
        f" a gain of {gain:.3f} [{low:.3f}, {high:.3f}].",
        remedy="Do not use its distributions: train again, or recalibrate by `scale` first.",
        severity="high",
        estimate=gain,
        low=low,
        high=high,
        unit="nats per example",
        p_value=float(norm.cdf(gain / error)) if error > 0 else float(gain <= 0),
        n=len(gains),
    )
