r"""The ensemble of infinitely many networks of infinite width, trained on MSE, at any time.

Gradient descent with learning rate η on 1/(2n) Σ ‖f(x_i) − y_i‖² keeps the tangent kernel Θ fixed
at infinite width; K is the NNGP, the covariance at initialisation. With
A_t(x) = Θ(x, X) φ_t(Θ(X, X)),

    μ_t(x) = A_t(x) Y
    Σ_t(x, x') = K(x, x') + A_t(x) K(X, X) A_t(x')ᵀ − A_t(x) K(X, x') − K(x, X) A_t(x')ᵀ
    φ_t(λ) = (1 − e^{−η λ t / n}) / λ,  or (1 − (1 − η λ / n)^t) / λ after t discrete steps

(Jacot et al. 2018; Lee et al. 2019, eq. 14-16). One eigendecomposition of Θ(X, X) serves all t. For
several outputs the kernel is the same and outputs are independent.

With a `group`, X and Y are augmented by full orbits, and μ_t is equivariant at every t and x, on
and off the data (J. Gerken, P. Kessel, Emergent equivariance in deep ensembles, ICML 2024), if Θ is
invariant. Then w_{g i} = ρ(g) w_i solves the augmented problem with the matrix of the size of the
data alone, Σ_g Θ(x_i, g x_j) ρ(g): the *orbit-reduced* Gram matrix.

A finite ensemble of M members deviates from this: E ‖f̄(g x) − ρ(g) f̄(x)‖² = ‖bias‖² + s²(x, g)/M.

Shapes: `N` inputs, `n` training inputs, `G` elements of the group, `K` outputs.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from polymode.core.memory import require_free
from polymode.equivariance.groups import Group
from polymode.equivariance.groups import group as find_group
from polymode.equivariance.kernels.broken import warn_if_broken
from polymode.equivariance.kernels.serial import Serial

DYNAMICS = ("flow", "steps")


class InfiniteEnsemble:
    """Mean and covariance of an infinite ensemble in closed form.

    Args:
        kernel: description of the network.
        x: training inputs (n, d) or (n, C, H, W). y: targets (n,) or (n, K).
        lr: η, of the mean over examples of half the squared error.
        group: whose full orbits the training set is augmented with; a name or a `Group`.
        dynamics: "flow" (gradient flow, t in steps) or "steps" (gradient descent, whole t).
        reduced: whether μ_t comes from the orbit-reduced matrix; by default where that is exact.
        jitter: added to the diagonal of Θ(X, X), relative to its mean. 0 unless asked for; only
            t = ∞ can need it.
    """

    def __init__(
        self,
        kernel: Serial,
        x: Tensor,
        y: Tensor,
        *,
        lr: float,
        group: str | Group | None = None,
        dynamics: str = "flow",
        reduced: bool | None = None,
        jitter: float = 0.0,
    ) -> None:
        if dynamics not in DYNAMICS:
            raise ValueError(f"`dynamics` must be 'flow' or 'steps', got {dynamics!r}")
        if not lr > 0:
            raise ValueError(f"`lr` of InfiniteEnsemble must be > 0, got {lr}")
        if not jitter >= 0:
            raise ValueError(f"`jitter` of InfiniteEnsemble must be ≥ 0, got {jitter}")
        targets = (y[:, None] if y.ndim == 1 else y).double()
        if targets.ndim != 2 or len(targets) != len(x) or not y.is_floating_point():
            raise ValueError(
                f"`y` must be numbers (n,) or (n, K) for n = {len(x)} inputs, got"
                f" {tuple(y.shape)} of {y.dtype}; classes: one-hot vectors minus 1/K"
            )
        self.kernel, self.lr, self.dynamics, self.jitter = kernel, lr, dynamics, jitter
        self.group = None if group is None else find_group(group)
        self.base = x.double()
        self.x, self.y = self.base, targets
        if self.group is not None:
            self.x = self.group.orbit(self.base).flatten(0, 1)
            self.y = self.group.orbit_of_outputs(targets).flatten(0, 1)
        self.num_examples = len(self.x)
        self.reduced = self._reduces() if reduced is None else reduced
        if self.reduced and (self.group is None or not self.group.closed):
            raise ValueError("`reduced` needs a `group` whose elements are closed")
        self._targets = targets
        self._full: _Spectrum | None = None
        self._small: _Spectrum | None = None

    def _reduces(self) -> bool:
        group = self.group
        if group is None or not group.closed or len(group) == 1:
            return False
        return not warn_if_broken(self.kernel, tuple(self.base.shape[1:]), group)

    @property
    def max_lr(self) -> float:
        """The learning rate from which on discrete gradient descent diverges."""
        return 2 * self.num_examples / float(self.full.values[-1])

    @property
    def _invariant(self) -> bool:
        return self.group is None or self.group.invariant

    @property
    def full(self) -> _Spectrum:
        """Eigenvalues and -vectors of Θ(X, X) of all (augmented) inputs, made when first used."""
        if self._full is None:
            require_free(
                6 * 8 * self.num_examples**2,
                f"kernels of {self.num_examples:,} inputs and their eigenvectors",
                "Take fewer inputs; the mean alone needs only the orbit-reduced matrix.",
            )
            if self.reduced and self.group is not None:
                nngp, ntk = self._from_first_rows(self.group)
            else:
                nngp, ntk = self.kernel(self.x)
            self._full = _Spectrum(ntk, self.y, self.jitter, nngp)
        return self._full

    @property
    def small(self) -> _Spectrum:
        """Eigenvalues and -vectors of Σ_g Θ(x_i, g x_j) ρ(g), (n K, n K), or (n, n) if ρ = 1."""
        if self._small is None:
            assert self.group is not None
            matrix = self._summed(self.base)
            y = self._targets if self._invariant else self._targets.reshape(-1, 1)
            self._small = _Spectrum(matrix, y, self.jitter)
        return self._small

    def _summed(self, x: Tensor) -> Tensor:
        """Return Σ_g Θ(x, g x_j) ρ(g): (N, n), or (N K, n K) with an action on outputs."""
        group = self.group
        assert group is not None
        blocks = self.kernel(x, self.x).ntk.view(len(x), len(group), -1)
        if group.invariant:
            return blocks.sum(1)
        matrices = representation(group, self._targets.shape[1])
        summed = torch.einsum("igj,gab->iajb", blocks, matrices)
        return summed.reshape(len(x) * matrices.shape[1], -1)

    def _from_first_rows(self, group: Group) -> tuple[Tensor, Tensor]:
        """Return K and Θ of all augmented inputs from those with the inputs as they are:
        Θ(g x_i, h x_j) = Θ(x_i, g⁻¹ h x_j)."""
        size, count = len(group), len(self.base)
        inverse = torch.tensor([group.inverse(index) for index in range(size)])
        which = group.table[inverse]  # (g, h) -> g⁻¹ h
        kernels = []
        for rows in self.kernel(self.base, self.x):
            blocks = rows.view(count, size, count)[:, which]  # (i, g, h, j)
            kernel = blocks.permute(1, 0, 2, 3).reshape(size * count, -1)
            kernels.append((kernel + kernel.mT) / 2)
        return kernels[0], kernels[1]

    def at(self, x: Tensor) -> At:
        """Return what is predicted at inputs (N, ...), for any t."""
        return At(self, x.double())

    def mean(self, x: Tensor, t: float) -> Tensor:
        """Return μ_t(x), (N, K)."""
        return self.at(x).mean(t)

    def covariance(self, x: Tensor, t: float) -> Tensor:
        """Return Σ_t(x, x), (N, N), the same for every output."""
        return self.at(x).covariance(t)

    def non_invariance(self, x: Tensor, group: str | Group, t: float) -> NonInvariance:
        """Return how far members, and finite ensembles of them, are from symmetric at x.

        Args:
            x: inputs (N, ...). group: with its action on outputs. t: steps.
        """
        acting = find_group(group)
        size, count = len(acting), self.y.shape[1]
        matrices = representation(acting, count)
        orbit = acting.orbit(x.double())
        at_x, at_orbit = self.at(orbit[0]), self.at(orbit.flatten(0, 1))
        first = at_x.repeated(size)
        mean = at_orbit.mean(t).view(size, len(x), count)
        moved = torch.einsum("gab,nb->gna", matrices, mean[0])
        traces = matrices.diagonal(dim1=1, dim2=2).sum(-1)[:, None]
        shared = first.covariance_with(at_orbit, t).view(size, -1)
        spread = first.variance_of_difference(at_orbit, t).view(size, -1)
        variance = count * spread + 2 * (count - traces) * shared
        variance[0] = 0.0
        return NonInvariance(variance.clamp_min(0), (mean - moved).square().sum(-1))

    def _gain(self, values: Tensor, t: float) -> Tensor:
        """Return φ_t of eigenvalues."""
        if not t >= 0:
            raise ValueError(f"`t` must be ≥ 0, got {t}")
        rate = self.lr / self.num_examples
        if math.isinf(t):
            floor = len(values) * torch.finfo(values.dtype).eps * float(values[-1])
            if float(values[0]) <= floor:
                raise ValueError(
                    f"the tangent kernel of {len(values)} inputs is singular: its eigenvalues go"
                    f" from {float(values[0]):.2g} to {float(values[-1]):.2g}. Are two inputs the"
                    " same? Take a finite t, or ask for jitter, e.g. jitter=1e-10"
                )
            return 1 / values
        if self.dynamics == "flow":
            decay = -torch.expm1(-rate * t * values)
        else:
            if t != int(t):
                raise ValueError(f"dynamics 'steps' is for whole t, got {t}")
            largest = float(values[-1])
            if rate * largest >= 2:
                raise ValueError(
                    f"gradient descent diverges with lr={self.lr:g}: it must be <"
                    f" {2 * self.num_examples / largest:.4g}, 2 n over the largest eigenvalue of"
                    " the tangent kernel"
                )
            decay = 1 - (1 - rate * values).pow(int(t))
            tiny = rate * values < 1e-3
            exact = -torch.expm1(t * torch.log1p(-(rate * values).clamp_max(0.5)))
            decay = torch.where(tiny, exact, decay)
        safe = torch.where(values > 0, values, 1.0)
        return torch.where(values > 0, decay / safe, rate * t)

    def __repr__(self) -> str:
        augmented = "" if self.group is None else f", orbits of {self.group.name}"
        jitter = f", jitter={self.jitter:g}" if self.jitter else ""
        return (
            f"InfiniteEnsemble({len(self.base)} inputs{augmented}, lr={self.lr:g},"
            f" dynamics='{self.dynamics}'{jitter})"
        )


class _Spectrum:
    """Θ = U diag(values) Uᵀ, with targets, and the NNGP, in its basis."""

    def __init__(
        self, matrix: Tensor, targets: Tensor, jitter: float, nngp: Tensor | None = None
    ) -> None:
        if jitter:
            matrix = matrix.clone()
            matrix.diagonal().add_(jitter * float(matrix.diagonal().mean()))
        values, self.vectors = torch.linalg.eigh(matrix)
        self.values = values.clamp_min(0)
        self.targets = self.vectors.mT @ targets
        self.nngp = None if nngp is None else self.vectors.mT @ nngp @ self.vectors


class At:
    """Predictions of an infinite ensemble at some inputs; kernels are computed once for all t."""

    def __init__(self, ensemble: InfiniteEnsemble, x: Tensor) -> None:
        self.ensemble, self.x = ensemble, x
        self._kernels: tuple[Tensor, Tensor] | None = None
        self._summed: Tensor | None = None

    @property
    def kernels(self) -> tuple[Tensor, Tensor]:
        """K(x, X) and Θ(x, X) in the basis of Θ(X, X), (N, n) each."""
        if self._kernels is None:
            ensemble = self.ensemble
            nngp, ntk = ensemble.kernel(self.x, ensemble.x)
            self._kernels = nngp @ ensemble.full.vectors, ntk @ ensemble.full.vectors
        return self._kernels

    def mean(self, t: float) -> Tensor:
        """Return μ_t, (N, K)."""
        ensemble = self.ensemble
        if not ensemble.reduced:
            spectrum = ensemble.full
            return (self.kernels[1] * ensemble._gain(spectrum.values, t)) @ spectrum.targets
        spectrum = ensemble.small
        if self._summed is None:
            self._summed = ensemble._summed(self.x) @ spectrum.vectors
        mean = (self._summed * ensemble._gain(spectrum.values, t)) @ spectrum.targets
        return mean.view(len(self.x), -1)

    def covariance(self, t: float) -> Tensor:
        """Return Σ_t between all inputs, (N, N)."""
        nngp, gained = self.ensemble.kernel(self.x, ntk=False).nngp, self._gained(t)
        cross = gained @ self.kernels[0].mT
        initial = self.ensemble.full.nngp
        assert initial is not None
        return nngp + gained @ initial @ gained.mT - cross - cross.mT

    def variance(self, t: float) -> Tensor:
        """Return the diagonal of Σ_t, (N,)."""
        return self.covariance_with(self, t)

    def covariance_with(self, second: At, t: float) -> Tensor:
        """Return Σ_t(x[n], x'[n]) for the inputs of both, row by row, (N,)."""
        start = self.ensemble.kernel.pairs(self.x, second.x, ntk=False).nngp
        ours, theirs = self._gained(t), second._gained(t)
        initial = self.ensemble.full.nngp
        assert initial is not None
        first = (ours * second.kernels[0]).sum(-1) + (theirs * self.kernels[0]).sum(-1)
        return start + ((ours @ initial) * theirs).sum(-1) - first

    def variance_of_difference(self, second: At, t: float) -> Tensor:
        """Return Var[f(x[n]) − f(x'[n])], row by row, (N,): from differences of kernels, which lose
        fewer digits than differences of variances."""
        pairs = self.ensemble.kernel.pairs
        same = (pairs(at.x, at.x, ntk=False).nngp for at in (self, second))
        start = sum(same) - 2 * pairs(self.x, second.x, ntk=False).nngp
        nngp = self.kernels[0] - second.kernels[0]
        gained = self._gained(t) - second._gained(t)
        initial = self.ensemble.full.nngp
        assert initial is not None
        return start + ((gained @ initial) * gained).sum(-1) - 2 * (gained * nngp).sum(-1)

    def repeated(self, times: int) -> At:
        """Return the predictions at inputs repeated several times."""
        repeated = At(self.ensemble, self.x.repeat(times, *[1] * (self.x.ndim - 1)))
        first, second = self.kernels
        repeated._kernels = first.repeat(times, 1), second.repeat(times, 1)
        return repeated

    def _gained(self, t: float) -> Tensor:
        return self.kernels[1] * self.ensemble._gain(self.ensemble.full.values, t)


class NonInvariance(NamedTuple):
    """Expected squared deviations ‖f̄(g x) − ρ(g) f̄(x)‖² of ensembles of M members.

    Attributes:
        variance: s²(x, g), (G, N): that of one member about the mean.
        bias: that of the mean of infinitely many, (G, N); 0 with full augmentation.
    """

    variance: Tensor
    bias: Tensor

    def deviation(self, num_modes: float = math.inf) -> float:
        """Return the root mean square over inputs and g ≠ e for so many members."""
        variance, bias = (float(part[1:].mean()) for part in self)
        return math.sqrt(bias + variance / num_modes)

    def members_needed(self, target: float) -> int:
        """Return how many members bring `deviation` down to `target`.

        For invariant outputs and a group, the standard deviation over the orbit is `deviation`
        times √((|G| − 1) / (2 |G|)).
        """
        if not target > 0:
            raise ValueError(f"`target` must be > 0, got {target}")
        floor = self.deviation()
        if target <= floor:
            raise ValueError(
                f"the mean of infinitely many members deviates by {floor:.3g}, more than the target"
                f" of {target:g}: no number of members is enough. Train on full orbits"
            )
        return max(1, math.ceil(float(self.variance[1:].mean()) / (target**2 - floor**2)))


def representation(group: Group, outputs: int) -> Tensor:
    """Return the matrices ρ(g) that act on outputs, (G, K, K) in float64."""
    if group.invariant:
        return torch.eye(outputs, dtype=torch.float64).expand(len(group), -1, -1)
    basis = torch.eye(outputs, dtype=torch.float64)
    return group.orbit_of_outputs(basis).mT  # row k of an orbit is ρ(g) e_k
