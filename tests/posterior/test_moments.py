"""Weights that know their outputs in closed form: predictions are made of these, not of draws."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from polymode.likelihoods.components import Moments
from polymode.likelihoods.kinds import Categorical, Gaussian
from polymode.posterior import Weights
from polymode.stack.stack import Stack
from polymode.tracing.modules import Tensors

from .made_up import X, posterior


class Linear(Weights):
    """A Gaussian over the weights of a linear layer, independent of each other with one variance:
    outputs have mean W x and variance s² ‖x‖² each."""

    kind = "linear"

    def __init__(self, stack: Stack, variance: float, samples_per_mode: int = 40) -> None:
        self.stack, self.variance, self.samples_per_mode = stack, variance, samples_per_mode

    def draw(self, number: int, seed: int) -> Stack:
        noise = self.stack.normal("draw", seed, number)
        return self.stack.with_tensors(
            {n: t.detach() + self.variance**0.5 * noise[n] for n, t in self.stack.params.items()}
        )

    def __getitem__(self, modes: slice) -> Linear:
        return Linear(self.stack[modes], self.variance, self.samples_per_mode)

    def moments(self, x: Tensor) -> Moments:
        loc = self.stack(x)
        spread = self.variance * x.square().sum(1)[:, None].expand_as(loc)
        return Moments(loc, spread)

    @classmethod
    def restore(cls, stack: Stack, tensors: Tensors, numbers: dict[str, Any]) -> Linear:
        raise NotImplementedError


@pytest.fixture
def weights() -> Linear:
    stack = Stack(lambda: nn.Linear(3, 2, bias=False), 3, dtype=torch.float64)
    return Linear(stack, 0.25)


def test_regression_is_closed(weights) -> None:
    """One density per mode; its variance is noise and spread, both told."""
    weights.stack.add_parameters({"log_noise": torch.tensor([-1.0, 0.0, 1.0])})
    found = posterior(weights, Gaussian(noise="learned")).predict(X, batch_size=4)
    assert found.num_samples == found.num_modes == 3
    with torch.no_grad():
        torch.testing.assert_close(found.loc, weights.stack(X))
    noise = torch.tensor([-1.0, 0.0, 1.0]).double().exp().square()[:, None, None]
    spread = (0.25 * X.square().sum(1))[None, :, None].expand(3, 9, 2)
    torch.testing.assert_close(found.scale.square(), noise + spread, rtol=1e-6, atol=0)
    torch.testing.assert_close(
        found.aleatoric_variance, noise.mean(0).expand(9, 2), rtol=1e-6, atol=0
    )


def test_closed_regression_is_what_samples_tend_to(weights) -> None:
    """One mode, 4,000 draws of the weights: means and variances within 5 standard errors at 9
    inputs with 2 outputs, which chance misses for 2 seeds in 100,000. The seed is fixed."""
    one, number = weights[:1], 4000
    found = posterior(one, Gaussian(noise=0.5)).predict(X)
    repeated = Stack([nn.Linear(3, 2, bias=False) for _ in range(500)], dtype=torch.float64)
    with torch.no_grad():
        repeated.params["weight"].copy_(one.stack.params["weight"].expand(500, 2, 3))
        many = Linear(repeated, 0.25)
        outputs = torch.cat([many.draw(j, seed=2)(X) for j in range(8)])
    variance = found.epistemic_variance
    assert ((outputs.mean(0) - found.mean).abs() < 5 * (variance / number).sqrt()).all()
    off = (outputs - found.mean).square().mean(0) - variance
    assert (off.abs() < 5 * variance * (2 / number) ** 0.5).all()


def test_classes_are_drawn_from_the_moments(weights) -> None:
    """L logits per mode, the same at every batch size; draws of the weights are not needed."""
    weights.draw = None
    post = posterior(weights, Categorical())
    whole = post.predict(X, seed=3)
    assert (whole.num_modes, whole.num_samples) == (3, 120)
    for size in (1, 4):
        parts = post.predict(X, seed=3, batch_size=size)
        torch.testing.assert_close(parts.log_probs, whole.log_probs, rtol=1e-11, atol=1e-13)
    assert not torch.allclose(post.predict(X, seed=4).log_probs, whole.log_probs)
    part = post[1:].predict(X, seed=3).log_probs
    torch.testing.assert_close(part, whole.log_probs[40:], rtol=1e-11, atol=1e-13)
    assert post.predict(X, samples_per_mode=2).num_samples == 6


def test_classes_have_the_moments(weights) -> None:
    """400 draws of the difference of both logits: means and variances within 5 standard errors at
    27 places, which chance misses for 3 seeds in 100,000. The seed is fixed."""
    found = posterior(weights, Categorical()).predict(X, samples_per_mode=400)
    logits = found.log_probs.unflatten(0, (3, 400))
    difference = logits[..., 0] - logits[..., 1]
    with torch.no_grad():
        centre = weights.stack(X)
    variance = 2 * 0.25 * X.square().sum(1)
    off = difference.mean(1) - (centre[..., 0] - centre[..., 1])
    assert (off.abs() < 5 * (variance / 400).sqrt()).all()
    squares = (difference - difference.mean(1, keepdim=True)).square().sum(1) / 399
    assert ((squares - variance).abs() < 5 * variance * (2 / 399) ** 0.5).all()
