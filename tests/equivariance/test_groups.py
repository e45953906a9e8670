"""Group laws, by brute force on inputs; exactness; names; what is refused."""

from __future__ import annotations

import math

import pytest
import torch

from polymode.core.rng import generator
from polymode.equivariance.groups import group, names
from polymode.equivariance.vectors import Permutations, Rotations, haar_rotations

SQUARE = (3, 2, 6, 6)
CASES = {
    "C1": SQUARE, "C2": (3, 2, 4, 6), "C4": SQUARE, "D1": (3, 2, 4, 6), "D2": (3, 1, 4, 6),
    "D4": SQUARE, "C4@5x5": (3, 25), "D4@5x5": (3, 5, 5), "T@3x4": (2, 12), "T@5": (4, 5),
    "sign": (3, 4), "S3": (5, 3), "S4": (2, 4), "SO2-8": (3, 4), "SO3-tetrahedral": (3, 6),
    "SO3-octahedral": (3, 6), "SO3-icosahedral": (2, 3),
}  # fmt: skip
ORDERS = {
    "C1": 1, "C2": 2, "C4": 4, "D1": 2, "D2": 4, "D4": 8, "C4@5x5": 4, "D4@5x5": 8, "T@3x4": 12,
    "T@5": 5, "sign": 2, "S3": 6, "S4": 24, "SO2-8": 8, "SO3-tetrahedral": 12,
    "SO3-octahedral": 24, "SO3-icosahedral": 60,
}  # fmt: skip


