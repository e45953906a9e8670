r"""Quantile heads: a network whose outputs are quantiles of the target, trained by pinball loss.

For levels :math:`\tau_1 < \dots < \tau_Q` and the quantiles :math:`q_k` of an output,

.. math:: \ell(y) = \sum_k (\tau_k - 1[y < q_k])\,(y - q_k), \qquad
          q_1 = f_1 + z_1, \quad q_{k+1} = q_k + \mathrm{softplus}(f_{k+1} + c_k),

with the standard normal quantiles z and :math:`\mathrm{softplus}(c_k) = z_{k+1} - z_k`: outputs of
0 are those of N(0, 1), where scaled targets begin, and quantiles do not cross.

This is no likelihood: :math:`e^{-\ell}` is not the density of anything that the outputs describe,
and `log_prob` is :math:`-\ell`, not in nats. A posterior made of it weighs data against the prior
by the units of the targets; methods that need a density refuse it.

What is predicted is a distribution all the same: the distribution function is linear between the
quantiles, and its tails are exponential, as dense at the outermost quantiles as between these and
their neighbours. Its log-density, moments, entropy and CRPS are exact for that interpolation, which
is a choice, and not the network's: an NLL scores it as much as the quantiles.

Reference: R. Koenker, G. Bassett, Regression quantiles, Econometrica 46 (1978).
"""

from __future__ import annotations

import dataclasses

import torch
import torch.nn.functional as F
from torch import Tensor

from polymode.core.checks import is_number, shown
from polymode.likelihoods.base import Likelihood, Params
from polymode.likelihoods.components import Quantiles
from polymode.likelihoods.densities import standard_quantiles
from polymode.likelihoods.kinds import LIKELIHOODS
from polymode.likelihoods.options import count
from polymode.likelihoods.targets import align

_LEAST_GAP = 1e-6  # between neighbouring quantiles of scaled targets: a bounded density


@dataclasses.dataclass(frozen=True)
class QuantileHeads(Likelihood):
    """Quantiles of each target dimension, Q D outputs; see the module for what is predicted.

    Args:
        levels: at least two numbers in (0, 1), increasing.
    """

    levels: tuple[float, ...] = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)
    name = "quantile"
    classification = False

    def __post_init__(self) -> None:
        levels = tuple(self.levels) if isinstance(self.levels, tuple | list) else ()
        inside = all(is_number(level) and 0.0 < level < 1.0 for level in levels)
        rising = inside and all(a < b for a, b in zip(levels, levels[1:], strict=False))
        if len(levels) < 2 or not rising:
            raise ValueError(
                "`levels` of QuantileHeads must be at least two increasing numbers in (0, 1), got"
                f" {shown(self.levels)}"
            )
        object.__setattr__(self, "levels", tuple(map(float, levels)))

    @property
    def departure(self) -> str:
        return "quantile heads minimise the pinball loss"

    def num_outputs(self, target_size: int) -> int:
        return len(self.levels) * count("target_size", self, target_size, at_least=1)

    def target_size(self, targets: Tensor) -> int:
        return self.check(targets).shape[-1]

    def squared_errors(self, outputs: Tensor, targets: Tensor) -> Tensor:
        middle = self.components(outputs, {}).loc
        return (middle - targets).double().square().sum(-2)

    def log_prob(self, outputs: Tensor, targets: Tensor, params: Params) -> Tensor:
        """Return minus the pinball loss, summed over levels and dimensions: not a log-density."""
        quantiles = self.components(outputs, params).values
        y = align(targets, quantiles.shape[:-1], trailing=2)
        gaps = y.unsqueeze(-1) - quantiles
        levels = torch.tensor(self.levels, dtype=gaps.dtype, device=gaps.device)
        return -torch.maximum(levels * gaps, (levels - 1.0) * gaps).sum((-2, -1))

    def components(self, outputs: Tensor, params: Params) -> Quantiles:
        number = len(self.levels)
        if outputs.shape[-1] % number:
            raise ValueError(
                f"QuantileHeads needs {number} outputs per target dimension, got"
                f" {outputs.shape[-1]}."
            )
        raw = outputs.unflatten(-1, (-1, number))
        levels = torch.tensor(self.levels, dtype=torch.float64)
        start = standard_quantiles(levels, None)
        inverse = start.diff().expm1().log()  # of softplus
        first = raw[..., :1] + start[:1].to(raw)
        steps = F.softplus(raw[..., 1:] + inverse.to(raw)) + _LEAST_GAP
        reach = first.abs() + steps.sum(-1, keepdim=True)  # gaps that rounding would close
        steps = steps + 8.0 * torch.finfo(raw.dtype).eps * reach.detach()
        return Quantiles(torch.cat([first, steps], -1).cumsum(-1), self.levels)


LIKELIHOODS[QuantileHeads.name] = QuantileHeads
