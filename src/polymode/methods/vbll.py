r"""Variational Bayesian last layers: a Gaussian over the last layer, trained in closed form.

    q(W) = Π_k N(w̄_k, S_k),   p(W) = N(0, λ⁻¹ I),   f_k(x) = w_kᵀ φ(x),   v_k(x) = φ(x)ᵀ S_k φ(x)
    values    L = Σ_n [ log N(y_n; w̄ᵀ φ_n, σ²) − Σ_d v_d(x_n) / 2σ_d² ] − KL(q ‖ p)
    classes   L = Σ_n [ w̄_yᵀ φ_n − log Σ_k exp(w̄_kᵀ φ_n + v_k(x_n) / 2) ] − KL(q ‖ p)
    two       L = Σ_n [ log sigmoid(± w̄ᵀ φ_n) − v(x_n) / 8 ] − KL(q ‖ p)

φ are the inputs of the network's last linear layer, with a one for its bias, and the body that
makes them is trained together with q by −(L + log prior of the body) / N. L is a lower bound on
log p(y) given φ and needs no samples: for values it is exact in q, so its largest value is the
evidence; for classes the expected log-sum-exp is replaced by its bound of Jensen, for one logit
(`bernoulli`) the expected softplus by one of curvature 1/4. λ is `prior_precision` for all weights.

Predictions: for values w̄ᵀ φ with variance v + σ², in closed form; for classes the softmax of L
draws of the logits, the same noise at all inputs.

Where paper and code disagree, and what is left out: the paper's equations have covariances, the
authors' code has standard deviations of W of any sign of start; S_k is R Rᵀ here. Their code
divides the trace of the covariance by the sum over outputs of σ², which is right for one output.
The Wishart prior over σ² and the noise of the logits are left out: σ is the likelihood's, learned
as for every method, and logits have no noise beside that of W.

Limits: the body is a point, so the epistemic part is that of a linear layer on features that the
same data have chosen: far from the data features may collapse; S_k is dense, K F² numbers; one
target per example.
Reference: J. Harrison, J. Willes, J. Snoek, Variational Bayesian last layers, ICLR 2024.

Shapes: `M` modes, `L` samples per mode, `B` batch, `F` features with the one, `K` outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from polymode.core.options import option
from polymode.likelihoods.components import Components
from polymode.likelihoods.kinds import Bernoulli, Categorical, Gaussian, Likelihood
from polymode.likelihoods.targets import align
from polymode.methods import map as map_
from polymode.methods.last_layer.cut import (
    body_with_head,
    checked_features,
    head_params,
    joint_weight,
    require_head,
    require_trained,
    with_ones,
)
from polymode.methods.last_layer.head_weights import HeadWeights, variances
from polymode.methods.map import MAP, Info, add_prior
from polymode.methods.method import METHODS, Method, Problem
from polymode.methods.sampling.keeping import require_room
from polymode.stack.stack import Stack
from polymode.tracing.modules import Tensors
from polymode.training.loop import Batch
from polymode.training.optimiser import Optimization

LOG_SCALE, LOWER = "head_log_scale", "head_lower"
START = 0.5  # standard deviation of an output at features of size 1, before the first step


@dataclass(frozen=True, kw_only=True)
class VBLL(MAP):
    """Options of `vbll`: those of `map`, and"""

    prior_precision: float = option(1.0, gt=0, because="a flat prior has no KL(q ‖ p)")
    covariance: str = option(
        "dense",
        choices=("dense", "diagonal"),
        doc="covariance S of the weights of each output",
        more="'dense' has F² numbers for F features, 'diagonal' F.",
    )
    samples_per_mode: int = option(
        30,
        ge=1,
        doc="L draws of the logits per mode in a prediction",
        more="Values are predicted in closed form: then L only says how many networks are drawn on"
        " demand.",
    )


class State(NamedTuple):
    """What the next step needs; `head` is the path of the last layer."""

    stack: Stack
    optimization: Optimization
    head: str
    step: int


def init(config: VBLL, problem: Problem, stack: Stack) -> State:
    """Return the state before the first step; refuses what has no closed form."""
    refuse_likelihood(problem.likelihood)
    head = require_head(stack, next(problem.inputs(config.batch_size))[:2], "vbll")
    require_trained(stack, head, "vbll")
    joint = joint_weight(head_params(stack, head)).detach()
    map_.add_noise(config, problem, stack)
    more = {LOG_SCALE: torch.full_like(joint, math.log(START / math.sqrt(joint.shape[-1])))}
    if config.covariance == "dense":
        require_room(4 * joint.numel() * joint.shape[-1] * joint.element_size(), stack,
                     "covariances of vbll (covariance='diagonal' has none)")  # fmt: skip
        more[LOWER] = joint.new_zeros(*joint.shape, joint.shape[-1])
    stack.add_parameters(more)
    per_epoch, total = problem.steps_per_epoch, config.total_steps(problem.steps_per_epoch)
    optimization = Optimization(config, stack.leaves(), per_epoch, total, len(stack.extra))
    return State(stack, optimization, head, 0)


def refuse_likelihood(likelihood: Likelihood) -> None:
    """Refuse a likelihood for which the bound is not known in closed form."""
    if not isinstance(likelihood, Gaussian | Categorical | Bernoulli):
        raise ValueError(
            f"vbll has no bound in closed form for the likelihood {likelihood.name}, only for"
            " gaussian, categorical and bernoulli with one target per example; take laplace or vi"
        )


def root_of(extra: Tensors) -> Tensor:
    """Return R, lower triangular (..., K, F, F), or standard deviations (..., K, F)."""
    scale = extra[LOG_SCALE].exp()
    if LOWER not in extra:
        return scale
    return scale.unsqueeze(-1) * extra[LOWER].tril(-1) + scale.diag_embed()


def expected_nll(likelihood: Likelihood) -> Callable[[Tensor, Tensor, Tensors], Tensor]:
    """Return the loss of features (..., B, F): the mean over the batch of the bound on
    −E_q log p(y | f), given the head in `extra`."""

    def loss(features: Tensor, y: Tensor, extra: Tensors) -> Tensor:
        features = with_ones(checked_features(features, extra), extra)
        mean = features @ joint_weight(extra).mT
        variance = variances(features, root_of(extra))
        return bound(likelihood, mean, variance, y, extra)

    return loss


def bound(
    likelihood: Likelihood, mean: Tensor, variance: Tensor, y: Tensor, params: Tensors
) -> Tensor:
    """Return the bound on −E log p(y | f), f ~ N(mean, variance) of (..., B, K), as means (...)."""
    if isinstance(likelihood, Categorical):
        labels = align(y, mean.shape[:-1], trailing=1).unsqueeze(-1)
        upper = (mean + 0.5 * variance).logsumexp(-1)
        return (upper - mean.gather(-1, labels).squeeze(-1)).mean(-1)
    nll = likelihood.nll(mean, y, params)
    if isinstance(likelihood, Bernoulli):
        return nll + variance.squeeze(-1).mean(-1) / 8
    noise = likelihood.components(mean, params)
    assert isinstance(noise, Components)
    return nll + 0.5 * (variance / noise.scale.square()).sum(-1).mean(-1)


def divergence(joint: Tensor, extra: Tensors, prior_precision: float) -> Tensor:
    """Return KL(q ‖ p) of every mode, (M,), for means (M, K, F)."""
    squares = joint.square().sum((-2, -1)) + root_of(extra).square().flatten(1).sum(1)
    log_scale = extra[LOG_SCALE]
    constants = log_scale[0].numel() * (1 + math.log(prior_precision))
    return 0.5 * (prior_precision * squares - constants) - log_scale.sum((-2, -1))


def step(config: VBLL, problem: Problem, state: State, batch: Batch) -> tuple[State, Info]:
    """Take one step on −(L + log prior of the body) / N of every member."""
    stack, optimization, head, number = state
    body = body_with_head(stack, head)
    loss = expected_nll(problem.likelihood)
    losses = body.gradients(loss, batch.x, batch.y, own=batch.own, step=number)
    if body.channels_last != stack.channels_last:  # their memory is one
        stack.lay_out(bool(body.channels_last))
    params = head_params(stack, head)
    leaves = [*params.values(), *(stack.extra[n] for n in (LOG_SCALE, LOWER) if n in stack.extra)]
    with torch.enable_grad():
        kl = divergence(joint_weight(params), stack.extra, config.prior_precision)
        slopes = torch.autograd.grad(kl.sum() / problem.num_examples, leaves)
    with torch.no_grad():
        for leaf, slope in zip(leaves, slopes, strict=True):
            assert leaf.grad is not None
            leaf.grad += slope
    losses = add_prior(losses, body, config.prior_precision / problem.num_examples)
    optimization.update(number)
    return State(stack, optimization, head, number + 1), Info(
        losses + kl.detach() / problem.num_examples
    )


def finish(config: VBLL, problem: Problem, state: State) -> HeadWeights:
    """Return the Gaussian over the last layer of every mode."""
    stack = state.stack.clone()
    root = root_of({name: tensor.detach() for name, tensor in stack.extra.items()})
    stack.drop_parameters([LOG_SCALE, LOWER])
    return HeadWeights(stack, state.head, root, config.samples_per_mode)


METHODS.register(
    "vbll",
    summary="a Gaussian over the last layer, trained by a bound without samples",
    kind="one mode",
    positions="no",
    equation="min −Σₙ E_q[log p(yₙ | W φ(xₙ))] + KL(q(W) ‖ p(W)),  q = Πₖ N(w̄ₖ, Sₖ)",
    cost="1.1 × training, 1 × prediction",
    limits="The body is a point: the epistemic part is that of a linear layer on features that the"
    " same data have chosen. Gaussian noise or classes, one target per example.",
    paper="Harrison et al. 2024",
    bibtex="""@inproceedings{harrison2024variational,
  title={Variational {Bayesian} last layers},
  author={Harrison, James and Willes, John and Snoek, Jasper},
  booktitle={International Conference on Learning Representations}, year={2024}}""",
)(Method(VBLL, init, step, finish))