def inputs(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.randn(shape, generator=generator(0), dtype=torch.float64)


@pytest.mark.parametrize("name", CASES)
def test_group_laws(name) -> None:
    """Identity, inverses, associativity, and that the table is what acting twice does."""
    g, x = group(name), inputs(CASES[name])
    assert (len(g), g.exact, g.closed, g.name) == (ORDERS[name], True, True, name)
    table, order = g.table, torch.arange(len(g))
    assert torch.equal(g.act(x, 0), x)
    assert torch.equal(table[0], order) and torch.equal(table[:, 0], order)
    assert torch.equal(table.sort(1).values, order.expand_as(table))  # a Latin square
    assert torch.equal(table[table[:, :]], table[:, table])  # (i j) k = i (j k)
    orbit = g.orbit(x)
    assert orbit.shape == (len(g), *x.shape)
    for i in range(len(g)):
        assert table[i, g.inverse(i)] == table[g.inverse(i), i] == 0
        twice = g.orbit(orbit[i])  # [j]: first i, then j
        torch.testing.assert_close(twice, orbit[table[:, i]], atol=1e-9, rtol=0)
        assert abs(orbit[i].norm() - x.norm()) < 1e-9


@pytest.mark.parametrize("name", CASES)
def test_each_row_has_its_own_element(name) -> None:
    g, x = group(name), inputs(CASES[name])
    indices = torch.randint(len(g), (len(x),), generator=generator(1))
    expected = torch.stack([g.act(x[b : b + 1], int(i))[0] for b, i in enumerate(indices)])
    torch.testing.assert_close(g.act_each(x, indices), expected, atol=1e-12, rtol=0)


def smooth(size: int = 33) -> torch.Tensor:
    """Return an image of two broad bumps, (1, 1, H, W), 0 at the rim."""
    line = torch.linspace(-1, 1, size, dtype=torch.float64)
    y, x = torch.meshgrid(line, line, indexing="ij")
    bumps = torch.exp(-((x - 0.2) ** 2 + y**2) / 0.05) - torch.exp(-(x**2 + (y - 0.3) ** 2) / 0.03)
    return bumps[None, None]


def test_interpolated_turns_are_those_of_quarter_turns_where_they_meet() -> None:
    c8, c4, x = group("C8"), group("C4"), smooth()
    assert not c8.exact and c8.closed and len(c8) == 8
    assert torch.equal(c8.orbit(x)[::2], c4.orbit(x))
    drawn = inputs((4, 2, 5, 5))
    indices = torch.tensor([2, 1, 7, 4])
    expected = torch.stack([c8.act(drawn[b : b + 1], int(i))[0] for b, i in enumerate(indices)])
    torch.testing.assert_close(c8.act_each(drawn, indices), expected)


@pytest.mark.parametrize("name", ["C8", "C16", "C3"])
def test_interpolated_turns_move_a_bump_to_where_the_turn_takes_it(name) -> None:
    """The centre of mass turns by the angle, counter-clockwise with rows running down."""
    line = torch.arange(33, dtype=torch.float64) - 16
    x = torch.exp(-((line[None] - 7) ** 2 + (line[:, None] + 2) ** 2) / 8)[None, None]
    g = group(name)
    for index, image in enumerate(g.orbit(x)[:, 0, 0]):
        mass = image.sum()
        across, up = (image.sum(0) @ line) / mass, -(image.sum(1) @ line) / mass
        angle = 2 * math.pi * index / len(g)
        turned = complex(7, 2) * complex(math.cos(angle), math.sin(angle))
        assert abs(complex(across, up) - turned) < 0.02


def test_two_interpolated_turns_are_nearly_one() -> None:
    """The law holds up to interpolation: a few per cent for a smooth image, much more for noise."""
    c8 = group("C8")
    errors = []
    for x in (smooth(), inputs((1, 1, 33, 33))):
        error = c8.act(c8.act(x, 1), 1) - c8.act(x, 2)
        middle = error[..., 10:23, 10:23].norm() / x[..., 10:23, 10:23].norm()
        errors.append(float(middle))
    assert errors[0] < 0.1 < 0.3 < errors[1]


def test_haar_draws_are_rotations_with_the_moments_of_the_haar_measure() -> None:
    """E R = 0 and E R_ij² = 1/3: 20,000 draws, each of 18 means within 5 standard errors; false
    alarm below 1e-5."""
    drawn = haar_rotations(20_000, seed=3)
    assert torch.allclose(torch.linalg.det(drawn), torch.ones(20_000, dtype=torch.float64))
    for values, expected in ((drawn, 0.0), (drawn**2, 1 / 3)):
        error = values.std(0) / math.sqrt(len(values))
        assert ((values.mean(0) - expected).abs() < 5 * error).all()


@pytest.mark.parametrize("name", ["SO3-haar-7-1", "SO2-haar-7", "turns-haar-5-2"])
def test_draws_are_a_set_and_no_group(name) -> None:
    drawn = group(name)
    assert not drawn.closed and len(drawn) == int(name.split("-")[2])
    shape = (2, 1, 5, 5) if name.startswith("turns") else (2, 6)
    x = inputs(shape)
    assert torch.equal(drawn.orbit(x)[0], x)
    assert torch.equal(drawn.orbit(x), group(name).orbit(x))
    with pytest.raises(ValueError, match="not closed under composition"):
        drawn.inverse(1)


def test_outputs_move_as_inputs_or_by_matrices() -> None:
    solid = group("SO3-octahedral->input")
    x = inputs((4, 6))
    for index, moved in enumerate(solid.orbit(x)):
        product = torch.linalg.cross(moved[:, :3], moved[:, 3:])
        original = torch.linalg.cross(x[:, :3], x[:, 3:])
        torch.testing.assert_close(solid.act_on_outputs(original, index), product)
    shift = torch.eye(4, dtype=torch.float64).roll(1, 0)
    matrices = torch.stack([torch.linalg.matrix_power(shift, k) for k in range(4)])
    c4 = group("C4", output=matrices)
    labels = torch.tensor([0, 3, 2])
    assert c4.act_on_outputs(labels, 1).tolist() == [1, 0, 3]
    one_hot = torch.eye(4, dtype=torch.float64)[labels]
    moved = c4.orbit_of_outputs(one_hot)
    assert torch.equal(moved.argmax(-1), c4.orbit_of_outputs(labels))
    assert torch.equal(group("C4").act_on_outputs(labels, 2), labels)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: group("C4").orbit(torch.zeros(1, 1, 4, 6)), "needs square ones, got 4x6"),
        (lambda: group("C8").orbit(torch.zeros(1, 1, 4, 6)), "needs square ones"),
        (lambda: group("C4").orbit(torch.zeros(3, 25)), "e.g. 'C4@5x5'"),
        (lambda: group("C4@5x5").orbit(torch.zeros(3, 24)), "lattices of 25 sites"),
        (lambda: group("C4@4x6"), "square lattice"),
        (lambda: group("C4").act(torch.zeros(1, 2, 2), 4), "elements 0 ... 3, got 4"),
        (lambda: group("octahedral"), "Did you mean 'SO3-octahedral'"),
        (lambda: group("c4"), "Did you mean 'C4'"),
        (lambda: group("T"), "e.g. 'T@5x5'"),
        (lambda: group("S9"), "n of 1 to 6"),
        (lambda: group("S" + "9" * 5000), "n of 1 to 6"),
        (lambda: group("C99999999"), "99,999,999 elements.* at most 10,000"),
        (lambda: group("C" + "9" * 5000), "at most 10,000"),
        (lambda: group("SO2-99999999"), "at most 10,000"),
        (lambda: group("SO2-haar-99999999-0"), "at most 10,000"),
        (lambda: group("SO3-haar-99999999"), "at most 10,000"),
        (lambda: group("turns-haar-99999999"), "at most 10,000"),
        (lambda: group("T@99999x99999"), "9,999,800,001 sites.* at most 10,000"),
        (lambda: group("T", lattice=100_000), "at most 10,000"),
        (lambda: group("S3").orbit(torch.zeros(2, 4)), "permutes 3 entries"),
        (lambda: group("SO3-octahedral").orbit(torch.zeros(2, 4)), "no multiple of 3"),
        (lambda: group("C4->input").act_on_outputs(torch.tensor([1]), 1), "no group action"),
        (lambda: group("C4->inputs"), "Did you mean 'input'"),
        (lambda: group("C2", output=torch.eye(2).expand(4, 2, 2)), r"is \(2, K, K\)"),
        (lambda: group("C2", output=torch.stack([torch.eye(2)] * 2) * 2), "is the identity"),
        (
            lambda: group("C2", output=torch.stack([torch.eye(2), 2 * torch.eye(2)])),
            "no representation of C2",
        ),
        (lambda: Rotations(torch.ones(1, 2, 2)), "must be orthogonal"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(make, message) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_sets_of_points_and_names() -> None:
    sets = Permutations(3, axis=-2)
    x = inputs((2, 3, 4))
    assert torch.equal(sets.act(x, 1), x[:, sets.places[1]])
    assert all(len(group(name)) >= 2 for name in names())
