"""Findings: the numbers of one examination, the arrays behind its figures, and the figures."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from polymode.core.checks import check_call
from polymode.core.html import html_block, html_table
from polymode.core.registry import Registry, suggest
from polymode.core.rows import Shapes, is_one_shape, shapes_text
from polymode.likelihoods.kinds import Likelihood
from polymode.metrics.results import EXAMINED, Results, Row, finite, title_of
from polymode.metrics.score import ARROWS
from polymode.metrics.text_table import align, decimals_for, number

DISPLAYS: Registry[Callable[..., Mapping[str, Any]]] = Registry(
    "figure of an examination",
    modules=[
        "polymode.examinations.plots",
        "polymode.chains.plots",
        "polymode.adversary.plots",
        "polymode.equivariance.plots",
    ],
)
"""By examination: (findings, label=, style=) -> its displays by name. The modules of figures
register them, and are imported on demand."""


def measure(
    metric: str,
    value: float | None,
    *,
    n: int,
    unit: str = "",
    direction: str = "",
    standard_error: float | None = None,
    note: str = "",
) -> Row:
    """Return one number of an examination.

    Args:
        metric: a name in words, joined by underscores. value: None where it does not apply.
        n: number of things measured. unit, direction: see `Row`.
        standard_error: over these things, None where it is not known.
        note: the reason why there is no value.
    """
    check_call(measure, locals())
    if not note and finite(value) is None:
        note = f"n/a ({'infinite' if value is not None and math.isinf(value) else 'undefined'})"
    return Row("", metric, finite(value), unit, direction, n, finite(standard_error), note)


@dataclass(frozen=True)
class Findings:
    """The result of one examination, or of one experiment.

    `findings["slope"]` is a `Row`. An examination returns rows and arrays; its caller sets the
    label.

    Attributes:
        rows: the numbers, from `measure`.
        arrays: the data of the figures, by name.
        label: the examination, with its options in the form of `--examine`.
    """

    rows: tuple[Row, ...]
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict, compare=False, repr=False)
    label: str = ""

    @property
    def name(self) -> str:
        """The examination without its options."""
        return self.label.partition(":")[0]

    def signed(self, label: str) -> Findings:
        """Return the findings under the label of their examination."""
        rows = tuple(row._replace(dataset=EXAMINED + label) for row in self.rows)
        names = [row.metric for row in rows]
        if len(set(names)) < len(names):
            raise ValueError(f"'{label}' has two numbers of one name: {', '.join(names)}")
        return dataclasses.replace(self, rows=rows, label=label)

    def __getitem__(self, metric: str) -> Row:
        for row in self.rows:
            if row.metric == metric:
                return row
        metrics = [row.metric for row in self.rows]
        near = suggest(metric, metrics)
        raise KeyError(f"no number '{metric}' in '{self.label}'.{near} Known: {', '.join(metrics)}")

    def displays(self, **look: Any) -> dict[str, Any]:
        """Return the figures by name, none where the examination has none.

        Args:
            look: `label`, whose figures they are, and `style`, see `plots.Style`.
        """
        if self.name not in DISPLAYS:
            return {}
        return dict(DISPLAYS.get(self.name).value(self, **look))

    def beside(self, results: Results) -> Results:
        """Return results of the same posterior that have these findings, for tables and reports."""
        rows = [row for row in results.rows if row.dataset != EXAMINED + self.label]
        arrays = {**results.arrays, self.label: self.arrays}
        return results.replace(rows=(*rows, *self.rows), arrays=arrays)

    def table(self) -> str:
        """Return the numbers as text."""
        head, *lines = self._lines()
        return f"{self.label}\n{align(head, lines)}"

    def _repr_html_(self) -> str:
        """Return the numbers as a table, for notebooks."""
        head, *lines = self._lines()
        return html_block(f"Findings: {self.label}", html_table(head, lines))

    def _lines(self) -> list[tuple[str, ...]]:
        lines: list[tuple[str, ...]] = [("measure", "value", "unit", "n")]
        for row in self.rows:
            digits = decimals_for([row.value], [row.standard_error])
            text = number(row.value, row.standard_error, digits, row.note)
            title = f"{title_of(row.metric)} {ARROWS[row.direction]}".rstrip()
            lines.append((title, text, row.unit, f"{row.n:,}"))
        return lines


class NotApplicable(ValueError):
    """An examination does not apply to a posterior; a run continues without it."""


def require_one_input(what: str, shapes: Shapes) -> None:
    """Refuse networks of several inputs, for examinations that move or draw one tensor."""
    if not is_one_shape(shapes):
        raise NotApplicable(
            f"{what}, and these networks take several: {shapes_text(shapes)}. Wrap the network in"
            " one that takes one tensor apart"
        )


def require_one_target(what: str, likelihood: Likelihood) -> None:
    """Refuse predictions at positions, for examinations of one target per example."""
    if likelihood.num_axes:
        raise NotApplicable(
            f"{what} has one target per example, and this posterior predicts at positions (pixels,"
            " tokens, labels)"
        )


def findings_of(results: Results) -> dict[str, Findings]:
    """Return the findings of the examinations in results, by label."""
    check_call(findings_of, locals())
    rows: dict[str, list[Row]] = {}
    for row in results.rows:
        if row.dataset.startswith(EXAMINED):
            rows.setdefault(row.dataset.removeprefix(EXAMINED), []).append(row)
    return {
        label: Findings(tuple(group), results.arrays.get(label, {}), label)
        for label, group in rows.items()
    }
