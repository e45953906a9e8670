"""Arguments at the border: each is what the annotation of its parameter says, or is refused.

A public function begins with `check_call(function, locals())`. Types come from its annotations, and
ranges from those annotations that have one: `seed: Seed`, `level: Share`. So a wrong argument ends
in one line that names it, and not in a traceback of a library.
"""

from __future__ import annotations

import inspect
import math
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from polymode.core.registry import suggest

_LARGEST = 2**63 - 1  # what tensors and their sizes can hold
_SHOWN = 60


class Range(NamedTuple):
    """Numbers that an annotation allows, for `Annotated`."""

    text: str
    holds: Callable[[Any], bool]


class Meaning(NamedTuple):
    """What an argument is, in words that say more than its type, for `Annotated`."""

    text: str


Seed = Annotated[int, Range(">= 0", lambda number: number >= 0)]
Count = Annotated[int, Range(">= 1", lambda number: number >= 1)]
Many = Annotated[int, Range("of at most 1,000,000", lambda number: number <= 10**6)]
OnlyTensor = Annotated[Tensor, Range("of torch", lambda value: isinstance(value, Tensor))]
NumModes = Annotated[int, Range("from 1 to 1,000,000", lambda number: 1 <= number <= 10**6)]
Rows = Annotated[OnlyTensor, Range("with at least one row", lambda rows: len(rows) > 0)]
Images = Annotated[
    OnlyTensor,
    Range("and shape (N, C, H, W)", lambda given: given.dim() == 4 and given.is_floating_point()),
]
Shape = Annotated[
    Sequence[Count],
    Meaning("the shape of one example without the batch axis, such as (2,) or (1, 28, 28)"),
]
Probability = Annotated[float, Range("in [0, 1)", lambda number: 0 <= number < 1)]
Sizes = Annotated[Sequence[Count], Meaning("a sequence of integers >= 1, such as (64, 64)")]
Few = Annotated[int, Range("from 1 to 10,000", lambda number: 1 <= number <= 10_000)]
Share = Annotated[float, Range("in (0, 1)", lambda number: 0 < number < 1)]
Positive = Annotated[float, Range("> 0 and finite", lambda number: 0 < number < math.inf)]


class Rule(NamedTuple):
    """What an argument must be: in words, and as a test."""

    text: str
    holds: Callable[[Any], bool]


def check_call(
    function: Callable[..., Any], given: Mapping[str, Any], *, but: Sequence[str] = ()
) -> None:
    """Refuse arguments that are not what the annotations of `function` say.

    Args:
        function: a function, or a class whose annotated fields are its arguments.
        given: arguments by name, `locals()` at the beginning of its body.
        but: those that the function itself checks, with a remedy of its own.
    """
    for name, rule in _rules(function).items():
        if name in given and name not in but and not rule.holds(given[name]):
            raise ValueError(
                f"`{name}` of {_name(function)} must be {rule.text}, got {shown(given[name])}"
            )


def check_keywords(function: Callable[..., Any], what: str, options: Mapping[str, Any]) -> None:
    """Refuse options that are not keyword-only parameters of `function`, and ask for missing ones.

    Args:
        what: whose options they are, for the message.
    """
    parameters = inspect.signature(function).parameters.values()
    known = {p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY}
    for key in options:
        if key not in known:
            listed = ", ".join(known) or "none"
            raise ValueError(
                f"Unknown option '{key}' for {what}.{suggest(key, known)} Options: {listed}"
            )
    missing = [k for k, p in known.items() if p.default is p.empty and k not in options]
    if missing:
        raise ValueError(f"{what} needs the option{'s' * (len(missing) > 1)} {', '.join(missing)}")


