r"""Curvature of the log-likelihood at the weights of one network, in the structure that is wanted.

    C = Σ_n J_nᵀ Λ_n J_n,        J_n = ∂f(x_n)/∂θ,   Λ_n = Σ_r v_rn v_rnᵀ

Gradients come back from each v_r to the layers, and each structure takes its own sums of the two
parts of J (`curvature/records.py`):

============  =====================================================================================
kron          Σ m mᵀ ⊗ (1/N) Σ a aᵀ per matrix and per bias; diagonal for scales and shifts and for
              what is differentiated example by example
diag          Σ J² per number
full          Σ Jᵀ J over all parameters
last_layer    the same over the last layer, J = g ⊗ (a, 1): one product of (g gᵀ) with (a aᵀ)
subnetwork    the same over chosen numbers
low_rank      the leading eigenvectors by subspace iteration: a few passes over the data
============  =====================================================================================

`roots` gives v, roots of a likelihood's curvature with respect to the outputs, as cotangents:

.. math:: \Lambda_n = E_{y \sim p(y \mid f_n)}[\nabla \log p \, \nabla \log p^\top]
          = \sum_r v_{rn} v_{rn}^\top

==========  ======================================================================================
exact       the Fisher information in closed form, R = K: √p_r (e_r − p) of classes, e_r / σ of
            Gaussian values; with softmax and with Gaussian noise this is the GGN
mc          R = `mc_samples` gradients at targets drawn from the prediction, unbiased
empirical   R = 1, the gradient at the target itself: not an approximation of the Fisher information
            (Kunstner et al., NeurIPS 2019), for comparison
==========  ======================================================================================

Shapes: `R` cotangents, `B` batch, `N` examples, `P` parameters, `K` outputs, `D` targets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from polymode.core.rng import generator
from polymode.curvature.blocks import (
    ROWS,
    Block,
    Dense,
    Diagonal,
    Kronecker,
    LowRank,
    eigen,
    index_of,
    jacobian,
)
from polymode.curvature.records import Record
from polymode.curvature.tangent import Survey, Tangent
from polymode.likelihoods.base import Params
from polymode.likelihoods.components import Categories, Components, Counts, Quantiles
from polymode.likelihoods.densities import standard_noise
from polymode.likelihoods.kinds import Gaussian, HeteroscedasticGaussian, Likelihood
from polymode.likelihoods.positions import Observed, Positions
from polymode.methods.laplace.last_layer import last_layer_of, sees_one_position
from polymode.methods.method import Problem
from polymode.prediction.counts import drawn_counts
from polymode.stack.stack import Stack
from polymode.tracing.modules import Tensors

FISHERS = ("exact", "mc", "empirical")
MOST_OUTPUTS = 64  # of an example's positions, whose exact curvature takes a pass for each


def roots(
    likelihood: Likelihood,
    outputs: Tensor,
    targets: Tensor,
    params: Params,
    *,
    fisher: str | None = "exact",
    mc_samples: int = 1,
    stream: torch.Generator | None = None,
    together: bool = False,
) -> Tensor:
    """Return the cotangents (R, B, K) of one network's outputs (B, K).

    Args:
        targets: as `likelihood.check` returns them; used by "empirical" alone.
        params: the likelihood's own parameters of this network.
        fisher: one of `FISHERS`; None is "exact", and "mc" where an example has many positions.
        stream: what "mc" draws targets from.
        together: whether all positions of an example come back at once: right where no weight sees
            two of them.
    """
    outputs = outputs.detach()
    if fisher is None:
        fisher = "mc" if _is_large(likelihood, outputs[0].numel(), together) else "exact"
    if isinstance(likelihood, Positions):
        return _at_positions(
            likelihood, outputs, targets,
            lambda rows: roots(likelihood.base, rows.outputs, rows.targets, params, fisher=fisher,
                               mc_samples=mc_samples, stream=stream),
            together=together or fisher == "mc",
        )  # fmt: skip
    if fisher == "exact":
        return _exact(likelihood, outputs, params)
    if fisher == "empirical":
        return _gradient(likelihood, outputs, targets, params)[None]
    assert stream is not None
    drawn = [_drawn(likelihood, outputs, params, stream) for _ in range(mc_samples)]
    gradients = [_gradient(likelihood, outputs, y, params) for y in drawn]
    return torch.stack(gradients) / math.sqrt(mc_samples)


def _is_large(likelihood: Likelihood, num_outputs: int, together: bool = False) -> bool:
    """Whether an example has positions with so many outputs that targets are better drawn."""
    return likelihood.num_axes > 0 and num_outputs > MOST_OUTPUTS and not together


def _at_positions(
    likelihood: Positions,
    outputs: Tensor,
    targets: Tensor,
    of_rows: Callable[[Observed], Tensor],
    together: bool,
) -> Tensor:
    """Return the cotangents (R, B, ...) of outputs at positions, weighted.

    Drawn targets of all positions may come back `together`: their gradients are independent with
    mean 0, so products between two positions vanish in expectation. Other roots come back one
    position at a time, R per position.
    """
    rows = likelihood.rows(outputs, targets)
    cotangents = of_rows(rows) * rows.weights.to(outputs).sqrt().unsqueeze(-1)  # (R, B E, K)
    sizes = likelihood.output_rows(outputs)[1]
    if not together:
        positions = cotangents.unflatten(1, (sizes[0], -1))  # (R, B, E, K)
        apart = torch.eye(positions.shape[2]).to(outputs)[:, None, None, :, None]
        cotangents = (apart * positions).flatten(0, 1).flatten(1, 2)
    return likelihood.as_outputs(cotangents, sizes)


def _exact(likelihood: Likelihood, outputs: Tensor, params: Params) -> Tensor:
    components = likelihood.components(outputs, params)
    if isinstance(components, Categories):
        probs = components.log_probs.exp()
        if outputs.shape[-1] == 1:  # one logit for two classes
            return probs.prod(-1, keepdim=True).sqrt()[None]
        unit = torch.eye(probs.shape[-1]).to(probs)
        return (unit[:, None] - probs) * probs.sqrt().mT.unsqueeze(-1)
    if isinstance(components, Quantiles):
        raise ValueError(
            "quantile heads have no curvature: the pinball loss is linear between quantiles; take"
            " another likelihood, or a method without curvature such as deep_ensemble"
        )
    if isinstance(components, Counts):
        rate, r = components
        root = (rate if r is None else rate * r / (rate + r)).sqrt()
        return root.mT.unsqueeze(-1) * torch.eye(outputs.shape[-1]).to(outputs)[:, None]
    scale = components.scale
    if isinstance(likelihood, HeteroscedasticGaussian):
        slope = F.logsigmoid(outputs.chunk(2, -1)[1]).exp()  # of softplus
        root = torch.cat([1 / scale, math.sqrt(2.0) * slope / scale], -1)
    else:
        df = components.df
        information = (df + 1) / (df + 3) if isinstance(df, float) else 1.0
        root = math.sqrt(information) / scale
    return root.mT.unsqueeze(-1) * torch.eye(outputs.shape[-1]).to(outputs)[:, None]


def _gradient(likelihood: Likelihood, outputs: Tensor, targets: Tensor, params: Params) -> Tensor:
    """Return the gradient of log p of each example with respect to its outputs, (B, K)."""
    leaf = outputs.detach().requires_grad_()
    with torch.enable_grad():
        total = likelihood.log_prob(leaf, targets, params).sum()
    return torch.autograd.grad(total, leaf)[0]


def _drawn(
    likelihood: Likelihood, outputs: Tensor, params: Params, stream: torch.Generator
) -> Tensor:
    """Return targets drawn from the prediction."""
    components = likelihood.components(outputs, params)
    if isinstance(components, Categories):
        probs = components.log_probs.double().cpu().exp()
        return torch.multinomial(probs, 1, generator=stream)[:, 0].to(outputs.device)
    if isinstance(components, Counts):
        return drawn_counts(components, stream).to(outputs)
    assert isinstance(components, Components)
    noise = standard_noise(components.loc.shape, components.df, stream)
    return components.loc + components.scale * noise.to(components.loc)


Parts = Iterator[Iterator[tuple[str, Record]]]
"""For each part of the data the records of each parameter, one after another."""

_HALVES = 2**26  # numbers of outer products that are held at a time
_OVERSAMPLING = 10  # further directions that make the leading ones converge faster


def kron(
    parts: Parts,
    tangent: Tangent,
    reduce: bool,
    weights_of_part: Callable[[], Tensor | None] = lambda: None,
) -> tuple[Block, ...]:
    """Return Kronecker factors of matrices and biases, and diagonals of the rest.

    Args:
        parts: of the data, whose records have the roots of weights in them.
        weights_of_part: gives weights (B, E) of the observations in the present part, None where
            all are 1: the inputs of a layer count as often as its gradients.
    """
    moving: Tensors = {}  # by the first of the parameters that the same gradients come back to
    fixed: Tensors = {}
    diagonals: Tensors = {}
    about: dict[str, tuple[str, bool]] = {}  # that first one, and the layout
    number: float = 0
    for part in parts:
        weights = weights_of_part()
        sources: dict[tuple[int, ...], str] = {}
        for name, record in part:
            if tangent.survey.kinds[name] not in ("matrix", "bias"):
                _add(diagonals, name, record.squares())
                continue
            source = sources.setdefault(_memory(record.moving), name)
            if source == name:
                _add(moving, name, record.moving_factor(reduce))
            factor = record.fixed_factor(reduce)
            if weights is not None:
                factor = record.weighted_factor(weights, reduce)
            _add(fixed, name, factor)
            about[name] = source, record.fixed_first
            if name == next(iter(about)):
                number += (
                    record.moving.shape[2] if weights is None else float(weights.mean(1).sum())
                )
    bases = {name: eigen(total) for name, total in moving.items()}
    blocks: list[Block] = []
    for name in tangent.wanted:
        if name in about:
            source, fixed_first = about[name]
            block = Kronecker.of(name, bases[source], fixed[name] / number, fixed_first)
            blocks.append(block.to(tangent.params[name].dtype))
        else:
            blocks.append(_diagonal(name, diagonals, tangent))
    return tuple(blocks)


def _memory(moving: Tensor) -> tuple[int, ...]:
    """Return where a tensor lies: a weight and a bias of one call share their gradients."""
    return moving.data_ptr(), *moving.shape


def diag(parts: Parts, tangent: Tangent) -> tuple[Block, ...]:
    """Return the diagonal of every parameter."""
    totals: Tensors = {}
    for part in parts:
        for name, record in part:
            _add(totals, name, record.squares())
    return tuple(_diagonal(name, totals, tangent) for name in tangent.wanted)


def full(parts: Parts, tangent: Tangent) -> tuple[Block, ...]:
    """Return one block of all parameters."""
    return subnetwork(parts, tangent, None)


def subnetwork(parts: Parts, tangent: Tangent, chosen: Tensor | None) -> tuple[Block, ...]:
    """Return one block of some numbers of the parameters."""
    lengths = {name: tangent.params[name].numel() for name in tangent.wanted}
    index = None if chosen is None else index_of(chosen, list(lengths.values()))
    size = sum(lengths.values()) if chosen is None else len(chosen)
    dtype = next(iter(tangent.params.values())).dtype
    total = torch.zeros(size, size, dtype=torch.float64)
    for part in parts:
        records = _complete(dict(part), tangent)
        number, batch = next(iter(records.values())).moving.shape[0:3:2]
        step = max(1, ROWS // (number * size))
        for start in range(0, batch, step):
            rows = jacobian(records, tangent.wanted, index, slice(start, start + step))
            flat = rows.flatten(0, 1)
            total += flat.mT @ flat
    return (Dense.of(lengths, total, chosen, dtype=dtype),)


def last_layer(parts: Parts, tangent: Tangent, by_position: bool = False) -> tuple[Block, ...]:
    """Return one block of the last layer, Σ_n (Σ_r g gᵀ) ⊗ (a, 1)(a, 1)ᵀ.

    Both are symmetric: one product of their upper halves serves all examples, or all positions of
    all of them where the layer's outputs are those of the network `by_position`.
    """
    weight = tangent.wanted[0]
    shared = weight in tangent.survey.shared and not by_position
    if shared or tangent.survey.kinds[weight] != "matrix":
        return full(parts, tangent)
    lengths = {name: tangent.params[name].numel() for name in tangent.wanted}
    outputs, width = tangent.params[weight].flatten(1).shape
    total: Tensor | None = None
    for part in parts:
        record = dict(part)[weight]
        inputs = record.fixed[0, :, 0]
        if len(lengths) == 2:
            inputs = torch.cat([inputs, inputs.new_ones(len(inputs), 1)], 1)
        g = record.moving[:, 0, :, 0].transpose(0, 1)  # (B, R, O)
        rows = max(1, _HALVES // (inputs.shape[1] ** 2 + outputs**2))
        for a, m in zip(inputs.split(rows), g.split(rows), strict=True):
            more = _halves(m.mT @ m).mT @ _halves(a.unsqueeze(-1) * a.unsqueeze(-2))
            total = more if total is None else total + more
    assert total is not None
    matrix = _from_halves(total, outputs, width + len(lengths) - 1)
    order = _weight_then_bias(outputs, width, len(lengths) == 2)
    matrix = matrix[order][:, order]
    dtype = tangent.params[weight].dtype
    return (Dense.of(lengths, matrix.double(), one_layer=True, dtype=dtype),)


def _halves(symmetric: Tensor) -> Tensor:
    """Return the upper halves of matrices (B, n, n) as rows."""
    size = symmetric.shape[-1]
    a, b = torch.triu_indices(size, size)
    return symmetric[:, a, b]


def _from_halves(total: Tensor, outputs: int, width: int) -> Tensor:
    """Return (O, I, O, I) as a matrix, from the upper halves of both pairs of axes."""
    places = []
    for size in (outputs, width):
        a, b = torch.triu_indices(size, size)
        place = torch.empty(size, size, dtype=torch.long)
        place[a, b] = place[b, a] = torch.arange(len(a))
        places.append(place)
    whole = total[places[0]][:, :, places[1]]  # (O, O, I, I)
    return whole.transpose(1, 2).reshape(outputs * width, outputs * width)


def _weight_then_bias(outputs: int, width: int, bias: bool) -> Tensor:
    """Return where the numbers of (weight, bias) are in rows (weight, bias) of each output."""
    places = torch.arange(outputs * (width + bias)).view(outputs, width + bias)
    return torch.cat([places[:, :width].flatten(), places[:, width:].flatten()])


def low_rank(
    passes: Callable[[], Parts], tangent: Tangent, rank: int, number: int, stream: torch.Generator
) -> tuple[Block, ...]:
    """Return the leading eigenvectors by subspace iteration, one pass over the data per step
    (Halko et al., SIAM Review 2011, algorithm 4.4), then the eigenvalues on their span."""
    lengths = [tangent.params[name].numel() for name in tangent.wanted]
    like = next(iter(tangent.params.values()))
    columns = min(rank + _OVERSAMPLING, sum(lengths))
    start = torch.randn(sum(lengths), columns, generator=stream, dtype=torch.float64)
    basis = torch.linalg.qr(start.to(like))[0]
    for _ in range(number - 1):
        basis = torch.linalg.qr(_times(passes(), tangent, basis, lengths))[0]
    image = _times(passes(), tangent, basis, lengths)
    values, vectors = torch.linalg.eigh((basis.mT @ image).double())
    retained = min(rank, columns)
    values, vectors = values[-retained:].clamp_min(0).to(like), vectors[:, -retained:].to(like)
    rows = (basis @ vectors).mT.split(lengths, 1)
    directions = {name: part.contiguous() for name, part in zip(tangent.wanted, rows, strict=True)}
    return (LowRank(directions, values),)


def _times(parts: Parts, tangent: Tangent, columns: Tensor, lengths: list[int]) -> Tensor:
    """Return C times some columns (P, K)."""
    rows = dict(zip(tangent.wanted, columns.mT.split(lengths, 1), strict=True))
    total = {name: torch.zeros_like(part) for name, part in rows.items()}
    for part in parts:
        records = dict(part)
        along: Any = sum(record.along(rows[name]) for name, record in records.items())
        for name, record in records.items():
            total[name] += record.against(along)
    return torch.cat(list(total.values()), 1).mT


def _add(totals: Tensors, name: str, more: Tensor) -> None:
    """Add in float64: many small batches add up."""
    totals[name] = more.double() if name not in totals else totals[name] + more


def _diagonal(name: str, totals: Tensors, tangent: Tangent) -> Diagonal:
    parameter = tangent.params[name]
    zeros = torch.zeros(parameter.numel(), dtype=torch.float64)  # of what outputs do not depend on
    return Diagonal(name, totals.get(name, zeros).to(parameter))


def _complete(records: dict[str, Record], tangent: Tangent) -> dict[str, Record]:
    """Return the records with zeros for parameters that outputs do not depend on."""
    like = next(iter(records.values()))
    number, _, batch = like.moving.shape[:3]
    for name in tangent.wanted:
        if name not in records:
            moving = like.moving.new_zeros(number, 1, batch, 1, tangent.params[name].numel())
            records[name] = Record(moving, moving.new_ones(1, batch, 1, 1), 1)
    return records


SUMS: dict[str, Callable[..., tuple[Block, ...]]] = {
    "kron": kron,
    "diag": diag,
    "full": full,
    "last_layer": last_layer,
    "subnetwork": subnetwork,
}


STRUCTURES = ("kron", "diag", "full", "last_layer", "subnetwork", "low_rank")


@dataclass(frozen=True)
class Setting:
    """What curvature is wanted.

    Args:
        structure: one of `STRUCTURES`. fisher, mc_samples: see `roots`.
        sharing: "expand" or "reduce", how kron treats weights used at several positions.
        rank: of low_rank. passes: over the data, of low_rank.
        batch_size: examples at a time.
    """

    structure: str = "kron"
    fisher: str | None = None
    mc_samples: int = 1
    sharing: str = "expand"
    rank: int = 20
    passes: int = 3
    batch_size: int = 256


class Curvature(NamedTuple):
    """Of one mode.

    Attributes:
        blocks: C, block by block; each parameter is in one of them, or frozen.
        log_likelihood: Σ_n log p(y_n | f(x_n)), nats. num_examples: N.
        num_values: N D of a regression with Gaussian noise, else 0.
        weighted_error: Σ (y − f)² / σ² of such a regression.
    """

    blocks: tuple[Block, ...]
    log_likelihood: float
    num_examples: int
    num_values: float = 0
    weighted_error: float = 0.0


def wanted(setting: Setting, survey: Survey, stack: Stack) -> list[str]:
    """Return the parameters that have a posterior; the others are frozen."""
    return list(survey.last) if setting.structure == "last_layer" else list(stack.params)


@torch.no_grad()
def curvature(
    setting: Setting,
    problem: Problem,
    stack: Stack,
    k: int,
    survey: Survey,
    chosen: Tensor | None = None,
) -> Curvature:
    """Return the curvature of member k over the training data.

    Args:
        chosen: numbers of a subnetwork, counted over all of `stack.params` in a row.
    """
    tangent = Tangent(stack, k, survey, wanted(setting, survey, stack))
    source = _Source(setting, problem, tangent, {n: t[k].detach() for n, t in stack.extra.items()})
    path = "laplace", stack.seeds[k]
    stream = generator(problem.seed, *path)
    if setting.structure == "low_rank":
        blocks = low_rank(
            lambda: source.records(generator(problem.seed, *path)),
            tangent, setting.rank, setting.passes, generator(problem.seed, *path, "start"),
        )  # fmt: skip
    elif setting.structure == "kron":
        reduce = setting.sharing == "reduce"
        blocks = SUMS["kron"](source.records(stream), tangent, reduce, lambda: source.weights)
    elif setting.structure == "subnetwork":
        blocks = SUMS["subnetwork"](source.records(stream), tangent, chosen)
    elif source.one_layer and setting.structure in ("full", "last_layer"):
        blocks = SUMS["last_layer"](source.records(stream), tangent, True)
    else:
        blocks = SUMS[setting.structure](source.records(stream), tangent)
    return Curvature(blocks, *source.counts())


class _Source:
    """Passes over the data: records of each part of a batch, and sums on the way."""

    def __init__(
        self, setting: Setting, problem: Problem, tangent: Tangent, extra: Tensors
    ) -> None:
        self.setting, self.problem, self.tangent, self.extra = setting, problem, tangent, extra
        self.log_likelihood = self.weighted_error = self.num_values = 0.0
        self.num_examples = 0
        self.weights: Tensor | None = None
        self.by_position, self.groups = False, 1
        if problem.data is not None and isinstance(problem.likelihood, Positions):
            self._look_at_positions(next(iter(problem.data.batches(2)))[0], problem.likelihood)

    def _look_at_positions(self, x: Tensor, likelihood: Positions) -> None:
        """See whether each number of a last layer is of one position: then all come back at once,
        and are as examples of their own."""
        layer = last_layer_of(self.tangent, *self.tangent.watched(x))
        if likelihood.axes and layer is not None and sees_one_position(layer, likelihood):
            self.by_position, self.groups = True, layer.call.groups

    @property
    def one_layer(self) -> bool:
        """Whether curvature is that of one matrix and its bias, position by position."""
        return self.by_position and self.groups == 1

    def counts(self) -> tuple[float, int, float, float]:
        """Return the sums of the last pass, in the order of `Curvature`."""
        return self.log_likelihood, self.num_examples, self.num_values, self.weighted_error

    def records(self, stream: torch.Generator) -> Iterator[Iterator[tuple[str, Record]]]:
        """Yield, for each part of the data, the records of each parameter."""
        if self.problem.data is None:
            raise ValueError("curvature needs the training data: give Problem(..., data=...)")
        self.log_likelihood = self.weighted_error = self.num_values = 0.0
        self.num_examples = 0
        setting, likelihood = self.setting, self.problem.likelihood
        for x, y in self.problem.data.batches(setting.batch_size):
            for rows in self.tangent.parts(len(x), self._num_cotangents(y)):
                outputs, pull = self.tangent(x[rows])
                self._count(likelihood, outputs, y[rows])
                records = pull(
                    roots(likelihood, outputs, y[rows], self.extra, fisher=setting.fisher,
                          mc_samples=setting.mc_samples, stream=stream, together=self.by_position)
                )  # fmt: skip
                if self.by_position and setting.structure != "kron":
                    records = ((name, record.by_position()) for name, record in records)
                yield records

    def _num_cotangents(self, targets: Tensor) -> int:
        likelihood, positions = self.problem.likelihood, 1
        if self.by_position:
            # windows of inputs as well, the numbers of weights for each output
            base: Likelihood = likelihood.base  # type: ignore[attr-defined]
            outputs = base.num_outputs(self.problem.target_size)
            window = self.tangent.params[self.tangent.wanted[0]][0].numel()
            return outputs + -(-window // outputs)
        if isinstance(likelihood, Positions):
            positions = likelihood.weights_of(targets[:1]).numel()
            likelihood = likelihood.base
        exact = likelihood.num_outputs(self.problem.target_size) * positions
        numbers = {"exact": exact, "mc": self.setting.mc_samples, "empirical": positions}
        drawn = _is_large(self.problem.likelihood, exact)
        return numbers[self.setting.fisher or ("mc" if drawn else "exact")]

    def _count(self, likelihood: Likelihood, outputs: Tensor, y: Tensor) -> None:
        self.log_likelihood += float(likelihood.log_prob(outputs, y, self.extra).double().sum())
        self.num_examples += len(outputs)
        weights = outputs.new_ones(len(outputs))
        if isinstance(likelihood, Positions):
            self.weights = likelihood.weights_of(y).reshape(len(outputs), -1)
            (outputs, y, weights), likelihood = likelihood.rows(outputs, y), likelihood.base
        if isinstance(likelihood, Gaussian):
            scale = likelihood.components(outputs, self.extra).scale
            errors = ((outputs - y) / scale).double().square().sum(-1)
            self.weighted_error += float((errors * weights).sum())
            self.num_values += float(weights.double().sum()) * outputs.shape[-1]
