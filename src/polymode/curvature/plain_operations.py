"""Layers of simple operations, where torch's own kernels lack derivatives or have wrong ones.

- `nn.LSTM` runs a kernel of oneDNN on a processor. Its derivative needs a workspace that
  `torch.func` does not hand on, and it has none in forward mode. All recurrent layers change
  tensors in place, which `vmap` refuses.
- The derivative of `F.prelu` under `vmap` mixes up the axes of several cotangents.
- `F.embedding` with a `padding_idx` has no gradient there backwards, but has one in forward mode:
  products with J and with its transpose would be those of two matrices.
- `F.multi_head_attention_forward` takes its projections apart inside, where nothing can look.
- Weight normalisation and `F.embedding_bag` have no derivative in forward mode.

Within `plain_operations` these are made of operations that have all derivatives. The context is of
one thread, and nothing else changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode


class plain_operations(TorchFunctionMode):
    """A context in which the functions above are computed in steps."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        make = _STEPS.get(getattr(func, "__name__", ""))
        result = None if make is None else make(*args, **kwargs)
        return func(*args, **kwargs) if result is None else result


def _prelu(input: Tensor, weight: Tensor) -> Tensor:
    if weight.numel() > 1:
        weight = weight.view(-1, *(1,) * (input.dim() - 2))
    return torch.where(input > 0, input, weight * input)


def _embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    *positional: Any,
    **further: Any,
) -> Tensor | None:
    if padding_idx is None or padding_idx < 0 or max_norm is not None or input.is_floating_point():
        return None  # a plain one, or torch.embedding, whose arguments have another order
    padded = (torch.arange(len(weight), device=weight.device) == padding_idx).unsqueeze(-1)
    return F.embedding(input, torch.where(padded, weight.detach(), weight))


def _embedding_bag(input: Tensor, weight: Tensor, *rest: Any, **further: Any) -> Tensor | None:
    mode = further.pop("mode", "mean")
    usual = not rest and all(
        value is None or value is False or name == "norm_type" for name, value in further.items()
    )
    if not usual or input.is_floating_point() or input.dim() != 2 or mode == "max":
        return None
    rows = F.embedding(input, weight)
    return rows.mean(1) if mode == "mean" else rows.sum(1)


def _weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    axes = [axis for axis in range(v.dim()) if axis != dim]
    return v * (g / v.square().sum(axes, keepdim=True).sqrt())


# ---------------------------------------------------------------- recurrent layers

Cell = Callable[[Tensor, Tensor, tuple[Tensor, ...]], tuple[Tensor, ...]]
"""(gates of the input, gates of the state, states) -> new states, the first is the output."""


