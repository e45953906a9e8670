r"""Training a deep image prior: the options, one step, and which iterate is kept.

The mathematics is in `dip`. Shapes: `N` images, `E` networks for each, `M` = N E members, `m`
observations, `H`, `W` height and width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polymode.core.checks import check_call, is_number
from polymode.stack.stack import Stack
from polymode.tomography.operator import LinearOperator
from polymode.tomography.scan import Scan
from polymode.tomography.tv import total_variation
from polymode.training.loop import Batch
from polymode.training.optimiser import Optimization, Training

_INPUTS = ("auto", "fbp", "noise")
_STOPS = ("steps", "discrepancy")


@dataclass(frozen=True, kw_only=True)
class DeepImagePrior:
    """Options of the deep image prior.

    Args:
        steps: of Adam, at most, >= 1. The paper's, for 28 x 28 images, are 7,400 to 50,000.
        tv_weight: γ >= 0. The paper's are 1e-5 to 3e-4 for 28 x 28 images in [0, 1].
        lr: learning rate, > 0; the paper's is 1e-4.
        clip_norm: largest norm of a member's gradient, > 0, or None.
        stop: "steps", or "discrepancy": when the residual is as large as the noise.
        discrepancy: factor of m σ² that |A f - y|² must not exceed, > 0.
        input: "fbp", "noise" (0.1 times standard normal), or "auto": fbp for projectors, noise for
            other operators.
        networks_per_image: E >= 1, each from its own initialisation.
        look_every: steps from one look at residuals and, where the truth is known, errors to the
            next; a look costs a third of a step.
    """

    steps: int = 5000
    tv_weight: float = 1e-4
    lr: float = 1e-3
    clip_norm: float | None = 1.0
    stop: str = "steps"
    discrepancy: float = 1.0
    input: str = "auto"
    networks_per_image: int = 1
    look_every: int = 25

    def __post_init__(self) -> None:
        check_call(DeepImagePrior, vars(self))
        for name in ("steps", "networks_per_image", "look_every"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(
                    f"`{name}` of DeepImagePrior must be an integer of at least 1, got {value!r}"
                )
        if not (is_number(self.tv_weight) and self.tv_weight >= 0):
            raise ValueError(
                f"`tv_weight` of DeepImagePrior must be finite and >= 0, got {self.tv_weight!r}"
            )
        if not (is_number(self.discrepancy) and self.discrepancy > 0):
            raise ValueError(
                f"`discrepancy` of DeepImagePrior must be > 0, got {self.discrepancy!r}"
            )
        for name, choices in (("stop", _STOPS), ("input", _INPUTS)):
            if getattr(self, name) not in choices:
                raise ValueError(
                    f"`{name}` of DeepImagePrior must be one of {', '.join(choices)}, got"
                    f" {getattr(self, name)!r}"
                )
        self.training()  # refuses `lr` and `clip_norm`

    def training(self) -> Training:
        """Return the same for the training loop: a pass over the data is one step."""
        return Training(
            epochs=self.steps, lr=self.lr, clip_norm=self.clip_norm, data_order="own", batch_size=1
        )


class State(NamedTuple):
    """What the next step needs.

    Attributes:
        best: the tensors of the iterate that is kept of each member. best_loss: its loss, (M,).
        best_step: the step before which it was found, (M,). done: whether a member has met its
            discrepancy, (M,).
        looks: step, residuals |A f - y|² / m (M numbers) and mean squared errors (M numbers, or
            None) of every look.
    """

    stack: Stack
    optimization: Optimization
    step: int
    best: dict[str, Tensor]
    best_loss: Tensor
    best_step: Tensor
    done: Tensor
    looks: list[Any]


class Info(NamedTuple):
    """What a step tells: each member's loss, (M,)."""

    loss: Tensor


class Observed:
    """What all steps see, as the training loop takes it: one batch a pass, own for each member."""

    def __init__(self, inputs: Tensor, y: Tensor) -> None:
        self.inputs, self.y = inputs, y

    def num_batches(self, batch_size: int) -> int:
        return 1

    def epoch_each(
        self, batch_size: int, seeds: Sequence[int], start: int = 0
    ) -> Iterator[tuple[Tensor, Tensor]]:
        yield self.inputs, self.y


def start(stack: Stack, optimization: Optimization) -> State:
    """Return the state before the first step."""
    M = stack.num_modes
    return State(
        stack,
        optimization,
        0,
        best={name: tensor.clone() for name, tensor in stack.tensors().items()},
        best_loss=torch.full((M,), torch.inf, dtype=stack.dtype),
        best_step=torch.zeros(M, dtype=torch.int64),
        done=torch.zeros(M, dtype=torch.bool),
        looks=[],
    )


def objective(operator: LinearOperator, tv_weight: float) -> Callable[..., Tensor]:
    """Return the loss of outputs (..., 1, 1, H, W) and observations (..., 1, m), (...)."""

    def loss(outputs: Tensor, y: Tensor, extra: Any) -> Tensor:
        misfit = (operator(outputs) - y).square().mean((-1, -2))
        return misfit + tv_weight * total_variation(outputs).mean(-1)

    return loss


def step(options: DeepImagePrior, scan: Scan, state: State, batch: Batch) -> tuple[State, Info]:
    """Take one step on every member's loss; keep those iterates that are the best so far."""
    loss = objective(scan.operator, options.tv_weight)
    losses = state.stack.gradients(loss, batch.x, batch.y, own=True, step=state.step)
    _keep(state, (losses < state.best_loss) & ~state.done, losses)
    state.optimization.update(state.step)
    state = state._replace(step=state.step + 1)
    if state.step % options.look_every == 0 or state.step == options.steps:
        _look(options, scan, state, batch)
    return state, Info(losses)


@torch.no_grad()
def _keep(state: State, which: Tensor, losses: Tensor) -> None:
    """Keep the present tensors of some members."""
    if not bool(which.any()):
        return
    present = state.stack.tensors()
    for k in which.nonzero()[:, 0].tolist():
        for name, tensor in state.best.items():
            tensor[k] = present[name][k]
    state.best_loss[which] = losses[which].to(state.best_loss)
    state.best_step[which] = state.step


@torch.no_grad()
def _look(options: DeepImagePrior, scan: Scan, state: State, batch: Batch) -> None:
    """Note residuals and errors of the present iterates; take those that meet the discrepancy."""
    images = state.stack.eval()(batch.x, own=True)
    state.stack.train()
    losses = objective(scan.operator, options.tv_weight)(images, batch.y, {})
    residuals = (scan.operator(images) - batch.y).square().mean((-1, -2))
    errors = None
    if scan.truth is not None:
        truth = scan.truth.to(images).repeat_interleave(options.networks_per_image, 0)
        errors = (images[:, 0] - truth).square().mean((1, 2, 3)).tolist()
    state.looks.append([state.step, residuals.tolist(), errors])
    if options.stop == "discrepancy":
        variance = scan.noise_sd.to(residuals).square()
        level = options.discrepancy * variance.repeat_interleave(options.networks_per_image)
        met = (residuals <= level) & ~state.done
        _keep(state, met, losses)
        state.done[met] = True
