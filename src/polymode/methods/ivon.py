"""IVON: variational learning with the step of an optimiser, one Gaussian per mode.

    q(θ) = N(m, diag(σ²)),   σ² = T / (N (h + δ)),   δ = λ/N,        λ = `prior_precision`
    θ = m + σ ε,   ĝ = ∇ℓ(θ),   ĥ = ĝ ε / σ                          ℓ: mean −log p on the batch
    g ← β₁ g + (1 − β₁) ĝ
    h ← β₂ h + (1 − β₂) ĥ + ½ (1 − β₂)² (h − ĥ)² / (h + δ)
    m ← m − lr (g / (1 − β₁ᵗ) + δ m) / (h + δ)

This is natural-gradient descent on the evidence lower bound of a mean-field Gaussian. ĥ estimates
the diagonal of the Hessian of ℓ under q by Stein's identity, so it needs no second derivatives: one
gradient per step, at Adam's price. The last term of h keeps h + δ positive, whatever ĥ is. At the
optimum m is where the smoothed gradient vanishes, and N h + λ is the diagonal of the expected
Hessian of the log-joint: for a Gaussian posterior, the diagonal of its precision.

`num_passes` K averages ĝ and ĥ over K draws of θ on the same batch; `accumulate` sums them over so
many batches before one update, each batch with draws of its own. Batches that are left over at the
end of the run make no update.

`Info.hessian` is the mean of h over a member's parameters. A likelihood's own parameters (learned
noise) are trained by Adam, as a point. Networks with running statistics (BatchNorm) get them anew
for each draw. `num_modes` fits a Gaussian around each of several modes.

Defaults: the paper's code has β₂ = 0.99999, for runs of a hundred thousand steps. Here it is 0.999,
so h arrives after a few thousand steps; in a shorter run it stays near `hessian_init`, and σ with
it. A much smaller β₂ follows the noise of ĥ, and h + δ may fall so low that the step explodes.
Limits: mean field, so correlations are lost and variances are those of the conditional posterior,
which are smaller; h is noisy where σ is small and batches are.
Reference: Y. Shen, N. Daheim, B. Cong, P. Nickl, G. Marconi, C. Bazan, R. Yokota, I. Gurevych,
    D. Cremers, M. E. Khan, T. Möllenhoff, Variational learning is effective for large deep
    networks, ICML 2024 (Algorithm 1).

Shapes: `M` modes, `K` passes, `L` samples per mode.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from polymode.core.options import option
from polymode.methods.map import add_noise
from polymode.methods.method import METHODS, Members, Method, Problem
from polymode.methods.sampling.keeping import require_room_for_draws
from polymode.methods.variational.priors import entropy, kl_divergence
from polymode.posterior import Gaussian, Weights
from polymode.posterior.weights import with_own_statistics
from polymode.stack.stack import Stack
from polymode.tracing.modules import Tensors
from polymode.training.loop import Batch
from polymode.training.optimiser import NOISE_LR, SCHEDULES, Optimization, Training
from polymode.training.options import Passes


@dataclass(frozen=True, kw_only=True)
class IVON(Members, Passes):
    """Options of `ivon`: those of `Passes` and `Members`, and"""

    lr: float = option(
        0.3,
        gt=0,
        doc="step size in Newton's units",
        more="1 would jump to the optimum of a quadratic.",
    )
    schedule: str = option(
        "cosine", choices=SCHEDULES, doc="factor of `lr` at each step, as in `Training`"
    )
    momentum: float = option(0.9, ge=0, lt=1, doc="β₁ of the average gradient")
    hessian_memory: float = option(
        0.999,
        ge=0,
        lt=1,
        doc="β₂ of the average Hessian",
        more="h looks back over 1/(1 − β₂) updates.",
    )
    hessian_init: float = option(
        1.0,
        gt=0,
        doc="the Hessian h at the start",
        more="More is more careful, and σ begins smaller.",
    )
    clip_radius: float | None = option(
        0.1,
        gt=0,
        doc="largest entry of (g + δ m) / (h + δ)",
        none="does not clip",
        more="A draw where the curvature is not yet known can ask for any step.",
    )
    num_passes: int = option(1, ge=1, doc="K draws of the weights per batch")
    accumulate: int = option(
        1, ge=1, doc="batches that make one update, at most as many as the run has"
    )
    temperature: float = option(
        1.0,
        gt=0,
        doc="T of the posterior p(θ | D)^(1/T)",
        more="1 is the posterior itself, less is colder.",
    )
    samples_per_mode: int = option(30, ge=1, doc="L draws in a prediction")

    @property
    def advice(self) -> str:
        rate = min(self.lr / 10, type(self).lr)
        return (
            f"Try lr={rate:g} instead of {self.lr:g}, or hessian_init={10 * self.hessian_init:g},"
            " and check the scale of the inputs"
        )


class State(NamedTuple):
    """What the next step needs: by parameter, the average gradient and Hessian, and the sums of
    both over the batches since the last update; `noise` trains the likelihood's own parameters."""

    stack: Stack
    noise: Optimization | None
    gradient: Tensors
    hessian: Tensors
    gradient_sum: Tensors
    hessian_sum: Tensors
    step: int


