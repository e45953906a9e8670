"""`F.multi_head_attention_forward` in steps whose projections are ordinary products.

torch's function takes its projections apart inside, where nothing can look. Here the packed matrix
of queries, keys and values is applied as a whole: three products where inputs differ, of which a
third each is kept.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_NAMES = (
    "query key value embed_dim_to_check num_heads in_proj_weight in_proj_bias bias_k bias_v"
    " add_zero_attn dropout_p out_proj_weight out_proj_bias training key_padding_mask need_weights"
    " attn_mask use_separate_proj_weight q_proj_weight k_proj_weight v_proj_weight static_k"
    " static_v average_attn_weights is_causal"
).split()


def arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
    """Return the arguments of a call by name, or None where they are beyond `attention`."""
    given = dict(zip(_NAMES, args, strict=False)) | kwargs
    beyond = ("bias_k", "bias_v", "static_k", "static_v", "q_proj_weight", "k_proj_weight")
    if any(given.get(name) is not None for name in beyond) or given.get("add_zero_attn"):
        return None
    if given.get("use_separate_proj_weight") or given["query"].dim() != 3:
        return None
    return None if given.get("training") and given.get("dropout_p") else given


def attention(given: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
    """Return what `F.multi_head_attention_forward` returns: (T, B, E) and weights or None."""
    heads, weight, bias = given["num_heads"], given["in_proj_weight"], given["in_proj_bias"]
    inputs = [given[name] for name in ("query", "key", "value")]
    length, batch, width = inputs[0].shape
    if inputs[0] is inputs[1] is inputs[2]:
        parts = F.linear(inputs[0], weight, bias).chunk(3, -1)
    else:
        whole = [F.linear(each, weight, bias).chunk(3, -1) for each in inputs]
        parts = tuple(each[k] for k, each in enumerate(whole))
    q, k, v = (p.unflatten(-1, (heads, -1)).permute(1, 2, 0, 3) for p in parts)  # (B, H, T, d)
    scores = q @ k.transpose(-2, -1) * (width // heads) ** -0.5
    for mask in (_over_heads(given.get("attn_mask"), batch), _keys(given.get("key_padding_mask"))):
        if mask is not None:
            forbids = not mask.is_floating_point()
            scores = scores.masked_fill(mask, -torch.inf) if forbids else scores + mask
    weights = scores.softmax(-1)
    mixed = (weights @ v).permute(2, 0, 1, 3).flatten(2)
    out = F.linear(mixed, given["out_proj_weight"], given["out_proj_bias"])
    if not given.get("need_weights", True):
        return out, None
    return out, weights.mean(1) if given.get("average_attn_weights", True) else weights


def _over_heads(mask: Tensor | None, batch: int) -> Tensor | None:
    if mask is None or mask.dim() == 2:
        return mask
    return mask.unflatten(0, (batch, -1))


def _keys(mask: Tensor | None) -> Tensor | None:
    return None if mask is None else mask[:, None, None, :]
