"""Mean-field variational inference (Bayes by backprop): a Gaussian per weight and mode.

    q(θ) = Π_i N(μ_i, σ_i²)
    L(μ, σ) = E_q [ −Σ_n log p(y_n | f_θ(x_n)) ] + w { KL(q ‖ p) + (1 − T) H(q) },   p = N(0, λ⁻¹ I)

λ is the `prior_precision`. With T = w = 1 this is the evidence lower bound, its KL in closed form,
summed over all weights, and weighed by 1/N in the mean loss that is minimised. Nothing is tempered
unless asked, and there are two ways to ask:

    temperature T   q approximates p(θ | D)^(1/T), as with the samplers: likelihood and prior alike.
                    KL + (1 − T) H = E_q [−log p(θ)] − T H(q), so a Gaussian posterior of precision
                    H + λ gets the variance T / (H + λ), and keeps its mean.
    kl_weight w     q approximates p(D | θ)^(1/w) p(θ): the prior is as strong as it was, only the
                    data count for more. The variance is 1 / (H/w + λ), and the mean moves.

`estimator` says how the expectation is drawn: "local" draws the outputs of linear and convolutional
layers (local reparametrisation), "flipout" one matrix per batch with signs per example, "weights"
one network per batch and member. Parameters of other layers (normalisation, embeddings, attention),
layers that share weights, and layers that a pass calls twice, are drawn as weights in all three.
With `alpha` > 0 the expected log-likelihood gives way to the α-objective of `dropout`, over K =
`num_passes` draws per example; weights that are drawn for the whole batch are the same in all K.

`mixture=(π, r)` is the scale-mixture prior π N(0, 1/λ) + (1 − π) N(0, r²/λ) of the paper, its
expectation by quadrature. σ begins at `initial_std` and has the rate `std_lr` of its own. With a
rate ten times that of the means it grows to the prior's while the data still say little, and the
fit stays a constant. A likelihood's own parameters (learned noise) are trained as a point. Networks
with running statistics (BatchNorm) get them anew for each draw.

Limits: correlations are lost and variances are the conditional ones, which are smaller. With a wide
prior and few data per weight, many weights stay at the prior and the fit is poor: that is the bound
itself, and not a fault of training; `kl_weight` < 1 trades the bound for fit.
Reference: C. Blundell, J. Cornebise, K. Kavukcuoglu, D. Wierstra, Weight uncertainty in neural
    networks, ICML 2015.

Shapes: `M` modes, `K` passes, `L` samples per mode, `B` batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from polymode.core.checks import is_number
from polymode.core.options import option, rule
from polymode.methods.dropout import loss_of_passes, passes_of
from polymode.methods.map import Trained, add_noise
from polymode.methods.method import METHODS, Method, Problem
from polymode.methods.sampling.keeping import require_room_for_draws
from polymode.methods.variational.gaussian_layers import (
    KINDS,
    SUFFIX,
    layers_to_change,
    make_gaussian,
    make_plain,
)
from polymode.methods.variational.priors import add_kl_gradient, entropy, kl_divergence
from polymode.posterior import Gaussian, Weights
from polymode.posterior.weights import with_own_statistics
from polymode.stack.fast.passes import gradients_of_passes
from polymode.stack.stack import Stack
from polymode.training.loop import Batch
from polymode.training.optimiser import Optimization

_OWN = "log_std/"  # of parameters that are drawn as weights: their log σ among the stack's extra


@dataclass(frozen=True, kw_only=True)
class VI(Trained):
    """Options of `vi`: those of `map`, and"""

    estimator: str = option("local", choices=KINDS, doc="how weights are drawn in training")
    prior_precision: float = option(1.0, gt=0, doc="λ of the prior")
    initial_std: float = option(0.02, gt=0, doc="σ at the start")
    lr: float = 0.005
    std_lr: float | None = option(
        None, gt=0, doc="learning rate of log σ", none="is two fifths of `lr`"
    )
    mixture: tuple[float, float] | None = option(
        None,
        rule=rule("None or two numbers between 0 and 1", lambda mixture: _are_shares(mixture)),
        doc="(π, r) of the scale-mixture prior π N(0, 1/λ) + (1 − π) N(0, r²/λ)",
        none="is a Gaussian",
    )
    temperature: float = option(
        1.0,
        gt=0,
        doc="T of the posterior p(θ | D)^(1/T) that is approximated, as in every method",
        more="1 is the posterior itself, less is colder.",
    )
    kl_weight: float = option(
        1.0,
        gt=0,
        doc="w, the weight of the KL compared with the log-likelihood",
        more="1 is the evidence lower bound, less trusts the data more.",
    )
    alpha: float = option(
        0.0, ge=0, doc="α of the α-objective of `dropout`", more="0 is the expected log-likelihood."
    )
    num_passes: int | None = option(
        None,
        ge=1,
        doc="K draws of each example in a training step",
        none="is 1 for alpha = 0 and 10 otherwise",
        more="More than one needs 'local' or 'flipout'.",
    )
    samples_per_mode: int = option(30, ge=1, doc="L draws in a prediction")
    rules = (
        rule(
            "num_passes={config.passes} needs draws for each example: take estimator='local' or"
            " 'flipout', or num_passes=1 and alpha=0 with 'weights'",
            lambda config: config.estimator != "weights" or config.passes == 1,
        ),
        rule(
            "alpha={config.alpha:g} has no effect with num_passes=1: take num_passes=10, or"
            " alpha=0",
            lambda config: not config.alpha or config.passes > 1,
        ),
    )

    @property
    def rate_of_std(self) -> float:
        """The learning rate of log σ as it is taken."""
        return 0.4 * self.lr if self.std_lr is None else self.std_lr

    @property
    def passes(self) -> int:
        """K as it is taken."""
        return passes_of(self.num_passes, self.alpha)


def _are_shares(mixture: object) -> bool:
    """Whether these are two numbers between 0 and 1."""
    if not isinstance(mixture, tuple | list) or len(mixture) != 2:
        return False
    return all(is_number(share) and 0 < share < 1 for share in mixture)


class State(NamedTuple):
    """What the next step needs: `stack` has layers that draw, `spread` trains log σ, and
    `optimization` the rest."""

    stack: Stack
    optimization: Optimization
    spread: Optimization
    step: int


class Info(NamedTuple):
    """What a step tells: each member's L / N on the batch, at what was drawn, (M,) nats per
    example, and KL(q ‖ p), (M,) nats."""

    loss: Tensor
    kl: Tensor


def init(config: VI, problem: Problem, stack: Stack) -> State:
    """Return the state before the first step, on a stack of networks that draw."""
    add_noise(config, problem, stack)
    require_room_for_draws(config.samples_per_mode, stack)
    noise = dict(stack.extra)
    x = next(problem.inputs(config.batch_size))[:2]
    log_std, members = math.log(config.initial_std), _modules(stack)
    paths = layers_to_change(members[0], x, config.estimator)
    drawn = _stack_like(
        stack, [make_gaussian(member, paths, config.estimator, log_std) for member in members]
    )
    inside = set(drawn.params)
    extra = {
        f"{_OWN}{name}": torch.full_like(mean, log_std)
        for name, mean in drawn.params.items()
        if f"{name}{SUFFIX}" not in inside and not name.endswith(SUFFIX)
    }
    drawn.add_parameters({**noise, **extra})
    means, log_stds = parameters_of(drawn)
    per_epoch, total = problem.steps_per_epoch, config.total_steps(problem.steps_per_epoch)
    point = [drawn.extra[name] for name in noise]
    return State(
        drawn,
        Optimization(config, [*means.values(), *point], per_epoch, total, len(point)),
        Optimization(
            replace(config, lr=config.rate_of_std), list(log_stds.values()), per_epoch, total
        ),
        step=0,
    )  # fmt: skip


def _modules(stack: Stack) -> list[torch.nn.Module]:
    """Return the members as modules of their own that are called as the stack calls them."""
    return [stack.views.build(k, share=False).eval() for k in range(stack.num_modes)]


def _stack_like(stack: Stack, modules: list[torch.nn.Module]) -> Stack:
    """Return a stack of other modules with the same streams and execution."""
    drawn = Stack(
        modules, execution=stack.execution, chunk_size=stack.chunk_size, device=stack.device
    )
    drawn.seeds = list(stack.seeds)
    return drawn


def parameters_of(stack: Stack) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return μ and log σ by the names of the plain network's parameters."""
    means = {name: p for name, p in stack.params.items() if not name.endswith(SUFFIX)}
    log_stds = {
        name: stack.params[f"{name}{SUFFIX}"]
        if f"{name}{SUFFIX}" in stack.params
        else stack.extra[f"{_OWN}{name}"]
        for name in means
    }
    return means, log_stds


