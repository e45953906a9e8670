"""The evidence of a linear model, and its maximum over prior precisions and noise.

    log E(Λ, β) = Σ_n log p(y_n | h(m, x_n)) − ½ mᵀ Λ m − ½ log det H + ½ log det Λ,
    H = Σ_n J_nᵀ B_n J_n + Λ

with Λ = λ_g on the weights of group g (`groups.py`), B_n the curvature of the likelihood at the
network's outputs f(θ̃, x_n), and for a Gaussian β = 1 / noise². m is θ̃ ("trained"), as is usual, or
the linear model's own optimum θ*(Λ) ("linear", recommendation 1 of the reference): only there is E
the evidence of a model. With γ_g = Σ over the group of 1 − λ_g (H⁻¹)_ii, the number of weights that
the data determine,

    ∂ log E / ∂ log λ_g = ½ (γ_g − λ_g ‖m_g‖²),    ∂ log E / ∂ log β_d = ½ (N − γ_d − β_d ‖r_d‖²),

r_d the residuals of output d, γ_d its share of Σ γ. θ* moves with Λ, but L is stationary there, so
nothing is missing. `mackay` goes to the zero of both, λ_g ← γ_g / ‖m_g‖², β_d ← (N − γ_d) / ‖r_d‖²;
`ascend` climbs along them with Adam, in logarithms.

λ_g starts at d_g / ‖θ̃_g‖², d_g its number of weights, or at a hundredth or ten-thousandth of that
where the evidence is larger there, and stays within 10^±8 of it. So a
normalised group that is scaled by k starts at λ / k², and all that follows is the same: the
predictive does not depend on k (proposition 3), whichever fixed point is found. A group whose λ
reaches its upper end, or for which the data determine less than 0.001 weights, is `pruned`: the
prior holds it at 0.

Limits: B is kept at the network's outputs ("simple" in the reference), so E at θ* is that of a
Gaussian around θ* with this curvature; for regression it is exact. E has several stationary points
in general: the start matters.
Reference: Antorán et al., ICML 2022, see `groups.py`; D. MacKay, Bayesian interpolation, Neural
    Computation 4(3), 1992.

Shapes: `G` groups, `N` examples, `D` targets of a regression, none for classes.

**Structured curvature** (Kronecker, diagonal, last layer, subnetwork, low rank). log det H and γ
come from the blocks of the posterior (`curvature/blocks.py`), θ* from conjugate gradients on the
whole linear model (`linear_model_solve.py`): the structure approximates how far the posterior is
spread, never where its mean lies. `choose_prior` is what `laplace` calls.

The linear model is J θ where that reaches the network's outputs, and has the network's own part
beside it otherwise: `distance` measures which, and the report says it ("form", "distance").

For a regression with learned noise, β = β₀ · factor, with β₀ the precision that the curvature was
made with; one factor for all outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polymode.methods.laplace.linear_model import TOLERANCE, Tangent, distance, observed
from polymode.methods.laplace.linear_model_solve import Products, solve_iterative
from polymode.methods.laplace.prior_groups import prior_groups
from polymode.methods.method import Problem
from polymode.stack.stack import Stack
from polymode.training.batches import Pair
from polymode.training.data import Data
from polymode.training.events import Told, work_on
from polymode.training.history import spread_rows

SPAN = 1e8  # a precision stays within this factor of its start
PRUNED = 1e-3  # weights
STARTS = (1e-2, 1e-4)  # factors of λ that are tried at first
_TENFOLD = math.log(10.0)


class Terms(NamedTuple):
    """The evidence at some precisions and noise, and what its gradient is made of.

    Attributes:
        value: log E, nats; nan where only its gradient is estimated.
        effective: γ, (G,). squares: ‖m_g‖², (G,).
        output_effective: γ_d, (D,). residual_squares: ‖r_d‖², (D,). counts: values that each β is
            the precision of, (D,): N, or N K for one β of all outputs.
    """

    value: float
    effective: Tensor
    squares: Tensor
    output_effective: Tensor
    residual_squares: Tensor
    counts: Tensor

    def gradient(self, precision: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
        """Return the derivatives with respect to log λ (G,) and log β (D,)."""
        by_precision = 0.5 * (self.effective - precision * self.squares)
        by_beta = 0.5 * (self.counts - self.output_effective - beta * self.residual_squares)
        return by_precision, by_beta


Evaluate = Callable[[Tensor, Tensor], Terms]
"""(λ (G,), β (D,)) -> Terms. It may begin at the optimum of the call before, and may have a cheap
`bound`, (λ, β) -> a number that log E cannot exceed there."""


class Choice(NamedTuple):
    """Where the search for the evidence's maximum ended.

    Attributes:
        precision: λ (G,). beta: 1 / noise² (D,), none for classes.
        terms: there. steps: evaluations. converged: whether λ and β had settled.
        pruned: which groups, (G,) of truth values.
        path: log E after each step.
    """

    precision: Tensor
    beta: Tensor
    terms: Terms
    steps: int
    converged: bool
    pruned: Tensor
    path: list[float]


class Search(NamedTuple):
    """How the maximum is searched for.

    Attributes:
        updates: "mackay" or "ascent".
        steps: at most so many evaluations.
        tolerance: λ and β have settled when MacKay's update would move no logarithm by more.
        lr: of "ascent", in logarithms.
        learn_noise: whether β is learned; it stays as it is otherwise.
    """

    updates: str = "mackay"
    steps: int = 200
    tolerance: float = 1e-5
    lr: float = 0.1
    learn_noise: bool = False


def starting_precision(sizes: Tensor, squares: Tensor) -> Tensor:
    """Return d_g / ‖θ̃_g‖² of each group, 1 where the weights are 0."""
    return torch.where(squares > 0, sizes / squares.clamp_min(1e-300), torch.ones_like(squares))


def maximise(evaluate: Evaluate, start: Tensor, beta: Tensor, how: Search | None = None) -> Choice:
    """Return a stationary point of the evidence.

    Args:
        start: λ (G,) to begin with. beta: β (D,), of length 0 for classes.
    """
    how = how or Search()
    low, high = start / SPAN, start * SPAN
    update = _Ascent(how) if how.updates == "ascent" else _MacKay()
    settled = False
    path: list[float] = []
    precision, terms = _best_start(evaluate, start, beta)
    for _ in range(how.steps):
        path.append(terms.value)
        gap, noise_gap = _gaps(terms, precision, beta)
        needed = terms.effective >= PRUNED  # the others drift to the end of their range
        open_ = torch.cat([gap[needed], noise_gap if how.learn_noise else noise_gap[:0]])
        if not len(open_) or open_.abs().max() < how.tolerance:
            settled = True
            break
        new, new_beta = update(terms, precision, beta)
        precision, beta = new.clamp(low, high), new_beta if how.learn_noise else beta
        terms = evaluate(precision, beta)
    else:
        path.append(terms.value)
    steps = len(path)
    pruned = (terms.effective < PRUNED) | (precision >= high * (1 - 1e-6))
    return Choice(precision, beta, terms, steps, settled, pruned, path)


def _best_start(evaluate: Evaluate, start: Tensor, beta: Tensor) -> tuple[Tensor, Terms]:
    """Return the start, or smaller λ where the evidence is larger there.

    Where a tight prior leaves nothing to learn, the evidence is flat and updates do not move.
    """
    precision, terms = start, evaluate(start, beta)
    bound = getattr(evaluate, "bound", None)
    for factor in STARTS:
        if bound is not None and bound(factor * start, beta) <= terms.value:
            continue
        other = evaluate(factor * start, beta)
        if other.value > terms.value:  # never where values are not known
            precision, terms = factor * start, other
    return precision, terms


def _gaps(terms: Terms, precision: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """Return how far MacKay's updates would move log λ and log β; 0 where the gradient is 0."""
    effective = terms.effective.clamp_min(1e-30)  # rounding may leave less than 0
    new = effective / terms.squares.clamp_min(1e-300)
    left = (terms.counts - terms.output_effective).maximum(1e-9 * terms.counts)
    new_beta = left / terms.residual_squares.clamp_min(1e-300)
    # factors of a structure may count more weights than there are values, which says nothing of β
    return (new / precision).log(), (new_beta / beta).log().clamp(-_TENFOLD, _TENFOLD)


