"""Members of the small networks, and their Jacobians in a plain loop."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call

from polymode.stack.stack import Stack

from .cases import CASES


def stack_of(name: str) -> tuple[Stack, Tensor]:
    """Two members whose parameters are all different from their starting values."""
    make, x = CASES[name]
    stack = Stack(make, 2, dtype=torch.float64)
    stream = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for tensor in stack.params.values():
            tensor += 0.2 * torch.randn(tensor.shape, generator=stream, dtype=torch.float64)
    return stack, x


def one_by_one(module: nn.Module, x: Tensor, cotangents: Tensor) -> dict[str, Tensor]:
    """Jacobian rows (R, B, P) of each parameter, in a plain loop."""
    leaves = {n: p.detach().clone().requires_grad_() for n, p in module.named_parameters()}
    found: dict[str, list[Tensor]] = {name: [] for name in leaves}
    for r in range(len(cotangents)):
        for b in range(len(x)):
            out = functional_call(module, leaves, (x[b : b + 1],))[0]
            grads = torch.autograd.grad(
                (out * cotangents[r, b]).sum(), list(leaves.values()), allow_unused=True,
                materialize_grads=True,
            )  # fmt: skip
            for name, grad in zip(leaves, grads, strict=True):
                found[name].append(grad.flatten())
    return {n: torch.stack(rows).view(len(cotangents), len(x), -1) for n, rows in found.items()}
