"""How cost grows, as a table and as docs/growth.svg: `python -m docs.growth` draws the figure.

Both are made of `results/growth.json`, which `python -m benchmarks.growth` writes.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from docs.speed_tables import markdown

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "growth.json"


def growth_table(report: dict[str, Any]) -> str:
    """Return the cost of one more of what is counted, at each count."""
    rows = [["", "CPU time in all", "µs for each, at each count"]]
    for curve in report["curves"]:
        least = [min(times) for times in curve["cpu_ms"]]
        counts = curve["counts"]
        ends = f"{_time(least[0])} at {counts[0]:,} to {_time(least[-1])} at {counts[-1]:,}"
        costs = (f"{1000 * ms / n:.3g} ({n:,})" for n, ms in zip(counts, least, strict=True))
        rows.append([curve["title"], ends, f"per {curve['unit']}: {', '.join(costs)}"])
    rounds = min(len(times) for curve in report["curves"] for times in curve["cpu_ms"])
    about = (
        f"One thread, {report['processor']} ({report['cores']} cores), torch {report['torch']},"
        f" least of {rounds} rounds, {report['date'][:10]}."
    )
    return f"{markdown(rows)}\n\n{about}"


def _time(ms: float) -> str:
    return f"{ms:.3g} ms" if ms < 1000 else f"{ms / 1000:.3g} s"


def draw(report: dict[str, Any]) -> None:
    """Draw a panel for each curve: time over count, with the line of proportional cost."""
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams["svg.hashsalt"] = "growth"
    matplotlib.rcParams["svg.fonttype"] = "none"
    curves = report["curves"]
    columns = 4
    lines = math.ceil(len(curves) / columns)
    figure = Figure(figsize=(3.4 * columns, 2.7 * lines), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False).flatten()
    for ax in panels[len(curves) :]:
        ax.set_axis_off()
    for ax, curve in zip(panels, curves, strict=False):
        counts, least = curve["counts"], [min(times) for times in curve["cpu_ms"]]
        line = [least[-1] * n / counts[-1] for n in counts]
        ax.loglog(counts, line, color="#bbbbbb", label="proportional")
        ax.loglog(counts, least, "o-", color="#1f5fa8", markersize=4)
        ax.set_title(curve["title"], fontsize=8)
        ax.set_xlabel(f"{curve['unit']}s" if " " not in curve["unit"] else "width", fontsize=8)
        ax.set_ylabel("CPU ms", fontsize=8)
        ax.tick_params(labelsize=7)
    panels[0].legend(fontsize=7, frameon=False)
    figure.savefig(ROOT / "docs" / "growth.svg", metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    draw(json.loads(RESULTS.read_text()))
