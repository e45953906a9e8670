"""The state of an attack: the best input found for each example, and the curves on the way.

An input that reaches the aim is better than one that does not; among equals the larger loss is
better, or, for an adaptive attack that has reached its aim, the lower score. Worse iterates are
never taken, so more steps or restarts, with the same seed, never weaken an attack. A posterior that
draws is judged with the same samples at every step, which differ from those of the gradients and
from those of the reported predictions.

`B` batch, `T` steps.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from polymode.adversary.ball import Ball
from polymode.adversary.objective import Aim
from polymode.adversary.victim import Victim
from polymode.core.rng import generator
from polymode.prediction import CategoricalPrediction

CURVES = ("classes", "rise", "predictive_entropy", "mutual_information")


class Judged(NamedTuple):
    """The judgement of a batch of inputs; all tensors are (B,).

    Attributes:
        classes: predicted. reached: whether the aim is reached. rise: of `Aim`.
        worth: compared among inputs with equal `reached`.
        predictive_entropy, mutual_information: in nats.
    """

    classes: Tensor
    reached: Tensor
    rise: Tensor
    worth: Tensor
    predictive_entropy: Tensor
    mutual_information: Tensor


class Search:
    """The state of an attack on a batch.

    Args:
        victim, aim, ball: the network attacked, the aim of the attack, the inputs allowed.
        keep: "best" input of each example, or the "last" one.
        first: number of the batch's first example among all attacked ones.

    Attributes:
        best: (B, ...) inputs to return. reached: (B,) whether they reach the aim.
        curves: by name T + 1 tensors (B,), from looks with `record`.
        gradients, queries: passes of the batch with all samples so far.
    """

    def __init__(
        self, victim: Victim, aim: Aim, ball: Ball, keep: str = "best", first: int = 0
    ) -> None:
        self.victim, self.aim, self.ball, self.keep, self.first = victim, aim, ball, keep, first
        self.best = ball.centre
        self.reached = torch.zeros(len(ball.centre), dtype=torch.bool)
        self.worth = torch.full((len(ball.centre),), -torch.inf, dtype=torch.float64)
        self.curves: dict[str, list[Tensor]] = {name: [] for name in CURVES}
        self.gradients = self.queries = 0

    def gradient(self, x: Tensor, *path: int | str, record: bool = True) -> Tensor:
        """Look at x and return the gradient, from the samples of this step.

        Entries that are not finite become 0, so that they do not spread over the input.
        """
        gradient, prediction = self.victim.gradient(x, self.aim.rise, *path)
        gradient = gradient.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        self.gradients += 1
        if self.victim.draws:
            self.look(x, record=record)
        else:
            with torch.no_grad():
                self._note(x, self._judge(prediction), record)
        return gradient

    def streams(self, *path: int | str) -> list[torch.Generator]:
        """Return a random stream per example, independent of the batch size."""
        rows = range(self.first, self.first + len(self.ball.centre))
        return [generator(self.victim.seed, *path, row) for row in rows]

    @torch.no_grad()
    def look(self, x: Tensor, *, record: bool = True) -> Judged:
        """Judge the inputs x, keep the better ones, and return the judgement."""
        self.queries += 1
        judged = self._judge(self.victim.judge(x))
        self._note(x, judged, record)
        return judged

    def _judge(self, prediction: CategoricalPrediction) -> Judged:
        classes, rise = prediction.classes, self.aim.rise(prediction).detach().double()
        reached, worth = self.aim.reached(classes), rise
        if self.aim.score is not None:
            score: Tensor = getattr(prediction, self.aim.score)
            worth = torch.where(reached, -score.detach().double(), rise)
        spread = [getattr(prediction, name).detach() for name in CURVES[2:]]
        return Judged(classes, reached, rise, worth, *spread)

    def _note(self, x: Tensor, judged: Judged, record: bool) -> None:
        ahead = judged.reached & ~self.reached
        level = (judged.reached == self.reached) & (judged.worth > self.worth)
        better = ahead | level if self.keep == "best" else torch.ones_like(ahead)
        rows = better.view(-1, *[1] * (x.dim() - 1))
        self.best = torch.where(rows, x.detach(), self.best)
        self.reached = torch.where(better, judged.reached, self.reached)
        self.worth = torch.where(better, judged.worth, self.worth)
        if record:
            for name, values in self.curves.items():
                values.append(getattr(judged, name))
