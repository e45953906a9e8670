"""What the papers say, and whether it holds in our runs: paired over seeds, 95 % intervals.

Distances are total variation for classes and W1 for densities, on the test set.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from polymode.metrics.paired import Difference, paired
from polymode.studies.reference.shown import HMC, distances, modes_of, ordered, pairs
from polymode.studies.study import Claim, Runs, judged

SAMPLERS = ("SGLD", "SGHMC", "SGNHT")


def claims(runs: Runs) -> list[Claim]:
    """Return the claims with their verdicts, for each part that was run."""
    found = []
    for part in runs.parts:
        if ordered(runs, part):
            found += [_closest(runs, part), _many_closer(runs, part), _ensemble(runs, part)]
            found += [_furthest(runs, part), _as_samplers(runs, part)]
    return found


def _closest(runs: Runs, part: str) -> Claim:
    """Judged by seed: the difference of the closest with many modes to the closest with one."""
    arms = [arm for arm in ordered(runs, part) if arm != HMC]
    many = [arm for arm in arms if modes_of(runs, part, arm) > 1]
    one = [arm for arm in arms if arm not in many]
    gap = _paired(runs, part, many[:1], one[:1])
    names = f"{many[0]} and {one[0]}" if many and one else "not run"
    return Claim(
        f"{part}: the closest approximation to HMC has many modes",
        "all winners of the competition were multi-modal approximations",
        _said(gap, f"distance, closest of many − closest of one mode ({names})"),
        judged(gap, sign=-1),
    )


def _many_closer(runs: Runs, part: str) -> Claim:
    found = pairs(runs, part)
    gap = _paired(
        runs, part, [many for _, many in found.values()], [one for one, _ in found.values()]
    )
    return Claim(
        f"{part}: methods with many modes are closer to HMC than with one",
        "the competition's winners; MultiSWAG and ensembles of VI in the abstract",
        _said(gap, f"distance, many − one mode, mean over {len(found)} methods"),
        judged(gap, sign=-1),
    )


def _ensemble(runs: Runs, part: str) -> Claim:
    gap = _paired(runs, part, ["deep ensemble"], ["mean-field VI"])
    return Claim(
        f"{part}: deep ensembles are closer to HMC than mean-field VI",
        "abstract of Izmailov et al.: closer than standard variational inference",
        _said(gap, "distance, deep ensemble − mean-field VI"),
        judged(gap, sign=-1),
    )


def _furthest(runs: Runs, part: str) -> Claim:
    """Mean-field VI against the mean of the other one-mode approximations that have a spread."""
    others = [
        arm
        for arm in ordered(runs, part)
        if modes_of(runs, part, arm) == 1 and arm not in ("MAP", "mean-field VI", HMC)
    ]
    gap = _paired(runs, part, ["mean-field VI"], others)
    return Claim(
        f"{part}: of the approximations with one mode, mean-field VI is the furthest from HMC",
        "order of Izmailov et al. on CIFAR-10: MFVI is further than SGLD and deep ensembles",
        _said(gap, f"distance, mean-field VI − mean of {len(others)} others with one mode"),
        judged(gap, sign=1),
    )


def _as_samplers(runs: Runs, part: str) -> Claim:
    """About as close: the interval of the difference lies within a quarter of the distance."""
    samplers = [arm for arm in SAMPLERS if runs.of(part, arm)]
    gap = _paired(runs, part, ["deep ensemble"], samplers)
    verdict = "not run" if gap is None else "undecided"
    values = list(distances(runs, part, "deep ensemble").values())
    if gap is not None and gap.low is not None and gap.high is not None and values:
        margin = 0.25 * sum(values) / len(values)
        if max(-gap.low, gap.high) <= margin:
            verdict = "holds"
        elif gap.low > margin or gap.high < -margin:
            verdict = "does not hold"
    return Claim(
        f"{part}: deep ensembles are about as close to HMC as stochastic-gradient MCMC",
        "abstract of Izmailov et al.: similar to SGLD",
        _said(gap, f"distance, deep ensemble − mean of {', '.join(samplers) or 'no sampler'}"),
        verdict,
    )


def _paired(
    runs: Runs, part: str, first: Sequence[str], second: Sequence[str]
) -> Difference | None:
    """Return mean distance of `first` − mean distance of `second`, paired by seed."""
    found = [[distances(runs, part, arm) for arm in arms] for arms in (first, second)]
    if not all(found) or not all(each for arms in found for each in arms):
        return None
    seeds = sorted(set.intersection(*(set(each) for arms in found for each in arms)))
    means = [[sum(each[seed] for each in arms) / len(arms) for seed in seeds] for arms in found]
    return paired([mine - theirs for mine, theirs in zip(*means, strict=True)])


def _said(gap: Difference | None, what: str) -> str:
    if gap is None:
        return f"{what}: not run"
    text = f"{what}: {gap.mean:+.4f}"
    if gap.low is not None and gap.high is not None:
        text += f" [{gap.low:+.4f}, {gap.high:+.4f}]"
    return re.sub(r"-(?=\d)", "−", text) + f", {gap.n} seed{'s' if gap.n > 1 else ''}"
