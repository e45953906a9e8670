"""Model selection on the toy: does the evidence pick the network that tests best?

The talk shows fits with 1, 5 and 20 hidden layers and calls the evidence an automatic Occam's
razor. Here they are trained on one draw of the toy, in two widths; each gets its evidence at θ̃ and
at θ*, one precision per group, and the test NLL of the predictive that belongs to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch

from polymode.examinations import Findings, measure
from polymode.methods.laplace.prior_groups import prior_groups
from polymode.metrics.paired import paired
from polymode.runs.part import Experiment
from polymode.studies.linearised_laplace.experiments import MACKAY, Curve, nll_row
from polymode.studies.linearised_laplace.variants import MEANS, set_up, value_nll, variant
from polymode.studies.study import Claim, Runs, Table
from polymode.studies.table_cells import Column, column_cells, count_seeds, judge_sign
from polymode.studies.table_cells import marked_interval as interval

PART = "occam"
DEPTHS, WIDTHS = (1, 5, 20), (10, 50)
NUM_TRAIN = 80  # with the 400 of the other parts no network has too many weights


def occam(
    seed: int, *, depth: int = 1, width: int = 50, steps: int = 1000, num_train: int = NUM_TRAIN
) -> Findings:
    """Train one network on the toy; return its log evidences and test NLL.

    Statistics of BatchNorm are inside the tangent, h = J θ, noise is learned, as in `training`.
    """
    curve = Curve(seed, steps, hidden=(width,) * depth, num_train=num_train)
    test = curve.pair(curve.task.test)
    tangent = curve.tangent(curve.stack, "jacobian", inside=True)
    groups = prior_groups(curve.stack, "per_group")
    setup = set_up(tangent, groups, curve.x, curve.data(), test[0], chunk=100)
    beta = torch.ones(1, dtype=torch.float64)
    error = (setup.new_outputs[:, 0] - test[1][:, 0]).square().mean().sqrt().item()
    rows = [
        measure("weights", float(len(tangent.point)), n=1),
        measure("error", error, n=len(test[1]), direction="down"),
    ]
    for mean in MEANS:
        fitted = variant(setup, mean, "multiple", beta, MACKAY)
        spread = fitted.covariance.flatten().clamp_min(0) + 1 / fitted.choice.beta[0]
        nll = value_nll(setup.new_outputs[:, 0], spread, test[1][:, 0])
        own_nll = value_nll(fitted.mean[:, 0], spread, test[1][:, 0])
        rows += [
            measure(f"log_evidence_{mean}", fitted.choice.terms.value, n=num_train, unit="nats"),
            nll_row(f"nll_{mean}", nll, test[1]),
            nll_row(f"own_nll_{mean}", own_nll, test[1]),
        ]
    return Findings(tuple(rows))


def arm_name(depth: int, width: int) -> str:
    """Return the arm of a network.

    >>> arm_name(1, 50), arm_name(5, 10)
    ('1 layer of 50', '5 layers of 10')
    """
    return f"{depth} layer{'s' * (depth > 1)} of {width}"


def part(depths: tuple[int, ...], widths: tuple[int, ...], steps: int, seeds: int) -> Experiment:
    """Return the experiment: every depth in every width."""
    return Experiment(
        function=occam,
        arms={
            arm_name(depth, width): {"depth": depth, "width": width, "steps": steps}
            for depth in depths
            for width in widths
        },
        seeds=tuple(range(seeds)),
    )


class Pick(NamedTuple):
    """What a criterion picks for one seed: the arm, its test NLL, the least and the mean NLL."""

    arm: str
    nll: float
    least: float
    mean: float


STICK = "nll_linear"  # what a pick is judged by, the same for both criteria: the NLL at θ*


def picks(runs: Runs, criterion: str) -> dict[int, Pick]:
    """Return for each seed which network the largest value of a criterion picks."""
    scores = _by_seed(runs, STICK)
    chosen = {}
    for seed, values in _by_seed(runs, criterion).items():
        if seed not in scores or values.keys() != scores[seed].keys():
            continue
        arm = max(values, key=lambda name: values[name])
        nlls = scores[seed]
        chosen[seed] = Pick(arm, nlls[arm], min(nlls.values()), sum(nlls.values()) / len(nlls))
    return chosen


def _by_seed(runs: Runs, metric: str) -> dict[int, dict[str, float]]:
    """Return a number of all networks, of the seeds for which each network has it."""
    columns = {arm: runs.measured(PART, arm, metric) for arm in runs.arms(PART)}
    seeds = set.intersection(*(set(column) for column in columns.values())) if columns else set()
    return {seed: {arm: column[seed] for arm, column in columns.items()} for seed in sorted(seeds)}


def rank_correlation(first: Mapping[str, float], second: Mapping[str, float]) -> float:
    """Return Spearman's correlation of two numbers of the same arms.

    >>> rank_correlation({"a": 1.0, "b": 2.0, "c": 9.0}, {"a": -3.0, "b": 0.0, "c": 0.5})
    1.0
    """
    from scipy.stats import spearmanr

    return float(spearmanr([first[arm] for arm in first], [second[arm] for arm in first])[0])


def claims(runs: Runs) -> list[Claim]:
    """Return whether the evidence is a razor; none if the part was not run."""
    if not runs.arms(PART):
        return []
    return [
        *(_better_than_chance(runs, mean) for mean in MEANS),
        _ranks(runs),
        _star_is_no_worse(runs),
    ]


PAPER = "“automatic Occam's razor”; figure of 1, 5 and 20 hidden layers, no numbers"


def _better_than_chance(runs: Runs, mean: str) -> Claim:
    chosen = picks(runs, f"log_evidence_{mean}")
    gain = paired([pick.nll - pick.mean for pick in chosen.values()])
    lost = paired([pick.nll - pick.least for pick in chosen.values()])
    best = sum(pick.nll == pick.least for pick in chosen.values())
    return Claim(
        f"1-D: the network of the largest evidence at {MEANS[mean]} tests better than the mean of"
        " all",
        PAPER,
        f"its NLL less the mean of {len(runs.arms(PART))} networks {interval(gain, '*')}, less the"
        f" best of them {interval(lost, '*')}; the best one in {best} of {len(chosen)} seeds",
        judge_sign(gain, sign=-1),
    )


def _ranks(runs: Runs) -> Claim:
    evidences, scores = (_by_seed(runs, name) for name in ("log_evidence_linear", STICK))
    ranks = paired(
        [-rank_correlation(evidences[seed], scores[seed]) for seed in evidences if seed in scores]
    )
    return Claim(
        "1-D: the evidence at θ* ranks networks as their test NLL does",
        PAPER,
        f"rank correlation of log evidence and −NLL {interval(ranks, '*')}",
        judge_sign(ranks, sign=1),
    )


def _star_is_no_worse(runs: Runs) -> Claim:
    star, tilde = (picks(runs, f"log_evidence_{mean}") for mean in ("linear", "trained"))
    gap = paired([star[seed].nll - tilde[seed].nll for seed in star if seed in tilde])
    return Claim(
        "1-D: the evidence at θ* picks a network that tests better than the one picked at θ̃",
        "recommendation 1; of networks nothing is said",
        f"difference of NLL {interval(gap, '*')}",
        judge_sign(gap, sign=-1),
    )


def table(runs: Runs) -> Table | None:
    """Return evidence and test NLL of each network, and how often it is picked."""
    arms = runs.arms(PART)
    if not arms:
        return None
    metrics = {
        "weights": "weights",
        **{f"log evidence at {sign}": f"log_evidence_{mean}" for mean, sign in MEANS.items()},
        **{f"test NLL at {sign}": f"nll_{mean}" for mean, sign in MEANS.items()},
        "own mean, θ*": "own_nll_linear",
        "RMSE of the network": "error",
    }
    columns = [column_cells(runs, PART, arms, Column(f"examined:{PART}", m), 3)
               for m in metrics.values()]  # fmt: skip
    criteria = [picks(runs, f"log_evidence_{mean}") for mean in MEANS]
    criteria.append(picks_of_the_best(runs))
    counts = [
        "/".join(str(sum(pick.arm == arm for pick in chosen.values())) for chosen in criteria)
        for arm in arms
    ]
    return Table(
        title=f"Model selection, 1-D, {NUM_TRAIN} examples",
        head=("network", *metrics, "picked at θ̃/at θ*/best"),
        lines=tuple(zip(arms, *columns, counts, strict=True)),
        note=f"mean ± s.e. over {count_seeds(runs, PART)} seeds; one λ per group; NLL in nats per"
        " standardised value around the network's outputs; picked: in how many seeds the evidence"
        " at θ̃ and at θ* is largest, and the test NLL at θ* least",
    )


def picks_of_the_best(runs: Runs) -> dict[int, Pick]:
    """Return the network of the least test NLL of each seed."""
    best = {}
    for seed, nlls in _by_seed(runs, STICK).items():
        arm = min(nlls, key=lambda name: nlls[name])
        best[seed] = Pick(arm, nlls[arm], nlls[arm], sum(nlls.values()) / len(nlls))
    return best
