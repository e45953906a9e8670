"""Repulsive deep ensembles in feature space: members whose last hidden features avoid each other.

    θ_i ← θ_i − lr [ ∇ mean_b −log p(y_b | f_i(x_b)) + λ θ_i / N + w J_iᵀ r_i ]
    r_i = Vᵀ ∇ log ρ(V φ_i) − ∇ log p(φ_i),        log p(φ) = −Σ ln(1 + s φ²)

φ_i are the features of member i on the batch, the inputs of its last linear layer (the head), all
B·F numbers of them; J_i = ∂φ_i/∂θ_i. V (K, B·F) projects them: its rows are the
K = `num_components` leading directions, orthonormal, of the members' gradients
∂ log p(y | φ_i)/∂φ_i. ρ is the density of the M projected particles V φ_i; its score is estimated
by `estimator` (`methods/particles/estimators.py`). The prior of the features is Cauchy,
s = `prior_scale`. V and the other members are constants. All members see the same batch. The head
follows the likelihood and its weight prior alone. With one member, or weight 0, nothing repels, the
features have no prior, and this is `deep_ensemble`.

From the sources: features, projection by gradients, K = 5, the Cauchy prior, the kernel density
estimate and w = 1/B ("batch") are those of the authors' code (featurePI); s = 10⁻³ is what the
authors of FoRDE took for CIFAR-10 (5·10⁻³, the code's default, for CIFAR-100). Both call s the
prior scale; the Cauchy distribution's own scale is 1/√s, about 32, a weak prior.
Where this differs from that code:
- directions: theirs takes the first K of eigenvalues in rising order, the smallest; here they are
  the largest, as in the projected gradient descent that it follows.
- bandwidth: theirs squares a median of distances that are squared already; here h is
  that of the other repulsive ensembles of this library, for kde median / ln(M + 1).
- head: theirs is one for all members, so that their features mean the same (`head="shared"`). By
  default members are whole networks, each with its own head ("own"); features then differ by more
  than what the kernel is meant to see. FoRDE's authors do not say which they took.
Our choice: "data" (w = 1/N) is the faithful weight, as for FoRDE; the other estimators; regression.

Limits: features are repelled on the training batch alone, which works against the fit as outputs
do; networks must end in a linear layer; with M ≤ K all M directions are kept.
Reference: S. Yashima, T. Suzuki, K. Ishikawa, I. Sato, R. Kawakami, Feature space particle
    inference for neural network ensembles, ICML 2022.

Shapes: `M` modes, `B` batch, `F` features, `K` projected dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from polymode.core.options import option
from polymode.distributed import ranks
from polymode.methods import map as map_
from polymode.methods.last_layer.cut import linear_head, names_of, without_head
from polymode.methods.map import MAP, Info, add_prior
from polymode.methods.method import METHODS, Method, Problem
from polymode.methods.particles.estimators import DENSITY_ESTIMATORS, coefficients
from polymode.methods.particles.guards import (
    check_shared,
    repulsion_weight,
    shared_order,
    warn_of_coincident,
)
from polymode.methods.particles.kernel import squared_distances
from polymode.methods.particles.terms import weight_of
from polymode.stack.execution import in_layout_of
from polymode.stack.stack import Stack
from polymode.training.loop import Batch
from polymode.training.optimiser import Optimization

_LEAST = 1e-10  # of the largest eigenvalue: directions below are rounding


@dataclass(frozen=True, kw_only=True)
class FeatureRDE(MAP):
    """Options of `feature_rde`: those of `map`, and"""

    usual_modes = 10
    stops_together = True
    num_modes: int | None = option(None, doc="members M", more="The papers use 10.")
    weight: str | float = repulsion_weight("repulsion and feature prior")
    estimator: str = option(
        "kde",
        choices=DENSITY_ESTIMATORS,
        doc="how the density ρ of the features is estimated, for ∇ log ρ",
    )
    num_components: int | None = option(
        5,
        ge=1,
        doc="K, dimensions that features are projected to",
        none="keeps all M",
        more="They are the leading directions of the members' gradients with respect to their"
        " features.",
    )
    prior_scale: float = option(
        1e-3,
        ge=0,
        doc="scale s of the Cauchy prior over the features",
        more="0 is no prior. FoRDE's authors used 0.001 for CIFAR-10 and 0.005 for CIFAR-100.",
    )
    head: str = option(
        "own",
        choices=("own", "shared"),
        doc="whose last layer",
        more="'own': each member has one; 'shared': one for all, as in the authors' code, at the"
        " start that of member 0.",
    )
    data_order: str = shared_order()


class State(NamedTuple):
    """What the next step needs; `head` is the path of the last layer, None where nothing repels."""

    stack: Stack
    optimization: Optimization
    step: int
    head: str | None


def init(config: FeatureRDE, problem: Problem, stack: Stack) -> State:
    """Return the state before the first step; looks for the head with a few training inputs."""
    warn_of_coincident(stack)
    head = None
    if ranks.num_modes(stack.num_modes) > 1 and config.weight != 0:
        head = find_head(stack, next(problem.inputs(config.batch_size))[:2])
    return State(*map_.init(config, problem, stack), head)


def step(config: FeatureRDE, problem: Problem, state: State, batch: Batch) -> tuple[State, Info]:
    """Take one step of every member on its log-posterior, its features away from the others'."""
    stack, optimization, number, head = state
    if head is None:
        plain, info = map_.step(config, problem, map_.State(*state[:3]), batch)
        return State(*plain, head), info
    check_shared("feature_rde", batch)
    if config.head == "shared" and number == 0:
        _share(stack, head)
    body = without_head(stack, head)
    features = body(batch.x, step=number)  # (M, B, F)
    stack.channels_last = body.channels_last
    head_params = [stack.params[name] for name in names_of(head) if name in stack.params]
    losses = problem.likelihood.nll(_apply(stack, head, features), batch.y, stack.extra)
    beside = [*head_params, *stack.extra.values()]
    by_features, *by_beside = torch.autograd.grad(losses.sum(), [features, *beside])
    weight = weight_of(config.weight, problem, batch.y)
    if torch.isfinite(ranks.gather(losses)).all():  # else the loop tells of divergence
        by_features = by_features + weight * feature_force(config, features, by_features)
    leaves = list(body.params.values())
    by_body = torch.autograd.grad(features, leaves, by_features, materialize_grads=True)
    if config.head == "shared":
        by_beside[: len(head_params)] = [
            ranks.gather(g).mean(0).expand_as(g) for g in by_beside[: len(head_params)]
        ]
    for leaf, grad in zip([*leaves, *beside], [*by_body, *by_beside], strict=True):
        leaf.grad = in_layout_of(leaf, grad)
    losses = add_prior(losses, stack, config.prior_precision / problem.num_examples)
    optimization.update(number)
    if config.head == "shared":
        _share(stack, head)
    return State(stack, optimization, number + 1, head), Info(losses)


