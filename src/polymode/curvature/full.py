r"""A block of H = C + Λ without structure: all covariances between several parameters.

.. math:: D^{-1/2} C D^{-1/2} = U \,\mathrm{diag}(l)\, U^\top, \qquad
          H^{-1} = D^{-1/2} U \,\mathrm{diag}\left(\frac{1}{l + \tau}\right) U^\top D^{-1/2}
          \quad\text{for } \Lambda = \tau D

D holds the precisions of the parameters relative to each other, all 1 at first. Precisions in the
same relation cost as much as there are eigenvalues; others cost one more decomposition, which
`prepared` makes once.

Shapes: `R` cotangents, `B` batch, `S` numbers of the block.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from polymode.curvature.kronecker import Block, Precision, eigen
from polymode.curvature.records import Record
from polymode.tracing.modules import Tensors

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
        values, basis = (each.to(dtype or matrix.dtype) for each in eigen(matrix))
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

    def deviation(self, noise: Tensors, precision: Precision) -> Tensors:
        chosen = torch.cat([noise[name][places] for name, places in self._places().items()])
        parts = (self.root(precision) @ chosen).split(self.sizes)
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
            whole = parts[0].view(outputs, width, -1)
            if len(self.names) == 2:
                whole = torch.cat([whole, parts[1].view(outputs, 1, -1)], 1)
            flat = whole.flatten(0, 1)
            shaped = (flat @ flat.mT).view(outputs, whole.shape[1], outputs, whole.shape[1])
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
        found = dict(zip(self.names, parts, strict=True))
        lengths = zip(self.names, self.lengths, strict=True)
        return self._scattered(found, {n: self.values.new_zeros(length) for n, length in lengths})

    def scaled(self, factor: Tensor | float) -> Dense:
        return replace(self, values=self.values * factor)

    def matrix(self) -> Tensor:
        root = self._each(self.relative).sqrt()
        return root.unsqueeze(-1) * (self.basis * self.values @ self.basis.mT) * root

    def tensors(self) -> Tensors:
        own = {"values": self.values, "basis": self.basis, "relative": self.relative}
        return own if self.chosen is None else own | {"chosen": self.chosen}


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
