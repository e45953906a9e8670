"""What an attack has seen so far: the best input for each example, and the curves on the way.

*Best* is: what was wanted is reached, before anything else; then the largest loss, or, for an
adaptive attack that has reached it, the lowest score. An iterate that is worse than an earlier one
is not taken, so more steps or restarts, with the same seed, never give less. A posterior that draws
is judged with the same samples at every step, which are not those of the gradients; what is
reported in the end has others again.

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


class Seen(NamedTuple):
    """One look at inputs, each (B,).

    Attributes:
        classes: predicted. reached: whether they are what was wanted. rise: of `Aim`.
        worth: what is compared among inputs that are alike in `reached`.
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
        victim, aim, ball: what is attacked, what is wanted, what is allowed.
        keep: "best" input of each example, or the "last" one.
        first: number of the first example among all that are attacked.

    Attributes:
        best: (B, ...) inputs to hand back. reached: (B,) whether they do what was wanted.
        curves: by name T + 1 tensors (B,), of looks with `record`.
        gradients, queries: passes so far, of the whole batch with all samples.
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
        """Look at x and return the gradient there, from samples of this place.

        Entries that are not finite become 0: they would otherwise spread over the input.
        """
        gradient, prediction = self.victim.gradient(x, self.aim.rise, *path)
        gradient = gradient.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        self.gradients += 1
        if self.victim.draws:
            self.look(x, record=record)
        else:
            with torch.no_grad():
                self._note(x, self._seen(prediction), record)
        return gradient

    def streams(self, *path: int | str) -> list[torch.Generator]:
        """Return a random stream for each example, whatever the batch it is in."""
        rows = range(self.first, self.first + len(self.ball.centre))
        return [generator(self.victim.seed, *path, row) for row in rows]

    @torch.no_grad()
    def look(self, x: Tensor, *, record: bool = True) -> Seen:
        """Look at x, keep what is best, and return what was seen."""
        self.queries += 1
        seen = self._seen(self.victim.judge(x))
        self._note(x, seen, record)
        return seen

    def _seen(self, prediction: CategoricalPrediction) -> Seen:
        classes, rise = prediction.classes, self.aim.rise(prediction).detach().double()
        reached, worth = self.aim.reached(classes), rise
        if self.aim.score is not None:
            score: Tensor = getattr(prediction, self.aim.score)
            worth = torch.where(reached, -score.detach().double(), rise)
        spread = [getattr(prediction, name).detach() for name in CURVES[2:]]
        return Seen(classes, reached, rise, worth, *spread)

    def _note(self, x: Tensor, seen: Seen, record: bool) -> None:
        ahead = seen.reached & ~self.reached
        level = (seen.reached == self.reached) & (seen.worth > self.worth)
        better = ahead | level if self.keep == "best" else torch.ones_like(ahead)
        rows = better.view(-1, *[1] * (x.dim() - 1))
        self.best = torch.where(rows, x.detach(), self.best)
        self.reached = torch.where(better, seen.reached, self.reached)
        self.worth = torch.where(better, seen.worth, self.worth)
        if record:
            for name, values in self.curves.items():
                values.append(getattr(seen, name))


def climb(
    search: Search, start: Tensor, *, steps: int, step_size: float, restart: int = 0
) -> list[Tensor]:
    r"""Follow the gradient from `start`, staying in the ball; return the T + 1 inputs on the way.

    .. math:: x_{t+1} = \Pi_B(x_t + \alpha\, v_t), \quad v_t = \mathrm{sign}\, g_t
              \text{ (L∞) or } g_t / \|g_t\|_2 \text{ (L2)}

    Args:
        steps: T. step_size: α. restart: number of this climb, for the samples of its gradients.
    """
    x, path, record = start, [start], restart == 0
    for step in range(steps):
        gradient = search.gradient(x, restart, step, record=record)
        x = search.ball.project(x + step_size * search.ball.steepest(gradient))
        path.append(x)
    search.look(x, record=record)
    return path
