r"""Derivatives of a network's outputs with respect to one parameter, as products of two parts.

A layer that multiplies its inputs by a matrix W uses it at T positions (pixels, tokens, calls).
With a cotangent v_r of the outputs, the derivative of example n is

.. math:: J_{rn} = \sum_t m_{rnt} \otimes a_{nt}, \qquad m = \partial (v_r^\top f) / \partial z,

where a is what the layer multiplies (the `fixed` part, the same for all cotangents) and m what
comes back to it (the `moving` part). Nothing of the size of W is made for a whole batch: squares,
quadratic forms and Kronecker factors come from the two parts, and J itself in pieces.

A bias, the scale of a normalisation layer and every other parameter are the case I = 1, a = 1.

Shapes: `R` cotangents, `B` batch, `T` positions, `G` groups, `O` moving, `I` fixed features,
`P` numbers of the parameter.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

PIECE = 2**22  # numbers of J that are held at a time, 16 MB in float32: within reach of the caches


class Record(NamedTuple):
    """The two parts of the derivatives of one batch.

    Attributes:
        moving: (R, G, B, T, O).
        fixed: (G, B, T, I), or labels (G, B, T) of rows that are one-hot, I = `width`.
        width: I.
        fixed_first: whether the parameter is laid out (G, I, O), not (G, O, I).
    """

    moving: Tensor
    fixed: Tensor
    width: int
    fixed_first: bool = False

    @property
    def labels(self) -> bool:
        """Whether the fixed part is labels of one-hot rows."""
        return self.fixed.dim() == 3

    @property
    def positions(self) -> int:
        return self.moving.shape[3]

    @property
    def size(self) -> int:
        """P."""
        return self.moving.shape[1] * self.moving.shape[4] * self.width

    def of(self, rows: slice) -> Record:
        """Return some examples."""
        return self._replace(moving=self.moving[:, :, rows], fixed=self.fixed[:, rows])

    def by_position(self) -> Record:
        """Return the same with each position as an example of its own: no output depends on two."""
        return self._replace(
            moving=self.moving.flatten(2, 3).unsqueeze(3),
            fixed=self.fixed.flatten(1, 2).unsqueeze(2),
        )

    def detached(self) -> Record:
        """Return the same without the graph of the forward pass, to which layer inputs belong."""
        return self._replace(moving=self.moving.detach(), fixed=self.fixed.detach())

    def summed(self) -> Record:
        """Return the same with one position where the fixed part is one number at each."""
        if self.width > 1 or self.labels or self.positions == 1:
            return self
        ones = self.fixed.stride()[:3] == (0, 0, 0)  # one number for all, expanded: a bias's one
        moving = self.moving if ones else self.moving * self.fixed
        fixed = self.fixed[:, :, :1] if ones else torch.ones_like(self.fixed[:, :, :1])
        return self._replace(moving=moving.sum(3, keepdim=True), fixed=fixed)

    def dense(self) -> Record:
        """Return the same with one-hot rows written out."""
        if not self.labels:
            return self
        hot = torch.nn.functional.one_hot(self.fixed, self.width)
        return self._replace(fixed=hot.to(self.moving.dtype))

    def pieces(self, budget: int = PIECE) -> Iterator[slice]:
        """Yield ranges of examples whose derivatives are of `budget` numbers at most."""
        batch = self.moving.shape[2]
        step = max(1, budget // max(1, self.moving.shape[0] * self.size))
        for start in range(0, batch, step):
            yield slice(start, min(start + step, batch))

    def jacobian(self) -> Tensor:
        """Return J written out, (R, B, P), in the parameter's own layout."""
        record = self.summed()
        batch = record.moving.shape[2]
        if record.labels:
            jacobian = record._scattered()
        elif record.positions == 1:
            moving, fixed = record.moving[:, :, :, 0], record.fixed[:, :, 0]
            jacobian = moving.unsqueeze(-1) * fixed.unsqueeze(-2)  # (R, G, B, O, I)
            jacobian = jacobian.transpose(1, 2)
        else:
            jacobian = record._products().unflatten(2, (record.moving.shape[0], -1))
            jacobian = jacobian.permute(2, 1, 0, 3, 4)  # (R, B, G, O, I)
        if record.fixed_first:
            jacobian = jacobian.transpose(-1, -2)
        return jacobian.reshape(record.moving.shape[0], batch, -1)

    def _products(self) -> Tensor:
        """Return Σ_t m aᵀ as (G, B, R O, I), one small product per example."""
        moving = self.moving.permute(1, 2, 0, 4, 3).flatten(2, 3)  # (G, B, R O, T)
        return moving @ self.fixed

    def _scattered(self) -> Tensor:
        """Return J of one-hot rows, (R, B, G, O, I)."""
        moving = self.moving.permute(0, 2, 1, 4, 3)  # (R, B, G, O, T)
        index = self.fixed.transpose(0, 1)[None, :, :, None].expand_as(moving)
        shape = (*moving.shape[:-1], self.width)
        return moving.new_zeros(shape).scatter_add(-1, index, moving)

    def _distinct(self) -> Record:
        """Return one-hot rows with each label only at its first position, zeros elsewhere."""
        if self.positions == 1:
            return self
        same = self.fixed[0].unsqueeze(-1) == self.fixed[0].unsqueeze(-2)  # (B, T, T)
        first = torch.nn.functional.one_hot(same.int().argmax(-1), self.positions)
        return self._replace(moving=first.mT.to(self.moving.dtype) @ self.moving)

    def squares(self) -> Tensor:
        """Return Σ_{r n} J², (P,): the diagonal of the curvature whose roots the cotangents are."""
        record = self.summed()
        if record.positions == 1 and not record.labels:
            left = record.moving[:, :, :, 0].square().sum(0)  # (G, B, O)
            squares = left.mT @ record.fixed[:, :, 0].square()  # (G, O, I)
            return (squares.mT if record.fixed_first else squares).flatten()
        number, groups, _, _, features = record.moving.shape
        if record.labels:
            square = record._distinct().moving.square().sum(0)[0]  # (B, T, O)
            total = square.new_zeros(self.width, features)
            total.index_add_(0, record.fixed.flatten(), square.flatten(0, 1))
            return (total if record.fixed_first else total.mT).flatten()
        total = record.moving.new_zeros(groups, features, self.width)
        for rows in record.pieces():
            products = record.of(rows)._products().square_().sum(1)  # (G, R O, I)
            total += products.unflatten(1, (number, -1)).sum(1)
        return (total.mT if record.fixed_first else total).flatten()

    def rotated(self, moving: Tensor | None, fixed: Tensor | None) -> Record:
        """Return the parts in other bases, columns of (G, O, O') and (G, I, I')."""
        new = self
        if fixed is not None:
            new = new._replace(fixed=self.fixed @ fixed[:, None], width=fixed.shape[-1])
        if moving is not None:
            new = new._replace(moving=self.moving @ moving[:, None])
        return new

    def quadratic(self, variance: Tensor, full: bool) -> Tensor:
        """Return Σ_p J_r J_s v_p, (B, R, R), or its diagonal (B, R).

        Args:
            variance: v, in the layout (G, O, I) of the record, whatever the parameter's is.
            full: whether all pairs of cotangents are wanted.
        """
        record = self.summed()
        if record.positions == 1 and not record.labels:
            moving, fixed = record.moving[:, :, :, 0], record.fixed[:, :, 0]
            weights = fixed.square() @ variance.mT  # (G, B, O)
            if not full:
                return torch.einsum("rgbo,gbo->br", moving.square(), weights)
            scaled = (moving * weights).permute(2, 0, 1, 3).flatten(2)  # (B, R, G O)
            return scaled @ moving.permute(2, 1, 3, 0).flatten(1, 2)
        if record.labels:
            moving = record._distinct().moving[:, 0]  # (R, B, T, O)
            scaled = moving * variance[0].mT[record.fixed[0]]
            if not full:
                return (scaled * moving).sum((2, 3)).mT
            return torch.einsum("rbto,sbto->brs", scaled, moving)
        parts = []
        for rows in record.pieces():
            products = record.of(rows)._products().unflatten(2, (record.moving.shape[0], -1))
            jacobian = products.permute(1, 2, 0, 3, 4)  # (B, R, G, O, I)
            scaled = (jacobian * variance).flatten(2)
            jacobian = jacobian.flatten(2)
            parts.append(scaled @ jacobian.mT if full else (scaled * jacobian).sum(-1))
        return torch.cat(parts)

    def weighted(self, variance: Tensor, full: bool) -> Tensor:
        """Return the same of v (P,) in the parameter's layout."""
        groups, features = self.moving.shape[1], self.moving.shape[4]
        if self.fixed_first:
            return self.quadratic(variance.view(groups, self.width, features).mT, full)
        return self.quadratic(variance.view(groups, features, self.width), full)

    def along(self, directions: Tensor) -> Tensor:
        """Return J d of K directions (K, P) in the parameter's layout, (B, R, K)."""
        groups, features = self.moving.shape[1], self.moving.shape[4]
        if self.fixed_first:
            shaped = directions.view(-1, groups, self.width, features)
        else:
            shaped = directions.view(-1, groups, features, self.width).mT  # (K, G, I, O)
        record = self.summed()
        if record.labels:
            images = shaped[:, 0][:, record.fixed[0]][:, None]  # (K, G, B, T, O)
        else:
            images = record.fixed @ shaped.unsqueeze(2)
        return torch.einsum("rgbto,kgbto->brk", record.moving, images)

    def against(self, coefficients: Tensor) -> Tensor:
        """Return Σ_{n r} c_{nrk} J_{rn} of K columns (B, R, K), (K, P): the adjoint of `along`."""
        record = self.summed()
        moved = torch.einsum("brk,rgbto->kgbto", coefficients, record.moving)
        if record.labels:
            sums = moved.new_zeros(len(moved), 1, self.width, moved.shape[-1])
            sums[:, 0].index_add_(1, record.fixed.flatten(), moved[:, 0].flatten(1, 2))
        else:
            sums = record.fixed.flatten(1, 2).mT @ moved.flatten(2, 3)  # (K, G, I, O)
        return (sums if self.fixed_first else sums.mT).flatten(1)

    def columns(self, index: Tensor) -> Tensor:
        """Return J at some of the parameter's numbers, (R, B, S)."""
        record = self.summed()
        if record.positions == 1 and not record.labels:
            groups, features = record.moving.shape[1], record.moving.shape[4]
            if self.fixed_first:
                sizes = groups, self.width, features
                g, i, o = torch.unravel_index(index, sizes)
            else:
                sizes = groups, features, self.width
                g, o, i = torch.unravel_index(index, sizes)
            moving = record.moving[:, g, :, 0, o]  # (S, R, B): advanced axes come first
            fixed = record.fixed[g, :, 0, i]  # (S, B)
            return (moving * fixed.unsqueeze(1)).permute(1, 2, 0)
        parts = [record.of(rows).jacobian()[..., index] for rows in record.pieces()]
        return torch.cat(parts, 1)

    def moving_factor(self, reduce: bool) -> Tensor:
        """Return the Kronecker factor Σ m mᵀ, (G, O, O), see `fixed_factor`."""
        shared = reduce and self.positions > 1 and not self.labels
        return gram(self.moving.sum(3, keepdim=True) if shared else self.moving)

    def fixed_factor(self, reduce: bool) -> Tensor:
        """Return the Kronecker factor Σ a aᵀ / T, (G, I, I).

        "Expand" takes every position as an example of its own; "reduce" sums m and averages a over
        the positions first (Eschenhagen et al., NeurIPS 2023). One-hot rows have a diagonal factor,
        (G, I), and are always expanded.
        """
        if self.labels:
            counts = torch.bincount(self.fixed.flatten(), minlength=self.width)
            return counts.to(self.moving.dtype)[None] / self.positions
        if self.width == 1:  # ones
            batch = self.moving.shape[2]
            return self.moving.new_full((self.moving.shape[1], 1, 1), batch)
        if reduce and self.positions > 1:
            fixed = self.fixed.mean(2)
            return fixed.mT @ fixed
        return gram(self.fixed[None]) / self.positions

    def weighted_factor(self, weights: Tensor, reduce: bool) -> Tensor:
        """Return `fixed_factor` in which examples count by their weights (B, E), position by
        position where this operation has the same number of them, else by their mean."""
        if weights.shape[1] != self.positions:
            weights = weights.mean(1, keepdim=True)
        if self.labels:
            flat = weights.expand(self.fixed.shape).flatten()
            counts = torch.bincount(self.fixed.flatten(), flat, self.width)
            return counts.to(self.moving.dtype)[None] / self.positions
        fixed = self.fixed * weights.sqrt().unsqueeze(-1).to(self.fixed)
        if reduce and self.positions > 1:
            fixed = fixed.mean(2)
            return fixed.mT @ fixed
        return gram(fixed[None]) / self.positions


def gram(vectors: Tensor) -> Tensor:
    """Return Σ_{r b t} v vᵀ of (R, G, B, T, F), (G, F, F)."""
    groups, features = vectors.shape[1], vectors.shape[4]
    if groups == 1 and (vectors.stride(-1) == 1 or vectors.shape[3] == 1):
        flat = vectors.reshape(-1, features)
        return (flat.mT @ flat)[None]
    total = vectors.new_zeros(groups, features, features)
    for part in vectors:  # one cotangent at a time, so that nothing is copied whole
        if part.stride(-1) == 1 or part.shape[2] == 1:
            flat = part.flatten(1, 2)
            total += flat.mT @ flat
        else:  # images, whose positions lie together in memory: one product per example
            total += (part.mT @ part).sum(1)
    return total


def joined(records: list[Record]) -> Record:
    """Return several uses of one parameter as one, their positions in a row."""
    if len(records) == 1:
        return records[0]
    if len({record.labels for record in records}) > 1:
        records = [record.dense() for record in records]
    moving = torch.cat([record.moving for record in records], 3)
    fixed = torch.cat([record.fixed for record in records], 2)
    return records[0]._replace(moving=moving, fixed=fixed)
