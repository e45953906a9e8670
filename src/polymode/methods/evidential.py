r"""Evidential networks: one network whose outputs are the parameters of a distribution over
distributions. A baseline.

    values    (γ, ν, α, β)(x):  σ² ~ InvGamma(α, β),  μ ~ N(γ, σ² / ν),  y ~ N(μ, σ²)
              −log p(y) = −log St(y; γ, β (1 + ν) / (ν α), 2α),   + w |y − γ| (2ν + α)
    classes   α_c(x) = 1 + softplus(f_c(x)),  p ~ Dir(α),  S = Σ_c α_c
              mse       Σ_c (y_c − α_c/S)² + α_c (S − α_c) / (S² (S + 1)) = E ‖y − p‖²
              log       log S − log α_y = −log E p_y
              digamma   ψ(S) − ψ(α_y) = −E log p_y,   each + w KL(Dir(α̃) ‖ Dir(1))

α̃ is α with 1 for the true class. w is `evidence_weight`; it grows from 0 in the first
`annealing_epochs`. The prior over the weights is that of `map`.

Of values, γ is the network's own output, and a second linear layer on the same features gives ν,
α − 1 and β by softplus. In a prediction, sample l is N(γ, σ_l² (1 + 1/ν)) with σ_l² a quantile of
its law; its share 1 / (1 + ν) counts as epistemic. So the mixture over samples tends to the
Student-t, and its parts to E σ² = β / (α − 1) and Var μ = β / (ν (α − 1)). Of classes, sample l is
a point of Dir(α) by quantiles of a Gamma for each class. Both take points of a scrambled Sobol
sequence, the same at all inputs: samples are functions of x, and do not depend on the batch.
`energy` of a prediction is −log S, which ranks inputs as the vacuity C / S does. Networks are not
drawn: there is one for each mode, and `draws` are that one.

Where examples are held out (see `map`), members are judged on them by the likelihood of γ, with the
noise that fits its errors there, and by that of α / S.

Limits, which are why this is a baseline: ν is not determined by the likelihood, which depends on
β (1 + ν) / ν alone (Meinert et al.), and the regulariser then decides on the epistemic part; no
loss of this kind has its minimum where the epistemic part is right, nor does that vanish with more
data (Bengs et al.; Jürgens et al.; Shen et al.); users of chemprop (issue 593) report standard
deviations that are wrong by orders of magnitude. See docs/methods/evidential.md.
References: M. Sensoy, L. Kaplan, M. Kandemir, Evidential deep learning to quantify classification
    uncertainty, NeurIPS 2018; A. Amini, W. Schwarting, A. Soleimany, D. Rus, Deep evidential
    regression, NeurIPS 2020.

Shapes: `M` modes, `L` samples per mode, `B` batch, `F` features, `C` classes, `D` targets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.quasirandom import SobolEngine

from polymode.core.options import option
from polymode.core.rng import fold
from polymode.core.safe_files import TensorForm
from polymode.likelihoods.components import Categories, Components
from polymode.likelihoods.kinds import Categorical, Gaussian, Likelihood
from polymode.likelihoods.targets import align
from polymode.methods import map as map_
from polymode.methods.last_layer.cut import (
    body_with_head,
    checked_features,
    head_params,
    require_head,
    require_trained,
    without_head,
)
from polymode.methods.map import MAP, Info, add_prior
from polymode.methods.method import METHODS, Method, Problem
from polymode.posterior.weights import KINDS, Weights, form_of
from polymode.stack.stack import Stack
from polymode.tracing.modules import Tensors
from polymode.training.loop import Batch
from polymode.training.optimiser import Optimization

EVIDENCE = "evidence_weight", "evidence_bias"  # (M, 3 D, F) and (M, 3 D): of ν, α − 1 and β
LOSSES = ("mse", "log", "digamma")
EDGE = 1e-6  # quantiles are at least so far from 0 and 1


@dataclass(frozen=True, kw_only=True)
class Evidential(MAP):
    """Options of `evidential`: those of `map`, and"""

    loss: str | None = option(
        None,
        choices=LOSSES,
        doc="loss of classes",
        none="is 'digamma' for classes; values have one loss",
        more="The paper prefers 'mse', which with its weight of evidence, 1, learns nothing of"
        " digits in the steps that others take.",
    )
    evidence_weight: float | None = option(
        None,
        ge=0,
        doc="w, weight of the term that lowers evidence where the network errs",
        none="is 0.1 for classes and 0.01 for values",
        more="The papers have 1 and 0.01. On it hangs the epistemic part of values.",
    )
    annealing_epochs: int | None = option(
        None,
        ge=0,
        doc="passes over the data in which w grows from 0",
        none="is 10 for classes and 0 for values, as in the papers",
    )
    samples_per_mode: int = option(
        30, ge=1, doc="L points of the distribution over distributions in a prediction"
    )


class State(NamedTuple):
    """What the next step needs; `head` is the path of the last layer, None for classes."""

    stack: Stack
    optimization: Optimization
    head: str | None
    step: int


class Evidence(NamedTuple):
    """Parameters of the normal-inverse-gamma distributions of values, (..., B, D) each."""

    gamma: Tensor
    nu: Tensor
    alpha: Tensor
    beta: Tensor


def init(config: Evidential, problem: Problem, stack: Stack) -> State:
    """Return the state before the first step; of values, adds a layer for ν, α and β."""
    likelihood = problem.likelihood
    refuse_likelihood(config, likelihood)
    map_.add_noise(config, problem, stack)
    head, leaves = None, list(stack.params.values())
    if isinstance(likelihood, Gaussian):
        head = require_head(stack, next(problem.inputs(config.batch_size))[:2], "evidential")
        require_trained(stack, head, "evidential")
        weight = head_params(stack, head)["weight"]
        modes, outputs, features = weight.shape
        sizes = (modes, 3 * outputs, features), (modes, 3 * outputs)
        more = {n: weight.detach().new_zeros(size) for n, size in zip(EVIDENCE, sizes, strict=True)}
        stack.add_parameters(more)
        leaves += [stack.extra[name] for name in EVIDENCE]
    per_epoch, total = problem.steps_per_epoch, config.total_steps(problem.steps_per_epoch)
    return State(stack, Optimization(config, leaves, per_epoch, total), head, 0)


def refuse_likelihood(config: Evidential, likelihood: Likelihood) -> None:
    """Refuse all but classes and values with noise to learn, and a loss of classes for values."""
    learned = isinstance(likelihood, Gaussian) and likelihood.learns
    if not isinstance(likelihood, Categorical) and not learned:
        raise ValueError(
            "evidential takes 'categorical', or Gaussian(noise='learned') since it learns the noise"
            f" itself, with one target per example, and the likelihood is {likelihood.name}; take"
            " laplace or swag"
        )
    if learned and config.loss is not None:
        raise ValueError(
            f"`loss` of Evidential is {config.loss!r}, one of classes, but the task has values;"
            " leave it out"
        )


def evidence_of(features: Tensor, params: Mapping[str, Tensor]) -> Evidence:
    """Return γ, ν > 0, α > 1 and β > 0 of features (..., B, F), by the layers in `params`."""
    gamma = features @ params["weight"].mT
    if "bias" in params:
        gamma = gamma + params["bias"].unsqueeze(-2)
    weight, bias = (params[name] for name in EVIDENCE)
    raw = F.softplus(features @ weight.mT + bias.unsqueeze(-2))
    nu, alpha, beta = raw.clamp_min(torch.finfo(raw.dtype).eps).chunk(3, -1)
    return Evidence(gamma, nu, alpha + 1, beta)


def nig_nll(evidence: Evidence, y: Tensor) -> Tensor:
    """Return −log St(y; γ, β(1 + ν)/(να), 2α), elementwise."""
    gamma, nu, alpha, beta = evidence
    omega = 2 * beta * (1 + nu)
    return (
        0.5 * (math.pi / nu).log()
        - alpha * omega.log()
        + (alpha + 0.5) * ((y - gamma).square() * nu + omega).log()
        + alpha.lgamma()
        - (alpha + 0.5).lgamma()
    )


def loss_of_values(weight: float) -> Callable[[Tensor, Tensor, Tensors], Tensor]:
    """Return the loss of features (..., B, F): means over the batch, summed over targets."""

    def loss(features: Tensor, y: Tensor, extra: Tensors) -> Tensor:
        evidence = evidence_of(checked_features(features, extra), extra)
        y = align(y, evidence.gamma.shape, trailing=2)
        errors = (y - evidence.gamma).abs() * (2 * evidence.nu + evidence.alpha)
        return (nig_nll(evidence, y) + weight * errors).sum(-1).mean(-1)

    return loss


def concentration(outputs: Tensor) -> Tensor:
    """Return α (..., C) of outputs."""
    return 1 + F.softplus(outputs)


@dataclass(frozen=True)
class MeanOfDirichlet(Categorical):
    """Classes with the probabilities α/S of outputs that give α."""

    def _costs(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return super()._costs(concentration(outputs).log(), targets)


def loss_of_classes(kind: str, weight: float) -> Callable[[Tensor, Tensor, Tensors], Tensor]:
    """Return the loss of outputs (..., B, C), means over the batch."""

    def loss(outputs: Tensor, y: Tensor, extra: Tensors) -> Tensor:
        alpha = concentration(outputs)
        total = alpha.sum(-1, keepdim=True)
        labels = align(y, alpha.shape[:-1], trailing=1)
        truth = F.one_hot(labels, alpha.shape[-1]).to(alpha.dtype)
        if kind == "mse":
            mean = alpha / total
            costs = (truth - mean).square() + mean * (1 - mean) / (total + 1)
        elif kind == "log":
            costs = truth * (total.log() - alpha.log())
        else:
            costs = truth * (total.digamma() - alpha.digamma())
        costs = costs.sum(-1)
        if weight:
            costs = costs + weight * divergence_from_flat(truth + (1 - truth) * alpha)
        return costs.mean(-1)

    return loss


def divergence_from_flat(alpha: Tensor) -> Tensor:
    """Return KL(Dir(α) ‖ Dir(1)), (...) for α (..., C)."""
    total = alpha.sum(-1)
    constants = total.lgamma() - alpha.lgamma().sum(-1) - math.lgamma(alpha.shape[-1])
    slopes = (alpha - 1) * (alpha.digamma() - total.digamma().unsqueeze(-1))
    return constants + slopes.sum(-1)


def step(config: Evidential, problem: Problem, state: State, batch: Batch) -> tuple[State, Info]:
    """Take one step of every member on its loss and the prior."""
    stack, optimization, head, number = state
    weight = weight_at(config, problem, number)
    if head is None:
        body, loss = stack, loss_of_classes(config.loss or "digamma", weight)
        if problem.selection is not None:  # held-out examples judge what is predicted
            problem.selection.likelihood = MeanOfDirichlet()
    else:
        body, loss = body_with_head(stack, head, EVIDENCE), loss_of_values(weight)
    losses = body.gradients(loss, batch.x, batch.y, own=batch.own, step=number)
    if body.channels_last != stack.channels_last:  # their memory is one
        stack.lay_out(bool(body.channels_last))
    losses = add_prior(losses, stack, config.prior_precision / problem.num_examples)
    optimization.update(number)
    return State(stack, optimization, head, number + 1), Info(losses)


def weight_at(config: Evidential, problem: Problem, number: int) -> float:
    """Return w at a step."""
    classes = problem.likelihood.classification
    weight, epochs = config.evidence_weight, config.annealing_epochs
    weight = (0.1 if classes else 0.01) if weight is None else weight
    epochs = (10 if classes else 0) if epochs is None else epochs
    return weight * min(1.0, number / (epochs * problem.steps_per_epoch)) if epochs else weight


def finish(config: Evidential, problem: Problem, state: State) -> EvidentialWeights:
    """Return the networks with their evidence; noise of the likelihood's own, which predictions do
    not use, is what fits the errors of γ."""
    stack = state.stack.clone()
    evidence = {name: stack.extra[name].detach() for name in EVIDENCE if name in stack.extra}
    stack.drop_parameters(EVIDENCE)
    if stack.extra and problem.data is not None:
        likelihood, size = problem.likelihood, problem.target_size
        spread = map_.errors(stack, likelihood, problem.data.batches(config.batch_size))
        noise = likelihood.init(stack.num_modes, size, stack.dtype, spread)
        for name, tensor in stack.tensors().items():
            if name.startswith("extra/"):
                tensor.copy_(noise[name.removeprefix("extra/")])
    return EvidentialWeights(stack, state.head, evidence, config.samples_per_mode)


class EvidentialWeights(Weights):
    """Networks whose outputs are parameters of a distribution over distributions.

    Args:
        stack: one network per mode; of values, its outputs are γ.
        head: path of the last layer, None for classes.
        evidence: the layer of ν, α and β, none for classes.
        samples_per_mode: L points of the distribution.
    """

    kind = "evidential"
    of_networks = False

    def __init__(
        self, stack: Stack, head: str | None, evidence: Tensors, samples_per_mode: int
    ) -> None:
        self.stack, self.head, self.evidence = stack, head, evidence
        self.samples_per_mode = samples_per_mode

    def parameters(self, x: Tensor) -> Evidence | Tensor:
        """Return γ, ν, α and β of values, (M, B, D) each; α (M, B, C) of classes."""
        if self.head is None:
            return concentration(self.stack.eval()(x))
        params = head_params(self.stack, self.head) | self.evidence
        features = without_head(self.stack, self.head).eval()(x)
        return evidence_of(checked_features(features, params), params)

    def components(
        self, likelihood: Likelihood, x: Tensor, samples_per_mode: int, seed: int
    ) -> Categories | Components:
        """Return L distributions of each mode, (M, L, B, ...)."""
        parameters = self.parameters(x)
        if isinstance(parameters, Tensor):
            points = self._points(samples_per_mode, seed, parameters)
            logs = gamma_quantile(parameters.unsqueeze(1), points).log()
            total = parameters.sum(-1).log().unsqueeze(1)
            return Categories(logs.log_softmax(-1), total.expand(logs.shape[:-1]))
        gamma, nu, alpha, beta = (part.unsqueeze(1) for part in parameters)
        points = self._points(samples_per_mode, seed, parameters.gamma)
        variance = beta / gamma_quantile(alpha, points) * (1 + 1 / nu)
        share = (1 / (1 + nu)).clamp(max=1 - torch.finfo(nu.dtype).eps)
        return Components(
            gamma.expand_as(variance), variance.sqrt(), None, share.expand_as(variance)
        )

    def _points(self, samples_per_mode: int, seed: int, like: Tensor) -> Tensor:
        """Return L points in the unit cube of each mode, (M, L, 1, C or D): the first of more."""
        points = [
            SobolEngine(like.shape[-1], scramble=True, seed=fold(stream, "points", seed) % 2**31)
            for stream in self.stack.seeds
        ]
        rows = torch.stack(
            [engine.draw(samples_per_mode, dtype=torch.float64) for engine in points]
        )
        return rows.clamp(EDGE, 1 - EDGE).unsqueeze(2).to(like)

    def draw(self, number: int, seed: int) -> Stack:
        return self.stack

    def __getitem__(self, modes: slice) -> EvidentialWeights:
        evidence = {name: tensor[modes] for name, tensor in self.evidence.items()}
        return EvidentialWeights(self.stack[modes], self.head, evidence, self.samples_per_mode)

    def tensors(self) -> Tensors:
        return self.stack.tensors() | self.evidence

    def numbers(self) -> dict[str, Any]:
        return {**super().numbers(), "head": self.head}

    @classmethod
    def layout(
        cls, stack: Stack, forms: Mapping[str, TensorForm], numbers: dict[str, Any]
    ) -> dict[str, TensorForm]:
        """The layer of ν, α and β, where there is a head."""
        head = numbers["head"]
        if head is None:
            return {}
        params = head_params(stack, head) if isinstance(head, str) else {}
        if "weight" not in params:
            raise ValueError(f"`head` must be a linear layer of the network, got {head!r:.40}")
        modes, outputs, features = params["weight"].shape
        sizes = (modes, 3 * outputs, features), (modes, 3 * outputs)
        return {n: form_of(params["weight"], s) for n, s in zip(EVIDENCE, sizes, strict=True)}

    @classmethod
    def restore(cls, stack: Stack, tensors: Tensors, numbers: dict[str, Any]) -> EvidentialWeights:
        return cls(stack, numbers["head"], dict(tensors), numbers["samples_per_mode"])


KINDS[EvidentialWeights.kind] = EvidentialWeights


class _GammaQuantile(torch.autograd.Function):
    """Quantiles of Gamma(α, 1), differentiable with respect to α."""

    @staticmethod
    def forward(ctx: Any, alpha: Tensor, probs: Tensor) -> Tensor:
        ctx.save_for_backward(alpha, probs)
        return _inverse(alpha, probs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        alpha, probs = (tensor.double() for tensor in ctx.saved_tensors)
        width = 1e-5 * alpha
        slope = (_inverse(alpha + width, probs) - _inverse(alpha - width, probs)) / (2 * width)
        return (gradient * slope.to(gradient)).sum_to_size(alpha.shape), None


def _inverse(alpha: Tensor, probs: Tensor) -> Tensor:
    from scipy.special import gammaincinv

    values = gammaincinv(*(t.detach().double().cpu().numpy() for t in (alpha, probs)))
    return torch.as_tensor(values).to(alpha)


def gamma_quantile(alpha: Tensor, probs: Tensor) -> Tensor:
    """Return the quantiles of Gamma(α, 1) at probabilities; the arguments broadcast."""
    return _GammaQuantile.apply(alpha, probs)  # type: ignore[no-any-return]


METHODS.register(
    "evidential",
    summary="one network that outputs a distribution over distributions; a baseline",
    kind="one mode",
    positions="no",
    equation="y ~ St(γ, β(1 + ν)/(να), 2α), (γ, ν, α, β) = f(x);  p ~ Dir(1 + softplus f(x))",
    cost="1 × training, 1 × prediction",
    limits="Its epistemic part is set by a regulariser and not by the data: it has no known"
    " relation to a posterior, and need not shrink with more data.",
    paper="Sensoy et al. 2018; Amini et al. 2020",
    bibtex="""@inproceedings{sensoy2018evidential,
  title={Evidential deep learning to quantify classification uncertainty},
  author={Sensoy, Murat and Kaplan, Lance and Kandemir, Melih},
  booktitle={Advances in Neural Information Processing Systems}, year={2018}}
@inproceedings{amini2020deep,
  title={Deep evidential regression},
  author={Amini, Alexander and Schwarting, Wilko and Soleimany, Ava and Rus, Daniela},
  booktitle={Advances in Neural Information Processing Systems}, year={2020}}""",
)(Method(Evidential, init, step, finish))
