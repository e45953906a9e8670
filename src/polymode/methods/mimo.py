"""MIMO: M subnetworks inside one network, each for one of M inputs that it takes at once.

    training:    L(θ) = Σ_m −log p(y_m | head_m(body(Σ_k W_k x_k + b))) + (λ / 2N) ‖θ‖²
    prediction:  p(y | x) ≈ (1/M) Σ_m p(y | head_m(body((Σ_k W_k) x + b)))

The first layer is widened to M concatenated inputs, W = (W_1, ..., W_M), and the last layer is M
heads. In a step the M inputs are of M batches in orders of their own, and head m learns the targets
of input m alone. L is one loss of one network, a mean over the batch: what members have in common
follows the sum of their losses. In prediction all inputs are the same, so that member m is the
network that was given, with the first weight Σ_k W_k, a body in common and its head.

`batch_repetition` r takes every example r times into a step, each time beside other ones;
`input_repetition` ρ is the share of rows whose M inputs are the same example.

Where paper and this differ: members have batches of their own by default, where the paper shuffles
one batch M times (`data_order="shared"`). W_m starts as the first layer of member m's own
initialisation over √M, so that what it adds up keeps its variance. Noise inside the network, such
as dropout, is one mask for all heads.
Limits: the members share the units of one network, so a small network has no room for several; all
but the heads, and so most of the prediction, is common to the members. A network whose inputs do
not all go through one trained linear or convolutional layer has no conversion.
Reference: M. Havasi, R. Jenatton, S. Fort, J. Z. Liu, J. Snoek, B. Lakshminarayanan, A. M. Dai,
    D. Tran, Training independent subnetworks for robust prediction, ICLR 2021.

Shapes: `M` modes, `B` batch, `R` = r B rows of a step, `K` network outputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from polymode.core.options import option
from polymode.core.rng import generator
from polymode.methods.batch_ensemble import finish
from polymode.methods.map import MAP, Info, add_noise
from polymode.methods.method import METHODS, Method, Problem
from polymode.nets.conversion import Conversion, conversion_of, joint
from polymode.nets.conversion.conversion import Sample
from polymode.stack import common
from polymode.stack.execution import in_layout_of, noise_of, streams_of
from polymode.stack.stack import Stack
from polymode.tracing.attention import plain_attention
from polymode.tracing.modules import Tensors
from polymode.training.loop import Batch
from polymode.training.optimiser import Optimization


@dataclass(frozen=True, kw_only=True)
class MIMO(MAP):
    """Options of `mimo`: those of `map`, with three members, and"""

    usual_modes = 3
    stops_together = True
    batch_repetition: int = option(
        1,
        ge=1,
        doc="how often a step sees each example of its batches, beside other ones each time",
        more="So many times the cost; the authors take 4 on CIFAR.",
    )
    input_repetition: float = option(
        0.0,
        ge=0,
        le=1,
        doc="share of a step's rows whose inputs are one example",
        more="0 makes members independent, 1 alike.",
    )


class State(NamedTuple):
    """What the next step needs.

    Attributes:
        stack: the networks that predict: in their first weight, held in common, is the sum of the
            parts. parts: W_m (M, out, in, ...), of the widened first layer.
    """

    stack: Stack
    optimization: Optimization
    parts: Tensor
    step: int


def convert(config: MIMO, num_modes: int, sample: Sample) -> Conversion | None:
    """Return which layer takes the inputs, and what members have in common."""
    return joint.plan(sample)


def init(config: MIMO, problem: Problem, stack: Stack) -> State:
    """Split the first weight into those of the inputs; the sum takes its place."""
    name, number = first_weight(stack), len(stack)
    given = stack.params.get(name, stack.frozen.get(name))
    assert given is not None
    start = given.detach()
    alike = torch.equal(start, start[:1].expand_as(start))  # networks with one first layer
    parts = (start / (number if alike else number**0.5)).clone().requires_grad_()
    common.take_in_common(stack, name, parts.detach().sum(0, keepdim=True))
    add_noise(config, problem, stack)
    rest = [leaf for n, leaf in stack.common.items() if n != name]
    leaves = [*stack.params.values(), *rest, parts, *stack.extra.values()]
    per_epoch = problem.steps_per_epoch
    total = config.total_steps(per_epoch)
    optimization = Optimization(config, leaves, per_epoch, total, len(stack.extra))
    return State(stack, optimization, parts, step=0)


def first_weight(stack: Stack) -> str:
    """Return the name of the first layer's weight."""
    conversion = conversion_of(stack.template)
    if conversion is None:
        raise ValueError(
            "mimo widens the first trained layer and has a last one for each member, but in this"
            " network they are one; take a network with a hidden layer, or deep_ensemble"
        )
    return joint.weight_of(conversion.numbers["first"])


def step(config: MIMO, problem: Problem, state: State, batch: Batch) -> tuple[State, Info]:
    """Take one step of the one network on M inputs at once."""
    stack, optimization, parts, number = state
    x, y = rows_of(config, batch, len(stack), problem.seed, number)
    losses = gradients(stack, parts, problem, x, y, number)
    losses = _add_prior(losses, optimization.leaves, config.prior_precision / problem.num_examples,
                        len(stack.extra))  # fmt: skip
    optimization.update(number)
    with torch.no_grad():
        stack.common[first_weight(stack)].copy_(parts.sum(0, keepdim=True))
    return State(stack, optimization, parts, number + 1), Info(losses)


