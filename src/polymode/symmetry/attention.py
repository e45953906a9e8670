"""Rule for torch's layer of attention, `nn.MultiheadAttention`.

    heads_h = softmax(Q_h K_h^T / sqrt(d)) V_h,    out = W_o [heads_1, ..., heads_g] + b_o

Within a head, features of queries and keys change places together and scale inversely; features of
values do so with the columns of W_o that read them. Heads change places as a whole. `E` features,
`g` heads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn

from polymode.symmetry.layers import along
from polymode.symmetry.units import Label, Value
from polymode.symmetry.walk import Walk


def attention(
    walk: Walk,
    token: str,
    layer: nn.MultiheadAttention,
    path: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    data: Any,
) -> Any:
    """Return the labelled result, or NotImplemented for options that are not known."""
    inputs = [
        walk.adopt(kwargs.get(n, args[k] if len(args) > k else None))
        for k, n in enumerate(("query", "key", "value"))
    ]
    known = {"query", "key", "value", "need_weights", "average_attn_weights"}
    plain = layer._qkv_same_embed_dim and layer.bias_k is None and not layer.add_zero_attn
    if not all(isinstance(x, Value) for x in inputs) or not plain or len(args) > 3:
        return NotImplemented
    if not set(kwargs) <= known or not kwargs.get("average_attn_weights", True):
        return NotImplemented
    size, heads = layer.embed_dim, layer.num_heads
    units, values = walk.moves.fresh(size), walk.moves.fresh(size)
    scales, value_scales = walk.scales.fresh(size), walk.scales.fresh(size)
    inverse = walk.scales.power(scales, -1)
    for features in (units, values):
        walk.mark(token, features.reshape(heads, -1))
    read = _rows([walk.channel(x, -1)[0] for x in inputs], size)
    read_scale = _rows([walk.scale_channel(x, -1) for x in inputs], size)
    written = np.concatenate([units, units, values])
    written_scale = np.concatenate([scales, inverse, value_scales])
    walk.place(
        f"{path}.in_proj_weight",
        "weight",
        {"out": (along(written, 0, 2), 0), "in": (read, 1)},
        {"out": (along(written_scale, 0, 2), 1), "in": (read_scale, -1)},
    )
    if layer.in_proj_bias is not None:
        walk.place(
            f"{path}.in_proj_bias", "bias", {"out": (written, 0)}, {"out": (written_scale, 1)}
        )
    out, out_scale = walk.moves.fresh(size), walk.scales.fresh(size)
    walk.place(
        f"{path}.out_proj.weight",
        "weight",
        {"out": (along(out, 0, 2), 0), "in": (along(values, 1, 2), 1)},
        {"out": (along(out_scale, 0, 2), 1), "in": (along(value_scales, 1, 2), -1)},
    )
    if layer.out_proj.bias is not None:
        walk.place(f"{path}.out_proj.bias", "bias", {"out": (out, 0)}, {"out": (out_scale, 1)})
    result, weights = data
    dim = result.dim()
    labelled = Value(result, [along(out, -1, dim)], along(out_scale, -1, dim))
    return labelled, None if weights is None else Value(weights)


def _rows(labels: list[Label], size: int) -> Label:
    """Return a label (3 E, E) of which each third of the rows reads other units."""
    return np.concatenate([np.broadcast_to(label, (size, size)) for label in labels])
