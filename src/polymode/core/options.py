"""Options of a dataclass, declared once: default, range and meaning.

    @dataclass(frozen=True, kw_only=True)
    class SGHMC(Config):
        friction: float = option(0.1, gt=0, le=1, doc="share of the momentum that noise replaces")

What construction refuses, its messages, tables of options and the class's help follow from the
declarations and the annotations. A subclass that declares a field again changes what it states and
inherits the rest; a plain value changes the default.
"""

from __future__ import annotations

import dataclasses
import string
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from inspect import cleandoc, get_annotations
from typing import Any, ClassVar, TypeVar, cast

from polymode.core.checks import Rule, is_number, shown
from polymode.core.registry import suggest


def option(
    default: Any,
    *,
    gt: float | None = None,
    ge: float | None = None,
    lt: float | None = None,
    le: float | None = None,
    choices: Iterable[str] = (),
    rule: Rule | None = None,
    because: str = "",
    doc: str = "",
    more: str = "",
    none: str = "",
) -> Any:
    """Return a dataclass field with its declaration.

    Args:
        default: what holds if it is not given.
        gt, ge, lt, le: bounds of a number, or of an integer where the annotation is `int`.
        choices: names that it may be.
        rule: what it must be, in place of what annotation, bounds and choices say.
        because: why the range is what it is, for the message.
        doc: its meaning in one line.
        more: what else help says of it.
        none: what None does, such as "is half of all".
    """
    stated = {
        "gt": gt, "ge": ge, "lt": lt, "le": le, "choices": tuple(choices), "rule": rule,
        "because": because, "doc": doc, "more": more, "none": none,
    }  # fmt: skip
    return dataclasses.field(
        default=default, metadata={k: v for k, v in stated.items() if v not in (None, "", ())}
    )


@dataclass(frozen=True)
class Declaration:
    """What an option may be and means: the arguments of `option`, and

    Attributes:
        kinds: the types of its annotation.
    """

    kinds: tuple[Any, ...]
    gt: float | None = None
    ge: float | None = None
    lt: float | None = None
    le: float | None = None
    choices: tuple[str, ...] = ()
    rule: Rule | None = None
    because: str = ""
    doc: str = ""
    more: str = ""
    none: str = ""

    def admits(self, value: Any) -> bool:
        """Whether the option may have this value."""
        if value is None:
            return type(None) in self.kinds
        if isinstance(value, str) and self.choices:
            return value in self.choices
        if self.rule is not None:
            return bool(self.rule.holds(value))
        if isinstance(value, str):
            return str in self.kinds
        if isinstance(value, bool):
            return bool in self.kinds
        if isinstance(value, int | float):
            typed = float in self.kinds or (int in self.kinds and isinstance(value, int))
            return typed and is_number(value) and self._within(value)
        return Callable in self.kinds and callable(value)

    def _within(self, value: float) -> bool:
        return (
            (self.gt is None or value > self.gt)
            and (self.ge is None or value >= self.ge)
            and (self.lt is None or value < self.lt)
            and (self.le is None or value <= self.le)
        )

    @property
    def range(self) -> str:
        """Its bounds, such as "≥ 1" or "in (0, 1]", empty where there are none."""
        low = self.ge if self.gt is None else self.gt
        high = self.le if self.lt is None else self.lt
        if low is not None and high is not None:
            ends = "[" if self.gt is None else "(", "]" if self.lt is None else ")"
            return f"in {ends[0]}{low:g}, {high:g}{ends[1]}"
        return "" if low is None else f"{'≥' if self.gt is None else '>'} {low:g}"

    def requirement(self, value: Any) -> str:
        """Return what it must be, as the message about a wrong value says it."""
        if self.rule is not None and not (self.choices and isinstance(value, str)):
            return self.rule.text
        quoted = ", ".join(f"'{name}'" for name in self.choices)
        if float in self.kinds and self.rule is None:
            text = self.range or "a finite number"
            if self.choices:
                return f"{quoted} or a finite number {self.range}"
            if text.startswith("≥"):
                text = f"finite and {text}"
            return f"{text} or None" if type(None) in self.kinds else text
        if self.choices:
            unset = " or None" if type(None) in self.kinds else ""
            return quoted + unset if len(self.choices) == 1 else f"one of {', '.join(self.choices)}"
        if int in self.kinds:
            return "an integer" if self.ge is None else f"an integer of at least {self.ge:g}"
        if str in self.kinds:
            return "a text or None" if type(None) in self.kinds else "a text"
        return "True or False" if bool in self.kinds else self.allowed

    @property
    def allowed(self) -> str:
        """What it may be, as tables say it."""
        parts = [", ".join(self.choices)] if self.choices else []
        if self.range:
            parts.append(self.range)
        elif bool in self.kinds:
            parts.append("True, False")
        elif Callable in self.kinds:
            parts.append("a function" if self.choices else "a name or a function")
        elif self.rule is not None:
            parts.append(self.rule.text)
        unset = type(None) in self.kinds and not any("None" in part for part in parts)
        return " or ".join([*parts, *["None"] * unset])

    def meaning(self, unset: bool) -> str:
        """Return what it means, and what None does where it is `unset`."""
        return f"{self.doc}; None {self.none}" if unset and self.none else self.doc


