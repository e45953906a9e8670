"""Which layers break a symmetry: said by name, and seen in the kernel."""

from __future__ import annotations

import pytest
import torch

from polymode.equivariance import group
from polymode.equivariance.kernels import (
    AvgPool,
    Conv,
    Dense,
    Flatten,
    GlobalAvgPool,
    ReLU,
    Residual,
    Serial,
    broken_by,
    warn_if_broken,
)


def after(*layers) -> Serial:
    return Serial(*layers, ReLU(), Flatten(), Dense())


CASES = {
    "same": (after(Conv(3)), 6, {"C4": True, "D4": True, "T@6x6": False}),
    "circular": (after(Conv(3, padding="circular")), 6, {"C4": True, "T@6x6": True}),
    "stride that fits": (after(Conv(3, stride=2, padding="valid")), 7, {"C4": True, "D1": True}),
    "stride that does not": (
        after(Conv(3, stride=2, padding="valid")), 8, {"C4": False, "C2": False, "D1": False},
    ),
    "not square": (after(Conv((3, 1))), 6, {"C4": False, "C2": True}),
    "pooling": (Serial(Conv(3), ReLU(), AvgPool(2), Flatten(), Dense()), 6, {"C4": True}),
    "pooling off the middle": (
        Serial(Conv(3), ReLU(), AvgPool(2), Conv(3), ReLU(), GlobalAvgPool(), Dense()),
        5, {"C4": False},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_is_said_is_what_the_kernel_does(name) -> None:
    """Where no layer is named, Θ(g x, g y) = Θ(x, y) to rounding, for all g; else it is not."""
    kernel, side, expected = CASES[name]
    torch.manual_seed(0)
    x, y = torch.randn(2, 2, 2, side, side).double()
    for which, symmetric in expected.items():
        acting = group(which)
        assert (not broken_by(kernel, (2, side, side), acting)) == symmetric, which
        first = kernel.pairs(x, y).ntk
        moved = [kernel.pairs(a, b).ntk for a, b in zip(*map(acting.orbit, (x, y)), strict=True)]
        apart = max(float((each - first).abs().max()) for each in moved)
        assert (apart < 1e-12) == symmetric, (which, apart)


def test_dense_networks_keep_every_orthogonal_action() -> None:
    kernel = Serial(Dense(1.2, 0.3), ReLU(), Dense())
    torch.manual_seed(0)
    x, y = torch.randn(2, 4, 6).double()
    acting = group("SO3-octahedral")
    assert broken_by(kernel, (6,), acting) == []
    for a, b in zip(acting.orbit(x), acting.orbit(y), strict=True):
        assert kernel(a, b).ntk == pytest.approx(kernel(x, y).ntk, abs=1e-12)


def test_a_warning_names_the_layer() -> None:
    kernel = Serial(Conv(3), ReLU(), Conv(3, stride=2, padding="valid"), ReLU(), Flatten(), Dense())
    with pytest.warns(UserWarning, match=r"C4 is not a symmetry .* layer 2, Conv\(size=3"):
        assert warn_if_broken(kernel, (1, 8, 8), group("C4"))
    assert not warn_if_broken(kernel, (1, 7, 7), group("C4"))
    nested = Serial(Conv(3), Residual(Serial(ReLU(), Conv((1, 3)))), Flatten(), Dense())
    assert broken_by(nested, (1, 6, 6), group("C4"))[0].startswith("layer 1, branch 1, layer 1")
    assert "interpolated" in broken_by(kernel, (1, 7, 7), group("C8"))[0]