def step(config: VI, problem: Problem, state: State, batch: Batch) -> tuple[State, Info]:
    """Take one step on L / N of every member."""
    stack, optimization, spread, number = state
    means, log_stds = (list(group.values()) for group in parameters_of(stack))
    losses = _gradients(config, problem, stack, batch, number)
    strength, temperature = config.kl_weight / problem.num_examples, config.temperature
    with torch.set_grad_enabled(config.mixture is not None):
        divergence = kl_divergence(means, log_stds, config.prior_precision, config.mixture)
        tempered = divergence + (1 - temperature) * entropy(log_stds)
    if config.mixture is None:
        add_kl_gradient(means, log_stds, config.prior_precision, strength, temperature)
    else:
        leaves = [*means, *log_stds]
        slopes = torch.autograd.grad(tempered.sum(), leaves)
        with torch.no_grad():
            torch._foreach_add_([leaf.grad for leaf in leaves], slopes, alpha=strength)  # type: ignore[misc]
    losses = losses + strength * tempered.detach()
    optimization.update(number)
    spread.update(number)
    return State(stack, optimization, spread, number + 1), Info(losses, divergence.detach())


def _gradients(config: VI, problem: Problem, stack: Stack, batch: Batch, number: int) -> Tensor:
    """Set `.grad` of all leaves to that of the data term, and return it (M,).

    Parameters that no layer draws for itself are moved to drawn values and back: with θ = μ + σ ε,
    the gradient with respect to log σ is that with respect to θ, times σ ε.
    """
    names = [name.removeprefix(_OWN) for name in stack.extra if name.startswith(_OWN)]
    means = [stack.params[name] for name in names]
    log_stds = [stack.extra[f"{_OWN}{name}"] for name in names]
    shifts: list[Tensor] = []
    if names:
        drawn = stack.normal("vi", number)
        noise = [drawn[name] for name in names]
        with torch.no_grad():
            before = torch._foreach_clone(means)
            shifts = list(torch._foreach_mul(torch._foreach_exp(log_stds), noise))
            torch._foreach_add_(means, shifts)
    if config.passes == 1:
        nll = problem.likelihood.nll
        losses = stack.gradients(nll, batch.x, batch.y, own=batch.own, step=number)
    else:
        loss = loss_of_passes(problem.likelihood, config.passes, config.alpha)
        losses = gradients_of_passes(
            stack, config.passes, loss, batch.x, batch.y, own=batch.own, step=number
        )
    if names:
        with torch.no_grad():
            torch._foreach_copy_(means, before)
            for mean, log_std, shift in zip(means, log_stds, shifts, strict=True):
                assert mean.grad is not None
                log_std.grad = mean.grad * shift
    return losses


