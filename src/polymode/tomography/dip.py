r"""The deep image prior: an image as the output of a network that sees nothing else.

.. math:: \tilde\theta = \arg\min_\theta\; \tfrac1m \|A f(\theta) - y\|^2
          + \gamma\, \mathrm{TV}(f(\theta)), \qquad \hat x = f(\tilde\theta)

f is a U-Net with a fixed input, the filtered backprojection or noise. It fits images before it fits
noise, so training must stop in time: after a number of steps that was chosen on other images
(`best_steps`), or once the residual is as large as the noise (the discrepancy principle),
|A f - y|² <= `discrepancy` m σ². Of all iterates up to then the one of least loss is taken; with
the discrepancy principle it is the first that meets it.

Images of one geometry train as one stack, a member for each; several members for an image make an
ensemble.

References: D. Ulyanov, A. Vedaldi, V. Lempitsky, "Deep image prior", CVPR 2018; with total
variation: J. Liu, Y. Sun, X. Xu, U. Kamilov, ICASSP 2019; D. O. Baguer, J. Leuschner, M. Schmidt,
"Computed tomography reconstruction using deep image prior and learned reconstruction methods",
Inverse Problems 36, 2020. Settings as in J. Antorán et al., TMLR 2023 and their code, which also
limits weights to ±1000; here they are not.

Shapes: `N` images, `E` networks for each, `M` = N E members, image by image, `m` observations,
`H`, `W` height and width.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from polymode.core.checks import Images, check_call
from polymode.core.options import Config, option
from polymode.core.rng import generator
from polymode.core.text import first_line
from polymode.core.warn import warn
from polymode.nets import unet
from polymode.stack.stack import Stack
from polymode.tomography.fbp import backproject, check_projector
from polymode.tomography.operator import LinearOperator
from polymode.tomography.projector import Projector, check_finite
from polymode.tomography.reconstruction import Reconstruction
from polymode.tomography.scan import Scan
from polymode.tomography.tv import total_variation
from polymode.training.events import progress_observer
from polymode.training.loop import Batch, Checkpoint, run
from polymode.training.optimiser import Optimization, Training


@dataclass(frozen=True, kw_only=True)
class DeepImagePrior(Config):
    """Options of the deep image prior."""

    steps: int = option(
        5000,
        ge=1,
        doc="steps of Adam at most",
        more="The paper's, for 28 x 28 images, are 7,400 to 50,000.",
    )
    tv_weight: float = option(
        1e-4, ge=0, doc="γ", more="The paper's are 1e-5 to 3e-4 for 28 x 28 images in [0, 1]."
    )
    lr: float = option(1e-3, gt=0, doc="learning rate", more="The paper's is 1e-4.")
    clip_norm: float | None = option(
        1.0, gt=0, doc="largest norm of a member's gradient", none="is no limit"
    )
    stop: str = option(
        "steps",
        choices=("steps", "discrepancy"),
        doc="when to stop",
        more="'discrepancy': when the residual is as large as the noise.",
    )
    discrepancy: float = option(1.0, gt=0, doc="factor of m σ² that |A f - y|² must not exceed")
    input: str = option(
        "auto",
        choices=("auto", "fbp", "noise"),
        doc="input of the networks",
        more="'noise' is 0.1 times standard normal; 'auto' is fbp for projectors, noise for other"
        " operators.",
    )
    networks_per_image: int = option(
        1, ge=1, doc="networks for each image, E", more="Each has its own initialisation."
    )
    look_every: int = option(
        25,
        ge=1,
        doc="steps between looks at residuals and, where the truth is known, errors",
        more="A look costs a third of a step.",
    )

    def training(self) -> Training:
        """Return the same for the training loop: a pass over the data is one step."""
        return Training(
            epochs=self.steps, lr=self.lr, clip_norm=self.clip_norm, data_order="own", batch_size=1
        )


class State(NamedTuple):
    """The state of a training.

    Attributes:
        best: tensors of the best iterate of each member. best_loss: its loss, (M,).
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
    """The loss of each member in a step, (M,)."""

    loss: Tensor


class Observed:
    """The data of every step in the form of the training loop: one batch, split by members."""

    can_reorder = True

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
    """Store the present tensors of some members as their best."""
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


