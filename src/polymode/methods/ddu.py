r"""Deep deterministic uncertainty (DDU): a trained network, and how dense its features are.

    q(z) = Σ_c π_c N(z; μ_c, S_c),        z(x) the inputs of the last layer,
    μ_c, S_c, π_c: mean, covariance (divisor n_c − 1) and share of the training examples of class c

The classes' probabilities are the network's softmax, which tells of ambiguity (aleatoric);
−log q(z) tells how far an input is from what was seen (epistemic). It is the prediction's `energy`,
in the place of that of the logits, so everything that scores OOD inputs by energy uses it;
`post.weights.log_density(x)` is log q by mode. Covariances that are singular get the smallest
jitter of 0, 1e-20, 1e-19, ... times the unit matrix with which they can be decomposed.

Hidden layers may be held below a spectral norm, as for `sngp`: `norm_bound`; the density says
little where a network maps distant inputs to the same features. Of values, q is one Gaussian of all
features; predictions are then those of `map`, and have no energy. Post-hoc: networks that are given
are taken as they are, without a bound.

Where paper and code disagree: the paper's equations have π_c, the authors' code leaves the
logarithm of the density without it in some versions; here it is part of q. Their features are
before the last layer, as here.
Limits: Gaussians of F² numbers for each class want more examples than features; features may
collapse; the score is a density and no uncertainty of a prediction; one point of the weights per
mode; one target per example.
Reference: J. Mukhoti, A. Kirsch, J. van Amersfoort, P. Torr, Y. Gal, Deep deterministic
    uncertainty: a new simple baseline, CVPR 2023.

Shapes: `M` modes, `B` batch, `F` features, `C` classes.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polymode.core.options import option
from polymode.core.safe_files import TensorForm
from polymode.likelihoods.components import Categories, Densities
from polymode.likelihoods.kinds import Likelihood
from polymode.likelihoods.positions import Positions
from polymode.methods import map as map_
from polymode.methods.laplace.laplace import refuse_low_precision
from polymode.methods.last_layer.cut import (
    checked_features,
    head_params,
    require_head,
    without_head,
)
from polymode.methods.last_layer.spectral import (
    bounded_layers,
    first_vectors,
    project,
    warn_of_unbounded,
)
from polymode.methods.map import MAP, Info
from polymode.methods.method import METHODS, Method, Problem
from polymode.methods.sampling.keeping import require_room
from polymode.posterior.weights import KINDS, Samples, Weights
from polymode.stack.stack import Stack
from polymode.tracing.modules import Tensors
from polymode.training.loop import Batch
from polymode.training.optimiser import Optimization

JITTERS = (0.0, *(10.0**e for e in range(-20, 1)))


@dataclass(frozen=True, kw_only=True)
class DDU(MAP):
    """Options of `ddu`: those of `map`, and"""

    norm_bound: float | None = option(
        None,
        gt=0,
        doc="largest spectral norm of hidden layers while training",
        none="leaves them as they are",
        more="The paper has 3, in residual networks.",
    )


class State(NamedTuple):
    """What the next step needs; `head` is the path of the last layer, and `vectors` those of the
    power iterations, by the names of weights."""

    stack: Stack
    optimization: Optimization
    head: str
    vectors: Tensors
    step: int


def init(config: DDU, problem: Problem, stack: Stack) -> State:
    """Return the state before the first step; refuses networks without a last linear layer."""
    if isinstance(problem.likelihood, Positions):
        raise ValueError(
            "ddu takes the features of one target per example, and the likelihood is"
            f" {problem.likelihood.name}; take deep_ensemble or swag"
        )
    x = next(problem.inputs(config.batch_size))[:2]
    refuse_low_precision("ddu", stack)
    head = require_head(stack, x, "ddu")
    modes, _, size = head_params(stack, head)["weight"].shape
    classes = problem.target_size if problem.likelihood.classification else 1
    require_room(2 * modes * classes * size**2 * 8, stack, "covariances of ddu")
    vectors: Tensors = {}
    if config.norm_bound is not None:
        layers = bounded_layers(stack, x, head)
        warn_of_unbounded("ddu", stack, layers, head)
        vectors = first_vectors(stack, layers)
    stack, optimization, first = map_.init(config, problem, stack)
    return State(stack, optimization, head, vectors, first)


def step(config: DDU, problem: Problem, state: State, batch: Batch) -> tuple[State, Info]:
    """Take one step on the log-posterior of every member, and project its hidden layers."""
    plain = map_.State(state.stack, state.optimization, state.step)
    plain, info = map_.step(config, problem, plain, batch)
    if config.norm_bound is not None:
        example = batch.x[0] if batch.own else batch.x
        layers = bounded_layers(state.stack, example, state.head)
        project(state.stack, layers, state.vectors, config.norm_bound)
    return state._replace(step=plain.step), info


def finish(config: DDU, problem: Problem, state: State) -> DensityWeights:
    """Return the networks with the densities of their features."""
    stack = state.stack.clone()
    if config.norm_bound is not None and state.step:
        vectors = {name: tensor.clone() for name, tensor in state.vectors.items()}
        layers = bounded_layers(stack, next(problem.inputs(config.batch_size))[:2], state.head)
        project(stack, layers, vectors, config.norm_bound, final=True)
        stack.recompute_statistics(problem.inputs(config.batch_size))
    return DensityWeights(stack, state.head, *densities(config, problem, stack, state.head))


@torch.no_grad()
def densities(
    config: DDU, problem: Problem, stack: Stack, head: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Return means (M, C, F), triangular roots of covariances (M, C, F, F) and log shares (M, C),
    -inf for classes without two examples."""
    assert problem.data is not None
    body, params = without_head(stack, head).eval(), head_params(stack, head)
    classes = problem.target_size if problem.likelihood.classification else 1

    def batches() -> Any:
        for x, y in problem.data.batches(config.batch_size):  # type: ignore[union-attr]
            labels = y if classes > 1 else torch.zeros(len(y), dtype=torch.long, device=y.device)
            yield checked_features(body(x), params).double(), labels

    sums: Tensor | None = None
    counts = torch.zeros(classes, dtype=torch.float64, device=stack.device)
    for z, labels in batches():
        share = torch.nn.functional.one_hot(labels, classes).double()
        sums = share.mT @ z if sums is None else sums + share.mT @ z
        counts += share.sum(0)
    assert sums is not None
    means = sums / counts.clamp_min(1).unsqueeze(-1)
    scatter = means.new_zeros(*means.shape, means.shape[-1])
    for z, labels in batches():
        for c in labels.unique().tolist():
            centred = z[:, labels == c] - means[:, c : c + 1]
            scatter[:, c] += centred.mT @ centred
    covariances = scatter / (counts - 1).clamp_min(1)[:, None, None]
    shares = torch.where(counts > 1, counts / counts.sum(), 0.0).log().expand(len(means), -1)
    parts = means, decomposed(covariances), shares
    return tuple(part.to(stack.dtype) for part in parts)  # type: ignore[return-value]


