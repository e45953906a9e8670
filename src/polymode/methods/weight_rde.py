"""Repulsive deep ensembles in weight space: particles that follow the posterior and avoid another.

    φ_i = γ_t ∇ log p(θ_i | D) − ∇ log ρ(θ_i),        θ_i ← θ_i + η φ_i / N

Wasserstein gradient descent on the divergence of ρ, the density of the M members' weights, from the
posterior. ∇ log ρ is estimated from the members themselves by `estimator`
(`methods/particles/estimators.py`), on the flattened trainable parameters of the networks, (M, P).
γ_t is `annealing`. The likelihood's own parameters (learned noise) follow their gradient alone,
times γ_t.

Scale: log p(θ | D) is N × the mean over the batch of log p(y | f(x; θ)), minus (λ/2) ‖θ‖², and the
repulsion has weight 1 compared with it, so the posterior is the target, without temperature. The
whole is divided by N here, so that learning rates are those of `map`: a step follows
γ_t (∇ nll + λ θ / N) + ∇ log ρ / N. With "svgd" the update is

    φ_i = (1/M) Σ_j [ K_ij γ_t ∇ log p(θ_j | D) + ∂K_ij/∂θ_j ],

whose driving force is M times smaller than that of the others where members are far apart.

Where paper and code disagree: the code passes `prior_variance` as a standard deviation; here λ =
`prior_precision` is 1 / variance. Its distances come from inner products and can be negative; here
they are not. Its spectral estimator calls a function that torch no longer has.
Default estimator: `sge`, which reaches 0.94 of the variance of a Gaussian posterior in every one of
four directions with 32 members (`estimators.py` derives what they lack, and why its kernel is wider
than the code's). `svgd` reaches as much, but mixes the members' gradients, which in networks belong
to different units. `kde` is the paper's weight-space baseline in later tables. It targets the
posterior blurred by its own kernel, so members end too narrow by h/2 in every direction, and on
Neal's funnel, whose neck is narrower than that, it fails: particles sink into the neck and end
hardly nearer to exact draws than they started, where `sge`, `ssge` and `svgd` reach the distance of
independent draws (`tests/methods/particles/test_estimators.py`).
Limits: two networks that are permutations of each other are far apart in weight space and equal as
functions, so repulsion does not make functions differ; at P ≫ M the kernel of all pairs is about
1/e (1/(M+1) with kde and ssge), and the repulsion a small push away from the mean. M = 1 is `map`.
Reference: F. D'Angelo, V. Fortuin, Repulsive deep ensembles are Bayesian, NeurIPS 2021.

Shapes: `M` modes, `P` parameters of one, `B` batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from polymode.core.options import option
from polymode.distributed import ranks
from polymode.methods.map import MAP, Info, State, add_prior
from polymode.methods.map import init as init_map
from polymode.methods.method import METHODS, Method, Problem
from polymode.methods.particles.annealing import annealing_factor, annealing_option
from polymode.methods.particles.estimators import BIBTEX, ESTIMATORS, coefficients, kernel_and_slope
from polymode.methods.particles.guards import warn_of_coincident
from polymode.methods.particles.kernel import squared_distances
from polymode.stack.stack import Stack
from polymode.training.loop import Batch


@dataclass(frozen=True, kw_only=True)
class WeightRDE(MAP):
    """Options of `weight_rde`: those of `map`, with five members, and"""

    usual_modes = 5
    stops_together = True
    estimator: str = option(
        "sge",
        choices=ESTIMATORS,
        doc="how the members' density is estimated",
        more="'sge' (Stein), 'ssge' (spectral Stein) and 'kde' estimate ∇ log ρ; 'svgd' takes"
        " Stein's direction instead.",
    )
    annealing: str = annealing_option()


def init(config: WeightRDE, problem: Problem, stack: Stack) -> State:
    """Return the state before the first step: that of `map`; warns of members that coincide."""
    warn_of_coincident(stack)
    return init_map(config, problem, stack)


def step(config: WeightRDE, problem: Problem, state: State, batch: Batch) -> tuple[State, Info]:
    """Move every member along its log-posterior and away from the others."""
    stack, optimization, number = state
    loss = problem.likelihood.nll
    losses = stack.gradients(loss, batch.x, batch.y, own=batch.own, step=number)
    losses = add_prior(losses, stack, config.prior_precision / problem.num_examples)
    gamma = annealing_factor(config.annealing, number, optimization.total_steps)
    scale_gradients(stack, gamma)
    several = ranks.num_modes(stack.num_modes) > 1
    if several and torch.isfinite(ranks.gather(losses)).all():  # else the loop tells of divergence
        repel(stack, config.estimator, 1 / problem.num_examples)
    optimization.update(number)
    return State(stack, optimization, number + 1), Info(losses)


def scale_gradients(stack: Stack, gamma: float) -> None:
    """Multiply the gradients of all leaves by γ: the driving force of a tempered posterior."""
    if gamma != 1:
        grads = [leaf.grad for leaf in stack.leaves() if leaf.grad is not None]
        torch._foreach_mul_(grads, gamma)


@torch.no_grad()
def repel(stack: Stack, estimator: str, weight: float) -> None:
    """Turn the networks' gradients, −γ ∇ log p × weight, into −φ × weight, in place.

    Tensor by tensor, so that the flattened (M, P) never exists: distances add up over tensors, and
    the estimate is A θ with one matrix A (M, M) for all.
    """
    tensors = [ranks.gather(p.detach().reshape(len(p), -1)) for p in stack.params.values()]
    centred = [tensor - tensor.mean(0) for tensor in tensors]
    squared = sum(squared_distances(c, c).double() for c in centred)
    assert isinstance(squared, Tensor)
    grads = [p.grad for p in stack.params.values()]
    if estimator == "svgd":
        kernel, slope = kernel_and_slope("svgd", squared)
        number = len(kernel)
        smoothing, matrix = kernel / number, slope * (weight / number)
    else:
        smoothing, matrix = None, coefficients(estimator, squared) * weight
    matrix = matrix.to(stack.dtype)
    for grad, rows in zip(grads, centred, strict=True):
        assert grad is not None
        if smoothing is not None:
            mixed = smoothing.to(grad.dtype) @ ranks.gather(grad.reshape(len(grad), -1))
            grad.copy_(ranks.own(mixed).view(grad.shape))
        grad.add_(ranks.own(matrix @ rows).view(grad.shape))


METHODS.register(
    "weight_rde",
    summary="members that repel each other in weight space",
    kind="many modes",
    equation="φᵢ = γ ∇ log p(θᵢ | D) − ∇ log ρ(θᵢ),  ρ estimated from the members",
    cost="M × training (+ M² P for the kernel), M × prediction",
    limits="Networks that differ by a permutation of units count as far apart, so distance between"
    " weights need not be distance between functions. The estimator kde blurs: it fails on a"
    " funnel, where sge, ssge and svgd do not.",
    paper="D'Angelo and Fortuin 2021",
    bibtex=BIBTEX,
)(Method(WeightRDE, init, step))
