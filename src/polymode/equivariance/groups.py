"""Groups that act on inputs and outputs, and their orbits.

A `Group` has elements 0 ... |G| − 1; element 0 is the identity. It acts on inputs by `act` and
`orbit`, on outputs by `act_on_outputs` and `orbit_of_outputs`. The action on outputs is

    "trivial"   the target is invariant: f(g x) = f(x), as a class is;
    "input"     outputs move as inputs do: vectors with vectors, images with images;
    a tensor    (|G|, K, K), one matrix ρ(g) per element: f(g x) = ρ(g) f(x).

Orbits are always made from the input itself, never by acting twice: an interpolated rotation of
a rotated image is blurred twice. Actions take any leading axes: (B, C, H, W), (M, B, K), ...

`group("C4")` finds a group by name; an "@" behind it says the shape of a lattice that comes as a
flat vector, "->" the action on outputs: "C4@5x5", "SO3-octahedral->input". `B` batch, `K` outputs.
"""

from __future__ import annotations

import copy
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polymode.core.checks import OnlyTensor, check_call
from polymode.core.registry import suggest

ROUNDING = 1e-5  # matrices that differ by less are the same element
MOST_ELEMENTS = 10_000  # of a group by name: an orbit has as many copies of every input


class Group(ABC):
    """A finite group, or a finite set of its elements, acting on inputs and outputs.

    Attributes:
        name: as `group` takes it.
        exact: whether the action permutes entries or is orthogonal, so that the group law holds to
            rounding; False for interpolated rotations.
        closed: whether the elements are a group; False for Haar draws, which have no table.
        output: "trivial", "input", or matrices (|G|, K, K).
    """

    name: str
    exact: bool = True
    closed: bool = True
    output: str | Tensor = "trivial"

    @abstractmethod
    def __len__(self) -> int:
        """The number of elements |G|."""

    @abstractmethod
    def _act(self, x: Tensor, index: int) -> Tensor:
        """Return g x for a valid index that is not 0."""

    @abstractmethod
    def _table(self) -> Tensor:
        """Return the composition table (|G|, |G|) of a closed set."""

    def check(self, x: Tensor) -> None:  # noqa: B027  what acts on everything refuses nothing
        """Refuse inputs that this group cannot act on."""

    def act(self, x: Tensor, index: int) -> Tensor:
        """Return g x, of the shape of x, for element `index`."""
        if not 0 <= index < len(self):
            raise ValueError(f"{self.name} has the elements 0 ... {len(self) - 1}, got {index}")
        self.check(x)
        return x if index == 0 else self._act(x, index)

    def act_each(self, x: Tensor, indices: Tensor) -> Tensor:
        """Return x (B, ...) with element indices[b] acting on row b."""
        moved = x.clone()
        for index in indices.unique().tolist():
            rows = indices == index
            moved[rows] = self.act(x[rows], index)
        return moved

    def orbit(self, x: Tensor) -> Tensor:
        """Return all g x, (|G|, *shape of x); each made from x."""
        return torch.stack([self.act(x, index) for index in range(len(self))])

    @property
    def table(self) -> Tensor:
        """The composition table (|G|, |G|): acting with j and then with i is table[i, j]."""
        if not self.closed:
            raise ValueError(
                f"{self.name} is a set of draws, not closed under composition: it has no table;"
                " take a finite subgroup where inverses or products are needed"
            )
        if not hasattr(self, "_kept_table"):
            self._kept_table = self._table()
        return self._kept_table

    def inverse(self, index: int) -> int:
        """Return the element that undoes `index`."""
        return int((self.table[index] == 0).nonzero()[0])

    # outputs

    @property
    def invariant(self) -> bool:
        """Whether outputs stay as they are."""
        return isinstance(self.output, str) and self.output == "trivial"

    def act_on_outputs(self, y: Tensor, index: int) -> Tensor:
        """Return ρ(g) y for outputs (..., K), or for integer labels if ρ permutes classes."""
        if self.invariant or index == 0:
            return y
        if isinstance(self.output, str):
            return self.act(y, index) if y.is_floating_point() else _no_action(self.name)
        matrix = self.output[index]
        if not y.is_floating_point():
            if not _permutes(matrix):
                _no_action(self.name)
            return matrix.argmax(0).to(y.device)[y]
        if y.shape[-1] != len(matrix):
            raise ValueError(
                f"the representation of {self.name} is for {len(matrix)} outputs, got {y.shape[-1]}"
            )
        return y @ matrix.to(y).mT

    def orbit_of_outputs(self, y: Tensor) -> Tensor:
        """Return all ρ(g) y, (|G|, *shape of y)."""
        return torch.stack([self.act_on_outputs(y, index) for index in range(len(self))])

    def with_output(self, output: str | Tensor) -> Group:
        """Return the group with another action on outputs; matrices must be a representation."""
        if isinstance(output, str):
            if output not in OUTPUTS:
                raise ValueError(
                    f"`output` of {self.name} must be 'trivial', 'input' or matrices, got"
                    f" {output!r}.{suggest(output, OUTPUTS)}"
                )
        else:
            _check_representation(self, output)
        changed = copy.copy(self)
        changed.output = output
        return changed

    def __repr__(self) -> str:
        return f"group({self.name!r})"


OUTPUTS = ("trivial", "input")


def _no_action(name: str) -> Any:
    raise ValueError(
        f"integer labels have no group action, but the outputs of {name} are to move: take"
        " output='trivial' for classes that stay, or permutation matrices for classes that change"
    )


def _permutes(matrix: Tensor) -> bool:
    zeros_and_ones = ((matrix == 0) | (matrix == 1)).all()
    return bool(zeros_and_ones and (matrix.sum(0) == 1).all() and (matrix.sum(1) == 1).all())


