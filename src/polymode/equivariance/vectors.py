"""Groups on vectors: sign flip, permutations, SO(2) and SO(3).

Rotations act on the last axis in blocks: a vector (a, b) of two points of R³ has 6 entries, and
each block of 3 is rotated. SO(2) and SO(3) come as finite subgroups, or as draws from their Haar
measure, which are no group but cover it ever more finely. Element 0 is always the identity.
"""

from __future__ import annotations

import itertools
import math
import re

import torch
from torch import Tensor

from polymode.core.rng import generator
from polymode.equivariance.groups import ROUNDING, Group, number_of, register, table_of
from polymode.equivariance.planar import uniform_angles


class Sign(Group):
    """{1, −1}: x and −x."""

    name = "sign"

    def __len__(self) -> int:
        return 2

    def _act(self, x: Tensor, index: int) -> Tensor:
        return -x

    def _table(self) -> Tensor:
        return torch.tensor([[0, 1], [1, 0]])


class Permutations(Group):
    """All permutations of the n entries along an axis; n! elements, n at most 6.

    Args:
        axis: the last by default; −2 for sets of points (B, n, d).
    """

    def __init__(self, size: int, axis: int = -1) -> None:
        if not 1 <= size <= 6:
            raise ValueError(f"S{size} has {size}! elements; orbits are for n of 1 to 6")
        self.size, self.axis, self.name = size, axis, f"S{size}"
        self.places = torch.tensor(list(itertools.permutations(range(size))))

    def __len__(self) -> int:
        return len(self.places)

    def check(self, x: Tensor) -> None:
        if x.ndim < -self.axis or x.shape[self.axis] != self.size:
            raise ValueError(
                f"{self.name} permutes {self.size} entries along axis {self.axis}, got inputs of"
                f" shape {tuple(x.shape)}"
            )

    def _act(self, x: Tensor, index: int) -> Tensor:
        return x.index_select(self.axis, self.places[index].to(x.device))

    def _table(self) -> Tensor:
        digits = self.size ** torch.arange(self.size)
        products = self.places[:, self.places]  # [j, i] is p_j[p_i]: first j, then i
        codes, wanted = (self.places * digits).sum(-1), (products * digits).sum(-1)
        order = codes.argsort()
        return order[torch.searchsorted(codes[order], wanted)].T.contiguous()


class Rotations(Group):
    """Orthogonal matrices (|G|, d, d), the first of them 1, acting on blocks of d entries."""

    def __init__(self, matrices: Tensor, *, closed: bool = True, name: str = "rotations") -> None:
        matrices = matrices.double()
        identity = torch.eye(matrices.shape[-1], dtype=torch.float64)
        if (matrices.mT @ matrices - identity).abs().max() > ROUNDING:
            raise ValueError("`matrices` of Rotations must be orthogonal")
        if not torch.allclose(matrices[0], identity, atol=ROUNDING):
            raise ValueError("the first of the `matrices` of Rotations must be the identity")
        self.matrices, self.closed, self.name = matrices, closed, name

    def __len__(self) -> int:
        return len(self.matrices)

    def check(self, x: Tensor) -> None:
        size = self.matrices.shape[-1]
        if x.ndim < 1 or x.shape[-1] % size:
            raise ValueError(
                f"{self.name} rotates vectors of {size} entries, but the last axis of the inputs"
                f" {tuple(x.shape)} is no multiple of {size}"
            )

    def _act(self, x: Tensor, index: int) -> Tensor:
        matrix = self.matrices[index].to(x)
        return (x.unflatten(-1, (-1, len(matrix))) @ matrix.mT).flatten(-2)

    def _table(self) -> Tensor:
        return table_of(self.matrices)


def plane_rotations(angles: Tensor) -> Tensor:
    """Return the rotations (N, 2, 2) of the plane by angles (N,)."""
    cos, sin = angles.double().cos(), angles.double().sin()
    return torch.stack([torch.stack([cos, -sin], -1), torch.stack([sin, cos], -1)], -2)


