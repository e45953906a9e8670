"""What is known of methods, from their entries in the registry: lists, cards and citations."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

from polymode.core.checks import check_call
from polymode.core.columns import left_table, terminal_width
from polymode.core.html import html_block, html_table
from polymode.methods import METHODS

_HEADER = ("method", "fit", "predict", "what it is")
_UNITS = "Times of `map` with the same network, measured with defaults (docs/which_method.md)"


class MethodNames(list[str]):
    """Names of methods; prints itself as a table with what each was measured to cost."""

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Return name, cost of fitting and of predicting, and summary of each."""
        return [(name, *_costs_of(name), METHODS.get(name).metadata["summary"]) for name in self]

    def __repr__(self) -> str:
        return f"{_UNITS}\n" + left_table(_HEADER, self.rows(), terminal_width())

    def _repr_html_(self) -> str:
        return html_block(_UNITS, html_table(_HEADER, self.rows(), left=True))


@cache
def measured_costs() -> dict[str, dict[str, float]]:
    """Return the times to fit and to predict in units of `map`'s, by method; written by
    docs/tables.py from results/defaults.json."""
    text = files("polymode.report").joinpath("costs.json").read_text("utf-8")
    return dict(json.loads(text))


def _costs_of(name: str) -> tuple[str, str]:
    measured = measured_costs().get(name, {})
    fit, predict = (measured.get(what) for what in ("fit", "predict"))
    return _times(fit), _times(predict)


def _times(value: float | None) -> str:
    return "–" if value is None else f"{value:g}×"


def list_methods(pattern: str = "*") -> MethodNames:
    """Return the names of the registered methods that match the glob `pattern`, sorted.

    The list prints itself as a table with the measured cost of each method.

    >>> sorted(list_methods("deep*"))
    ['deep_ensemble']
    """
    check_call(list_methods, locals())
    return MethodNames(METHODS.names(pattern))


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
