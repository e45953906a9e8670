"""The tables of the page on audits, from `results/audits.json`."""

from __future__ import annotations

from typing import Any

from docs.speed_tables import markdown
from polymode.metrics.rejection import clopper_pearson


def audits_table(results: dict[str, Any]) -> str:
    """Return how often planted defects are named, and false alarms of sound networks."""
    rows = [["networks", "test rows", "defect", "audits", "named", "named first"]]
    alarms = [
        [
            "networks",
            "test rows",
            "audits",
            "with any finding",
            "but those under corruptions",
            "which",
        ]
    ]
    for row in results["rows"]:
        num = row["audits"]
        facts = [row["source"], f"{row['rows']:,}"]
        if row["defect"] == "sound":
            names = ", ".join(f"{name} ({count})" for name, count in row["names"].items())
            shares = [_share(row[key], num) for key in ("alarmed", "clean")]
            alarms.append([*facts, str(num), *shares, names or "–"])
        else:
            first = f"{100 * row['first'] / num:.0f} %"
            rows.append([*facts, row["defect"], str(num), _share(row["named"], num), first])
    slowest = max(row["seconds"] for row in results["rows"])
    note = (
        'Shares with 95 % intervals (Clopper–Pearson). "Named": a finding with the name that fits'
        f" is significant after correction. An audit took at most {slowest:.2f} CPU seconds on"
        " average, its network included; `python -m benchmarks.audits`."
    )
    return "\n\n".join([markdown(rows), markdown(alarms), note])


def _share(count: int, num: int) -> str:
    low, high = clopper_pearson(count, num, 0.95)
    return f"{100 * count / num:.1f} % [{100 * low:.1f}, {100 * high:.1f}]"


def power_table(results: dict[str, Any]) -> str:
    """Return the power to name a regression of two points by size of the group."""
    sizes = list(dict.fromkeys(row["n"] for row in results["power"]))
    rows = [["answers lost and gained besides", *(f"{n:,} rows" for n in sizes)]]
    for churn in dict.fromkeys(row["churn"] for row in results["power"]):
        powers = {row["n"]: row["power"] for row in results["power"] if row["churn"] == churn}
        rows.append([f"{100 * churn:g} % each", *(f"{100 * powers[n]:.0f} %" for n in sizes)])
    return markdown(rows)
