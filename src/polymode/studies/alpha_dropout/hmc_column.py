"""The HMC column of the regressions: `hmc` and `mile` on boston, concrete and yacht.

The paper quotes that column from another one. Here chains of the same network, one hidden layer of
50 ReLUs without dropout, sample all weights and the noise on the same standard splits. The prior
precision is chosen inside the training part of a split: a fifth of it is held out, and the
precision with the lowest NLL there is taken for chains on the whole part. The noise is inferred
with the weights, under a flat prior of its logarithm, and is not changed afterwards.

Chains of `hmc` begin at new networks: from trained ones, whose noise has followed residuals to far
too small a value, they hardly come back on yacht. Those of `mile` begin at members that it trains.
R-hat of the predictions is among the results: chains of networks mix slowly, and what is scored is
what they are after so many steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from polymode.chains.examination import chains as examined
from polymode.examinations import Findings, measure
from polymode.methods import fit
from polymode.metrics.text_table import number
from polymode.nets import mlp
from polymode.plots import Comparison
from polymode.posterior import Posterior
from polymode.runs.part import Experiment, Part
from polymode.studies.alpha_dropout import published
from polymode.studies.alpha_dropout.published import name_of
from polymode.studies.alpha_dropout.uci import TOY, predicted, scores_of, tasks_of
from polymode.studies.study import Claim, Runs, Table, paired_difference
from polymode.studies.table_cells import difference_text, judge_sign, mean_cell, mean_or_none
from polymode.tasks import Task

SETS = ("boston", "concrete", "yacht")
ARMS = {"HMC": "hmc", "MILE": "mile"}
PRECISIONS = (1.0, 3.0, 10.0)
_START = "uci_hmc_"


def split(
    seed: int,
    *,
    dataset: str,
    method: str,
    precisions: Sequence[float] = PRECISIONS,
    steps: Sequence[int] = (100, 400),
    leapfrog_steps: int = 100,
    training_steps: int = 500,
    hidden: int = 50,
    num_chains: int = 4,
    samples: int = 50,
) -> Findings:
    """Return the test scores of split number `seed`, the prior chosen inside its training part.

    Args:
        method: "hmc" or "mile".
        steps: trajectories of `hmc`, or steps of `mile`, of the chains that choose and of those
            that are scored; half of them are burn-in.
        leapfrog_steps: of a trajectory of `hmc`.
        training_steps: of the networks that chains of `mile` begin at.
    """
    net = partial(mlp, hidden=(hidden,))
    shared: dict[str, Any] = {
        "seed": seed, "progress": "silent", "num_modes": num_chains, "batch_size": 8192,
        "samples_per_mode": samples,
    }  # fmt: skip

    def sampled(task: Task, precision: float, length: int) -> Posterior:
        prior: dict[str, Any] = {"prior_precision": precision}
        if method == "hmc":
            return fit(
                "hmc", net=net, task=task, epochs=length, leapfrog_steps=leapfrog_steps,
                lr=1e-3, **prior, **shared,
            )  # fmt: skip
        return fit(
            method, net=net, task=task, epochs=training_steps + length, lr=0.01,
            training_steps=training_steps, burn_in=training_steps + length // 2,
            **prior, **shared,
        )  # fmt: skip

    held_out, task = tasks_of(dataset, seed)
    tried = []
    for precision in precisions:
        prediction, values = predicted(sampled(held_out, precision, steps[0]), held_out.val)
        tried.append((-prediction.log_prob(values).mean().item(), precision))
    _, precision = min(tried)
    post = sampled(task, precision, steps[1])
    mixed = examined(post, task)
    rows = scores_of(*predicted(post, task.test))
    return Findings(
        (
            *rows,
            measure("chosen_precision", precision, n=1),
            *(mixed[name] for name in ("r_hat", "r_hat_median", "ess_bulk_median")),
        )
    )


def parts(preset: str) -> dict[str, Part | Experiment]:
    """Return one part for each data set; the seeds are the splits."""
    return {f"{_START}{name}": _part(name, preset) for name in _sets(preset)}


def _sets(preset: str) -> Sequence[str]:
    return (TOY,) if preset == "smoke" else SETS


def _part(name: str, preset: str) -> Experiment:
    shared: dict[str, Any] = {"dataset": name}
    steps = {"hmc": [100, 400], "mile": [2500, 8000]}
    if preset == "smoke":
        shared |= {
            "precisions": [1.0, 10.0], "leapfrog_steps": 3, "training_steps": 4, "hidden": 8,
            "num_chains": 2, "samples": 4,
        }  # fmt: skip
        steps = {"hmc": [8, 10], "mile": [8, 10]}
    elif preset == "paper":
        shared |= {"leapfrog_steps": 1000, "num_chains": 8, "samples": 100}
        steps = {"hmc": [1000, 4000], "mile": [40_000, 200_000]}
    return Experiment(
        function=split,
        arms={
            arm: {**shared, "method": method, "steps": steps[method]}
            for arm, method in ARMS.items()
        },
        seeds=tuple(range({"smoke": 2, "cpu": 5, "paper": 20}[preset])),
        data=() if name == TOY else ("uci",),
    )


def sets_of(runs: Runs) -> list[str]:
    """Return the data sets that have results."""
    return [name for name in (*SETS, TOY) if _START + name in runs.parts]


def values(runs: Runs, dataset: str, arm: str, metric: str) -> dict[int, float]:
    """Return a number by split: of the chains, or of dropout at an α."""
    return runs.measured((_START if arm in ARMS else "uci_") + dataset, arm, metric)


_TABLES = {
    "uci_hmc_nll": ("NLL of chains and of dropout, nats ↓", "nll", published.HMC_NLL),
    "uci_hmc_rmse": ("RMSE of chains and of dropout ↓", "rmse", published.HMC_RMSE),
}


def tables(runs: Runs) -> dict[str, Table]:
    """Return the HMC column with ours beside it and the α columns on the same splits, and what was
    chosen and how well the chains have mixed."""
    if not sets_of(runs):
        return {}
    scores = {name: _table(runs, *columns) for name, columns in _TABLES.items()}
    return scores | {"uci_hmc_chains": _chains(runs)}


def _table(runs: Runs, title: str, metric: str, printed: dict[str, published.Value]) -> Table:
    alphas = [name_of(alpha) for alpha in published.ALPHAS]
    lines = []
    for dataset in sets_of(runs):
        splits = set(values(runs, dataset, "HMC", metric)) | set(
            values(runs, dataset, "MILE", metric)
        )
        line = [dataset]
        for arm in (*ARMS, *alphas):
            by_split = values(runs, dataset, arm, metric)
            line.append(mean_cell([by_split[s] for s in sorted(by_split) if s in splits]))
        paper = printed.get(dataset)
        line.append("" if paper is None else number(paper.mean, paper.error, 2))
        lines.append(tuple(line))
    head = ("data set", *ARMS, *alphas, "HMC, quoted in the paper")
    counts = {len(values(runs, name, "HMC", metric)) for name in sets_of(runs)}
    note = f"mean ± s.e. over the first {max(counts)} standard splits; the paper's are of 20"
    return Table(title, head, tuple(lines), note)


_COLUMNS = {
    "prior precision": ("chosen_precision", 1), "noise, units of y": ("noise", 3),
    "90 % coverage": ("coverage_90", 3), "R-hat, largest": ("r_hat", 2),
    "R-hat, median": ("r_hat_median", 2), "ESS, median": ("ess_bulk_median", 0),
}  # fmt: skip


def _chains(runs: Runs) -> Table:
    lines = []
    for dataset in sets_of(runs):
        for arm in ARMS:
            cells = [
                mean_cell(values(runs, dataset, arm, metric), digits)
                for metric, digits in _COLUMNS.values()
            ]
            lines.append((f"{dataset}, {arm}", *cells))
    title = "Chains on the regressions: what was chosen, and whether they have mixed"
    return Table(title, ("arm", *_COLUMNS), tuple(lines), "mean ± s.e.; R-hat of predictions")


def comparisons(preset: str, runs: Runs) -> list[Comparison]:
    """Return `hmc` beside the quoted column; within two standard errors of the difference."""
    rows = []
    for dataset in SETS if preset != "smoke" else ():
        paper = published.HMC_NLL[dataset]
        mean, error = mean_or_none(list(values(runs, dataset, "HMC", "nll").values()))
        spread = ((error or 0.0) ** 2 + (paper.error or 0.0) ** 2) ** 0.5
        rows.append(
            Comparison(
                f"{dataset}, HMC, NLL", paper.mean, paper.error, mean, error,
                2 * max(spread, 0.01), "nats", "down",
            )
        )  # fmt: skip
    return rows


def claims(runs: Runs) -> list[Claim]:
    """Return whether chains are better than dropout, judged over splits that both have."""
    return [_lower(runs, dataset, arm) for dataset in sets_of(runs) for arm in ARMS]


def _lower(runs: Runs, dataset: str, arm: str) -> Claim:
    dropout = name_of(0.5)
    gap = paired_difference(
        values(runs, dataset, arm, "nll"), values(runs, dataset, dropout, "nll")
    )
    paper = "not given"
    if dataset in published.HMC_NLL:
        difference = published.HMC_NLL[dataset].mean - published.NLL[dataset][1].mean
        paper = f"{difference:+.2f} nats".replace("-", "−")
    return Claim(
        f"{dataset}: {arm} has a lower NLL than dropout with α = 0.5",
        paper,
        difference_text(gap, f"NLL, {arm} − {dropout}, nats", "splits"),
        judge_sign(gap, sign=-1),
    )
