"""The evidence with a structured curvature: Kronecker, diagonal, last layer, subnetwork, low rank.

log det H and γ come from the blocks of the posterior (`curvature/blocks.py`), θ* from conjugate
gradients on the whole linear model (`linear_model_solve.py`): the structure approximates how far
the posterior is spread, never where its mean lies. The formulas are those of `evidence_search.py`;
`choose_prior` is what `laplace` calls.

The linear model is J θ where that reaches the network's outputs, and has the network's own part
beside it otherwise: `span.py` measures which, and the report says it ("form", "distance").

For a regression with learned noise, β = β₀ · factor, with β₀ the precision that the curvature was
made with; one factor for all outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polymode.methods.laplace.evidence_search import (
    Choice,
    Search,
    Terms,
    describe,
    maximise,
    starting_precision,
)
from polymode.methods.laplace.groups import prior_groups
from polymode.methods.laplace.linear_model import Tangent
from polymode.methods.laplace.linear_model_observed import observed
from polymode.methods.laplace.linear_model_solve import Products, solve_iterative
from polymode.methods.laplace.span import TOLERANCE, distance
from polymode.methods.method import Problem
from polymode.stack.stack import Stack
from polymode.training.events import work_on

_DECREASE, _FORCING = 0.05, 0.3  # of θ*: nats that are left, error of a Newton step. λ is searched
# for to one per cent, for which these change ‖θ*‖² by less than a thousandth
_PASSES = 100  # products with the Jacobian that a search usually takes; for its progress


class Prior(NamedTuple):
    """What was chosen.

    Attributes:
        precision: λ of each group, see `prior_groups`.
        factor: noise² of the curvature / noise² found; 1 for classes and known noise.
        report: JSON-safe, see `evidence_search.describe`.
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
        apart: δ of `span.py`, which decides on the form of the linear model.
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
    ) -> None:
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
        return self.products_at(factor).most_likely() - 0.5 * self._spread(precision, beta)[0]

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
        fit = float(self.products_at(factor).log_likelihood(outputs))
        value = fit - 0.5 * float((precision * squares).sum()) - 0.5 * spread
        found = torch.tensor(list(effective.values()), dtype=torch.float64)
        if not len(beta):
            empty = precision.new_zeros(0)
            return Terms(value, found, squares, empty, empty, empty)
        errors = [
            (data.precision * (data.targets - h).square()).double().sum()
            for data, h in zip(self.products.data, outputs, strict=True)
        ]
        count = torch.tensor([float(sum(h.numel() for h in outputs))], dtype=torch.float64)
        total = torch.stack(errors).sum()[None]
        return Terms(value, found, squares, found.sum()[None], total, count)

    def products_at(self, factor: float) -> Products:
        """Return the products with the noise that `factor` stands for."""
        return self.products if factor == 1.0 else self.products.with_noise(factor)

    def _mean(self, precision: Tensor, factor: float) -> tuple[list[Tensor], Tensor]:
        if self.mean == "trained":
            return self.outputs, self.point_squares
        full = torch.ones_like(self.tangent.point)
        for places, value in zip(self.places, precision, strict=True):
            full[places] = value.to(full)
        products = self.products_at(factor)
        self.theta = solve_iterative(
            products, full, start=self.theta, inner=self.inner,
            tolerance=_DECREASE, forcing=_FORCING,
        )  # fmt: skip
        return products.outputs(self.theta), self._squares(self.theta)


def choose_prior(
    config: Any, problem: Problem, curvature: Any, stack: Stack, mode: int = 0
) -> Prior:
    """Return the prior precisions and the noise of the largest evidence.

    Args:
        config: options of `laplace`: `prior` (single, per_layer, per_group), `evidence` (trained,
            linear) and `batch_size`.
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
    learns = problem.likelihood.learns
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
    told: Callable[[], None] = lambda: None,
) -> StructuredEvidence:
    if problem.data is None:
        raise ValueError("the evidence needs the training data: give Problem(..., data=...)")
    pairs = list(problem.data.batches(config.batch_size))
    targets = torch.cat([y for _, y in pairs])
    data = observed(problem.likelihood, targets, _noise(problem, stack, mode))
    outputs = [tangent.outputs(x) for x, _ in pairs]
    inputs, functions = _last_layer(curvature.blocks, tangent, [x for x, _ in pairs])
    multiply, transpose = functions or masked_products(tangent, mask)
    pairs = list(zip(inputs, outputs, strict=True))
    logits = problem.likelihood.name == "categorical"
    apart = distance(multiply, tangent.point, tangent.slices, pairs, logits=logits)
    if apart > TOLERANCE:
        shifts = [f - multiply(tangent.point, x) for x, f in pairs]
    else:
        shifts = [torch.zeros_like(f) for f in outputs]
    batches = list(zip(inputs, shifts, strict=True))
    products = Products(multiply, transpose, batches, data, told)
    return StructuredEvidence(
        curvature.blocks, groups, tangent, products, outputs, mask=mask, mean=config.evidence,
        apart=apart,
    )  # fmt: skip


def _noise(problem: Problem, stack: Stack, mode: int) -> Tensor | float:
    """Return the noise of a regression as it is now, one number or one per target."""
    if problem.likelihood.classification:
        return 1.0
    extra = {name: tensor[mode : mode + 1].detach() for name, tensor in stack.extra.items()}
    like = torch.zeros(1, 1, problem.target_size, dtype=stack.dtype)
    found: Any = problem.likelihood.components(like, extra)
    return found.scale[0, 0]


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
    found = [tangent.last_inputs(x) for x in inputs]
    known = [a for a in found if a is not None]
    if len(known) < len(found):
        return inputs, None
    width = known[0].shape[-1]
    weights = tangent.slices[tangent.names[0]].stop

    def multiply(vector: Tensor, a: Tensor) -> Tensor:
        image = a @ vector[:weights].view(-1, width).mT
        return image + vector[weights:] if len(vector) > weights else image

    def transpose(cotangent: Tensor, a: Tensor) -> Tensor:
        parts = [(cotangent.mT @ a).flatten(), cotangent.sum(0)]
        return torch.cat(parts)[: len(tangent.point)]

    return known, (multiply, transpose)


def masked_products(tangent: Tangent, mask: Tensor | None) -> tuple[Any, Any]:
    """Return products with the free columns of J."""
    if mask is None:
        return tangent.jvp, tangent.vjp
    kept = mask.to(tangent.point)
    return (
        lambda vector, x: tangent.jvp(vector * kept, x),
        lambda cotangent, x: tangent.vjp(cotangent, x) * kept,
    )
