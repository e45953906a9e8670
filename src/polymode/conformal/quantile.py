r"""The finite-sample quantile that conformal prediction rests on.

Let :math:`s_1, \dots, s_n` be scores of calibration examples and :math:`s` that of a new one, all
exchangeable. With :math:`k = \lceil (n + 1) \cdot level \rceil` and the k-th smallest score
:math:`\hat q = s_{(k)}`,

.. math:: level \le P(s \le \hat q) \quad\text{and, if no two scores are equal,}\quad
    P(s \le \hat q) = \frac{k}{n + 1} < level + \frac{1}{n + 1}.

Given the calibration examples, the coverage of new ones is a random number; without ties it follows
Beta(k, n + 1 - k). The plain quantile of the n scores has no such guarantee: of 20 uniform ones at
90 %, with interpolation, it covers 18.1 / 21 = 0.862. Where k > n, too few examples for the level,
:math:`\hat q = \infty`.

Reference: V. Vovk, A. Gammerman, G. Shafer, Algorithmic learning in a random world, 2005;
V. Vovk, Conditional validity of inductive conformal predictors, ACML 2012 (the Beta law).
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil

import torch
from torch import Tensor

from polymode.core.checks import Rows, check_call


def conformal_rank(n: int, level: float) -> int:
    """Return k = ceil((n + 1) level), exact for the level as it is written: 0.9 is 9/10.

    >>> conformal_rank(20, 0.9), conformal_rank(9, 0.9), conformal_rank(8, 0.9)
    (19, 9, 9)
    """
    check_call(conformal_rank, locals())
    if not 0.0 < level < 1.0:
        raise ValueError(f"`level` must be in (0, 1), got {level}; 0.9 for 90 %.")
    return ceil((n + 1) * Fraction(str(float(level))))


def conformal_quantile(scores: Rows, level: float) -> Tensor:
    """Return the k-th smallest of n scores, float64: (n,) -> (), (n, D) -> (D,); inf for k > n."""
    check_call(conformal_quantile, locals())
    rank = conformal_rank(len(scores), level)
    if rank > len(scores):
        return torch.full_like(scores[0], torch.inf, dtype=torch.float64)
    return scores.double().kthvalue(rank, 0).values
