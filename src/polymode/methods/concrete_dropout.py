"""Concrete dropout: MC dropout whose rates are learned, one for each dropout layer and member.

    L(θ, a) = −Σ_n log p(y_n | f_θ(x_n, z_n)) + Σ_l [ λ/(2 (1 − p_l)) ‖W_l‖² − D_l H(p_l) ]
              + (λ/2) ‖all other parameters‖²,        p_l = sigmoid(a_l),  λ = `prior_precision`
    H(p) = −p log p − (1 − p) log(1 − p)

z are relaxed masks (`core/concrete.py`), differentiable with respect to the log-odds a_l; W_l are
the weights that multiply what layer l drops, and D_l is how many masks the layer draws for one
example: units before a dense layer, channels for `nn.Dropout2d`. The bracket is the divergence of
dropout's approximate posterior from the prior N(0, λ⁻¹ I) of the weights that act, M = θ/(1 − p),
because torch divides by the keep probability: (1 − p) λ/2 ‖M‖² = λ/(2 (1 − p)) ‖θ‖². A step follows
the gradient of L/N: the data push the rates down, the entropy pulls them towards 1/2 with a weight
D_l/N that fades with more data. With α > 0 the first term is that of `dropout`.

Rates begin where the network's `nn.Dropout` layers (also 1d, 2d, 3d) have theirs; the network
itself stays as it is, and `post.weights.rates` has what was learned. Other noise in the network,
such as functional dropout, stays on with its own rate. Log-odds are learned at the rate of learned
noise, 0.02 with Adam.

In other terms: the authors' code adds `weight_regularizer` ‖W‖²/(1 − p) − `dropout_regularizer`
D H(p) to a mean loss. For a mean of −log p these are λ/(2N) and 1/N; for a mean of (y − f)² with
precision τ they are λ/(τN) and 2/(τN), their l²/N and 2/N for τ = 1. They count channels for
convolutions, and add the p-dependent factor for biases too, which here have the plain prior.

Limits: masks are relaxed in predictions, too, so units are scaled rather than dropped; the weights
behind a layer are found in the network's graph through activations and flattening: where there are
none, a warning says so, and of the divergence only the entropy acts on the rate.
Reference: Y. Gal, J. Hron, A. Kendall, Concrete dropout, NeurIPS 2017.

Shapes: `M` modes, `L` samples per mode.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from polymode.core.concrete import dropout_layers, with_learned_rates
from polymode.core.options import option
from polymode.core.safe_files import TensorForm
from polymode.core.warn import warn
from polymode.methods.dropout import (
    Dropout,
    loss_of_passes,
    refuse_moving_buffers,
    warn_of_idle_alpha,
)
from polymode.methods.map import Info, add_noise
from polymode.methods.method import METHODS, Method, Problem
from polymode.posterior.weights import KINDS, Noisy
from polymode.stack.fast.passes import gradients_of_passes, part_of
from polymode.stack.stack import Stack
from polymode.tracing.calling import remove_hooks
from polymode.tracing.graph import trace
from polymode.tracing.modules import Tensors, set_mode
from polymode.tracing.network import Network
from polymode.tracing.noise import drawing
from polymode.tracing.operations import called, is_flatten, operation_at, repeat_rows
from polymode.training.loop import Batch
from polymode.training.optimiser import Optimization


@dataclass(frozen=True, kw_only=True)
class ConcreteDropout(Dropout):
    """Options of `concrete_dropout`: those of `dropout`, and"""

    relaxation: float = option(
        0.1,
        gt=0,
        doc="temperature t of the relaxed masks",
        more="The smaller, the nearer they are to 0 and 1, and the noisier the gradient of the"
        " rates. The paper's is 0.1.",
    )


class Layer(NamedTuple):
    """A dropout layer: the weights that multiply what it drops, and its masks per example, D_l."""

    weights: tuple[str, ...]
    num_masks: int


class State(NamedTuple):
    """What the next step needs; `odds` are log-odds (M,) by the paths of the layers."""

    stack: Stack
    optimization: Optimization
    step: int
    odds: Tensors


def init(config: ConcreteDropout, problem: Problem, stack: Stack) -> State:
    """Return the state before the first step; refuses a network without dropout layers."""
    rates = dropout_layers(stack.template)
    if not rates:
        raise ValueError(
            f"concrete_dropout learns the rates of nn.Dropout layers, but this"
            f" {type(stack.template).__name__} has none with a rate in (0, 1). Add nn.Dropout(0.1)"
            " between its layers (pm.nets.mlp and pm.nets.lenet take dropout=0.1)"
        )
    if stack.members_differ:
        raise ValueError(
            "concrete_dropout needs members that differ in tensors alone, but they differ in"
            f" {', '.join(stack.members_differ[:3])}; give them the same rates to begin with"
        )
    x = next(problem.inputs(config.batch_size))
    refuse_moving_buffers(stack, x)
    warn_of_idle_alpha(config)
    add_noise(config, problem, stack)
    like = {"dtype": stack.dtype, "device": stack.device}
    odds = {
        path: torch.full((stack.num_modes,), math.log(p / (1 - p)), **like).requires_grad_()  # type: ignore[call-overload]
        for path, p in rates.items()
    }
    layers_of(stack, x)
    leaves = [*stack.leaves(), *odds.values()]
    per_epoch = problem.steps_per_epoch
    total = config.total_steps(per_epoch)
    num_extra = len(stack.extra) + len(odds)
    return State(stack, Optimization(config, leaves, per_epoch, total, num_extra), 0, odds)


def step(
    config: ConcreteDropout, problem: Problem, state: State, batch: Batch
) -> tuple[State, Info]:
    """Take one step on L/N of every member."""
    stack, optimization, number, odds = state
    body = stack_with_rates(stack, odds, config.relaxation)
    loss = loss_of_passes(problem.likelihood, config.passes, config.alpha)
    how: dict[str, Any] = {"own": batch.own, "step": number}
    losses = gradients_of_passes(body, config.passes, loss, batch.x, batch.y, **how)
    if body.channels_last != stack.channels_last:  # their memory is one
        stack.lay_out(bool(body.channels_last))
    example = batch.x[0] if batch.own else batch.x
    leaves = [*stack.params.values(), *odds.values()]
    divergence = divergences(stack.params, odds, layers_of(stack, example), config.prior_precision)
    grads = torch.autograd.grad(divergence.sum() / problem.num_examples, leaves)
    with torch.no_grad():
        for leaf, grad in zip(leaves, grads, strict=True):
            assert leaf.grad is not None
            leaf.grad += grad
    losses = losses + divergence.detach() / problem.num_examples
    optimization.update(number)
    return State(stack, optimization, number + 1, odds), Info(losses)


def divergences(
    params: Mapping[str, Tensor],
    odds: Mapping[str, Tensor],
    layers: Mapping[str, Layer],
    prior_precision: float,
) -> Tensor:
    """Return Σ_l [λ/(2 (1 − p_l)) ‖W_l‖² − D_l H(p_l)] + (λ/2) ‖rest‖² of each member, (M,)."""
    behind = {name: path for path, layer in layers.items() for name in layer.weights}
    total = torch.zeros(())
    for name, tensor in params.items():
        square = 0.5 * prior_precision * tensor.reshape(len(tensor), -1).square().sum(1)
        if name in behind:
            square = square * (1 + odds[behind[name]].exp())  # 1/(1 − p)
        total = total + square
    for path, log_odds in odds.items():
        rate = log_odds.sigmoid()
        entropy = nn.functional.softplus(log_odds) - rate * log_odds  # of p and 1 − p
        total = total - layers[path].num_masks * entropy
    return total


def layers_of(stack: Stack, x: Tensor) -> dict[str, Layer]:
    """Return each dropout layer with its weights and masks, found once for an architecture."""
    return stack.network.program(
        "dropout layers", "train", lambda _: _layers(stack.views.build(0, share=False), x)
    )


def _layers(module: nn.Module, x: Tensor) -> dict[str, Layer]:
    paths = list(dropout_layers(module))
    module = set_mode(with_learned_rates(module, relaxation=0.1), "noisy")
    traced = trace(remove_hooks(copy.deepcopy(module)))  # as the user wrote it
    layers = {}
    for path in paths:
        weights = () if traced is None else _behind(path, *traced)
        layers[path] = Layer(weights, _masks(module, path, x))
    unseen = [path for path, layer in layers.items() if not layer.weights]
    if unseen:
        warn(
            f"no weights are known that multiply what the dropout layer '{unseen[0]}' drops"
            f" ({len(unseen)} of {len(layers)} layers): of the divergence from the prior only the"
            " entropy acts on its rate, which will be too large. Put nn.Dropout before a linear or"
            " convolutional layer",
        )
    return layers


def _behind(path: str, module: nn.Module, graph: fx.Graph) -> tuple[str, ...]:
    """Return the weights of linear and convolutional layers that take what a layer drops."""
    ahead = [node for node in graph.nodes if node.op == "call_module" and node.target == path]
    weights: dict[str, None] = {}
    while ahead:
        for user in ahead.pop().users:
            what, operation = called(user, module), operation_at(user, module)
            if isinstance(what, type) and issubclass(what, (nn.Linear, nn.Conv1d, nn.Conv2d)):
                weights[f"{user.target}.weight"] = None
            elif is_flatten(user, module) or (
                operation is not None and operation.entrywise and len(user.all_input_nodes) == 1
            ):
                ahead.append(user)
    return tuple(weights)


def _masks(module: nn.Module, path: str, x: Tensor) -> int:
    """Return how many masks a layer draws for one example, in all its calls."""
    layer = module.get_submodule(path)
    places: list[int] = []
    count = 0

    def after(*_: Any) -> None:
        nonlocal count
        count += sum(math.prod(shape) for shape in shapes[places.pop() :])

    with drawing() as shapes:
        before = layer.register_forward_pre_hook(lambda *_: places.append(len(shapes)))
        behind = layer.register_forward_hook(after)
        module(repeat_rows(x[:1], 2))
    before.remove()
    behind.remove()
    return count // 2


def stack_with_rates(stack: Stack, odds: Tensors, relaxation: float) -> Stack:
    """Return the stack with learned rates, in the same memory and mode."""
    name = f"learned rates, {relaxation:g}"
    if name not in stack.views.derived:
        network = stack.network.program(
            name,
            "eval",
            lambda _: Network(with_learned_rates(stack.views.build(0, share=False), relaxation)),
        )
        extra = {f"{path}.log_odds": log_odds for path, log_odds in odds.items()}
        stack.views.derived[name] = part_of(stack, network, extra)
    body: Stack = stack.views.derived[name]
    return body.set_mode(stack.mode, stack.pinned)


class Concrete(Noisy):
    """Networks whose random layers stay on, with rates of their own.

    Args:
        stack: one network per mode, with torch's dropout layers.
        samples_per_mode: L, ≥ 1.
        odds: log-odds (M,) of the rates, by the paths of the layers.
        relaxation: t of the masks.
    """

    kind = "concrete"

    def __init__(
        self, stack: Stack, samples_per_mode: int, odds: Tensors, relaxation: float
    ) -> None:
        super().__init__(stack, samples_per_mode)
        self.odds = {path: log_odds.detach() for path, log_odds in odds.items()}
        self.relaxation = relaxation

    @property
    def rates(self) -> Tensors:
        """The learned rates of each mode (M,), by the paths of the layers."""
        return {path: log_odds.sigmoid() for path, log_odds in self.odds.items()}

    @property
    def networks(self) -> Stack:
        return stack_with_rates(self.stack, self.odds, self.relaxation)

    def __getitem__(self, modes: slice) -> Concrete:
        odds = {path: log_odds[modes] for path, log_odds in self.odds.items()}
        return Concrete(self.stack[modes], self.samples_per_mode, odds, self.relaxation)

    def tensors(self) -> Tensors:
        return super().tensors() | {
            f"odds/{path}": log_odds for path, log_odds in self.odds.items()
        }

    def numbers(self) -> dict[str, Any]:
        return super().numbers() | {"relaxation": self.relaxation}

    @classmethod
    def layout(
        cls, stack: Stack, forms: Mapping[str, TensorForm], numbers: dict[str, Any]
    ) -> dict[str, TensorForm]:
        """Log-odds (M,) of every dropout layer."""
        relaxation = numbers["relaxation"]
        if type(relaxation) not in (int, float) or not 0 < relaxation < math.inf:
            raise ValueError(f"`relaxation` must be a number > 0, got {relaxation!r:.40}")
        form = TensorForm(stack.dtype, torch.Size([stack.num_modes]))
        return {f"odds/{path}": form for path in dropout_layers(stack.template)}

    @classmethod
    def restore(cls, stack: Stack, tensors: Tensors, numbers: dict[str, Any]) -> Concrete:
        odds = {name.removeprefix("odds/"): tensor for name, tensor in tensors.items()}
        return cls(stack, numbers["samples_per_mode"], odds, numbers["relaxation"])


KINDS[Concrete.kind] = Concrete


def finish(config: ConcreteDropout, problem: Problem, state: State) -> Concrete:
    """Return the networks with their noise on, at the learned rates."""
    return Concrete(state.stack, config.samples_per_mode, state.odds, config.relaxation)


METHODS.register(
    "concrete_dropout",
    summary="dropout whose rates are learned, one for each layer and member",
    kind="one mode",
    needs="noise",
    equation="L = −Σₙ log p(yₙ | f(xₙ, zₙ; θ)) + Σₗ λ/(2(1 − pₗ)) ‖Wₗ‖² − Dₗ H(pₗ),"
    "  z: relaxed masks of rates pₗ",
    cost="1 × training, L × prediction behind the noise",
    limits="Masks are relaxed, so units are scaled rather than dropped; one mode.",
    paper="Gal, Hron & Kendall 2017",
    bibtex="""@inproceedings{gal2017concrete,
  title={Concrete dropout}, author={Gal, Yarin and Hron, Jiri and Kendall, Alex},
  booktitle={Advances in Neural Information Processing Systems}, year={2017}}""",
)(Method(ConcreteDropout, init, step, finish))