def finish(config: VI, problem: Problem, state: State) -> Weights:
    """Return the Gaussian of every mode over plain networks; as kept draws where networks have
    running statistics."""
    drawn = state.stack
    means, log_stds = parameters_of(drawn)
    stack = _stack_like(drawn, [make_plain(member) for member in _modules(drawn)])
    stack.add_parameters({n: t for n, t in drawn.extra.items() if not n.startswith(_OWN)})
    std = {name: log_stds[name].detach().exp() for name in stack.params}
    gaussian = Gaussian(stack, std, None, config.samples_per_mode)
    inputs = partial(problem.inputs, config.batch_size)
    return with_own_statistics(gaussian, inputs, config.samples_per_mode, problem.seed)


METHODS.register(
    "vi",
    summary="a mean-field Gaussian by the evidence lower bound",
    kind="one mode",
    equation="min E_q[−Σₙ log p(yₙ | f(xₙ; θ))] + KL(q ‖ N(0, 1/λ)),  q = Π N(μᵢ, σᵢ²)",
    cost="2 to 3 × training, L × prediction",
    limits="Correlations are lost, variances are the conditional ones, and with few data per weight"
    " many weights stay at the prior; one mode.",
    paper="Blundell et al. 2015",
    bibtex="""@inproceedings{blundell2015weight,
  title={Weight uncertainty in neural networks},
  author={Blundell, Charles and Cornebise, Julien and Kavukcuoglu, Koray and Wierstra, Daan},
  booktitle={International Conference on Machine Learning}, year={2015}}""",
)(Method(VI, init, step, finish))
