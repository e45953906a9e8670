r"""Are the units of a layer exchangeable in a sample of networks?

With an initialisation that treats all units of a layer alike, permuting them changes nothing in the
distribution of trained networks, so all units have the same marginal (corollary of O. Laurent,
E. Aldea, G. Franchi, ICLR 2024). Then the unit that holds the largest incoming weight of its layer
is any of the U units with probability 1/U. Of S independent networks, the counts of this index are
multinomial; Pearson's

.. math:: X^2 = \sum_u (c_u - S/U)^2 / (S/U)

is nearly :math:`\chi^2` with U − 1 degrees of freedom from S/U = 5 on; below, its distribution is
simulated. Samples of one mode stay near the permutation they began with, so they fail.

The output layer is not tested: its units are the classes. Samples of a chain also fail because they
depend on each other, which is the same thing seen from the other side: they have not mixed over
permutations.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from torch import Tensor

from polymode.core.rng import fold

ENOUGH = 5  # expected counts from which the χ² distribution is taken
DRAWS = 9999  # simulated samples below


class Uniformity(NamedTuple):
    """Whether an index is uniform.

    Attributes:
        counts: of each unit, (U,). statistic: Pearson's. p_value: of uniformity.
    """

    counts: np.ndarray
    statistic: float
    p_value: float


def largest_units(weights: Tensor) -> np.ndarray:
    """Return which unit of each network has the largest weight, (S,), from weights (S, U, ...)."""
    largest = weights.detach().flatten(2).amax(-1) if weights.dim() > 2 else weights.detach()
    return np.asarray(largest.argmax(1).cpu().numpy())


def uniformity(indices: np.ndarray, units: int, *, seed: int = 0) -> Uniformity:
    """Test that indices in 0 .. U − 1 are uniform.

    >>> uniformity(np.zeros(50, int), 10).p_value < 1e-6
    True
    """
    counts = np.bincount(indices, minlength=units)
    expected = len(indices) / units
    statistic = float(((counts - expected) ** 2).sum() / expected)
    if expected >= ENOUGH:
        from scipy.special import chdtrc

        return Uniformity(counts, statistic, float(chdtrc(units - 1, statistic)))
    stream = np.random.default_rng(fold(seed, "uniformity"))
    drawn = stream.multinomial(len(indices), np.full(units, 1 / units), size=DRAWS)
    simulated = ((drawn - expected) ** 2).sum(1) / expected
    above = int((simulated >= statistic - 1e-9).sum())
    return Uniformity(counts, statistic, (1 + above) / (1 + DRAWS))
