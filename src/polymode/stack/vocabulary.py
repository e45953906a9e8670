"""Identifiers without an embedding: torch says only that an index is out of range."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from polymode.core.rows import Inputs
from polymode.stack.stack import Stack


class _Beyond(Exception):
    """An embedding was asked for an entry that it does not have."""


def explain_ids(error: IndexError, stack: Stack, x: Inputs) -> None:
    """Raise in one line which embedding lacks which identifier, if that is why an index is out of
    range; return otherwise."""
    module = stack.views.build(0, share=False).eval()
    for path, layer in module.named_modules():
        if isinstance(layer, (nn.Embedding, nn.EmbeddingBag)):
            layer.register_forward_pre_hook(partial(_check, path))
    try:
        with torch.no_grad():
            module(x)
    except _Beyond as beyond:
        raise ValueError(str(beyond)) from error
    except Exception:  # something else is wrong with it, and the caller has its error
        return


def _check(path: str, layer: Any, args: Any) -> None:
    ids = args[0] if args else None
    if not isinstance(ids, Tensor) or not ids.numel():
        return
    least, most, size = int(ids.min()), int(ids.max()), layer.num_embeddings
    if least < 0 or most >= size:
        raise _Beyond(
            f"'{path}' of the network has {size:,} entries, 0 to {size - 1:,}, and the identifiers"
            f" that it gets lie in [{least:,}, {most:,}]: take the tokenizer that belongs to the"
            " network, give it more entries, or cut sequences to its positions"
        )
