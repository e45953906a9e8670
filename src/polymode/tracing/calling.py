"""How a network is called with several inputs, and which tensor of its result is the output.

Wherever polymode calls a network, it is a function from one tensor or `Rows` to one tensor. Two
hooks make it so: before the forward method, `Rows` become its arguments; after it, one tensor is
picked from a dictionary, a tuple or a dataclass. A network of one tensor that returns one has no
hooks.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from polymode.core.registry import suggest
from polymode.core.rows import Rows, Shapes, is_one_shape, structure_of

Output = str | int | None
"""Name or place of the output in what a network returns; None: the tensor, or what is called
"logits"."""


class UnclearOutput(ValueError):
    """A network returns more than a tensor, and nothing says what counts."""


@dataclass(frozen=True)
class Calling:
    """How one network is called.

    Attributes:
        output: name or place of the output in what the network returns.
        as_one: whether its forward method takes the whole container as its one argument.
    """

    output: Output = None
    as_one: bool = False


class _Unpack:
    """Before the forward method: one `Rows` become arguments by name or by position."""

    def __init__(self, as_one: bool) -> None:
        self.as_one = as_one

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        if len(args) != 1 or kwargs or not isinstance(args[0], Rows):
            return None
        tree = args[0].tree
        if self.as_one:
            return (tree,), {}
        return ((), tree) if isinstance(tree, dict) else (tree, {})


class _Pick:
    """After the forward method: one tensor of the result."""

    def __init__(self, output: Output) -> None:
        self.output = output

    def __call__(self, module: nn.Module, args: Any, result: Any) -> Any:
        return pick(result, self.output)


def calling_for(module: nn.Module, shapes: Shapes, output: Output = None) -> Calling | None:
    """Return how a network takes inputs of these shapes, None for one tensor that gives another.

    Names that its forward method does not have, or lacks, are refused, unless it takes the whole
    container as one argument.
    """
    if is_one_shape(shapes):
        return None if output is None else Calling(output)
    structure = structure_of(shapes)
    try:
        signature = inspect.signature(module.forward)
    except (TypeError, ValueError):  # made by other means than Python
        return Calling(output)
    if _binds(signature, structure):
        return Calling(output)
    try:
        signature.bind(structure)
    except TypeError:
        raise ValueError(_misfit(module, signature, structure)) from None
    return Calling(output, as_one=True)


def _binds(signature: inspect.Signature, structure: Any) -> bool:
    try:
        if isinstance(structure, dict):
            signature.bind(**structure)
        else:
            signature.bind(*structure)
    except TypeError:
        return False
    return True


def _misfit(module: nn.Module, signature: inspect.Signature, structure: Any) -> str:
    """Say which inputs the forward method lacks or has besides those of the data."""
    who, parameters = f"forward of {type(module).__name__}", signature.parameters.values()
    names = [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    needed = [p.name for p in parameters if p.name in names and p.default is p.empty]
    if not isinstance(structure, dict):
        return (
            f"{who} takes {len(names)} inputs ({', '.join(names) or 'none'}), the data have"
            f" {len(structure)}: give as many, or name them in a dictionary"
        )
    missing = [name for name in needed if name not in structure]
    surplus = [name for name in structure if name not in names]
    what = (
        f"needs '{missing[0]}', which the data do not have"
        if missing
        else (
            f"does not take '{surplus[0]}'.{suggest(surplus[0], names)}"
            if surplus
            else "does not fit"
        )
    )
    return (
        f"{who} {what} ({len(missing)} missing, {len(surplus)} surplus). It takes"
        f" {', '.join(names) or 'nothing'}; the data have {', '.join(structure)}"
    )


def call_by(module: nn.Module, calling: Calling | None) -> nn.Module:
    """Give a network the hooks by which it takes `Rows` and gives one tensor; return it."""
    remove_hooks(module)
    if calling is not None:
        module.register_forward_pre_hook(_Unpack(calling.as_one), with_kwargs=True, prepend=True)
        module.register_forward_hook(_Pick(calling.output))
    return module


@contextmanager
def called_by(module: nn.Module, calling: Calling | None) -> Iterator[None]:
    """Give a network the hooks for a while."""
    call_by(module, calling)
    try:
        yield
    finally:
        remove_hooks(module)


def calling_of(module: nn.Module) -> Calling | None:
    """Return how a network is called, None where it has no hooks of ours."""
    picks = [hook for hook in module._forward_hooks.values() if isinstance(hook, _Pick)]
    unpacks = [hook for hook in module._forward_pre_hooks.values() if isinstance(hook, _Unpack)]
    return Calling(picks[0].output, unpacks[0].as_one) if picks and unpacks else None


def remove_hooks(module: nn.Module) -> nn.Module:
    """Take the hooks off again: users get their own network back."""
    for key in [k for k, hook in module._forward_hooks.items() if isinstance(hook, _Pick)]:
        del module._forward_hooks[key]
    for key in [k for k, hook in module._forward_pre_hooks.items() if isinstance(hook, _Unpack)]:
        del module._forward_pre_hooks[key]
        module._forward_pre_hooks_with_kwargs.pop(key, None)
    return module


def pick(result: Any, output: Output = None) -> Tensor:
    """Return one tensor of what a network returns, or say in one line which ones there are.

    >>> import torch
    >>> pick({"logits": torch.zeros(2), "loss": None})
    tensor([0., 0.])
    """
    if isinstance(result, Tensor):
        if output is None:
            return result
        raise UnclearOutput(f"output={output!r} names a part, but the network returns one tensor")
    return _parts(result)[output_name(result, output)]  # type: ignore[no-any-return]


def output_name(result: Any, output: Output = None) -> str | int:
    """Return under which name or at which place the output is in what a network returned."""
    parts = _parts(result)
    tensors = {key: part for key, part in parts.items() if isinstance(part, Tensor)}
    if output is not None and output in tensors:
        return output
    if output is None and "logits" in tensors:
        return "logits"
    if output is None and len(parts) == 1 and tensors:
        return next(iter(tensors))  # type: ignore[no-any-return]
    kind = type(result).__name__
    if not tensors:
        raise UnclearOutput(
            f"the network returns a {kind} without tensors; it must return one tensor (B, K)"
        )
    listed = ", ".join(f"{key!r} {tuple(part.shape)}" for key, part in list(tensors.items())[:6])
    which = "" if output is None else f" without {output!r}"
    raise UnclearOutput(
        f"the network returns a {kind}{which}, which holds {listed}; name the logits, such as"
        f" output={next(iter(tensors))!r}"
    )


def _parts(result: Any) -> dict[Any, Any]:
    """Return what a network returned by names, or by places."""
    if isinstance(result, Mapping):
        return dict(result)
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        return {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
    if isinstance(result, (tuple, list)):
        places = dict(enumerate(result))
        return places | {name: getattr(result, name) for name in getattr(result, "_fields", ())}
    return {}