def keyword_defaults(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the defaults of the keyword-only parameters of `function`."""
    parameters = inspect.signature(function).parameters.values()
    return {
        p.name: p.default
        for p in parameters
        if p.kind is p.KEYWORD_ONLY and p.default is not p.empty
    }


def _name(function: Callable[..., Any]) -> str:
    """Return the name by which users call it: that of its class for `__init__`."""
    return function.__qualname__.removesuffix(".__init__").rpartition(".")[2]


def as_numbers(name: str, values: Any) -> Tensor:
    """Return an array of numbers as a tensor, or say in one line why it is none."""
    try:
        tensor = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise ValueError(
            f"{name} must be numbers in a tensor or array, got {shown(values)}"
        ) from None
    if tensor.is_meta:
        raise ValueError(f"{name} must be numbers, got {shown(values)}")
    return tensor


def is_number(value: Any) -> bool:
    """Whether an option is a finite number, and not a truth value."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def shown(value: Any) -> str:
    """Return a value in one short line, as messages have it.

    >>> shown(torch.zeros(2, 3)), shown("x" * 100)[:5]
    ('a tensor of shape (2, 3) and type torch.float32', "'xxxx")
    """
    if isinstance(value, Tensor) and (value.dim() or value.is_meta):
        where = " without values (meta)" if value.is_meta else ""
        return f"a tensor of shape {tuple(value.shape)} and type {value.dtype}{where}"
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape} and type {value.dtype}"
    if isinstance(value, torch.nn.Module) or type(value).__repr__ is object.__repr__:
        return f"a {type(value).__name__}"
    text = " ".join(repr(value).split())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


