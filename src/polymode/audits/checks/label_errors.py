r"""Are labels of the test set wrong?

A network that is right as often as it says is contradicted by few labels. Two tests, and the larger
p-value counts. The first is exact: labels whose stated probability is below 1 % are more than the
sum of such probabilities allows. That alone would also be so of an overconfident network, so the
second asks whether no temperature explains it: with logits l, the likelihood of

.. math:: (1 - ε) softmax(l / T)_y + ε / C

with ε = 0 is compared with that at the best ε ≥ 0, each at its own best T. Twice the logarithm of
their ratio is 0 or χ² with one degree of freedom, with probability ½ each (ε = 0 is at the edge).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from scipy.optimize import minimize_scalar
from scipy.stats import norm
from torch import Tensor

from polymode.audits.checks.calibration import LEAST, log_mixture
from polymode.audits.checks.laws import excess_test
from polymode.audits.checks.registry import CHECKS, NotApplicable, need_one_class
from polymode.audits.finding import LEVEL, Evidence, Finding, interval_text, percent
from polymode.audits.subject import Subject
from polymode.metrics.rejection import clopper_pearson

RARE = 0.01  # probability below which a label is a contradiction
SHOWN = 20
COLDEST, HOTTEST = 0.1, 10.0  # temperatures
HALVINGS = 40
SMALL, LARGE = 0.01, 0.05  # share of wrong labels


@CHECKS.register("label_errors")
def label_errors(subject: Subject) -> Iterator[Finding]:
    """Yield whether too many labels are improbable, and which rows to look at."""
    need_one_class(subject)
    probs = subject.prediction.mean.double()
    rates = (probs * (probs < RARE)).sum(1).numpy()
    doubtful = probs.gather(1, subject.targets[:, None])[:, 0] < RARE
    size, count = int((probs < RARE).any(1).sum()), int(doubtful.sum())
    if size < LEAST:
        raise NotApplicable(f"only {size} predictions have a class below {percent(RARE)}")
    noise = fit_noise(log_mixture(subject.prediction).double(), subject.targets)
    n = len(doubtful)
    low, high = clopper_pearson(count, n, LEVEL)
    yield Finding(
        check="label_errors",
        name="label errors",
        text=f"{count:,} of {n:,} labels ({percent(count / n, 1)} {interval_text(low, high, 1)})"
        f" have a stated probability below {percent(RARE)}; {rates.sum():.1f} were to be expected."
        f" About {percent(noise.share, 1)} of all labels look wrong.",
        remedy="Look at the rows listed in the evidence, the most certain first.",
        severity="low" if noise.share < SMALL else "medium" if noise.share < LARGE else "high",
        estimate=count / n,
        low=low,
        high=high,
        unit=f"share of labels below {percent(RARE)}",
        p_value=max(excess_test(rates, count), noise.p_value),
        n=n,
        evidence=(_rows(subject, doubtful),) if count else (),
    )


@dataclass(frozen=True)
class Noise:
    """Share of labels that are wrong, the temperature beside it, and the p-value of ε = 0."""

    share: float
    temperature: float
    p_value: float


def fit_noise(logits: Tensor, labels: Tensor) -> Noise:
    """Fit T and ε by maximum likelihood, and test ε = 0 with T free.

    >>> labels = torch.tensor([0, 1, 2] * 9)
    >>> noise = fit_noise(torch.eye(3, dtype=torch.float64)[labels], labels)
    >>> noise.share, noise.p_value
    (0.0, 1.0)
    """

    def likelihood(log_temperature: float, noisy: bool) -> tuple[float, float]:
        log_probs = (logits / math.exp(log_temperature)).log_softmax(-1)
        chosen = log_probs.gather(1, labels[:, None])[:, 0].exp()
        uniform = 1.0 / logits.shape[1]
        eps = _best_eps(chosen, uniform) if noisy else 0.0
        return float(((1 - eps) * chosen + eps * uniform).clamp_min(1e-300).log().sum()), eps

    def best(noisy: bool) -> tuple[float, float, float]:
        bounds = (math.log(COLDEST), math.log(HOTTEST))
        place = minimize_scalar(
            lambda t: -likelihood(t, noisy)[0], bounds=bounds, method="bounded",
            options={"xatol": 1e-4},
        ).x  # fmt: skip
        return (*likelihood(place, noisy), math.exp(place))

    plain, (value, eps, temperature) = best(False)[0], best(True)
    gain = max(0.0, value - plain)
    p_value = 1.0 if eps == 0 else float(norm.sf(math.sqrt(2 * gain)))
    return Noise(eps * (1 - 1 / logits.shape[1]), temperature, p_value)


def _best_eps(chosen: Tensor, uniform: float) -> float:
    """Return the ε of the largest likelihood; it is concave in ε, so its slope is halved to 0."""

    def slope(eps: float) -> float:
        return float(((uniform - chosen) / ((1 - eps) * chosen + eps * uniform)).sum())

    low, high = 0.0, 1.0
    if slope(1e-9) <= 0:
        return 0.0
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if slope(middle) > 0 else (low, middle)
    return 0.5 * (low + high)


def _rows(subject: Subject, doubtful: Tensor) -> Evidence:
    """List rows whose label is improbable, the least probable first."""
    names, labels = subject.class_names, subject.targets
    probs = subject.prediction.mean.gather(1, labels[:, None])[:, 0]
    places = doubtful.nonzero()[:, 0]
    places = places[torch.argsort(probs[places])][:SHOWN]
    votes = subject.prediction.log_probs.argmax(-1) == subject.predicted  # type: ignore[attr-defined]
    members = len(votes)
    lines = [
        [
            str(i),
            names[int(labels[i])],
            names[int(subject.predicted[i])],
            f"{subject.confidence[i]:.4f}",
            f"{probs[i]:.1e}",
            f"{int(votes[:, i].sum())} of {members}",
        ]
        for i in places.tolist()
    ]
    return Evidence(
        title="Labels that predictions contradict",
        head=(
            "row",
            "label",
            "predicted",
            "confidence",
            "probability of the label",
            "members agree",
        ),
        lines=lines,
        note=f"the first {len(lines)} of {int(doubtful.sum()):,}; rows are counted from 0",
    )
