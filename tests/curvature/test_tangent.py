"""Derivatives from layer inputs and output gradients, against gradients of single examples."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from polymode.curvature.records import Record
from polymode.curvature.tangent import Tangent, member, survey
from polymode.stack.stack import Stack

from .cases import CASES, Residual, mlp
from .stacks import one_by_one, stack_of


def laid_out(record: Record, values: Tensor) -> Tensor:
    """Numbers of a parameter (P,) as (G, O, I)."""
    groups, features = record.moving.shape[1], record.moving.shape[4]
    if record.fixed_first:
        return values.view(groups, record.width, features).mT
    return values.view(groups, features, record.width)


@pytest.mark.parametrize("name", CASES)
def test_records_are_the_derivatives(name) -> None:
    """J, its squares, its quadratic forms, products and columns, each to 1e-10."""
    stack, x = stack_of(name)
    tangent = Tangent(stack, 1, survey(stack, x), list(stack.params))
    outputs, pull = tangent(x)
    with torch.no_grad():
        torch.testing.assert_close(outputs, stack.module(1).eval()(x), rtol=1e-12, atol=1e-14)
    stream = torch.Generator().manual_seed(2)
    cotangents = torch.randn(3, *outputs.shape, generator=stream, dtype=torch.float64)
    truth = one_by_one(member(stack, 1), x, cotangents)
    records = dict(pull(cotangents))
    assert records.keys() == truth.keys()

    def close(found: Tensor, expected: Tensor) -> None:
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)

    for key, record in records.items():
        j = truth[key]
        close(record.jacobian(), j)
        close(record.squares(), j.square().sum((0, 1)))
        weights = torch.rand(j.shape[-1], generator=stream, dtype=torch.float64)
        form = torch.einsum("rbp,sbp,p->brs", j, j, weights)
        close(record.quadratic(laid_out(record, weights), True), form)
        close(record.quadratic(laid_out(record, weights), False), form.diagonal(dim1=1, dim2=2))
        directions = torch.randn(2, j.shape[-1], generator=stream, dtype=torch.float64)
        along = torch.einsum("rbp,kp->brk", j, directions)
        close(record.along(directions), along)
        close(record.against(along), torch.einsum("rbp,brk->kp", j, along))
        some = torch.arange(0, j.shape[-1], 2)
        close(record.columns(some), j[..., some])


KINDS = {
    "residual": {"first.weight": "matrix", "twice.bias": "bias", "scale": "element",
                 "norm.weight": "element"},
    "embedding": {"embed.weight": "matrix", "places": "element"},
    "tied": {"embed.weight": "single", "hidden.weight": "matrix"},
    "attention": {"cross.in_proj_weight": "matrix", "layer.norm1.weight": "element",
                  "layer.self_attn.out_proj.bias": "bias"},
    "recurrent": {"cells.weight_hh_l0": "single", "last.weight": "matrix"},
    "convolutions": {"0.weight": "matrix", "1.weight": "element", "6.weight": "matrix",
                     "7.tau": "element"},
    "weight norm": {"0.parametrizations.weight.original0": "single"},
    "slopes": {"channels.weight": "element", "one.weight": "element"},
    "scalars": {"weight": "element", "shift": "element", "temperature": "element"},
    "vit": {"token": "element", "positions": "element"},
}  # fmt: skip


class FilledIn(nn.Module):
    """Results that are written into a tensor of the network's own, which `vmap` refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.power = nn.Linear(6, 2), nn.Parameter(torch.tensor(0.3))

    def forward(self, x: Tensor) -> Tensor:
        made = torch.zeros(len(x), 2, dtype=x.dtype)
        made += self.last(x.flatten(1)) * self.power.exp()
        return made


def test_survey_tells_how_each_parameter_enters() -> None:
    for name, expected in KINDS.items():
        stack, x = stack_of(name)
        found = survey(stack, x)
        assert {key: found.kinds[key] for key in expected} == expected, name
    stack, x = stack_of("convolutions")
    assert survey(stack, x).copies  # an activation in place
    stack, x = stack_of("recurrent")
    assert not survey(stack, x).loops
    stack = Stack(FilledIn, 2, dtype=torch.float64)
    assert survey(stack, x).loops and survey(stack, x).kinds["power"] == "single"
    stack, x = stack_of("residual")
    assert survey(stack, x).shared == {"twice.weight", "twice.bias"}
    assert survey(stack, x).last == ("last.weight",)


class Misleading(nn.Module):
    """A linear layer whose rows are not the examples: they are mixed before it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x.flip(0)).flip(0))


def test_survey_does_not_trust_sizes_alone() -> None:
    """Rows in another order have the right sizes; the comparison with single examples finds it."""
    stack = Stack(Misleading, 1, dtype=torch.float64)
    found = survey(stack, torch.randn(4, 3, dtype=torch.float64))
    assert found.kinds["first.weight"] == "single"
    assert found.kinds["last.weight"] == "matrix"


def test_unused_and_frozen_parameters() -> None:
    def net() -> nn.Module:
        module = Residual()
        module.spare = nn.Linear(2, 2)
        module.first.weight.requires_grad_(False)
        return module

    stack = Stack(net, 1, dtype=torch.float64)
    found = survey(stack, torch.randn(4, 3, dtype=torch.float64))
    assert found.kinds["spare.weight"] == "unused"
    assert "first.weight" not in found.kinds


def test_a_pass_leaves_the_network_as_it_was() -> None:
    """No hook, no gradient, no changed tensor, also after an exception in the middle."""
    stack = Stack(mlp, 1, dtype=torch.float64)
    x = torch.randn(4, 3, dtype=torch.float64)
    tangent = Tangent(stack, 0, survey(stack, x), list(stack.params))
    before = {name: tensor.clone() for name, tensor in stack.tensors().items()}
    outputs, pull = tangent(x)
    for _, record in pull(torch.ones_like(outputs)[None]):  # nor a graph that would be kept alive
        assert not record.moving.requires_grad and not record.fixed.requires_grad
    with pytest.raises(RuntimeError):
        tangent(x[:, :2])
    assert all(torch.equal(tensor, before[name]) for name, tensor in stack.tensors().items())
    assert all(tensor.requires_grad for tensor in stack.params.values())
    assert all(tensor.grad is None for tensor in stack.params.values())
    modules = [stack.module(0), tangent.module]
    assert not any(m._forward_hooks or m._backward_hooks for net in modules for m in net.modules())


def test_matrices_of_one_column_are_matrices_at_several_positions() -> None:
    """Their derivative at a position is what came in times what comes back, as for any other."""
    for name, parameter in (("one number a token", "embed.weight"), ("one channel", "0.weight")):
        assert survey(*stack_of(name)).kinds[parameter] == "matrix"
