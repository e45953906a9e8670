r"""The regressions: 20 standard splits of eight UCI sets, α = 0, 0.5 and 1.

A network of one hidden layer with 50 ReLUs and dropout before both dense layers, K = 10 passes in
training. Everything that is chosen is chosen inside the training part of a split: a fifth of it is
held out, the dropout rate and the length of training with the lowest NLL there are taken, and the
noise that was learned is multiplied by the factor that is best there, since noise that is learned
from residuals of the training data is too small. Then a new network is trained on the whole part.
All rates are trained for the shortest length, the better half of them for the next.

Two log-likelihoods are given, because papers differ: of the mixture of passes, as in the paper, and
of one Gaussian with the mixture's mean and variance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from polymode.examinations import Findings, measure
from polymode.likelihoods.kinds import Gaussian
from polymode.methods import fit
from polymode.metrics.results import Row
from polymode.metrics.text_table import number
from polymode.nets import mlp
from polymode.plots import Comparison
from polymode.posterior import Posterior
from polymode.prediction import MixturePrediction
from polymode.runs.part import Experiment, Part
from polymode.studies.alpha_dropout import published
from polymode.studies.alpha_dropout.published import name_of
from polymode.studies.study import Claim, Runs, Table, paired_difference
from polymode.studies.table_cells import difference_text, judge_sign, mean_cell, mean_or_none
from polymode.tasks import Task
from polymode.tasks import task as build_task

TOY = "wiggle"
SETS = (*published.NLL, TOY)
HELD_OUT = 0.2
SAMPLES = 100  # passes of a prediction
FACTORS = tuple(round(2 ** (step / 8), 4) for step in range(-12, 17))
RATES = (0.005, 0.01, 0.05, 0.1, 0.2)
_EPOCHS = {"wine": [40, 160], **dict.fromkeys(("kin8nm", "naval", "power"), [20, 40])}
_START = "uci_"


def split(
    seed: int,
    *,
    dataset: str,
    alpha: float,
    rates: Sequence[float] = RATES,
    epochs: Sequence[int] = (100, 400),
    hidden: int = 50,
    num_passes: int = 10,
    lr: float = 0.01,
    batch_size: int = 128,
    prior_precision: float = 1.0,
) -> Findings:
    """Return the test scores of split number `seed`, everything chosen inside its training part."""
    training: dict[str, Any] = {
        "alpha": alpha, "num_passes": num_passes, "lr": lr, "schedule": "cosine",
        "batch_size": batch_size, "prior_precision": prior_precision, "samples_per_mode": SAMPLES,
        "holdout": 0,
    }  # fmt: skip

    def trained(task: Task, rate: float, length: int) -> Posterior:
        net = partial(mlp, hidden=(hidden,), dropout=rate, input_dropout=rate)
        return fit(
            "dropout", net=net, task=task, seed=seed, epochs=length, progress="silent", **training
        )

    held_out, task = tasks_of(dataset, seed)
    tried: list[tuple[float, float, int, float]] = []
    for length in sorted(epochs):
        scores = []
        for rate in rates:
            nll, factor = best_factor(*predicted(trained(held_out, rate, length), held_out.val))
            scores.append((nll, rate, length, factor))
        tried += scores
        rates = [rate for _, rate, *_ in sorted(scores)[: max(1, len(scores) // 2)]]
    _, rate, length, factor = min(tried)
    post = trained(task, rate, length)
    with torch.no_grad():
        post.stack.extra["log_noise"] += math.log(factor)
    return _scores(*predicted(post, task.test), rate, length, factor)


def tasks_of(dataset: str, seed: int) -> tuple[Task, Task]:
    """Return the task with a fifth of its training part held out, and with all of it.

    The toy, which stands in where there are no files, is drawn again for each seed and has a
    validation set of its own.
    """
    if dataset != TOY:
        name = f"uci_{dataset}"
        held_out = build_task(name, split=seed, val_fraction=HELD_OUT)
        return held_out, build_task(name, split=seed, val_fraction=0.0)
    toy = build_task(TOY, seed=seed)
    task = Task(
        train=toy.train, val=toy.val, test=toy.test, likelihood=Gaussian(noise="learned"), name=TOY
    )
    return task, task


def predicted(post: Posterior, data: Any) -> tuple[MixturePrediction, torch.Tensor]:
    """Return the prediction at inputs of the data, and their targets."""
    prediction = post.predict(data)
    assert isinstance(prediction, MixturePrediction)
    return prediction.double(), data.y.double()


def best_factor(prediction: MixturePrediction, values: torch.Tensor) -> tuple[float, float]:
    """Return the lowest NLL of a mixture whose noise is multiplied, and the factor."""
    scores = []
    for factor in FACTORS:
        wider = MixturePrediction(prediction.loc, factor * prediction.scale)
        scores.append((-wider.log_prob(values).mean().item(), factor))
    return min(scores)


def _scores(
    prediction: MixturePrediction, values: torch.Tensor, rate: float, epochs: int, factor: float
) -> Findings:
    return Findings(
        (
            *scores_of(prediction, values),
            measure("chosen_rate", rate, n=1),
            measure("chosen_epochs", epochs, n=1),
            measure("noise_factor", factor, n=1),
        )
    )


def scores_of(prediction: MixturePrediction, values: torch.Tensor) -> tuple[Row, ...]:
    """Return both NLLs, the RMSE, the coverage of 90 % intervals, and the size of the noise."""
    mean, variance = prediction.mean, prediction.variance
    squares = (values - mean).square()
    mixture = -prediction.log_prob(values)
    moments = (0.5 * (2 * math.pi * variance).log() + 0.5 * squares / variance).sum(-1)
    low, high = prediction.interval(0.9)
    inside = ((low <= values) & (values <= high)).double().mean().item()
    n = len(values)
    nats: dict[str, Any] = {"unit": "nats/example", "direction": "down", "n": n}
    return (
        measure("nll", mixture.mean().item(), standard_error=_error(mixture), **nats),
        measure("nll_moments", moments.mean().item(), standard_error=_error(moments), **nats),
        measure("rmse", squares.mean().sqrt().item(), unit="units of y", direction="down", n=n),
        measure("coverage_90", inside, n=n),
        measure("noise", prediction.scale.mean().item(), unit="units of y", n=n),
    )


def _error(values: torch.Tensor) -> float | None:
    return (values.std() / len(values) ** 0.5).item() if len(values) > 1 else None


def parts(preset: str) -> dict[str, Part | Experiment]:
    """Return one part for each data set; the seeds are the splits."""
    sets = (TOY,) if preset == "smoke" else published.NLL
    return {f"{_START}{name}": _part(name, preset) for name in sets}


def _part(name: str, preset: str) -> Experiment:
    shared: dict[str, Any] = {"dataset": name}
    if preset == "smoke":
        shared |= {"rates": [0.01, 0.1], "epochs": [2, 4], "num_passes": 3}
    elif preset == "cpu":
        shared |= {"epochs": _EPOCHS.get(name, [100, 400])}
    else:  # the optimiser of Li & Turner 2016, from which the paper takes it
        shared |= {"epochs": [500], "lr": 0.001, "batch_size": 32}
    return Experiment(
        function=split,
        arms={name_of(alpha): {**shared, "alpha": alpha} for alpha in published.ALPHAS},
        seeds=tuple(range(2 if preset == "smoke" else 20)),
        data=() if name == TOY else ("uci",),
    )


def sets_of(runs: Runs) -> list[str]:
    """Return the data sets that have results, in the order of the paper's table."""
    return [name for name in SETS if _START + name in runs.parts]