class Info(NamedTuple):
    """What a step tells: of each member the bound that it minimises on the batch at the drawn
    weights, as in `vi`, (M,) nats per example, and the mean of h over its parameters (M,)."""

    loss: Tensor
    hessian: Tensor


def init(config: IVON, problem: Problem, stack: Stack) -> State:
    """Return the state before the first step; adds the likelihood's own parameters to the stack."""
    add_noise(config, problem, stack)
    require_room_for_draws(config.samples_per_mode, stack)
    per_epoch = problem.steps_per_epoch
    total, noise = config.total_steps(per_epoch), None
    if config.accumulate > total > 0:
        raise ValueError(
            f"accumulate={config.accumulate} batches make one update of ivon, but the run has"
            f" {total}: nothing would be learnt; take more epochs, or accumulate <= {total}"
        )
    if stack.extra:
        adam = Training(lr=NOISE_LR, schedule=config.schedule)
        noise = Optimization(adam, list(stack.extra.values()), per_epoch, total)
    first = config.hessian_init
    g, h, g_sum, h_sum = (
        {name: torch.full_like(p, value, requires_grad=False) for name, p in stack.params.items()}
        for value in (0.0, first, 0.0, 0.0)
    )
    return State(stack, noise, g, h, g_sum, h_sum, step=0)


def step(config: IVON, problem: Problem, state: State, batch: Batch) -> tuple[State, Info]:
    """Draw weights, add their gradient and Hessian to the sums, and update where it is time."""
    stack, number = state.stack, state.step
    means, scale = list(stack.params.values()), 1 / (config.num_passes * config.accumulate)
    before = [mean.detach().clone() for mean in means]
    std = list(standard_deviations(config, problem, state).values())
    losses, bound = torch.zeros(()), _divergence(config, before, std) / problem.num_examples
    noise_gradients = [torch.zeros_like(parameter) for parameter in stack.extra.values()]
    for k in range(config.num_passes):
        noise = list(stack.normal("ivon", number, k).values())
        with torch.no_grad():
            torch._foreach_copy_(means, torch._foreach_addcmul(before, std, noise))
        losses = losses + _gradients(problem, stack, batch, number * config.num_passes + k)
        slopes = [mean.grad for mean in means if mean.grad is not None]
        curvatures = torch._foreach_div(torch._foreach_mul(slopes, noise), std)
        torch._foreach_add_(list(state.gradient_sum.values()), slopes, alpha=scale)
        torch._foreach_add_(list(state.hessian_sum.values()), curvatures, alpha=scale)
        for total, parameter in zip(noise_gradients, stack.extra.values(), strict=True):
            assert parameter.grad is not None
            total += parameter.grad / config.num_passes
    with torch.no_grad():
        torch._foreach_copy_(means, before)
    if state.noise is not None:
        for parameter, gradient in zip(stack.extra.values(), noise_gradients, strict=True):
            parameter.grad = gradient
        state.noise.update(number)
    if (number + 1) % config.accumulate == 0:
        _update(config, problem, state)
    state = state._replace(step=number + 1)
    return state, Info(losses / config.num_passes + bound, _mean_hessian(state))


