"""What an audit looks at: predictions on data that the network was not trained on."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polymode.core.rows import Inputs
from polymode.posterior import Posterior
from polymode.prediction import Prediction
from polymode.tasks.task import Task

BATCH = 256


@dataclass
class Subject:
    """A network, or several, and the data that an audit has.

    Attributes:
        post: the posterior of the networks as they are.
        task: its `test`, `val` and `train` sets, as far as there are any, and `ood` sets.
        groups: columns of the test set, by name, one value for each example.
        baseline: the posterior of an older version, or None.
        budget: seconds that checks which fit or attack may take together.
        seed: of what is random in checks.
        noise_fitted_on: rows from which the noise of a regression was fitted here, or None.
        output: name or place of the logits in what the network returns.
        best: the best posterior that was tried, if any is better than the networks as they are.
        started: when the audit began.
    """

    post: Posterior
    task: Task
    groups: Mapping[str, np.ndarray] = field(default_factory=dict)
    baseline: Posterior | None = None
    budget: float = 600.0
    seed: int = 0
    has_train: bool = False
    has_labels: bool = True
    noise_fitted_on: int | None = None
    output: str | int | None = None
    best: Posterior | None = None
    started: float = field(default_factory=time.monotonic)

    @property
    def classification(self) -> bool:
        return self.task.likelihood.classification

    @property
    def seconds_left(self) -> float:
        return self.budget - (time.monotonic() - self.started)

    @cached_property
    def test(self) -> tuple[Inputs, Tensor]:
        """Inputs and targets of the test set."""
        return _rows(self.task.test)

    @cached_property
    def val(self) -> tuple[Inputs, Tensor] | None:
        """Inputs and targets of the validation set."""
        return None if self.task.val is None else _rows(self.task.val)

    @cached_property
    def train(self) -> tuple[Inputs, Tensor] | None:
        """Inputs and targets that the network was trained on, where the user gave them."""
        return _rows(self.task.train) if self.has_train else None

    @cached_property
    def prediction(self) -> Prediction:
        """Of the test set."""
        return self.post.predict(self.test[0], batch_size=BATCH)

    @cached_property
    def val_prediction(self) -> Prediction | None:
        return None if self.val is None else self.post.predict(self.val[0], batch_size=BATCH)

    @cached_property
    def baseline_prediction(self) -> Prediction | None:
        if self.baseline is None:
            return None
        return self.baseline.predict(self.test[0], batch_size=BATCH)

    @property
    def targets(self) -> Tensor:
        return self.test[1]

    @cached_property
    def confidence(self) -> Tensor:
        """Probability of the predicted class, (N,)."""
        return self.prediction.mean.amax(-1).double()

    @cached_property
    def predicted(self) -> Tensor:
        """The predicted class, (N,)."""
        return self.prediction.mean.argmax(-1)

    @cached_property
    def correct(self) -> Tensor:
        """Whether the predicted class is the label, (N,), as 0 or 1."""
        return (self.predicted == self.targets).double()

    @property
    def class_names(self) -> list[str]:
        names = self.task.class_names
        return list(names) if names else [str(k) for k in range(self.prediction.num_outputs)]

    def generator(self, name: str) -> np.random.Generator:
        """Return random numbers for one check."""
        return np.random.default_rng([self.seed, *name.encode()])


def _rows(data: Any) -> tuple[Inputs, Tensor]:
    """Return all inputs and targets of a data set."""
    parts = list(data.batches(4096))
    xs, ys = [x for x, _ in parts], [y for _, y in parts]
    if len(parts) == 1:
        return xs[0], ys[0]
    return torch.cat(xs), torch.cat(ys)  # type: ignore[arg-type]
