r"""Training with the evidence: MAP whose prior precisions are found on the way.

    θ ← step on Σ_n log p(y_n | f_θ(x_n)) − ½ Σ_g λ_g ‖θ_g‖²
    λ_g ← γ_g / ‖θ_g‖²,    γ_g = Σ_i l_i / (l_i + λ_g)       every `evidence_every` steps

l are the eigenvalues of the curvature of group g at the present weights, in the structure that is
asked for. The update is MacKay's, a step towards the maximum of the evidence in λ; there is no
validation set, and no second training with the λ that was found. At the end the networks have a
Gaussian with the last λ around them, as with `laplace`, so predictions are those of the linearised
network, and `post.weights.log_evidence` compares architectures (Occam's razor).

Steps before `burn_in` have the λ that is given: weights that have not learnt anything yet say
nothing about their prior. λ stays within a factor of 10 of its last value and within 10^±6 of 1.

The weights are close to a mode of the loss with these very λ, so the evidence is taken at them. For
weights that normalisation makes scale-free (`prior="per_group"`, see `laplace/groups.py`) there is
no mode: the prior shrinks them and λ grows with 1 / ‖θ_g‖², which leaves the function as it is and
acts as a schedule of their learning rate.

At these λ a Gaussian over all weights is underconfident with classes: a network that fits its
labels has little curvature, so most weights keep the spread of their prior, and the linear model
adds it up in the logits. The networks themselves do not suffer. So for classes the Gaussian at the
end is over the last layer, with λ by the evidence of the linear model (`spread`).

Learned noise of a regression is trained with the weights, by its likelihood; at the end it becomes
MacKay's, σ² = Σ (y − f)² / (N − γ), since errors on data that were fitted are too small.

Limits: nothing is held out, so a network with many more weights than examples may still end
    overconfident (friedman1 of 500 rows: 90 % intervals hold .5 to .8 of the targets); an update
    costs a pass over the data with C backward passes; the evidence is approximate, with a curvature
    of structure "kron" or "diag".
References: D. MacKay, A practical Bayesian framework for backpropagation networks, Neural
    Computation 4(3), 1992; A. Immer, M. Bauer, V. Fortuin, G. Rätsch, M. E. Khan, Scalable marginal
    likelihood estimation for model selection in deep learning, ICML 2021, whose updates are
    gradient steps.

Shapes: `M` modes, `G` groups, `L` samples per mode.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from polymode.core.options import option
from polymode.curvature.tangent import Survey, survey
from polymode.distributed import ranks
from polymode.likelihoods.kinds import Likelihood
from polymode.methods import map as map_
from polymode.methods.laplace import laplace
from polymode.methods.laplace.curvature import Curvature, Setting, curvature
from polymode.methods.laplace.gaussian import GaussianPosterior, log_evidence
from polymode.methods.laplace.laplace import refuse_low_precision
from polymode.methods.laplace.laplace_weights import LaplaceWeights
from polymode.methods.laplace.linear_model import COVERED
from polymode.methods.laplace.prior_groups import KINDS, prior_groups
from polymode.methods.map import Info, Trained
from polymode.methods.method import METHODS, Method, Problem
from polymode.stack.stack import Stack
from polymode.training.loop import Batch
from polymode.training.optimiser import Optimization

_LEAST, _MOST, _STEP = 1e-6, 1e6, 10.0
_ROUNDS = 20  # of noise and γ


@dataclass(frozen=True, kw_only=True)
class LaplaceMAP(Trained):
    """Options of `laplace_map`: those of `map`, and"""

    prior_precision: float = option(
        1.0, gt=0, because="the evidence starts there", doc="λ to begin with"
    )
    structure: str = option("kron", choices=("kron", "diag"), doc="structure of the curvature")
    prior: str = option(
        "per_layer", choices=KINDS, doc="which parameters share a λ, as in `laplace`"
    )
    burn_in: int | None = option(
        None, ge=0, doc="steps before the first update of λ", none="is a fifth of all"
    )
    evidence_every: int | None = option(
        None, ge=1, doc="steps from one update to the next", none="is five epochs"
    )
    spread: str | None = option(
        None,
        choices=("all", "last_layer"),
        doc="weights that the Gaussian at the end is over",
        none="is last_layer for classes, where the last layer is linear and has at most 3,000"
        " weights, and all otherwise",
        more="'last_layer' has its λ by the evidence of the linear model, as in `laplace`.",
    )
    samples_per_mode: int = option(100, ge=1, doc="L draws of the logits in a prediction")

    @property
    def setting(self) -> Setting:
        return Setting(structure=self.structure, batch_size=self.batch_size)


class State(NamedTuple):
    """What the next step needs; `precision` is λ of each parameter tensor, (M,) by name."""

    stack: Stack
    optimization: Optimization
    precision: dict[str, Tensor]
    step: int


def init(config: LaplaceMAP, problem: Problem, stack: Stack) -> State:
    """Return the state before the first step."""
    refuse_low_precision("laplace_map", stack)
    stack, optimization, first = map_.init(config, problem, stack)
    prior_groups(stack, config.prior)  # refuses a network without a graph, before training
    start = torch.full((stack.num_modes,), config.prior_precision, dtype=torch.float64)
    return State(stack, optimization, {name: start.clone() for name in stack.params}, first)


def step(config: LaplaceMAP, problem: Problem, state: State, batch: Batch) -> tuple[State, Info]:
    """Take one step on the log-posterior of every member; update λ where it is due."""
    stack, optimization, precision, number = state
    loss = problem.likelihood.nll
    losses = stack.gradients(loss, batch.x, batch.y, own=batch.own, step=number)
    with torch.no_grad():
        for name, parameter in stack.params.items():
            if parameter.grad is not None:
                strength = (precision[name] / problem.num_examples).to(parameter)
                shape = (-1, *(1,) * (parameter.dim() - 1))
                parameter.grad.addcmul_(strength.view(shape), parameter)
                squares = parameter.reshape(len(parameter), -1).square().sum(1)
                losses = losses + 0.5 * strength * squares
    optimization.update(number)
    if due(config, problem, number + 1):
        precision = updated(config, problem, stack, precision)
    return State(stack, optimization, precision, number + 1), Info(losses)


def due(config: LaplaceMAP, problem: Problem, done: int) -> bool:
    """Whether λ is updated after so many steps."""
    per_epoch = problem.steps_per_epoch
    first = config.total_steps(per_epoch) // 5 if config.burn_in is None else config.burn_in
    every = 5 * per_epoch if config.evidence_every is None else config.evidence_every
    return done >= first and (done - first) % every == 0


def updated(
    config: LaplaceMAP, problem: Problem, stack: Stack, precision: dict[str, Tensor]
) -> dict[str, Tensor]:
    """Return λ after one update of MacKay's at the present weights, (M,) by parameter."""
    groups = prior_groups(stack, config.prior)
    changed = {name: tensor.clone() for name, tensor in precision.items()}
    for k, posterior in enumerate(_posteriors(config, problem, stack, precision)[0]):
        gamma: dict[str, float] = dict.fromkeys(groups.values(), 0.0)
        squares = dict(gamma)
        for name, number in posterior.effective().items():
            gamma[groups[name]] += float(number)
            squares[groups[name]] += float(stack.params[name].detach()[k].double().square().sum())
        for name, group in groups.items():
            before = float(precision[name][k])
            new = gamma[group] / max(squares[group], 1e-300)
            new = min(max(new, before / _STEP), before * _STEP)
            changed[name][k] = min(max(new, _LEAST), _MOST)
    return changed


