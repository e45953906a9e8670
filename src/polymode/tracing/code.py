"""The code of a network as plain data, by which a result on disk is told from another network's.

Two networks may have the same layers and values and still compute something else: their forward
methods differ, a function that these call, or an attribute that steers them.
"""

from __future__ import annotations

import hashlib
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType
from typing import Any

from torch import nn

from polymode.tracing.graph import reached_by
from polymode.tracing.modules import plain_attributes


def network_mark(module: nn.Module) -> str:
    """Return a hash of all that a network computes with, besides its tensors."""
    attributes = [(name, _plain(value)) for name, value in sorted(plain_attributes(module).items())]
    facts = type(module).__qualname__, str(module), code_of(module), attributes
    return hashlib.blake2b(repr(facts).encode(), digest_size=12).hexdigest()


def code_of(module: nn.Module) -> list[Any]:
    """Return what a network's own classes are made of, compiled, the functions that these use and
    those that its modules hold; the same in every process."""
    classes = {base for part in module.modules() for base in type(part).__mro__}
    methods = [
        (base.__qualname__, name, _plain(method))
        for base in sorted(classes, key=lambda part: (part.__module__, part.__qualname__))
        if not _is_given(base)
        for name, method in vars(base).items()
        if isinstance(method, (FunctionType, staticmethod, classmethod, property))
    ]
    used = {
        repr((name, _plain(value)))
        for name, value in reached_by(module)
        if isinstance(value, FunctionType) and not _is_given(value)
    }
    held = [
        (path, name, _plain(value))
        for path, part in module.named_modules()
        for name, value in vars(part).items()
        if isinstance(value, (FunctionType, BuiltinFunctionType, MethodType, partial))
    ]
    return [*methods, *sorted(used), *held]


def _is_given(thing: Any) -> bool:
    """Whether it is torch's or Python's own."""
    return str(thing.__module__).partition(".")[0] in ("torch", "builtins")


def _plain(value: Any) -> Any:
    """Return code, or a constant of it, as what is the same in every process."""
    if isinstance(value, (staticmethod, classmethod, MethodType)):
        return _plain(value.__func__)
    if isinstance(value, property):
        return _plain(value.fget)
    if isinstance(value, partial):
        return _plain(value.func), _plain(value.args), _plain(tuple(sorted(value.keywords.items())))
    if isinstance(value, FunctionType):
        cells = [_content(cell) for cell in value.__closure__ or ()]
        inner = [_plain(part) for part in cells if isinstance(part, _SAID)]
        return _plain(value.__code__), inner, _plain(value.__defaults__)
    if isinstance(value, CodeType):
        return value.co_code, value.co_names, [_plain(part) for part in value.co_consts]
    if isinstance(value, frozenset):
        return sorted(map(repr, value))
    if isinstance(value, (tuple, list)):
        return [_plain(part) for part in value]
    if isinstance(value, BuiltinFunctionType):
        return value.__qualname__
    return repr(value) if isinstance(value, _SAID) else type(value).__qualname__


_SAID = (int, float, complex, str, bytes, bool, type(None), FunctionType, BuiltinFunctionType)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a name that has no value yet
        return None
