"""The victim of an attack: a posterior as a differentiable function of raw inputs.

Every gradient draws its own samples, by its step in the attack: a network judged on the samples it
was attacked on looks weaker than it is, and one attacked with the same few samples at every step
looks stronger than its expectation (A. Athalye, N. Carlini, D. Wagner, Obfuscated gradients give a
false sense of security, ICML 2018: expectation over transformation). The mean over samples is taken
inside the logarithm, as in the predictive distribution.

`S` samples, `B` batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polymode.adversary.movable import Movable
from polymode.core.rng import fold
from polymode.likelihoods.scaling import Scaling
from polymode.posterior import Posterior
from polymode.prediction import CategoricalPrediction


class Victim(NamedTuple):
    """A posterior under attack.

    Attributes:
        post: of classes. scaling: the networks get scaling(x), or x itself for None.
        samples: L of each mode for a gradient. judge_samples: L for judging inputs.
        seed: of all samples.
        movable: what of the inputs moves, of the rows that are attacked; None where x is all of it.
    """

    post: Posterior
    scaling: Scaling | None
    samples: int
    judge_samples: int
    seed: int
    movable: Movable | None = None

    def rows(self, which: slice | Tensor) -> Victim:
        """Return the victim at some of the inputs."""
        movable = None if self.movable is None else self.movable.rows(which)
        return self._replace(movable=movable)

    @property
    def draws(self) -> bool:
        """Whether other seeds give other samples."""
        return self.post.weights.most is None

    def predict(self, x: Tensor, samples: int, *path: int | str) -> CategoricalPrediction:
        """Return the prediction at raw inputs (B, ...) with the samples of this step."""
        inputs: Any = x if self.scaling is None else self.scaling(x)
        if self.movable is not None:
            inputs = self.movable.inputs_at(inputs)
        prediction = self.post.predict_batch(
            inputs, samples_per_mode=samples, seed=fold(self.seed, *path)
        )
        assert isinstance(prediction, CategoricalPrediction)
        return prediction

    @torch.no_grad()
    def judge(self, x: Tensor, which: str = "judge") -> CategoricalPrediction:
        """Return the prediction with the same samples for all inputs and steps.

        `which` is "judge" for choosing among the inputs of an attack, "evaluate" for reported
        predictions, whose samples no choice has used.
        """
        return self.predict(x, self.judge_samples, which)

    def gradient(
        self, x: Tensor, rise: Callable[[CategoricalPrediction], Tensor], *path: int | str
    ) -> tuple[Tensor, CategoricalPrediction]:
        """Return the gradient of `rise` with respect to x, (B, ...), and the prediction at x.

        Parameters are not differentiated.
        """
        with torch.enable_grad():
            source = x.detach().requires_grad_()
            prediction = self.predict(source, self.samples, "gradient", *path)
            (gradient,) = torch.autograd.grad(rise(prediction).sum(), source)
        return gradient, prediction
