"""What would a cheap posterior change? Each is tried on the networks as they are.

A gain is the mean over test examples of log p(y | after) − log p(y | before), with the interval of
paired differences. Corrections are fitted on `val`, Laplace on `train`; the test set only judges.
The best is the one with the largest lower end of its interval, if that is above 0.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, nn

from polymode.audits.checks.registry import CHECKS, NotApplicable, need_labels
from polymode.audits.checks.shifts import as_pixels
from polymode.audits.finding import Evidence, Finding, percent
from polymode.audits.subject import BATCH, Subject
from polymode.conformal import by_class, conformal_intervals, conformal_sets, covered
from polymode.methods.fit import fit
from polymode.metrics.ood import auroc
from polymode.metrics.score import NotDefined
from polymode.posterior import Posterior
from polymode.prediction import Prediction
from polymode.recalibration import recalibrate

Z = 1.96
VIEWS = 4  # of an image in test-time augmentation
LEAST = 50  # validation examples for a correction
LEVEL = 0.9  # of conformal sets
PASSES = 20  # of the test set, that a Laplace approximation is assumed to take at most


@dataclass(frozen=True)
class Trial:
    """A posterior that was tried.

    Attributes:
        name: for people. post: it. prediction: of the test set. seconds: CPU time of predicting it.
        remark: what was fitted.
    """

    name: str
    post: Posterior
    prediction: Prediction
    seconds: float
    remark: str = ""


Maker = Callable[[Subject], tuple[Posterior, str] | None]


def _temperature(subject: Subject) -> tuple[Posterior, str] | None:
    """Return the posterior with a correction that was fitted on validation data."""
    if subject.val is None or subject.val_prediction is None or len(subject.val[1]) < LEAST:
        return None
    method = "temperature" if subject.classification else "scale"
    if not subject.classification and not subject.task.likelihood.scales_targets:
        return None
    rule = recalibrate(subject.val_prediction, subject.val[1], method)
    number = next((v for v in rule.parameters.values() if isinstance(v, float)), None)
    return subject.post.bundled(recalibration=rule), "" if number is None else f"{number:.2f}"


def _laplace(subject: Subject) -> tuple[Posterior, str] | None:
    """Return a last-layer Laplace approximation around the networks."""
    if subject.train is None or subject.post.method != "map":
        return None
    before = time.process_time()
    subject.post.predict(subject.test[0], batch_size=BATCH)
    seconds = time.process_time() - before
    if PASSES * seconds * len(subject.train[1]) / len(subject.targets) > subject.seconds_left:
        return None
    return _fitted(subject, "laplace", structure="last_layer"), "on the training data"


def _dropout(subject: Subject) -> tuple[Posterior, str] | None:
    """Return the networks with their dropout switched on."""
    layers = [m for m in subject.post.members[0].modules() if isinstance(m, nn.Dropout) and m.p]
    if not layers or subject.post.method != "map":
        return None
    return _fitted(subject, "dropout", epochs=0), "its own rates"


def _fitted(subject: Subject, method: str, **options: Any) -> Posterior:
    members = subject.post.members
    return fit(
        method, net=members if len(members) > 1 else members[0], task=subject.task,
        output=subject.output, progress="silent", **options,
    )  # fmt: skip


def _augmented(subject: Subject) -> tuple[Posterior, str] | None:
    """Return the mean over images that are moved by a sixteenth of their side at most."""
    x = subject.test[0]
    if not isinstance(x, Tensor) or x.dim() != 4 or not x.is_floating_point():
        return None
    if not subject.classification or subject.task.likelihood.num_axes:
        return None
    padding = max(1, min(x.shape[2:]) // 16)
    outside = "reflect" if as_pixels(subject, x[:1])[1] is None else "zero"
    post = subject.post.augmented(augmentation=f"crop:{padding}:{outside}", draws=VIEWS)
    return post, f"{VIEWS} views, moved by up to {padding} px"


MAKERS: dict[str, Maker] = {
    "temperature": _temperature,
    "last-layer Laplace": _laplace,
    "dropout": _dropout,
    "test-time augmentation": _augmented,
}


@CHECKS.register("gains")
def gains(subject: Subject) -> Iterator[Finding]:
    """Yield the gain of each posterior that can be tried, how many members pay, and sets."""
    need_labels(subject)
    if subject.prediction.num_axes:
        raise NotApplicable("it is for one target for each input")
    before = subject.prediction.log_prob(subject.targets).double()
    trials, reasons = _trials(subject)
    findings = [_gain(subject, trial, before) for trial in trials]
    best = max(findings, key=lambda f: f.low or 0.0, default=None)
    if best is not None and best.low is not None and best.low > 0:
        subject.best = trials[findings.index(best)].post
    yield from findings
    if findings:
        yield _table(subject, trials, findings, reasons)
    if subject.post.num_modes > 1:
        yield _members(subject)
    yield from _conformal(subject)


def _trials(subject: Subject) -> tuple[list[Trial], list[str]]:
    trials, reasons = [], []
    for name, make in MAKERS.items():
        label = "scale" if name == "temperature" and not subject.classification else name
        if subject.seconds_left <= 0:
            reasons.append(f"{label}: the budget is used up")
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # doubts about networks that were not trained here
            try:
                tried = make(subject)
            except (ValueError, NotImplementedError) as reason:
                reasons.append(f"{label}: {' '.join(str(reason).split())[:160]}")
                continue
            if tried is not None:
                trials.append(_trial(subject, label, *tried))
    return trials, reasons


def _trial(subject: Subject, name: str, post: Posterior, remark: str) -> Trial:
    start = time.process_time()
    prediction = post.predict(subject.test[0], batch_size=BATCH, seed=subject.seed)
    if post.bundle is not None and post.bundle.recalibration is not None:
        prediction = post.bundle.recalibration(prediction)
    return Trial(name, post, prediction, time.process_time() - start, remark)


def _gap(subject: Subject, prediction: Prediction) -> float:
    """Return confidence − accuracy, or 90 % − coverage of a regression."""
    if subject.classification:
        right = prediction.mean.argmax(-1) == subject.targets
        return float(prediction.mean.amax(-1).double().mean() - right.double().mean())
    low, high = prediction.interval(LEVEL)
    return LEVEL - float(((low <= subject.targets) & (subject.targets <= high)).double().mean())


def _interval(values: Tensor) -> tuple[float, float, float]:
    mean = float(values.mean())
    error = Z * float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else math.inf
    return mean, mean - error, mean + error


def _gain(subject: Subject, trial: Trial, before: Tensor) -> Finding:
    after = trial.prediction.log_prob(subject.targets).double()
    mean, low, high = _interval(after - before)
    verb = "saves" if mean >= 0 else "costs"
    span = f"[{low:.4f}, {high:.4f}]" if mean >= 0 else f"[{-high:.4f}, {-low:.4f}]"
    remark = f" ({trial.remark})" if trial.remark else ""
    what = "confidence − accuracy" if subject.classification else "90 % − coverage"
    old, new = _gap(subject, subject.prediction), _gap(subject, trial.prediction)
    return Finding(
        check="gains",
        name=trial.name,
        text=f"{trial.name[0].upper()}{trial.name[1:]}{remark} {verb} {abs(mean):.4f} {span} nats"
        f" per example; {what} goes from {100 * old:.1f} to {100 * new:.1f} points.",
        estimate=mean,
        low=low,
        high=high,
        unit="nats per example",
        n=len(before),
        kind="gain",
    )


def _table(
    subject: Subject, trials: list[Trial], findings: list[Finding], reasons: list[str]
) -> Finding:
    start = time.process_time()
    subject.post.predict(subject.test[0], batch_size=BATCH)
    plain = max(time.process_time() - start, 1e-6)
    ood = next(iter(subject.task.ood), None) if subject.classification else None
    lines = []
    for trial, finding in zip(trials, findings, strict=True):
        gap = 100 * _gap(subject, trial.prediction)
        line = [trial.name, trial.remark or "–"]
        line.append(f"{finding.estimate:+.4f} [{finding.low:+.4f}, {finding.high:+.4f}]")
        line += [f"{gap:+.1f} points", f"× {max(1.0, trial.seconds / plain):.1f}"]
        if ood is not None:
            line.append(f"{_area(subject, trial, ood):.3f}")
        lines.append(line)
    head = ["posterior", "fitted", "gain in nats", "gap after", "cost of a prediction"]
    if ood is not None:
        head.append(f"AUROC of {ood}")
    best = max(findings, key=lambda f: f.low or 0.0)
    worth = best.low is not None and best.low > 0
    note = "paired 95 % intervals; cost in CPU time, against the networks as they are"
    return Finding(
        check="gains",
        name="best posterior",
        text=f"Best of {len(trials)} tried: {best.name}."
        if worth
        else f"None of {len(trials)} cheap posteriors that were tried is better.",
        kind="gain",
        n=len(subject.targets),
        evidence=(
            Evidence(
                title="What cheap posteriors would change",
                head=head,
                lines=lines,
                note="; ".join([note, *reasons]),
            ),
        ),
    )


def _area(subject: Subject, trial: Trial, name: str) -> float:
    from polymode.audits.checks.elsewhere import given_inputs

    outside = trial.post.predict(given_inputs(subject.task.ood[name]), batch_size=BATCH)
    if trial.post.bundle is not None and trial.post.bundle.recalibration is not None:
        outside = trial.post.bundle.recalibration(outside)
    return auroc(trial.prediction.predictive_entropy, outside.predictive_entropy).value


def _members(subject: Subject) -> Finding:
    """Compare the first m networks with all of them, example by example."""
    number = subject.post.num_modes
    sizes = sorted({1, 2, 3, 5, 8, 12, 20, number} & set(range(1, number + 1)))
    scores = [
        subject.prediction.take_modes(slice(0, size)).log_prob(subject.targets).double()
        for size in sizes
    ]
    enough, lines = number, []
    for size, score in reversed(list(zip(sizes, scores, strict=True))):
        loss, low, high = _interval(scores[-1] - score)
        lines.append([str(size), f"{-score.mean():.4f}", f"{loss:.4f} [{low:.4f}, {high:.4f}]"])
        if low <= 0.02 * abs(float(scores[-1].mean())):
            enough = size
        else:
            break
    for size, score in zip(sizes, scores, strict=True):
        if [str(size)] not in [line[:1] for line in lines]:
            loss, low, high = _interval(scores[-1] - score)
            lines.append([str(size), f"{-score.mean():.4f}", f"{loss:.4f} [{low:.4f}, {high:.4f}]"])
    return Finding(
        check="gains",
        name="members worth paying for",
        text=f"{enough} of {number} members are within 2 % of the NLL of all of them.",
        estimate=float(enough),
        unit="members",
        kind="gain",
        n=len(subject.targets),
        evidence=(
            Evidence(
                title="How many members are worth paying for",
                head=("members", "NLL", "lost against all"),
                lines=sorted(lines, key=lambda line: int(line[0])),
                note="the first so many; paired 95 % intervals",
            ),
        ),
    )


def _conformal(subject: Subject) -> Iterator[Finding]:
    """Yield coverage and size of conformal sets, whatever the network; overall and by class."""
    if subject.val is None or subject.val_prediction is None or len(subject.val[1]) < LEAST:
        return
    lines = []
    try:
        for name, covered, size, worst in _regions(subject):
            lines.append([name, percent(covered, 1), f"{size:.3g}", percent(worst, 1)])
    except (NotDefined, ValueError):
        return
    yield Finding(
        check="gains",
        name="conformal",
        text=f"Conformal {'sets' if subject.classification else 'intervals'} for {percent(LEVEL)}"
        f" contain {lines[0][1]} of the test {'labels' if subject.classification else 'values'}.",
        kind="gain",
        n=len(subject.targets),
        evidence=(
            Evidence(
                title=f"Conformal prediction at {percent(LEVEL)}",
                head=("rule", "contain the truth", "mean size", "in the worst group"),
                lines=lines,
                note="calibrated on the validation set; groups are those given, else classes",
            ),
        ),
    )


def _regions(subject: Subject) -> Iterator[tuple[str, float, float, float]]:
    assert subject.val is not None and subject.val_prediction is not None
    pair = subject.val_prediction, subject.val[1]
    if not subject.classification:
        inside = conformal_intervals(*pair, level=LEVEL)(subject.prediction)
        hit = covered(inside, subject.targets).all(-1)
        yield "intervals", *_summary(subject, hit, inside.widths.mean(-1))
        return
    for name, rule in (("sets", conformal_sets), ("sets by class", by_class)):
        sets = rule(*pair, level=LEVEL)(subject.prediction)
        yield name, *_summary(subject, covered(sets, subject.targets), sets.sizes)


def _summary(subject: Subject, inside: Tensor, size: Tensor) -> tuple[float, float, float]:
    hits = inside.double().numpy()
    labels = subject.targets.numpy().astype(str) if subject.classification else None
    columns = list(subject.groups.values()) or ([] if labels is None else [labels])
    shares = [
        float(hits[column == value].mean()) for column in columns for value in np.unique(column)
    ]
    return float(hits.mean()), float(size.double().mean()), min(shares, default=float(hits.mean()))
