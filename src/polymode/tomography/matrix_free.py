r"""The evidence of the linear model and samples of its posterior without any matrix.

Only products with A, J and their transposes are taken, of many vectors at once. With probes
z ~ N(0, P), P the preconditioner of K (`curvature/solve.py`), so that E[K⁻¹ z (P⁻¹ z)ᵀ] = K⁻¹,

    ½ d log det K = ½ tr(K⁻¹ dK) ≈ ½ mean_z (P⁻¹ z)ᵀ dK (K⁻¹ z),     dK = A J dΣ Jᵀ Aᵀ + dσ² I,

which needs K⁻¹ z by conjugate gradients, Jᵀ Aᵀ of both sides, and of these only Σ_f a_f b_fᵀ over
the filters of each block: the derivative in every hyperparameter comes from such (T, T) matrices.
The value, where it is asked for, is log det P + mean_w wᵀ log(P^{-½} K P^{-½}) w by Lanczos
quadrature (J. Gardner et al., GPyTorch, NeurIPS 2018, who draw probes from the preconditioner too).

Shapes: `n` pixels, `m` observations, `P` weights, `T` taps, `S` probes or samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from polymode.core.rng import generator
from polymode.core.warn import warn
from polymode.curvature.solve import (
    LowRankPlusNoise,
    conjugate_gradients,
    log_quadrature,
    nystrom,
)
from polymode.tomography.filter_prior import FilterPrior, Hyper
from polymode.tomography.image_evidence import (
    HIGH_VARIANCE,
    LENGTHSCALES,
    LOW_VARIANCE,
    MEANS,
    Penalty,
    check_observations,
    residuals,
)
from polymode.tomography.linearised import Linearised
from polymode.tomography.reconstruction import ImagePosterior
from polymode.tomography.tv_predcp import TVPredCP, neighbours


class Solver(NamedTuple):
    """How K⁻¹ is applied.

    Attributes:
        rank: of the preconditioner. relative: accuracy of conjugate gradients. most: at most so
            many of them.
    """

    rank: int = 100
    relative: float = 1e-3
    most: int = 100


DEFAULT = Solver()
_RISING = 3.0, 0.005  # nats per unit of a logarithm: in all, and per observation


def kernel_product(model: Linearised, hyper: Hyper) -> Callable[[Tensor], Tensor]:
    """Return the function from rows (S, m) to their products with A J Σ Jᵀ Aᵀ."""
    covariances = model.prior.covariances(hyper)

    def product(rows: Tensor) -> Tensor:
        pulled = model.weights(model.back(rows.to(model.dtype)))
        return model.observe(model.images(model.prior.multiply(covariances, pulled))).double()

    return product


class Solved:
    """K⁻¹ for one choice of hyperparameters.

    Args:
        before: eigenvectors of an earlier choice, to be used again.
    """

    def __init__(
        self,
        model: Linearised,
        hyper: Hyper,
        solver: Solver,
        stream: torch.Generator,
        before: LowRankPlusNoise | None = None,
    ) -> None:
        self.noise, self.solver = hyper.noise, solver
        self.bare = kernel_product(model, hyper)
        if before is None:
            size = model.operator.num_observations
            before = nystrom(self.bare, size, solver.rank, self.noise, stream)
        self.near = before.with_noise(self.noise)

    def product(self, rows: Tensor) -> Tensor:
        """Return K times each row, (S, m)."""
        return self.bare(rows) + self.noise * rows

    def __call__(self, rows: Tensor) -> Tensor:
        """Return K⁻¹ times each row, (S, m)."""
        return conjugate_gradients(
            self.product, rows, self.near.solve,
            relative=self.solver.relative, most=self.solver.most,
        )  # fmt: skip

    def logdet(self, white: Tensor, steps: int) -> Tensor:
        """Return an estimate of log det K for each probe, (S,), by `steps` of Lanczos."""

        def between(rows: Tensor) -> Tensor:
            return self.near.power(self.product(self.near.power(rows, -0.5)), -0.5)

        return self.near.logdet() + log_quadrature(between, white, steps)


class Estimate(NamedTuple):
    """An evidence with its gradient (2 G + 1,), and their standard errors over the probes.

    `value` is NaN unless it was asked for.
    """

    value: float
    gradient: Tensor
    value_error: float
    gradient_error: Tensor


class MatrixFreeEvidence:
    """The evidence of a linear model by probes; see `Evidence`, which is exact.

    Args:
        model, observations, mean, log_prior: as of `Evidence`.
        probes: how many. solver: how K⁻¹ is applied. seed: of the probes.
    """

    def __init__(
        self,
        model: Linearised,
        observations: Tensor,
        *,
        mean: str = "linear",
        log_prior: Penalty | None = None,
        probes: int = 10,
        solver: Solver = DEFAULT,
        seed: int = 0,
    ) -> None:
        if mean not in MEANS:
            raise ValueError(f"`mean` must be one of {', '.join(MEANS)}, got '{mean}'")
        if probes < 2:
            raise ValueError(f"`probes` must be at least 2, got {probes}")
        check_observations(model, observations)
        self.model, self.mean, self.log_prior = model, mean, log_prior
        self.probes, self.solver, self.seed = probes, solver, seed
        self.residual, self.misfit = residuals(model, observations)
        self.moments = model.prior.second_moments(model.point)

    def solved(self, hyper: Hyper, before: LowRankPlusNoise | None = None) -> Solved:
        """Return K⁻¹ at these hyperparameters."""
        stream = generator(self.seed, "preconditioner")
        return Solved(self.model, hyper, self.solver, stream, before)

    def __call__(
        self,
        hyper: Hyper,
        *,
        number: int = 0,
        before: LowRankPlusNoise | None = None,
        lanczos: int = 0,
    ) -> Estimate:
        """Return the log evidence and its gradient.

        Args:
            number: of the probes: other numbers, other probes.
            before: the preconditioner of other hyperparameters, to be used again.
            lanczos: steps with which the value is found; 0 for none.
        """
        model = self.model
        solved = self.solved(hyper, before)
        size = model.operator.num_observations
        stream = generator(self.seed, "probes", number)
        white = torch.randn(self.probes, size, generator=stream, dtype=torch.float64)
        drawn = solved.near.power(white, 0.5)
        inverse = solved(torch.cat([drawn, self.residual[None]]))
        alpha = inverse[-1]
        sides = torch.cat([inverse, solved.near.solve(drawn)]).to(model.dtype)
        pulled = model.weights(model.back(sides)).double()
        left, pulled_alpha, right = pulled.split([self.probes, 1, self.probes])
        linear = self.mean == "linear"
        noises = (inverse[:-1] * solved.near.solve(drawn)).sum(1)
        if linear:
            noises = noises - alpha.square().sum()
        gradients = torch.stack(
            [
                self._slope(hyper, a, b, pulled_alpha[0] if linear else None, noise)
                for a, b, noise in zip(left, right, noises, strict=True)
            ]
        )
        value, value_error = math.nan, math.nan
        if lanczos:
            logdets = solved.logdet(white, lanczos)
            fit = float(self.residual @ alpha) if linear else self._fit(hyper)
            fixed = size * math.log(2 * math.pi) + fit
            if self.log_prior is not None:
                fixed -= 2 * float(self.log_prior(hyper).detach())
            value = -0.5 * (float(logdets.mean()) + fixed)
            value_error = 0.5 * float(logdets.std()) / self.probes**0.5
        return Estimate(value, gradients.mean(0), value_error, gradients.std(0) / self.probes**0.5)

    def _fit(self, hyper: Hyper) -> float:
        return self.misfit / hyper.noise + float(self.model.prior.penalty(hyper, self.moments))

    def _slope(
        self, hyper: Hyper, left: Tensor, right: Tensor, alpha: Tensor | None, noise: Tensor
    ) -> Tensor:
        """Return the gradient that one probe gives, (2 G + 1,)."""
        prior = self.model.prior
        crossed = cross_moments(prior, left, right)
        if alpha is not None:
            more = prior.second_moments(alpha)
            crossed = [a - b for a, b in zip(crossed, more, strict=True)]
        flat = hyper.flat().detach().double().requires_grad_()
        with torch.enable_grad():
            learnt = Hyper.from_flat(flat)
            covariances = prior.covariances(learnt)
            moving = learnt.log_noise.exp() * noise
            for covariance, moment in zip(covariances, crossed, strict=True):
                moving = moving + (covariance * moment).sum()
            if self.mean == "trained":
                moving = moving + self.misfit / learnt.log_noise.exp()
                moving = moving + prior.penalty(learnt, self.moments)
            total = -0.5 * moving
            if self.log_prior is not None:
                total = total + self.log_prior(learnt)
            return torch.autograd.grad(total, flat)[0]

    def optimum(self, hyper: Hyper) -> Tensor:
        """Return θ* = Σ Jᵀ Aᵀ K⁻¹ r, (P,)."""
        model, alpha = self.model, self.solved(hyper)(self.residual[None])
        pulled = model.weights(model.back(alpha.to(model.dtype)))
        return model.prior.multiply(model.prior.covariances(hyper), pulled)[0]


def cross_moments(prior: FilterPrior, left: Tensor, right: Tensor) -> list[Tensor]:
    """Return Σ_f ½ (a_f b_fᵀ + b_f a_fᵀ) of each block's filters, (T, T), from weights (P,)."""
    moments = []
    for block in prior.blocks:
        a, b = (w[block.start : block.stop].view(-1, block.num_taps) for w in (left, right))
        moment = a.T @ b
        moments.append((moment + moment.T) / 2)
    return moments