class Config:
    """Base of frozen, keyword-only dataclasses whose fields are made by `option`.

    Attributes:
        rules: what must hold between options: messages, in which `{name}` is the class and
            `{config.lr}` a value, and tests of the whole. Those of the bases hold, too.
        declared: names of the fields that the class itself declares.
        called: how messages call the class; by default its name.
    """

    rules: ClassVar[tuple[Rule, ...]] = ()
    declared: ClassVar[tuple[str, ...]] = ()
    called: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        """Append the declared options to the class's help."""
        super().__init_subclass__()
        fields = {
            name: field
            for name, field in vars(cls).items()
            if isinstance(field, dataclasses.Field) and field.init
        }
        cls.declared = tuple(fields)
        texts = [_help(name, field.metadata) for name, field in fields.items()]
        if texts and cls.__doc__:
            cls.__doc__ = "\n".join([cleandoc(cls.__doc__), "", "Args:", *texts])

    def __post_init__(self) -> None:
        """Refuse what the declarations and the rules do not allow."""
        kind: type = type(self)
        name = self.called or kind.__name__
        for field, declaration in declarations(kind).items():
            value = getattr(self, field)
            if not declaration.admits(value):
                because = f" ({declaration.because})" if declaration.because else ""
                near = suggest(str(value), declaration.choices) if declaration.choices else ""
                raise ValueError(
                    f"`{field}` of {name} must be {declaration.requirement(value)}{because}, got"
                    f" {shown(value)}{near and '.' + near}"
                )
        for base in reversed(kind.__mro__):
            for rule in vars(base).get("rules", ()):
                if not rule.holds(self):
                    raise ValueError(_MESSAGES.format(rule.text, name=name, config=self))


class _Messages(string.Formatter):
    """Formats messages of rules, with the values of `{config.lr!r}` in one short line."""

    def convert_field(self, value: Any, conversion: Any) -> Any:
        return shown(value) if conversion == "r" else super().convert_field(value, conversion)


_MESSAGES = _Messages()


T = TypeVar("T", bound=Config)


def build(kind: type[T], what: str, options: Mapping[str, Any]) -> T:
    """Return options of a class, or refuse those it does not have, with the nearest name.

    Args:
        what: whose options they are, for the message.
    """
    names = list(declarations(cast(type, kind)))
    for name in options:
        if name not in names:
            listed = ", ".join(names) or "none"
            raise ValueError(
                f"Unknown option '{name}' for {what}.{suggest(name, names)} Options: {listed}"
            )
    return kind(**options)


def rule(text: str, holds: Callable[[Any], bool]) -> Rule:
    """Return what an option must be, or, among a class's `rules`, what must hold of its options."""
    return Rule(text, holds)


def belongs(field: str, **partner: Any) -> Rule:
    """Return the rule that an option keeps its default unless another has the value it needs.

    >>> belongs("rank", structure="low_rank").text
    "`rank` of {name} belongs to structure='low_rank', not to {config.structure!r}"
    """
    ((owner, value),) = partner.items()
    return Rule(
        f"`{field}` of {{name}} belongs to {owner}={value!r}, not to {{config.{owner}!r}}",
        lambda config: (
            getattr(config, field) == getattr(type(config), field)
            or getattr(config, owner) == value
        ),
    )


@cache
def declarations(kind: type) -> dict[str, Declaration]:
    """Return the declarations of a dataclass's fields; subclasses change what they state."""
    hints = typing.get_type_hints(kind)
    stated: dict[str, dict[str, Any]] = {
        field.name: {} for field in dataclasses.fields(kind) if field.init
    }
    for base in reversed(kind.__mro__):
        fields = getattr(base, "__dataclass_fields__", {})
        for name in get_annotations(base).keys() & stated.keys():
            stated[name] |= fields[name].metadata
    return {name: Declaration(_kinds(hints[name]), **facts) for name, facts in stated.items()}


def _kinds(hint: Any) -> tuple[Any, ...]:
    """Return the types of an annotation: those of a union, generic ones without their arguments."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return tuple(kind for part in typing.get_args(hint) for kind in _kinds(part))
    return (typing.get_origin(hint) or hint,)


def _help(name: str, facts: typing.Mapping[str, Any]) -> str:
    """Return the line of an option in the help of its class."""
    declaration = Declaration((), **facts)
    first = [declaration.doc, declaration.range or ", ".join(declaration.choices)]
    sentences = [", ".join(filter(None, first)), declaration.none and f"None {declaration.none}"]
    return f"    {name}: {'; '.join(filter(None, sentences))}. {declaration.more}".rstrip()
