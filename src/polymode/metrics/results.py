"""Results: every number of one evaluation, with unit, direction, n and standard error.

Data sets are named "test", "shift:NAME:SEVERITY", "ood:NAME" and "val:NAME:SEVERITY"; numbers about
the posterior itself are filed under their examination, "examined:NAME".
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from polymode.core.html import html_block, html_details, html_facts, html_table
from polymode.core.registry import Entry, suggest
from polymode.core.text import parse_json
from polymode.metrics.by_image import ByImage
from polymode.metrics.score import (
    ARROWS,
    FAMILIES,
    SCOD_CLASSIFICATION,
    TABLES,
    Score,
    score_of,
    table_of,
)
from polymode.metrics.text_table import align, decimals_for, number
from polymode.prediction import Prediction

SCHEMA = 2  # 1 had no near_ood, target_scale and memory
EXAMINED = "examined:"  # prefix of the data sets of examinations


class NewerSchema(ValueError):
    """Results written by a newer release."""


class Row(NamedTuple):
    """One number.

    Attributes:
        dataset: "test", "shift:NAME:SEVERITY", "ood:NAME" or "examined:NAME".
        metric: its registered name, or its name in an examination.
        value: None where the metric does not apply; `note` then says why.
        unit, direction: "up" or "down" is better, "" if neither.
        n: examples. standard_error: over examples, None where it is not known.
    """

    dataset: str
    metric: str
    value: float | None
    unit: str
    direction: str
    n: int
    standard_error: float | None
    note: str = ""


class Cost(NamedTuple):
    """Cost of a posterior.

    Attributes:
        num_modes: number of trained networks. parameters: of all of them together.
        num_samples: number of networks in a prediction, `samples_per_mode` of each mode.
        predict_seconds: wall time of predicting `predict_examples` inputs, all scored sets.
        train_seconds: wall time of the fit, None if it was not measured.
        memory_bytes: of the posterior's parameters and buffers, None in results from before 0.2.
    """

    num_modes: int
    num_samples: int
    parameters: int
    predict_seconds: float
    predict_examples: int
    train_seconds: float | None = None
    memory_bytes: int | None = None


class Kept(NamedTuple):
    """A stored prediction, with its targets and inputs where figures need them."""

    prediction: Prediction
    targets: Tensor | None = None
    inputs: Tensor | None = None


@dataclass(frozen=True)
class Results:
    """The numbers of one posterior on one task, as `evaluate` returns them.

    `results["test", "nll"]` is a `Row`. `kept` has the predictions by data set, so that any other
    metric or figure can be computed from them; it is not part of the JSON.

    Attributes:
        task, method, net: names. seed: of the fit. config: the method's options.
        rows: the numbers. cost: see `Cost`.
        near_ood: names of the OOD sets that are near to the training data; the others are far.
        target_scale: D standard deviations that the "standardised" numbers are divided by.
        label: its name in tables; by default the method, with the options that distinguish it.
        data: fingerprints of the data sets, by name; empty in results from before 0.2.
        class_names: in the order of the labels; empty where the task has none.
        columns: of a table: name, kind and categories of each; empty where inputs are arrays.
        arrays: by examination, the arrays its figures need; not part of the JSON. "pixels" has the
            bins of confidence over pixels by group of images, (G, C, 15, 3).
    """

    task: str
    method: str
    net: str
    seed: int
    config: dict[str, Any]
    rows: tuple[Row, ...]
    cost: Cost
    near_ood: tuple[str, ...] = ()
    target_scale: tuple[float, ...] | None = None
    label: str = ""
    data: Mapping[str, str] = field(default_factory=dict, repr=False)
    class_names: tuple[str, ...] = field(default=(), repr=False)
    columns: tuple[tuple[str, str, list[str]], ...] = field(default=(), repr=False)
    kept: Mapping[str, Kept] = field(default_factory=dict, compare=False, repr=False)
    arrays: Mapping[str, Mapping[str, np.ndarray]] = field(
        default_factory=dict, compare=False, repr=False
    )
    by_image: Mapping[str, ByImage] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def _rows(self) -> dict[tuple[str, str], Row]:
        return {(row.dataset, row.metric): row for row in self.rows}

    def get(self, dataset: str, metric: str) -> Row | None:
        """Return a row, or None if there is none."""
        return self._rows.get((dataset, metric))

    def __getitem__(self, key: tuple[str, str]) -> Row:
        if key in self._rows:
            return self._rows[key]
        if not (isinstance(key, tuple) and len(key) == 2):
            raise KeyError(
                f'results are asked by data set and metric, ["test", "nll"]; got {key!r}'
            )
        dataset, metric = key
        if dataset not in self.datasets:
            near = suggest(dataset, self.datasets)
            raise KeyError(f"no data set '{dataset}' in these results.{near}")
        metrics = [row.metric for row in self.rows if row.dataset == dataset]
        raise KeyError(f"no metric '{metric}' for '{dataset}'.{suggest(metric, metrics)}")

    def score(self, dataset: str, metric: str) -> Score:
        """Compute any registered metric from the kept predictions, with its parts in `each`.

        Args:
            dataset: "test", "shift:NAME:SEVERITY" or "ood:NAME"; its prediction must be kept.
            metric: a registered name, also one that was not evaluated.
        """
        if dataset not in self.kept:
            names = ", ".join(self.kept) or "none"
            raise ValueError(
                f"the prediction of '{dataset}' was not kept.{suggest(dataset, self.kept)}"
                f" Kept: {names}; see `keep` of pm.evaluate"
            )
        stored = self.kept[dataset]
        table = table_of(stored.prediction, metric)
        if table.kind.startswith("OOD") or table is SCOD_CLASSIFICATION:
            if "test" not in self.kept or not dataset.startswith("ood:"):
                raise ValueError(
                    f"'{metric}' sets an OOD set against the test set, got '{dataset}';"
                    " both predictions must be kept"
                )
            test = self.kept["test"]
            return score_of(
                table.get(metric), test.prediction, stored.prediction, labels=test.targets
            )
        return score_of(table.get(metric), stored.prediction, stored.targets, self.target_scale)

    @cached_property
    def datasets(self) -> list[str]:
        """The data sets, in the order of scoring."""
        return list(dict.fromkeys(row.dataset for row in self.rows))

    def __repr__(self) -> str:
        test_rows = [row for row in self.rows if row.dataset == "test" and row.value is not None]
        numbers = ", ".join(
            f"{row.metric}={row.value:.4g}" for row in test_rows if is_headline(row.metric)
        )
        sets = f"{len(self.datasets)} data sets"
        return f"Results({self.method} on {self.task}, seed {self.seed}: {numbers}; {sets})"

    def table(self, *, full: bool = False) -> str:
        """Return the scores as text, ± one s.e. over examples; arrows point to better.

        Args:
            full: every metric, one block per family; by default those of a leaderboard.
        """
        head = f"{self.method} on {self.task}, seed {self.seed}: ± is one s.e. over the n examples"
        blocks: list[str] = []
        for outside in (False, True):
            rows = self._scores(outside)
            if not full:
                blocks.append(self._block([row for row in rows if is_headline(row.metric)]))
                continue
            for family, title in FAMILIES.items():
                family_rows = [row for row in rows if family_of(row.metric) == family]
                blocks += [f"{title}\n{self._block(family_rows)}"] if family_rows else []
        return "\n\n".join([head, *filter(None, blocks)])

    def _repr_html_(self) -> str:
        """Return the headline numbers as tables, for notebooks."""
        tables = []
        for outside in (False, True):
            rows = self._scores(outside)
            if lines := self._lines([row for row in rows if is_headline(row.metric)]):
                tables.append(html_table(lines[0], lines[1:]))
        options = html_details("options", html_facts({"net": self.net, **self.config}))
        title = f"{self.method} on {self.task}, seed {self.seed}"
        note = "± is one standard error over the n examples; arrows point to better."
        return html_block(title, *tables, options, note=note)

    def _scores(self, outside: bool) -> list[Row]:
        """Return the rows of OOD sets, or of all but those; without examinations."""
        scored = [row for row in self.rows if not row.dataset.startswith(EXAMINED)]
        return [row for row in scored if row.dataset.startswith("ood:") == outside]

    def _block(self, rows: list[Row]) -> str:
        lines = self._lines(rows)
        return align(lines[0], lines[1:]) if lines else ""

    def _lines(self, rows: list[Row]) -> list[tuple[str, ...]]:
        """Return the headings and one line per data set; nothing without rows."""
        if not rows:
            return []
        datasets = list(dict.fromkeys(row.dataset for row in rows))
        columns: list[list[str]] = []
        for metric in dict.fromkeys(row.metric for row in rows):
            by_dataset = {row.dataset: row for row in rows if row.metric == metric}
            digits = decimals_for(
                *zip(*((r.value, r.standard_error) for r in by_dataset.values()), strict=True)
            )
            first = next(iter(by_dataset.values()))
            cells = [
                number(r.value, r.standard_error, digits, r.note) if r else ""
                for r in map(by_dataset.get, datasets)
            ]
            columns.append(
                [f"{title_of(metric)} {ARROWS[first.direction]}".rstrip(), first.unit, *cells]
            )
        counts = [str(min(r.n for r in rows if r.dataset == name)) for name in datasets]
        named = [f"{name} (near)" if self._is_near(name) else name for name in datasets]
        return list(zip(["data set", "", *named], ["n", "", *counts], *columns, strict=True))

    def _is_near(self, dataset: str) -> bool:
        return dataset.removeprefix("ood:") in self.near_ood and dataset.startswith("ood:")

    def to_dict(self) -> dict[str, Any]:
        """Return everything but `kept`, `arrays` and `by_image`, JSON-safe."""
        return {
            "schema": SCHEMA,
            "task": self.task,
            "method": self.method,
            "net": self.net,
            "seed": self.seed,
            "config": self.config,
            "rows": [row._asdict() for row in self.rows],
            "cost": self.cost._asdict(),
            "near_ood": list(self.near_ood),
            "target_scale": self.target_scale and list(self.target_scale),
            "label": self.label,
            "data": dict(self.data),
            "class_names": list(self.class_names),
            "columns": [list(facts) for facts in self.columns],
        }

    def to_json(self) -> str:
        """Return one line of JSON; a value that does not apply is null."""
        return json.dumps(self.to_dict(), allow_nan=False)

    @staticmethod
    def from_dict(content: Mapping[str, Any]) -> Results:
        """Restore results from `to_dict`; refuse a newer schema."""
        version = content.get("schema")
        if type(version) is not int:
            raise ValueError("these are not results of polymode: they have no schema version")
        if version > SCHEMA:
            raise NewerSchema(
                f"these results have schema version {version}, this polymode reads up to"
                f" {SCHEMA}; upgrade polymode"
            )
        try:
            rows = tuple(Row(**row) for row in content["rows"])
            names = {key: content[key] for key in ("task", "method", "net", "seed", "config")}
            scale = content.get("target_scale")
            results = Results(
                **names,
                rows=rows,
                cost=_cost(content["cost"]),
                near_ood=tuple(content.get("near_ood", ())),
                target_scale=scale and tuple(scale),
                label=content.get("label", ""),
                data=dict(content.get("data", {})),
                class_names=tuple(content.get("class_names", ())),
                columns=tuple(_column_facts(facts) for facts in content.get("columns", ())),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"these are not results of polymode: {error!r}") from None
        _check_types(results)
        return results

    @staticmethod
    def from_json(text: str) -> Results:
        """Restore results from `to_json`."""
        return Results.from_dict(parse_json(text))

    def replace(self, **changes: Any) -> Results:
        """Return a copy with other values of some fields."""
        return dataclasses.replace(self, **changes)


def _cost(stored: Mapping[str, Any]) -> Cost:
    """Return the cost; files from before modes had several samples lack `num_samples`."""
    return Cost(**{"num_samples": stored["num_modes"], **stored})


def _column_facts(stored: Any) -> tuple[str, str, list[str]]:
    """Return name, kind and categories of a column."""
    name, kind, labels = stored
    return str(name), str(kind), [str(label) for label in labels]


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_integer(value: Any) -> bool:
    return type(value) is int


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _is_number_or_none(value: Any) -> bool:
    return value is None or _is_number(value)


def _is_concern(value: Any) -> bool:
    return isinstance(value, dict) and all(_is_text(value.get(key)) for key in ("name", "text"))


_RESULTS: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("task", "method", "net", "label"), _is_text),
    "seed": _is_integer,
    "config": lambda value: (
        isinstance(value, dict)
        and isinstance(value.get("search", {}), dict)
        and all(_is_concern(concern) for concern in value.get("concerns", ()))
    ),
    **dict.fromkeys(("near_ood", "class_names"), lambda value: all(map(_is_text, value))),
    "target_scale": lambda value: all(map(_is_number, value or ())),
}
_ROW: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("dataset", "metric", "unit", "note"), _is_text),
    **dict.fromkeys(("value", "standard_error"), _is_number_or_none),
    "direction": lambda value: isinstance(value, str) and value in ARROWS,
    "n": _is_integer,
}
_COST: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(Cost._fields, _is_number),
    **dict.fromkeys(("train_seconds", "memory_bytes"), _is_number_or_none),
}


def _check_types(results: Results) -> None:
    """Refuse values of the wrong type, which a file may contain."""
    rows = [(row, _ROW) for row in results.rows]
    for what, checks in [(results, _RESULTS), (results.cost, _COST), *rows]:
        for name, fits in checks.items():
            if not fits(value := getattr(what, name)):
                raise ValueError(f"these are not results of polymode: `{name}` is {value!r:.60}")


def title_of(metric: str) -> str:
    """Return the metric's title as people write it; derived from the name if not registered.

    >>> title_of("nll"), title_of("auroc_mutual_information"), title_of("my_own")
    ('NLL', 'AUROC, MI', 'my own')
    """
    entry = _entry_of(metric)
    text = metric.replace("_", " ")
    for word, written in (("nll", "NLL"), ("r hat", "R-hat"), ("ess ", "ESS ")):
        text = text.replace(word, written)
    return text if entry is None else str(entry.metadata["title"])


def is_headline(metric: str) -> bool:
    """Return whether a leaderboard shows the metric by default; unregistered ones are shown."""
    entry = _entry_of(metric)
    return entry is None or bool(entry.metadata["headline"])


def family_of(metric: str) -> str:
    """Return which of `FAMILIES` the metric belongs to."""
    entry = _entry_of(metric)
    return "quality" if entry is None else str(entry.metadata["family"])


def _entry_of(metric: str) -> Entry[Any] | None:
    for table in TABLES.values():
        if metric in table:
            return table.get(metric)
    return None


def finite(value: float | None) -> float | None:
    """Return the value, or None where it is NaN or infinite: JSON has neither."""
    return value if value is not None and math.isfinite(value) else None
