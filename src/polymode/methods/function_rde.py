"""Repulsive deep ensembles in function space: members whose outputs avoid each other.

    φ(f_i) = γ_t (∇_f log p(D | f_i) + ∇_f log p(f_i)) − ∇_f log ρ(f_i),    θ_i ← θ_i + η J_iᵀ φ / N

The particles are the outputs of the M members on `points`, flattened, (M, Q·C); ∇ log ρ is
estimated from them by `estimator` (`methods/particles/estimators.py`) and pulled back to the
weights by one vector-Jacobian product, J_i = ∂f_i/∂θ_i. Classes are compared by probabilities
(`outputs="probs"`, the released code's default) or by logits; values by the predicted means. γ_t is
`annealing`.

Scale as in `weight_rde`: the likelihood counts all N examples, N × mean over the batch, the
repulsion weighs 1, and the whole is divided by N so that learning rates are those of `map`. The
likelihood's own parameters (learned noise) follow their gradient alone, times γ_t.

Prior: "weight" is the Gaussian prior of `map` over the weights, which costs nothing. "function" is
the paper's prior over functions: ∇_f log p(f) is estimated by ssge from M networks whose weights
are drawn anew from N(0, 1/λ) at every step. Its kernel has h = 4 medians of their squared distances
where the code has median / ln(M + 1): for a linear network, whose prior over functions is known,
the wide kernel finds the direction of the score better and its size to a third. Away from all
samples the estimate falls to 0. That is one more forward pass, and a noisy gradient: M samples in
Q·C dimensions. It has no value, so `Info.loss` is then the mean negative log-likelihood alone.

"svgd" is f-SVGD: the kernel of the outputs at `points` mixes ∇ log p of the raw network outputs on
the batch, φ(f_i) = (1/M) Σ_j [ K_ij γ_t ∇_{f_j} log p + ∂K_ij/∂f_j ]. With `outputs="probs"` the
kernel sees probabilities, while the gradients that it mixes stay those of logits: those of
probabilities are 1/p and not bounded. A prior over weights has no gradient by outputs to mix: each
member keeps its own, times Σ_j K_ij / M, which keeps its weight relative to the likelihood.

Where paper and code disagree: in the released loops only f-SVGD uses points other than the batch,
and the density estimators would fail with them; here all do. Batches of different members
(`data_order="own"`) have no common points and are refused unless `points` are given.
Limits: repulsion acts at the points alone; on the training batch it works against the fit, which is
where function-space ensembles lose accuracy in published tables. M = 1 is `map`.
Reference: F. D'Angelo, V. Fortuin, Repulsive deep ensembles are Bayesian, NeurIPS 2021. Z. Wang,
    T. Ren, J. Zhu, B. Zhang, Function space particle optimization for Bayesian neural networks,
    ICLR 2019 (f-SVGD).

Shapes: `M` modes, `B` batch, `Q` points, `K` network outputs, `C` outputs that are compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polymode.core.checks import as_numbers
from polymode.core.options import option, rule
from polymode.core.rng import fold, generator
from polymode.core.rows import map_leaves, shapes_of, shapes_text
from polymode.core.warn import warn
from polymode.distributed import ranks
from polymode.likelihoods.components import Categories
from polymode.methods.map import MAP, Info, add_prior_gradient, squared_norms
from polymode.methods.map import init as init_map
from polymode.methods.method import METHODS, Method, Problem
from polymode.methods.particles.annealing import annealing_factor, annealing_option
from polymode.methods.particles.estimators import (
    BIBTEX,
    ESTIMATORS,
    coefficients,
    kernel_and_slope,
    median_lengthscale,
    ssge,
)
from polymode.methods.particles.guards import warn_of_coincident
from polymode.methods.particles.kernel import squared_distances
from polymode.stack.stack import Stack
from polymode.training.loop import Batch
from polymode.training.optimiser import Optimization

_PRIOR_WIDTH = 4.0  # h of the prior's kernel in medians; narrower ones miss the score's direction


@dataclass(frozen=True, kw_only=True)
class FunctionRDE(MAP):
    """Options of `function_rde`: those of `map`, with five members, and"""

    usual_modes = 5
    stops_together = True
    estimator: str = option(
        "kde",
        choices=ESTIMATORS,
        doc="how the members' density is estimated",
        more="'svgd' is f-SVGD.",
    )
    annealing: str = annealing_option()
    outputs: str = option(
        "probs",
        choices=("probs", "logits"),
        doc="by what classifiers are compared, their probabilities or logits",
        more="Regressions are always compared by their means.",
    )
    points: str | Sequence[Any] | Tensor = option(
        "batch",
        choices=("batch", "perturbed"),
        rule=rule("finite inputs (Q, ...), at least one", lambda points: _are_inputs(points)),
        doc="where members repel",
        more="'perturbed' is the batch with noise. Or your own inputs (Q, ...), a tensor or nested"
        " lists, scaled as the training inputs are. Points other than the batch cost a second"
        " forward and backward pass.",
    )
    data_order: str = option(
        "shared",
        doc="whether each member shuffles the data for itself",
        more="Members are compared at the inputs of a batch, which they share; 'own' needs `points`"
        " of yours.",
    )
    points_noise: float = option(
        0.25, gt=0, doc="standard deviation of the noise of 'perturbed', in units of the inputs"
    )
    prior: str = option(
        "weight",
        choices=("weight", "function"),
        doc="over what the prior is",
        more="'weight' as in `map`; 'function' is estimated by ssge from M networks drawn from"
        " N(0, 1/λ) at every step.",
    )
    rules = (
        rule(
            "`points_noise` of {name} belongs to points='perturbed', the batch with noise",
            lambda config: (
                config.points_noise == type(config).points_noise
                or (isinstance(config.points, str) and config.points == "perturbed")
            ),
        ),
        rule(
            "prior='function' draws networks from N(0, 1 / prior_precision), which must be > 0,"
            " got 0; use prior='weight' for no prior at all",
            lambda config: config.prior != "function" or config.prior_precision != 0,
        ),
        rule(
            "data_order='own' gives every member another batch, and functions are compared at the"
            " same points: points={config.points!r} needs data_order='shared'",
            lambda config: not isinstance(config.points, str) or config.data_order != "own",
        ),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.points, str):  # kept in files as numbers
            object.__setattr__(self, "points", torch.as_tensor(self.points).tolist())


def _are_inputs(points: Any) -> bool:
    """Whether these are numbers (Q, ...), finite and not none."""
    inputs = as_numbers("`points` of FunctionRDE", points)
    return inputs.dim() > 1 and len(inputs) > 0 and bool(torch.isfinite(inputs).all())


class State(NamedTuple):
    """What the next step needs; `points` are the user's, `prior` networks to draw into."""

    stack: Stack
    optimization: Optimization
    step: int
    points: Tensor | None
    prior: Stack | None

    @property
    def mode_axes(self) -> dict[str, int | None]:
        """All members share the points."""
        return {"points": None}


