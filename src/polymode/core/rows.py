"""Inputs of a network: one tensor, or several that share their rows.

A batch of a tokenizer is a dictionary, a network of two images takes two tensors. `Rows` holds such
a container and answers what is asked of a batch: its length, a slice, a copy on a device. So code
that slices, counts and hands on works for one tensor and for several. A tensor stays a tensor.

`B` rows (examples), `M` members.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree

Structure = Any
"""How leaves are arranged: None for a leaf, {name: structure}, or a tuple of structures."""
Shapes = Any
"""Shapes of one example: of a tensor a tuple of sizes, else {name: shapes} or a tuple of shapes."""


class Rows:
    """Tensors (B, ...) that share their rows, arranged by names or by position.

    Attributes:
        leaves: the tensors, in the order of `named()`.
        structure: how they are arranged; names are sorted.

    >>> rows = as_rows({"ids": torch.zeros(4, 7, dtype=torch.long), "size": torch.ones(4)})
    >>> len(rows), shapes_of(rows[:2])
    (4, {'ids': (7,), 'size': ()})
    """

    __slots__ = ("leaves", "structure")

    def __init__(self, leaves: Iterable[Tensor], structure: Structure) -> None:
        self.leaves, self.structure = tuple(leaves), structure

    @property
    def tree(self) -> Any:
        """The container as users give it: dictionaries and tuples of tensors."""
        return _arranged(self.structure, iter(self.leaves))

    def named(self) -> dict[str, Tensor]:
        """Return the leaves by name; those of tuples are numbered.

        >>> list(as_rows(({"a": torch.zeros(2)}, torch.zeros(2))).named())
        ['0.a', '1']
        """
        return dict(zip(_names(self.structure), self.leaves, strict=True))

    def map(self, function: Callable[[Tensor], Tensor]) -> Rows:
        """Return the same arrangement of function(leaf)."""
        return Rows(map(function, self.leaves), self.structure)

    def __len__(self) -> int:
        return len(self.leaves[0])

    def __getitem__(self, rows: Any) -> Rows:
        return self.map(lambda leaf: leaf[rows])

    def __repr__(self) -> str:
        parts = (f"{name} {tuple(leaf.shape)}" for name, leaf in self.named().items())
        return f"Rows({', '.join(parts)})"

    def index_select(self, axis: int, places: Tensor) -> Rows:
        return self.map(lambda leaf: leaf.index_select(axis, places))

    def split(self, size: int) -> list[Rows]:
        """Return parts of `size` rows, the last one smaller where that does not divide."""
        return [self[start : start + size] for start in range(0, len(self), size)]

    def unflatten(self, axis: int, sizes: Sequence[int]) -> Rows:
        return self.map(lambda leaf: leaf.unflatten(axis, tuple(sizes)))

    def to(self, *where: Any, **options: Any) -> Rows:
        """Return it on a device; a type is taken by floating-point leaves alone."""

        def move(leaf: Tensor) -> Tensor:
            if leaf.is_floating_point():
                return leaf.to(*where, **options)
            places = [w for w in where if not isinstance(w, torch.dtype)]
            others = {key: value for key, value in options.items() if key != "dtype"}
            return leaf.to(*places, **others) if places or others else leaf

        return self.map(move)

    def clone(self) -> Rows:
        return self.map(torch.clone)

    def detach(self) -> Rows:
        return self.map(torch.detach)

    def is_inference(self) -> bool:
        return any(leaf.is_inference() for leaf in self.leaves)

    def is_floating_point(self) -> bool:
        """Whether all leaves are floating-point."""
        return all(leaf.is_floating_point() for leaf in self.leaves)

    @property
    def requires_grad(self) -> bool:
        return any(leaf.requires_grad for leaf in self.leaves)

    @property
    def device(self) -> torch.device:
        return self.leaves[0].device

    @property
    def dtype(self) -> torch.dtype:
        """Type of the first floating-point leaf, or of the first leaf where there is none."""
        floats = (leaf.dtype for leaf in self.leaves if leaf.is_floating_point())
        return next(floats, self.leaves[0].dtype)

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Join several by `torch.cat` and `torch.stack`; other functions take tensors."""
        if function not in (torch.cat, torch.stack) or not all(
            isinstance(r, Rows) for r in args[0]
        ):
            return NotImplemented
        parts, first = list(args[0]), args[0][0]
        for part in parts:
            _require_same(first, part, joined=True)
        columns = zip(*(part.leaves for part in parts), strict=True)
        return Rows(
            (function(list(column), *args[1:], **(kwargs or {})) for column in columns),
            first.structure,
        )


Inputs = Tensor | Rows

_pytree.register_pytree_node(
    Rows,
    lambda rows: (list(rows.leaves), rows.structure),
    lambda leaves, structure: Rows(leaves, structure),
    serialized_type_name="polymode.Rows",
)