class _MacKay:
    """λ ← γ / ‖m‖² and β ← (N − γ_d) / ‖r_d‖², in longer steps where they are slow.

    Near a fixed point a step of log λ leaves a fixed share of the gap. The share is read from the
    last two gaps, per group, and the step made 0.3 to 10 times as long.
    """

    def __init__(self) -> None:
        self.last: tuple[Tensor, Tensor] | None = None

    def __call__(self, terms: Terms, precision: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
        gap, noise_gap = _gaps(terms, precision, beta)
        place, factor = precision.log(), torch.ones_like(gap)
        if self.last is not None:
            moved, closed = place - self.last[0], self.last[1] - gap
            usable = (moved.abs() > 1e-12) & (closed.abs() > 1e-12)
            secant = moved / closed.where(usable, torch.ones_like(closed))
            factor = secant.where(usable & (secant > 0), torch.ones_like(gap)).clamp(0.3, 10.0)
        self.last = place, gap
        step = gap * factor
        longest = gap.abs().clamp_min(_TENFOLD)  # longer than plain, at most tenfold
        return (place + step.clamp(-longest, longest)).exp(), beta * noise_gap.exp()


class _Ascent:
    """Adam on log λ and log β along the gradient of the evidence."""

    def __init__(self, how: Search) -> None:
        self.lr, self.number = how.lr, 0
        self.first: Tensor | None = None
        self.second: Tensor | None = None

    def __call__(self, terms: Terms, precision: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
        gradient = torch.cat(terms.gradient(precision, beta))
        if self.first is None or self.second is None:
            self.first, self.second = torch.zeros_like(gradient), torch.zeros_like(gradient)
        self.number += 1
        self.first = 0.9 * self.first + 0.1 * gradient
        self.second = 0.99 * self.second + 0.01 * gradient.square()
        mean = self.first / (1 - 0.9**self.number)
        size = (self.second / (1 - 0.99**self.number)).sqrt() + 1e-12
        rate = self.lr / (1 + 0.02 * self.number)
        step = (rate * mean / size).exp()
        return precision * step[: len(precision)], beta * step[len(precision) :]


def describe(choice: Choice, groups: Mapping[str, int], evidence: str) -> dict[str, object]:
    """Return what a report says of a choice, JSON-safe: per group λ, γ and whether it is pruned.

    Args:
        groups: number of weights by group, in the order of λ.
    """
    rows = {
        name: {
            "weights": size,
            "prior_precision": float(choice.precision[k]),
            "effective": float(choice.terms.effective[k]),
            "pruned": bool(choice.pruned[k]),
        }
        for k, (name, size) in enumerate(groups.items())
    }
    value = choice.terms.value
    return {
        "evidence": evidence,
        "log_evidence": None if math.isnan(value) else value,
        "steps": choice.steps,
        "converged": choice.converged,
        "noise": [float(b) ** -0.5 for b in choice.beta],
        "groups": rows,
        "pruned": [name for k, name in enumerate(groups) if choice.pruned[k]],
    }


_DECREASE, _FORCING = 0.05, 0.3  # of θ*: nats that are left, error of a Newton step. λ is searched
# for to one per cent, for which these change ‖θ*‖² by less than a thousandth
_PASSES = 100  # products with the Jacobian that a search usually takes; for its progress


class Prior(NamedTuple):
    """What was chosen.

    Attributes:
        precision: λ of each group, see `prior_groups`.
        factor: noise² of the curvature / noise² found; 1 for classes and known noise.
        report: JSON-safe, see `describe`.
    """

    precision: dict[str, float]
    factor: float
    report: dict[str, object]


class StructuredEvidence:
    """The evidence by blocks; call it with λ (G,) and the factor of β (1,), or none for classes.

    Args:
        blocks: of the curvature, `logdet`, `effective` and `scaled` of each.
        groups: the group of each parameter.
        tangent: the linear model over the blocks' parameters. products: with its data.
        mask: which weights are free, (P,) of truth values, None for all.
        mean: "linear" or "trained".
        apart: δ of `linear_model.distance`, which decides on the form of the linear model.
        weight: N/n, where the products are with n examples of the N that the blocks are of. What
            they sum over the data counts for so much, so θ* is that of a prior of λ n/N.
    """

    def __init__(
        self,
        blocks: tuple[Any, ...],
        groups: Mapping[str, str],
        tangent: Tangent,
        products: Products,
        outputs: list[Tensor],
        *,
        mask: Tensor | None = None,
        mean: str = "linear",
        inner: int = 100,
        apart: float = 0.0,
        weight: float = 1.0,
    ) -> None:
        self.weight = weight
        self.blocks, self.mean, self.inner, self.apart = blocks, mean, inner, apart
        self.tangent, self.products, self.outputs = tangent, products, outputs
        self.group_of = {name: groups[name] for block in blocks for name in block.names}
        self.names = list(dict.fromkeys(self.group_of[name] for name in tangent.names))
        free = torch.ones_like(tangent.point, dtype=torch.bool) if mask is None else mask
        places = tangent.index(groups)
        self.places = [places[name][free[places[name]]] for name in self.names]
        self.sizes = torch.tensor([float(len(p)) for p in self.places], dtype=torch.float64)
        self.point_squares = self._squares(tangent.point)
        self.theta: Tensor | None = None

    def _squares(self, theta: Tensor) -> Tensor:
        return torch.stack([theta[p].double().square().sum() for p in self.places])

    @torch.no_grad()
    def bound(self, precision: Tensor, beta: Tensor) -> float:
        """Return log E of a linear model that fits all targets with weights of 0."""
        factor = float(beta[0]) if len(beta) else 1.0
        most_likely = self.weight * self.products_at(factor).most_likely()
        return most_likely - 0.5 * self._spread(precision, beta)[0]

    def _spread(self, precision: Tensor, beta: Tensor) -> tuple[float, dict[str, float]]:
        """Return log det H − log det Λ, and γ of each group."""
        by_group = dict(zip(self.names, precision, strict=True))
        by_name = {name: by_group[group] for name, group in self.group_of.items()}
        effective = dict.fromkeys(self.names, 0.0)
        spread = 0.0
        for block in self.blocks:
            block = block.scaled(float(beta[0])) if len(beta) else block
            spread += float(block.logdet(by_name))
            for name, value in block.effective(by_name).items():
                effective[self.group_of[name]] += float(value)
        return spread - float((self.sizes * precision.log()).sum()), effective

    @torch.no_grad()
    def __call__(self, precision: Tensor, beta: Tensor) -> Terms:
        factor = float(beta[0]) if len(beta) else 1.0
        spread, effective = self._spread(precision, beta)
        outputs, squares = self._mean(precision, factor)
        fit = self.weight * float(self.products_at(factor).log_likelihood(outputs))
        value = fit - 0.5 * float((precision * squares).sum()) - 0.5 * spread
        gamma = torch.tensor(list(effective.values()), dtype=torch.float64)
        if not len(beta):
            empty = precision.new_zeros(0)
            return Terms(value, gamma, squares, empty, empty, empty)
        errors = [
            (data.precision * (data.targets - h).square()).double().sum()
            for data, h in zip(self.products.data, outputs, strict=True)
        ]
        values = self.weight * float(sum(h.numel() for h in outputs))
        count = torch.tensor([values], dtype=torch.float64)
        total = self.weight * torch.stack(errors).sum()[None]
        return Terms(value, gamma, squares, gamma.sum()[None], total, count)

    def products_at(self, factor: float) -> Products:
        """Return the products with the noise that `factor` stands for."""
        return self.products if factor == 1.0 else self.products.with_noise(factor)

    def _mean(self, precision: Tensor, factor: float) -> tuple[list[Tensor], Tensor]:
        if self.mean == "trained":
            return self.outputs, self.point_squares
        full = torch.ones_like(self.tangent.point)
        for places, value in zip(self.places, precision, strict=True):
            full[places] = value.to(full) / self.weight
        products = self.products_at(factor)
        self.theta = solve_iterative(
            products, full, start=self.theta, inner=self.inner,
            tolerance=_DECREASE / self.weight, forcing=_FORCING,
        )  # fmt: skip
        return products.outputs(self.theta), self._squares(self.theta)


def choose_prior(
    config: Any, problem: Problem, curvature: Any, stack: Stack, mode: int = 0
) -> Prior:
    """Return the prior precisions and the noise of the largest evidence.

    Args:
        config: options of `laplace`: `prior` (single, per_layer, per_group), `evidence` (trained,
            linear), `prior_examples` and `batch_size`.
        curvature: of one mode; its `blocks`.
        mode: which member of the stack.
    """
    groups = prior_groups(stack, config.prior)
    names = [name for block in curvature.blocks for name in block.names]
    names = [name for name in stack.params if name in names]
    tangent = Tangent(stack, mode, names=names)
    mask = free_weights(curvature.blocks, tangent)
    work = work_on(problem.data, f"evidence of mode {mode}, products with the Jacobian", _PASSES)
    evidence = _evidence(config, problem, curvature, stack, mode, tangent, groups, mask, work.step)
    # the optimum for few examples fits them too well to tell the noise, whatever they count
    learns = problem.likelihood.learns and evidence.weight == 1
    start = starting_precision(evidence.sizes, evidence.point_squares)
    beta = torch.ones(int(learns), dtype=torch.float64)
    steps, tolerance = (200, 1e-5) if config.evidence == "trained" else (30, 1e-2)
    how = Search(steps=steps, tolerance=tolerance, learn_noise=learns)
    choice = maximise(evidence, start, beta, how)
    work.end()
    return _prior(choice, evidence, config.evidence)


def _prior(choice: Choice, evidence: StructuredEvidence, kind: str) -> Prior:
    sizes = dict(zip(evidence.names, (int(n) for n in evidence.sizes), strict=True))
    precision = dict(zip(evidence.names, choice.precision.tolist(), strict=True))
    factor = float(choice.beta[0]) if len(choice.beta) else 1.0
    form = "offset" if evidence.apart > TOLERANCE else "jacobian"
    report = {**describe(choice, sizes, kind), "form": form, "distance": evidence.apart}
    return Prior(precision, factor, report)


def _evidence(
    config: Any,
    problem: Problem,
    curvature: Any,
    stack: Stack,
    mode: int,
    tangent: Tangent,
    groups: dict[str, str],
    mask: Tensor | None,
    report: Callable[[], None] = lambda: None,
) -> StructuredEvidence:
    if problem.data is None:
        raise ValueError("the evidence needs the training data: give Problem(..., data=...)")
    pairs = _examples(config.prior_examples, problem.data, config.batch_size)
    targets = torch.cat([y for _, y in pairs])
    data = observed(problem.likelihood, targets, _noise(problem, stack, mode))
    outputs = [tangent.outputs(x) for x, _ in pairs]
    inputs, functions = _last_layer(curvature.blocks, tangent, [x for x, _ in pairs])
    if functions is not None:  # features are small: one large product is faster than many
        inputs, outputs = [torch.cat(inputs)], [torch.cat(outputs)]
    multiply, transpose = functions or masked_products(tangent, mask)
    pairs = list(zip(inputs, outputs, strict=True))
    logits = problem.likelihood.name == "categorical"
    apart = distance(multiply, tangent.point, tangent.slices, pairs, logits=logits)
    if apart > TOLERANCE:
        shifts = [f - multiply(tangent.point, x) for x, f in pairs]
    else:
        shifts = [torch.zeros_like(f) for f in outputs]
    batches = list(zip(inputs, shifts, strict=True))
    products = Products(multiply, transpose, batches, data, report)
    return StructuredEvidence(
        curvature.blocks, groups, tangent, products, outputs, mask=mask, mean=config.evidence,
        apart=apart, weight=len(problem.data) / len(targets),
    )  # fmt: skip


def _examples(number: int | None, data: Data, batch_size: int) -> list[Pair]:
    """Return so many examples in batches, evenly spread over arrays; all where None is given."""
    if number is None or number >= len(data):
        return list(data.batches(batch_size))
    return [
        (x, y)
        for rows in spread_rows(data.untold if isinstance(data, Told) else data, number)
        for x, y in zip(*(part.split(batch_size) for part in rows), strict=True)
    ]


def _noise(problem: Problem, stack: Stack, mode: int) -> Tensor | float:
    """Return the noise of a regression as it is now, one number or one per target."""
    if problem.likelihood.classification:
        return 1.0
    extra = {name: tensor[mode : mode + 1].detach() for name, tensor in stack.extra.items()}
    like = torch.zeros(1, 1, problem.target_size, dtype=stack.dtype)
    components: Any = problem.likelihood.components(like, extra)
    return components.scale[0, 0]


def free_weights(blocks: tuple[Any, ...], tangent: Tangent) -> Tensor | None:
    """Return which weights of a subnetwork are free."""
    if all(getattr(block, "index", None) is None for block in blocks):
        return None
    mask = torch.zeros_like(tangent.point, dtype=torch.bool)
    for block in blocks:
        for name, places in zip(block.names, block.index, strict=True):
            mask[tangent.slices[name].start + places] = True
    return mask


def _last_layer(
    blocks: tuple[Any, ...], tangent: Tangent, inputs: list[Tensor]
) -> tuple[list[Tensor], Any]:
    """Return what the last layer multiplies and products with its J = (a, 1) ⊗ I, so that the
    network is passed once; or the inputs and None where there is no such layer."""
    if not getattr(blocks[0], "one_layer", False):
        return inputs, None
    activations = [tangent.last_inputs(x) for x in inputs]
    multiplied = [a for a in activations if a is not None]
    if len(multiplied) < len(activations):
        return inputs, None
    width = multiplied[0].shape[-1]
    weights = tangent.slices[tangent.names[0]].stop

    def multiply(vector: Tensor, a: Tensor) -> Tensor:
        image = a @ vector[:weights].view(-1, width).mT
        return image + vector[weights:] if len(vector) > weights else image

    def transpose(cotangent: Tensor, a: Tensor) -> Tensor:
        parts = [(cotangent.mT @ a).flatten(), cotangent.sum(0)]
        return torch.cat(parts)[: len(tangent.point)]

    return multiplied, (multiply, transpose)


def masked_products(tangent: Tangent, mask: Tensor | None) -> tuple[Any, Any]:
    """Return products with the free columns of J."""
    if mask is None:
        return tangent.jvp, tangent.vjp
    free = mask.to(tangent.point)
    return (
        lambda vector, x: tangent.jvp(vector * free, x),
        lambda cotangent, x: tangent.vjp(cotangent, x) * free,
    )
