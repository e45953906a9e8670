r"""What the data tell about a Laplace posterior: its evidence, effective weights, pruned groups.

With γ the effective number of weights, Σ over a group of 1 − λ (H⁻¹)_ii, a group of the prior is
*pruned* if the data determine less than 0.001 of its weights: the prior determines it. A weight has
no curvature if its posterior variance is the prior's, (H⁻¹)_ii = 1/λ, within 1e-5. If this holds
for all weights of a subnetwork, predictions are the trained network's and `largest_change` is 0
(see `methods/laplace/subnetwork.py`).

Traps: the log evidence belongs to all training data, so only models of the same data compare; with
the evidence at the trained weights it belongs to no model (`methods/laplace/evidence.py`).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from polymode.examinations.examination import EXAMINATIONS
from polymode.examinations.findings import Findings, NotApplicable, measure
from polymode.methods.laplace.evidence import PRUNED, free_weights, masked_products
from polymode.methods.laplace.laplace_weights import LaplaceWeights
from polymode.methods.laplace.linear_model import Multiply, Tangent, distance
from polymode.methods.laplace.prior_groups import prior_groups
from polymode.methods.laplace.subnetwork import largest_change
from polymode.metrics.results import Row
from polymode.posterior import Posterior, Weights
from polymode.tasks import Task
from polymode.training.data import Data

MOST = 200  # test inputs, at most


@EXAMINATIONS.register(
    "evidence",
    summary="the evidence of a Laplace posterior, effective weights, groups that are pruned",
    measures={
        "log_evidence": "of all training data, mean over modes",
        "weights": "how many have a posterior",
        "effective_weights": "how many of them the data determine, mean over modes",
        "groups": "groups of weights with a prior precision of their own",
        "pruned_groups": "groups whose weights the prior alone determines, mean over modes",
        "no_curvature": "share of the weights whose posterior variance is the prior's",
        "closeness": "‖Jθ̃ − f‖ / ‖f‖ over the weights that have a posterior: 0 where h = Jθ and"
        " h = f + J(θ − θ̃) are one model",
        "span_distance": "how far f is from what Jθ reaches with weights no larger than θ̃: the"
        " evidence is that of h = f + J(θ − θ̃) above 0.001, of h = Jθ otherwise",
        "largest_change": "largest change of an output in 32 draws, compared with the network",
    },
)
def evidence(post: Posterior, task: Task) -> Findings:
    """Return the evidence and effective weights of a `laplace` or `laplace_map` posterior."""
    weights = post.weights.inner
    if not isinstance(weights, LaplaceWeights):
        raise NotApplicable(
            f"this posterior ({post.method}) is not a Laplace approximation, so it has no evidence;"
            " fit it with 'laplace' or 'laplace_map'"
        )
    kind = str(post.config.get("prior", "single"))
    every = prior_groups(weights.stack, kind if post.config.get("evidence", "linear") else "single")
    names = [name for block in weights.posteriors[0].blocks for name in block.names]
    groups = list(dict.fromkeys(every[name] for name in names))
    effective = np.zeros((weights.num_modes, len(groups)))
    precision = np.zeros_like(effective)
    total, idle = 0, 0.0
    for k, posterior in enumerate(weights.posteriors):
        for name, number in posterior.effective().items():
            effective[k, groups.index(every[name])] += float(number)
            precision[k, groups.index(every[name])] = float(posterior.precision[name])
        for block in posterior.blocks:
            variances = block.variances(posterior.precision)
            for name, size in zip(block.names, block.sizes, strict=True):
                relative = variances[name].double() * float(posterior.precision[name])
                idle += float((relative > 1 - 1e-5).sum())  # 0 outside of a subnetwork
                total += size
    modes, size = weights.num_modes, total // weights.num_modes
    pruned = (effective < PRUNED).sum(1).astype(float)
    rows = [
        measure("weights", size, n=1),
        measure("effective_weights", effective.sum(1).mean(), n=modes),
        measure("groups", len(groups), n=1),
        measure("pruned_groups", pruned.mean(), n=modes),
        measure("no_curvature", idle / total, n=total),
    ]
    if weights.log_evidence is not None:
        value = float(np.mean(weights.log_evidence))
        rows.insert(0, measure("log_evidence", value, unit="nats", n=modes))
    rows += _of_outputs(post, weights, task)
    return Findings(tuple(rows), {"precision": precision, "effective": effective})


def _of_outputs(post: Posterior, weights: LaplaceWeights, task: Task) -> list[Row]:
    """Return the measures at some test inputs, or training inputs without a test set."""
    x = _inputs(post.weights, task.test if task.test is not None else task.train)
    inputs = _inputs(post.weights, task.train)
    logits = task.likelihood.name == "categorical"
    models = [_model(weights, k) for k in range(weights.num_modes)]
    close = [_closeness(tangent, multiply, x) for tangent, multiply in models]
    far = [
        distance(m, t.point, t.slices, [(inputs, t.outputs(inputs))], logits=logits)
        for t, m in models
    ]
    with torch.no_grad():
        change = largest_change(weights.linearised(x))
    return [
        measure("closeness", float(np.mean(close)), n=len(x)),
        measure("span_distance", float(np.mean(far)), n=len(inputs)),
        measure("largest_change", change, n=len(x)),
    ]


@torch.no_grad()
def _inputs(weights: Weights, data: Data) -> Tensor:
    """Return some inputs as the linear model takes them."""
    moved = data.to(weights.stack.dtype, weights.stack.device)
    return weights.prepare(next(iter(moved.batches(MOST)))[0][:MOST])


def _model(weights: LaplaceWeights, k: int) -> tuple[Tangent, Multiply]:
    """Return the linear model of mode k over its free weights, and products with its Jacobian."""
    blocks = weights.posteriors[k].blocks
    names = {name for block in blocks for name in block.names}
    tangent = Tangent(weights.stack, k, names=[n for n in weights.stack.params if n in names])
    return tangent, masked_products(tangent, free_weights(blocks, tangent))[0]


def _closeness(tangent: Tangent, multiply: Multiply, x: Tensor) -> float:
    """Return ‖J θ̃ − f‖ / ‖f‖."""
    outputs = tangent.outputs(x).double()
    apart = multiply(tangent.point, x).double() - outputs
    return float(apart.norm() / outputs.norm().clamp_min(1e-150))
