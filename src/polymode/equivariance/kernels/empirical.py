r"""The tangent kernel of a finite network, Θ(x, y) = J(x) J(y)ᵀ, without a Jacobian in memory.

A column of Θ is a product with J(y)ᵀ (one vjp), then one with J(x) (one jvp); several columns go
together. Any module whose parameters torch can differentiate will do.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp, vjp, vmap

from polymode.core.checks import check_call
from polymode.core.memory import require_free

COLUMNS = 2**25  # numbers of gradients that are held at a time


def empirical_ntk(
    module: nn.Module, x: Tensor, y: Tensor | None = None, *, whole: bool = False
) -> Tensor:
    """Return the tangent kernel of `module` in its present mode at its present parameters.

    Args:
        x, y: inputs (N, ...) and (N', ...); by default y is x.
        whole: whether all pairs of outputs are wanted, (N, N', K, K); else the mean over outputs of
            those of the same output, (N, N'), which is what the infinite-width NTK is.
    """
    check_call(empirical_ntk, locals())
    other = x if y is None else y
    params = {name: p.detach() for name, p in module.named_parameters() if p.requires_grad}
    if not params:
        raise ValueError("the module has no parameter that requires gradients")
    rest = {name: p.detach() for name, p in module.named_parameters() if not p.requires_grad}
    rest |= {name: buffer.detach() for name, buffer in module.named_buffers()}

    def outputs(values: dict[str, Tensor], inputs: Tensor) -> Tensor:
        return functional_call(module, {**values, **rest}, (inputs,)).flatten(1)

    linear = vjp(lambda values: outputs(values, other), params)
    at_other, pull = linear[0], linear[1]
    rows, columns, size = len(x), len(other), at_other.shape[1]
    numbers = sum(p.numel() for p in params.values())
    element = at_other.element_size()
    require_free(
        (rows * columns * size**2 + 3 * max(numbers, min(COLUMNS, numbers * columns * size)))
        * element,
        f"the tangent kernel of {rows:,} × {columns:,} inputs with {size} outputs",
        "Take fewer inputs.",
        at_other.device,
    )

    def column(cotangent: Tensor) -> Tensor:
        (gradient,) = pull(cotangent)
        return jvp(lambda values: outputs(values, x), (params,), (gradient,))[1]

    basis = torch.eye(columns * size, dtype=at_other.dtype, device=at_other.device)
    together = max(1, COLUMNS // numbers)
    with warnings.catch_warnings():  # torch's own, when it first differentiates forward
        warnings.filterwarnings("ignore", ".*torch.jit.script", DeprecationWarning)
        parts = [
            vmap(column)(part.view(-1, columns, size)).detach() for part in basis.split(together)
        ]
    found = torch.cat(parts).view(columns, size, rows, size).permute(2, 0, 3, 1)
    return found if whole else found.diagonal(dim1=2, dim2=3).mean(-1)
