"""FoRDE: an ensemble whose members repel each other in the space of their input gradients.

    θ_i ← θ_i − lr · ∇ [ mean_b −log p(y_b | f_i(x_b)) + (λ/2N) ‖θ_i‖² + w R_i ]
    R_i = ln Σ_j mean_b exp(−|s_ib − s_jb|²_Σ / h_jb),        s_ib = J_ib / |J_ib|
    J_ib = ∂ f_i(x_b)_{y_b} / ∂x_b

J is the gradient of the true class's logit by the input, s its direction, Σ the lengthscales
(`lengthscales`, `alpha`), h the median bandwidth (`bandwidth`), w the `weight` of the repulsion. In
R_i the other members and h are constants: Wasserstein gradient descent with a kernel density
estimate. All members see the same batch. With one member, or weight 0, this is `deep_ensemble`.

Where paper, poster and code disagree:
- weight: the functional gradient flow has w = 1/N ("data"); the authors' code has 1/B ("batch", the
  default), which is N/B times stronger.
- scalar: the code's logit is the default; the paper's motivation speaks of the log-probability
  ("log_prob").
- bandwidth: the code takes the median over members i for each reference j and input b
  ("reference", the default); the paper's algorithm over all pairs for each input ("all"), there
  with a factor of 2, which is left out as in the text and the code.
- lengthscales: see `particles/lengthscales.py`.
Beyond the paper: in regression the scalar is the sum of the predicted means (one backward pass
for all outputs); inputs of one dimension use the tangent (1, f′) / |·| of the graph, because the
direction of a number has no derivative. `every` and `fraction` save time: repulsion in every k-th
step, with k times the weight, so that the mean force stays, and on a part of the batch.

Limits: a second derivative a step, about twice the cost of a deep ensemble; members that start
identical stay so; with BatchNorm an input gradient contains the other examples of the batch; in
ReLU networks the repulsion moves weights, not biases.
Reference: T. Trinh, M. Heinonen, L. Acerbi, S. Kaski, Input-gradient space particle inference for
    neural network ensembles, ICLR 2024.

Shapes: `M` modes, `B` batch, `D` input dimensions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from polymode.core.augment import is_number
from polymode.core.likelihoods import Categorical, Likelihood
from polymode.core.loop import Batch, Divergence
from polymode.core.stack import Stack
from polymode.core.training import Optimization
from polymode.methods import map as map_
from polymode.methods.map import MAP, add_prior_gradient
from polymode.methods.method import METHODS, Method, Problem
from polymode.methods.particles.coincident import warn_of_coincident
from polymode.methods.particles.input_gradients import Terms, repelled_gradients
from polymode.methods.particles.lengthscales import LENGTHSCALES, Lengthscales, pca_lengthscales
from polymode.methods.particles.repulsion import BANDWIDTHS, repulsion

_WEIGHTS = ("batch", "data")


@dataclass(frozen=True, kw_only=True)
class FoRDE(MAP):
    """Options of `forde`: those of `map`, and

    Args:
        num_modes: members M; the paper's 10.
        weight: w of the repulsion beside the mean loss: "batch" (1/B), "data" (1/N) or a number
            ≥ 0.
        scalar: what is differentiated by the inputs: "logit" of the true class (in regression the
            sum of the means), or "log_prob" of the target.
        bandwidth: median distance "reference" or "all", see above.
        lengthscales: "identity", or "pca" of the training inputs.
        alpha: from identity (0) to pca (1), for lengthscales="pca".
        num_components: eigenvectors kept for "pca"; None keeps all.
        every: repulsion in every k-th step only, with k times the weight, ≥ 1.
        fraction: of the batch on which members repel, in (0, 1].
    """

    num_modes: int = 10
    weight: str | float = "batch"
    scalar: str = "logit"
    bandwidth: str = "reference"
    lengthscales: str = "identity"
    alpha: float = 1.0
    num_components: int | None = None
    every: int = 1
    fraction: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        number = is_number(self.weight) and 0 <= self.weight < math.inf  # type: ignore[operator]
        self._require(
            number or self.weight in _WEIGHTS, "weight", "'batch', 'data' or a finite number ≥ 0"
        )
        self._require_name("scalar", ("logit", "log_prob"))
        self._require_name("bandwidth", BANDWIDTHS)
        self._require_name("lengthscales", LENGTHSCALES)
        self._require(is_number(self.alpha) and 0 <= self.alpha <= 1, "alpha", "in [0, 1]")
        self._require_integer("every", 1)
        valid = is_number(self.fraction) and 0 < self.fraction <= 1
        self._require(valid, "fraction", "in (0, 1]")
        if self.num_components is not None:
            self._require_integer("num_components", 1)
        changed = self.alpha != 1.0 or self.num_components is not None
        if self.lengthscales == "identity" and changed:
            raise ValueError(
                "`alpha` and `num_components` of FoRDE belong to lengthscales='pca', not to"
                " 'identity'"
            )
        if self.data_order == "own":
            raise ValueError(
                "`data_order` of FoRDE must be 'shared', got 'own': members are compared at the"
                " same inputs"
            )


class State(NamedTuple):
    """What the next step needs; `axes` (D, K) of the lengthscales, or None for the identity."""

    stack: Stack
    optimization: Optimization
    step: int
    axes: Tensor | None


class Info(NamedTuple):
    """What a step tells: each member's mean negative log-likelihood on the batch, (M,) nats, and
    its repulsion R_i (M,) in [0, ln M], NaN in steps without."""

    loss: Tensor
    repulsion: Tensor


def init(config: FoRDE, problem: Problem, stack: Stack) -> State:
    """Return the state before the first step; reads the training inputs once for "pca"."""
    warn_of_coincident(stack)
    axes = None
    if config.lengthscales == "pca" and stack.num_modes > 1:
        if problem.inputs is None:
            raise ValueError(
                "lengthscales='pca' needs the training inputs: give Problem(..., inputs=function"
                " that returns batches of inputs)"
            )
        axes = pca_lengthscales(
            problem.inputs(),
            alpha=config.alpha,
            num_components=config.num_components,
            dtype=stack.dtype,
        ).axes
    stack, optimization, number = map_.init(config, problem, stack)
    return State(stack, optimization, number, axes)


def step(config: FoRDE, problem: Problem, state: State, batch: Batch) -> tuple[State, Info]:
    """Take one step of every member on its log-posterior and away from the others."""
    stack, optimization, number, axes = state
    weight = _weight(config, problem, len(batch.x)) * config.every
    if stack.num_modes == 1 or weight == 0 or number % config.every:
        loss = problem.likelihood.nll
        losses = stack.gradients(loss, batch.x, batch.y, own=batch.own, step=number)
        values = torch.full_like(losses, math.nan)
    else:
        _check_batch(batch)
        scales = Lengthscales(axes, config.alpha)
        terms = Terms(
            problem.likelihood.nll,
            partial(_scalar, problem.likelihood, config.scalar, problem.target_size),
            partial(repulsion, lengthscales=scales, bandwidth=config.bandwidth),
            weight,
            rows=math.ceil(config.fraction * len(batch.x)),
        )
        losses, values = repelled_gradients(stack, terms, batch.x, batch.y, number)
        _check_finite(losses, values, number)
    add_prior_gradient(stack, config.prior_precision / problem.num_examples)
    optimization.update(number)
    return State(stack, optimization, number + 1, axes), Info(losses, values)


def _weight(config: FoRDE, problem: Problem, batch_size: int) -> float:
    if config.weight == "batch":
        return 1 / batch_size
    return 1 / problem.num_examples if config.weight == "data" else float(config.weight)


def _scalar(
    likelihood: Likelihood,
    kind: str,
    target_size: int,
    outputs: Tensor,
    targets: Tensor,
    extra: dict[str, Tensor],
) -> Tensor:
    """Return what is differentiated by the inputs, (..., B)."""
    if kind == "log_prob":
        return likelihood.log_prob(outputs, targets, extra)
    if isinstance(likelihood, Categorical):
        labels = targets.expand(outputs.shape[:-1]).unsqueeze(-1)
        return outputs.gather(-1, labels).squeeze(-1)
    if likelihood.classification:  # one logit: the sign would be the same for all members
        return outputs.squeeze(-1)
    return outputs[..., :target_size].sum(-1)


def _check_batch(batch: Batch) -> None:
    if batch.own:
        raise ValueError("forde compares members at the same inputs; give Batch(own=False)")
    if not batch.x.is_floating_point():
        raise ValueError(
            f"forde differentiates by the inputs, but they are {batch.x.dtype} and have no"
            " gradient. For tokens, the embedding is the place to repel: embed them first and give"
            " the embedded inputs, with a network that starts after the embedding"
        )


def _check_finite(losses: Tensor, values: Tensor, number: int) -> None:
    finite = torch.isfinite(values)
    if not finite.all() and torch.isfinite(losses).all():
        member = int((~finite).nonzero()[0])
        raise Divergence(
            f"the repulsion of member {member} is {values[member].item()} at step {number:,},"
            " though all losses are finite: an input gradient is not. Try a smaller learning rate"
            " or clip_norm=1.0, and look for square roots, norms or logarithms at 0 in the network"
        )


METHODS.register(
    "forde",
    summary="members repel each other in the space of their input gradients",
    kind="many modes",
    equation="θᵢ ← θᵢ − lr ∇[ mean_b −log p(y_b | fᵢ(x_b)) + (λ/2N)‖θᵢ‖²"
    " + w ln Σⱼ mean_b exp(−|sᵢ_b − sⱼ_b|²/h) ],  s = ∇ₓf_y / |∇ₓf_y|",
    cost="about 2 × M × training, M × prediction",
    limits="A second derivative a step; all members share their batches; which directions count is"
    " set by the lengthscales, and with the identity the members of image networks differ little"
    " from a deep ensemble's.",
    paper="Trinh et al. 2024",
    bibtex="""@inproceedings{trinh2024inputgradient,
  title={Input-gradient space particle inference for neural network ensembles},
  author={Trinh, Trung and Heinonen, Markus and Acerbi, Luigi and Kaski, Samuel},
  booktitle={International Conference on Learning Representations}, year={2024}}""",
)(Method(FoRDE, init, step))