def init(config: FunctionRDE, problem: Problem, stack: Stack) -> State:
    """Return the state before the first step; warns of members that coincide."""
    warn_of_coincident(stack)
    if config.outputs != type(config).outputs and not problem.likelihood.classification:
        warn(
            f"outputs='{config.outputs}' has no effect: in regression members are compared by the"
            " predicted means",
        )
    points = None
    if not isinstance(config.points, str):
        points = torch.tensor(config.points, dtype=stack.dtype, device=stack.device)
    prior = stack.clone().train() if config.prior == "function" else None
    return State(*init_map(config, problem, stack), points, prior)


def step(config: FunctionRDE, problem: Problem, state: State, batch: Batch) -> tuple[State, Info]:
    """Move every member along its log-posterior, and its outputs away from the others'."""
    stack, optimization, number = state.stack, state.optimization, state.step
    gamma = annealing_factor(config.annealing, number, optimization.total_steps)
    points = _points(config, problem, state, batch)
    pulled, kernel = None, None
    if points is not None:
        before = {name: tensor.clone() for name, tensor in stack.buffers.items()}
        values = compared(config, problem, stack(points, step=number), stack)
        kernel, force = function_force(config, problem, state, values, points, gamma)
        pulled = _pull_back(stack, [values], [force])
        for name, tensor in before.items():  # statistics of normalisation are those of the data
            stack.buffers[name].copy_(tensor)
    outputs = stack(batch.x, own=batch.own, step=number)
    losses = problem.likelihood.nll(outputs, batch.y, stack.extra)
    driving, *own = torch.autograd.grad(losses.sum(), [outputs, *stack.extra.values()])
    tensors, forces = [outputs], [gamma * driving]
    if (
        points is None and torch.isfinite(ranks.gather(losses)).all()
    ):  # else the loop tells of divergence
        values = compared(config, problem, outputs, stack)
        kernel, force = function_force(config, problem, state, values, batch.x, gamma)
        tensors, forces = [outputs, values], [gamma * driving, force]
    if kernel is not None:
        mixed = kernel.to(driving.dtype) @ ranks.gather(forces[0].flatten(1))
        forces[0] = ranks.own(mixed).view_as(driving)
    grads = _pull_back(stack, tensors, forces)
    if pulled is not None:
        torch._foreach_add_(grads, pulled)
    _set_gradients(stack.leaves(), [*grads, *(gamma * grad for grad in own)])
    if config.prior == "weight":
        strength = config.prior_precision / problem.num_examples
        losses = losses.detach() + 0.5 * strength * squared_norms(stack)
        _add_weight_prior(stack, gamma * strength, kernel)
    optimization.update(number)
    return state._replace(step=number + 1), Info(losses.detach())


