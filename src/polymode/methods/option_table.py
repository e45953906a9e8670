"""The options of a method as a table: default, what is allowed, meaning.

Everything comes from the class of options: its fields, and the `Args` of its docstring and of those
it inherits from. So the table cannot tell another story than `help(pm.methods.FoRDE)`.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from polymode.core.checks import check_call
from polymode.core.columns import left_table, terminal_width
from polymode.core.html import html_block, html_table
from polymode.core.options import Passes
from polymode.methods.method import METHODS

_RANGE = re.compile(r",? ?(?:a number )?((?:≥|>|≤|<) -?[\d.]*\d|in [\[(][^\])]+[\])])(?! for)")
_CHOICE = re.compile(r'"(\w+)"')
_KINDS = {
    "tuple[float, float]": "two numbers",
    "Make": "a function",
    "Augment": "a name or a function",
    "Tensor": "a tensor",
}
_HEADER = ("option", "default", "allowed", "meaning")


@dataclass(frozen=True)
class Option:
    """One option of a method.

    Attributes:
        name: as `pm.fit` and `--set method.name=value` take it.
        default: what holds if it is not given.
        allowed: range or choices, as text.
        meaning: in one line.
    """

    name: str
    default: Any
    allowed: str
    meaning: str

    def cells(self) -> tuple[str, str, str, str]:
        """Return the row of a table."""
        default = self.default if isinstance(self.default, str) else _short(self.default)
        return self.name, default, self.allowed, self.meaning


@dataclass(frozen=True)
class Options:
    """The options of one method; prints itself as a table, `["lr"]` is one of them."""

    method: str
    entries: tuple[Option, ...]

    def __iter__(self) -> Iterator[Option]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, name: str) -> Option:
        for entry in self.entries:
            if entry.name == name:
                return entry
        raise KeyError(name)

    def __repr__(self) -> str:
        rows = [entry.cells() for entry in self.entries]
        return f"Options of {self.method}\n" + left_table(_HEADER, rows, terminal_width())

    def _repr_html_(self) -> str:
        rows = [entry.cells() for entry in self.entries]
        return html_block(f"Options of {self.method}", html_table(_HEADER, rows))


def options(method: str | type[Passes] | Passes) -> Options:
    """Return the options of a method, its own first; the value prints itself as a table.

    Args:
        method: a name (`pm.list_methods()`) or a class of options such as `pm.methods.FoRDE`. An
            object of such a class shows its values in place of the defaults.

    >>> options("forde")["fraction"]
    Option(name='fraction', default=1.0, allowed='in (0, 1]', meaning='part of each batch ...')
    """
    check_call(options, locals(), but=("method",))
    kind = method if isinstance(method, type) else type(method)
    if isinstance(method, str):
        name, kind, given = method, METHODS.get(method).value.config, None
    elif issubclass(kind, Passes):
        known = {METHODS.get(each).value.config: each for each in METHODS.names()}
        name, given = known.get(kind, kind.__name__), None if isinstance(method, type) else method
    else:
        raise ValueError(
            f"options takes a method's name such as 'forde', got a {type(method).__name__};"
            " see pm.list_methods()"
        )
    texts = _documented(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    rank = {name: place for place, name in enumerate(texts)}
    names = sorted(fields, key=lambda name: rank.get(name, len(rank)))
    return Options(name, tuple(_option(kind, fields[n], texts.get(n, ""), given) for n in names))


def _documented(kind: type) -> dict[str, str]:
    """Return what docstrings say of each option; the class itself goes before its parents."""
    texts: dict[str, str] = {}
    for each in kind.__mro__[:-1]:
        _, _, part = (inspect.cleandoc(each.__doc__ or "")).partition("Args:\n")
        for found in re.finditer(r"^    (\w+): (.+(?:\n        .+)*)", part, re.M):
            texts.setdefault(found[1], " ".join(found[2].split()))
    return texts


def _option(kind: type, field: dataclasses.Field[Any], text: str, given: Any) -> Option:
    default = field.default if given is None else getattr(given, field.name)
    if field.name == "num_modes" and default is None:
        default = getattr(kind, "usual_modes", None)
    return Option(field.name, default, _allowed(field, text), _meaning(text, default is None))


def _allowed(field: dataclasses.Field[Any], text: str) -> str:
    """Return the range or the choices that the text names."""
    if field.type == "bool":
        return "True, False"
    words = list(dict.fromkeys(_CHOICE.findall(text))) if "str" in str(field.type) else []
    found = _RANGE.search(text)
    parts = [", ".join(words)] if words else []
    if found and re.search("int|float", str(field.type)):
        parts.append(found[1])
    for word, shown in _KINDS.items():
        if word in str(field.type):
            parts.append(shown)
    if "None" in str(field.type):
        parts.append("None")
    return " or ".join(parts)


def _meaning(text: str, unset: bool) -> str:
    """Return the first thing that is said, without the range; and what None means, if it can be."""
    clauses = [part.strip() for part in re.split(r"; |(?<!e\.g)(?<!i\.e)\. |: ", text.rstrip("."))]
    said = clauses[1] if clauses[0].startswith("only ") else _RANGE.sub("", clauses[0]).strip(" ,")
    none = [part for part in clauses[1:] if part.startswith("None ")] if unset else []
    return "; ".join([said, *none[:1]])


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, tuple):
        return ", ".join(map(_short, value))
    return getattr(value, "__name__", None) or str(value)
