"""Names that users type, and what they stand for."""

from __future__ import annotations

import difflib
import fnmatch
import importlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


def suggest(name: str, options: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" for the option nearest to `name`, or an empty string.

    >>> suggest("deep_ensembel", ["map", "deep_ensemble"])
    " Did you mean 'deep_ensemble'?"
    """
    near = difflib.get_close_matches(str(name), list(options), n=1, cutoff=0.5)
    return f" Did you mean '{near[0]}'?" if near else ""


@dataclass(frozen=True)
class Entry(Generic[T]):
    """A registered object and its metadata for lists and reports."""

    name: str
    value: T
    metadata: dict[str, Any]


_tables: dict[str, Registry[Any]] = {}  # by kind, the latest of each


def metadata_of(kind: str, name: str) -> dict[str, Any]:
    """Return the metadata of a registered object; empty if it is not registered in this process."""
    table = _tables.get(kind)
    return table.get(name).metadata if table is not None and name in table else {}


class Registry(Generic[T]):
    """A table from names to objects of one `kind` ("method", "task", ...).

    Args:
        kind: for messages.
        modules: names of modules that register objects; imported at the first lookup.
    """

    def __init__(self, kind: str, modules: Sequence[str] = ()) -> None:
        self.kind = kind
        _tables[kind] = self
        self._modules = list(modules)
        self._entries: dict[str, Entry[T]] = {}

    def _all(self) -> dict[str, Entry[T]]:
        """Return all entries, once the modules that make them are imported."""
        for module in self._modules:
            importlib.import_module(module)
        self._modules = []
        return self._entries

    def register(self, name: str, **metadata: Any) -> Callable[[T], T]:
        """Return a decorator that enters its argument as `name`; a name can be taken once."""
        if name in self._entries:
            raise ValueError(f"{self.kind} '{name}' is registered already")

        def enter(value: T) -> T:
            self._entries[name] = Entry(name, value, metadata)
            return value

        return enter

    def get(self, name: str) -> Entry[T]:
        """Return the entry called `name`, or say which name is nearest."""
        if name not in self._all():
            raise ValueError(
                f"Unknown {self.kind} '{name}'.{suggest(name, self._all())}"
                f" Known: {', '.join(sorted(self._all())) or 'none'}."
            )
        return self._all()[name]

    def __contains__(self, name: object) -> bool:
        return name in self._all()

    def names(self, pattern: str = "*") -> list[str]:
        """Return the registered names that match the glob `pattern`, sorted."""
        return sorted(fnmatch.filter(self._all(), pattern))
