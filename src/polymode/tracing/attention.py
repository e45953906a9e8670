"""Attention as matrix products and a softmax, instead of torch's fused kernels.

`F.scaled_dot_product_attention`, and through it `nn.MultiheadAttention` and
`nn.TransformerEncoderLayer`, run kernels of their own on a processor. These have no rule for `vmap`
(torch then goes member by member, with a warning) and no derivative in forward mode, and are
labelled random also where nothing is dropped. Within `plain_attention` torch takes its own
composite form, which has all of these. A loop over members without noise keeps the fused kernels.

The switch is torch's, and of the whole process: it is set while at least one context is open, in
whichever thread, and put back as it was by the last to close.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

_FUSED = ("attention", "transformer_encoder")


class plain_attention:
    """A context in which torch computes attention in steps."""

    _lock = threading.Lock()
    _open = 0
    _switch: AbstractContextManager[object] | None = None
    _quick_layers = True

    def __enter__(self) -> None:
        shared = type(self)
        with shared._lock:
            if shared._open == 0:
                shared._quick_layers = torch.backends.mha.get_fastpath_enabled()
                torch.backends.mha.set_fastpath_enabled(False)
                shared._switch = sdpa_kernel(SDPBackend.MATH)
                shared._switch.__enter__()
            shared._open += 1

    def __exit__(self, *error: object) -> None:
        shared = type(self)
        with shared._lock:
            shared._open -= 1
            if shared._open == 0 and shared._switch is not None:
                shared._switch.__exit__(None, None, None)
                torch.backends.mha.set_fastpath_enabled(shared._quick_layers)


def is_fused(operation: object) -> bool:
    """Whether an operation of ATen is one of the fused kernels.

    >>> is_fused(torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default)
    True
    """
    return any(word in str(operation) for word in _FUSED)