def values(runs: Runs, dataset: str, alpha: float, metric: str) -> list[float]:
    """Return a number for every split that was run."""
    return list(runs.measured(_START + dataset, name_of(alpha), metric).values())


_TABLES = {
    "uci_nll": ("Test NLL (mixture), nats ↓", "nll", published.NLL),
    "uci_nll_moments": ("Test NLL of the matched Gaussian, nats ↓", "nll_moments", None),
    "uci_rmse": ("Test RMSE ↓", "rmse", published.RMSE),
}


def tables(runs: Runs) -> dict[str, Table]:
    """Return the paper's two tables with ours in them, the other NLL, and what was chosen."""
    if not sets_of(runs):
        return {}
    scores = {name: _table(runs, *columns) for name, columns in _TABLES.items()}
    return scores | {"uci_chosen": _chosen(runs)}


def _table(runs: Runs, title: str, metric: str, printed: Any) -> Table:
    lines = []
    for dataset in sets_of(runs):
        line = [dataset]
        for place, alpha in enumerate(published.ALPHAS):
            line.append(mean_cell(values(runs, dataset, alpha, metric)))
            if printed is not None:
                paper = printed[dataset][place] if dataset in printed else None
                line.append("" if paper is None else number(paper.mean, paper.error, 2))
        if metric == "nll":
            line.append("" if dataset == TOY else number(published.HMC_NLL[dataset].mean, None, 2))
        lines.append(tuple(line))
    head = ["data set"]
    for alpha in published.ALPHAS:
        head += [name_of(alpha)] + ([f"paper, {name_of(alpha)}"] if printed is not None else [])
    head += ["HMC, quoted there"] if metric == "nll" else []
    splits = {len(values(runs, d, a, metric)) for d in sets_of(runs) for a in published.ALPHAS}
    note = f"mean ± s.e. over {_range(splits)} standard splits"
    if metric == "nll":
        note += "; a constant Gaussian has −2.80 on naval, as the paper does"
    return Table(title, tuple(head), tuple(lines), note)


