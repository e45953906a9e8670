"""Several inputs at once: the first layer adds up what it makes of M inputs, heads are M.

    h = Σ_m W_m x_m + b,    output of member m = head_m(body(h))

W = (W_1, ..., W_M) is the first layer widened to M concatenated inputs. The network itself stays
as it is: with M equal inputs its first weight is Σ_m W_m. Planned is which layer is the first, and
which parameters members have in common: all that is trained but the last layers.

Shapes: `M` modes, `B` batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.utils import parametrize

from polymode.core.text import first_line
from polymode.nets.conversion.conversion import (
    Conversion,
    Sample,
    last_layers,
    private,
    require_gradients,
)
from polymode.tracing.attention import plain_attention
from polymode.tracing.modules import Tensors, aliases_of
from polymode.tracing.network import without_values

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
FIRST = (nn.Linear, *CONVOLUTIONS)
LAST = (*FIRST, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


class _Arrived(Exception):
    """A pass reached a layer with these inputs, and goes no further."""

    def __init__(self, x: Tensor) -> None:
        super().__init__()
        self.x = x


@contextmanager
def computing(layer: nn.Module, forward: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Let a layer compute something else for a while."""
    vars(layer)["forward"] = forward
    try:
        yield
    finally:
        del vars(layer)["forward"]


def arriving(layer: nn.Module, call: Callable[[], Any]) -> Tensor:
    """Return what arrives at a layer in a call of the network; the rest of it is not computed."""

    def stop(x: Tensor) -> Tensor:
        raise _Arrived(x)

    try:
        with computing(layer, stop):
            call()
    except _Arrived as arrived:
        return arrived.x
    raise ValueError(
        "mimo widens the first layer of the network, but not all inputs go through the same one;"
        " take batch_ensemble or deep_ensemble"
    )


def joined(layer: Any, x: Tensor, weights: Tensor, bias: Tensor | None) -> Tensor:
    """Return what the widened layer makes of what arrives for M inputs, x (M, B, ...).

    Args:
        layer: linear or convolutional. weights: (M, out, in, ...). bias: (out,).
    """
    axis = x.dim() - 2 if isinstance(layer, nn.Linear) else 1  # of features, without that of M
    side_by_side = torch.cat(x.unbind(0), axis)
    weight = torch.cat(weights.unbind(0), 1)
    if isinstance(layer, nn.Linear):
        return F.linear(side_by_side, weight, bias)
    return layer._conv_forward(side_by_side, weight, bias)  # type: ignore[no-any-return]


def plan(sample: Sample) -> Conversion | None:
    """Return the first layer that is trained, and which parameters members have in common; None
    where that layer is the last one, too."""
    first = _first_layer(sample)
    last = last_layers(sample, LAST)
    if first in last:
        return None
    names = [name for name, _ in sample.module.named_parameters()]
    aliases = aliases_of(sample.module)
    heads = {n for n in names if n.rpartition(".")[0] in last and len(aliases[n]) == 1}
    if not heads & sample.trained:
        _refuse("its last layer is not trained, so that members would be one")
    _require_one_pass(sample, heads)
    common = [n for n in names if n in sample.trained - heads and n != weight_of(first)]
    return Conversion("joint", {"first": first, "common": common})


def weight_of(path: str) -> str:
    """Return the name of a layer's weight."""
    return f"{path}.weight".lstrip(".")


def _first_layer(sample: Sample) -> str:
    """Return the one layer through which all goes that trained layers see of the inputs."""
    calls: list[tuple[str, Any]] = []

    def look(path: str) -> Callable[[nn.Module, Any], None]:
        return lambda _layer, args: calls.append((path, args[0] if args else None))

    if not isinstance(sample.x, Tensor):
        _refuse("the network has several inputs")
    with private(sample) as module:
        hooks = [
            layer.register_forward_pre_hook(look(path))
            for path, layer in module.named_modules()
            if _is_layer(layer) and _is_trained(sample, path, layer)
        ]
        try:
            outputs = module(sample.x.clone())
        finally:
            for hook in hooks:
                hook.remove()
        require_gradients(outputs)
    if not calls:
        _refuse("no trained layer sees the inputs")
    _require_widening(sample, calls)
    return calls[0][0]


def _require_widening(sample: Sample, calls: list[tuple[str, Any]]) -> None:
    """Refuse a first layer that cannot take several inputs, or is not the only way for them."""
    first, x = calls[0]
    layer: Any = sample.module.get_submodule(first)
    if type(layer) not in FIRST or "weight" not in layer._parameters:  # a hook makes it of another
        kind = type(layer).__name__
        _refuse(f"'{first or kind}' ({kind}) comes first")
    weight = weight_of(first)
    if weight not in sample.trained:
        _refuse(f"the weight of '{first}', which comes first, is frozen")
    if sum(path == first for path, _ in calls) > 1:
        _refuse(f"'{first}' is called again")
    if len(aliases_of(sample.module).get(weight, [])) != 1:
        _refuse(f"the weight of '{first}' is tied to another layer's")
    if getattr(layer, "groups", 1) > 1:
        _refuse(f"'{first}' is a grouped convolution")
    if x is None or x.requires_grad or _passes_by(sample, layer):
        _refuse(f"the inputs do not all go through '{first}', which comes first")


def _is_layer(layer: nn.Module) -> bool:
    whole = isinstance(layer, nn.MultiheadAttention) or parametrize.is_parametrized(layer)
    return whole or bool(layer._parameters and not layer._modules)


def _is_trained(sample: Sample, path: str, layer: nn.Module) -> bool:
    names = (f"{path}.{name}".lstrip(".") for name, _ in layer.named_parameters())
    return any(name in sample.trained for name in names)


def _passes_by(sample: Sample, layer: nn.Module) -> bool:
    """Whether inputs reach the output on another way than through a layer."""
    assert isinstance(sample.x, Tensor)
    x = sample.x.clone().requires_grad_()
    plain = type(layer).forward
    with private(sample) as module:
        with computing(layer, lambda h: plain(layer, h).detach()):
            output = module(x * 1)  # which may be changed in place
        if not isinstance(output, Tensor) or not output.requires_grad:
            return False
        (grad,) = torch.autograd.grad(output.sum(), x, allow_unused=True)
    return grad is not None


def _require_one_pass(sample: Sample, heads: set[str]) -> None:
    """Refuse networks of which torch cannot compute all heads at once, with their gradients."""
    held = {**dict(sample.module.named_parameters()), **dict(sample.module.named_buffers())}
    two = {name: held[name].detach().expand(2, *held[name].shape) for name in heads}
    two = {name: tensor.clone().requires_grad_() for name, tensor in two.items()}

    def run(own: Tensors) -> Any:
        return functional_call(template, {**held, **own}, (sample.x.clone(),))

    with private(sample) as module, plain_attention():
        template = without_values(module)  # as a stack holds it
        try:
            vmap(run, randomness="same")(two).sum().backward()
        except RuntimeError as error:
            raise ValueError(
                "mimo computes all heads in one pass of torch.func.vmap, which this network does"
                f" not allow: {first_line(error)}; take deep_ensemble"
            ) from None


def _refuse(why: str) -> None:
    raise ValueError(
        "mimo widens the first layer of the network, a trained nn.Linear or convolution that all"
        f" inputs go through, but {why}; take batch_ensemble or deep_ensemble"
    )


def apply(module: nn.Module, numbers: Mapping[str, Any]) -> None:
    """Leave the network as it is: with equal inputs, members have its layers."""
