r"""Vector, matrix and Dirichlet scaling: softmax(W l + b) of log-probabilities l.

W and b minimise the negative log-likelihood plus a regulariser that pulls to the identity. For C
classes, n examples and a `penalty` :math:`\lambda`,

=========  ============  =================================================================
vector     W diagonal    :math:`\frac{\lambda}{2n}(\|W - I\|^2 + \|b\|^2)`
matrix     W full        the same
dirichlet  W full, ODIR  :math:`\lambda(\frac{1}{C(C-1)}\sum_{i\ne j} W_{ij}^2
                         + \frac1C\sum_j b_j^2) + \frac{1}{2n}\sum_i (W_{ii} - 1)^2`
=========  ============  =================================================================

added to the mean over examples, in nats. The first is a Gaussian prior of precision
:math:`\lambda` around the identity: it fades as n grows, and keeps W and b finite on separable
data and for classes without examples. ODIR (off-diagonal and intercept regularisation) is that of
Kull et al. with their :math:`\mu = \lambda`; its last term, with the weight of a unit prior, is
added here for separable data. A mean over samples has no logits, so log-probabilities replace them:
matrix and Dirichlet scaling differ only in their regularisers.

With one sample the problem is convex and its solution unique. With the same W, b on each of S > 1
samples, the likelihood of the mixture is not concave, and the minimum found is the one downhill
from the identity. Probabilities below 1e-30 count as 1e-30. A fit takes well under a second for ten
classes; W of a hundred classes has 10,000 numbers and takes tens of seconds: prefer a vector.

References: C. Guo, G. Pleiss, Y. Sun, K. Q. Weinberger, On calibration of modern neural networks,
ICML 2017 (vector and matrix, there not regularised); M. Kull, M. Perello Nieto, M. Kängsepp,
T. Silva Filho, H. Song, P. Flach, Beyond temperature scaling: obtaining well-calibrated multiclass
probabilities with Dirichlet calibration, NeurIPS 2019. `S` samples, `n` examples, `C` classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import log
from typing import Any

import torch
from torch import Tensor

from polymode.core.checks import is_number
from polymode.core.options import Config, option, rule
from polymode.recalibration.minimise import Bend, newton

_FLOOR = log(1e-30)
_FOLDS = 5


def _penalties(penalty: Any) -> list[Any]:
    return [*penalty] if isinstance(penalty, Sequence) else [penalty]


def _are_penalties(value: Any) -> bool:
    choices = _penalties(value)
    return bool(choices) and all(is_number(choice) and choice > 0 for choice in choices)


@dataclass(frozen=True, kw_only=True)
class Affine(Config):
    """Options of vector, matrix and Dirichlet scaling."""

    called = "an affine recalibration"
    penalty: float | Sequence[float] = option(
        1.0,
        rule=rule("finite and > 0, or several such numbers", _are_penalties),
        doc="of the distance from the identity; of several, the one with the highest held-out"
        " likelihood over five stratified folds of these data",
    )


def fit(log_probs: Tensor, labels: Tensor, options: Affine, *, kind: str) -> dict[str, Any]:
    """Return {"weight": (C,) or (C, C), "bias": (C,), "penalty"} from (S, n, C) and (n,).

    Args:
        kind: "vector", "matrix" or "dirichlet".
    """
    choices = [float(penalty) for penalty in _penalties(options.penalty)]
    logs = log_probs.clamp(min=_FLOOR)
    if len(choices) > 1 and len(labels) < _FOLDS:
        raise ValueError(
            f"A choice among {len(choices)} penalties needs >= {_FOLDS} examples, got"
            f" {len(labels)}; name one."
        )
    best = choices[0]
    if len(choices) > 1:
        best = min(choices, key=lambda choice: _held_out(logs, labels, kind, choice))
    theta = _fit(logs, labels, kind, best)
    weight = theta[0] if kind == "vector" else theta[:-1].T
    return {"weight": weight.tolist(), "bias": theta[-1].tolist(), "penalty": best}


def apply(parameters: dict[str, Any], log_probs: Tensor) -> Tensor:
    """Return the log-probabilities log softmax(W l + b), (..., C)."""
    weight, bias = (
        torch.tensor(parameters[key], dtype=log_probs.dtype, device=log_probs.device)
        for key in ("weight", "bias")
    )
    logs = log_probs.clamp(min=_FLOOR)
    scaled = logs * weight if weight.dim() == 1 else logs @ weight.T
    return (scaled + bias).log_softmax(-1)


def _fit(logs: Tensor, labels: Tensor, kind: str, penalty: float) -> Tensor:
    """Return theta: rows w and b of a vector (2, C); W transposed and b of a matrix (C + 1, C)."""
    classes, n = logs.shape[-1], logs.shape[1]
    eye = torch.eye(classes, dtype=logs.dtype, device=logs.device)
    nothing = torch.zeros_like(eye[:1])
    start = torch.cat([torch.ones_like(nothing) if kind == "vector" else eye, nothing])
    strength = torch.full_like(start, penalty / n)
    if kind == "dirichlet":
        strength[:-1] = 2.0 * penalty / (classes * (classes - 1))
        strength[-1] = 2.0 * penalty / classes
        strength[:-1].diagonal().fill_(1.0 / n)
    objective = partial(_objective, logs, labels, start, strength)
    return newton(objective, start)


def _objective(logs: Tensor, labels: Tensor, start: Tensor, strength: Tensor, at: Tensor) -> Bend:
    """Return the mean negative log-likelihood of the mixture plus the regulariser."""
    samples, n = logs.shape[:2]
    scores = _forward(logs, at)
    log_probs = scores.log_softmax(-1)
    index = labels.expand(samples, n).unsqueeze(-1)
    fits = log_probs.gather(-1, index).squeeze(-1)
    shares = fits.softmax(0).unsqueeze(-1) / n
    value = (log(samples) - fits.logsumexp(0)).mean()
    value = value + 0.5 * (strength * (at - start).square()).sum()
    probs = log_probs.exp()
    gap = probs.scatter_add(-1, index, torch.full_like(fits.unsqueeze(-1), -1.0))

    def product(direction: Tensor) -> Tensor:
        moved = _forward(logs, direction)
        moved = moved - (probs * moved).sum(-1, keepdim=True)
        towards = moved.gather(-1, index)
        shift = shares * (towards - n * (shares * towards).sum(0))
        return _backward(logs, shift * gap + shares * probs * moved, at) + strength * direction

    gradient = _backward(logs, shares * gap, at) + strength * (at - start)
    solver = partial(_solver, logs, probs, shares, strength)
    return Bend(value.item(), gradient, product, solver)


def _forward(logs: Tensor, theta: Tensor) -> Tensor:
    """Return W l + b, (S, n, C)."""
    scaled = logs * theta[0] if len(theta) == 2 else logs @ theta[:-1]
    return scaled + theta[-1]


def _backward(logs: Tensor, scores: Tensor, theta: Tensor) -> Tensor:
    """Return the transpose of `_forward` applied to (S, n, C), in the shape of theta."""
    rows, columns = logs.flatten(0, 1), scores.flatten(0, 1)
    weight = (rows * columns).sum(0) if len(theta) == 2 else rows.T @ columns
    return torch.cat([weight.view(-1, logs.shape[-1]), columns.sum(0, keepdim=True)])


def _solver(
    logs: Tensor, probs: Tensor, shares: Tensor, strength: Tensor
) -> Callable[[Tensor], Tensor]:
    r"""Return a solver with the block-diagonal Hessian of a vector, or Kronecker's for a matrix.

    The Hessian of a matrix is the mean of :math:`(diag(p) - p p^T) \otimes l l^T`; it is
    approximated by the product of the factors' means, where uncertain examples count more.
    """
    rows, probs, shares = logs.flatten(0, 1), probs.flatten(0, 1), shares.flatten(0, 1)
    if len(strength) == 2:
        spread = shares * probs * (1.0 - probs)
        blocks = torch.stack([(spread * rows.square()).sum(0), spread.sum(0)]) + strength
        return lambda theta: theta / blocks
    rows = torch.cat([rows, torch.ones_like(rows[:, :1])], 1)
    classes = (shares * probs).sum(0).diag() - probs.T @ (shares * probs)
    spread = shares * (1.0 - probs.square().sum(1, keepdim=True))
    inputs = rows.T @ (spread * rows) / spread.sum().clamp(min=1e-300)
    of_input, inputs = torch.linalg.eigh(inputs)
    of_class, classes = torch.linalg.eigh(classes)
    scale = of_input.clamp(min=0)[:, None] * of_class.clamp(min=0) + strength.median()
    return lambda theta: inputs @ ((inputs.T @ theta @ classes) / scale) @ classes.T


def _held_out(logs: Tensor, labels: Tensor, kind: str, penalty: float) -> float:
    """Return the mean negative log-likelihood of held-out folds."""
    order = labels.argsort(stable=True)
    fold = torch.empty_like(labels)
    fold[order] = torch.arange(len(labels), device=labels.device) % _FOLDS
    total = 0.0
    for k in range(_FOLDS):
        theta = _fit(logs[:, fold != k], labels[fold != k], kind, penalty)
        log_probs = _forward(logs[:, fold == k], theta).log_softmax(-1)
        index = labels[fold == k].expand(len(logs), -1).unsqueeze(-1)
        total -= log_probs.gather(-1, index).logsumexp(0).sum().item()
    return total / len(labels)