def rows_of(
    config: MIMO, batch: Batch, num_modes: int, seed: int, number: int
) -> tuple[Tensor, Tensor]:
    """Return inputs and targets (M, R, ...) of a step: which M examples stand side by side.

    Member 0 keeps the order of its batch. The others shuffle what they see of a batch in common, or
    several times, but for the rows of equal inputs.
    """
    x, y, times = batch.x, batch.y, config.batch_repetition
    size = x.shape[1 if batch.own else 0]
    same = round(config.input_repetition * size * times)
    stream, order = generator(seed, "side by side", number), torch.arange(size).repeat(times)
    xs, ys = [], []
    for k in range(num_modes):
        rows = order
        if k > 0 and (times > 1 or not batch.own):
            others = same + torch.randperm(len(order) - same, generator=stream)
            rows = torch.cat([order[:same], order[others]])
        rows = rows.to(x.device)
        xs.append((x[k] if batch.own else x).index_select(0, rows))
        ys.append((y[k] if batch.own else y).index_select(0, rows))
        if k > 0 and same:
            xs[k] = torch.cat([xs[0][:same], xs[k][same:]])
            ys[k] = torch.cat([ys[0][:same], ys[k][same:]])
    return torch.stack(xs), torch.stack(ys)


def gradients(
    stack: Stack, parts: Tensor, problem: Problem, x: Tensor, y: Tensor, number: int
) -> Tensor:
    """Set `.grad` of all that is trained to that of Σ_m of the members' losses; return these (M,).

    Args:
        x, y: inputs and targets of the members, (M, R, ...).
    """
    name = first_weight(stack)
    named = {n: leaf for n, leaf in stack.common.items() if n != name}
    leaves = [*stack.params.values(), *named.values(), parts, *stack.extra.values()]
    losses = problem.likelihood.nll(outputs(stack, parts, x, number), y, stack.extra)
    grads = torch.autograd.grad(losses.sum(), leaves, allow_unused=True)
    for leaf, grad in zip(leaves, grads, strict=True):
        leaf.grad = torch.zeros_like(leaf) if grad is None else in_layout_of(leaf, grad)
    return losses.detach()


def outputs(stack: Stack, parts: Tensor, x: Tensor, number: int) -> Tensor:
    """Return the outputs (M, R, K) of the heads, each for all M inputs (M, R, ...), in one pass."""
    name = first_weight(stack)
    path = name.rpartition(".")[0]
    module = stack.network.template_in(stack.mode)
    layer = module.get_submodule(path)
    fixed = {n: t.detach()[0] for n, t in stack.frozen.items()} | common.rows(stack)
    buffers, spare = ({n: t[0].clone() for n, t in stack.buffers.items()} for _ in range(2))
    streams = streams_of(stack, x, True, number)
    with noise_of(streams and streams[:1], stacked=False), plain_attention():
        heads_of_first = {n: t[0] for n, t in stack.params.items()}
        before = _by_alias(stack, {**fixed, **heads_of_first, **spare})
        arrived = joint.arriving(
            layer, lambda: functional_call(module, before, (x.flatten(0, 1),), tie_weights=False)
        )
        bias = fixed.get(f"{path}.bias")
        hidden = joint.joined(layer, arrived.unflatten(0, x.shape[:2]), parts, bias)

        def one(heads: Tensors) -> tuple[Tensor, Tensors]:
            tensors = _by_alias(stack, {**fixed, **heads, **buffers})
            with joint.computing(layer, lambda _: hidden):
                out = functional_call(module, tensors, (x[0],), tie_weights=False)
            return out, {n: tensors[n] for n in buffers if tensors[n] is not buffers[n]}

        results, anew = vmap(one, randomness="same")(stack.params)
    _keep_buffers(stack, {n: anew[n][0] if n in anew else t for n, t in buffers.items()})
    return results  # type: ignore[no-any-return]


def _by_alias(stack: Stack, tensors: Tensors) -> Tensors:
    aliases = stack.network.aliases
    return {alias: value for name, value in tensors.items() for alias in aliases[name]}


@torch.no_grad()
def _keep_buffers(stack: Stack, buffers: Tensors) -> None:
    """Give all members the buffers of the pass."""
    for name, tensor in stack.buffers.items():
        tensor.copy_(buffers[name].expand_as(tensor))


@torch.no_grad()
def _add_prior(losses: Tensor, leaves: list[Tensor], strength: float, num_noise: int) -> Tensor:
    """Return the losses (M,) with (strength / 2) ‖θ‖² of the head and of what is in common; its
    gradient is added to `.grad`."""
    if not strength:
        return losses
    for leaf in leaves[: len(leaves) - num_noise]:
        assert leaf.grad is not None
        leaf.grad.add_(leaf, alpha=strength)
        losses = losses + 0.5 * strength * leaf.reshape(len(leaf), -1).square().sum(1)
    return losses


METHODS.register(
    "mimo",
    summary="subnetworks inside one network that takes several inputs at once, with a head each",
    kind="many modes",
    equation="p(y | x) ≈ (1/M) Σₘ p(y | headₘ(body(Σₖ Wₖ x)))",
    cost="1 to 2 × training, 1 to 1.5 × prediction; parameters of one network, first layers, heads",
    limits="Members share the units of one network, so a small network has no room for several, and"
    " learns more slowly than one.",
    paper="Havasi et al. 2021",
    bibtex="""@inproceedings{havasi2021training,
  title={Training Independent Subnetworks for Robust Prediction},
  author={Havasi, Marton and Jenatton, Rodolphe and Fort, Stanislav and Liu, Jeremiah Zhe and
    Snoek, Jasper and Lakshminarayanan, Balaji and Dai, Andrew M. and Tran, Dustin},
  booktitle={International Conference on Learning Representations}, year={2021}}""",
)(Method(MIMO, init, step, finish, convert=convert, uses_inputs=lambda config: True))
