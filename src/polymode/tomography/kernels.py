r"""The prior covariance of images or observations as dense matrices, made once for every prior.

With R rows of V J, V = I (pixels) or V = A (observations), and the components (block, distance) of
`filter_prior.py`,

    V J Σ Jᵀ Vᵀ = Σ_c c(s², ℓ) M_c,      M_c = V J (I ⊗ B_r) Jᵀ Vᵀ   (R, R),

so another s² or ℓ costs a sum of matrices. Rows of V J are vector-Jacobian products that the
network takes many at a time. Where all of them (R, P) do not fit into half of the free memory, they
are made block by block: as many passes as there are blocks.

Shapes: `n` pixels, `m` observations, `P` weights, `C` components, `R` rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from polymode.core.memory import free_bytes, human
from polymode.tomography.filter_prior import Block
from polymode.tomography.linearised import Linearised


@dataclass(frozen=True)
class Kernels:
    """Components of the prior covariance, float64.

    Attributes:
        observed: M_c of the observations, (C, m, m).
        pixels: M_c of the image, (C, n, n); None if only observations were asked for.
    """

    observed: Tensor
    pixels: Tensor | None = None

    def covariance(self, coefficients: Tensor) -> Tensor:
        """Return A J Σ Jᵀ Aᵀ, (m, m)."""
        return _combined(coefficients, self.observed)

    def pixel_covariance(self, coefficients: Tensor) -> Tensor:
        """Return J Σ Jᵀ, (n, n)."""
        assert self.pixels is not None, "made for observations alone"
        return _combined(coefficients, self.pixels)

    def subset(self, places: list[int]) -> Kernels:
        """Return some components alone."""
        pixels = None if self.pixels is None else self.pixels[places]
        return Kernels(self.observed[places], pixels)


def _combined(coefficients: Tensor, parts: Tensor) -> Tensor:
    flat = coefficients.detach().to(parts) @ parts.flatten(1)
    return flat.view(parts.shape[1:])


def assemble(model: Linearised, *, pixels: bool = True, most_bytes: float | None = None) -> Kernels:
    """Return the components for a linear model; asks for the memory first.

    Args:
        pixels: also those of the image: then n rows of J are made and A is applied to the result.
            Otherwise m rows of A J.
        most_bytes: that all of it may take; by default half of the free memory.
    """
    m, n = model.operator.shape
    count = sum(len(block.classes()) for block in model.prior.blocks)
    rows = n if pixels else m
    budget = 0.5 * free_bytes() if most_bytes is None else most_bytes
    dense = 8.0 * count * (m**2 + (n**2 if pixels else 0)) + 8.0 * (4 * m**2 + 2 * rows**2)
    largest = max(block.stop - block.start for block in model.prior.blocks)
    least, whole = (dense + 3.0 * rows * w * 8 for w in (largest, len(model.point)))
    if least > budget:
        raise ValueError(
            f"the exact path needs {count} matrices of {m:,} × {m:,}"
            + (f" and of {n:,} × {n:,}" if pixels else "")
            + f", with rows of the Jacobian {human(least)}; {human(budget)} may be used. Use the"
            " matrix-free path, fewer angles"
            + (", or pixels=False" if pixels else " or prior='isotropic'")
        )
    seen = torch.eye(rows, dtype=model.dtype)
    if not pixels:
        seen = model.back(seen)
    jacobian = model.weights(seen) if whole <= budget else None
    image: list[Tensor] = []
    observed: list[Tensor] = []
    for block in model.prior.blocks:
        if jacobian is None:
            own = model.of_block(block).weights(seen)
        else:
            own = jacobian[:, block.start : block.stop]
        if pixels:
            image.append(products(own, block))
            own = model.observe(own.T.contiguous()).T
        observed.append(products(own, block))
    return Kernels(torch.cat(observed), torch.cat(image) if pixels else None)


def products(rows: Tensor, block: Block) -> Tensor:
    """Return J (I ⊗ B_r) Jᵀ for each distance of a block, float64, from rows (R, P of the block).

    B_r of square filters are block-diagonal in a basis that is symmetric under the rotations and
    reflections of the filter. In it few products of (R, F) matrices are left, F filters: 14 instead
    of 9 for each of six distances if there are 3 x 3 taps.
    """
    classes = block.classes()
    rows = rows.double()  # so that sums stay positive definite beside a small σ²
    if len(classes) == 1:
        return (rows @ rows.T)[None]
    basis = _symmetric_basis(block)
    turned = basis.T @ rows.unflatten(1, (-1, block.num_taps)).permute(2, 0, 1).flatten(1)
    turned = turned.unflatten(1, (len(rows), -1))  # (T, R, F)
    inner = torch.stack([basis.T @ matrix @ basis for _, matrix in classes])
    pairs = [
        (a, b)
        for a in range(block.num_taps)
        for b in range(a, block.num_taps)
        if float(inner[:, a, b].abs().max()) > 1e-9
    ]
    found = torch.zeros(len(classes), len(rows), len(rows), dtype=torch.float64)
    for same in (False, True):
        own = [(a, b) for a, b in pairs if (a == b) == same]
        if own:
            made = torch.stack([turned[a] @ turned[b].T for a, b in own])
            factors = torch.stack([inner[:, a, b] for a, b in own], 1)
            found += (factors @ made.flatten(1)).view_as(found)
        if not same:
            found = found + found.mT
    return found


def _symmetric_basis(block: Block) -> Tensor:
    """Return an orthogonal basis (T, T) in which all B_r have as many zeros as symmetry gives them.

    Eigenvectors of a generic element of the algebra that the B_r generate with the reflections of
    the filter: two reflections of a grid commute with each other and with every B_r.
    """
    height, width = block.taps
    grid = torch.arange(height * width).view(height, width)
    eye = torch.eye(height * width, dtype=torch.float64)
    up, side = (eye[grid.flip(axis).flatten()] for axis in (0, 1))
    generic = up + 2.0 * side
    if height == width:
        diagonal = eye[grid.T.flatten()]
        even = (eye + up) @ (eye + side) / 4  # where the two reflections leave all as it is
        odd = (eye - up) @ (eye - side) / 4
        generic = generic + 0.5 * (even + odd) @ diagonal @ (even + odd)
    return torch.linalg.eigh((generic + generic.T) / 2)[1]
