"""The four variants that the study compares, on one trained network, with the whole curvature.

The evidence is taken at the trained weights θ̃ or at the linear model's optimum θ*, the prior has
one precision or one per normalised group. Kernels are made once and serve all four. Predictions
have the linear model's covariance, h = J θ, around the network's outputs, as in the reference, or
around the linear model's own mean h(θ*).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from polymode.core.rng import generator
from polymode.methods.laplace.evidence import (
    Choice,
    Search,
    maximise,
    starting_precision,
)
from polymode.methods.laplace.evidence_dual import (
    DualEvidence,
    Kernels,
    check_rows,
    kernels_between,
    kernels_of,
)
from polymode.methods.laplace.linear_model import Observed, Tangent

MEANS = {"trained": "θ̃", "linear": "θ*"}
KINDS = {"single": "single λ", "multiple": "multiple λ"}
VARIANTS = [(mean, kind) for mean in ("linear", "trained") for kind in KINDS]
DRAWS = 256


class Setup(NamedTuple):
    """A linear model with its data, and new inputs, as kernels.

    Attributes:
        tangent: the linear model. places: of each normalised group's weights.
        outputs, shift: at the training inputs, (N, K). new_outputs, new_shift: at new ones.
        kernels, cross, new_kernels: per group, see `evidence_dual.py`.
        data: targets.
    """

    tangent: Tangent
    places: dict[str, Tensor]
    outputs: Tensor
    shift: Tensor
    new_outputs: Tensor
    new_shift: Tensor
    kernels: Kernels
    cross: Kernels
    new_kernels: Tensor
    data: Observed


def set_up(
    tangent: Tangent,
    groups: Mapping[str, str],
    x: Tensor,
    data: Observed,
    new: Tensor,
    *,
    chunk: int = 32,
) -> Setup:
    """Return the kernels of training inputs x (N, ...) and new inputs (B, ...)."""
    index = tangent.index(groups)
    outputs = torch.cat([tangent.outputs(part) for part in x.split(256)])
    shift = torch.cat([tangent.shift(part) for part in x.split(256)])
    new_outputs = torch.cat([tangent.outputs(part) for part in new.split(256)])
    new_shift = torch.cat([tangent.shift(part) for part in new.split(256)])
    check_rows(outputs.numel(), 2 * len(index))
    jacobian = tangent.jacobian(x, chunk=chunk)
    kernels = kernels_between(jacobian, jacobian, index)
    pieces, new_kernels = [], []
    for part in new.split(128):
        features = tangent.jacobian(part, chunk=chunk)
        pieces.append(kernels_between(features, jacobian, index, features.dtype).groups)
        new_kernels.append(kernels_of(features, index))
    cross = Kernels({name: torch.cat([p[name] for p in pieces]) for name in index})
    return Setup(
        tangent, index, outputs, shift, new_outputs, new_shift, kernels, cross,
        torch.cat(new_kernels, 1), data,
    )  # fmt: skip


def with_one_group(setup: Setup) -> Setup:
    """Return the same with one group of all weights."""
    return setup._replace(
        places={"all": torch.cat(list(setup.places.values()))},
        kernels=_summed(setup.kernels),
        cross=_summed(setup.cross),
        new_kernels=setup.new_kernels.sum(0, keepdim=True),
    )


def _summed(kernels: Kernels) -> Kernels:
    total = torch.stack([kernel.double() for kernel in kernels.groups.values()]).sum(0)
    return Kernels({"all": total})


class Variant(NamedTuple):
    """What one variant gives.

    Attributes:
        choice: of λ and β. covariance: (B, K, K) of new outputs.
        mean: h(θ*) at new inputs, (B, K), the linear model's own; the network's where m = θ̃.
    """

    choice: Choice
    covariance: Tensor
    mean: Tensor


def variant(setup: Setup, mean: str, kind: str, beta: Tensor, how: Search) -> Variant:
    """Return one of the four.

    Args:
        beta: 1 / noise² to begin with, of length 0 for classes.
    """
    setup = setup if kind == "multiple" else with_one_group(setup)
    evidence = evidence_of(setup, mean)
    start = starting_precision(evidence.sizes, evidence.point_squares)
    choice = maximise(evidence, start, beta, how)
    outputs = setup.new_outputs.double()
    if evidence.alpha is not None:
        latent = setup.cross.combined(choice.precision).double() @ evidence.alpha.flatten()
        outputs = setup.new_shift.double() + latent.view_as(outputs)
    covariance = covariance_at(setup, evidence, choice.precision, choice.beta)
    return Variant(choice, covariance, outputs)


def evidence_of(setup: Setup, mean: str) -> DualEvidence:
    return DualEvidence(
        setup.tangent, setup.kernels, setup.places, setup.outputs, setup.shift, setup.data,
        mean=mean, newton_steps=3,
    )  # fmt: skip


def covariance_at(setup: Setup, evidence: DualEvidence, precision: Tensor, beta: Tensor) -> Tensor:
    """Return the covariances of new outputs, (B, K, K)."""
    return evidence.covariance(precision, beta, setup.cross, setup.new_kernels)


def class_nll(outputs: Tensor, covariance: Tensor | None, labels: Tensor) -> float:
    """Return the mean −log p of labels under Gaussian logits, 256 draws; None has no spread."""
    logits = outputs.double()[None]
    if covariance is not None:
        values, vectors = torch.linalg.eigh(covariance)
        root = vectors * values.clamp_min(0).sqrt().unsqueeze(-2)
        stream = generator(0, "linearised_laplace", "draws")
        noise = torch.randn(DRAWS, *outputs.shape, generator=stream, dtype=torch.float64)
        logits = logits + (root @ noise.unsqueeze(-1)).squeeze(-1)
    log_probs = logits.log_softmax(-1).logsumexp(0) - math.log(len(logits))
    return -log_probs.gather(-1, labels[:, None]).mean().item()


def value_nll(outputs: Tensor, variance: Tensor, targets: Tensor) -> float:
    """Return the mean −log N(y; f, variance) per value."""
    errors = (targets.double() - outputs.double()).square() / variance
    return 0.5 * (errors + (2 * math.pi * variance).log()).mean().item()
