"""What is said of heads on frozen bodies, and whether it holds here: paired over seeds.

The claims were written before the study was run, but after trial fits on the same data. Distances
are total variation to HMC on the test set.
"""

from __future__ import annotations

import math

from polymode.metrics.paired import paired
from polymode.studies.one_body.setup import AUTO, ENSEMBLE, GRID, HMC, LAPLACE, prior_arm
from polymode.studies.reference.tables import distances, ordered
from polymode.studies.study import Claim, Runs, paired_difference, paired_log_ratio
from polymode.studies.table_cells import (
    difference_text,
    judge_interval,
    judge_sign,
    ratio_text,
)

CLOSE = 1.1  # times the distance of one chain of HMC to another
COLLAPSED = 0.05  # share of HMC's mutual information below which an ensemble is one function
WITHIN = 0.01  # nats


def claims(runs: Runs) -> list[Claim]:
    """Return the claims with their verdicts, those whose parts were run."""
    parts = [part for part in runs.parts if ordered(runs, part)]
    linear = [part for part in parts if not part.endswith("small_head")]
    claimed = [_laplace_is_close(runs, part) for part in linear]
    claimed += [_ensemble(runs, part, part in linear) for part in parts]
    grids = [part for part in runs.parts if part.endswith("_prior")]
    claimed += [
        _default_prior(runs, part, method) for part in grids for method in ("MAP", "Laplace")
    ]
    claimed += [_prior_over_modes(runs, part) for part in grids]
    claimed += [_laplace_gains(runs, part) for part in linear]
    return claimed


def _laplace_is_close(runs: Runs, part: str) -> Claim:
    """Judged by the ratio of distances to the reference: that of Laplace, and of another chain."""
    gap = paired_log_ratio(distances(runs, part, LAPLACE), distances(runs, part, HMC))
    return Claim(
        f"{part}: last-layer Laplace with the full covariance is as close to HMC as another chain"
        f" is, within {CLOSE:g} times",
        "Laplace Redux: the last layer is where it is cheap and works; no paper has the distance",
        f"TV, Laplace / another chain: {ratio_text(gap, 2)}",
        judge_interval(
            gap,
            lambda low, high: high <= math.log(CLOSE),
            lambda low, high: low > math.log(CLOSE),
        ),
    )


def _ensemble(runs: Runs, part: str, linear: bool) -> Claim:
    """Judged by the ratio of mutual information on the test set to that of HMC."""
    shares = [runs.values(part, arm, "test", "mutual_information") for arm in (ENSEMBLE, HMC)]
    ratio = paired([shares[0][s] / shares[1][s] for s in sorted(set(shares[0]) & set(shares[1]))])
    what = "is one function: its loss is convex" if linear else "is not one function"
    beyond = lambda low, high: low > COLLAPSED  # noqa: E731
    below = lambda low, high: high < COLLAPSED  # noqa: E731
    head = "linear" if linear else "small"
    return Claim(
        f"{part}: an ensemble of {head} heads {what}",
        "convexity" if linear else "deep ensembles on whole networks; sub-ensembles",
        difference_text(ratio, "mutual information, ensemble / HMC"),
        judge_interval(ratio, below, beyond) if linear else judge_interval(ratio, beyond, below),
    )


def _best_on_grid(runs: Runs, part: str, method: str) -> dict[int, float]:
    """Return by seed the NLL of the λ that is best on the test set, mean over seeds."""
    by_precision = [runs.values(part, prior_arm(method, p), "test", "nll") for p in GRID]
    present = [values for values in by_precision if values]
    return min(present, key=lambda values: sum(values.values()) / len(values), default={})


def _default_prior(runs: Runs, part: str, method: str) -> Claim:
    auto = runs.values(part, prior_arm(method, AUTO), "test", "nll")
    gap = paired_difference(auto, _best_on_grid(runs, part, method))
    return Claim(
        f"{part}: with λ by the evidence, {method} is within {WITHIN:g} nats of the best of a grid",
        "MacKay 1992: the evidence chooses what generalises",
        difference_text(gap, "NLL, auto − best of the grid, nats", digits=4),
        judge_interval(gap, lambda low, high: high <= WITHIN, lambda low, high: low > WITHIN),
    )


def _prior_over_modes(runs: Runs, part: str) -> Claim:
    """Judged by gains of NLL over MAP: of λ by the evidence over 1, and of an ensemble over one."""
    base = part.removesuffix("_prior")
    usual, auto = (
        runs.values(part, prior_arm("MAP", precision), "test", "nll") for precision in (1.0, AUTO)
    )
    single, many = (runs.values(base, arm, "test", "nll") for arm in ("MAP", ENSEMBLE))
    seeds = sorted(set(usual) & set(auto) & set(single) & set(many))
    gap = paired([(usual[s] - auto[s]) - (single[s] - many[s]) for s in seeds])
    return Claim(
        f"{base}: several modes gain less than the prior does",
        "no paper; a first look at such heads",
        difference_text(
            gap, "gain of λ by the evidence over 1 − gain of five modes, nats", digits=4
        ),
        judge_sign(gap, sign=1),
    )


def _laplace_gains(runs: Runs, part: str) -> Claim:
    gap = runs.difference(part, LAPLACE, "MAP", "test", "nll")
    return Claim(
        f"{part}: Laplace has a lower NLL than the network that it is around",
        "Laplace Redux: better calibrated than MAP at the same accuracy",
        difference_text(gap, "NLL, Laplace − MAP, nats", digits=4),
        judge_sign(gap, sign=-1),
    )
