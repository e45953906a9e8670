r"""Have the chains of a sampler mixed: R-hat and effective sample size of predictions and weights.

A quantity is what one sample predicts at one reference input: the probability of a class, or
location and log scale of an output. It is the same whatever hidden unit is which, so chains that
found the same functions in different corners of the weights have mixed. Weights have not then; they
are looked at, too, since a large R-hat of weights beside a small one of predictions says just that.

Formulas and references are in `chains/`. Traps: samples that are kept are thinned, so these are
numbers of what predictions are made of, not of all steps. ESS of fewer than some hundred draws is
rough, and R-hat of few draws is above 1 by chance: of 20 draws per chain by about 0.1. Draws of
`swag`, `vi` or `laplace` are independent by construction: only chains, kept in the order of their
steps, can be examined. Of chains of fewer than four draws only the nested R-hat is given. It
compares groups, whose means differ by chance, too: independent chains of one draw, m in a group,
have about √(1 + 1/m).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from polymode.chains import autocorrelation, ess_bulk, ess_tail, nested_rhat, rhat
from polymode.chains.rhat import FEWEST, check
from polymode.core.options import Config, option
from polymode.core.rng import generator
from polymode.examinations.examination import EXAMINATIONS
from polymode.examinations.findings import Findings, NotApplicable, measure
from polymode.metrics.results import Row
from polymode.posterior import Posterior, Samples
from polymode.prediction import CategoricalPrediction
from polymode.tasks import Task
from polymode.training.data import first_inputs

LOOKED_AT = 1000  # parameters, chosen at random, where a network has more
LAGS = 100
STUCK = "infinite: chains stand still at different values"


@dataclass(frozen=True, kw_only=True)
class Chains(Config):
    """Options of `chains`."""

    called = "chains"
    inputs: int = option(
        100,
        ge=1,
        doc="reference inputs, the first of the test set, or of the training set",
    )
    superchains: int | None = option(
        None, ge=2, doc="groups of chains for the nested R-hat, a divisor of `num_modes`",
        none="is 4 where there are 8 chains or more that 4 divides, and none otherwise",
    )  # fmt: skip


_USUAL = Chains()


@EXAMINATIONS.register(
    "chains",
    summary="R-hat and effective sample size of a sampler's chains, by predictions and weights",
    measures={
        "r_hat": "largest rank-normalised split R-hat of predictions at reference inputs",
        "r_hat_median": "its median over these predictions",
        "r_hat_nested": "largest nested R-hat of them, between groups of chains",
        "ess_bulk": "smallest effective sample size in the bulk, of predictions",
        "ess_bulk_median": "its median over these predictions",
        "ess_tail": "smallest effective sample size at the 5 % and 95 % quantiles",
        "weight_r_hat": "largest R-hat of single weights, which symmetries make large",
        "weight_r_hat_median": "median R-hat of single weights",
        "weight_ess_median": "median effective sample size of single weights",
        "draws": "kept draws of each chain",
        "acceptance": "mean acceptance after burn-in",
        "divergences": "trajectories or steps after burn-in that diverged, in all chains",
        "step_size": "mean step size after tuning",
        "energy_variance": "mean squared energy change of a step per dimension",
    },
    options=Chains,
)
def chains(post: Posterior, task: Task, options: Chains = _USUAL) -> Findings:
    """Return R-hat and ESS of the chains of a posterior; see the module."""
    weights = post.weights.inner
    if not isinstance(weights, Samples) or weights.kept is None:
        raise NotApplicable(
            f"this posterior ({post.method}) has no chains: {weights.samples_per_mode} sample(s)"
            " per mode that were not kept along a way; examine hmc, mile, sghmc or the like"
        )
    draws = function_draws(post, _inputs(task, options.inputs))
    nested = _nested(draws, options.superchains)
    number = len(weights.stack)
    facts = [measure("draws", float(len(draws)), unit="draws", n=number), *_facts(weights)]
    if nested and len(draws) < FEWEST:
        return Findings((*nested, *facts))
    try:
        check(draws)
    except ValueError as error:
        raise NotApplicable(str(error)) from None
    values, size = rhat(draws), ess_bulk(draws)
    rows = [
        _largest("r_hat", values),
        measure("r_hat_median", _median(values), direction="down", n=len(values)),
        *nested,
        measure("ess_bulk", _least(size), unit="draws", direction="up", n=len(size)),
        measure("ess_bulk_median", _median(size), unit="draws", direction="up", n=len(size)),
        measure(
            "ess_tail", _least(ess_tail(draws)), unit="draws", direction="up", n=len(size)
        ),
        *_weights(weights),
        *facts,
    ]  # fmt: skip
    order = values.nan_to_num(nan=-1.0).argsort(descending=True)
    places = torch.stack([order[0], order[len(order) // 2]])
    lags = min(LAGS, len(draws))
    return Findings(
        tuple(rows),
        {
            "traces": draws[:, :, places].permute(2, 0, 1).numpy(),  # worst and median; L, M
            "autocorrelation": autocorrelation(draws[:, :, places])[:lags].permute(2, 0, 1).numpy(),
            "r_hat": values[places].numpy(),
            "r_hat of all": np.sort(values.numpy()),
        },
    )


def _inputs(task: Task, number: int) -> Tensor:
    data = task.train if task.test is None else task.test
    return first_inputs(data, number)  # type: ignore[no-any-return]


def function_draws(post: Posterior, x: Tensor) -> Tensor:
    """Return what each sample predicts at x as quantities (L, M, Q), float64.

    Probabilities of all classes but the last; of densities, locations and log scales that vary.
    """
    prediction = post.predict(x)
    parts = prediction.by_mode
    if isinstance(prediction, CategoricalPrediction):
        values = parts.log_probs.double().exp()[..., :-1]  # type: ignore[union-attr]
    else:
        scale = parts.scale.double().log()  # type: ignore[union-attr]
        values = parts.loc.double()  # type: ignore[union-attr]
        if scale.amax() > scale.amin():
            values = torch.cat([values, scale], -1)
    return values.flatten(2).transpose(0, 1)


def _weights(weights: Samples) -> list[Row]:
    assert weights.kept is not None
    names = [f"network/{name}" for name in weights.stack.params]
    flat = torch.cat([weights.kept[name].flatten(2) for name in names], 2)
    if flat.shape[2] > LOOKED_AT:
        order = torch.randperm(flat.shape[2], generator=generator(0, "chains"))
        flat = flat[:, :, order[:LOOKED_AT]]
    values, size = rhat(flat), ess_bulk(flat)
    return [
        _largest("weight_r_hat", values),
        measure("weight_r_hat_median", _median(values), direction="down", n=len(values)),
        measure("weight_ess_median", _median(size), unit="draws", direction="up", n=len(size)),
    ]


def _nested(draws: Tensor, superchains: int | None) -> list[Row]:
    number = draws.shape[1]
    if superchains is None:
        if number < 8 or number % 4:
            return []
        superchains = 4
    return [_largest("r_hat_nested", nested_rhat(draws, superchains))]


def _facts(weights: Samples) -> list[Row]:
    """Return what the sampler itself tells of its chains."""
    rows = []
    for name, values in weights.facts.items():
        if name == "divergences":
            rows.append(
                measure(name, float(values.sum()), direction="down", n=len(values), unit="steps")
            )
        elif name in ("acceptance", "step_size", "energy_variance"):
            rows.append(measure(name, float(values.double().mean()), n=len(values)))
    return rows


def r_hat_of(row: Row) -> float | None:
    """Return an R-hat that was measured; infinite ones, which no row can hold, too."""
    return math.inf if row.note == STUCK else row.value


def _largest(name: str, values: Tensor) -> Row:
    finite = values[~values.isnan()]
    value = float(finite.max()) if len(finite) else math.nan
    note = STUCK if value == math.inf else ""
    return measure(name, value, direction="down", n=len(values), note=note)


def _least(values: Tensor) -> float:
    return float(values.nan_to_num(nan=torch.inf).min())


def _median(values: Tensor) -> float:
    return float(values.nanmedian())
