"""Tables of what things cost, made of `results/benchmarks.json`; `docs.tables` places them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import median
from typing import Any

PEERS = {
    "a plain loop": "plain_loop",
    "`torch.func.vmap`": "vmap",
    "TorchUncertainty": "torch_uncertainty",
}


GROWTH = {"forde": "kernel alone", "forde, among 64 components": "its kernel alone"}


PLAIN = "plain loop, no repulsion"


MISSING = "n/a"  # of a peer that was not installed


OTHER_CASES = {
    "scores_shared": "torchmetrics",
    "scores_all": "torchmetrics with TorchUncertainty's metrics",
    "evaluate_large": "torchmetrics",
    "pairs_1000": "the formula pair by pair",
}


def markdown(rows: list[list[str]]) -> str:
    """Return a Markdown table; the first row is its head."""
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([head, f"|{'---|' * len(rows[0])}", *body])


def speed_table(report: dict[str, Any]) -> str:
    """Return ratios of time, median over rounds with their range, and how they were measured."""
    rows = [["case", *(f"against {peer}" for peer in PEERS)]]
    shown = [case for case in report["cases"] if case["kind"] in ("train", "predict")]
    for case in shown:
        rows.append([case["title"], *(_speed_up(case, name) for name in PEERS.values())])
    others = [case for case in report["cases"] if case["name"] in OTHER_CASES]
    lines = [f"- {case['title']}: {_other(case)}" for case in others]
    shown += others
    dates = " and ".join(sorted({case["date"][:10] for case in shown}))
    rounds = min(len(case["contenders"]["polymode"]["rounds"]) for case in shown)
    machine = f"{_machines(shown)}, at least {rounds} rounds"
    peer = next(name for name in shown[0]["contenders"] if name.startswith("torch_uncertainty"))
    training = "joint training"
    if peer.endswith("separate"):
        training = "members one by one, since joint training gives all the same batches"
    about = f"{machine}, {dates}. TorchUncertainty: {training}; `test` to predict."
    return "\n\n".join([markdown(rows), "\n".join(lines), about])


def executions_table(report: dict[str, Any]) -> str:
    """Return the rule's execution and what it costs, beside the best of the others."""
    points = report["points"]
    others = median(
        time["others"] for point in points for times in point["ways"].values() for time in times
    )
    figure, named = ("cpu_ms", "CPU time") if others > 0.1 else ("wall_ms", "Wall-clock time")
    works = list(dict.fromkeys(point["work"] for point in points))
    cells: dict[str, list[str]] = {}
    for point in points:
        taken = {way: min(t[figure] for t in times) for way, times in point["ways"].items()}
        best, rule = min(taken.values()), point["rule"]
        rest = sorted((ms / best, way) for way, ms in taken.items() if way != rule)
        beside = f"; {rest[0][1]} {rest[0][0]:.2f}" if rest else ""
        text = f"**{rule} {taken[rule] / best:.2f}**{beside}"
        cells.setdefault(point["network"], []).append(text)
    threads = "one thread" if report["threads"] == 1 else f"{report['threads']} threads"
    rounds = min(len(times) for point in points for times in point["ways"].values())
    about = (
        f"{named} in units of the best way, least of {rounds} rounds: in bold the rule's, then the"
        f" best of the others. {threads}, {report['cores']} cores, torch {report['torch']},"
        f" {report['date'][:10]}; other processes took {others:.2g} of a core meanwhile (median)."
    )
    rows = [["networks", *works], *([name, *texts] for name, texts in cells.items())]
    return f"{markdown(rows)}\n\n{about}"


def _other(case: dict[str, Any]) -> str:
    """Return how long each of polymode's ways takes, and against whom it was measured."""
    first, peer = next(iter(case["contenders"])), OTHER_CASES[case["name"]]
    ways = {name: c for name, c in case["contenders"].items() if name.startswith("polymode")}
    unit = "s of CPU time" if case["figure"] == "cpu" else "s"
    texts = []
    for name, contender in ways.items():
        seconds = median(each[case["figure"]] for each in contender["rounds"])
        work = name.removeprefix("polymode").lstrip(", ") or "all" * (len(ways) > 1)
        ratio = _speed_up(case, first, name)
        against = "" if ratio == MISSING else f", {ratio} the speed of {peer}"
        texts.append(f"{work} {seconds:.2g} {unit}{against}".lstrip())
    return "; ".join(texts)


