"""Does it accept inputs from elsewhere, or inputs that somebody has tampered with?

The threshold is the confidence at which 95 % of the test set is accepted. A set that is given by
name is a finding where more than half of it is accepted. Sets that are made here (all pixels in a
random order; columns that are permuted each for itself) are facts: most networks accept them, and
permuted columns of a table whose columns are independent are no different from the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from scipy.stats import binomtest
from torch import Tensor

from polymode.adversary import attack
from polymode.audits.checks.registry import CHECKS, NotApplicable
from polymode.audits.checks.shifts import as_pixels, subset
from polymode.audits.finding import LEVEL, Evidence, Finding, interval_text, percent
from polymode.audits.subject import BATCH, Subject
from polymode.likelihoods.scaling import Scaling
from polymode.metrics.ood import auroc
from polymode.metrics.rejection import clopper_pearson
from polymode.training.data import Arrays, Loader

ACCEPTED = 0.95  # share of the test set
TOLERATED = 0.5  # share of an OOD set that is accepted
MOST = 5000  # inputs of a set
ATTACKED = 100
EPS_PIXELS, EPS_COLUMNS = 2 / 255, 0.05  # of the range of pixels, of a column's standard deviation
STEPS = 10


@CHECKS.register("ood")
def ood(subject: Subject) -> Iterator[Finding]:
    """Yield how well uncertainty tells inputs from elsewhere, and sets that are accepted."""
    _need_classes(subject)
    sets = [(name, given_inputs(subject.task.ood[name]), True) for name in subject.task.ood]
    sets += [(name, x, False) for name, x in _made(subject).items()]
    if not sets:
        raise NotApplicable("no OOD set was given (`ood`), and none can be made of these inputs")
    limit = float(np.quantile(subject.confidence.numpy(), 1 - ACCEPTED))
    lines, worst = [], 0.0
    for name, x, given in sets:
        prediction = subject.post.predict(x, batch_size=BATCH)
        sure = prediction.mean.amax(-1).double()
        area = auroc(1 - subject.confidence, 1 - sure)
        entropy = auroc(subject.prediction.predictive_entropy, prediction.predictive_entropy)
        count, num = int((sure > limit).sum()), len(sure)
        low, high = clopper_pearson(count, num, LEVEL)
        accepted = f"{percent(count / num, 1)} {interval_text(low, high, 1)}"
        error = area.standard_error or 0.0
        lines.append(
            [
                name if given else f"{name} (made)",
                f"{num:,}",
                f"{area.value:.3f} ± {1.96 * error:.3f}",
                f"{entropy.value:.3f}",
                accepted,
            ]
        )
        worst = max(worst, count / num)
        if given:
            yield _finding(name, area.value, (count, num), accepted)
    yield Finding(
        check="ood",
        name="inputs from elsewhere",
        text=f"At the confidence at which 95 % of the test set is accepted ({limit:.3f}), up to"
        f" {percent(worst)} of inputs from elsewhere are accepted, too.",
        kind="fact",
        estimate=worst,
        unit="share accepted",
        n=len(subject.confidence),
        evidence=(
            Evidence(
                title="Inputs from elsewhere",
                head=("set", "inputs", "AUROC by confidence", "AUROC by entropy", "accepted"),
                lines=lines,
                note="± 1.96 standard errors; accepted: above the confidence at which 95 % of the"
                " test set is",
            ),
        ),
    )


def _finding(name: str, area: float, counts: tuple[int, int], accepted: str) -> Finding:
    count, num = counts
    low, high = clopper_pearson(count, num, LEVEL)
    return Finding(
        check="ood",
        name=f"accepts {name}",
        text=f"Accepts {accepted} of '{name}', at the confidence at which 95 % of the test set is"
        f" accepted (AUROC {area:.3f}).",
        remedy="Do not rely on confidence against such inputs: check them before the network, or"
        " use `ddu`, `sngp` or an ensemble.",
        severity="medium" if count < 0.8 * num else "high",
        estimate=count / num,
        low=low,
        high=high,
        unit="share accepted",
        p_value=float(binomtest(count, num, TOLERATED, alternative="greater").pvalue),
        n=num,
    )


def _need_classes(subject: Subject) -> None:
    if not subject.classification or subject.prediction.num_axes:
        raise NotApplicable("it is for one class for each input")


def given_inputs(source: Any) -> Any:
    """Return at most `MOST` inputs of a set."""
    if isinstance(source, Loader):
        parts, num = [], 0
        for part in source.inputs(BATCH):
            parts.append(part)
            num += len(part)
            if num >= MOST:
                break
        return torch.cat(parts)[:MOST]
    return source.x[:MOST] if isinstance(source, Arrays) else source[:MOST]


def _made(subject: Subject) -> dict[str, Tensor]:
    """Return sets that are made of the test inputs."""
    x = subject.test[0]
    if not isinstance(x, Tensor) or not x.is_floating_point():
        return {}
    x = x[subset(subject, "ood", 1000)]
    random = subject.generator("permutations")
    if x.dim() == 4 and x.shape[1] in (1, 3):
        order = torch.as_tensor(random.permutation(x.shape[2] * x.shape[3]))
        return {"pixels in a random order": x.flatten(2)[:, :, order].view(x.shape)}
    if x.dim() == 2 and x.shape[1] > 1:
        columns = [x[torch.as_tensor(random.permutation(len(x))), k] for k in range(x.shape[1])]
        return {"columns permuted": torch.stack(columns, 1)}
    return {}


@CHECKS.register("attacks")
def attacks(subject: Subject) -> Iterator[Finding]:
    """Yield what small changes made on purpose do, with and without hiding from a detector."""
    _need_classes(subject)
    if not subject.has_labels:
        raise NotApplicable("the test data have no labels")
    if subject.seconds_left <= 0.1 * subject.budget:
        raise NotApplicable("the budget is used up")
    x = subject.test[0]
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise NotApplicable("small changes are for images and rows of numbers")
    chosen = subset(subject, "attacks", ATTACKED)
    raw, scaling, eps, box = _ball(subject, x[chosen])
    lines, accuracies = [], []
    for title, adaptive in (("plain", None), ("hides its entropy", "predictive_entropy")):
        attacked = attack(
            subject.post, raw, subject.targets[chosen], kind="bim", eps=eps, steps=STEPS, box=box,
            scaling=scaling, adaptive=adaptive, checks="none", seed=subject.seed,
        )  # fmt: skip
        clean, moved = attacked.clean, attacked.attacked
        area = auroc(clean.predictive_entropy, moved.predictive_entropy).value
        accuracies.append(attacked.accuracy)
        lines.append(
            [
                title,
                percent(attacked.clean_accuracy),
                percent(attacked.accuracy),
                percent(float(moved.mean.amax(-1).mean())),
                f"{area:.3f}",
            ]
        )
    size = f"{255 * eps:.0f}/255" if box else f"{eps:g} standard deviations"
    yield Finding(
        check="attacks",
        name="small changes on purpose",
        text=f"Changes of at most {size} take its accuracy to {percent(min(accuracies))}.",
        kind="fact",
        estimate=min(accuracies),
        unit="accuracy",
        n=len(chosen),
        evidence=(
            Evidence(
                title=f"Attacks within {size}",
                head=("attack", "right before", "right after", "claims after", "AUROC of entropy"),
                lines=lines,
                note=f"{STEPS} steps on {len(chosen)} test examples; the next attack may be"
                " stronger",
            ),
        ),
    )


def _ball(
    subject: Subject, x: Tensor
) -> tuple[Tensor, Scaling | None, float, tuple[float, float] | None]:
    """Return raw inputs, what networks make of them, the radius, and the legal range."""
    if x.dim() == 4 and x.shape[1] in (1, 3):
        return *as_pixels(subject, x), EPS_PIXELS, (0.0, 1.0)
    table = subject.test[0]
    assert isinstance(table, Tensor)
    scaling = Scaling.of(table)
    inverse = Scaling(-scaling.shift / scaling.scale, 1 / scaling.scale)
    return scaling(x), inverse, EPS_COLUMNS, None
