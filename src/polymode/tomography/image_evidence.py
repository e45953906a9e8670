"""The exact evidence of the linear model for one image, and what hyperparameters maximise it.

With K = A J Σ Jᵀ Aᵀ + σ² I (m, m),

    at θ̃   log M = −½ [m log 2π + log det K + |y − A f̂|² / σ² + θ̃ᵀ Σ⁻¹ θ̃]
    at θ*   log M = −½ [m log 2π + log det K + rᵀ K⁻¹ r],    r = y − A (f − J θ),

θ* = Σ Jᵀ Aᵀ K⁻¹ r the optimum of the linear model: the second is the first with θ* and its
residual in the place of θ̃ and y − A f̂, and it is the exact log marginal likelihood. See
`linear_model.py` and Antorán et al., Adapting the linearised Laplace model evidence for modern deep
learning, ICML 2022. With TV-PredCP (`tv_predcp.py`), log p(ℓ | s²) is added.

Kernels. With R rows of V J, V = I (pixels) or V = A (observations), and the components (block,
distance) of `filter_prior.py`,

    V J Σ Jᵀ Vᵀ = Σ_c c(s², ℓ) M_c,      M_c = V J (I ⊗ B_r) Jᵀ Vᵀ   (R, R),

so another s² or ℓ costs a sum of matrices. Rows of V J are vector-Jacobian products that the
network takes many at a time. Where all of them (R, P) do not fit into half of the free memory, they
are made block by block: as many passes as there are blocks.

The gradient in the coefficients c is −½ tr((K⁻¹ − α αᵀ) M_c), α = K⁻¹ r (0 at θ̃); autograd does
the rest. The search is L-BFGS on the logarithms, within bounds.

Shapes: `n` pixels, `m` observations, `P` weights, `C` components, `R` rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from polymode.core.memory import free_bytes, human
from polymode.tomography.filter_prior import Block, Hyper
from polymode.tomography.linearised import Linearised
from polymode.tomography.reconstruction import ImagePosterior


@dataclass(frozen=True)
class Kernels:
    """Components of the prior covariance, float64.

    Attributes:
        observed: M_c of the observations, (C, m, m).
        pixels: M_c of the image, (C, n, n); None if only observations were asked for.
    """

    observed: Tensor
    pixels: Tensor | None = None

    def covariance(self, coefficients: Tensor) -> Tensor:
        """Return A J Σ Jᵀ Aᵀ, (m, m)."""
        return _combined(coefficients, self.observed)

    def pixel_covariance(self, coefficients: Tensor) -> Tensor:
        """Return J Σ Jᵀ, (n, n)."""
        assert self.pixels is not None, "made without pixels"
        return _combined(coefficients, self.pixels)

    def subset(self, places: list[int]) -> Kernels:
        """Return the kernels of some components."""
        pixels = None if self.pixels is None else self.pixels[places]
        return Kernels(self.observed[places], pixels)


def _combined(coefficients: Tensor, parts: Tensor) -> Tensor:
    flat = coefficients.detach().to(parts) @ parts.flatten(1)
    return flat.view(parts.shape[1:])


def assemble(model: Linearised, *, pixels: bool = True, most_bytes: float | None = None) -> Kernels:
    """Return the components for a linear model; asks for the memory first.

    Args:
        pixels: also the components of the image: n rows of J, to which A is applied. Otherwise m
            rows of A J.
        most_bytes: memory for all of it; by default half of the free memory.
    """
    m, n = model.operator.shape
    count = sum(len(block.classes()) for block in model.prior.blocks)
    rows = n if pixels else m
    budget = 0.5 * free_bytes() if most_bytes is None else most_bytes
    dense = 8.0 * count * (m**2 + (n**2 if pixels else 0)) + 8.0 * (4 * m**2 + 2 * rows**2)
    largest = max(block.stop - block.start for block in model.prior.blocks)
    least, most = (dense + 3.0 * rows * w * 8 for w in (largest, len(model.point)))
    if least > budget:
        raise ValueError(
            f"the exact path needs {count} matrices of {m:,} × {m:,}"
            + (f" and of {n:,} × {n:,}" if pixels else "")
            + f", with rows of the Jacobian {human(least)}; {human(budget)} may be used. Use the"
            " matrix-free path, fewer angles"
            + (", or pixels=False" if pixels else " or prior='isotropic'")
        )
    cotangents = torch.eye(rows, dtype=model.dtype)
    if not pixels:
        cotangents = model.back(cotangents)
    jacobian = model.weights(cotangents) if most <= budget else None
    image: list[Tensor] = []
    observed: list[Tensor] = []
    for block in model.prior.blocks:
        if jacobian is None:
            block_rows = model.of_block(block).weights(cotangents)
        else:
            block_rows = jacobian[:, block.start : block.stop]
        if pixels:
            image.append(products(block_rows, block))
            block_rows = model.observe(block_rows.T.contiguous()).T
        observed.append(products(block_rows, block))
    return Kernels(torch.cat(observed), torch.cat(image) if pixels else None)


def products(rows: Tensor, block: Block) -> Tensor:
    """Return J (I ⊗ B_r) Jᵀ for each distance of a block, float64, from rows (R, P of the block).

    B_r of square filters are block-diagonal in a basis that is symmetric under the rotations and
    reflections of the filter. In it few products of (R, F) matrices are left, F filters: 14 instead
    of 9 for each of six distances if there are 3 x 3 taps.
    """
    classes = block.classes()
    rows = rows.double()  # so that sums stay positive definite beside a small σ²
    if len(classes) == 1:
        return (rows @ rows.T)[None]
    basis = _symmetric_basis(block)
    turned = basis.T @ rows.unflatten(1, (-1, block.num_taps)).permute(2, 0, 1).flatten(1)
    turned = turned.unflatten(1, (len(rows), -1))  # (T, R, F)
    inner = torch.stack([basis.T @ matrix @ basis for _, matrix in classes])
    pairs = [
        (a, b)
        for a in range(block.num_taps)
        for b in range(a, block.num_taps)
        if float(inner[:, a, b].abs().max()) > 1e-9
    ]
    components = torch.zeros(len(classes), len(rows), len(rows), dtype=torch.float64)
    for same in (False, True):
        chosen_pairs = [(a, b) for a, b in pairs if (a == b) == same]
        if chosen_pairs:
            gram = torch.stack([turned[a] @ turned[b].T for a, b in chosen_pairs])
            factors = torch.stack([inner[:, a, b] for a, b in chosen_pairs], 1)
            components += (factors @ gram.flatten(1)).view_as(components)
        if not same:
            components = components + components.mT
    return components


def _symmetric_basis(block: Block) -> Tensor:
    """Return an orthogonal basis (T, T) in which all B_r have as many zeros as symmetry gives them.

    Eigenvectors of a generic element of the algebra that the B_r generate with the reflections of
    the filter: two reflections of a grid commute with each other and with every B_r.
    """
    height, width = block.taps
    grid = torch.arange(height * width).view(height, width)
    eye = torch.eye(height * width, dtype=torch.float64)
    up, side = (eye[grid.flip(axis).flatten()] for axis in (0, 1))
    generic = up + 2.0 * side
    if height == width:
        diagonal = eye[grid.T.flatten()]
        even = (eye + up) @ (eye + side) / 4  # where the two reflections leave all as it is
        odd = (eye - up) @ (eye - side) / 4
        generic = generic + 0.5 * (even + odd) @ diagonal @ (even + odd)
    return torch.linalg.eigh((generic + generic.T) / 2)[1]


MEANS = ("linear", "trained")
LOW_VARIANCE, HIGH_VARIANCE = math.log(1e-6), math.log(1e3)
LENGTHSCALES = math.log(0.05), math.log(50.0)
Penalty = Callable[[Hyper], Tensor]


class Evidence:
    """The exact evidence of a linear model; call it with hyperparameters.

    Args:
        model: the linear model. kernels: of it, see `assemble`.
        observations: y, (m,).
        mean: "linear", the evidence at θ*; "trained", that at θ̃.
        log_prior: log density of the hyperparameters, such as TV-PredCP's; added to the evidence.
    """

    def __init__(
        self,
        model: Linearised,
        kernels: Kernels,
        observations: Tensor,
        *,
        mean: str = "linear",
        log_prior: Penalty | None = None,
    ) -> None:
        if mean not in MEANS:
            raise ValueError(f"`mean` must be one of {', '.join(MEANS)}, got '{mean}'")
        check_observations(model, observations)
        self.model, self.kernels, self.mean, self.log_prior = model, kernels, mean, log_prior
        self.residual, self.misfit = residuals(model, observations)
        self.moments = model.prior.second_moments(model.point)

    def factor(self, hyper: Hyper) -> Tensor:
        """Return the Cholesky root of K, (m, m)."""
        matrix = self.kernels.covariance(self.model.prior.coefficients(hyper))
        matrix.diagonal().add_(hyper.noise)
        return _root(matrix)

    def __call__(self, hyper: Hyper) -> tuple[float, Tensor]:
        """Return the log evidence, nats, with `log_prior`, and its gradient (2 G + 1,)."""
        flat = hyper.flat().detach().double().requires_grad_()
        learnt = Hyper.from_flat(flat)
        factor = self.factor(Hyper.from_flat(flat.detach()))
        inverse = torch.cholesky_inverse(factor)
        logdet = 2 * float(factor.diagonal().log().sum())
        value = len(inverse) * math.log(2 * math.pi) + logdet
        slope = inverse
        if self.mean == "linear":
            alpha = inverse @ self.residual
            value += float(self.residual @ alpha)
            slope = inverse - torch.outer(alpha, alpha)
        by_component = self.kernels.observed.flatten(1) @ slope.flatten()
        with torch.enable_grad():
            coefficients = self.model.prior.coefficients(learnt)
            noise = learnt.log_noise.exp()
            moving = (coefficients * by_component).sum() + noise * slope.trace()
            if self.mean == "trained":
                fit = self.misfit / noise + self.model.prior.penalty(learnt, self.moments)
                moving, value = moving + fit, value + float(fit.detach())
            total = -0.5 * moving
            if self.log_prior is not None:
                extra = self.log_prior(learnt)
                total, value = total + extra, value - 2 * float(extra.detach())
            (gradient,) = torch.autograd.grad(total, flat)
        return -0.5 * value, gradient

    def optimum(self, hyper: Hyper) -> Tensor:
        """Return θ* = Σ Jᵀ Aᵀ K⁻¹ r, (P,)."""
        alpha = torch.cholesky_solve(self.residual[:, None], self.factor(hyper))[:, 0]
        pulled = self.model.weights(self.model.back(alpha[None].to(self.model.dtype)))
        prior = self.model.prior
        return prior.multiply(prior.covariances(hyper), pulled)[0]


def _root(matrix: Tensor) -> Tensor:
    """Return the Cholesky root; where rounding hides a small σ², with 1e-12 to 1e-8 of the mean.

    That is far from any optimum, where a search may come by.
    """
    size = float(matrix.diagonal().mean())
    for extra in (0.0, 1e-12, 1e-10, 1e-8):
        matrix.diagonal().add_(extra * size)
        factor, failed = torch.linalg.cholesky_ex(matrix)
        if not int(failed):
            return factor
    return torch.linalg.cholesky(matrix)


def residuals(model: Linearised, observations: Tensor) -> tuple[Tensor, float]:
    """Return r = y − A (f − J θ), (m,), float64, and |y − A f̂|²."""
    y = observations.flatten().double()
    predicted = model.observe(torch.stack([model.shift, model.image])).double()
    return y - predicted[0], float((y - predicted[1]).square().sum())


def check_observations(model: Linearised, observations: Tensor) -> None:
    """Refuse observations of another number, or that are not finite."""
    model.operator.check_observations(observations.flatten())
    if not torch.isfinite(observations).all():
        bad = int((~torch.isfinite(observations)).sum())
        raise ValueError(f"observations must be finite, got {bad} that are not")


class Fitted(NamedTuple):
    """Hyperparameters with the largest evidence.

    Attributes:
        value: log evidence in nats, with the prior of the hyperparameters if there was one.
        steps: evaluations of it. gradient: at the end, (2 G + 1,).
    """

    hyper: Hyper
    value: float
    steps: int
    gradient: Tensor


def maximise(
    evidence: Callable[[Hyper], tuple[float, Tensor]],
    start: Hyper,
    *,
    learn_noise: bool = True,
    steps: int = 60,
) -> Fitted:
    """Return the hyperparameters that maximise an evidence, from `start` on, by L-BFGS.

    Args:
        learn_noise: whether σ² is learnt as well.
        steps: at most so many iterations.
    """
    from scipy.optimize import minimize  # late: imports of polymode are cheap

    first = start.flat().double()
    groups = len(start.log_variance)
    noise = float(start.log_noise)
    bounds = [(LOW_VARIANCE, HIGH_VARIANCE)] * groups + [LENGTHSCALES] * groups
    bounds += [(noise - 7.0, noise + 7.0) if learn_noise else (noise, noise)]
    calls = 0

    def loss(vector: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal calls
        calls += 1
        value, gradient = evidence(Hyper.from_flat(torch.from_numpy(vector.copy())))
        return -value, -gradient.numpy()

    optimum = minimize(
        loss, first.numpy(), jac=True, method="L-BFGS-B", bounds=bounds,
        options={"maxiter": steps, "ftol": 1e-7},
    )  # fmt: skip
    flat = torch.from_numpy(np.asarray(optimum.x, float))
    return Fitted(Hyper.from_flat(flat), -float(optimum.fun), calls, -torch.from_numpy(optimum.jac))


def exact_posterior(evidence: Evidence, hyper: Hyper, *, mean: str = "network") -> ImagePosterior:
    """Return the posterior of the image with its whole covariance, from kernels of pixels.

        Cov(f | y) = J Σ Jᵀ − J Σ Jᵀ Aᵀ K⁻¹ A J Σ Jᵀ

    Args:
        mean: "network", the image f̂ of the trained network; "linear", that of θ*.
    """
    model, coefficients = evidence.model, evidence.model.prior.coefficients(hyper)
    prior = evidence.kernels.pixel_covariance(coefficients)
    factor = evidence.factor(hyper)
    cross = model.observe(prior)  # (n, m) = J Σ Jᵀ Aᵀ
    half = torch.linalg.solve_triangular(factor, cross.T, upper=False)
    covariance = prior - half.T @ half
    centre = model.image.double()
    if mean == "linear":
        alpha = torch.cholesky_solve(evidence.residual[:, None], factor)[:, 0]
        centre = model.shift.double() + cross @ alpha
    return ImagePosterior(
        model.operator.image_shape, centre, covariance.diagonal().clone(), covariance=covariance
    )