def decomposed(covariances: Tensor) -> Tensor:
    """Return lower triangular roots, each with the smallest jitter that lets it be."""
    size = covariances.shape[-1]
    identity = torch.eye(size, dtype=covariances.dtype, device=covariances.device)
    roots, todo = torch.zeros_like(covariances), torch.ones(covariances.shape[:-2]).bool()
    for jitter in JITTERS:
        root, failed = torch.linalg.cholesky_ex(covariances + jitter * identity)
        steady = root.diagonal(dim1=-2, dim2=-1).amin(-1) > 1e-10  # in float32 they are used
        fine = todo.to(failed.device) & (failed == 0) & steady
        roots[fine] = root[fine]
        todo &= ~fine.to(todo.device)
        if not todo.any():
            break
    return roots


class DensityWeights(Weights):
    """Networks whose predictions come with the density of their features.

    Args:
        stack: one network per mode. head: path of the last layer.
        means, roots, log_shares: see `densities`.
    """

    kind = "density"

    def __init__(
        self, stack: Stack, head: str, means: Tensor, roots: Tensor, log_shares: Tensor
    ) -> None:
        self.stack, self.head = stack, head
        self.means, self.roots, self.log_shares = means, roots, log_shares
        self.samples_per_mode = self.most = 1

    def log_density(self, x: Tensor) -> Tensor:
        """Return log q of the features of prepared inputs, (M, B) nats."""
        params = head_params(self.stack, self.head)
        features = checked_features(without_head(self.stack, self.head).eval()(x), params)
        centred = (features.unsqueeze(1) - self.means.unsqueeze(2)).mT  # (M, C, F, B)
        white = torch.linalg.solve_triangular(self.roots, centred, upper=False)
        log_scale = self.roots.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        constant = 0.5 * features.shape[-1] * math.log(2 * math.pi)
        shares = (self.log_shares - log_scale - constant).unsqueeze(-1)
        return (shares - 0.5 * white.square().sum(-2)).logsumexp(1)

    def components(
        self, likelihood: Likelihood, x: Tensor, samples_per_mode: int, seed: int
    ) -> Categories | Densities:
        """Return what the likelihood says of the outputs, with log q as the level of the logits."""
        outputs = Samples(self.stack).outputs(1, seed)(x)
        predicted = likelihood.components(outputs, self.noise(1, seed))
        if not isinstance(predicted, Categories):
            return predicted
        return predicted._replace(log_normalizer=self.log_density(x).unsqueeze(1))

    def draw(self, number: int, seed: int) -> Stack:
        return self.stack

    def __getitem__(self, modes: slice) -> DensityWeights:
        part = copy.copy(self)
        part.stack = self.stack[modes]
        for name in ("means", "roots", "log_shares"):
            setattr(part, name, getattr(self, name)[modes])
        return part

    def tensors(self) -> Tensors:
        named = {"means": self.means, "roots": self.roots, "log_shares": self.log_shares}
        return self.stack.tensors() | named

    def numbers(self) -> dict[str, Any]:
        return {**super().numbers(), "head": self.head, "classes": self.means.shape[1]}

    @classmethod
    def layout(
        cls, stack: Stack, forms: Mapping[str, TensorForm], numbers: dict[str, Any]
    ) -> dict[str, TensorForm]:
        """Means, roots of covariances and shares of each class."""
        head, classes = numbers["head"], numbers["classes"]
        params = head_params(stack, head) if isinstance(head, str) else {}
        if "weight" not in params or type(classes) is not int or classes < 1:
            raise ValueError(
                f"`head` must be a linear layer of the network, got {head!r:.40}, and `classes` at"
                f" least 1, got {classes!r:.40}"
            )
        modes, _, size = params["weight"].shape
        shapes = {
            "means": (modes, classes, size),
            "roots": (modes, classes, size, size),
            "log_shares": (modes, classes),
        }
        return {n: TensorForm(stack.dtype, torch.Size(shape)) for n, shape in shapes.items()}

    @classmethod
    def restore(cls, stack: Stack, tensors: Tensors, numbers: dict[str, Any]) -> DensityWeights:
        return cls(stack, numbers["head"], **tensors)


KINDS[DensityWeights.kind] = DensityWeights


METHODS.register(
    "ddu",
    summary="a trained network, and the density of its features as the epistemic score",
    kind="one mode",
    positions="no",
    equation="p(y | x) = softmax f(x),  q(z) = Σ_c π_c N(z; μ_c, S_c),  z the features of x",
    cost="1 × training, 1 × prediction",
    limits="The score is a density of features and no uncertainty of a prediction; features may"
    " collapse; a Gaussian of each class wants more examples than features.",
    paper="Mukhoti et al. 2023",
    bibtex="""@inproceedings{mukhoti2023deep,
  title={Deep deterministic uncertainty: a new simple baseline},
  author={Mukhoti, Jishnu and Kirsch, Andreas and van Amersfoort, Joost and Torr, Philip H. S. and
    Gal, Yarin},
  booktitle={Conference on Computer Vision and Pattern Recognition}, year={2023}}""",
)(Method(DDU, init, step, finish, post_hoc=True))
