"""What is known of methods, from their entries in the registry: lists, cards and citations."""

from __future__ import annotations

from typing import Any

from polymode.core.checks import check_call
from polymode.methods import METHODS


def list_methods(pattern: str = "*") -> list[str]:
    """Return the names of the registered methods that match the glob `pattern`, sorted.

    >>> list_methods("deep*")
    ['deep_ensemble']
    """
    check_call(list_methods, locals())
    return METHODS.names(pattern)


def cite(method: Any) -> str:
    """Return the BibTeX entry of a method.

    Args:
        method: its name, or something made with it: a `Posterior`, `Results`.

    >>> print(cite("map").splitlines()[0])
    @article{mackay1992practical,
    """
    check_call(cite, locals())
    name = method if isinstance(method, str) else getattr(method, "method", None)
    if not isinstance(name, str):
        raise ValueError(
            f"cite takes a method's name or a posterior, got a {type(method).__name__}"
        )
    return str(METHODS.get(name).metadata["bibtex"]).strip()


def card(name: str) -> dict[str, str]:
    """Return what a report says of a method; a method that is not registered has its name only."""
    if name not in METHODS.names():
        return {"name": name}
    facts = {key: str(value) for key, value in METHODS.get(name).metadata.items()}
    return {"name": name, **facts}