def _arranged(structure: Structure, leaves: Iterator[Any]) -> Any:
    """Return the leaves in a structure."""
    if structure is None:
        return next(leaves)
    if isinstance(structure, dict):
        return {name: _arranged(part, leaves) for name, part in structure.items()}
    return tuple(_arranged(part, leaves) for part in structure)


def _names(structure: Structure, start: str = "") -> list[str]:
    """Return the names of the leaves, in their order."""
    if structure is None:
        return [start]
    parts = structure.items() if isinstance(structure, dict) else enumerate(structure)
    return [
        name
        for key, part in parts
        for name in _names(part, f"{start}.{key}" if start else str(key))
    ]


def _is_container(value: Any) -> bool:
    """Whether it holds several tensors: a mapping, or a tuple or list of tensors or containers."""
    if isinstance(value, (Mapping, Rows)):
        return True
    if not isinstance(value, (tuple, list)) or not value:
        return False
    return all(
        isinstance(part, Tensor)
        and part.dim() > 0
        or isinstance(value, tuple)
        and getattr(part, "ndim", 0) > 0
        or _is_container(part)
        for part in value
    )


def is_several(value: Any) -> bool:
    """Whether inputs are several tensors: named ones, or a tuple (a list of tensors, too).

    A list of numbers or of arrays is one array, as in NumPy.
    """
    return _is_container(value)


def as_rows(source: Any, read: Callable[[Any, str], Tensor] | None = None) -> Rows:
    """Return a container of arrays as rows, or say in one line what is wrong with it.

    Args:
        source: a mapping, a tuple, or both in each other. Entries that are None are left out.
        read: makes a tensor of a leaf and its name; `torch.as_tensor` by default.
    """
    if isinstance(source, Rows):
        return source
    leaves: list[Tensor] = []
    structure = _read_into(leaves, source, "", read or _as_tensor)
    rows = Rows(leaves, structure)
    if not leaves:
        raise ValueError("the inputs hold no tensor: the container is empty")
    sizes = {name: len(leaf) if leaf.dim() else 0 for name, leaf in rows.named().items()}
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"'{name}' {size:,}" for name, size in list(sizes.items())[:4])
        raise ValueError(
            f"inputs that belong together differ in length: {listed}; each needs one row per"
            " example"
        )
    return rows


def _as_tensor(array: Any, name: str) -> Tensor:
    return torch.as_tensor(array)


def _read_into(
    leaves: list[Tensor], source: Any, name: str, read: Callable[[Any, str], Tensor]
) -> Structure:
    """Append the tensors of a container to `leaves` and return its structure."""
    if isinstance(source, Rows):
        source = source.tree
    start = f"{name}." if name else ""
    if isinstance(source, Mapping):
        for key in source:
            if not isinstance(key, str):
                raise ValueError(f"inputs are named by text, got the key {key!r:.40}")
        present = sorted(key for key in source if source[key] is not None)
        return {key: _read_into(leaves, source[key], start + key, read) for key in present}
    if _is_container(source):
        return tuple(
            _read_into(leaves, part, f"{start}{place}", read) for place, part in enumerate(source)
        )
    leaves.append(read(source, name))
    return None


def shapes_of(x: Inputs) -> Shapes:
    """Return the shapes of one example, arranged like the inputs."""
    if isinstance(x, Tensor):
        return tuple(x.shape[1:])
    return _arranged(x.structure, (tuple(leaf.shape[1:]) for leaf in x.leaves))


def is_one_shape(shapes: Shapes) -> bool:
    """Whether shapes are those of one tensor: a tuple of sizes.

    >>> is_one_shape((3, 8)), is_one_shape(((3,), (8,))), is_one_shape({"x": (3,)})
    (True, False, False)
    """
    return not isinstance(shapes, Mapping) and all(isinstance(size, int) for size in shapes)


def structure_of(shapes: Shapes) -> Structure:
    """Return the structure of inputs that have these shapes."""
    if is_one_shape(shapes):
        return None
    if isinstance(shapes, Mapping):
        return {name: structure_of(shapes[name]) for name in sorted(shapes)}
    return tuple(structure_of(part) for part in shapes)


def shapes_by_name(shapes: Shapes) -> dict[str, tuple[int, ...]]:
    """Return the shapes of several inputs by the names of their leaves.

    >>> shapes_by_name(({"a": (3,)}, ()))
    {'0.a': (3,), '1': ()}
    """
    structure = structure_of(shapes)
    leaves: list[tuple[int, ...]] = []

    def collect(part: Shapes) -> None:
        if is_one_shape(part):
            leaves.append(tuple(part))
            return
        for inner in (part[k] for k in sorted(part)) if isinstance(part, Mapping) else part:
            collect(inner)

    collect(shapes)
    return dict(zip(_names(structure), leaves, strict=True))


