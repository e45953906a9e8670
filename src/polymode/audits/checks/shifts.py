"""What happens when inputs change? Built-in corruptions in rising severity, and a network that is
hurt by one of them without becoming less sure.

For corruption k let dᵢ be the rise of cᵢ − rᵢ, confidence minus being right, of example i. All
networks become somewhat overconfident under corruptions. What is reported is one that stands out:
its mean dᵢ is above `MARGIN`, and above that of the other corruptions by `MARGIN`; the p-value is
the larger one of both paired tests. The few shifts of tables are facts alone: how much one of them
hurts depends on the table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from scipy.stats import norm
from torch import Tensor

from polymode.audits.checks.registry import CHECKS, NotApplicable, need_classes
from polymode.audits.finding import Evidence, Finding, percent
from polymode.audits.subject import BATCH, Subject
from polymode.likelihoods.scaling import Scaling
from polymode.tasks.shifts import CORRUPTIONS, TABLE_SHIFTS, corrupt, shift_table
from polymode.tasks.shifts.shift import SMALLEST_SIDE

SHOWN = (1, 3, 5)  # severities
TESTED = 3
EXAMPLES = 1000  # of the test set, at most
LEAST = 50
USUAL = 5  # corruptions that it takes to know what is usual: tables have three, and no test
MARGIN = 0.1
SHARE = 0.4  # of the budget
ROUNDING = 1e-4


class Curve(NamedTuple):
    """One corruption: accuracy and mean confidence by severity, and the rises dᵢ at `TESTED`."""

    kind: str
    accuracy: list[float]
    confidence: list[float]
    rises: np.ndarray


@CHECKS.register("shifts")
def shifts(subject: Subject) -> Iterator[Finding]:
    """Yield severity curves, and each corruption that hurts and is not noticed."""
    need_classes(subject)
    chosen = subset(subject, "shifts", EXAMPLES)
    if len(chosen) < LEAST:
        raise NotApplicable(f"{len(chosen)} examples are too few to compare corruptions")
    changes = _changes(subject, subject.test[0][chosen])
    clean = subject.confidence[chosen].numpy() - subject.correct[chosen].numpy()
    curves: list[Curve] = []
    until = subject.seconds_left - SHARE * subject.budget
    for kind, change in changes.items():
        if curves and subject.seconds_left < until:
            break
        curves.append(_curve(subject, chosen, (kind, change), clean))
    if len(curves) > USUAL:
        for place, curve in enumerate(curves):
            yield _unnoticed(curve, [c.rises for c in curves[:place] + curves[place + 1 :]])
    accuracy = float(subject.correct[chosen].mean())
    yield _fact(curves, accuracy, len(chosen), len(changes) - len(curves))


def subset(subject: Subject, name: str, most: int) -> Tensor:
    """Return places of at most so many test examples, drawn at random, in order."""
    n = len(subject.targets)
    if n <= most:
        return torch.arange(n)
    return torch.as_tensor(np.sort(subject.generator(name).choice(n, most, replace=False)))


def _changes(subject: Subject, x: object) -> dict[str, Callable[[int], Tensor]]:
    """Return what changes inputs, by name: functions of a severity."""
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise NotApplicable("built-in corruptions are for images and for rows of numbers")
    if x.dim() == 2 and x.shape[1] > 1:
        table = subject.train[0] if subject.train else subject.test[0]
        assert isinstance(table, Tensor)
        scaling = Scaling.of(table)
        rows = scaling(x)

        def tabular(kind: str) -> Callable[[int], Tensor]:
            return lambda severity: scaling.inverse(
                shift_table(rows, kind, severity, seed=subject.seed)
            )

        return {kind: tabular(kind) for kind in TABLE_SHIFTS.names()}
    if x.dim() == 4 and x.shape[1] in (1, 3) and min(x.shape[2:]) >= SMALLEST_SIDE:
        pixels, outward = as_pixels(subject, x)

        def visual(kind: str) -> Callable[[int], Tensor]:
            def change(severity: int) -> Tensor:
                images = corrupt(pixels, kind, severity, seed=subject.seed)
                return images if outward is None else outward(images)

            return change

        return {kind: visual(kind) for kind in CORRUPTIONS}
    raise NotApplicable(f"no built-in corruption is for inputs of shape {tuple(x.shape[1:])}")


def as_pixels(subject: Subject, x: Tensor) -> tuple[Tensor, Scaling | None]:
    """Return images in [0, 1], and what networks make of them.

    Where the scaling of images is not given and they are not in [0, 1], the least and the largest
    value of a channel in the test set stand for black and white.
    """
    scaling = subject.task.input_scaling
    if scaling is None and float(x.amin()) >= -ROUNDING and float(x.amax()) <= 1 + ROUNDING:
        return x.clamp(0, 1), None
    if scaling is None:
        images = subject.test[0]
        assert isinstance(images, Tensor)
        low, high = images.amin((0, 2, 3)), images.amax((0, 2, 3))
        span = torch.where(high > low, high - low, torch.ones_like(low))
        scaling = Scaling((-low / span)[:, None, None], (1 / span)[:, None, None])
    return scaling.inverse(x).clamp(0, 1), scaling


def _curve(
    subject: Subject, chosen: Tensor, change: tuple[str, Callable[[int], Tensor]], clean: np.ndarray
) -> Curve:
    kind, apply = change
    labels = subject.targets[chosen]
    accuracy, confidence, rises = [], [], clean
    for severity in SHOWN:
        probs = subject.post.predict(apply(severity), batch_size=BATCH).mean
        sure = probs.amax(-1).double().numpy()
        right = (probs.argmax(-1) == labels).double().numpy()
        accuracy.append(float(right.mean()))
        confidence.append(float(sure.mean()))
        if severity == TESTED:
            rises = sure - right - clean
    return Curve(kind, accuracy, confidence, rises)


def _unnoticed(curve: Curve, others: list[np.ndarray]) -> Finding:
    """Test whether this corruption raises the gap, and more so than the others do."""
    contrast = curve.rises - np.mean(others, axis=0)
    rise, excess = float(curve.rises.mean()), float(contrast.mean())
    error = _error(contrast)
    place = SHOWN.index(TESTED)
    accuracy, confidence = percent(curve.accuracy[place]), percent(curve.confidence[place])
    return Finding(
        check="shifts",
        name=f"unnoticed {curve.kind}",
        text=f"Under {curve.kind} (severity {TESTED}) it is right {accuracy} and claims"
        f" {confidence}: the gap rises by {percent(rise)}, {percent(excess)} more than under the"
        " other corruptions.",
        remedy=f"Train with `{curve.kind}` among the augmentations, or watch for it in production.",
        severity="low" if excess < 0.2 else "medium" if excess < 0.35 else "high",
        estimate=excess,
        low=excess - 1.96 * error,
        high=excess + 1.96 * error,
        unit="rise of confidence − accuracy, above that under other corruptions",
        p_value=max(_p_above(curve.rises), _p_above(contrast)),
        n=len(contrast),
    )


def _error(values: np.ndarray) -> float:
    return float(values.std(ddof=1) / math.sqrt(len(values)))


def _p_above(values: np.ndarray) -> float:
    """Return the p-value of "the mean is at most `MARGIN`"."""
    distance, error = float(values.mean()) - MARGIN, _error(values)
    return float(norm.sf(distance / error)) if error > 0 else float(distance <= 0)


def _fact(curves: list[Curve], accuracy: float, num: int, left_out: int) -> Finding:
    lines = [
        [
            curve.kind,
            *(
                f"{percent(right)} / {percent(sure)}"
                for right, sure in zip(curve.accuracy, curve.confidence, strict=True)
            ),
        ]
        for curve in sorted(curves, key=lambda c: c.accuracy[SHOWN.index(TESTED)])
    ]
    place = SHOWN.index(TESTED)
    right = float(np.mean([curve.accuracy[place] for curve in curves]))
    sure = float(np.mean([curve.confidence[place] for curve in curves]))
    note = f"right / claimed; {num:,} test examples, right {percent(accuracy)} without a corruption"
    if left_out:
        note += f"; the budget ended before {left_out} more corruptions"
    table = Evidence(
        title="Under corruptions of rising severity",
        head=("corruption", *(f"severity {severity}" for severity in SHOWN)),
        lines=lines,
        note=note,
    )
    return Finding(
        check="shifts",
        name="severity curves",
        text=f"Under corruptions of severity {TESTED} it is right {percent(right)} and claims"
        f" {percent(sure)} (mean over {len(curves)}); without, it is right {percent(accuracy)}.",
        kind="fact",
        estimate=sure - right,
        unit="confidence − accuracy",
        n=num,
        evidence=(table,),
    )