def _divergence(config: IVON, means: list[Tensor], stds: list[Tensor]) -> Tensor:
    """Return KL(q ‖ p) + (1 − T) H(q) of each member, (M,) nats; a flat prior has density 1."""
    log_stds = [std.log() for std in stds]
    spread = entropy(log_stds)
    if config.prior_precision == 0:
        return -config.temperature * spread
    divergence = kl_divergence(means, log_stds, config.prior_precision)
    return divergence + (1 - config.temperature) * spread


def _gradients(problem: Problem, stack: Stack, batch: Batch, number: int) -> Tensor:
    loss = problem.likelihood.nll
    return stack.gradients(loss, batch.x, batch.y, own=batch.own, step=number)


@torch.no_grad()
def _update(config: IVON, problem: Problem, state: State) -> None:
    """Move the average gradient, the Hessian and the means, and empty the sums."""
    means, g, h, slopes, curvatures = (
        list(group.values()) for group in (state.stack.params, *state[2:6])
    )
    prior = config.prior_precision / problem.num_examples
    total = config.total_steps(problem.steps_per_epoch)
    done = state.step // config.accumulate
    old, new = config.momentum, 1 - config.hessian_memory
    torch._foreach_mul_(g, old)
    torch._foreach_add_(g, slopes, alpha=1 - old)
    change = torch._foreach_sub(curvatures, h)
    bend = torch._foreach_div(torch._foreach_mul(change, change), torch._foreach_add(h, prior))
    torch._foreach_add_(h, change, alpha=new)
    torch._foreach_add_(h, bend, alpha=0.5 * new**2)
    slope = torch._foreach_mul(g, 1 / (1 - old ** (done + 1)))
    torch._foreach_add_(slope, means, alpha=prior)
    rate = config.lr * SCHEDULES[config.schedule](min(state.step / max(total, 1), 1.0))
    torch._foreach_div_(slope, torch._foreach_add(h, prior))
    if config.clip_radius is not None:
        torch._foreach_clamp_min_(slope, -config.clip_radius)
        torch._foreach_clamp_max_(slope, config.clip_radius)
    torch._foreach_add_(means, slope, alpha=-rate)
    torch._foreach_zero_(slopes)
    torch._foreach_zero_(curvatures)


def standard_deviations(config: IVON, problem: Problem, state: State) -> Tensors:
    """Return σ of every parameter, (M, ...)."""
    prior = config.prior_precision / problem.num_examples
    scale = math.sqrt(config.temperature / problem.num_examples)
    return {name: scale * (h + prior).rsqrt() for name, h in state.hessian.items()}


def _mean_hessian(state: State) -> Tensor:
    sums = [h.reshape(len(h), -1).sum(1) for h in state.hessian.values()]
    return torch.stack(sums).sum(0) / state.stack.num_parameters


def finish(config: IVON, problem: Problem, state: State) -> Weights:
    """Return the Gaussian of every mode; as kept draws where networks have running statistics."""
    std = standard_deviations(config, problem, state)
    gaussian = Gaussian(state.stack, std, None, config.samples_per_mode)
    inputs = partial(problem.inputs, config.batch_size)
    return with_own_statistics(gaussian, inputs, config.samples_per_mode, problem.seed)


METHODS.register(
    "ivon",
    summary="a mean-field Gaussian learnt by an optimiser-like step",
    kind="one mode",
    equation="σ² = 1/(N h + λ),  m ← m − lr (g + λ m/N)/(h + λ/N),  h ≈ E_q[diag ∇²ℓ]",
    cost="1 × training, L × prediction",
    limits="Mean field: correlations are lost, and variances are the conditional ones, which are"
    " smaller; one mode.",
    paper="Shen et al. 2024",
    bibtex="""@inproceedings{shen2024variational,
  title={Variational learning is effective for large deep networks},
  author={Shen, Yuesong and Daheim, Nico and Cong, Bai and Nickl, Peter and Marconi, Gian Maria and
    Bazan, Clement and Yokota, Rio and Gurevych, Iryna and Cremers, Daniel and
    Khan, Mohammad Emtiyaz and M{\\"o}llenhoff, Thomas},
  booktitle={International Conference on Machine Learning}, year={2024}}""",
)(Method(IVON, init, step, finish))
