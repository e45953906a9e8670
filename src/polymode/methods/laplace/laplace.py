r"""Linearised Laplace: a Gaussian around a trained network, made linear in its weights.

    q(θ) = N(θ̃, H⁻¹),   H = Σ_n J_nᵀ Λ_n J_n + Λ,   J_n = ∂f(x_n)/∂θ at θ̃
    f(x) ~ N(f(x; θ̃), J(x) H⁻¹ J(x)ᵀ)

Λ_n is the curvature of the likelihood at the outputs (`fisher`), Λ the prior's precision, one
number for all parameters, per layer, or per group. `structure` says which entries of the curvature
are kept (`curvature.py`). Predictions are those of the linear model: in closed form for values,
for classes by draws of the logits, the probit approximation or the Laplace bridge (`weights.py`).

Post-hoc: networks that are given are taken as they are, with θ̃ their weights. Factories are trained
as by `map` first. `num_modes` networks give a mixture of Laplace approximations.

The prior precision is `prior_precision` where that is given and `evidence` is not; otherwise it is
what makes the evidence largest, at the optimum of the linear model ("linear", the recommendation of
Antorán et al., and what is done where neither is given) or at the trained weights ("trained",
MacKay's classic). Networks from a factory are trained with `prior_precision`, or 1, in any case.
Why so: docs/decisions/0012.

Normalisation layers keep their running statistics. Parameters that require no gradient are known.

Limits: a Gaussian at one point of the weights; the structures leave covariances out; "kron" is
exact neither for weights used at several positions nor for more than one example; the predictive is
that of a linear model, which far from the data may widen without end.
References: D. MacKay, Neural Computation 4(3), 1992; H. Ritter, A. Botev, D. Barber, ICLR 2018;
    A. Immer, M. Korzepa, M. Bauer, AISTATS 2021; E. Daxberger et al., NeurIPS 2021.

Shapes: `M` modes, `L` samples per mode, `B` batch, `K` outputs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from polymode.core.memory import free_bytes, human
from polymode.core.options import belongs, option, rule
from polymode.core.rng import fold
from polymode.core.warn import warn
from polymode.curvature.tangent import Survey, survey
from polymode.distributed import ranks
from polymode.likelihoods.kinds import Likelihood
from polymode.likelihoods.positions import Positions
from polymode.methods import map as map_
from polymode.methods.laplace.curvature import FISHERS, STRUCTURES, Curvature, Setting, curvature
from polymode.methods.laplace.evidence import choose_prior
from polymode.methods.laplace.gaussian import GaussianPosterior, by_parameter, choose
from polymode.methods.laplace.laplace_weights import LINKS, LaplaceWeights
from polymode.methods.laplace.linear_model import COVERED
from polymode.methods.laplace.prior_groups import KINDS as PRIORS
from polymode.methods.laplace.prior_groups import prior_groups
from polymode.methods.laplace.subnetwork import SELECTIONS, diagonals, select
from polymode.methods.map import State, Trained
from polymode.methods.method import METHODS, Method, Problem
from polymode.methods.work import Work
from polymode.stack.execution import limit_threads
from polymode.stack.fast.plan import threads_for
from polymode.stack.stack import Stack
from polymode.training.holdout import HeldOut

EVIDENCES = ("auto", "trained", "linear")
LARGE, LARGEST_LAST = 20_000, 3000  # weights: of a large network, of its last layer
_FORWARD, _PRODUCTS = 1 / 3, 250.0  # passes: of a forward pass, and of a search for λ on all data
_FEW, _SHARE = 1000, 30  # examples, and what share of them, by which the evidence finds λ


def _counts(numbers: object) -> bool:
    """Whether these are integers of at least 0, one or more."""
    if not isinstance(numbers, Sequence) or not numbers:
        return False
    return all(type(number) is int and number >= 0 for number in numbers)


@dataclass(frozen=True, kw_only=True)
class Laplace(HeldOut, Trained):
    """Options of `laplace`: those of `map`, and"""

    structure: str | None = option(
        None,
        choices=STRUCTURES,
        doc="structure of the curvature",
        none="is kron, and last_layer above 20,000 weights where the last layer is linear and has"
        " at most 3,000",
        more="The evidence of many weights costs many passes over the data.",
    )
    prior: str = option(
        "single",
        choices=PRIORS,
        doc="which parameters share a precision that the evidence finds",
        more="With 'per_group', weights that normalisation makes scale-free have their own.",
    )
    evidence: str | None = option(
        None,
        choices=EVIDENCES,
        doc="how λ, and learned noise, are found",
        none="is `prior_precision` as it is given, and 'auto' where it is not",
        more="'linear' is the largest evidence at the optimum of the linear model; 'trained' is"
        " that at the trained weights (MacKay), quicker and too small; 'auto' is linear, and"
        " trained for likelihoods that the linear model does not cover.",
    )
    prior_precision: float = option(
        None,
        gt=0,
        because="H would be singular",
        doc="λ of the prior",
        none="leaves it to the evidence",
        more="Taken as it is unless `evidence` is given, too. The networks of a factory are trained"
        " with it, or with 1.",
    )
    prior_examples: int | None = option(
        None,
        ge=2,
        doc="training examples by which the evidence finds λ",
        none="is all of them for last_layer, and otherwise 1,000, or a thirtieth if that is more",
        more="What they say counts N/n times; the curvature is that of all data. Noise is found by"
        " all examples, and otherwise stays as it was trained, or held out.",
    )
    fisher: str | None = option(
        None,
        choices=FISHERS,
        doc="which curvature of the loss",
        none="is 'exact', and 'mc' where the positions of an example have more than 64 outputs and"
        " weights before the last layer have a posterior",
        more="'mc' draws targets from the prediction; 'empirical' is not a curvature of the loss,"
        " and for comparison.",
    )
    mc_samples: int = option(1, ge=1, doc="targets drawn per example with fisher='mc'")
    sharing: str = option(
        "expand",
        choices=("expand", "reduce"),
        doc="how kron treats weights that are used at several positions",
    )
    rank: int = option(20, ge=1, doc="directions of structure='low_rank'")
    subnetwork: Sequence[int] | str | None = option(
        None,
        choices=SELECTIONS,
        rule=rule("numbers of weights, integers of at least 0", lambda chosen: _counts(chosen)),
        doc="which weights structure='subnetwork' keeps",
        more="Numbers count from 0 over all trainable parameters in a row; names are rules that"
        " choose `subnetwork_size` of them (`subnetwork.py`).",
    )
    subnetwork_size: int | None = option(None, ge=1, doc="how many are chosen")
    predictive: str | None = option(
        None,
        choices=("linearised", "sampled"),
        doc="how it predicts",
        none="is 'linearised', and 'sampled' at positions of an example",
        more="'sampled' are networks with drawn weights, for comparison.",
    )
    link: str = option("mc", choices=LINKS, doc="from Gaussian logits to classes")
    output_covariance: str = option(
        "full",
        choices=("full", "position", "diagonal"),
        doc="covariance of the outputs",
        more="'diagonal': as if they were independent. 'position': of a last layer at positions, of"
        " the outputs at each of them, with none between positions.",
    )
    samples_per_mode: int = option(
        100,
        ge=1,
        doc="L draws of logits or of networks",
        more="The closed links, 'probit' and 'bridge', have one.",
    )
    rules = (
        rule(
            "`subnetwork_size` of {name} must be an integer of at least 1, got None: a `subnetwork`"
            " that is a name chooses so many",
            lambda config: not isinstance(config.subnetwork, str) or config.subnetwork_size,
        ),
        rule(
            "`subnetwork_size` of {name} belongs to a `subnetwork` that is a name",
            lambda config: config.subnetwork_size is None or isinstance(config.subnetwork, str),
        ),
        rule(
            "`subnetwork` of {name} must be numbers of weights, or how they are chosen, where"
            " structure='subnetwork', got None",
            lambda config: config.structure != "subnetwork" or config.subnetwork is not None,
        ),
        belongs("mc_samples", fisher="mc"),
        belongs("rank", structure="low_rank"),
        belongs("sharing", structure="kron"),
        belongs("subnetwork", structure="subnetwork"),
        rule(
            "`prior` of {name} is {config.prior!r}, but with a given `prior_precision` all"
            " parameters have that; leave it out, or take evidence='linear' or 'trained', which"
            " find one for each",
            lambda config: config.prior == "single" or config.evidence is not None,
        ),
        rule(
            "`prior_examples` of {name} is {config.prior_examples}, but with a given"
            " `prior_precision` no evidence is computed; leave it out, or take evidence='linear' or"
            " 'trained'",
            lambda config: config.prior_examples is None or config.evidence is not None,
        ),
        belongs("samples_per_mode", link="mc"),
        rule(
            "`link` of {name} belongs to predictive='linearised', not to 'sampled'",
            lambda config: config.predictive != "sampled" or config.link == "mc",
        ),
        rule(
            "`output_covariance` of {name} belongs to predictive='linearised', not to 'sampled'",
            lambda config: config.predictive != "sampled" or config.output_covariance == "full",
        ),
    )

    def __post_init__(self) -> None:
        if self.prior_precision is None:
            object.__setattr__(self, "prior_precision", Trained.prior_precision)
            if self.evidence is None:
                object.__setattr__(self, "evidence", "auto")
        if self.structure is None and self.sharing != type(self).sharing:
            object.__setattr__(self, "structure", "kron")  # which has it
        super().__post_init__()

    @property
    def setting(self) -> Setting:
        assert self.structure is not None  # settled
        return Setting(
            self.structure, self.fisher, self.mc_samples, self.sharing, self.rank,
            batch_size=self.batch_size,
        )  # fmt: skip


def init(config: Laplace, problem: Problem, stack: Stack) -> State:
    """Return the state before the first step; refuses what would not fit into memory."""
    refuse_low_precision("laplace", stack)
    refuse_too_large(config, stack)
    config, likelihood = placed(config, problem.likelihood), problem.likelihood
    if isinstance(likelihood, Positions):
        likelihood = likelihood.base
    outputs = likelihood.num_outputs(problem.target_size)
    if config.link == "bridge" and likelihood.classification and outputs == 1:
        raise ValueError(
            "link='bridge' with one logit is the network's own probability: its mean knows nothing"
            " of the variance; take link='probit'"
        )
    if config.link != "mc" and not likelihood.classification:
        raise ValueError(
            f"link='{config.link}' is for classes, and the likelihood is {likelihood.name};"
            " leave `link` out"
        )
    return map_.init(config, problem, stack)


def step(config: Laplace, problem: Problem, state: State, batch: Any) -> Any:
    """Take one step on the log-posterior of every member, as `map`."""
    return map_.step(config, problem, state, batch)


def placed(config: Laplace, likelihood: Likelihood) -> Laplace:
    """Return the options with what None stands for with this likelihood."""
    maps = likelihood.num_axes > 0
    linearised = not maps or config.link != "mc" or config.output_covariance != "full"
    if config.output_covariance == "position" and not maps:
        raise ValueError(
            "output_covariance='position' is for targets at positions (pixels, tokens), and here an"
            " input has one; take 'full'"
        )
    config = replace(
        config, predictive=config.predictive or ("linearised" if linearised else "sampled")
    )
    if maps and config.predictive == "linearised" and config.output_covariance == "full":
        raise ValueError(
            "covariances between all outputs of a map are too many: linearised predictions at"
            " positions need output_covariance='diagonal' or 'position', or take"
            " predictive='sampled'"
        )
    return config


def settled(config: Laplace, likelihood: Likelihood, quiet: bool = False) -> Laplace:
    """Return the options with what "auto" and None stand for with this likelihood; warns of an
    evidence that is second best unless `quiet`."""
    config = placed(config, likelihood)
    if config.evidence != "auto":
        return config
    if likelihood.name in COVERED:
        return replace(config, evidence="linear")
    if not quiet:
        warn(
            f"the linear model has no evidence for the likelihood {likelihood.name}, so the prior"
            " precision is that of the largest evidence at the trained weights, which is often too"
            " small; give `prior_precision` where you know better",
        )
    return replace(config, evidence="trained")


def finish(config: Laplace, problem: Problem, state: State) -> LaplaceWeights:
    """Return a Gaussian around each network.

    Small networks take one thread: their operations are too short to be shared, and where the cores
    are busy, threads that wait for each other take many times longer.
    """
    x = next(problem.inputs(config.batch_size))
    with limit_threads(threads_for(state.stack, x)):
        return _gaussians(config, problem, state.stack.clone().eval(), x)


def _gaussians(config: Laplace, problem: Problem, stack: Stack, x: Tensor) -> LaplaceWeights:
    config = settled(config, problem.likelihood)
    layers = survey(stack, x)
    config = sized(config, problem, stack, layers)
    look_at_coverage(config, layers, stack)
    if config.structure == "last_layer":
        size = sum(stack.params[name][0].numel() for name in layers.last)
        _refuse_matrix(config, stack, size, " of all weights, or trainable='head' with kron")
    every = prior_groups(stack, config.prior)
    posteriors, evidences = [], []
    for k in range(stack.num_modes):
        chosen = _chosen(config, problem, stack, k)
        mode_curvature = curvature(config.setting, problem, stack, k, layers, chosen)
        posterior, evidence = _posterior(config, problem, stack, k, mode_curvature)
        posteriors.append(posterior)
        evidences.append(evidence)
    weights = LaplaceWeights(
        stack,
        posteriors,
        layers,
        problem.likelihood.num_outputs(problem.target_size),
        1 if config.link != "mc" else config.samples_per_mode,
        config.predictive or "linearised",
        config.link,
        config.output_covariance,
        None if config.evidence is None else evidences,
        {name: every[name] for block in posteriors[0].blocks for name in block.names},
    )
    choices: dict[str, Any] = {k: getattr(config, k) for k in ("structure", "prior_examples")}
    if config.evidence is not None and stack.num_modes == ranks.num_modes(stack.num_modes):
        choices["prior_precisions"] = [
            {every[name]: float(value) for name, value in posterior.precision.items()}
            for posterior in posteriors
        ]
    weights.chosen = choices
    return weights


def is_small_last_layer(stack: Stack, layers: Survey) -> bool:
    """Whether there is a linear last layer whose covariance is decomposed within seconds."""
    size = sum(stack.params[name][0].numel() for name in layers.last)
    return 0 < size <= LARGEST_LAST


def sized(config: Laplace, problem: Problem, stack: Stack, layers: Survey) -> Laplace:
    """Return the options with what None stands for in a network and data of this size."""
    structure = config.structure
    if structure is None:
        large = stack.num_parameters > LARGE and is_small_last_layer(stack, layers)
        structure = "last_layer" if large else "kron"
    examples = config.prior_examples
    if examples is None and config.evidence is not None and problem.data is not None:
        number = len(problem.data)
        few = max(_FEW, number // _SHARE)
        examples = number if structure == "last_layer" else min(few, number)
    return replace(config, structure=structure, prior_examples=examples)


def work_of(config: Laplace, problem: Problem, stack: Stack) -> Work:
    """Return what the curvature and the search for λ take, about."""
    layers = survey(stack, next(problem.inputs(config.batch_size)))
    config = sized(settled(config, problem.likelihood, quiet=True), problem, stack, layers)
    outputs = problem.likelihood.num_outputs(problem.target_size)
    cheaper = "structure='last_layer'" if layers.last else "a `prior_precision` that is given"
    if config.structure == "last_layer":
        return Work(_FORWARD, "laplace of the last layer", cheaper)
    passes = _FORWARD * (1 + 2 * (outputs if config.fisher in (None, "exact") else 1))
    what = f"laplace, structure='{config.structure}'"
    if config.evidence == "linear":
        assert problem.data is not None and config.prior_examples is not None
        share = min(config.prior_examples / len(problem.data), 1.0)
        passes += _PRODUCTS * share
        what += " with evidence='linear'"
        if share > 1 / _SHARE:
            cheaper += f", or prior_examples={max(_FEW, len(problem.data) // _SHARE):,}"
    return Work(passes, what, cheaper)


def _posterior(
    config: Laplace, problem: Problem, stack: Stack, k: int, mode_curvature: Curvature
) -> tuple[GaussianPosterior, float]:
    """Return the Gaussian of mode k with its prior, and its log evidence; sets learned noise."""
    names = [name for block in mode_curvature.blocks for name in block.names]
    like = next(iter(stack.params.values())).detach()
    if config.evidence is None:
        same = torch.tensor(config.prior_precision).to(like)
        return GaussianPosterior(mode_curvature.blocks, dict.fromkeys(names, same)), 0.0
    every = prior_groups(stack, config.prior)
    groups = {name: every[name] for name in names}
    if config.evidence == "linear":
        precisions, factor, report = choose_prior(config, problem, mode_curvature, stack, k)
        evidence = float(report["log_evidence"] or math.nan)  # type: ignore[arg-type]
        if report["pruned"]:
            warn(
                f"the evidence switched {_some(report['pruned'])} off in mode"  # type: ignore[arg-type]
                f" {ranks.mode_number(k)}: the data say nothing of these weights, so"
                " that their prior precision has no bound",
            )
    else:
        params = {name: stack.params[name].detach()[k] for name in names}
        learns = problem.likelihood.learns and mode_curvature.num_values > 0
        start = config.prior_precision
        precisions, factor, evidence, _ = choose(mode_curvature, params, groups, start, learns)
    precision = by_parameter(groups, precisions, like)
    posterior = GaussianPosterior(mode_curvature.blocks, precision).scaled(factor)
    with torch.no_grad():
        for tensor in stack.extra.values():
            tensor[k] -= 0.5 * math.log(factor)
    return posterior.with_precision(precision), evidence


def _chosen(config: Laplace, problem: Problem, stack: Stack, k: int) -> Tensor | None:
    """Return the numbers of a subnetwork of mode k in rising order, checked."""
    if config.structure != "subnetwork":
        return None
    if isinstance(config.subnetwork, str):
        size, number = config.subnetwork_size or 1, ranks.mode_number(k)
        seed = fold(problem.seed, "subnetwork", number)
        candidates = diagonals(problem, stack, k, config.batch_size)
        return select(candidates, config.subnetwork, size, config.prior_precision, seed)[0]
    chosen = torch.as_tensor(config.subnetwork, dtype=torch.long).unique()
    if int(chosen[-1]) >= stack.num_parameters:
        raise ValueError(
            f"`subnetwork` of Laplace has number {int(chosen[-1]):,}, but there are"
            f" {stack.num_parameters:,} trainable weights, counted from 0"
        )
    return chosen


def look_at_coverage(config: Laplace, layers: Survey, stack: Stack) -> None:
    """Warn of parameters that the structure treats otherwise than its name says, and refuse a
    network without the layer it is about."""
    if config.structure == "kron":
        diagonal = [n for n, kind in layers.kinds.items() if kind == "single"]
        if diagonal:
            warn(
                f"{_some(diagonal)}: not part of a known linear operation, so no Kronecker factors;"
                " their blocks are diagonal",
            )
        if config.sharing == "reduce" and not layers.shared:
            warn(
                "sharing='reduce' changes nothing: no weight of this network is used at several"
                " positions",
            )
    if config.prior == "per_group" and len(set(prior_groups(stack, config.prior).values())) == 1:
        warn(
            "prior='per_group' is prior='single' here: normalisation makes no weights of this"
            " network scale-free",
        )
    if config.structure == "last_layer" and not layers.last:
        raise ValueError(
            "structure='last_layer' needs a linear last layer, and none was found in"
            f" {type(stack.template).__name__}; take structure='kron' or 'diag'"
        )


def _some(names: Sequence[str]) -> str:
    listed = ", ".join(f"'{name}'" for name in names[:5])
    return listed + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def refuse_low_precision(method: str, stack: Stack) -> None:
    """Refuse weights in which sums over the data and eigenvalues have no meaning."""
    exact = (torch.float32, torch.float64)
    for name, tensor in stack.params.items():
        if tensor.dtype not in exact:
            raise ValueError(
                f"{method} needs weights in float32 or float64, and '{name}' is"
                f" {str(tensor.dtype).removeprefix('torch.')}: curvatures are sums that it rounds"
                " away; give dtype=torch.float32 to `fit`"
            )


def refuse_too_large(config: Laplace, stack: Stack) -> None:
    """Refuse a matrix that does not fit, with the numbers and what would."""
    if config.structure not in ("full", "subnetwork"):
        return
    size = stack.num_parameters
    if config.structure == "subnetwork":
        size = config.subnetwork_size or len(config.subnetwork or ())
    _refuse_matrix(config, stack, size, ", 'diag' ({diagonal}) or 'last_layer'")


def _refuse_matrix(config: Laplace, stack: Stack, size: int, others: str) -> None:
    need, free = 4 * 8 * size**2, free_bytes(stack.device)
    if need > free:
        shapes = {name: tuple(tensor.shape[1:]) for name, tensor in stack.params.items()}
        raise ValueError(
            f"structure='{config.structure}' needs a {size:,} × {size:,} matrix:"
            f" {human(8 * size**2)} in float64, {human(need)} with its eigenvectors;"
            f" {human(free)} free. Try structure='kron' ({human(kron_bytes(shapes, stack.dtype))})"
            + others.format(diagonal=human(size * stack.dtype.itemsize))
        )


def kron_bytes(shapes: dict[str, tuple[int, ...]], dtype: torch.dtype) -> int:
    """Return how much memory Kronecker factors of these parameters take."""
    total = 0
    for shape in shapes.values():
        rows = shape[0] if shape else 1
        columns = 1
        for number in shape[1:]:
            columns *= number
        total += rows**2 + columns**2
    return total * dtype.itemsize


METHODS.register(
    "laplace",
    summary="a Gaussian around a trained network, linear in its weights",
    kind="one mode",
    equation="f(x) ~ N(f(x; θ̃), J H⁻¹ Jᵀ),  H = Σₙ Jₙᵀ Λₙ Jₙ + Λ",
    cost="1 × training, then about 100 products with the Jacobian for the prior; about C ×"
    " prediction",
    limits="A Gaussian at one point of the weights; its structure leaves covariances out; the"
    " predictive is that of a linear model.",
    paper="Immer et al. 2021",
    bibtex="""@inproceedings{immer2021improving,
  title={Improving predictions of {Bayesian} neural nets via local linearization},
  author={Immer, Alexander and Korzepa, Maciej and Bauer, Matthias},
  booktitle={International Conference on Artificial Intelligence and Statistics}, year={2021}}""",
)(Method(Laplace, init, step, finish, post_hoc=True, work=work_of))