def ascend(
    evidence: MatrixFreeEvidence,
    start: Hyper,
    *,
    steps: int = 40,
    lr: float = 0.5,
    learn_noise: bool = True,
    refresh: int = 10,
) -> Hyper:
    """Return hyperparameters of a large evidence, by Adam with new probes in every step.

    Gradients fall by orders of magnitude on the way, so Adam has a short memory: with the usual one
    its steps would stay small. A warning says if the evidence still rises at the end.

    Args:
        lr: of the logarithms; it falls to 0 along half a cosine, so that none moves further than
            half of `steps` times `lr`.
        refresh: steps after which the preconditioner is made again.
    """
    flat = start.flat().double().clone().requires_grad_()
    optimizer = torch.optim.Adam([flat], lr=lr, maximize=True, betas=(0.5, 0.5))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    before: LowRankPlusNoise | None = None
    latest: list[Tensor] = []
    for step in range(steps):
        hyper = Hyper.from_flat(flat.detach().clone())
        if before is None or step % refresh == 0:
            before = evidence.solved(hyper).near
        gradient = evidence(hyper, number=step, before=before).gradient
        if not learn_noise:
            gradient[-1] = 0.0
        flat.grad = gradient
        optimizer.step()
        schedule.step()
        moved = flat.detach().clone()
        with torch.no_grad():
            _within_bounds(flat)
        latest.append(torch.where(flat == moved, gradient, 0.0))  # at a bound it ends
    _warn_if_rising(evidence, torch.stack(latest[-max(2, steps // 4) :]))
    return Hyper.from_flat(flat.detach())


def _warn_if_rising(evidence: MatrixFreeEvidence, gradients: Tensor) -> None:
    """Warn if the mean of the last gradients (T, 2 G + 1) is clearly not small."""
    error = gradients.std(0) / len(gradients) ** 0.5
    rise = gradients.mean(0).abs() - 3 * error
    size = evidence.model.operator.num_observations
    if float(rise.max()) > max(_RISING[0], _RISING[1] * size):
        names = [block.name for block in evidence.model.prior.blocks]
        titles = [f"log {what} of {name}" for what in ("s²", "ℓ") for name in names]
        what = [*titles, "log σ²"][int(rise.argmax())]
        warn(
            f"the search for hyperparameters has not settled: one unit of {what} still changes the"
            f" log evidence by {float(gradients.mean(0)[rise.argmax()].abs()):.0f}, for"
            f" {size:,} observations; the deviations of pixels may be far off. Give more `steps`"
        )


def _within_bounds(flat: Tensor) -> None:
    half = len(flat) // 2
    flat[:half].clamp_(LOW_VARIANCE, HIGH_VARIANCE)
    flat[half : 2 * half].clamp_(*LENGTHSCALES)


def matheron(
    model: Linearised,
    hyper: Hyper,
    number: int,
    *,
    inverse: Callable[[Tensor], Tensor] | None = None,
    solver: Solver = DEFAULT,
    seed: int = 0,
) -> ImagePosterior:
    """Return `number` samples of the posterior, around the image of the network.

    By Matheron's rule: f₀ − J Σ Jᵀ Aᵀ K⁻¹ (A f₀ + ε) with f₀ = J w, w ~ N(0, Σ), ε ~ N(0, σ² I).

    Args:
        inverse: from rows (S, m) to K⁻¹ times each, such as by a Cholesky root; by default
            conjugate gradients.
    """
    if number < 2:
        raise ValueError(f"`number` of samples must be at least 2, got {number}")
    prior, stream = model.prior, generator(seed, "matheron")
    if inverse is None:
        inverse = Solved(model, hyper, solver, generator(seed, "preconditioner"))
    covariances = prior.covariances(hyper)
    images = model.images(prior.draw(hyper, number, stream).to(model.dtype))
    size = model.operator.num_observations
    noise = torch.randn(number, size, generator=stream, dtype=torch.float64)
    wrong = model.observe(images).double() + hyper.noise**0.5 * noise
    pulled = model.weights(model.back(inverse(wrong).to(model.dtype)))
    off = (images - model.images(prior.multiply(covariances, pulled))).double()
    return ImagePosterior(
        model.operator.image_shape, model.image.double(), off.square().mean(0), deviations=off
    )


def sampled_tv_predcp(
    model: Linearised, rate: float, *, probes: int = 10, seed: int = 0
) -> TVPredCP:
    """Return TV-PredCP without kernels: variances of differences are estimated by probes.

    For signs z_f of the filters and u_t = J_g (z ⊗ e_t), t one tap, E[u_t u_t'] is the sum over
    filters of J_{f t} J_{f t'}. So `probes` · T products per block are enough for every s² and ℓ,
    and the estimated variances, Σ_tt' Cov_tt' u_t u_t', are never negative.
    """
    left, right = neighbours(model.operator.image_shape)
    stream = generator(seed, "tv_predcp")
    variances = []
    for block in model.prior.blocks:
        taps = block.num_taps
        shape = (probes, block.num_filters)
        signs = torch.randint(0, 2, shape, generator=stream).to(model.dtype) * 2 - 1
        total = torch.zeros(taps, taps, len(left), dtype=torch.float64)
        for sign in signs:
            weights = torch.zeros(taps, len(model.point), dtype=model.dtype)
            filters = weights[:, block.start : block.stop].view(taps, -1, taps)
            filters[torch.arange(taps), :, torch.arange(taps)] = sign
            images = model.images(weights).double()
            jumps = images[:, left] - images[:, right]
            total += jumps.unsqueeze(0) * jumps.unsqueeze(1) / probes
        for _, matrix in block.classes():
            variances.append((matrix[..., None] * total).sum((0, 1)))
    jumps = (model.image[left] - model.image[right]).double()
    return TVPredCP(model.prior, jumps, torch.stack(variances), rate)