_NOISE_INPUT = 0.1  # standard deviation of an input of noise, as published


@dataclass(frozen=True)
class DIPFit:
    """Networks that were trained on scans.

    Attributes:
        stack: M networks, image by image. inputs: (N, 1, H, W).
        scan, options: what they were trained on, and how.
        steps: the step at which each was taken, (M,). losses: their losses, (M,).
        looks: steps (T,), residuals |A f - y|² / m (T, M) and mean squared errors (T, M) during
            the training; errors are None where the truth is unknown.
        steps_run: how many steps were made.
    """

    stack: Stack
    inputs: Tensor
    scan: Scan
    options: DeepImagePrior
    steps: Tensor
    losses: Tensor
    looks: tuple[Tensor, Tensor, Tensor | None]
    steps_run: int

    @property
    def num_images(self) -> int:
        return len(self.inputs)

    def network(self, image: int, member: int = 0) -> nn.Module:
        """Return a copy of the network of an image, in evaluation mode."""
        place = image * self.options.networks_per_image + member
        return self.stack[[place]].members()[0]

    @torch.no_grad()
    def images(self) -> Tensor:
        """Return what the networks give, (E, N, 1, H, W)."""
        E = self.options.networks_per_image
        outputs = self.stack.eval()(member_inputs(self), own=True)
        return outputs[:, 0].unflatten(0, (-1, E)).movedim(1, 0)

    def reconstruction(self) -> Reconstruction:
        """Return the mean over the networks of each image; without standard deviations."""
        info = {"steps": self.steps, "losses": self.losses, "steps_run": self.steps_run}
        return Reconstruction(self.images().mean(0), method="DIP", info=info)


def deep_image_prior(
    scan: Scan,
    net: Callable[[], nn.Module] | Sequence[nn.Module] | None = None,
    options: DeepImagePrior | None = None,
    *,
    inputs: Images | None = None,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    checkpoint_seconds: float = 30.0,
    progress: str = "silent",
) -> DIPFit:
    """Train a network for each image of a scan, all as one stack.

    Args:
        net: makes a network from (B, 1, H, W) to (B, 1, H, W); or M networks to start from. By
            default the paper's U-Net for 28 x 28 images in [0, 1].
        inputs: (N, 1, H, W) instead of what `options.input` says.
        seed: of initialisations and of inputs of noise.
        checkpoint: folder from which an interrupted training resumes.
        checkpoint_seconds: from one checkpoint to the next.
        progress: "auto", "bar", "lines" or "silent".
    """
    check_call(deep_image_prior, locals())
    options = options or DeepImagePrior()
    check_finite(scan.observations)
    scan.operator.check_observations(scan.observations)
    N, E = len(scan.observations), options.networks_per_image
    inputs = network_inputs(scan, options, seed) if inputs is None else inputs
    dtype = inputs.dtype
    stack = _stack(net, scan.operator, N * E, seed, dtype)
    member_x = _with_member_axis(inputs, E)
    y = scan.observations.to(dtype).repeat_interleave(E, 0)[:, None]
    _check_network(stack, member_x, scan.operator)
    training = options.training()
    state = start(stack, Optimization(training, stack.leaves(), 1, options.steps))
    checkpoints = None
    if checkpoint is not None:
        identity = _identity(options, scan, inputs, stack, seed)
        checkpoints = Checkpoint(Path(checkpoint), identity, checkpoint_seconds)
    observer = progress_observer(progress)
    what = f"deep image prior, {N} image{'s' * (N > 1)}" + (f" × {E} networks" if E > 1 else "")
    state = run(
        partial(step, options, scan),
        state,
        Observed(member_x, y),  # type: ignore[arg-type]
        training,
        seed=seed,
        what=what,
        observers=() if observer is None else (observer,),
        checkpoint=checkpoints,
        finished=lambda state: bool(state.done.all()),
    )
    if options.stop == "discrepancy" and not bool(state.done.all()):
        warn(
            f"{int((~state.done).sum())} of {len(state.done)} networks did not come down to"
            f" discrepancy={options.discrepancy:g} times the variance of the noise in"
            f" {options.steps:,} steps; their iterates of least loss are taken. Give them more"
            " steps, or a larger discrepancy: the operator's own errors add to the noise"
        )
    stack.load_tensors(state.best)
    return DIPFit(
        stack.eval(), inputs, scan, options, state.best_step, state.best_loss,
        _looks(state.looks), state.step,
    )  # fmt: skip


