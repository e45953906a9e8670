r"""Blocks of a Gaussian's precision, curvature plus prior, H = C + Λ.

Λ is diagonal with one precision per parameter tensor. A change of Λ leaves the eigenvectors of
Kronecker and diagonal blocks as they are, so it costs as much as there are eigenvalues.

================  ===============================================================================
`Kronecker`       C = M ⊗ A of one matrix, M = U diag(m) Uᵀ, A = V diag(a) Vᵀ; eigenvalues m_i a_j
`Diagonal`        C = diag(c) of one tensor
`Dense`           C of several tensors, or of some of their numbers
`LowRank`         C = Σ_k s_k u_k u_kᵀ of several tensors
================  ===============================================================================

Shapes: `R` cotangents, `B` batch, `G` groups, `O` moving, `I` fixed features, `P` numbers of a
parameter, `S` of a dense block, `K` directions.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from polymode.curvature.records import Record
from polymode.tracing.modules import Tensors

Precision = Mapping[str, Tensor]
"""λ of every parameter tensor, by name: scalars, which may require gradients."""


class Block(ABC):
    """The part of H that belongs to some parameters.

    Attributes:
        names: the parameters. sizes: numbers of each that the block covers.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]

    @abstractmethod
    def logdet(self, precision: Precision) -> Tensor:
        """Return log det(C + Λ), differentiable with respect to the precisions."""

    @abstractmethod
    def effective(self, precision: Precision) -> Tensors:
        """Return γ of each parameter, Σ over its numbers of 1 − λ (H⁻¹)_ii: how many of them the
        data determine."""

    @abstractmethod
    def deviation(self, noise: Tensors, precision: Precision) -> Tensors:
        """Return H^{-1/2} ε of standard normal noise by parameter, (P,) each."""

    @abstractmethod
    def quadratic(self, records: Mapping[str, Record], precision: Precision, full: bool) -> Tensor:
        """Return J H⁻¹ Jᵀ of each example, (B, R, R), or its diagonal (B, R)."""

    @abstractmethod
    def whitened(self, records: Mapping[str, Record], precision: Precision) -> Tensor:
        """Return J H^{-1/2} written out, (R, B, P): for covariances between examples."""

    @abstractmethod
    def variances(self, precision: Precision) -> Tensors:
        """Return the diagonal of H⁻¹ by parameter, (P,) each."""

    @abstractmethod
    def scaled(self, factor: Tensor | float) -> Block:
        """Return the block of `factor` C: another noise of a regression."""

    @abstractmethod
    def matrix(self) -> Tensor:
        """Return C written out, over the numbers of all parameters in order."""

    @abstractmethod
    def tensors(self) -> Tensors:
        """Return the tensors to save, by name."""


