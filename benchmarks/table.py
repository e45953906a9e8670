"""From raw rounds to the plain-text table of a case."""

from __future__ import annotations

from statistics import median
from typing import Any

from .contenders import KINDS
from .contenders.matmul import FLOPS as MATMUL_FLOPS

BUSY = 0.2  # cores used by other processes, above which times are doubtful
Rounds = list[dict[str, float]]


def paired_ratios(figure: str, over: Rounds, under: Rounds) -> list[float]:
    """Round by round: figure of `over` / figure of `under`."""
    return [a[figure] / b[figure] for a, b in zip(over, under, strict=False)]


def spread(values: list[float], digits: int = 2) -> str:
    """Median with the range in brackets."""
    return f"{median(values):.{digits}f} ({min(values):.{digits}f}..{max(values):.{digits}f})"


def ratios(kind: str, baseline: Rounds, rounds: Rounds) -> list[float]:
    """A speed-up is baseline / contender; a time or memory ratio is contender / baseline."""
    figure = KINDS[kind].figure
    if KINDS[kind].ratio == "speed-up":
        return paired_ratios(figure, baseline, rounds)
    return paired_ratios(figure, rounds, baseline)


def of_matmul(flops: float, rounds: Rounds, matmul: Rounds) -> list[float]:
    """Rate of the contender as a fraction of the matmul rate of the same round."""
    pairs = zip(rounds, matmul, strict=False)
    return [flops / r["wall"] / (MATMUL_FLOPS / m["wall"]) for r, m in pairs]


def _cells(case: dict[str, Any], row: dict[str, Any], baseline: Rounds) -> list[str]:
    rounds, walls = row["rounds"], [r["wall"] for r in row["rounds"]]
    cells = [
        f"{median(walls):.3f}",
        f"{min(walls):.3f}..{max(walls):.3f}",
        f"{median(r['cpu'] for r in rounds):.2f}",
        f"{median(r['ms_per_step'] for r in rounds):.3g}",
        f"{row['peak_mb']:.0f}",
    ]
    if case["figure"] == "allocated_mb":
        cells.append(f"{median(r['allocated_mb'] for r in rounds):.1f}")
    cells.append(spread(ratios(case["kind"], baseline, rounds)) if baseline else "-")
    if case["flops"]:
        cells.append(f"{100 * median(of_matmul(case['flops'], rounds, case['matmul'])):.2g}")
    if KINDS[case["kind"]].check:
        cells.append("-" if row["check"] is None else f"{row['check']:.4g}")
    return cells


def _header(case: dict[str, Any]) -> list[str]:
    kind = KINDS[case["kind"]]
    names = ["contender", "wall s", "min..max", "CPU s", "ms/step", "peak MB"]
    if kind.figure == "allocated_mb":
        names.append("alloc. MB")
    names.append(kind.ratio)
    if case["flops"]:
        names.append("% of matmul")
    return names + ([kind.check] if kind.check else [])


def _versus(case: dict[str, Any]) -> list[str]:
    """polymode against each of the others, pairs of the same round."""
    rows = case["contenders"]
    own = next((row for label, row in rows.items() if "polymode" in label and row["rounds"]), None)
    if own is None:
        return []
    others = {label: row for label, row in rows.items() if row is not own and row["rounds"]}
    lines = [
        f"  polymode against {label}: "
        + spread(ratios(case["kind"], row["rounds"], own["rounds"]))
        + f" {KINDS[case['kind']].ratio}"
        for label, row in others.items()
    ]
    if case["kind"] == "import":
        base = next(iter(others.values()))["rounds"]
        pairs = zip(own["rounds"], base, strict=False)
        extra = [1000 * (a["wall"] - b["wall"]) for a, b in pairs]
        lines.append(f"  polymode over torch: {spread(extra, 0)} ms")
    return lines


def _about(case: dict[str, Any]) -> list[str]:
    """Threads, the machine's own rate, and whether it was quiet."""
    rows = [row["rounds"] for row in case["contenders"].values()]
    others = [r["others"] for rounds in rows for r in rounds] or [0.0]
    quiet = "" if max(others) <= BUSY else " (NOT QUIET)"
    again = f" ({case['disturbed_rounds']} played again)" if case["disturbed_rounds"] else ""
    lines = [
        f"  {case['threads']} threads, {max(map(len, rows))} rounds{again};"
        f" other processes had {spread(others)} cores{quiet}"
    ]
    if case["flops"]:
        rate = [MATMUL_FLOPS / m["wall"] / 1e9 for m in case["matmul"]]
        lines.append(
            f"  matmul 1024 float32: {spread(rate, 0)} GFLOP/s;"
            f" work {case['flops'] / 1e9:.3g} GFLOP a round"
        )
    return lines


def render(case: dict[str, Any]) -> str:
    """The table of one case, with what was measured around it."""
    rows = case["contenders"]
    baseline = next(iter(rows.values()))["rounds"]
    width = max(len(label) for label in rows)
    grid = [_header(case)]
    grid += [[k, *_cells(case, row, baseline)] for k, row in rows.items() if row["rounds"]]
    widths = [max(len(line[i]) for line in grid) for i in range(len(grid[0]))]
    widths[0] = max(width, len("contender"))
    lines = [f"{case['name']}: {case['title']}"]
    lines += _about(case)
    for line in grid:
        cells = [line[0].ljust(widths[0])]
        cells += [cell.rjust(size) for cell, size in zip(line[1:], widths[1:], strict=True)]
        lines.append("  " + "  ".join(cells))
    for label, row in rows.items():
        if row["error"]:
            lines.append(f"  {label.ljust(widths[0])}  {row['error']}")
    return "\n".join(lines + _versus(case))
