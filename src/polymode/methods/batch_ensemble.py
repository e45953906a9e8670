"""BatchEnsemble: members that share one weight, each between vectors of its own.

    weight of member m:  W ∘ (s_m r_mᵀ),    p(y | x) ≈ (1/M) Σ_m p(y | f_m(x))

r and s are vectors over the inputs and outputs of a layer, ±1 or around 1 at the start
(`adapters`); biases and norms are a member's own too. A step follows, for what is a member's own,
the gradient of its own loss, and for W the mean of the members' gradients, as one network's whose
batch is divided among the members. The Gaussian prior of `prior_precision` is over W, once, and
over a member's own parameters but r and s, which have none, as published.

Where paper and this differ: every member has batches of its own by default, where the paper splits
one batch (`data_order="shared"` gives all of them the same one); embeddings have s alone.
Limits: rank-one factors change little of what W computes, so that members are alike; the paper's
gain over one network of the same training was not found again on small hardware by others.
Reference: Y. Wen, D. Tran, J. Ba, BatchEnsemble: an alternative approach to efficient ensemble and
    lifelong learning, ICLR 2020.

Shapes: `M` modes, `B` batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from polymode.core.options import option
from polymode.methods.map import MAP, Info, State, init
from polymode.methods.method import METHODS, Method, Problem
from polymode.nets.conversion import Conversion, rank_one
from polymode.nets.conversion.conversion import Sample
from polymode.posterior import Samples, Weights
from polymode.stack.stack import Stack
from polymode.training.loop import Batch

ADAPTERS = ("r", "s")


@dataclass(frozen=True, kw_only=True)
class BatchEnsemble(MAP):
    """Options of `batch_ensemble`: those of `map`, with four members, and"""

    usual_modes = 4
    stops_together = True
    adapters: str = option(
        "sign",
        choices=("sign", "normal"),
        doc="how the vectors r and s start",
        more="'sign' is ±1, 'normal' N(1, 0.5²).",
    )


def convert(config: BatchEnsemble, num_modes: int, sample: Sample) -> Conversion:
    """Return how the network gets its vectors."""
    start = config.adapters
    asked = rank_one.Adapters("batch_ensemble", start, start, start, own_heads=False)
    return rank_one.plan(sample, asked)


def step(config: MAP, problem: Problem, state: State, batch: Batch) -> tuple[State, Info]:
    """Take one step: members on their own losses, what they share on the mean of these."""
    stack, optimization, number = state
    loss = problem.likelihood.nll
    losses = stack.gradients(loss, batch.x, batch.y, own=batch.own, step=number)
    losses = add_prior(losses, stack, config.prior_precision / problem.num_examples)
    optimization.update(number)
    return State(stack, optimization, number + 1), Info(losses)


@torch.no_grad()
def add_prior(losses: Tensor, stack: Stack, strength: float) -> Tensor:
    """Return the losses (M,) with (strength / 2) ‖θ‖² of what a member has and shares, adapters
    left out; its gradient is added to `.grad`, for what is shared once."""
    losses = losses.detach()
    if not strength:
        return losses
    personal = [p for name, p in stack.params.items() if name.rpartition(".")[2] not in ADAPTERS]
    for leaf in (*personal, *stack.common.values()):
        if leaf.grad is not None:
            leaf.grad.add_(leaf, alpha=strength)
        losses = losses + 0.5 * strength * leaf.reshape(len(leaf), -1).square().sum(1)
    return losses


def finish(config: MAP, problem: Problem, state: State) -> Weights:
    """One network per mode; what they share is frozen from now on."""
    return Samples(state.stack.settled())


METHODS.register(
    "batch_ensemble",
    summary="networks that share one weight between rank-one factors of their own",
    kind="many modes",
    equation="p(y | x) ≈ (1/M) Σₘ p(y | f(x; W ∘ (sₘ rₘᵀ)))",
    cost="M × training, M × prediction; parameters of one network and a few vectors",
    limits="Rank-one factors change little of what the shared weight computes, so members are"
    " alike; its gain over one network was not found again by others on small hardware.",
    paper="Wen et al. 2020",
    bibtex="""@inproceedings{wen2020batchensemble,
  title={{BatchEnsemble}: An Alternative Approach to Efficient Ensemble and Lifelong Learning},
  author={Wen, Yeming and Tran, Dustin and Ba, Jimmy},
  booktitle={International Conference on Learning Representations}, year={2020}}""",
)(Method(BatchEnsemble, init, step, finish, convert=convert, uses_inputs=lambda config: True))