def _speed_up(case: dict[str, Any], start: str, own: str = "polymode") -> str:
    """Against the first contender whose name starts so: separate training, or testing."""
    rounds, figure = case["contenders"][own]["rounds"], case["figure"]
    other = next((c for name, c in case["contenders"].items() if name.startswith(start)), None)
    if other is None or not other["rounds"]:
        return MISSING
    ratios = [b[figure] / a[figure] for a, b in zip(rounds, other["rounds"], strict=True)]
    return f"{median(ratios):.1f}× ({min(ratios):.1f}–{max(ratios):.1f})"


def forde_tables(report: dict[str, Any]) -> str:
    """Return the cost of FoRDE: time and memory relative to a deep ensemble, and its growth."""
    cases = {case["name"]: case for case in report["cases"] if case["name"].startswith("forde_")}
    if not cases:
        return "not measured yet"
    growth = {name: case for name, case in cases.items() if case["kind"] == "forde_growth"}
    ratios = {name: case for name, case in cases.items() if name not in growth}
    lines = list(dict.fromkeys(name for case in ratios.values() for name in case["contenders"]))
    rows = [["", *(_forde_title(case) for case in ratios.values())]]
    rows += [[line, *(_forde_ratio(case, line) for case in ratios.values())] for line in lines]
    for line in ("forde", "forde, chunk_size=1"):
        beside = [_forde_ratio(case, line, PLAIN) for case in ratios.values()]
        rows.append([f"{line}, compared with the {PLAIN}", *beside])
    grown = [["ms per step", "deep ensemble", *GROWTH]]
    for case in growth.values():
        steps = {name: _ms_a_step(case, name) for name in case["contenders"]}
        title = case["title"].split(",")[0].removeprefix("repulsion of ")
        grown.append([title, f"{steps['deep_ensemble']:.3g}"])
        for name, kernel in GROWTH.items():
            part = steps[kernel] / steps[name]
            grown[-1].append(f"{steps[name]:.3g}, kernel {steps[kernel]:.2g} ({part:.0%})")
    rounds = sorted({len(case["contenders"]["forde"]["rounds"]) for case in cases.values()})
    dates = " and ".join(sorted({case["date"][:10] for case in cases.values()}))
    about = (
        "CPU time and allocated memory as ratios to the deep ensemble of this library (in the last"
        " lines to one in a plain loop), median over rounds with their range;"
        f" {_machines(cases.values())}, one thread, {rounds[0]} to {rounds[-1]} rounds,"
        f" {dates}."
    )
    return "\n\n".join(["", markdown(rows), *([markdown(grown)] if growth else []), about, ""])


def laplace_table(report: dict[str, Any]) -> str:
    """Return CPU seconds and peak memory of Laplace's steps, compared with the peers."""
    cases = [case for case in report["cases"] if case["kind"].startswith("laplace_")]
    if not cases:
        return "not measured yet"
    rows = [["", "contender", "CPU s", "memory beyond the data, MB", "speed of polymode"]]
    for case in cases:
        own = case["contenders"]["polymode"]["rounds"]
        for name, each in case["contenders"].items():
            ratios = [a["cpu"] / b["cpu"] for a, b in zip(each["rounds"], own, strict=False)]
            shown = f"{median(ratios):.3g}× ({min(ratios):.3g}–{max(ratios):.3g})" if ratios else ""
            seconds = median(r["cpu"] for r in each["rounds"]) if ratios else math.nan
            first = case["title"] if name == next(iter(case["contenders"])) else ""
            mine = name == "polymode"
            rows.append([first, name, f"{seconds:.2g}", f"{each['peak_mb']:.0f}",
                         "" if mine else shown])  # fmt: skip
    dates = " and ".join(sorted({case["date"][:10] for case in cases}))
    rounds = min(len(case["contenders"]["polymode"]["rounds"]) for case in cases)
    about = (
        f"One thread, {_machines(cases)}, {rounds} rounds, {dates}, while other processes were"
        " busy; CPU time, median over rounds with the range of ratios within a round. laplace-torch"
        " 0.3 with its default backend."
    )
    return "\n\n".join([markdown(rows), about])


