r"""The evidence with the whole curvature, from kernels: exact, for N K up to some thousands.

With K_g = J_g J_gᵀ (N K, N K) of each group and K = Σ_g K_g / λ_g, all that the evidence, its
gradient and predictions need is a function of these kernels, whatever P is:

    log det H − log det Λ = log det M,    M = I + Rᵀ K R,    R Rᵀ = B
    γ_g = tr(M⁻¹ Rᵀ K_g R) / λ_g,         γ_d = Σ_n (1 − (M⁻¹)_{nd,nd})
    θ* = Λ⁻¹ Jᵀ α,                        ‖θ*_g‖² = αᵀ K_g α / λ_g²
    Cov h(x) = k(x, x) − k(x, X) R M⁻¹ Rᵀ k(X, x)

B is that at the network's outputs. The kernels are made once, from the Jacobian, and serve every
choice of λ.

Shapes: `N` examples, `K` outputs, `G` groups, `B` inputs of a prediction, `P` weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from polymode.core.memory import free_bytes
from polymode.methods.laplace.evidence import Terms
from polymode.methods.laplace.linear_model import Observed, Tangent
from polymode.methods.laplace.linear_model_solve import between, solve_dual, with_identity


@dataclass(frozen=True)
class Kernels:
    """Products of Jacobians of two sets of inputs, one matrix (N K, N' K) per group."""

    groups: dict[str, Tensor]

    def combined(self, precision: Tensor) -> Tensor:
        """Return Σ_g K_g / λ_g."""
        total = torch.zeros_like(next(iter(self.groups.values())))
        for matrix, value in zip(self.groups.values(), precision, strict=True):
            total.add_(matrix, alpha=1 / float(value))
        return total


def kernels_between(
    left: Tensor, right: Tensor, index: Mapping[str, Tensor], dtype: torch.dtype = torch.float64
) -> Kernels:
    """Return the kernels of Jacobians (N, K, P) and (N', K, P) by group."""
    rows, columns = left.flatten(0, 1), right.flatten(0, 1)
    kernels = {}
    for name, places in index.items():
        part = rows[:, places]
        kernels[name] = (part @ (part if right is left else columns[:, places]).T).to(dtype)
    return Kernels(kernels)


def kernels_of(left: Tensor, index: Mapping[str, Tensor]) -> Tensor:
    """Return the blocks J_g(x) J_g(x)ᵀ of each input alone, (G, B, K, K)."""
    parts = (left[..., places] for places in index.values())
    return torch.stack([part @ part.mT for part in parts]).double()


def check_rows(rows: int, groups: int, dtype: torch.dtype = torch.float64) -> None:
    """Refuse kernels that would not fit into half of the free memory."""
    size = torch.finfo(dtype).bits // 8
    need, free = (groups + 4) * rows**2 * size, free_bytes(torch.device("cpu"))
    if need > 0.5 * free:
        raise ValueError(
            f"the exact evidence needs {groups + 4} matrices of {rows:,} × {rows:,}:"
            f" {need / 2**30:.1f} GB, {free / 2**30:.1f} GB free; use fewer examples or"
            " structure='kron'"
        )


class DualEvidence:
    """The evidence of a tangent on some data, by kernels; call it with λ (G,) and β (D,).

    Args:
        tangent: the linear model.
        kernels: of the training inputs. sizes: numbers of weights by group.
        outputs: f(θ̃, X), (N, K). shift: h − J θ, (N, K).
        data: the targets.
        mean: "linear" for m = θ*, "trained" for m = θ̃.
        newton_steps: of θ* in each call; it begins where the last call ended.
    """

    def __init__(
        self,
        tangent: Tangent,
        kernels: Kernels,
        index: Mapping[str, Tensor],
        outputs: Tensor,
        shift: Tensor,
        data: Observed,
        *,
        mean: str = "linear",
        newton_steps: int = 100,
    ) -> None:
        self.kernels, self.mean, self.newton_steps = kernels, mean, newton_steps
        self.outputs, self.shift = outputs.double(), shift.double()
        targets = data.targets
        self.data = data._replace(
            targets=targets.double() if data.gaussian else targets,
            precision=data.precision.double(),
        )
        point = tangent.point.double()
        self.point_squares = torch.stack(
            [point[places].square().sum() for places in index.values()]
        )
        self.sizes = torch.tensor([float(len(p)) for p in index.values()], dtype=torch.float64)
        self.alpha: Tensor | None = None
        self._unit_root = self.data._replace(precision=torch.ones_like(self.data.precision)).root(
            self.outputs
        )
        self._between = [between(self._unit_root, kernel) for kernel in kernels.groups.values()]

    def _scale(self, beta: Tensor) -> Tensor:
        """Return √β of each row, (N K,); 1 for classes."""
        number, size = self.outputs.shape
        if not self.data.gaussian:
            return self.outputs.new_ones(number * size)
        return beta.sqrt().expand(size).repeat(number)

    def factor(self, precision: Tensor, beta: Tensor) -> Tensor:
        """Return the Cholesky root of M."""
        total = torch.zeros_like(self._between[0])
        for matrix, value in zip(self._between, precision, strict=True):
            total.add_(matrix, alpha=1 / float(value))
        scale = self._scale(beta)
        return torch.linalg.cholesky(with_identity(total.mul_(scale).mul_(scale.unsqueeze(-1))))

    def __call__(self, precision: Tensor, beta: Tensor) -> Terms:
        factor = self.factor(precision, beta)
        inverse = torch.cholesky_inverse(factor)
        scale = self._scale(beta)
        weighted = inverse * scale * scale.unsqueeze(-1)
        effective = torch.stack([(weighted * block).sum() for block in self._between]) / precision
        data = self.data._replace(precision=beta) if self.data.gaussian else self.data
        outputs, squares = self._mean(precision, data)
        logdet = 2 * factor.diagonal().log().sum()
        penalty = (precision * squares).sum()
        value = data.log_likelihood(outputs) - 0.5 * penalty - 0.5 * logdet
        empty = precision.new_zeros(0)
        if not data.gaussian:
            return Terms(float(value), effective, squares, empty, empty, empty)
        by_output = (1 - inverse.diagonal()).view_as(outputs).sum(0)
        residuals = (data.targets - outputs).square().sum(0)
        if len(beta) == 1:
            by_output, residuals = by_output.sum(0, True), residuals.sum(0, True)
        counts = torch.full_like(beta, outputs.numel() / len(beta))
        return Terms(float(value), effective, squares, by_output, residuals, counts)

    def _mean(self, precision: Tensor, data: Observed) -> tuple[Tensor, Tensor]:
        """Return h(m, X) and ‖m_g‖²."""
        if self.mean == "trained":
            return self.outputs, self.point_squares
        kernel = self.kernels.combined(precision)
        fit = solve_dual(kernel, self.shift, data, start=self.alpha, steps=self.newton_steps)
        self.alpha = fit.alpha
        flat = fit.alpha.flatten()
        squares = torch.stack([flat @ (each @ flat) for each in self.kernels.groups.values()])
        return self.shift + fit.latent, squares / precision.square()

    def covariance(self, precision: Tensor, beta: Tensor, cross: Kernels, within: Tensor) -> Tensor:
        """Return the posterior covariance of h at new inputs, (B, K, K).

        Args:
            cross: kernels between the new inputs (rows) and the training inputs.
            own: J_g Jᵀ_g of each new input, (G, B, K, K), see `kernels_of`.
        """
        number, size = within.shape[1:3]
        scale, factor = self._scale(beta), self.factor(precision, beta)
        half = cross.combined(precision).double().view(number * size, *self._unit_root.shape[:2])
        half = (half.unsqueeze(-2) @ self._unit_root).reshape(number * size, -1) * scale
        solved = torch.linalg.solve_triangular(factor, half.mT, upper=False).mT
        solved = solved.view(number, size, -1)
        prior = (within / precision.view(-1, 1, 1, 1)).sum(0)
        return prior - solved @ solved.mT
