"""One operation of a network's graph, as the rules of a walk see it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from polymode.symmetry.units import Value
from polymode.symmetry.walk import each_in


@dataclass
class Call:
    """One operation of the graph: what is called, labelled inputs, the unlabelled result.

    `uses_more_than_first` says whether the graph reads another part of a result than its first.
    """

    name: str
    token: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    data: Any
    uses_more_than_first: bool = True

    def values(self) -> Iterator[Value]:
        found: list[Value] = []
        each_in(
            (self.args, self.kwargs), lambda v: found.append(v) if isinstance(v, Value) else None
        )
        return iter(found)

    def get(self, name: str, place: int, default: Any) -> Any:
        """Return an argument by name or place."""
        return self.kwargs.get(name, self.args[place] if len(self.args) > place else default)
