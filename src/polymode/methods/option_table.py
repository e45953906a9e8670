"""The options of a method as a table of default, allowed values and meaning."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from polymode.core.columns import left_table, terminal_width
from polymode.core.html import html_block, html_table
from polymode.core.options import Config, declarations
from polymode.methods.method import METHODS

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
        return html_block(f"Options of {self.method}", html_table(_HEADER, rows, left=True))


def options(method: str | type[Config] | Config) -> Options:
    """Return the options of a method, its own first; the value prints itself as a table.

    Args:
        method: a name (`pm.list_methods()`) or a class of options such as `pm.methods.FoRDE`. An
            object of such a class shows its values in place of the defaults.

    >>> options("forde")["fraction"]
    Option(name='fraction', default=1.0, allowed='in (0, 1]', meaning='part of each batch ...')
    """
    kind: type = method if isinstance(method, type) else type(method)
    if isinstance(method, str):
        name, kind = method, METHODS.get(method).value.config
    elif issubclass(kind, Config):
        names: dict[type, str] = {
            METHODS.get(entry).value.config: entry for entry in METHODS.names()
        }
        name = names.get(kind) or kind.called or kind.__name__
    else:
        raise ValueError(
            f"options takes a method's name such as 'forde', got a {type(method).__name__};"
            " see pm.list_methods()"
        )
    return Options(name, _entries(kind, method if isinstance(method, Config) else kind))


def _entries(kind: type, values: Any) -> tuple[Option, ...]:
    """Return the options of a class, its own first, with the values of an object or the class."""
    names = [option for base in kind.__mro__ for option in vars(base).get("declared", ())]
    rank = {name: place for place, name in reversed([*enumerate(names)])}
    declared = declarations(kind)
    entries = []
    for name in sorted(declared, key=lambda name: rank.get(name, len(rank))):
        default = getattr(values, name)
        if name == "num_modes" and default is None:
            default = getattr(kind, "usual_modes", None)
        meaning = declared[name].meaning(default is None)
        entries.append(Option(name, default, declared[name].allowed, meaning))
    return tuple(entries)


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, tuple):
        return ", ".join(map(_short, value))
    return getattr(value, "__name__", None) or str(value)