def kernels_table(report: dict[str, Any]) -> str:
    """Return CPU seconds of infinite-width kernels and of ensembles on lattices, with peers."""
    kinds = ("kernel", "kernel_cold", "kernel_process", "ising")
    cases = [case for case in report["cases"] if case["kind"] in kinds]
    if not cases:
        return "not measured yet"
    rows = [["", "contender", "CPU s", "speed-up", "memory beyond the data, MB"]]
    for case in cases:
        base = next(iter(case["contenders"].values()))["rounds"]
        for number, (name, each) in enumerate(case["contenders"].items()):
            ratios = [b["cpu"] / a["cpu"] for a, b in zip(each["rounds"], base, strict=False)]
            shown = f"{median(ratios):.3g}× ({min(ratios):.3g}–{max(ratios):.3g})" if ratios else ""
            seconds = f"{median(r['cpu'] for r in each['rounds']):.2g}" if ratios else "n/a"
            memory = f"{each['peak_mb']:.0f}" if ratios else ""
            rows.append(["" if number else case["title"], name, seconds,
                         shown if number else "", memory])  # fmt: skip
    dates = " and ".join(sorted({case["date"][:10] for case in cases}))
    rounds = min(len(case["contenders"]["polymode"]["rounds"]) for case in cases)
    about = (
        f"One thread, {_machines(cases)}, at least {rounds} alternating rounds, {dates}, while"
        " other processes were busy; CPU time, median over rounds with the range of ratios within a"
        " round. float32 is the default of neural-tangents 0.6.5 (jax 0.5.3), float64 that of"
        " polymode. `first`: with compilation, without imports; a fresh process: with imports."
    )
    return "\n\n".join(["", markdown(rows), about, ""])


def _machines(cases: Iterable[dict[str, Any]]) -> str:
    return " and ".join(sorted({f"{case['cpu']} ({case['cores']} cores)" for case in cases}))


def zoo_table(report: dict[str, Any]) -> str:
    """Return networks per hour of CPU time, trained as a stack and one after another."""
    cases = [case for case in report["cases"] if case["kind"] == "zoo"]
    rows = [["", "CPU time", "networks per hour and core", "speed"]]
    for case in cases:
        seconds, spread = _cpu_ratio(case)
        hourly = f"{3600 * case['sizes']['num_modes'] / seconds:,.0f}"
        rows.append([case["title"], f"{seconds:.2g} s", hourly, spread])
    return f"{markdown(rows)}\n\n{_how(cases)}"


def symmetry_table(report: dict[str, Any]) -> str:
    """Return the CPU time of work on many networks, compared with the plain way."""
    cases = [case for case in report["cases"] if case["kind"] in ("canonical", "cost", "mmd")]
    rows = [["", "CPU time", "speed"]]
    for case in cases:
        seconds, spread = _cpu_ratio(case)
        rows.append([case["title"], f"{seconds:.2g} s", spread])
    return f"{markdown(rows)}\n\n{_how(cases)}"


def _cpu_ratio(case: dict[str, Any]) -> tuple[float, str]:
    """Return the CPU seconds of polymode, and its speed relative to the first contender."""
    plain = next(iter(case["contenders"]))
    own, other = (case["contenders"][name]["rounds"] for name in ("polymode", plain))
    ratios = [b["cpu"] / a["cpu"] for a, b in zip(own, other, strict=True)]
    digits = 0 if median(ratios) > 100 else 1
    low, middle, high = (f"{f(ratios):.{digits}f}" for f in (min, median, max))
    return median(each["cpu"] for each in own), f"{middle}× ({low}–{high}) that of {plain}"