def _check_representation(group: Group, matrices: Tensor) -> None:
    if matrices.ndim != 3 or len(matrices) != len(group) or matrices.shape[1] != matrices.shape[2]:
        raise ValueError(
            f"a representation of {group.name} is ({len(group)}, K, K), got {tuple(matrices.shape)}"
        )
    size = matrices.shape[1]
    if not torch.allclose(matrices[0], torch.eye(size).to(matrices), atol=ROUNDING):
        raise ValueError(f"element 0 of {group.name} is the identity, but its matrix is not")
    if group.closed:
        products = matrices[:, None] @ matrices[None]
        wrong = (products - matrices[group.table]).abs().amax((2, 3))
        if wrong.max() > ROUNDING:
            i, j = divmod(int(wrong.argmax()), len(group))
            raise ValueError(
                f"the matrices are no representation of {group.name}: ρ({i}) ρ({j}) differs from"
                f" ρ({int(group.table[i, j])}) by {wrong.max():.2g}"
            )


def table_of(matrices: Tensor) -> Tensor:
    """Return the composition table of matrices (|G|, d, d) that are closed under products."""
    products = (matrices[:, None] @ matrices[None]).flatten(2)  # (|G|, |G|, d²)
    distance = (products[:, :, None] - matrices.flatten(1)).abs().amax(-1)
    nearest, table = distance.min(-1)
    if nearest.max() > ROUNDING:
        raise ValueError(f"the {len(matrices)} matrices are not closed under composition")
    return table


# names


class Kind(NamedTuple):
    """A family of groups by name: `pattern` of the name, what it is, and how one is made."""

    example: str
    pattern: str
    summary: str
    make: Callable[[re.Match[str], tuple[int, ...] | None], Group]


KINDS: list[Kind] = []


def register(
    example: str, pattern: str, summary: str
) -> Callable[[Callable[..., Group]], Callable[..., Group]]:
    """Enter a family: its maker takes the match of the name and the lattice's shape or None."""

    def enter(make: Callable[..., Group]) -> Callable[..., Group]:
        KINDS.append(Kind(example, pattern, summary, make))
        return make

    return enter


def names() -> list[str]:
    """Return a name of each family, as examples."""
    _load()
    return [kind.example for kind in KINDS]


def group(
    name: str | Group,
    *,
    lattice: Sequence[int] | int | None = None,
    output: str | OnlyTensor | None = None,
) -> Group:
    """Return the group called `name`.

    Args:
        name: "C1" ... "C4" and "D1" ... "D4" by quarter turns and mirror images, other "Ck" by
            interpolation, "sign", "S3", "T@5x5", "SO2-8", "SO3-octahedral", "SO3-haar-20-0",
            "turns-haar-20-0"; a `Group` is returned as it is.
        lattice: shape of a lattice whose sites come as a flat vector; one number is a square.
        output: action on outputs: "trivial", "input", or matrices (|G|, K, K).

    >>> c4 = group("C4")
    >>> c4.orbit(torch.arange(4.0).view(1, 2, 2)).flatten(1).tolist()
    [[0.0, 1.0, 2.0, 3.0], [1.0, 3.0, 0.0, 2.0], [3.0, 2.0, 1.0, 0.0], [2.0, 0.0, 3.0, 1.0]]
    """
    check_call(group, locals())
    if isinstance(name, Group):
        return name if output is None else name.with_output(output)
    _load()
    text, _, behind = str(name).partition("->")
    stem, at, sides = text.strip().partition("@")
    if at:
        if not re.fullmatch(r"\d+(x\d+)*", sides):
            raise ValueError(f"a lattice is written as @5x5, got '{name}'")
        lattice = [int(side) for side in sides.split("x")]
    shape = (lattice, lattice) if isinstance(lattice, int) else lattice
    shape = None if shape is None else tuple(shape)
    if shape is not None and any(side < 1 for side in shape):
        raise ValueError(f"the sides of a lattice must be at least 1, got {shape}")
    if shape is not None:
        _require_few(str(name), math.prod(shape), "sites")
    for kind in KINDS:
        match = re.fullmatch(kind.pattern, stem)
        if match:
            acting = kind.make(match, shape)
            sides = "" if shape is None else "@" + "x".join(map(str, shape))
            acting.name = stem + sides
            chosen = behind.strip() if behind else output
            return acting if chosen is None else acting.with_output(chosen)
    examples = [kind.example for kind in KINDS]
    same = [example for example in examples if example.casefold() == stem.casefold()]
    near = f" Did you mean '{same[0]}'?" if same else suggest(stem, examples)
    raise ValueError(f"Unknown group '{name}'.{near} Known: {', '.join(examples)}.")


def _require_few(name: str, number: int, what: str = "elements") -> None:
    """Refuse groups, before they are made, whose orbits are larger than any memory."""
    if number > MOST_ELEMENTS:
        raise ValueError(
            f"'{name}' has {number:,} {what}, and an orbit as many copies of every input; at most"
            f" {MOST_ELEMENTS:,} are taken: choose a smaller one, or draws such as 'SO2-haar-20-0'"
        )


def number_of(match: re.Match[str], place: int = 1) -> int:
    """Return the number of elements that a name asks for, if they are not too many."""
    number = int(match[place]) if len(match[place]) < 20 else 10**20
    _require_few(match[0] if len(match[0]) < 40 else match[0][:36] + "...", number)
    return number


def _load() -> None:
    """Import the families, which enter themselves."""
    from polymode.equivariance import planar, vectors  # noqa: F401
