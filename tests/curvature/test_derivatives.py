"""How parameters enter operations: windows of convolutions, and what meets entry by entry."""

from __future__ import annotations

import operator
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polymode.curvature.derivatives import Geometry, windows
from polymode.curvature.tangent import Tangent, survey
from polymode.stack.stack import Stack
from polymode.tracing.operations import TABLE

FUNCTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
CASES = {
    "same, even and not square": ((2, 4), 1, "same", 1, 1),
    "same, dilated unequally": ((3, 2), 1, "same", (1, 2), 2),
    "same in three dimensions": ((2, 3, 4), 1, "same", 1, 1),
    "unequal padding in three dimensions": ((1, 2, 3), (1, 2, 1), (0, 1, 2), (1, 1, 2), 2),
    "unequal padding, stride, dilation": ((3, 2), (2, 1), (2, 0), (1, 3), 2),
    "valid": ((3, 1), (1, 2), "valid", 1, 1),
    "one dimension, same and even": ((4,), 1, "same", 2, 2),
    "one number for all axes": ((3, 2), 2, 1, 1, 1),
}


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")
@pytest.mark.parametrize("name", CASES)
def test_windows_times_weights_are_the_convolution(name) -> None:
    kernel, stride, padding, dilation, groups = CASES[name]
    stream = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, 4, *(9, 10, 8)[: len(kernel)], generator=stream, dtype=torch.float64)
    weight = torch.randn(6, 4 // groups, *kernel, generator=stream, dtype=torch.float64)
    geometry = Geometry.of(weight, stride, padding, dilation, groups)
    columns = windows(x, geometry)  # (2, 3, G, T, I)
    made = columns @ weight.reshape(groups, 6 // groups, -1).mT  # (2, 3, G, T, O)
    expected = FUNCTIONS[len(kernel)](
        x.flatten(0, 1), weight, None, stride, padding, dilation, groups
    )
    torch.testing.assert_close(made.mT.flatten(2, 3), expected.unflatten(0, (2, 3)).flatten(3))


class Combined(nn.Module):
    """A parameter that meets the numbers between two layers."""

    def __init__(self, combine: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(3, 4), nn.Linear(4, 2)
        self.combine, self.p = combine, nn.Parameter(torch.tensor([0.7, -0.4, 1.3, -0.9]))

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(torch.tanh(self.combine(self.enter(x), self.p)))


COMBINED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": lambda h, p: h + p, "sub": lambda h, p: h - p, "sub first": lambda h, p: p - h,
    "rsub": torch.rsub, "rsub first": lambda h, p: torch.rsub(p, h),
    "mul": lambda h, p: p * h, "div": lambda h, p: h / p, "div first": lambda h, p: p / (h + 3.0),
    "maximum": torch.maximum, "minimum": lambda h, p: torch.minimum(p, h),
    "max": torch.max, "min": lambda h, p: h.min(p), "subtract": torch.subtract,
    "multiply": torch.multiply, "divide": torch.divide, "true_divide": torch.true_divide,
    "add_": operator.iadd, "sub_": operator.isub, "mul_": operator.imul, "div_": operator.itruediv,
    "two in place": lambda h, p: h.mul_(p).add_(p).sin(),
    "result in place": lambda h, p: (h.mul_(p), h.square())[1],
    "earlier value": lambda h, p: (2.0 * h).mul_(p) * h,
    "ties": lambda h, p: torch.maximum(p.expand_as(h) * 1.0, p),
    "expand_as": lambda h, p: h * p.expand_as(h), "shape only": lambda h, p: h.expand_as(h * p) * p,
    "broadcast_to": lambda h, p: h + p.broadcast_to(h.shape),
}  # fmt: skip


@pytest.mark.parametrize("name", COMBINED)
def test_a_parameter_between_layers_has_the_derivatives_of_autograd(name) -> None:
    """Each operation of two inputs that the table names: by records, not example by example."""
    torch.manual_seed(0)
    net = Combined(COMBINED[name]).double()
    x = torch.randn(5, 3, dtype=torch.float64)
    before = x.clone()
    stack = Stack(lambda: net, 1, dtype=torch.float64)
    looked = survey(stack, x)
    assert looked.kinds["p"] == "element", looked
    net = stack.module(0).eval()
    outputs, pull = Tangent(stack, 0, looked, ["p"])(x)
    cotangents = torch.randn(2, *outputs.shape, dtype=torch.float64)
    ((_, record),) = pull(cotangents)
    assert torch.equal(x, before) and torch.equal(net(x).detach(), outputs)
    rows = [
        torch.autograd.grad((net(x[b : b + 1])[0] * cotangents[r, b]).sum(), net.p)[0]
        for r in range(2)
        for b in range(5)
    ]
    torch.testing.assert_close(
        record.jacobian(), torch.stack(rows).view(2, 5, -1), rtol=1e-10, atol=1e-12
    )


def test_all_operations_of_two_inputs_are_tried() -> None:
    of_two = {n for n, e in TABLE.items() if e.kind in ("sum", "product", "quotient")}
    in_place = {
        "iadd": "add_",
        "isub": "sub_",
        "imul": "mul_",
        "itruediv": "div_",
        "truediv": "div",
    }
    assert {in_place.get(name, name) for name in of_two} <= COMBINED.keys()


def test_an_input_that_a_network_changes_is_left_as_it_was() -> None:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.p, self.leave = nn.Parameter(torch.randn(3)), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            x += self.p
            return self.leave(x.tanh())

    x = torch.randn(4, 3, dtype=torch.float64)
    before, stack = x.clone(), Stack(Shifted, 1, dtype=torch.float64)
    looked = survey(stack, x.clone())
    outputs, pull = Tangent(stack, 0, looked, ["p"])(x)
    ((_, record),) = pull(torch.ones(1, *outputs.shape, dtype=torch.float64))
    assert torch.equal(x, before) and not x.requires_grad and looked.kinds["p"] == "element"
    p, leave = stack.params["p"][0], stack.params["leave.weight"][0]
    expected = (1 - (before + p).tanh().square()) * leave.sum(0)
    torch.testing.assert_close(record.jacobian()[0], expected.detach())
