"""Kinds of weights by the names that files have for them, in any process.

Most kinds are in `posterior/weights.py`. One that belongs to a method is in the method's module,
which is imported when a file asks for it. What a file names is never imported, only what is listed
here; a kind of another package is known once its module, which enters it in `KINDS`, is imported.
"""

from __future__ import annotations

from importlib import import_module

from polymode.posterior.weights import KINDS, Weights

HOMES = {
    "concrete": "polymode.methods.concrete_dropout",
    "laplace": "polymode.methods.laplace.weights",
}


def kind_named(name: str) -> type[Weights] | None:
    """Return the kind of weights that files call `name`, None where it is not known."""
    if name not in KINDS and name in HOMES:
        import_module(HOMES[name])
    return KINDS.get(name)


def kind_names() -> list[str]:
    """Return the names of all kinds that files may hold."""
    return list(dict.fromkeys([*KINDS, *HOMES]))