def _how(cases: list[dict[str, Any]]) -> str:
    dates = " and ".join(sorted({case["date"][:10] for case in cases}))
    rounds = min(len(case["contenders"]["polymode"]["rounds"]) for case in cases)
    return (
        f"{_machines(cases)}, one thread, {rounds} alternating rounds, ratios of CPU time within a"
        f" round, {dates}."
    )


def tomography_table(report: dict[str, Any]) -> str:
    """Return what projections and image priors cost: against others, and with the size."""
    kinds = ("project", "image_prior", "image_kernel", "project_growth")
    cases = [case for case in report["cases"] if case["kind"] in kinds]
    if not cases:
        return "not measured yet"
    rows = [["", "CPU time per step", "against"]]
    grown = [["pixels, angles", "apply and adjoint", "building the matrix"]]
    for case in cases:
        own = case["contenders"]["polymode"]["rounds"]
        others = {name: each for name, each in case["contenders"].items() if name != "polymode"}
        if case["kind"] == "project_growth":
            (built,) = others.values()
            whole = median(each["cpu"] for each in built["rounds"]) / case["sizes"]["epochs"]
            title = case["title"].removeprefix("project ").removesuffix(" and back")
            grown.append([title, f"{_ms_a_step(case, 'polymode'):.2g} ms", f"{whole:.2g} s"])
            continue
        said = []
        for name, each in others.items():
            ratios = [b["cpu"] / a["cpu"] for a, b in zip(own, each["rounds"], strict=False)]
            if ratios:
                spread = f"{median(ratios):.2g}× ({min(ratios):.2g}–{max(ratios):.2g})"
                said.append(f"{spread} the speed of {name}")
        rows.append([case["title"], f"{_ms_a_step(case, 'polymode'):.3g} ms", "; ".join(said)])
    rounds = min(len(case["contenders"]["polymode"]["rounds"]) for case in cases)
    dates = " and ".join(sorted({case["date"][:10] for case in cases}))
    about = (
        f"{_machines(cases)}, one thread, at least {rounds} alternating rounds, {dates}; CPU time,"
        " median, with the range of ratios within a round. A step of image priors is one of all"
        " images; that of a kernel is all of it."
    )
    return "\n\n".join([markdown(rows), *([markdown(grown)] if len(grown) > 1 else []), about])


def _forde_title(case: dict[str, Any]) -> str:
    kind = "memory, " if case["kind"] == "forde_memory" else ""
    return kind + case["title"].split(",")[0].split("repulsion of ")[1]


def _forde_ratio(case: dict[str, Any], name: str, other: str = "deep_ensemble") -> str:
    """Return a ratio to another contender, taken within rounds."""
    rounds, base = (case["contenders"].get(key, {}).get("rounds") for key in (name, other))
    if not rounds or not base:
        return ""
    figure = case["figure"]
    found = [a[figure] / b[figure] for a, b in zip(rounds, base, strict=True)]
    return f"{median(found):.2f} ({min(found):.2f}–{max(found):.2f})"


def _ms_a_step(case: dict[str, Any], name: str) -> float:
    seconds = median(each["cpu"] for each in case["contenders"][name]["rounds"])
    return 1000 * seconds / case["sizes"]["num_steps"]


def ratios_table(report: dict[str, Any], kinds: tuple[str, ...]) -> str:
    """Return ratios to the first contender of each case of these kinds, median with range."""
    cases = [case for case in report["cases"] if case["kind"] in kinds]
    if not cases:
        return "\nNot measured yet.\n"
    rows = [["case", "contender", "ratio of CPU time or allocated memory"]]
    for case in cases:
        first, *others = case["contenders"]
        for name in others:
            said = f"{_forde_ratio(case, name, first)} × {first}"
            if case["figure"] == "allocated_mb":
                own = case["contenders"][name]["rounds"]
                said += f", {median(each['allocated_mb'] for each in own):.0f} MB"
            rows.append([case["title"], name, said])
    rounds = min(len(each["rounds"]) for case in cases for each in case["contenders"].values())
    dates = " and ".join(sorted({case["date"][:10] for case in cases}))
    about = f"{_machines(cases)}, one thread, at least {rounds} alternating rounds, {dates}."
    return "\n" + markdown(rows) + "\n\n" + about + "\n"
