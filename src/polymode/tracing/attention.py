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
        own = type(self)
        with own._lock:
            if own._open == 0:
                own._quick_layers = torch.backends.mha.get_fastpath_enabled()
                torch.backends.mha.set_fastpath_enabled(False)
                own._switch = sdpa_kernel(SDPBackend.MATH)
                own._switch.__enter__()
            own._open += 1

    def __exit__(self, *error: object) -> None:
        own = type(self)
        with own._lock:
            own._open -= 1
            if own._open == 0 and own._switch is not None:
                own._switch.__exit__(None, None, None)
                torch.backends.mha.set_fastpath_enabled(own._quick_layers)


def is_fused(operation: object) -> bool:
    """Whether an operation of ATen is one of the fused kernels.

    >>> is_fused(torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default)
    True
    """
    return any(word in str(operation) for word in _FUSED)
