"""Kronecker factors against layer inputs and output gradients that modules' hooks saw."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from polymode.curvature.tangent import survey
from polymode.likelihoods.kinds import Categorical
from polymode.methods.laplace.curvature import Setting, curvature
from polymode.stack.stack import Stack

from .test_structures import dense, problem_of

STREAM = torch.Generator().manual_seed(5)


def net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 2, stride=2, padding=1, groups=2), nn.Tanh(),
        nn.Conv2d(4, 2, 2), nn.Tanh(), nn.Flatten(), nn.Linear(18, 3),
    )  # fmt: skip


def seen(module: nn.Module, x: Tensor, cotangents: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Windows a (N, T, I) and gradients g (R, N, T, O) of every layer, group by group."""
    inputs, outputs = {}, {}

    def keep(name: str):
        def hook(layer: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> None:
            inputs[name], outputs[name] = args[0], out

        return hook

    for name, layer in module.named_children():
        layer.register_forward_hook(keep(name))
    out = module(x)
    found = {}
    for name, layer in module.named_children():
        if not list(layer.parameters()):
            continue
        grads = torch.stack([
            torch.autograd.grad(out, outputs[name], v, retain_graph=True)[0] for v in cotangents
        ])  # fmt: skip
        a, groups = inputs[name], getattr(layer, "groups", 1)
        if isinstance(layer, nn.Conv2d):
            grads = grads.flatten(3).mT
            a = nn.functional.unfold(a, layer.kernel_size, 1, layer.padding, layer.stride).mT
        else:
            a, grads = a.unsqueeze(1), grads.unsqueeze(2)
        pairs = zip(a.chunk(groups, -1), grads.chunk(groups, -1), strict=True)
        found[f"{name}.weight"] = list(pairs)
        found[f"{name}.bias"] = [(torch.ones(*a.shape[:2], 1, dtype=a.dtype), grads)]
    return found


@pytest.mark.parametrize("sharing", ["expand", "reduce"])
def test_factors_are_those_of_the_papers(sharing) -> None:
    """expand: Σ g gᵀ ⊗ Σ a aᵀ / (N T) over examples and positions; reduce: of the sum of g and the
    mean of a over positions. One pair of factors per group; a bias has a = 1."""
    stack = Stack(net, 1, dtype=torch.float64)
    x = torch.randn(5, 2, 6, 6, generator=STREAM, dtype=torch.float64)
    problem = problem_of(stack, x, Categorical())
    setting = Setting("kron", sharing=sharing, batch_size=2)
    found = curvature(setting, problem, stack, 0, survey(stack, x))
    module = stack.module(0).eval()
    probs = module(x).softmax(-1).detach()
    unit = torch.eye(3, dtype=torch.float64)
    cotangents = torch.stack([probs[:, [c]].sqrt() * (unit[c] - probs) for c in range(3)])
    expected = seen(module, x, cotangents)
    for block in found.blocks:
        parts = []
        for a, g in expected[block.name]:
            if sharing == "reduce":
                a, g = a.mean(1, keepdim=True), g.sum(2, keepdim=True)
            flat_a, flat_g = a.flatten(0, 1), g.flatten(0, 2)
            parts.append(torch.kron(flat_g.mT @ flat_g, flat_a.mT @ flat_a / len(flat_a)))
        whole = torch.block_diag(*parts)
        torch.testing.assert_close(block.matrix(), whole, rtol=1e-9, atol=1e-11)


def test_one_example_is_exact() -> None:
    """With one example and one position, M ⊗ A is the block of the GGN itself."""
    stack = Stack(lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)), 1,
                  dtype=torch.float64)  # fmt: skip
    x = torch.randn(1, 3, generator=STREAM, dtype=torch.float64)
    problem = problem_of(stack, x, Categorical())
    found = curvature(Setting("kron"), problem, stack, 0, survey(stack, x))
    truth = dense(problem, stack, 0, x)
    for block in found.blocks:
        torch.testing.assert_close(
            block.matrix(), truth[block.name, block.name], rtol=1e-9, atol=1e-12
        )


def test_embeddings_have_the_frequencies_of_labels() -> None:
    stack = Stack(lambda: nn.Sequential(nn.Embedding(4, 2), nn.Flatten(), nn.Linear(6, 2)), 1,
                  dtype=torch.float64)  # fmt: skip
    x = torch.tensor([[0, 1, 1], [3, 1, 0], [1, 1, 1]])
    problem = problem_of(stack, x, Categorical())
    found = curvature(Setting("kron"), problem, stack, 0, survey(stack, x))
    block = found.blocks[0]
    assert block.fixed_basis is None
    torch.testing.assert_close(block.fixed[0], torch.tensor([2.0, 6.0, 0.0, 1.0]).double() / 9)
