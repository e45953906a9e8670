"""Learned canonicalisation: a small network chooses how to turn an input for the predictor.

    g*(x) = argmax_g s(g x),        F(x) = ρ(g*)⁻¹ f(g* x)

with a learned score s. The orbit of h x is the orbit of x in another order, so f sees the same
input for both, and F is exactly equivariant for exact actions whatever s and f are. With
interpolation the two orbits differ, and the choice may jump.

The argmax has no gradient; in training the canonical input is Σ_g w_g g x with straight-through
weights, w = one-hot + softmax − softmax (the last without gradient), after S.-O. Kaba, A. K.
Mondal, Y. Zhang, Y. Bengio, S. Ravanbakhsh, Equivariance with learned canonicalization functions,
ICML 2023. They score with an equivariant network; here a plain one scores each g x, as in the
"optimised" variant of their group's later code. No prior loss: the score learns from the
predictor's loss alone, and may settle on any pose.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from polymode.equivariance.groups import Group, group


class Canonical(nn.Module):
    """A predictor behind a learned choice of the group element.

    Args:
        predictor: module from inputs to outputs. score: module from inputs to (B, 1).
        over: a closed `Group`, or its name.
        temperature: of the softmax through which gradients pass, > 0.
    """

    def __init__(
        self,
        predictor: nn.Module,
        score: nn.Module,
        over: Group | str,
        *,
        temperature: float = 1.0,
    ) -> None:
        super().__init__()
        if not temperature > 0:
            raise ValueError(f"`temperature` of Canonical must be > 0, got {temperature}")
        self.predictor, self.score = predictor, score
        self.group, self.temperature = group(over), temperature
        self.inverses = [self.group.inverse(index) for index in range(len(self.group))]

    def scores(self, orbit: Tensor) -> Tensor:
        """Return the score of every element, (G, B)."""
        return self.score(orbit.flatten(0, 1)).reshape(orbit.shape[:2])

    def chosen(self, x: Tensor) -> Tensor:
        """Return the element that each input (B, ...) is moved by, (B,)."""
        return self.scores(self.group.orbit(x)).argmax(0)

    def forward(self, x: Tensor) -> Tensor:
        orbit = self.group.orbit(x)
        scores = self.scores(orbit)
        elements = torch.arange(len(orbit), device=x.device)[:, None]
        weights = (scores.argmax(0) == elements).to(scores.dtype)
        if self.training:
            soft = (scores / self.temperature).softmax(0)
            weights = weights + soft - soft.detach()
        moved = torch.einsum("gb,gb...->b...", weights, orbit)
        outputs = self.predictor(moved)
        if self.group.invariant:
            return outputs
        back = torch.stack([self.group.act_on_outputs(outputs, i) for i in self.inverses])
        chosen = weights.detach().round()  # the straight-through terms cancel to rounding
        return torch.einsum("gb,gb...->b...", chosen, back)


def small_score(input_shape: Sequence[int], *, channels: int = 16) -> nn.Sequential:
    """Return a score network for images (C, H, W) of 8 pixels or more: one convolution on the image
    reduced to 7 to 13 pixels, which are enough to tell how it is turned, then one number."""
    if len(input_shape) != 3 or min(input_shape[1:]) < 8:
        raise ValueError(
            f"small_score is for images (C, H, W) with sides of at least 8, got {input_shape}"
        )
    pool = max(1, min(input_shape[1:]) // 7)
    height, width = (side // pool - 2 for side in input_shape[1:])
    return nn.Sequential(
        *[nn.AvgPool2d(pool)] * (pool > 1),
        nn.Conv2d(input_shape[0], channels, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(channels * height * width, 1),
    )


def canonicalised(
    net: Callable[..., nn.Module],
    over: Group | str,
    *,
    score: Callable[..., nn.Module] = small_score,
    temperature: float = 1.0,
) -> Callable[..., nn.Module]:
    """Return a factory of canonicalised networks from a factory such as `pm.nets.lenet`.

    `pm.fit("deep_ensemble", net=canonicalised(pm.nets.lenet, "C4"), task=task)` is an ensemble of
    canonicalised networks, each with a score of its own.
    """

    def make(input_shape: Sequence[int], num_outputs: int, **options: Any) -> nn.Module:
        predictor = net(input_shape, num_outputs, **options)
        return Canonical(predictor, score(input_shape), over, temperature=temperature)

    return make
