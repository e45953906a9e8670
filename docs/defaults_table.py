"""Tables of every method with its defaults, from `results/defaults.json`."""

from __future__ import annotations

from statistics import mean, median
from typing import Any

from docs.speed_tables import markdown

BASELINE, REFERENCE = "constant", "map"
WARNED, WORSE = "!", "✗"
Row = dict[str, Any]


def defaults_tables(rows: list[Row]) -> str:
    """Return scores, coverage and cost of every method; means over splits."""
    rows = with_defaults(rows)
    if not rows:
        return "Not measured yet."
    methods = list(dict.fromkeys(row["method"] for row in rows))
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    classes = {row["task"] for row in rows if "accuracy" in row["scores"]}
    values, labels = ([t for t in tasks if (t in classes) == kind] for kind in (False, True))
    splits = len({row["split"] for row in rows})
    note = (
        f"Means over {splits} split{'s' * (splits > 1)}. {WORSE}: worse than the constant"
        f" prediction; {WARNED}: a warning was issued in at least one split. Coverage is the share"
        " of test targets in the 90 % interval, the least and the most over the tables. Cost is"
        f" the CPU time of the fit in units of `{REFERENCE}`'s, median over tasks. A time in the"
        " place of a score is the CPU time after which a fit was stopped; refused: the method needs"
        " another network, and says which."
    )
    parts = []
    if values:
        parts += ["### Regression: NLL in nats", _table(rows, methods, values, "coverage")]
    if labels:
        parts += ["### Classification: NLL in nats (accuracy)", _table(rows, methods, labels)]
    return "\n\n".join([*parts, note])


def with_defaults(rows: list[Row]) -> list[Row]:
    """Return the rows of the test part with no option set."""
    return [row for row in rows if row["part"] == "test" and not row["options"]]


def _table(rows: list[Row], methods: list[str], tasks: list[str], extra: str = "") -> str:
    lines = [["method", *tasks, *([extra] if extra else []), "cost"]]
    for method in methods:
        name = "*constant*" if method == BASELINE else f"[`{method}`](methods/{method}.md)"
        cells = [_cell(rows, method, task) for task in tasks]
        if extra:
            cells.append(_range([_mean(_select(rows, method, task), extra) for task in tasks]))
        lines.append([name, *cells, cost_of(rows, method)])
    return markdown(lines)


def _select(rows: list[Row], method: str, task: str) -> list[Row]:
    return [row for row in rows if (row["method"], row["task"]) == (method, task)]


def _mean(rows: list[Row], score: str) -> float | None:
    values = [row["scores"].get(score) for row in rows]
    return mean(values) if values and None not in values else None


def _cell(rows: list[Row], method: str, task: str) -> str:
    """Return the NLL, and for classes the accuracy, with marks."""
    baseline, rows = _select(rows, BASELINE, task), _select(rows, method, task)
    if not rows:
        return "–"
    nll = _mean(rows, "nll")
    warned = WARNED if any(row["warnings"] for row in rows) else ""
    if nll is None:
        return f"{_reason(rows)} {warned}".strip()
    least = _mean(baseline, "nll")
    worse = WORSE if least is not None and nll > least else ""
    accuracy = _mean(rows, "accuracy")
    text = f"{nll:.2f}" if abs(nll) < 100 else f"{nll:.3g}"
    shown = text if accuracy is None else f"{text} ({accuracy:.2f})"
    return f"{shown} {worse}{warned}".strip().replace("-", "−")


def _reason(rows: list[Row]) -> str:
    """Return why there is no score, in a word."""
    errors = [row["error"] for row in rows if row.get("error")]
    if any(error.startswith("not done after") for error in errors):
        return f"> {errors[0].removeprefix('not done after ')}"
    refused = errors and all(error.startswith("ValueError") for error in errors)
    return "refused" if refused else "failed"


def _range(values: list[float | None]) -> str:
    present = [value for value in values if value is not None]
    return f"{min(present):.2f}–{max(present):.2f}" if present else "–"


def costs(rows: list[Row]) -> dict[str, dict[str, float]]:
    """Return what each method takes to fit and to predict, in units of the reference."""
    rows = with_defaults(rows)
    table: dict[str, dict[str, float]] = {}
    for method in sorted({row["method"] for row in rows}):
        measured = {
            what: _ratio(rows, method, name)
            for what, name in (("fit", "seconds"), ("predict", "predict_seconds"))
        }
        cost = {what: value for what, value in measured.items() if value is not None}
        if cost:
            table[method] = cost
    return table


def _ratio(rows: list[Row], method: str, name: str) -> float | None:
    """Return the median of the ratios to the reference, split by split, to two digits."""
    seconds = {(r["method"], r["task"], r["split"]): r.get(name) for r in rows}
    ratios = []
    for (other, task, split), value in seconds.items():
        unit = seconds.get((REFERENCE, task, split))
        if other == method and value and unit:
            ratios.append(value / unit)
    return float(f"{median(ratios):.2g}") if ratios else None


def cost_of(rows: list[Row], method: str) -> str:
    ratio = _ratio(rows, method, "seconds")
    return "–" if ratio is None else f"{ratio:.2g}×"
