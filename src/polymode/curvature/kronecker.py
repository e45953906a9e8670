r"""Blocks of a Gaussian's precision, curvature plus prior, H = C + Λ.

Λ is diagonal with one precision per parameter tensor. A change of Λ leaves the eigenvectors of
Kronecker and diagonal blocks as they are, so it costs as much as there are eigenvalues.

================  ===============================================================================
`Kronecker`       C = M ⊗ A of one matrix, M = U diag(m) Uᵀ, A = V diag(a) Vᵀ; eigenvalues m_i a_j
`Diagonal`        C = diag(c) of one tensor
`Dense`           C of several tensors, or of some of their numbers (`curvature/full.py`)
`LowRank`         C = Σ_k s_k u_k u_kᵀ of several tensors (`curvature/low_rank.py`)
================  ===============================================================================

Shapes: `R` cotangents, `B` batch, `G` groups, `O` moving, `I` fixed features, `P` numbers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace

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
        """Return what is to be saved, by name."""


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


@dataclass(frozen=True)
class Kronecker(Block):
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
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.name,)

    @property
    def sizes(self) -> tuple[int, ...]:  # type: ignore[override]
        return (self.eigenvalues.numel(),)

    @property
    def eigenvalues(self) -> Tensor:
        """Those of C, (G, O, I)."""
        return self.moving.unsqueeze(-1) * self.fixed.unsqueeze(-2)

    def logdet(self, precision: Precision) -> Tensor:
        return (self.eigenvalues + precision[self.name]).log().sum()

    def effective(self, precision: Precision) -> Tensors:
        values = self.eigenvalues
        return {self.name: (values / (values + precision[self.name])).sum()}

    def deviation(self, noise: Tensors, precision: Precision) -> Tensors:
        scaled = noise[self.name].view_as(self.eigenvalues)
        scaled = scaled * (self.eigenvalues + precision[self.name]).rsqrt()
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
        own = {"moving": self.moving, "moving_basis": self.moving_basis, "fixed": self.fixed}
        return own if self.fixed_basis is None else own | {"fixed_basis": self.fixed_basis}


@dataclass(frozen=True)
class Diagonal(Block):
    """One tensor whose numbers are independent of each other.

    Args:
        name: of the parameter. values: C, (P,), in the parameter's layout.
    """

    name: str
    values: Tensor

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.name,)

    @property
    def sizes(self) -> tuple[int, ...]:  # type: ignore[override]
        return (self.values.numel(),)

    @property
    def eigenvalues(self) -> Tensor:
        return self.values

    def logdet(self, precision: Precision) -> Tensor:
        return (self.values + precision[self.name]).log().sum()

    def effective(self, precision: Precision) -> Tensors:
        return {self.name: (self.values / (self.values + precision[self.name])).sum()}

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
