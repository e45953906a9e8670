"""What the papers say, and whether it holds in our runs: paired over seeds, 95 % intervals.

Distances are total variation for classes and W1 for densities, on the test set.
"""

from __future__ import annotations

from collections.abc import Sequence

from polymode.metrics.paired import Difference, paired
from polymode.studies.reference.tables import HMC, distances, modes_of, ordered, pairs
from polymode.studies.study import Claim, Runs
from polymode.studies.table_cells import difference_text, judge_equal, judge_sign

SAMPLERS = ("SGLD", "SGHMC", "SGNHT")


def claims(runs: Runs) -> list[Claim]:
    """Return the claims with their verdicts, for each part that was run."""
    judged = (_closest, _many_closer, _ensemble, _furthest, _as_samplers)
    parts = [part for part in runs.parts if ordered(runs, part)]
    return [judge(runs, part) for part in parts for judge in judged]


def _closest(runs: Runs, part: str) -> Claim:
    """Judged by seed: the difference of the closest with many modes to the closest with one."""
    arms = [arm for arm in ordered(runs, part) if arm != HMC]
    many = [arm for arm in arms if modes_of(runs, part, arm) > 1]
    single = [arm for arm in arms if arm not in many]
    gap = _paired(runs, part, many[:1], single[:1])
    names = f"{many[0]} and {single[0]}" if many and single else "not run"
    return Claim(
        f"{part}: the closest approximation to HMC has many modes",
        "all winners of the competition were multi-modal approximations",
        difference_text(
            gap, f"distance, closest of many − closest of one mode ({names})", digits=4
        ),
        judge_sign(gap, sign=-1),
    )


def _many_closer(runs: Runs, part: str) -> Claim:
    arms = pairs(runs, part).values()
    gap = _paired(runs, part, [many for _, many in arms], [single for single, _ in arms])
    return Claim(
        f"{part}: methods with many modes are closer to HMC than with one",
        "the competition's winners; MultiSWAG and ensembles of VI in the abstract",
        difference_text(gap, f"distance, many − one mode, mean over {len(arms)} methods", digits=4),
        judge_sign(gap, sign=-1),
    )


def _ensemble(runs: Runs, part: str) -> Claim:
    gap = _paired(runs, part, ["deep ensemble"], ["mean-field VI"])
    return Claim(
        f"{part}: deep ensembles are closer to HMC than mean-field VI",
        "abstract of Izmailov et al.: closer than standard variational inference",
        difference_text(gap, "distance, deep ensemble − mean-field VI", digits=4),
        judge_sign(gap, sign=-1),
    )


def _furthest(runs: Runs, part: str) -> Claim:
    """Mean-field VI against the mean of the other one-mode approximations that have a spread."""
    single = [
        arm
        for arm in ordered(runs, part)
        if modes_of(runs, part, arm) == 1 and arm not in ("MAP", "mean-field VI", HMC)
    ]
    gap = _paired(runs, part, ["mean-field VI"], single)
    return Claim(
        f"{part}: of the approximations with one mode, mean-field VI is the furthest from HMC",
        "order of Izmailov et al. on CIFAR-10: MFVI is further than SGLD and deep ensembles",
        difference_text(
            gap, f"distance, mean-field VI − mean of {len(single)} others with one mode", digits=4
        ),
        judge_sign(gap, sign=1),
    )


def _as_samplers(runs: Runs, part: str) -> Claim:
    """About as close: the interval of the difference lies within a quarter of the distance."""
    samplers = [arm for arm in SAMPLERS if runs.of(part, arm)]
    gap = _paired(runs, part, ["deep ensemble"], samplers)
    values = list(distances(runs, part, "deep ensemble").values())
    margin = 0.25 * sum(values) / len(values) if values else 0.0
    return Claim(
        f"{part}: deep ensembles are about as close to HMC as stochastic-gradient MCMC",
        "abstract of Izmailov et al.: similar to SGLD",
        difference_text(
            gap,
            f"distance, deep ensemble − mean of {', '.join(samplers) or 'no sampler'}",
            digits=4,
        ),
        judge_equal(gap, margin),
    )


def _paired(
    runs: Runs, part: str, first: Sequence[str], second: Sequence[str]
) -> Difference | None:
    """Return mean distance of `first` − mean distance of `second`, paired by seed."""
    sides = [[distances(runs, part, arm) for arm in arms] for arms in (first, second)]
    if not all(sides) or not all(values for side in sides for values in side):
        return None
    seeds = sorted(set.intersection(*(set(values) for side in sides for values in side)))
    means = [[sum(values[seed] for values in side) / len(side) for seed in seeds] for side in sides]
    return paired([a - b for a, b in zip(*means, strict=True)])
