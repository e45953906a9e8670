"""Stacks of networks that also take shifts of what their embeddings return."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial

from torch import nn

from polymode.core.rows import Inputs, shapes_of, shapes_text
from polymode.stack.stack import Stack
from polymode.tracing.embeddings import embedded_shapes, shifted
from polymode.tracing.network import Network


def embeddings_of(stack: Stack, x: Inputs) -> dict[str, tuple[int, ...]]:
    """Return the embeddings that take identifiers of such inputs, with the shapes behind them."""

    def look(_: nn.Module) -> dict[str, tuple[int, ...]]:
        return embedded_shapes(stack.views.build(0, share=False).eval(), x)

    return stack.network.program(f"embeddings of {shapes_text(shapes_of(x))}", "eval", look)


def with_shifts(stack: Stack, paths: Sequence[str]) -> Stack:
    """Return networks in the same memory that take (inputs, a shift for each embedding named)."""
    name = f"embeddings as inputs: {', '.join(paths)}"
    if name not in stack.views.derived:
        change = partial(shifted, list(paths))
        body = stack.on(Network(change(copy.deepcopy(stack.template))))
        body._apart = {k: change(copy.deepcopy(m)) for k, m in stack._apart.items()}
        stack.views.derived[name] = body
    return stack.views.derived[name].set_mode(stack.mode, stack.pinned)
