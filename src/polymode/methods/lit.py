"""Local independence training (LIT): members whose input gradients are orthogonal.

    θ_i ← θ_i − lr · ∇ [ mean_b −log p(y_b | f_i(x_b)) + (λ/2N) ‖θ_i‖² + w R_i ]
    R_i = 1/(M − 1) Σ_{j≠i} mean_b cos²(J_ib, J_jb),        J_ib = ∂ f_i(x_b)_{y_b} / ∂x_b

Two functions whose gradients at x are orthogonal change independently under small Gaussian steps
from x, so members agree on the data and extrapolate differently. R_i lies in [0, 1]. All members
see the same batch. With one member, or weight 0, this is `deep_ensemble`.

The paper minimises one loss of all members, the sum of their losses and λ times the penalty of
every pair, through both members of a pair. Because the penalty is symmetric, member i's part of
that gradient is the gradient of Σ_j cos²(J_i, J_j) with the others constant, so to stop gradients
or not is the same here, unlike for FoRDE. The authors' code adds up over pairs and over the batch:
its λ (0.01 by default; 10⁻⁴ to 10 in their experiments, chosen on validation data) corresponds to
w = λ B (M − 1). Here the penalty is a mean over both, so that w means the same for any M and B; its
default is our choice.

Where this differs: the code differentiates the log-odds of two classes and the cross-entropy of
more, whose gradients have the direction of `scalar="log_prob"`; the default here is the logit of
the true class, as in `forde`. It divides by |J_i|² |J_j|² + 10⁻⁶, which lets the penalty go as
gradients become small; here cosines are those of directions, and a zero gradient feels no force.
Beyond the paper: regression by the sum of the predicted means, and the tangent (1, f′) / |·| for
inputs of one dimension, both as in `forde`.

Limits: a second derivative per step; no more than D gradients of dimension D can be orthogonal, and
M > D members keep a penalty of at least (M/D − 1) / (M − 1) on average; gradients may be orthogonal
across the data, where it does not matter. It is not a Bayesian method: the penalty stands for no
density.
Reference: A. Ross, W. Pan, L. Celi, F. Doshi-Velez, Ensembles of locally independent prediction
    models, AAAI 2020.

Shapes: `M` modes, `B` batch, `D` input dimensions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from polymode.core.options import option
from polymode.distributed import ranks
from polymode.methods.map import MAP, State, add_prior
from polymode.methods.map import init as init_map
from polymode.methods.method import METHODS, Method, Problem
from polymode.methods.particles.guards import (
    check_batch,
    check_finite,
    check_sources,
    shared_order,
    warn_of_coincident,
)
from polymode.methods.particles.input_gradients import repelled_gradients
from polymode.methods.particles.terms import SCALARS, terms_of
from polymode.stack.stack import Stack
from polymode.training.loop import Batch

_EPS = 1e-24


@dataclass(frozen=True, kw_only=True)
class LIT(MAP):
    """Options of `lit`: those of `map`, with five members, and"""

    usual_modes = 5
    stops_together = True
    weight: float = option(1.0, ge=0, doc="w of the penalty compared with the mean loss")
    scalar: str = option(
        "logit",
        choices=SCALARS,
        doc="what is differentiated with respect to the inputs",
        more="'logit' of the true class (in regression the sum of the predicted means), or"
        " 'log_prob' of the target, the authors' choice.",
    )
    data_order: str = shared_order()


class Info(NamedTuple):
    """What a step tells: each member's loss as in `map`, without similarity, (M,) nats, and its
    similarity R_i (M,) to the others, in [0, 1]; NaN where nothing is compared."""

    loss: Tensor
    similarity: Tensor


def init(config: LIT, problem: Problem, stack: Stack) -> State:
    """Return the state before the first step: that of `map`; warns of members that coincide."""
    warn_of_coincident(stack)
    if problem.data is not None and ranks.num_modes(stack.num_modes) > 1 and config.weight:
        check_sources("lit", stack, next(problem.inputs(config.batch_size)))
    return init_map(config, problem, stack)


def step(config: LIT, problem: Problem, state: State, batch: Batch) -> tuple[State, Info]:
    """Take one step of every member on its log-posterior and towards orthogonal gradients."""
    stack, optimization, number = state
    if ranks.num_modes(stack.num_modes) == 1 or config.weight == 0:
        loss = problem.likelihood.nll
        losses = stack.gradients(loss, batch.x, batch.y, own=batch.own, step=number)
        values = torch.full_like(losses, math.nan)
    else:
        check_batch("lit", problem.likelihood, batch)
        check_sources("lit", stack, batch.x)
        terms = terms_of(problem, config.scalar, similarity, config.weight, len(batch.x))
        losses, values = repelled_gradients(stack, terms, batch.x, batch.y, number)
        check_finite(losses, values, number)
    losses = add_prior(losses, stack, config.prior_precision / problem.num_examples)
    optimization.update(number)
    return State(stack, optimization, number + 1), Info(losses, values)


def similarity(gradients: Tensor) -> tuple[Tensor, Tensor]:
    """Return each member's mean squared cosine R_i (M,) to the others, and ∂R_i/∂J_i (M, B, D).

    With directions s and their cosines C_ij = s_i · s_j at an input,
    ∂R_i/∂J_i = 2 / ((M − 1) B |J_i|) Σ_{j≠i} C_ij (s_j − C_ij s_i).

    Args:
        gradients: J (M, B, D); one member is similar to none, 0.

    >>> value, derivative = similarity(torch.tensor([[[1.0, 0.0]], [[3.0, 4.0]]]))
    >>> value  # (3 / 5)²
    tensor([0.3600, 0.3600])
    >>> derivative[0]  # member 0 turns away from member 1
    tensor([[0.0000, 0.9600]])
    """
    if gradients.shape[-1] == 1:
        tangents = torch.cat([torch.ones_like(gradients), gradients], -1)
        value, derivative = similarity(tangents)
        return value, derivative[..., 1:]
    squares = gradients.square().sum(-1, keepdim=True)
    inverse = torch.where(squares > _EPS, (squares + _EPS).rsqrt(), 0.0)
    s = (gradients * inverse).transpose(0, 1)  # (B, M, D)
    cosines = torch.bmm(s, s.mT)
    cosines.diagonal(dim1=1, dim2=2).zero_()
    sums = cosines.square().sum(2)  # (B, M)
    scale = 1 / (max(len(gradients) - 1, 1) * gradients.shape[1])
    turn = torch.bmm(cosines, s).addcmul_(sums.unsqueeze(2), s, value=-1).mul_(2 * scale)
    return sums.sum(0) * scale, turn.transpose(0, 1) * inverse


METHODS.register(
    "lit",
    summary="members with orthogonal input gradients",
    kind="many modes",
    equation="θᵢ ← θᵢ − lr ∇[ mean_b −log p(y_b | fᵢ(x_b)) + (λ/2N)‖θᵢ‖²"
    " + w/(M − 1) Σⱼ mean_b cos²(∇ₓfᵢ, ∇ₓfⱼ) ]",
    cost="2 to 3 × M × training, M × prediction",
    limits="A second derivative per step; at most D gradients of dimension D can be orthogonal, and"
    " they may be so in directions without data, where it does not matter.",
    paper="Ross et al. 2020",
    bibtex="""@inproceedings{ross2020ensembles,
  title={Ensembles of locally independent prediction models},
  author={Ross, Andrew Slavin and Pan, Weiwei and Celi, Leo Anthony and Doshi-Velez, Finale},
  booktitle={AAAI Conference on Artificial Intelligence}, year={2020}}""",
)(Method(LIT, init, step, uses_inputs=lambda config: True))
