"""Symmetries of a network as a value: which units permute, which scale, in which tensors.

Units are in one *group* if they are treated alike: any permutation of a group leaves the function
as it is. Heads of attention and the groups of a grouped convolution are *blocks*: each block has
permutations of its own, and whole blocks change places, in all of their groups at once. The number
of permutations is

    prod over groups (n!)^g  ·  prod over sets of blocks g!

for groups of n units in g blocks. `M` modes, `U` units, `V` scalings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True, eq=False)
class Place:
    """Where units are in a tensor.

    Attributes:
        name: of the tensor. part: "out" (the units' own weights), "in" (weights that read them) ...
        axis: of the tensor (without the member axis) that follows the units; -1 if entries of the
            tensor, all in a row, are units by themselves.
        label: unit of each place, broadcasts to the tensor's shape; 0 is no unit.
        number: which of its unit's places along the axis it is, like `label`.
        local: row of `table` for each unit. table: places along the axis, (units, most places).
    """

    name: str
    part: str
    axis: int
    label: np.ndarray
    number: np.ndarray
    local: np.ndarray
    table: np.ndarray


@dataclass(frozen=True, eq=False)
class Rescaling:
    """How scalings act on a tensor: times s[label] ** exponents. With `eps`, it is a running
    variance, v -> s² (v + eps) - eps. `part` is that of the units: "out", "in" or "own"."""

    name: str
    part: str
    label: np.ndarray
    exponents: np.ndarray
    eps: float | None


@dataclass(frozen=True, eq=False)
class Group:
    """Units that may change places: `units` (blocks, n); `blocks` names the set of blocks."""

    name: str
    units: np.ndarray
    blocks: str | None = None

    @property
    def num_blocks(self) -> int:
        return len(self.units)

    @property
    def size(self) -> int:
        """Units of each block."""
        return self.units.shape[1]


@dataclass(frozen=True, eq=False)
class ScaleGroup:
    """Scalings that belong to one axis: `variables` (n,); `free` if a normalisation undoes them."""

    name: str
    variables: np.ndarray
    free: bool
    tied: bool


@dataclass(frozen=True, eq=False)
class Symmetries:
    """The symmetries of an architecture, from `find`. `print` shows them.

    Attributes:
        network: name of the network's class.
        groups: groups of units that permute. blocks: name of a set of blocks -> its size.
        scale_groups: groups of scalings.
        places, rescalings: how they act on tensors, in the order of the graph.
        roles: tensor -> "weight", "gain", "bias", "slope" or "statistic".
        num_units, num_scales: U and V, number 0 included, which stands for no unit.
        unseen: unknown operations; what goes into them is held fixed.
        shared: modules that are used more than once; their units are tied.
        nearly: normalisations that undo a scaling only up to their eps; it is held fixed.
    """

    network: str
    groups: tuple[Group, ...]
    blocks: dict[str, int]
    scale_groups: tuple[ScaleGroup, ...]
    places: tuple[Place, ...]
    rescalings: tuple[Rescaling, ...]
    roles: dict[str, str]
    num_units: int
    num_scales: int
    unseen: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    nearly: tuple[str, ...] = ()
    by_name: dict[str, Group] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_name", {group.name: group for group in self.groups})

    @property
    def log_permutations(self) -> float:
        """Natural logarithm of the number of permutations."""
        inner = sum(g.num_blocks * math.lgamma(g.size + 1) for g in self.groups)
        return inner + sum(math.lgamma(size + 1) for size in self.blocks.values())

    @property
    def num_scalings(self) -> int:
        """Degrees of freedom of the scalings."""
        return sum(len(group.variables) for group in self.scale_groups)

    def __str__(self) -> str:
        power = self.log_permutations / math.log(10)
        lines = [
            f"Symmetries of {self.network}: {_count(len(self.groups), 'group')} of units, e^"
            f"{self.log_permutations:.1f} = 10^{power:.1f} permutations;"
            f" {_count(self.num_scalings, 'scaling')}"
        ]
        rows = [("permute", "units", "blocks")]
        for group in self.groups:
            inside = f"{group.num_blocks} of {group.blocks}" if group.blocks else ""
            rows.append((group.name, str(group.size), inside))
        lines += _table(rows) if self.groups else []
        rows = [("scale", "number", "")]
        for scales in self.scale_groups:
            about = ["undone by a normalisation"] * scales.free + ["tied"] * scales.tied
            rows.append((scales.name, str(len(scales.variables)), ", ".join(about)))
        lines += _table(rows) if self.scale_groups else []
        for what, names in (
            ("held fixed, of unknown effect", self.unseen),
            ("used more than once, units tied", self.shared),
            ("scale-free up to eps, held fixed, before", self.nearly),
        ):
            if names:
                lines.append(f"  {what}: {', '.join(names)}")
        return "\n".join(lines)

    __repr__ = __str__


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" + "s" * (number != 1)


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return [
        "  "
        + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
