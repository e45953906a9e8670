"""Which parameters have a posterior: those that require gradients, or those that are named."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

Choice = str | Callable[[nn.Module], list[str]] | None
LORA = r"(^|\.)(lora_|modules_to_save\.)"


def trained_names(module: nn.Module, trainable: Choice) -> list[str]:
    """Return the names of the parameters to train, in the module's order.

    Args:
        module: the first member.
        trainable: None for those that require gradients; "all"; "lora" for adapters of peft and
            what it trains beside them; a regular expression that is searched in names; or a
            function from the module to names.
    """
    if callable(trainable):
        return trainable(module)
    if trainable is None:
        return [name for name, p in module.named_parameters() if p.requires_grad]
    names = [name for name, p in module.named_parameters() if p.is_floating_point()]
    if trainable == "all":
        return names
    pattern = LORA if trainable == "lora" else trainable
    chosen = [name for name in names if re.search(pattern, name)]
    if not chosen:
        what = "adapters (names with 'lora_')" if trainable == "lora" else f"'{trainable}'"
        raise ValueError(
            f"`trainable` asks for {what}, but none of the network's {len(names):,} parameters has"
            f" such a name; it has {_examples(names)}"
        )
    return chosen


def check_trainable(trainable: Any) -> None:
    """Refuse what cannot be the option `trainable`."""
    if trainable is None:
        return
    if not isinstance(trainable, str) or not trainable:
        raise ValueError(
            "`trainable` must be 'all', 'head', 'lora', a regular expression of parameters' names,"
            f" or None, got {trainable!r:.60}"
        )
    try:
        re.compile(trainable)
    except re.error as error:
        raise ValueError(
            f"`trainable` is not a regular expression: {trainable!r:.60} ({error})"
        ) from None


def head_names(module: nn.Module, x: Tensor) -> list[str]:
    """Return the parameters of the layer whose result is the network's, seen in a pass over x."""
    results: list[tuple[str, Any]] = []
    hooks = [
        layer.register_forward_hook(
            lambda _layer, _inputs, out, path=path: results.append((path, out))
        )
        for path, layer in module.named_modules()
        if any(True for _ in layer.parameters())
    ]
    try:
        with _evaluating(module), torch.no_grad():
            output = module(x)
    finally:
        for hook in hooks:
            hook.remove()
    # inner layers return before those that hold them
    head = next((path for path, out in results if _is_same(out, output)), "")
    inside = {id(p) for p in module.get_submodule(head).parameters()}
    names = [name for name, p in module.named_parameters() if id(p) in inside]
    if not head and any(True for child in module.children() for _ in child.parameters()):
        raise ValueError(
            "`trainable` is 'head', but the network's result is not that of one layer with"
            " parameters; name the parameters by a regular expression instead: it has"
            f" {_examples(names)}"
        )
    return names


def _is_same(out: Any, output: Any) -> bool:
    """Whether a layer's result is the output, or the output a view of it."""
    if not (isinstance(out, Tensor) and isinstance(output, Tensor)):
        return False
    return out.data_ptr() == output.data_ptr() and out.numel() == output.numel()


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    """Put a network of the user's into evaluation mode, and back into the mode of each layer."""
    before = [(layer, layer.training) for layer in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for layer, training in before:
            layer.training = training


def _examples(names: list[str]) -> str:
    if not names:
        return "none"
    places = sorted({0, len(names) // 2, len(names) - 1})
    return ", ".join(f"'{names[place]}'" for place in places)