def _long_short(gates: Tensor, back: Tensor, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    enter, forget, new, leave = (gates + back).chunk(4, -1)
    cell = forget.sigmoid() * states[1] + enter.sigmoid() * new.tanh()
    return leave.sigmoid() * cell.tanh(), cell


def _gated(gates: Tensor, back: Tensor, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    reset, update, new = gates.chunk(3, -1)
    back_reset, back_update, back_new = back.chunk(3, -1)
    new = (new + (reset + back_reset).sigmoid() * back_new).tanh()
    share = (update + back_update).sigmoid()
    return (share * states[0] + (1 - share) * new,)


def _recurrent(cell: Cell, *args: Any) -> tuple[Tensor, ...] | None:
    """Return what torch's recurrent functions do: outputs, and the last of each kind of state.

    None where sequences are packed or something is dropped.
    """
    if len(args) != 9 or type(args[3]) is not bool or (args[5] and args[6]):
        return None
    x, start, weights, biases, layers, _, _, bidirectional, batch_first = args
    starts = [start] if isinstance(start, Tensor) else list(start)
    ways = 2 if bidirectional else 1
    number = len(weights) // (layers * ways)
    below = x.transpose(0, 1) if batch_first else x  # (T, B, I)
    lasts: list[tuple[Tensor, ...]] = []
    for layer in range(layers):
        above = []
        for way in range(ways):
            place = layer * ways + way
            part = weights[place * number : (place + 1) * number]
            states = tuple(part[place] for part in starts)
            result, states = _direction(cell, below.flip(0) if way else below, states, part, biases)
            above.append(result.flip(0) if way else result)
            lasts.append(states)
        below = torch.cat(above, -1)
    outputs = below.transpose(0, 1) if batch_first else below
    return outputs, *(torch.stack(part) for part in zip(*lasts, strict=True))


def _direction(
    cell: Cell, x: Tensor, states: tuple[Tensor, ...], weights: Sequence[Tensor], biases: bool
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return what one direction of one layer gives at each step, and its last states."""
    into, back = weights[:2]
    bias, back_bias = weights[2:4] if biases else (None, None)
    projection = weights[-1] if len(weights) % 2 else None
    outputs = []
    for gates in F.linear(x, into, bias):
        states = cell(gates, F.linear(states[0], back, back_bias), states)
        if projection is not None:
            states = F.linear(states[0], projection), *states[1:]
        outputs.append(states[0])
    return torch.stack(outputs), states


def _step(
    cell: Cell,
    x: Tensor,
    states: Tensor | Sequence[Tensor],
    into: Tensor,
    back: Tensor,
    bias: Tensor | None = None,
    back_bias: Tensor | None = None,
) -> Tensor | tuple[Tensor, ...]:
    """Return what torch's functions of one step do: the new state, or for an LSTM both."""
    single = isinstance(states, Tensor)
    held = (states,) if isinstance(states, Tensor) else tuple(states)
    result = cell(F.linear(x, into, bias), F.linear(held[0], back, back_bias), held)
    return result[0] if single else result


def _plain(activation: Callable[[Tensor], Tensor]) -> Cell:
    return lambda gates, back, _: (activation(gates + back),)


_CELLS = {
    "lstm": _long_short,
    "gru": _gated,
    "rnn_tanh": _plain(torch.tanh),
    "rnn_relu": _plain(torch.relu),
}
_STEPS: dict[str, Callable[..., Any]] = {
    "prelu": _prelu,
    "embedding": _embedding,
    "embedding_bag": _embedding_bag,
    "_weight_norm": _weight_norm,
    **{name: partial(_recurrent, cell) for name, cell in _CELLS.items()},
    **{f"{name}_cell": partial(_step, cell) for name, cell in _CELLS.items()},
}


_NAMES = (
    "query key value embed_dim_to_check num_heads in_proj_weight in_proj_bias bias_k bias_v"
    " add_zero_attn dropout_p out_proj_weight out_proj_bias training key_padding_mask need_weights"
    " attn_mask use_separate_proj_weight q_proj_weight k_proj_weight v_proj_weight static_k"
    " static_v average_attn_weights is_causal"
).split()


def arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
    """Return the arguments of a call by name, or None where they are beyond `attention`."""
    named = dict(zip(_NAMES, args, strict=False)) | kwargs
    beyond = ("bias_k", "bias_v", "static_k", "static_v", "q_proj_weight", "k_proj_weight")
    if any(named.get(name) is not None for name in beyond) or named.get("add_zero_attn"):
        return None
    if named.get("use_separate_proj_weight") or named["query"].dim() != 3:
        return None
    return None if named.get("training") and named.get("dropout_p") else named


def attention(named: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
    """Return what `F.multi_head_attention_forward` returns: (T, B, E) and weights or None."""
    heads, weight, bias = named["num_heads"], named["in_proj_weight"], named["in_proj_bias"]
    inputs = [named[name] for name in ("query", "key", "value")]
    length, batch, width = inputs[0].shape
    if inputs[0] is inputs[1] is inputs[2]:
        parts = F.linear(inputs[0], weight, bias).chunk(3, -1)
    else:
        projected = [F.linear(part, weight, bias).chunk(3, -1) for part in inputs]
        parts = tuple(part[k] for k, part in enumerate(projected))
    q, k, v = (p.unflatten(-1, (heads, -1)).permute(1, 2, 0, 3) for p in parts)  # (B, H, T, d)
    scores = q @ k.transpose(-2, -1) * (width // heads) ** -0.5
    for mask in (_over_heads(named.get("attn_mask"), batch), _keys(named.get("key_padding_mask"))):
        if mask is not None:
            forbids = not mask.is_floating_point()
            scores = scores.masked_fill(mask, -torch.inf) if forbids else scores + mask
    weights = scores.softmax(-1)
    mixed = (weights @ v).permute(2, 0, 1, 3).flatten(2)
    out = F.linear(mixed, named["out_proj_weight"], named["out_proj_bias"])
    if not named.get("need_weights", True):
        return out, None
    return out, weights.mean(1) if named.get("average_attn_weights", True) else weights


def _over_heads(mask: Tensor | None, batch: int) -> Tensor | None:
    if mask is None or mask.dim() == 2:
        return mask
    return mask.unflatten(0, (batch, -1))


def _keys(mask: Tensor | None) -> Tensor | None:
    return None if mask is None else mask[:, None, None, :]