def _chosen(runs: Runs) -> Table:
    lines = []
    for dataset in sets_of(runs):
        for alpha in published.ALPHAS:
            columns = [
                mean_cell(values(runs, dataset, alpha, metric), digits)
                for metric, digits in (
                    ("chosen_rate", 3), ("chosen_epochs", 0), ("noise_factor", 2), ("noise", 4),
                    ("coverage_90", 3),
                )
            ]  # fmt: skip
            lines.append((f"{dataset}, {name_of(alpha)}", *columns))
    head = ("arm", "rate", "epochs", "noise factor", "noise, units of y", "90 % coverage")
    return Table(
        "What was chosen inside the training parts", head, tuple(lines), "mean ± s.e. over splits"
    )


def _range(counts: set[int]) -> str:
    return f"{min(counts)} to {max(counts)}" if len(counts) > 1 else f"{max(counts)}"


def comparisons(preset: str, runs: Runs) -> list[Comparison]:
    """Return α = 0.5 beside the paper's column; two of the paper's standard errors are allowed."""
    rows = []
    for dataset in published.TARGETS if preset != "smoke" else ():
        paper = published.NLL[dataset][1]
        mean, error = mean_or_none(values(runs, dataset, 0.5, "nll"))
        tolerance = 2 * max(paper.error or 0.0, 0.005)
        rows.append(
            Comparison(
                f"{dataset}, α = 0.5, NLL", paper.mean, paper.error, mean, error, tolerance,
                "nats", "down",
            )
        )  # fmt: skip
    return rows


def claims(runs: Runs) -> list[Claim]:
    """Return what the paper says about α, judged over splits."""
    claimed = [_lower(runs, d, metric) for d in sets_of(runs) for metric in ("nll", "nll_moments")]
    return claimed + ([_naval(runs)] if "naval" in sets_of(runs) else [])


def _lower(runs: Runs, dataset: str, metric: str) -> Claim:
    part, what = _START + dataset, "NLL" if metric == "nll" else "NLL of the matched Gaussian"
    gap = runs.difference(part, name_of(0.5), name_of(0.0), f"examined:{part}", metric)
    paper = "not given"
    if metric == "nll" and dataset in published.NLL:
        zero, half, _ = published.NLL[dataset]
        paper = f"{half.mean - zero.mean:+.2f} nats".replace("-", "−")
    return Claim(
        f"{dataset}: α = 0.5 has a lower {what} than α = 0",
        paper,
        difference_text(gap, f"{what}, α = 0.5 − α = 0, nats", "splits"),
        judge_sign(gap, sign=-1),
    )


def _naval(runs: Runs) -> Claim:
    nll = runs.measured(_START + "naval", name_of(0.5), "nll")
    gap = paired_difference(nll, published.TRIVIAL_NAVAL)
    return Claim(
        "naval: α = 0.5 learns something: its NLL is below that of a constant Gaussian",
        "−2.80, equal to it",
        difference_text(gap, "NLL − (−2.80), nats", "splits"),
        judge_sign(gap, sign=-1),
    )
