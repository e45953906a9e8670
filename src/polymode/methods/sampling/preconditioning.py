"""RMSprop's preconditioner for samplers, learnt during burn-in.

    V ← α V + (1 − α) g²,   r = √V̂,   G = (1 + δ) r̄ / (r + δ r̄)        α = 0.99, δ = 0.1

g is the gradient of U/N of a chain, r̄ the mean of r over its parameters, V̂ = V / (1 − αᵗ). G is 1
where gradients are as large as they are on average, so `lr` keeps its meaning, and at most 11 where
there are none. Li et al. take G = 1 / (λ + r), whose unit is that of the gradients.

A preconditioner that depends on θ asks for a drift Γ_i = Σ_j ∂G_ij/∂θ_j. With "rmsprop" G is frozen
after `burn_in` steps: Γ is zero, and the law is exactly that without a preconditioner. With
"rmsprop_moving", the paper's way, G follows the gradients for ever and Γ is neglected. Large
gradients then shorten the steps that they should drive, so that a Gaussian comes out too wide: by
how much is measured on the page of `sgld`.

Reference: C. Li, C. Chen, D. Carlson, L. Carin, Preconditioned stochastic gradient Langevin
    dynamics for deep neural networks, AAAI 2016.
"""

from __future__ import annotations

import torch
from torch import Tensor

from polymode.stack.stack import Stack
from polymode.tracing.modules import Tensors

FROZEN, MOVING = "rmsprop", "rmsprop_moving"
DECAY, DAMPING = 0.99, 0.1


def no_metric(stack: Stack) -> Tensors:
    """Return the state of a preconditioner before the first gradient: `squares` V and `scale` √G,
    (M, P)."""
    size = sum(leaf.numel() for leaf in stack.leaves()) // stack.num_modes
    rows = torch.zeros(stack.num_modes, size, dtype=stack.dtype, device=stack.device)
    return {"squares": rows, "scale": torch.ones_like(rows)}


@torch.no_grad()
def adapt(metric: Tensors, gradients: list[Tensor], number: int) -> None:
    """Enter the gradients of step `number`, from 0."""
    squares, scale = metric["squares"], metric["scale"]
    rows = torch.cat([gradient.reshape(len(squares), -1) for gradient in gradients], 1)
    squares.mul_(DECAY).addcmul_(rows, rows, value=1 - DECAY)
    scale.copy_(preconditioner(squares / (1 - DECAY ** (number + 1))).sqrt_())


def preconditioner(squares: Tensor) -> Tensor:
    """Return G (M, P) from mean squares of gradients (M, P)."""
    size = squares.sqrt()
    mean = size.mean(1, keepdim=True).clamp_min(torch.finfo(size.dtype).tiny)
    return (1 + DAMPING) * mean / (size + DAMPING * mean)