def haar_rotations(number: int, seed: int = 0, *, dimension: int = 3) -> Tensor:
    """Return draws (N, d, d) from the Haar measure of SO(d): QR of Gaussian matrices, the diagonal
    of R made positive, and the determinant 1."""
    shape = (number, dimension, dimension)
    drawn = torch.randn(shape, generator=generator(seed, "haar"), dtype=torch.float64)
    orthogonal, upper = torch.linalg.qr(drawn)
    orthogonal = orthogonal * upper.diagonal(dim1=-2, dim2=-1).sign()[:, None]
    orthogonal[:, :, 0] *= torch.linalg.det(orthogonal)[:, None]
    return orthogonal


def _closure(generators: list[Tensor]) -> Tensor:
    """Return the group that matrices generate, the identity first."""
    elements = [torch.eye(3, dtype=torch.float64)]
    for element in elements:  # grows while it is read
        for step in generators:
            product = step @ element
            if all((product - member).abs().max() > ROUNDING for member in elements):
                elements.append(product)
    return torch.stack(elements)


def _about(axis: list[float], angle: float) -> Tensor:
    """Return the rotation by `angle` about `axis`, by Rodrigues' formula."""
    x, y, z = (torch.tensor(axis, dtype=torch.float64) / math.hypot(*axis)).tolist()
    cross = torch.tensor([[0, -z, y], [z, 0, -x], [-y, x, 0]], dtype=torch.float64)
    identity = torch.eye(3, dtype=torch.float64)
    return identity + math.sin(angle) * cross + (1 - math.cos(angle)) * cross @ cross


_GOLDEN = (1 + math.sqrt(5)) / 2
_THIRD = _about([1, 1, 1], 2 * math.pi / 3)
SOLIDS = {
    "tetrahedral": lambda: _closure([_about([0, 0, 1], math.pi), _THIRD]),
    "octahedral": lambda: _closure([_about([0, 0, 1], math.pi / 2), _THIRD]),
    "icosahedral": lambda: _closure([_about([0, 1, _GOLDEN], 2 * math.pi / 5), _THIRD]),
}


def _no_lattice(name: str, lattice: tuple[int, ...] | None) -> None:
    if lattice is not None:
        raise ValueError(f"{name} acts on vectors; it has no lattice, got {lattice}")


@register("sign", r"sign", "x and −x")
def _sign(match: re.Match[str], lattice: tuple[int, ...] | None) -> Group:
    _no_lattice("sign", lattice)
    return Sign()


@register("S3", r"S(\d+)", "permutations of n entries along the last axis")
def _permutations(match: re.Match[str], lattice: tuple[int, ...] | None) -> Group:
    _no_lattice(match[0], lattice)
    return Permutations(int(match[1]) if len(match[1]) < 3 else 100)


@register("SO2-8", r"SO2-([1-9]\d*)", "rotations of 2-D vectors by 360/k degrees")
def _plane(match: re.Match[str], lattice: tuple[int, ...] | None) -> Group:
    _no_lattice(match[0], lattice)
    order = number_of(match)
    turns = torch.arange(order, dtype=torch.float64)
    return Rotations(plane_rotations(turns * (2 * math.pi / order)))


@register(
    "SO3-octahedral",
    r"SO3-(tetrahedral|octahedral|icosahedral)",
    "rotations of a regular solid on 3-D vectors: 12, 24 or 60",
)
def _solid(match: re.Match[str], lattice: tuple[int, ...] | None) -> Group:
    _no_lattice(match[0], lattice)
    return Rotations(SOLIDS[match[1]]())


@register("SO3-haar-20-0", r"SO([23])-haar-(\d+)(?:-(\d+))?", "Haar draws: number, seed")
def _haar(match: re.Match[str], lattice: tuple[int, ...] | None) -> Group:
    _no_lattice(match[0], lattice)
    dimension, number, seed = int(match[1]), number_of(match, 2), int(match[3] or 0)
    if dimension == 2:
        return Rotations(plane_rotations(uniform_angles(number, seed)), closed=number == 1)
    if number < 1:
        raise ValueError("a set of draws has at least the identity, got 0 elements")
    matrices = haar_rotations(number, seed)
    matrices[0] = torch.eye(3, dtype=torch.float64)
    return Rotations(matrices, closed=number == 1)
