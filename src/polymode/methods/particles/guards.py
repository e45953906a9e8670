"""What repulsive methods refuse, and what they warn of."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from polymode.core.options import option
from polymode.core.rows import Inputs, leaves_of
from polymode.core.warn import warn
from polymode.distributed import ranks
from polymode.likelihoods.kinds import Likelihood
from polymode.stack.embedded import embeddings_of
from polymode.stack.stack import Stack
from polymode.training.loop import Batch, Divergence

SAME = "members are compared at the same inputs, so they share their batches"


def repulsion_weight(scaled: str = "the repulsion") -> Any:
    """Return the option `weight` of a repulsion, or of what else it scales."""
    return option(
        "batch",
        choices=("batch", "data"),
        ge=0,
        doc=f"w of {scaled} compared with the mean loss",
        more="'batch' is 1/B, as in the authors' code; 'data' is 1/N, the exact gradient flow,"
        " which is N/B times weaker.",
    )


def shared_order() -> Any:
    """Return the option `data_order` of methods that compare members at the same inputs."""
    return option("shared", choices=("shared",), because=SAME, doc=SAME, more="'own' is refused.")


def warn_of_coincident(stack: Stack) -> None:
    """Warn where two members start at the same weights: no repulsion can separate them."""
    equal = torch.ones(stack.num_modes, stack.num_modes, dtype=torch.bool, device=stack.device)
    for tensor in stack.params.values():
        rows = tensor.detach().reshape(len(tensor), -1)
        for k in equal.tril(-1).any(1).nonzero().flatten().tolist():
            equal[k] &= (rows == rows[k]).all(1)
    pairs = equal.tril(-1).nonzero().tolist()
    if pairs and stack.params:
        second, first = pairs[0]
        warn(
            f"members {first} and {second} start at the same weights, and repulsion cannot separate"
            " them: the force between coincident particles is 0. Give members of different"
            " initialisations",
        )


def check_shared(method: str, batch: Batch) -> None:
    """Refuse a batch with inputs of each member's own."""
    if batch.own:
        raise ValueError(f"{method} compares members at the same inputs; give Batch(own=False)")


def check_batch(method: str, likelihood: Likelihood, batch: Batch) -> None:
    """Refuse batches at which input gradients cannot be compared."""
    if batch.y is None:
        raise ValueError(
            f"{method} needs the targets of a batch, got None: the losses depend on them, and for"
            " classes so does the logit that is differentiated"
        )
    if likelihood.classification and batch.y.is_floating_point():
        raise ValueError(
            f"{method} takes labels as integers, got {batch.y.dtype}; give y.long(), or a"
            " likelihood of regression"
        )
    check_shared(method, batch)


def check_sources(method: str, stack: Stack, x: Inputs) -> None:
    """Refuse inputs without real numbers, of a network without an embedding that takes them."""
    if any(leaf.is_floating_point() for leaf in leaves_of(x)) or embeddings_of(stack, x):
        return
    types = ", ".join(sorted({str(leaf.dtype) for leaf in leaves_of(x)}))
    raise ValueError(
        f"{method} differentiates with respect to the inputs, but they are {types} and have no"
        " gradient, and the network has no nn.Embedding that takes them as they are, once. Give"
        " embedded inputs to a network that starts after its embedding, or take deep_ensemble,"
        " function_rde or weight_rde"
    )


def check_finite(losses: Tensor, values: Tensor, number: int) -> None:
    """Tell of input gradients that are not finite where losses are, on all ranks alike."""
    losses, values = ranks.gather(torch.stack([losses, values], 1)).unbind(1)
    if math.isfinite(values.sum().item()) or not torch.isfinite(losses).all():
        return
    member = int((~torch.isfinite(values)).nonzero()[0])
    raise Divergence(
        f"the repulsion of member {member} is {values[member].item()} at step {number:,}, though"
        " all losses are finite: an input gradient is not. Try a smaller learning rate or"
        " clip_norm=1.0, and look for square roots, norms or logarithms at 0 in the network"
    )