@cache
def _rules(function: Callable[..., Any]) -> dict[str, Rule]:
    """Return the rules of parameters whose annotations have one."""
    rules = {name: _rule(hint) for name, hint in _hints(function).items() if name != "return"}
    return {name: rule for name, rule in rules.items() if rule is not None}


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Return annotations; those that name what is imported for type checkers alone are left out."""
    if inspect.isclass(function):
        parts: Iterable[Any] = reversed(function.__mro__)
    else:
        parts = [inspect.unwrap(function)]
    hints: dict[str, Any] = {}
    for part in parts:
        space = vars(sys.modules[part.__module__])
        for name, hint in inspect.get_annotations(part).items():
            try:
                hints[name] = eval(hint, space) if isinstance(hint, str) else hint
            except (NameError, TypeError, AttributeError):
                continue
    if inspect.isclass(function):
        return hints
    parameters = inspect.signature(function).parameters.values()
    single = {p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
    return {name: hint for name, hint in hints.items() if name in single}


def _rule(hint: Any) -> Rule | None:
    """Return the rule of an annotation, None where anything may be given."""
    if hint is None or hint is type(None):
        return Rule("None", lambda value: value is None)
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _in_range(_rule(parts[0]), parts[1:])
    if origin in (typing.Union, types.UnionType):
        return _any_of([_rule(part) for part in parts])
    if origin is typing.Literal:
        return Rule(" or ".join(map(repr, parts)), lambda value: value in parts)
    if origin is not None:
        return _container(origin, parts)
    if isinstance(hint, type) and hint not in (object, typing.Generic):
        if getattr(hint, "_is_protocol", False):
            return None
        return Rule(
            f"{_article(hint.__name__)} {hint.__name__}", lambda value: isinstance(value, hint)
        )
    return None


def _article(name: str) -> str:
    return "an" if name[0] in "AEIOUaeiou" else "a"


def _is_tensor(value: Any) -> bool:
    """Whether it is a tensor, whose rows are not things of their own."""
    return isinstance(value, Tensor)


def _in_range(rule: Rule | None, facts: Sequence[Any]) -> Rule | None:
    ranges = [fact for fact in facts if isinstance(fact, Range)]
    if rule is None:
        return None
    text = " ".join([rule.text, *(each.text for each in ranges)])
    text = next((fact.text for fact in facts if isinstance(fact, Meaning)), text)
    every = [rule.holds, *(each.holds for each in ranges)]
    return Rule(text, lambda value: all(holds(value) for holds in every))


def _any_of(rules: Sequence[Rule | None]) -> Rule | None:
    several = [rule for rule in rules if rule is not None]
    if len(several) < len(rules):
        return None
    texts = dict.fromkeys(rule.text for rule in several)
    return Rule(" or ".join(texts), lambda value: any(rule.holds(value) for rule in several))


def _container(origin: Any, parts: tuple[Any, ...]) -> Rule | None:
    if not isinstance(origin, type):
        return None
    if origin is type:
        return Rule("a class", lambda value: isinstance(value, type))
    if origin in (Callable, typing.get_origin(typing.Callable)):
        return _SIMPLE[Callable]
    if issubclass(origin, Mapping):
        rules = [_rule(part) for part in parts] or [None, None]
        return Rule("a dictionary", lambda value: _maps(value, rules))
    if origin is tuple and parts and parts[-1] is not Ellipsis:
        rules = [_rule(part) for part in parts]
        return Rule(
            "a pair" if len(parts) == 2 else f"{len(parts)} values",
            lambda value: _fits(value, rules),
        )
    if issubclass(origin, Sequence):
        rule = _rule(parts[0]) if parts else None
        what = "" if rule is None else f" (each {rule.text})"
        return Rule(f"a sequence{what}", lambda value: _each_fits(value, rule))
    name = origin.__name__.lower()
    return Rule(
        f"{_article(name)} {name}",
        lambda value: isinstance(value, origin) and not _is_tensor(value),
    )


def _items(value: Any) -> list[Any] | None:
    """Return the entries of a sequence or of a vector, None for other things."""
    if isinstance(value, (Tensor, np.ndarray)):
        plain = value.ndim == 1 and not (isinstance(value, Tensor) and value.is_meta)
        return value.tolist() if plain else None
    return (
        list(value) if isinstance(value, Sequence) and not isinstance(value, (str, bytes)) else None
    )


def _each_fits(value: Any, rule: Rule | None) -> bool:
    items = _items(value)
    return items is not None and (rule is None or all(map(rule.holds, items)))


def _fits(value: Any, rules: Sequence[Rule | None]) -> bool:
    items = _items(value)
    if items is None or len(items) != len(rules):
        return False
    return all(rule is None or rule.holds(item) for rule, item in zip(rules, items, strict=True))


def _maps(value: Any, rules: Sequence[Rule | None]) -> bool:
    if not isinstance(value, Mapping):
        return False
    return all(_fits(pair, rules) for pair in value.items())


def _is_integer(value: Any) -> bool:
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    return whole and abs(int(value)) <= _LARGEST


def _is_real(value: Any) -> bool:
    if isinstance(value, Tensor) and value.dim() == 0 and not value.is_meta:
        value = value.item()
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    return _is_integer(value) if isinstance(value, Integral) else True


def _is_array(value: Any) -> bool:
    """Whether it is numbers along one axis or more: a tensor, an array, or lists of numbers."""
    if isinstance(value, Tensor):
        return value.dim() > 0 and not value.is_meta and not value.is_complex()
    if isinstance(value, np.ndarray):
        return value.ndim > 0 and value.dtype.kind in "biuf"
    if isinstance(value, (list, tuple)):
        return len(value) > 0 and all(isinstance(v, (Real, Tensor)) or _is_array(v) for v in value)
    return False


_SIMPLE: dict[Any, Rule | None] = {
    Any: None,
    int: Rule("an integer", _is_integer),
    float: Rule("a number", _is_real),
    bool: Rule("True or False", lambda value: isinstance(value, (bool, np.bool_))),
    str: Rule("text", lambda value: isinstance(value, str)),
    Path: Rule("a path", lambda value: isinstance(value, Path)),
    Tensor: Rule("a tensor of real numbers", _is_array),
    Callable: Rule("a function", callable),
    Mapping: Rule("a dictionary", lambda value: isinstance(value, Mapping)),
    dict: Rule("a dictionary", lambda value: isinstance(value, dict)),
    torch.dtype: Rule("a torch.dtype such as torch.float64", lambda v: isinstance(v, torch.dtype)),
    torch.device: Rule("a torch.device", lambda value: isinstance(value, torch.device)),
}