def _posteriors(
    config: LaplaceMAP, problem: Problem, stack: Stack, precision: dict[str, Tensor]
) -> tuple[list[GaussianPosterior], list[Curvature]]:
    """Return the Gaussian around each network with these λ, and the curvatures."""
    if problem.data is None:
        raise ValueError("laplace_map needs the training data: give Problem(..., data=task.train)")
    layers = survey(stack, next(problem.inputs(config.batch_size)))
    posteriors, curvatures = [], []
    for k in range(stack.num_modes):
        mode_curvature = curvature(config.setting, problem, stack, k, layers)
        mode_precision = {name: precision[name][k].to(stack.dtype) for name in stack.params}
        posteriors.append(
            GaussianPosterior(mode_curvature.blocks, mode_precision).with_precision(mode_precision)
        )
        curvatures.append(mode_curvature)
    return posteriors, curvatures


def finish(config: LaplaceMAP, problem: Problem, state: State) -> LaplaceWeights:
    """Return a Gaussian around each network, with the λ that training ended with."""
    stack = state.stack.clone().eval()
    posteriors, curvatures = _posteriors(config, problem, stack, state.precision)
    evidences = []
    for k, (posterior, mode_curvature) in enumerate(zip(posteriors, curvatures, strict=True)):
        precision, factor = posterior.precision, 1.0
        if problem.likelihood.learns and mode_curvature.num_values:
            factor = noise_factor(posterior, mode_curvature)
            posteriors[k] = posterior.scaled(factor).with_precision(precision)
            for tensor in stack.extra.values():
                tensor.data[k] -= 0.5 * math.log(factor)
        params = {n: t.detach()[k] for n, t in stack.params.items()}
        evidences.append(float(log_evidence(mode_curvature, params, precision, factor)))
    layers = survey(stack, next(problem.inputs(config.batch_size)))
    outputs = problem.likelihood.num_outputs(problem.target_size)
    if _is_spread_last(config, problem.likelihood, stack, layers):
        weights = _last_layer(config, problem, state)
        weights.log_evidence = evidences
    else:
        weights = LaplaceWeights(
            stack, posteriors, layers, outputs, config.samples_per_mode,
            "sampled" if problem.likelihood.num_axes else "linearised", log_evidence=evidences,
        )  # fmt: skip
    if stack.num_modes == ranks.num_modes(stack.num_modes):
        groups = prior_groups(stack, config.prior)
        trained = [
            {group: float(state.precision[name][k]) for name, group in groups.items()}
            for k in range(stack.num_modes)
        ]
        weights.chosen = {**weights.chosen, "trained_precisions": trained}
    return weights


