"""polymode: `pm.fit` and `Posterior.predict` as a user calls them.

Without a prior and without a fold left out, so that every contender does the same work.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

import polymode as pm

from ..cases import Case, data
from . import Job


def fit(case: Case, likelihood: str = "categorical", **options: Any) -> pm.Posterior:
    """The whole call, from networks and arrays to the posterior."""
    settings = dict(
        net=case.make_net,
        task=pm.Task(train=data(case), likelihood=likelihood),
        num_modes=case.num_modes,
        epochs=case.epochs,
        batch_size=case.batch_size,
        lr=case.lr,
        optimizer="adam",
        prior_precision=0.0,
        holdout=0,
        seed=0,
        progress="silent",
    )
    return pm.fit("deep_ensemble", **settings | options)


def _training(case: Case, **options: Any) -> Job:
    def run() -> Callable[[Tensor], Tensor]:
        return fit(case, **options).stack

    return Job(run, case.num_steps)


def train(case: Case) -> Job:
    """`execution="auto"`, the default."""
    return _training(case)


def train_batched(case: Case) -> Job:
    """All members in one computation, whatever is fastest."""
    return _training(case, execution="batched")


def train_toy(case: Case) -> Job:
    """The toy's networks have one logit and are trained by plain SGD."""
    return _training(case, likelihood="bernoulli", optimizer="sgd")


def predict(case: Case) -> Job:
    """`predict`, then the three quantities."""
    x, _ = data(case)
    posterior = fit(case, net=case.members(), epochs=0)

    def run() -> tuple[Tensor, Tensor, Tensor]:
        prediction = posterior.predict(x)
        return prediction.mean, prediction.predictive_entropy, prediction.mutual_information

    return Job(run, case.num_steps)
