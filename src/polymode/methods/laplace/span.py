r"""Whether the linear model J θ reaches the network's own outputs, and with weights like its own.

J θ is a model of the network only where some θ of ordinary size gives f(θ̃, x). A linear last layer
that trains does that: J θ = f for θ = its weights, and 0 elsewhere. What does not: outputs
that a frozen part adds to (a frozen head, a known trend, 50 n(x) + 1000, adapters beside frozen
weights), or a subnetwork, which leaves most of the network out. There the evidence of J θ asks the
free weights for what they are not there for, and finds a prior far too wide. The model is then

    h(θ, x) = f(θ̃, x) + J(x) (θ − θ̃) = J(x) θ + c(x),    c = f − J θ̃

over the free weights: the rest of the network gives c. It is right for every network; where f is in
reach, J θ is preferred, as its predictive does not depend on the scale of normalised weights
(proposition 3 of the reference in `groups.py`).

`distance` measures the reach. With a_t = J_t θ̃_t the part of parameter tensor t of T,

    δ² = min_w ‖Σ_t w_t a_t − f‖² / ‖f‖² + ρ² Σ_t w_t² / T,    ρ = TOLERANCE / 2,

so δ ≤ TOLERANCE says that weights no larger than the trained ones give f, to rounding. ‖·‖ has each
output relative to its own size; logits of a softmax are without their mean, which means nothing.
w is found on some examples and judged on all.

Limits: only multiples of whole tensors are tried. A network whose outputs are in the span of J in
another way has the offset, which is no less right.

Shapes: `N` examples, `K` outputs, `P` weights, `T` parameter tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

TOLERANCE = 1e-3
_EXAMPLES = 256  # that w is found on
_CANCELLED = 1e-4  # an output is at least so large as this share of its largest part

Multiply = Callable[[Tensor, Tensor], Tensor]
"""(vector (P,), inputs) -> J v, (B, K)."""


@torch.no_grad()
def distance(
    multiply: Multiply,
    point: Tensor,
    slices: Mapping[str, slice],
    batches: Sequence[tuple[Tensor, Tensor]],
    *,
    logits: bool = False,
) -> float:
    """Return δ, see above.

    Args:
        point: the trained weights θ̃, (P,). slices: where each parameter tensor lies in it, by name.
        batches: pairs of inputs and the network's outputs there, (B, K).
        logits: whether a number that all outputs of an example share means nothing.
    """
    adjust = _centred if logits else Tensor.double
    chosen = _spread_out(batches)
    target = adjust(torch.cat([f for _, f in chosen]))
    parts = _separate(slices, target.numel() // 2)

    def column(part: list[slice]) -> Tensor:
        vector = _weighted(point, [part], [1.0])
        return adjust(torch.cat([multiply(vector, x) for x, _ in chosen]))

    columns = torch.stack([column(part) for part in parts], -1)  # (N, K, T)
    largest = columns.square().sum(0).amax(-1)
    size = _sizes(target.square().sum(0), largest)
    ridge = (TOLERANCE / 2) ** 2 / len(parts)
    rows = (columns / size[:, None]).flatten(0, 1)
    number = target.shape[-1]
    normal = rows.mT @ rows / number + ridge * torch.eye(len(parts)).to(rows)
    factors = torch.linalg.solve(normal, rows.mT @ (target / size).flatten() / number)
    vector = _weighted(point, parts, factors.tolist())
    apart, whole = torch.zeros_like(size), torch.zeros_like(size)
    for x, f in batches:
        outputs = adjust(f)
        apart += (adjust(multiply(vector, x)) - outputs).square().sum(0)
        whole += outputs.square().sum(0)
    share = len(target) / sum(len(f) for _, f in batches)
    relative = apart / _sizes(whole, largest / share).square()
    return float((relative.mean() + ridge * factors.square().sum()).sqrt())


def _sizes(squares: Tensor, largest: Tensor) -> Tensor:
    """Return ‖f_d‖ of each output, (K,), at least the rounding of what it is the sum of."""
    return squares.maximum(_CANCELLED**2 * largest).sqrt().clamp_min(1e-30)


def _centred(outputs: Tensor) -> Tensor:
    outputs = outputs.double()
    return outputs - outputs.mean(-1, keepdim=True)


def _spread_out(batches: Sequence[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    """Return at most `_EXAMPLES` examples from all over the data."""
    total = sum(len(f) for _, f in batches)
    step = -(-total // _EXAMPLES)
    return [(x[::step], f[::step]) for x, f in batches]


def _separate(slices: Mapping[str, slice], most: int) -> list[list[slice]]:
    """Return the tensors one by one; where there are too few values to tell so many apart, those of
    a layer together, and all but the last layers as one."""
    if len(slices) <= most:
        return [[where] for where in slices.values()]
    layers: dict[str, list[slice]] = {}
    for name, where in slices.items():
        layers.setdefault(name.rpartition(".")[0], []).append(where)
    parts = list(layers.values())
    first = max(1, len(parts) - max(most, 2) + 1)
    return [[where for part in parts[:first] for where in part], *parts[first:]]


def _weighted(point: Tensor, parts: Sequence[list[slice]], factors: Sequence[float]) -> Tensor:
    """Return θ̃ with a factor for each part, 0 elsewhere, (P,)."""
    vector = torch.zeros_like(point)
    for part, factor in zip(parts, factors, strict=True):
        for where in part:
            vector[where] = factor * point[where]
    return vector