def noise_factor(posterior: GaussianPosterior, mode_curvature: Curvature) -> float:
    """Return σ₀² / σ², with σ₀ the trained noise and σ² = Σ (y − f)² / (N − γ), MacKay's.

    Trained noise is that of errors on the training data, which are too small by what the γ weights
    that the data determine have fitted. γ depends on σ, so both are found in turn. Factors often
    count more weights than there are values, of which half are left at least; and noise that has
    not come down to the errors yet stays.
    """
    factor, number = 1.0, mode_curvature.num_values
    for _ in range(_ROUNDS):
        effective = sum(float(g) for g in posterior.scaled(factor).effective().values())
        factor = max(number - effective, 0.5 * number) / mode_curvature.weighted_error
        factor = min(factor, 1.0)
    return factor


def _is_spread_last(
    config: LaplaceMAP, likelihood: Likelihood, stack: Stack, layers: Survey
) -> bool:
    """Whether the Gaussian at the end is over the last layer alone."""
    if config.spread is None:
        covered = likelihood.classification and likelihood.name in COVERED
        return covered and laplace.is_small_last_layer(stack, layers)
    return config.spread == "last_layer"


def _last_layer(config: LaplaceMAP, problem: Problem, state: State) -> LaplaceWeights:
    """Return what `laplace` makes of the networks with the structure last_layer."""
    options = laplace.Laplace(
        structure="last_layer", evidence="linear", batch_size=config.batch_size,
        samples_per_mode=config.samples_per_mode,
    )  # fmt: skip
    return laplace.finish(options, problem, map_.State(*state[:2], state.step))


METHODS.register(
    "laplace_map",
    summary="a network trained with the prior that its evidence finds on the way",
    kind="one mode",
    equation="λ_g ← γ_g / ‖θ_g‖² every few epochs of training",
    cost="about 1.5 × training, about C × prediction",
    limits="The evidence is approximate, with a structured curvature at weights that are not quite"
    " a mode.",
    paper="Immer et al. 2021",
    bibtex="""@inproceedings{immer2021scalable,
  title={Scalable marginal likelihood estimation for model selection in deep learning},
  author={Immer, Alexander and Bauer, Matthias and Fortuin, Vincent and R{\\"a}tsch, Gunnar and
    Khan, Mohammad Emtiyaz},
  booktitle={International Conference on Machine Learning}, year={2021}}""",
)(Method(LaplaceMAP, init, step, finish))