@torch.no_grad()
def feature_force(config: FeatureRDE, features: Tensor, gradients: Tensor) -> Tensor:
    """Return Vᵀ ∇ log ρ(z) − ∇ log p(φ), of the shape of `features` (M, B, F).

    Args:
        features: φ of every member on the batch. gradients: of its loss by them, of any scale.
    """
    rows = features.detach().flatten(1)
    every = ranks.gather(rows)
    axes = leading_directions(ranks.gather(gradients.flatten(1)), config.num_components)
    axes = axes.to(rows.dtype)
    z = (every - every.mean(0)) @ axes.T  # (M, K)
    matrix = coefficients(config.estimator, squared_distances(z, z))
    force = ranks.own((matrix.to(z.dtype) @ z) @ axes)
    prior = 2 * config.prior_scale * rows / (1 + config.prior_scale * rows.square())
    return (force + prior).view(features.shape)


def leading_directions(gradients: Tensor, number: int | None) -> Tensor:
    """Return orthonormal directions (K, P), float64, that hold most of gradients (M, P).

    They are the right singular vectors, from the M × M matrix of inner products; those whose
    singular value is rounding are left out, so that K may be 0.
    """
    rows = gradients.double()
    values, vectors = torch.linalg.eigh(rows @ rows.T)
    kept = (values > _LEAST * values[-1]).nonzero().flatten().flip(0)[:number]
    return (vectors[:, kept] * values[kept].rsqrt()).T @ rows


def find_head(stack: Stack, x: Tensor) -> str:
    """Return the path of the linear layer whose outputs are the network's."""
    path = linear_head(stack, x, pointwise=True)
    if path and any(not name.startswith(f"{path}.") for name in stack.params):
        return path
    raise ValueError(
        "feature_rde repels the inputs of the last linear layer, but the outputs of this"
        f" {type(stack.template).__name__} are not those of an nn.Linear of its own behind other"
        " trainable layers; let its forward method end in one, or use function_rde, which repels"
        " outputs"
    )


def _apply(stack: Stack, head: str, features: Tensor) -> Tensor:
    """Return the outputs (M, B, K) of the heads."""
    tensors = {**stack.params, **stack.frozen}
    weight, bias = (tensors.get(name) for name in names_of(head))
    assert weight is not None
    positions = weight.dim() - 3  # of a 1 x 1 convolution, whose channels come first
    if positions:
        features, weight = features.movedim(2, -1), weight.flatten(2)
    if features.dim() < 3 or features.shape[-1] != weight.shape[-1]:
        raise ValueError(
            f"feature_rde repels the inputs of the last linear layer, '{head}', but this network"
            " does not end in it for every batch; let its forward method end in one layer, or use"
            " function_rde, which repels outputs"
        )
    outputs = torch.bmm(features.flatten(1, -2), weight.mT)
    outputs = outputs if bias is None else outputs + bias.unsqueeze(1)
    outputs = outputs.unflatten(1, features.shape[1:-1])
    return outputs.movedim(-1, 2) if positions else outputs


@torch.no_grad()
def _share(stack: Stack, head: str) -> None:
    """Give all members the head of member 0; equal but for rounding after the first step."""
    for name in names_of(head):
        if name in stack.params:
            tensor = stack.params[name]
            tensor.copy_(ranks.gather(tensor)[:1].clone().expand_as(tensor))


METHODS.register(
    "feature_rde",
    summary="members whose last hidden features repel each other",
    kind="many modes",
    equation="θᵢ ← θᵢ − lr ∇[ mean_b −log p(y_b | fᵢ(x_b)) + (λ/2N)‖θᵢ‖²"
    " + w (log ρ(V φᵢ) + Σ ln(1 + s φᵢ²)) ],  φᵢ the features of the batch",
    cost="M × training, M × prediction",
    limits="Needs networks that end in a linear layer; repulsion acts only on the training batch;"
    " with heads of their own, members' features are compared in different coordinates.",
    paper="Yashima et al. 2022",
    bibtex="""@inproceedings{yashima2022feature,
  title={Feature space particle inference for neural network ensembles},
  author={Yashima, Shingo and Suzuki, Teppei and Ishikawa, Kohta and Sato, Ikuro and
    Kawakami, Rei},
  booktitle={International Conference on Machine Learning}, year={2022}}""",
)(Method(FeatureRDE, init, step))