def compared(config: FunctionRDE, problem: Problem, outputs: Tensor, stack: Stack) -> Tensor:
    """Return what members are compared by, (M, Q, C): probabilities, logits or means."""
    if problem.likelihood.classification and config.outputs == "logits":
        return outputs
    components = problem.likelihood.components(outputs, stack.extra)
    return components.log_probs.exp() if isinstance(components, Categories) else components.loc


@torch.no_grad()
def function_force(
    config: FunctionRDE,
    problem: Problem,
    state: State,
    values: Tensor,
    points: Tensor,
    gamma: float,
) -> tuple[Tensor | None, Tensor]:
    """Return −(γ ∇ log p(f) − ∇ log ρ(f)) / N at `values`, and with svgd the kernel over M.

    Returns:
        The matrix (M, M) that mixes the members' driving forces, None for no mixing; the force, of
        the shape of `values`.
    """
    rows = ranks.gather(values.detach().flatten(1))
    rows = rows - rows.mean(0)
    squared = squared_distances(rows, rows)
    mixing = None
    if config.estimator == "svgd":
        kernel, matrix = kernel_and_slope("svgd", squared)
        mixing, matrix = kernel / len(rows), matrix / len(rows)
    else:
        matrix = coefficients(config.estimator, squared)
    force = ranks.own(matrix.to(rows.dtype) @ rows).view(values.shape)
    if state.prior is not None:
        prior = gamma * _prior_gradient(config, problem, state, values, points).flatten(1)
        if mixing is not None:
            prior = ranks.own(mixing.to(prior.dtype) @ ranks.gather(prior))
        force = force - prior.view_as(force)
    return mixing, force / problem.num_examples


