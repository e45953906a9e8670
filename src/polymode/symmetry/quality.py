"""How far a posterior's networks are from a reference: MMD² of the weights, layer by layer.

`Reference` holds networks and their distances to each other, so that many posteriors can be
compared with it for the price of their own distances. Layers are compared one by one (weights and
biases together), and all weights at once; each gives an `MMD` with its twenty kernels and a null,
which for all weights is also that of every kernel.
Networks are compared as they are given: removing their symmetries first gives NS in place of MMD.

Shapes: `S` networks of a posterior, `R` of the reference, `D` weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polymode.core.checks import check_call
from polymode.symmetry.discrepancy import MMD, Distances, distances, lengthscales, mmd_of


class Quality(NamedTuple):
    """MMD² of all weights, and of each layer by its name."""

    whole: MMD
    layers: dict[str, MMD]

    @property
    def layer_mean(self) -> float:
        """Mean over layers of their aggregates."""
        return sum(layer.aggregate for layer in self.layers.values()) / len(self.layers)


class Reference:
    """Networks that posteriors are compared with.

    Args:
        params: weights (R, ...) by name, R ≥ 2; a layer is what stands before the last dot.
        fixed: whether all comparisons have the same lengthscales, found from the two halves of the
            reference, instead of their own.
    """

    def __init__(self, params: Mapping[str, Tensor], *, fixed: bool = False) -> None:
        check_call(Reference.__init__, locals())
        self.number = _number(params)
        self.layers = rows_by_layer(params)
        self.shapes = [tuple(tensor.shape[1:]) for tensor in params.values()]
        self._own = {name: distances(rows) for name, rows in self.layers.items()}
        self._whole = _sum(list(self._own.values()))
        half = self.number // 2
        self._lengths: dict[str, Tensor] = {}
        if fixed:
            self._lengths = {name: lengthscales(d, half) for name, d in self._own.items()}
            self._lengths[""] = lengthscales(self._whole, half)

    def compare(
        self,
        params: Mapping[str, Tensor],
        *,
        modes: Tensor | None = None,
        num_permutations: int = 100,
        seed: int = 0,
    ) -> Quality:
        """Return the MMD² of networks (S, ...), S ≥ 2, of the same shapes, whatever their names.

        Args:
            params: weights by name, in the order of the reference's.
            modes: number of each network's mode, (S,), see `mmd`.
            num_permutations, seed: of the null, see `mmd`.
        """
        shapes = [tuple(tensor.shape[1:]) for tensor in params.values()]
        if shapes != self.shapes:
            pairs = enumerate(zip(shapes, self.shapes, strict=False))
            wrong = next((k for k, (a, b) in pairs if a != b), None)
            name = list(params)[wrong] if wrong is not None else "the number of tensors"
            raise ValueError(
                f"the networks are of another architecture than the reference: {name} is"
                f" {shapes[wrong] if wrong is not None else len(shapes)} here and"
                f" {self.shapes[wrong] if wrong is not None else len(self.shapes)} there"
            )
        number = _number(params)
        null: dict[str, Any] = {"num_permutations": num_permutations, "seed": seed}
        null["modes"] = modes
        layers, joint = {}, []
        theirs = rows_by_layer(params).values()
        for name, rows in zip(self.layers, theirs, strict=True):
            joint.append(_joined(rows, self.layers[name], self._own[name]))
            lengths = self._lengths.get(name)
            layers[name] = mmd_of(joint[-1], number, lengths=lengths, each_kernel=False, **null)
        everything = mmd_of(_sum(joint), number, lengths=self._lengths.get(""), **null)
        return Quality(everything, layers)


def rows_by_layer(params: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights (S, ...) of each layer as rows (S, D), checked."""
    layers: dict[str, list[Tensor]] = {}
    for name, tensor in params.items():
        rows = tensor.detach().reshape(len(tensor), -1)
        if not torch.isfinite(rows).all():
            bad = int((~torch.isfinite(rows).all(1)).sum())
            raise ValueError(f"'{name}' of {bad:,} of {len(rows):,} networks is not finite")
        layers.setdefault(name.rpartition(".")[0] or name, []).append(rows)
    return {name: torch.cat(parts, 1) for name, parts in layers.items()}


def _joined(rows: Tensor, reference: Tensor, reference_apart: Distances) -> Distances:
    """Return the distances of all networks, ours first."""
    rows = rows.to(reference.dtype)
    rows_apart, across = distances(rows), distances(rows, reference)
    blocks = zip(rows_apart, across, reference_apart, strict=True)
    return Distances(
        *(torch.cat([torch.cat([a, b], 1), torch.cat([b.T, c], 1)]) for a, b, c in blocks)
    )


def _sum(parts: list[Distances]) -> Distances:
    total = parts[0]
    for part in parts[1:]:
        total = total.plus(part)
    return total


def _number(params: Mapping[str, Tensor]) -> int:
    numbers = {len(tensor) for tensor in params.values()}
    if len(numbers) != 1 or min(numbers) < 2:
        counts = ", ".join(map(str, sorted(numbers))) or 0
        raise ValueError(
            f"MMD needs at least 2 networks on either side, got {counts}; all tensors must have as"
            " many"
        )
    number = numbers.pop()
    return number
