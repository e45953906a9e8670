"""FoRDE: an ensemble whose members repel each other in the space of their input gradients.

    θ_i ← θ_i − lr · ∇ [ mean_b −log p(y_b | f_i(x_b)) + (λ/2N) ‖θ_i‖² + w R_i ]
    R_i = ln Σ_j mean_b exp(−|s_ib − s_jb|²_Σ / h_jb),        s_ib = J_ib / |J_ib|
    J_ib = ∂ f_i(x_b)_{y_b} / ∂x_b

J is the gradient of the true class's logit with respect to the input, s its direction, Σ the
lengthscales (`lengthscales`, `alpha`), h the median bandwidth (`bandwidth`), w the `weight` of the
repulsion. In R_i the other members and h are constants: Wasserstein gradient descent with a kernel
density estimate. All members see the same batch. With one member, or weight 0, this is
`deep_ensemble`.

Where paper, poster and code disagree:
- weight: the functional gradient flow has w = 1/N ("data"); the authors' code has 1/B ("batch", the
  default), which is N/B times stronger.
- scalar: the code's logit is the default; the paper's motivation speaks of the log-probability
  ("log_prob").
- bandwidth: the code takes the median over members i for each reference j and input b
  ("reference", the default); the paper's algorithm over all pairs for each input ("all"), there
  with a factor of 2, which is left out as in the text and the code.
- lengthscales: see `particles/lengthscales.py`.
- tuned lengthscales: the paper's α comes from a sweep over {0, .1, .2, .4, .8, 1}, shown by its
  accuracy on clean and corrupted test images; no validation split is named. Here ("tuned") an
  ensemble is trained for each of `alphas` from the same seed, and the one with the lowest mean
  negative log-likelihood over the shifted validation set (`tasks/validation.py`: all shifts and
  severities alike, the mixture judged) is the posterior. The test set is not looked at.
Beyond the paper: in regression the scalar is the sum of the predicted means (one backward pass
for all outputs); inputs of one dimension use the tangent (1, f′) / |·| of the graph, because the
direction of a number has no derivative. `every`, `fraction` and `directions` save time: repulsion
in every k-th step, with k times the weight, so that the mean force stays; on a part of the batch;
and, with "components", s as the direction of Uᵀ J, where U are the `num_components` principal axes
that are kept. With all of them both are the same; with a few, "inputs" compares shadows of
directions, of different lengths, and "components" directions of shadows. In chains of linear
layers and ReLUs the latter never needs J itself, which saves a good part of the cost where inputs
are many.

Limits: a second derivative per step, two to three times the cost of a deep ensemble, and with
"tuned" one training for each of `alphas`; members that start identical stay identical; with
BatchNorm an input gradient depends on the other examples of the batch; in ReLU networks it moves
weights, not biases.
Reference: T. Trinh, M. Heinonen, L. Acerbi, S. Kaski, Input-gradient space particle inference for
    neural network ensembles, ICLR 2024.

Shapes: `M` modes, `B` batch, `D` input dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from polymode.core.checks import is_number
from polymode.core.options import option, rule
from polymode.distributed import ranks
from polymode.methods import map as map_
from polymode.methods.map import MAP, add_prior
from polymode.methods.method import METHODS, Method, Problem, Search
from polymode.methods.particles.guards import (
    check_batch,
    check_finite,
    check_sources,
    repulsion_weight,
    shared_order,
    warn_of_coincident,
)
from polymode.methods.particles.input_gradients import repelled_gradients
from polymode.methods.particles.lengthscales import (
    IDENTITY,
    LENGTHSCALES,
    Lengthscales,
    component_lengthscales,
    pca_lengthscales,
)
from polymode.methods.particles.repulsion import BANDWIDTHS, repulsion
from polymode.methods.particles.terms import SCALARS, terms_of, weight_of
from polymode.posterior import Posterior
from polymode.stack.stack import Stack
from polymode.tasks.task import Task
from polymode.tasks.validation import Makers, validation_shifts
from polymode.training.loop import Batch
from polymode.training.optimiser import Optimization

ALPHAS = (0.0, 0.1, 0.2, 0.4, 0.8, 1.0)  # the paper's sweep


@dataclass(frozen=True, kw_only=True)
class FoRDE(MAP):
    """Options of `forde`: those of `map`, and"""

    usual_modes = 10
    stops_together = True
    num_modes: int | None = option(None, doc="members M", more="The paper uses 10.")
    weight: str | float = repulsion_weight()
    scalar: str = option(
        "logit",
        choices=SCALARS,
        doc="what is differentiated with respect to the inputs",
        more="'logit' of the true class (in regression the sum of the predicted means), or"
        " 'log_prob' of the target.",
    )
    bandwidth: str = option(
        "reference",
        choices=BANDWIDTHS,
        doc="which median distance sets the kernel's width, h = median / ln M",
        more="'reference': to each reference member at each input, as in the authors' code; 'all':"
        " over all pairs at each input, as in the paper's algorithm.",
    )
    lengthscales: str = option(
        "identity",
        choices=(*LENGTHSCALES, "tuned"),
        doc="how inputs are weighted in the kernel",
        more="'pca' weights differences along the principal axes of the training inputs by their"
        " variance; 'tuned' is pca with the alpha that is best on the shifted validation set, which"
        " the task must have.",
    )
    alpha: float | None = option(
        None,
        ge=0,
        le=1,
        doc="blend of identity (0) and pca (1)",
        none="is 1",
        more="For lengthscales='pca': Σ⁻¹ = (1 − α) I + α U Λ Uᵀ.",
    )
    alphas: Sequence[float] = option(
        ALPHAS,
        ge=0,
        le=1,
        rule=rule("different numbers in [0, 1], at least one", lambda alphas: _differ(alphas)),
        doc="candidates for alpha",
        more="For lengthscales='tuned'. The default is the paper's.",
    )
    num_components: int | None = option(
        None,
        ge=1,
        doc="eigenvectors kept for 'pca' and 'tuned'",
        none="keeps all",
        more="They are those of the largest eigenvalues; the others are set to 0.",
    )
    directions: str = option(
        "inputs",
        choices=("inputs", "components"),
        doc="what s is the direction of",
        more="'inputs': of J among all inputs; 'components': of Uᵀ J among the kept principal axes"
        " U, which is faster for chains of linear layers and ReLUs with many inputs.",
    )
    every: int = option(
        1,
        ge=1,
        doc="steps from one repulsion to the next",
        more="The repulsion then has `every` times the weight.",
    )
    fraction: float = option(1.0, gt=0, le=1, doc="part of each batch on which members repel")
    data_order: str = shared_order()
    rules = (
        rule(
            "`alphas` of {name} belong to lengthscales='tuned', not to {config.lengthscales!r}",
            lambda config: config.alphas == ALPHAS or config.lengthscales == "tuned",
        ),
        rule(
            "lengthscales='tuned' of {name} chooses alpha, but alpha={config.alpha:g} is given;"
            " leave it out, or take lengthscales='pca' with it",
            lambda config: config.alpha is None or config.lengthscales != "tuned",
        ),
        rule(
            "`alpha` and `num_components` of {name} belong to lengthscales='pca', not to"
            " 'identity'",
            lambda config: (
                config.lengthscales != "identity" or config.alpha is config.num_components is None
            ),
        ),
        rule(
            "directions='components' of {name} needs their number: give lengthscales='pca' with"
            " num_components, 64 for instance",
            lambda config: config.directions == "inputs" or config.num_components is not None,
        ),
    )

    def __post_init__(self) -> None:
        if _differ(self.alphas):
            object.__setattr__(self, "alphas", tuple(map(float, self.alphas)))
        super().__post_init__()


def _differ(alphas: object) -> bool:
    """Whether these are different numbers in [0, 1], at least one."""
    if not isinstance(alphas, Sequence) or isinstance(alphas, str):
        return False
    return 0 < len(alphas) == len(set(alphas)) and all(map(_in_unit, alphas))


def _in_unit(value: object) -> bool:
    return is_number(value) and 0 <= value <= 1  # type: ignore[operator]


class State(NamedTuple):
    """What the next step needs; `axes` of the lengthscales, or None for the identity, and `basis`
    (D, K) of directions="components", else None."""

    stack: Stack
    optimization: Optimization
    step: int
    axes: Tensor | None
    basis: Tensor | None

    @property
    def mode_axes(self) -> dict[str, int | None]:
        """All members share what the lengthscales are made of."""
        return {"axes": None, "basis": None}


class Info(NamedTuple):
    """What a step tells: each member's loss as in `map`, without repulsion, (M,) nats, and its
    repulsion R_i (M,) in [0, ln M], NaN in steps without."""

    loss: Tensor
    repulsion: Tensor


def init(config: FoRDE, problem: Problem, stack: Stack) -> State:
    """Return the state before the first step; reads the training inputs once for "pca"."""
    warn_of_coincident(stack)
    if config.lengthscales == "tuned":
        raise ValueError(
            "lengthscales='tuned' trains several ensembles, which pm.fit does; in a loop of your"
            " own take lengthscales='pca' with an alpha"
        )
    repels = config.weight and ranks.num_modes(stack.num_modes) > 1
    if repels and problem.data is not None:
        check_sources("forde", stack, next(problem.inputs(config.batch_size)))
    scales, basis = IDENTITY, None
    if config.lengthscales == "pca" and ranks.num_modes(stack.num_modes) > 1:
        inputs, number = problem.inputs(config.batch_size), config.num_components
        if config.directions == "components":
            assert number is not None
            basis, scales = component_lengthscales(
                inputs, number, alpha=_alpha(config), dtype=stack.dtype
            )
        else:
            scales = pca_lengthscales(
                inputs, alpha=_alpha(config), num_components=number, dtype=stack.dtype
            )
    stack, optimization, first = map_.init(config, problem, stack)
    return State(stack, optimization, first, scales.axes, basis)


def _alpha(config: FoRDE) -> float:
    return 1.0 if config.alpha is None else config.alpha


def step(config: FoRDE, problem: Problem, state: State, batch: Batch) -> tuple[State, Info]:
    """Take one step of every member on its log-posterior and away from the others."""
    stack, optimization, number, axes, basis = state
    weight = weight_of(config.weight, problem, batch.y) * config.every
    if ranks.num_modes(stack.num_modes) == 1 or weight == 0 or number % config.every:
        loss = problem.likelihood.nll
        losses = stack.gradients(loss, batch.x, batch.y, own=batch.own, step=number)
        values = torch.full_like(losses, math.nan)
    else:
        check_batch("forde", problem.likelihood, batch)
        check_sources("forde", stack, batch.x)
        scales = Lengthscales(axes, _alpha(config))
        repel = partial(repulsion, lengthscales=scales, bandwidth=config.bandwidth)
        rows = math.ceil(config.fraction * len(batch.x))
        terms = terms_of(problem, config.scalar, repel, weight, rows, basis)
        losses, values = repelled_gradients(stack, terms, batch.x, batch.y, number)
        check_finite(losses, values, number)
    losses = add_prior(losses, stack, config.prior_precision / problem.num_examples)
    optimization.update(number)
    return State(stack, optimization, number + 1, axes, basis), Info(losses, values)


def search(config: FoRDE, task: Task) -> Search | None:
    """Return the choice of alpha on the shifted validation set, for lengthscales="tuned"."""
    if config.lengthscales != "tuned":
        return None
    try:
        shifts = validation_shifts(task)
    except ValueError as error:
        raise ValueError(
            f"lengthscales='tuned' chooses alpha on a shifted validation set: {error}; or use"
            " lengthscales='pca'"
        ) from None
    fixed = partial(replace, config, lengthscales="pca", alphas=ALPHAS)
    return Search(
        [({"alpha": alpha}, fixed(alpha=alpha)) for alpha in config.alphas],
        partial(shifted_nll, shifts),
        f"mean NLL of the mixture on the validation set under {', '.join(shifts)}; severities 1-5",
    )


def shifted_nll(shifts: dict[str, Makers], post: Posterior) -> float:
    """Return the mean over shifts and severities of the mixture's NLL, nats per example."""
    total, number = 0.0, 0
    for makers in shifts.values():
        for make in makers.values():
            data = make()
            log_probs = post.predict(data).log_prob(data.y.to(post.stack.device))
            total -= log_probs.double().mean().item()
            number += 1
    return total / number


METHODS.register(
    "forde",
    summary="members repel each other in the space of their input gradients",
    kind="many modes",
    equation="θᵢ ← θᵢ − lr ∇[ mean_b −log p(y_b | fᵢ(x_b)) + (λ/2N)‖θᵢ‖²"
    " + w ln Σⱼ mean_b exp(−|sᵢ_b − sⱼ_b|²/h) ],  s = ∇ₓf_y / |∇ₓf_y|",
    cost="2 to 3 × M × training, M × prediction",
    limits="A second derivative per step; all members share their batches; the lengthscales decide"
    " which directions count, and with the identity the members of image networks differ little"
    " from a deep ensemble's.",
    paper="Trinh et al. 2024",
    bibtex="""@inproceedings{trinh2024inputgradient,
  title={Input-gradient space particle inference for neural network ensembles},
  author={Trinh, Trung and Heinonen, Markus and Acerbi, Luigi and Kaski, Samuel},
  booktitle={International Conference on Learning Representations}, year={2024}}""",
)(Method(FoRDE, init, step, search=search, uses_inputs=lambda config: True))