def eigen(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return eigenvalues ≥ 0 and eigenvectors (..., n, n) of semi-definite matrices.

    In float64, as the small ones decide about variances. The largest entry of each vector is
    positive, so that the same matrix has the same vectors.
    """
    values, vectors = torch.linalg.eigh(matrix.double())
    place = (vectors.abs() * (1 + 1e-9 * _ramp(vectors))).argmax(-2, keepdim=True)
    vectors = vectors * vectors.gather(-2, place).sign()
    vectors = vectors.to(matrix.dtype).contiguous()  # as a file gives them back
    return values.clamp_min(0).to(matrix.dtype), vectors


def _ramp(vectors: Tensor) -> Tensor:
    """Numbers that fall along the entries: of equal ones the first is the largest."""
    size = vectors.shape[-2]
    return torch.arange(size, 0, -1, dtype=vectors.dtype, device=vectors.device).unsqueeze(-1)


class OneTensor(Block):
    """The part of H that belongs to one parameter, whose eigenvectors no precision changes."""

    name: str

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.name,)

    @property
    def sizes(self) -> tuple[int, ...]:  # type: ignore[override]
        return (self.eigenvalues.numel(),)

    @property
    @abstractmethod
    def eigenvalues(self) -> Tensor:
        """Those of C, in any shape."""

    def logdet(self, precision: Precision) -> Tensor:
        return (self.eigenvalues + precision[self.name]).log().sum()

    def effective(self, precision: Precision) -> Tensors:
        values = self.eigenvalues
        return {self.name: (values / (values + precision[self.name])).sum()}


@dataclass(frozen=True)
class Kronecker(OneTensor):
    """One matrix, or one for each group; a bias is the matrix with I = 1.

    Args:
        name: of the parameter.
        moving: eigenvalues (G, O). moving_basis: eigenvectors (G, O, O).
        fixed: (G, I). fixed_basis: (G, I, I), None for the unit vectors.
        fixed_first: whether the parameter is laid out (G, I, O).
    """

    name: str
    moving: Tensor
    moving_basis: Tensor
    fixed: Tensor
    fixed_basis: Tensor | None
    fixed_first: bool

    @classmethod
    def of(
        cls, name: str, moving: tuple[Tensor, Tensor], fixed: Tensor, fixed_first: bool
    ) -> Kronecker:
        """Return the block of M's eigenvalues and vectors, and A (G, I, I) or diagonal (G, I)."""
        if fixed.dim() == 2:
            return cls(name, *moving, fixed, None, fixed_first)
        return cls(name, *moving, *eigen(fixed), fixed_first)

    @property
    def eigenvalues(self) -> Tensor:
        """Those of C, (G, O, I)."""
        return self.moving.unsqueeze(-1) * self.fixed.unsqueeze(-2)

    def deviation(self, noise: Tensors, precision: Precision) -> Tensors:
        rotated = self.moving_basis.mT @ noise[self.name].view_as(self.eigenvalues)
        if self.fixed_basis is not None:
            rotated = rotated @ self.fixed_basis
        scaled = rotated * (self.eigenvalues + precision[self.name]).rsqrt()
        rotated = self.moving_basis @ scaled
        if self.fixed_basis is not None:
            rotated = rotated @ self.fixed_basis.mT
        return {self.name: self._as_parameter(rotated)}

    def quadratic(self, records: Mapping[str, Record], precision: Precision, full: bool) -> Tensor:
        rotated = records[self.name].summed().rotated(self.moving_basis, self.fixed_basis)
        return rotated.quadratic((self.eigenvalues + precision[self.name]).reciprocal(), full)

    def whitened(self, records: Mapping[str, Record], precision: Precision) -> Tensor:
        record = records[self.name].summed().rotated(self.moving_basis, self.fixed_basis)
        scale = (self.eigenvalues + precision[self.name]).rsqrt()
        return record.jacobian() * self._as_parameter(scale)

    def variances(self, precision: Precision) -> Tensors:
        inverse = (self.eigenvalues + precision[self.name]).reciprocal()
        spread = self.moving_basis.square() @ inverse
        if self.fixed_basis is not None:
            spread = spread @ self.fixed_basis.square().mT
        return {self.name: self._as_parameter(spread)}

    def scaled(self, factor: Tensor | float) -> Kronecker:
        return replace(self, moving=self.moving * factor)

    def matrix(self) -> Tensor:
        left = self.moving_basis * self.moving.unsqueeze(-2) @ self.moving_basis.mT
        right = self.fixed.diag_embed()
        if self.fixed_basis is not None:
            right = self.fixed_basis * self.fixed.unsqueeze(-2) @ self.fixed_basis.mT
        parts = (right, left) if self.fixed_first else (left, right)
        return torch.block_diag(*(torch.kron(a, b) for a, b in zip(*parts, strict=True)))

    def to(self, dtype: torch.dtype) -> Kronecker:
        """Return the block in another floating-point type."""
        cast = {key: tensor.to(dtype) for key, tensor in self.tensors().items()}
        return replace(self, **cast)  # type: ignore[arg-type]

    def _as_parameter(self, values: Tensor) -> Tensor:
        return (values.mT if self.fixed_first else values).flatten()

    def tensors(self) -> Tensors:
        tensors = {"moving": self.moving, "moving_basis": self.moving_basis, "fixed": self.fixed}
        return tensors if self.fixed_basis is None else tensors | {"fixed_basis": self.fixed_basis}


@dataclass(frozen=True)
class Diagonal(OneTensor):
    """One tensor whose numbers are independent of each other.

    Args:
        name: of the parameter. values: C, (P,), in the parameter's layout.
    """

    name: str
    values: Tensor

    @property
    def eigenvalues(self) -> Tensor:
        return self.values

    def deviation(self, noise: Tensors, precision: Precision) -> Tensors:
        return {self.name: noise[self.name] * (self.values + precision[self.name]).rsqrt()}

    def quadratic(self, records: Mapping[str, Record], precision: Precision, full: bool) -> Tensor:
        return records[self.name].weighted(self.variances(precision)[self.name], full)

    def whitened(self, records: Mapping[str, Record], precision: Precision) -> Tensor:
        return records[self.name].jacobian() * (self.values + precision[self.name]).rsqrt()

    def variances(self, precision: Precision) -> Tensors:
        return {self.name: (self.values + precision[self.name]).reciprocal()}

    def scaled(self, factor: Tensor | float) -> Diagonal:
        return replace(self, values=self.values * factor)

    def matrix(self) -> Tensor:
        return self.values.diag()

    def tensors(self) -> Tensors:
        return {"values": self.values}


ROWS = 2**24  # numbers of a Jacobian that are held at a time


@dataclass(frozen=True)
class Dense(Block):
    """Several parameters, or some of their numbers, together.

    Args:
        names: the parameters, in order. lengths: numbers of each, whole.
        values: l, (S,). basis: U, (S, S).
        relative: D, a number for each parameter.
        chosen: which numbers, (S,) in rising order, counted over all parameters in a row; None for
            all.
        one_layer: whether the parameters are the weight and the bias of one layer that is used at
            one position: a cheaper order of the same sums.
    """

    names: tuple[str, ...]
    lengths: tuple[int, ...]
    values: Tensor
    basis: Tensor
    relative: Tensor
    chosen: Tensor | None = None
    one_layer: bool = False
    _held: dict[str, tuple[Tensor, Tensor]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )  # what predictions use again and again, with the precisions that it belongs to

    @classmethod
    def of(
        cls,
        lengths: Mapping[str, int],
        matrix: Tensor,
        chosen: Tensor | None = None,
        one_layer: bool = False,
        dtype: torch.dtype | None = None,
    ) -> Dense:
        """Return the block of C (S, S)."""
        values, basis = (part.to(dtype or matrix.dtype) for part in eigen(matrix))
        ones = values.new_ones(len(lengths))
        return cls(tuple(lengths), tuple(lengths.values()), values, basis, ones, chosen, one_layer)

    @property
    def index(self) -> tuple[Tensor, ...] | None:
        """Which numbers of each parameter, None for all."""
        if self.chosen is None:
            return None
        return index_of(self.chosen, self.lengths)

    @property
    def sizes(self) -> tuple[int, ...]:  # type: ignore[override]
        index = self.index
        return self.lengths if index is None else tuple(len(places) for places in index)

    def _each(self, per_name: Tensor) -> Tensor:
        """Return one number per parameter as one per number of the block, (S,)."""
        counts = torch.tensor(self.sizes, device=per_name.device)
        return per_name.repeat_interleave(counts)

    def _prior(self, precision: Precision) -> Tensor:
        return torch.stack([torch.as_tensor(precision[n]).to(self.values) for n in self.names])

    def _factor(self, precision: Precision) -> Tensor | None:
        """Return τ where the precisions have the relation D, else None."""
        ratios = self._prior(precision) / self.relative
        low, high = ratios.min(), ratios.max()
        return ratios[0] if high - low <= 1e-6 * high else None

    def prepared(self, precision: Precision) -> Dense:
        """Return the block in the basis that suits these precisions."""
        if self._factor(precision) is not None:
            return self
        relative = self._prior(precision).detach()
        root = self._each(relative).rsqrt()
        values, basis = eigen(self.matrix() * root * root.unsqueeze(-1))
        return replace(self, values=values, basis=basis, relative=relative)

    def _suited(self, precision: Precision) -> tuple[Dense, Tensor]:
        block = self.prepared(precision)
        factor = block._factor(precision)
        assert factor is not None
        return block, factor

    def logdet(self, precision: Precision) -> Tensor:
        factor = self._factor(precision)
        if factor is not None:
            return (self.values + factor).log().sum() + self._each(self.relative).log().sum()
        prior = self._each(self._prior(precision))
        root = torch.linalg.cholesky(self.matrix() + prior.diag())
        return 2 * root.diagonal().log().sum()

    def effective(self, precision: Precision) -> Tensors:
        spread = self.variances(precision)
        return {
            n: (1 - precision[n] * spread[n][places]).sum() for n, places in self._places().items()
        }

    def _places(self) -> dict[str, Tensor | slice]:
        index = self.index or (slice(None),) * len(self.names)
        return dict(zip(self.names, index, strict=True))

    def _kept(self, what: str, precision: Precision, make: Callable[[], Tensor]) -> Tensor:
        """Return what `make` gives, made once for these precisions."""
        prior = self._prior(precision)
        if torch.is_grad_enabled() and prior.requires_grad:
            return make()
        if what not in self._held or not torch.equal(self._held[what][0], prior):
            self._held[what] = prior.detach(), make()
        return self._held[what][1]

    def root(self, precision: Precision) -> Tensor:
        """Return W with W Wᵀ = H⁻¹, (S, S)."""
        return self._kept("root", precision, lambda: self._root(precision))

    def _root(self, precision: Precision) -> Tensor:
        block, factor = self._suited(precision)
        scale = (block.values + factor).rsqrt()
        return block._each(block.relative).rsqrt().unsqueeze(-1) * block.basis * scale

    def symmetric_root(self, precision: Precision) -> Tensor:
        """Return the W of draws, which equal eigenvalues do not make depend on their basis."""

        def make() -> Tensor:
            return self._root(precision) @ self._suited(precision)[0].basis.mT

        return self._kept("symmetric root", precision, make)

    def deviation(self, noise: Tensors, precision: Precision) -> Tensors:
        chosen = torch.cat([noise[name][places] for name, places in self._places().items()])
        parts = (self.symmetric_root(precision) @ chosen).split(self.sizes)
        return self._scattered(dict(zip(self.names, parts, strict=True)), noise)

    def _scattered(self, parts: Tensors, like: Tensors) -> Tensors:
        """Return numbers of the block in places of the whole parameters, zeros elsewhere."""
        if self.index is None:
            return parts
        return {
            name: torch.zeros_like(like[name]).index_put((places,), parts[name])
            for name, places in zip(self.names, self.index, strict=True)
        }

    def jacobian(self, records: Mapping[str, Record], rows: slice) -> Tensor:
        """Return J of some examples over the block's numbers, (R, B, S)."""
        return jacobian(records, self.names, self.index, rows)

    def quadratic(self, records: Mapping[str, Record], precision: Precision, full: bool) -> Tensor:
        first = records[self.names[0]]
        if self.one_layer and first.positions == 1:
            return self._of_layer(records, precision, full)
        root = self.root(precision)
        step = max(1, ROWS // (first.moving.shape[0] * len(self.values)))
        parts = []
        for start in range(0, first.moving.shape[2], step):
            rotated = self.jacobian(records, slice(start, start + step)) @ root  # (R, B, S)
            if full:
                rotated = rotated.transpose(0, 1)
                parts.append(rotated @ rotated.mT)
            else:
                parts.append(rotated.square().sum(-1).mT)
        return torch.cat(parts)

    def _of_layer(self, records: Mapping[str, Record], precision: Precision, full: bool) -> Tensor:
        """As J = g ⊗ (a, 1): contract with a on both sides first, then with g."""
        record = records[self.names[0]]
        moving = record.moving[:, 0, :, 0].transpose(0, 1)  # (B, R, O)
        width, outputs = record.width, moving.shape[-1]
        inputs = record.fixed[0, :, 0]
        if len(self.names) == 2:
            inputs = torch.cat([inputs, inputs.new_ones(len(inputs), 1)], 1)

        def covariance() -> Tensor:  # (I, O O I)
            parts = self.root(precision).split(
                [outputs * width, len(self.values) - outputs * width]
            )
            factor = parts[0].view(outputs, width, -1)
            if len(self.names) == 2:
                factor = torch.cat([factor, parts[1].view(outputs, 1, -1)], 1)
            flat = factor.flatten(0, 1)
            shaped = (flat @ flat.mT).view(outputs, factor.shape[1], outputs, factor.shape[1])
            return shaped.transpose(0, 1).flatten(1)

        half = inputs @ self._kept("covariance", precision, covariance)
        half = half.view(len(inputs), outputs * outputs, inputs.shape[1])
        inner = (half @ inputs.unsqueeze(-1)).view(-1, outputs, outputs)
        product = moving @ inner
        return product @ moving.mT if full else (product * moving).sum(-1)

    def whitened(self, records: Mapping[str, Record], precision: Precision) -> Tensor:
        return self.jacobian(records, slice(None)) @ self.root(precision)

    def variances(self, precision: Precision) -> Tensors:
        parts = self.root(precision).square().sum(-1).split(self.sizes)
        variances = dict(zip(self.names, parts, strict=True))
        lengths = zip(self.names, self.lengths, strict=True)
        return self._scattered(
            variances, {n: self.values.new_zeros(length) for n, length in lengths}
        )

    def scaled(self, factor: Tensor | float) -> Dense:
        return replace(self, values=self.values * factor)

    def matrix(self) -> Tensor:
        root = self._each(self.relative).sqrt()
        return root.unsqueeze(-1) * (self.basis * self.values @ self.basis.mT) * root

    def tensors(self) -> Tensors:
        tensors = {"values": self.values, "basis": self.basis, "relative": self.relative}
        return tensors if self.chosen is None else tensors | {"chosen": self.chosen}


def jacobian(
    records: Mapping[str, Record],
    names: Sequence[str],
    index: Sequence[Tensor] | None,
    rows: slice,
) -> Tensor:
    """Return J of some examples over several parameters, or some numbers of each, (R, B, S)."""
    parts = []
    for number, name in enumerate(names):
        record = records[name].of(rows)
        parts.append(record.jacobian() if index is None else record.columns(index[number]))
    return torch.cat(parts, -1)


def index_of(chosen: Tensor, lengths: Sequence[int]) -> tuple[Tensor, ...]:
    """Return numbers counted over all parameters in a row as numbers of each."""
    starts = [0, *itertools.accumulate(lengths)]
    inside = ((chosen >= a) & (chosen < b) for a, b in itertools.pairwise(starts))
    return tuple(chosen[i] - a for i, a in zip(inside, starts, strict=False))


@dataclass(frozen=True)
class LowRank(Block):
    r"""All parameters, by K directions of large curvature; others have the prior's precision.

    .. math:: H^{-1} = \Lambda^{-1/2} (I - W (I + W^\top W)^{-1} W^\top) \Lambda^{-1/2}, \qquad
              W = \Lambda^{-1/2} U \,\mathrm{diag}(s)^{1/2}

    W ᵀ W comes from products U_nᵀ U_n of each parameter that are made once, so another Λ costs K²
    per parameter.

    Args:
        directions: u_k by parameter, (K, P).
        values: s, (K,).
    """

    directions: Tensors
    values: Tensor

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(self.directions)

    @property
    def sizes(self) -> tuple[int, ...]:  # type: ignore[override]
        return tuple(rows.shape[1] for rows in self.directions.values())

    def _roots(self, name: str, precision: Precision) -> Tensor:
        """Return the rows of Wᵀ that belong to a parameter, (K, P)."""
        return self.directions[name] * self.values.sqrt().unsqueeze(-1) / precision[name].sqrt()

    def _gram(self, precision: Precision) -> Tensor:
        total = torch.zeros_like(self.values.diag())
        for name, part in self.directions.items():
            total = total + part @ part.mT / precision[name]
        root = self.values.sqrt()
        return root.unsqueeze(-1) * total * root

    def _inner(self, precision: Precision) -> Tensor:
        """Return (I + Wᵀ W)⁻¹, (K, K)."""
        gram = self._gram(precision)
        return torch.linalg.inv(gram + torch.eye(len(gram)).to(gram))

    def logdet(self, precision: Precision) -> Tensor:
        gram = self._gram(precision)
        root = torch.linalg.cholesky(gram + torch.eye(len(gram)).to(gram))
        prior = sum(n * precision[k].log() for k, n in zip(self.names, self.sizes, strict=True))
        return 2 * root.diagonal().log().sum() + prior

    def effective(self, precision: Precision) -> Tensors:
        inner, effective = self._inner(precision), {}
        for name in self.names:
            rows = self._roots(name, precision)
            effective[name] = torch.einsum("kp,kj,jp->", rows, inner, rows)
        return effective

    def _change(self, precision: Precision) -> Tensor:
        """Return X (K, K) with (I + W Wᵀ)^{-1/2} = I + W X Wᵀ."""
        gram = self._gram(precision)
        q, basis = torch.linalg.eigh(gram)
        usable = q > q[-1].clamp_min(0) * len(q) * torch.finfo(q.dtype).eps
        inverse = torch.where(usable, q.where(usable, 1.0).reciprocal(), 0.0)
        return basis * (inverse * ((1 + q.clamp_min(0)).rsqrt() - 1)) @ basis.mT

    def deviation(self, noise: Tensors, precision: Precision) -> Tensors:
        rows = {name: self._roots(name, precision) for name in self.names}
        along = sum(rows[name] @ noise[name] for name in self.names)
        coefficients = self._change(precision) @ along
        return {
            name: (noise[name] + coefficients @ rows[name]) / precision[name].sqrt()
            for name in self.names
        }

    def quadratic(self, records: Mapping[str, Record], precision: Precision, full: bool) -> Tensor:
        prior: Tensor | float = 0.0
        along: Tensor | float = 0.0
        for name, directions in self.directions.items():
            record = records[name]
            flat = (1 / precision[name]).expand(directions.shape[1])
            prior = prior + record.weighted(flat, full)
            along = along + record.along(directions) / precision[name]  # (B, R, K)
        assert isinstance(along, Tensor)
        along = along * self.values.sqrt()
        reduced = along @ self._inner(precision)
        return prior - (reduced @ along.mT if full else (reduced * along).sum(-1))

    def whitened(self, records: Mapping[str, Record], precision: Precision) -> Tensor:
        flat = [records[n].jacobian() / precision[n].sqrt() for n in self.names]
        rows = [self._roots(n, precision) for n in self.names]
        along = torch.cat(flat, -1) @ torch.cat(rows, -1).mT
        coefficients = along @ self._change(precision)
        return torch.cat([p + coefficients @ r for p, r in zip(flat, rows, strict=True)], -1)

    def variances(self, precision: Precision) -> Tensors:
        inner, variances = self._inner(precision), {}
        for name in self.names:
            rows = self._roots(name, precision)
            variances[name] = (1 - torch.einsum("kp,kj,jp->p", rows, inner, rows)) / precision[name]
        return variances

    def scaled(self, factor: Tensor | float) -> LowRank:
        return replace(self, values=self.values * factor)

    def matrix(self) -> Tensor:
        directions = torch.cat(list(self.directions.values()), 1)
        return directions.mT * self.values @ directions

    def tensors(self) -> Tensors:
        tensors = {f"directions/{name}": rows for name, rows in self.directions.items()}
        return tensors | {"values": self.values}
