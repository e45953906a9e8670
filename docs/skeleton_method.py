"""NAME: what it does, in one line.

    θ ← θ − η (∇ L(θ) + σ ε),   ε ~ N(0, I)          η = `lr`, σ = `noise_scale`

Say here which paper and equation this is, what was chosen where paper and code disagree, and the
limits. The example adds Gaussian noise to the gradient of MAP.

Reference: A. Author, Title, Venue, year.
Shapes: `M` modes, `B` batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from polymode.core.loop import Batch
from polymode.core.rng import generator
from polymode.methods import map
from polymode.methods.map import MAP, Info, State
from polymode.methods.method import METHODS, Method, Problem


@dataclass(frozen=True, kw_only=True)
class NoisyMAP(MAP):
    """Options of `noisy_map`: those of `map`, and

    Args:
        noise_scale: σ, standard deviation of the gradient noise, ≥ 0.
    """

    noise_scale: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(self.noise_scale >= 0, "noise_scale", "≥ 0")


def init(config: NoisyMAP, problem: Problem, stack: map.Stack) -> State:
    """Return the state before the first step."""
    return map.init(config, problem, stack)


def step(config: NoisyMAP, problem: Problem, state: State, batch: Batch) -> tuple[State, Info]:
    """Take one noisy step on the log-posterior of every member."""
    stack = state.stack
    losses = stack.gradients(
        problem.likelihood.nll, batch.x, batch.y, own=batch.own, step=state.step
    )
    map.add_prior_gradient(stack, config.prior_precision / problem.num_examples)
    for number, leaf in enumerate(stack.leaves()):
        assert leaf.grad is not None
        for member, seed in enumerate(stack.seeds):  # one stream a member
            stream = generator(seed, "gradient noise", state.step, number)
            noise = torch.randn(leaf[member].shape, generator=stream, dtype=leaf.dtype)
            leaf.grad[member] += config.noise_scale * noise
    state.optimization.update(state.step)
    return State(stack, state.optimization, state.step + 1), Info(losses)


METHODS.register(
    "noisy_map",
    summary="MAP with Gaussian noise on the gradient",
    kind="one mode",
    equation="θ ← θ − η (∇L(θ) + σ ε),  ε ~ N(0, I)",
    cost="1 × training, 1 × prediction",
    limits="What it cannot do, and where it is known to fail.",
    paper="Author year",
    bibtex="@article{author2026title, title={Title}, author={Author, A.}, year={2026}}",
)(Method(NoisyMAP, init, step))