def shapes_text(shapes: Shapes) -> str:
    """Return shapes as people read them, with the batch axis.

    >>> shapes_text((3, 8)), shapes_text({"ids": (7,), "size": ()})
    ('(B, 3, 8)', 'ids (B, 7), size (B)')
    """
    if is_one_shape(shapes):
        return f"({', '.join(map(str, ('B', *shapes)))})"
    return ", ".join(f"{name} {shapes_text(s)}" for name, s in shapes_by_name(shapes).items())


def why_not_same(x: Inputs, shapes: Shapes) -> str | None:
    """Return in which way inputs differ from shapes, None where they do not.

    A tensor must have just this shape. Of several inputs names and numbers of axes must agree: the
    lengths of sequences vary from batch to batch.
    """
    if isinstance(x, Tensor):
        if is_one_shape(shapes):
            same = tuple(x.shape[1:]) == tuple(shapes)
            return None if same else f"shape {tuple(x.shape[1:])} and not {tuple(shapes)}"
        return f"one tensor, and not several: {shapes_text(shapes)}"
    if is_one_shape(shapes):
        return f"several tensors ({', '.join(x.named())}), and not one of shape {tuple(shapes)}"
    expected, held = shapes_by_name(shapes), x.named()
    missing, surplus = sorted(set(expected) - set(held)), sorted(set(held) - set(expected))
    if missing or surplus:
        parts = [f"no '{name}'" for name in missing[:1]]
        parts += [f"a surplus '{name}'" for name in surplus[:1]]
        return f"{' and '.join(parts)} (expected {', '.join(expected)}; got {', '.join(held)})"
    for name, leaf in held.items():
        if leaf.dim() - 1 != len(expected[name]):
            return (
                f"'{name}' of shape {shapes_text(tuple(leaf.shape[1:]))} where"
                f" {shapes_text(expected[name])} is expected"
            )
    return None


def _require_same(first: Rows, part: Rows, *, joined: bool = False) -> None:
    """Refuse to join rows of other names or lengths."""
    if first.structure != part.structure:
        raise ValueError(f"inputs of different names cannot be joined: {first!r} and {part!r}")
    for name, a, b in zip(first.named(), first.leaves, part.leaves, strict=True):
        if a.shape[1:] != b.shape[1:]:
            raise ValueError(
                f"batches in which '{name}' has the shapes {tuple(a.shape[1:])} and"
                f" {tuple(b.shape[1:])} cannot be joined; pad all of them to one length"
            )


class Ragged:
    """Batches of M members that cannot be stacked, because they differ in size.

    `ragged[k]` is the batch of member k. It has no common tensor, so members run one by one.

    Attributes:
        parts: each member's batch under a member axis of 1, (1, B, ...).
    """

    __slots__ = ("parts",)

    def __init__(self, parts: Iterable[Inputs]) -> None:
        self.parts = tuple(parts)

    def __len__(self) -> int:
        return len(self.parts)

    def __getitem__(self, members: Any) -> Any:
        if isinstance(members, slice):
            return Ragged(self.parts[members])
        return self.parts[members][0]

    def map(self, function: Callable[[Tensor], Tensor]) -> Ragged:
        """Return function(leaf) of every leaf of every member."""
        return Ragged(map_leaves(part, function) for part in self.parts)

    @property
    def leaves(self) -> tuple[Tensor, ...]:
        return tuple(leaf for part in self.parts for leaf in leaves_of(part))

    @property
    def requires_grad(self) -> bool:
        return any(leaf.requires_grad for leaf in self.leaves)


def stacked(parts: Sequence[Inputs]) -> Any:
    """Return one batch per member with a member axis, as `Ragged` where they differ in size.

    >>> len(stacked([torch.zeros(4, 7), torch.zeros(4, 9)]))
    2
    """
    if len({tuple(leaf.shape for leaf in leaves_of(part)) for part in parts}) == 1:
        return torch.stack(list(parts))  # type: ignore[arg-type]
    return Ragged(part[None] for part in parts)


def map_leaves(x: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Return function(x) of a tensor, or of each leaf."""
    return x.map(function) if isinstance(x, (Rows, Ragged)) else function(x)


def leaves_of(x: Any) -> tuple[Tensor, ...]:
    """Return the tensors that inputs consist of."""
    return x.leaves if isinstance(x, (Rows, Ragged)) else (x,)


def spread(x: Any, num_modes: int) -> Any:
    """Return inputs with a member axis, (M, B, ...), without copying them."""
    return map_leaves(x, lambda leaf: leaf.expand(num_modes, *leaf.shape))


def copies_of_first(x: Any, number: int) -> Any:
    """Return the first row `number` times."""
    return map_leaves(x, lambda leaf: leaf[:1].expand(number, *leaf.shape[1:]))


def num_bytes(x: Inputs) -> int:
    """Return the memory of inputs."""
    return sum(leaf.element_size() * leaf.nelement() for leaf in leaves_of(x))


def equal(a: Inputs, b: Inputs) -> bool:
    """Whether inputs have the same values."""
    pairs = zip(leaves_of(a), leaves_of(b), strict=True)
    return all(torch.equal(first, second) for first, second in pairs)
