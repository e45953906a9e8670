r"""Spectral-normalised neural Gaussian processes (SNGP): one network that knows distances.

    hidden layers:  W ← W min(1, c / σ(W)) after each step,               c = `norm_bound`
    head:           f_k(x) = β_kᵀ φ(x),  φ(x) = √(2/D) cos(Ω h(x) / ℓ + b),  β_k ~ N(0, λ⁻¹ I)
    Laplace:        Σ_k⁻¹ = λ I + Σ_n w_nk φ_n φ_nᵀ,  w = p (1 − p) of classes, 1 / σ² of values
    mean field:     p(y | x) = softmax( β̂_kᵀ φ / √(1 + π/8 φᵀ Σ_k φ) )

The last linear layer is replaced by one on D random Fourier features of its inputs h, so that the
head is a Gaussian process with a Gaussian kernel of length ℓ between features; φᵀ Σ φ grows with
the distance of h(x) from all training features. The bound on the hidden layers keeps a residual
network from mapping distant inputs onto each other, or stretching a direction without end.

Training is that of `map` with the projection after each step (Algorithm 1 of the paper). Then one
pass over all training data makes Σ_k. Of values with Gaussian noise β is then set to the mean of
its exact posterior, so that head and noise are those of the exact process of these features.

Where paper and code disagree, and choices: the authors' code updates Σ by a moving average over
batches, here it is one sum over all data; their default shares a Σ without p (1 − p) among classes,
here each class has its own, as in the paper's equation. σ(W) of a convolution is that of the whole
map, not of the kernel as a matrix. Frequencies Ω differ between modes.
Limits: one body per mode, whose own uncertainty is left out; BatchNorm and the skip path of a
network are not bounded; without residual connections a bound from above alone does not keep inputs
apart; Gaussian noise or classes, one target per example.
Reference: J. Liu, Z. Lin, S. Padhy, D. Tran, T. Bedrax-Weiss, B. Lakshminarayanan, Simple and
    principled uncertainty estimation with deterministic deep learning via distance awareness,
    NeurIPS 2020.

Shapes: `M` modes, `B` batch, `D` random features, `K` outputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from polymode.core.options import belongs, option
from polymode.curvature.tangent import underivable
from polymode.likelihoods.components import Components
from polymode.likelihoods.kinds import Bernoulli, Categorical, Gaussian, Likelihood
from polymode.methods import map as map_
from polymode.methods.laplace.laplace import refuse_low_precision
from polymode.methods.last_layer.cut import (
    checked_features,
    head_params,
    no_head,
    require_head,
    without_head,
)
from polymode.methods.last_layer.head_weights import LINKS, HeadWeights
from polymode.methods.last_layer.spectral import (
    bounded_layers,
    first_vectors,
    project,
    warn_of_unbounded,
)
from polymode.methods.map import MAP, Info
from polymode.methods.method import METHODS, Method, Problem
from polymode.methods.sampling.keeping import require_room
from polymode.nets.conversion import Conversion, random_features
from polymode.nets.conversion.conversion import Sample
from polymode.stack.stack import Stack
from polymode.tracing.modules import Tensors
from polymode.training.loop import Batch
from polymode.training.optimiser import Optimization


@dataclass(frozen=True, kw_only=True)
class SNGP(MAP):
    """Options of `sngp`: those of `map`, and"""

    prior_precision: float = option(1.0, gt=0, because="the head's covariance would be singular")
    norm_bound: float | None = option(
        3.0,
        gt=0,
        doc="largest spectral norm c of hidden layers",
        none="leaves them as they are",
        more="The paper has 0.95 for dense layers and 6 for convolutions.",
    )
    num_features: int = option(
        256, ge=1, doc="random features D", more="The paper has 1,024; each class has D² numbers."
    )
    lengthscale: float = option(
        2.0,
        gt=0,
        doc="ℓ of the kernel between the inputs of the last layer",
        more="With one that is large for them the network begins as a constant, and may stay so.",
    )
    link: str = option(
        "probit",
        choices=LINKS,
        doc="from Gaussian logits to classes",
        more="'probit' is the paper's mean field, with one sample per mode; 'mc' draws logits.",
    )
    samples_per_mode: int = option(1, ge=1, doc="L draws of the logits with link='mc'")
    rules = (belongs("samples_per_mode", link="mc"),)


class State(NamedTuple):
    """What the next step needs; `head` is the path of the last layer, and `vectors` those of the
    power iterations, by the names of weights."""

    stack: Stack
    optimization: Optimization
    head: str
    vectors: Tensors
    step: int


def convert(config: SNGP, num_modes: int, sample: Sample) -> Conversion | None:
    """Return how the last layer becomes one on random features."""
    return random_features.plan(sample, config.num_features, config.lengthscale)


def init(config: SNGP, problem: Problem, stack: Stack) -> State:
    """Return the state before the first step."""
    refuse_likelihood(problem.likelihood)
    x = next(problem.inputs(config.batch_size))[:2]
    refuse_low_precision("sngp", stack)
    head = require_head(stack, x, "sngp")
    above = stack.template.get_submodule(head.rpartition(".")[0])
    if not isinstance(above, random_features.RandomFeatureHead):
        raise no_head("sngp", type(stack.template).__name__)
    modes, outputs, size = head_params(stack, head)["weight"].shape
    require_room(4 * modes * outputs * size**2 * 8, stack, "covariances of sngp")
    vectors: Tensors = {}
    if config.norm_bound is not None:
        layers = bounded_layers(stack, x, head)
        warn_of_unbounded("sngp", stack, layers, head)
        vectors = first_vectors(stack, layers)
    stack, optimization, first = map_.init(config, problem, stack)
    return State(stack, optimization, head, vectors, first)


def refuse_likelihood(likelihood: Likelihood) -> None:
    """Refuse a likelihood whose curvature is not that of a plain head."""
    if not isinstance(likelihood, Gaussian | Categorical | Bernoulli):
        raise ValueError(
            f"sngp has no covariance for the likelihood {likelihood.name}, only for gaussian,"
            " categorical and bernoulli with one target per example; take laplace or swag"
        )


def step(config: SNGP, problem: Problem, state: State, batch: Batch) -> tuple[State, Info]:
    """Take one step on the log-posterior of every member, and project its hidden layers."""
    plain = map_.State(state.stack, state.optimization, state.step)
    try:
        plain, info = map_.step(config, problem, plain, batch)
    except RuntimeError as error:
        if "inplace operation" not in str(error):
            raise
        raise ValueError(underivable(state.stack.template, error)) from None
    if config.norm_bound is not None:
        example = batch.x[0] if batch.own else batch.x
        layers = bounded_layers(state.stack, example, state.head)
        project(state.stack, layers, state.vectors, config.norm_bound)
    return state._replace(step=plain.step), info


def finish(config: SNGP, problem: Problem, state: State) -> HeadWeights:
    """Return the Gaussian over the head of every mode, on bounded bodies."""
    stack = state.stack.clone()
    if config.norm_bound is not None:
        vectors = {name: tensor.clone() for name, tensor in state.vectors.items()}
        layers = bounded_layers(stack, next(problem.inputs(config.batch_size))[:2], state.head)
        project(stack, layers, vectors, config.norm_bound, final=True)
        stack.recompute_statistics(problem.inputs(config.batch_size))
    root = posterior_of_head(config, problem, stack, state.head)
    return HeadWeights(stack, state.head, root, config.samples_per_mode, config.link)


@torch.no_grad()
def posterior_of_head(config: SNGP, problem: Problem, stack: Stack, head: str) -> Tensor:
    """Return roots (M, K, D, D) of the covariances Σ_k; sets the means of values."""
    assert problem.data is not None
    weight = head_params(stack, head)["weight"].detach()
    modes, outputs, size = weight.shape
    precision = config.prior_precision * torch.eye(size, dtype=torch.float64)
    precision = precision.repeat(modes, outputs, 1, 1).to(weight.device)
    moment = precision.new_zeros(modes, outputs, size)
    body = without_head(stack, head).eval()
    for x, y in problem.data.batches(config.batch_size):
        features = checked_features(body(x), {"weight": weight})
        logits = features @ weight.mT
        weights = curvature(problem.likelihood, logits, stack.extra).double()  # (M, B, K)
        wide = features.double()
        for k in range(outputs):
            weighted = wide * weights[..., k : k + 1]
            precision[:, k] += weighted.mT @ wide
            if isinstance(problem.likelihood, Gaussian):
                moment[:, k] += (weighted * y[..., k].double().unsqueeze(-1)).sum(1)
    factor = torch.linalg.cholesky(precision)
    if isinstance(problem.likelihood, Gaussian):
        weight.copy_(torch.cholesky_solve(moment.unsqueeze(-1), factor).squeeze(-1))
    identity = torch.eye(size, dtype=torch.float64, device=weight.device).expand_as(factor)
    return torch.linalg.solve_triangular(factor, identity, upper=False).mT.to(weight)


def curvature(likelihood: Likelihood, logits: Tensor, params: Tensors) -> Tensor:
    """Return −d² log p(y | f) / df_k² of each output, (M, B, K)."""
    if isinstance(likelihood, Categorical):
        share = logits.softmax(-1)
    elif isinstance(likelihood, Bernoulli):
        share = logits.sigmoid()
    else:
        noise = likelihood.components(logits, params)
        assert isinstance(noise, Components)
        return noise.scale.square().reciprocal()
    return share * (1 - share)


METHODS.register(
    "sngp",
    summary="bounded hidden layers and a Gaussian process of random features as the head",
    kind="one mode",
    positions="no",
    equation="f(x) ~ N(β̂ᵀφ, φᵀΣφ),  φ = √(2/D) cos(Ωh(x)/ℓ + b),  Σ⁻¹ = λI + Σₙ wₙφₙφₙᵀ",
    cost="1.2 × training, 1 × prediction",
    limits="One body per mode, whose own uncertainty is left out; distances are kept only by"
    " residual networks; normalisation layers are not bounded.",
    paper="Liu et al. 2020",
    bibtex="""@inproceedings{liu2020simple,
  title={Simple and principled uncertainty estimation with deterministic deep learning via distance
    awareness},
  author={Liu, Jeremiah and Lin, Zi and Padhy, Shreyas and Tran, Dustin and Bedrax-Weiss, Tania and
    Lakshminarayanan, Balaji},
  booktitle={Advances in Neural Information Processing Systems}, year={2020}}""",
)(Method(SNGP, init, step, finish, convert=convert))
