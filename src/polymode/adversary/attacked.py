"""The outcome of an attack: inputs, predictions before and after, curves, flags and cost.

`N` examples, `T` steps, `C` classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from polymode.adversary.flags import Flag
from polymode.core.html import html_block, html_table
from polymode.metrics.text_table import align
from polymode.prediction import CategoricalPrediction


class Cost(NamedTuple):
    """Cost of an attack.

    Attributes:
        gradients, queries: gradients and predictions per example, without the checks.
        samples: networks in a gradient. eval_samples: networks in a prediction.
        seconds: total wall time, with the checks.
    """

    gradients: int
    queries: int
    samples: int
    eval_samples: int
    seconds: float


@dataclass(frozen=True, repr=False)
class Attacked:
    """The outcome of an attack on N inputs.

    Predictions are made with samples used neither for gradients nor to choose the best step.

    Attributes:
        kind, eps, norm: of the attack. options: all its other options.
        inputs: (N, ...) before. adversarial: (N, ...) after, both raw, and both dictionaries or
            tuples where the networks take several inputs. Of an attack at an embedding,
            `adversarial` is the shift of its output.
        labels: (N,). targets: (N,) wanted classes, or None.
        clean, attacked: predictions at the two.
        curves: (T + 1, N) by name along the first climb: "classes", "rise" (what the attack
            raises), "predictive_entropy", "mutual_information" [nats].
        trajectories: (T + 1, n, ...) inputs on the way, of the first n examples; of several inputs
            their real numbers in a row, of an embedding its shifts.
        flags: see `flags.py`. cost: see `Cost`.
        space: where the attack moves, and in whose units `eps` is: "inputs", or "embedding 'NAME'".
    """

    kind: str
    eps: float
    norm: str
    options: Mapping[str, Any]
    inputs: Any
    adversarial: Any
    labels: Tensor
    targets: Tensor | None
    clean: CategoricalPrediction
    attacked: CategoricalPrediction
    curves: Mapping[str, np.ndarray]
    trajectories: Tensor
    flags: tuple[Flag, ...] = ()
    cost: Cost = field(default=Cost(0, 0, 1, 1, 0.0))
    space: str = "inputs"

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def success(self) -> Tensor:
        """(N,) bool: the target is predicted, or, without one, a class other than the label."""
        classes = self.attacked.classes
        return classes != self.labels if self.targets is None else classes == self.targets

    @property
    def correct(self) -> Tensor:
        """(N,) bool: the label is predicted in spite of the attack."""
        return self.attacked.classes == self.labels

    @property
    def clean_correct(self) -> Tensor:
        """(N,) bool: the label was predicted before."""
        return self.clean.classes == self.labels

    @property
    def accuracy(self) -> float:
        """Share of labels that are still predicted."""
        return self.correct.double().mean().item()

    @property
    def clean_accuracy(self) -> float:
        return self.clean_correct.double().mean().item()

    @property
    def success_rate(self) -> float:
        """Share of examples on which the attack succeeds, including those wrong before it."""
        return self.success.double().mean().item()

    def __repr__(self) -> str:
        aim = "" if self.targets is None else ", targeted"
        adaptive = self.options.get("adaptive")
        aim += f", against {adaptive}" if adaptive else ""
        raised = f", {len(self.flags)} flag{'s' * (len(self.flags) > 1)}" if self.flags else ""
        where = "" if self.space == "inputs" else f" of the {self.space}"
        return (
            f"Attacked({self.kind}, {self.norm} {self.eps:g}{where}{aim}: accuracy"
            f" {self.clean_accuracy:.3f} to {self.accuracy:.3f}, success {self.success_rate:.3f},"
            f" {len(self):,} examples{raised})"
        )

    def __str__(self) -> str:
        head, *lines = self._lines()
        blocks = [f"{self!r}", align(head, lines), *(f"! {flag}" for flag in self.flags)]
        cost = self.cost
        blocks.append(
            f"cost: {cost.gradients} gradients of {cost.samples} samples, {cost.queries}"
            f" predictions of {cost.eval_samples} samples per example, {cost.seconds:.1f} s"
        )
        return "\n".join(blocks)

    def _repr_html_(self) -> str:
        """Return the table, for notebooks."""
        head, *lines = self._lines()
        note = "; ".join(map(str, self.flags))
        return html_block(repr(self), html_table(head, lines), note=note)

    def _lines(self) -> list[tuple[str, ...]]:
        lines: list[tuple[str, ...]] = [("", "clean", "attacked")]
        pairs = (self.clean, self.attacked)
        accuracies = (self.clean_accuracy, self.accuracy)
        lines.append(("accuracy", *(f"{value:.3f}" for value in accuracies)))
        if self.targets is not None:
            hits = [prediction.classes == self.targets for prediction in pairs]
            rates = (hit.double().mean().item() for hit in hits)
            lines.append(("target predicted", *(f"{value:.3f}" for value in rates)))
        confidences = (prediction.confidence.mean() for prediction in pairs)
        lines.append(("confidence", *(f"{value:.3f}" for value in confidences)))
        for name in ("predictive_entropy", "mutual_information"):
            means = (f"{getattr(prediction, name).mean():.3f}" for prediction in pairs)
            lines.append((f"{name.replace('_', ' ')} [nats]", *means))
        return lines