def _prior_gradient(
    config: FunctionRDE, problem: Problem, state: State, values: Tensor, points: Tensor
) -> Tensor:
    """Return the estimate of ∇_f log p(f) at `values` from M networks drawn from the prior."""
    prior, scale = state.prior, config.prior_precision**-0.5
    assert prior is not None
    for k, seed in enumerate(prior.seeds):
        stream = generator(seed, "function prior", state.step)
        for tensor in prior.params.values():
            noise = torch.randn(tensor[k].shape, generator=stream, dtype=tensor.dtype)
            tensor[k] = scale * noise.to(tensor.device)
    functions = compared(config, problem, prior(points, step=state.step), state.stack).flatten(1)
    samples = ranks.gather(functions)
    squared = squared_distances(samples, samples)
    width = _PRIOR_WIDTH * median_lengthscale(squared.double())
    return ssge(samples, width, at=values.detach().flatten(1)).view(values.shape)


def _points(config: FunctionRDE, problem: Problem, state: State, batch: Batch) -> Tensor | None:
    """Return the inputs at which members repel, None for the batch itself."""
    if config.points == "batch":
        return None
    if state.points is None:
        if not batch.x.is_floating_point():
            raise ValueError(
                f"points='perturbed' adds noise to the inputs, which are {batch.x.dtype}; use"
                " points='batch', or give points"
            )
        stream = generator(fold(problem.seed, "member", 0), "points", state.step)

        def moved(leaf: Tensor) -> Tensor:
            noise = torch.randn(leaf.shape, generator=stream, dtype=leaf.dtype)
            return leaf + config.points_noise * noise.to(leaf.device)

        return map_leaves(batch.x, moved)  # type: ignore[no-any-return]
    if not isinstance(batch.x, Tensor):
        raise ValueError(
            "`points` of FunctionRDE are one tensor, and the networks take several inputs:"
            f" {shapes_text(shapes_of(batch.x))}; take points='batch' or 'perturbed'"
        )
    shape = batch.x.shape[2:] if batch.own else batch.x.shape[1:]
    if state.points.shape[1:] != shape:
        raise ValueError(
            f"`points` of FunctionRDE have shape {tuple(state.points.shape)}, but one training"
            f" input has {tuple(shape)}; give (Q, {', '.join(map(str, shape))})"
        )
    return state.points


def _pull_back(stack: Stack, tensors: list[Tensor], forces: list[Tensor]) -> list[Tensor]:
    """Return Jᵀ force of every network parameter, summed over the tensors, in one pass."""
    leaves = list(stack.params.values())
    grads = torch.autograd.grad(tensors, leaves, forces, allow_unused=True)
    pairs = zip(leaves, grads, strict=True)
    return [torch.zeros_like(leaf) if grad is None else grad for leaf, grad in pairs]


def _add_weight_prior(stack: Stack, strength: float, mixing: Tensor | None) -> None:
    """Add the gradient of (strength / 2) ‖θ‖², scaled as svgd scales each member's likelihood."""
    if mixing is None:
        return add_prior_gradient(stack, strength)
    with torch.no_grad():
        for p in stack.params.values():
            scale = strength * ranks.own(mixing).sum(1).to(p.dtype).view(-1, *(1,) * (p.dim() - 1))
            assert p.grad is not None
            p.grad.addcmul_(p, scale)


def _set_gradients(leaves: list[Tensor], grads: list[Tensor]) -> None:
    """Set `.grad` in the memory layout of its parameter, which fused optimisers rely on."""
    for leaf, grad in zip(leaves, grads, strict=True):
        leaf.grad = grad if grad.stride() == leaf.stride() else torch.empty_like(leaf).copy_(grad)


METHODS.register(
    "function_rde",
    summary="members whose outputs repel each other",
    kind="many modes",
    equation="φ(fᵢ) = γ ∇ log p(fᵢ | D) − ∇ log ρ(fᵢ),  pulled back to the weights",
    cost="M × training (2 M with points other than the batch), M × prediction",
    limits="Repulsion acts only at the chosen points; on the training batch it works against the"
    " fit.",
    paper="D'Angelo and Fortuin 2021",
    bibtex=BIBTEX,
)(Method(FunctionRDE, init, step, uses_inputs=lambda config: config.points != "batch"))