def best_steps(fit: DIPFit) -> int:
    """Return the number of steps with the highest mean PSNR over images whose truth is known.

    To be used as `steps` for other images: chosen on these, it is no fair score of them.
    """
    check_call(best_steps, locals())
    steps, _, errors = fit.looks
    if errors is None:
        raise ValueError("best_steps needs images whose truth is known: scans with `truth`")
    return int(steps[(-torch.log10(errors)).mean(1).argmax()])


def network_inputs(scan: Scan, options: DeepImagePrior, seed: int) -> Tensor:
    """Return the fixed inputs of the networks, (N, 1, H, W)."""
    if options.input == "fbp" or (options.input == "auto" and isinstance(scan.operator, Projector)):
        return backproject(check_projector(scan.operator), scan.observations)
    shape = (1, *scan.operator.image_shape)
    draws = [
        torch.randn(shape, generator=generator(seed, "input", k))
        for k in range(len(scan.observations))
    ]
    return _NOISE_INPUT * torch.stack(draws).to(scan.observations)


# ---------------------------------------------------------------- parts of a training


def member_inputs(fit: DIPFit) -> Tensor:
    """Return the inputs of a fit's networks with an axis for the members, (M, 1, 1, H, W)."""
    return _with_member_axis(fit.inputs, fit.options.networks_per_image)


def _with_member_axis(inputs: Tensor, E: int) -> Tensor:
    """Return inputs (N, 1, H, W) with an axis for the members, (M, 1, 1, H, W)."""
    return inputs.repeat_interleave(E, 0)[:, None]


def _stack(
    net: Callable[[], nn.Module] | Sequence[nn.Module] | None,
    operator: LinearOperator,
    num_modes: int,
    seed: int,
    dtype: torch.dtype,
) -> Stack:
    if net is None:
        net = partial(unet, (1, *operator.image_shape), 1, sigmoid=True)
    if callable(net):
        return Stack(net, num_modes, seed=seed, dtype=dtype)
    if len(net) != num_modes:
        raise ValueError(
            f"`net` of deep_image_prior must have a network for each of {num_modes} members"
            f" (images × networks_per_image), got {len(net)}"
        )
    return Stack(list(net), seed=seed, dtype=dtype)


def _check_network(stack: Stack, inputs: Tensor, operator: LinearOperator) -> None:
    """Refuse a network that does not map images to images of their size."""
    try:
        with torch.no_grad():
            shape = tuple(stack.module(0).eval()(inputs[0]).shape)
    except RuntimeError as error:
        raise ValueError(
            f"`net` of deep_image_prior cannot evaluate `inputs` of shape {tuple(inputs[0].shape)}:"
            f" {first_line(error)}"
        ) from error
    wanted = (1, 1, *operator.image_shape)
    if shape != wanted:
        raise ValueError(
            f"`net` of deep_image_prior must map an image {wanted} to one of the same size, got"
            f" {shape}; pm.nets.unet((1, {wanted[2]}, {wanted[3]}), 1) does"
        )


def _looks(looks: list[Any]) -> tuple[Tensor, Tensor, Tensor | None]:
    errors = [row[2] for row in looks]
    return (
        torch.tensor([row[0] for row in looks]),
        torch.tensor([row[1] for row in looks], dtype=torch.float64),
        None if None in errors else torch.tensor(errors, dtype=torch.float64),
    )


def _identity(
    options: DeepImagePrior, scan: Scan, inputs: Tensor, stack: Stack, seed: int
) -> dict[str, Any]:
    """Return what identifies this training in its checkpoints."""
    digest = hashlib.sha256()
    for tensor in (scan.observations, scan.noise_sd, inputs):
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return {
        "what": "deep image prior",
        "options": asdict(options),
        "operator": repr(scan.operator),
        "data": digest.hexdigest(),
        "network": f"{type(stack.template).__name__}, {stack.num_parameters} parameters",
        "members": stack.num_modes,
        "seed": seed,
    }
