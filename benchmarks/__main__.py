"""`python -m benchmarks [CASE...]`: contenders side by side, a table for each case.

Every contender is a process of its own that has built its job and warmed up before the first
round. The rounds alternate between contenders, never two at once, in an order that is reversed
every other round; ratios are taken within a round, so a machine that slows down slows everyone.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from datetime import datetime, timezone
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from .cases import CASES, Case, flops
from .contenders import ASTRA, KINDS, LAPLACE, MATMUL, PEERS, TANGENTS
from .process import Worker
from .table import BUSY, render


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help="names or patterns; default all")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each contender")
    parser.add_argument("--threads", type=int, help="threads of torch; default torch's own choice")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="put what is measured into this file"
    )
    parser.add_argument(
        "--update",
        type=Path,
        metavar="FILE",
        help="measure nothing: put the cases that --json holds into this file",
    )
    parser.add_argument(
        "--patience",
        type=int,
        default=0,
        metavar="N",
        help="play up to N rounds of a case again when other processes were busy during them",
    )
    parser.add_argument("--list", action="store_true", help="name the cases and stop")
    parser.add_argument(
        "--peer-python",
        default=os.environ.get("POLYMODE_PEER_PYTHON"),
        metavar="PATH",
        help="interpreter with TorchUncertainty; default $POLYMODE_PEER_PYTHON",
    )
    parser.add_argument(
        "--laplace-python",
        default=os.environ.get("POLYMODE_LAPLACE_PYTHON"),
        metavar="PATH",
        help="interpreter with laplace-torch; default $POLYMODE_LAPLACE_PYTHON",
    )
    parser.add_argument(
        "--tangents-python",
        default=os.environ.get("POLYMODE_TANGENTS_PYTHON"),
        metavar="PATH",
        help="interpreter with neural-tangents; default $POLYMODE_TANGENTS_PYTHON",
    )
    parser.add_argument(
        "--astra-python",
        default=os.environ.get("POLYMODE_ASTRA_PYTHON"),
        metavar="PATH",
        help="interpreter with torch and the ASTRA toolbox; default $POLYMODE_ASTRA_PYTHON",
    )
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error(f"--rounds must be at least 1, got {options.rounds}")
    if options.threads is not None and options.threads < 1:
        parser.error(f"--threads must be at least 1, got {options.threads}")
    if options.update and not (options.json and options.json.is_file()):
        parser.error("--update needs --json FILE with what was measured before")
    patterns = options.cases or ["*"]
    for pattern in patterns:
        if not any(fnmatch(name, pattern) for name in CASES):
            parser.error(f"no case called {pattern!r}; there are: {', '.join(CASES)}")
    options.selected = [
        case for name, case in CASES.items() if any(fnmatch(name, p) for p in patterns)
    ]
    return options


def play(name: str, workers: list[Worker], rounds: int, patience: int) -> int:
    """Play the rounds, and again those in which other processes were busy, at most `patience`."""
    disturbed = number = 0
    while number < rounds:
        print(f"{name}: round {number + 1} of {rounds}", file=sys.stderr)
        for worker in workers if (number + disturbed) % 2 == 0 else reversed(workers):
            if worker.error is None:
                worker.play()
        latest = [worker.rounds[-1] for worker in workers if len(worker.rounds) > number]
        if disturbed < patience and any(figures["others"] > BUSY for figures in latest):
            disturbed += 1
            for worker in workers:
                worker.disturbed += worker.rounds[number:]
                del worker.rounds[number:]
        else:
            number += 1
    return disturbed


def measure(case: Case, options: argparse.Namespace) -> dict[str, Any]:
    """All rounds of a case, as data."""
    kind = KINDS[case.kind]
    labels = list(kind.contenders)
    operations = flops(case)
    if operations:
        labels.append(MATMUL)
    workers: list[Worker] = []
    try:
        for label in labels:
            file = kind.contenders.get(label, "").split(".")[0]
            python = options.peer_python if file in PEERS else sys.executable
            python = options.laplace_python if file == LAPLACE else python
            python = options.tangents_python if file == TANGENTS else python
            python = options.astra_python if file == ASTRA else python
            print(f"{case.name}: preparing {label}", file=sys.stderr)
            workers.append(Worker(python, case.name, label, options.threads))
        disturbed = play(case.name, workers, options.rounds, options.patience)
        for worker in workers:
            worker.finish()
    finally:
        for worker in workers:
            worker.close()
    matmul = [figures for w in workers if w.label == MATMUL for figures in w.rounds]
    return {
        "name": case.name,
        "title": case.title,
        "kind": case.kind,
        "figure": kind.figure,
        "sizes": {
            key: getattr(case, key)
            for key in ("num_modes", "num_examples", "epochs", "batch_size", "lr", "num_steps")
        },
        "disturbed_rounds": disturbed,
        "threads": next((w.ready["threads"] for w in workers if "threads" in w.ready), None),
        "flops": operations if matmul else 0.0,
        "matmul": matmul,
        "contenders": {
            w.label: {
                "error": w.error,
                **{key: w.ready.get(key) for key in ("threads", "warm_up", "versions")},
                "rounds": w.rounds,
                "disturbed": w.disturbed,
                "peak_mb": w.final.get("peak_mb", float("nan")),
                "check": w.final.get("check"),
            }
            for w in workers
            if w.label != MATMUL
        },
    }


def cpu_model() -> str:
    """The processor's name."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def add(file: Path, measured: dict[str, Any]) -> None:
    """Put a case into the file in place of an older one of its name; the others stay."""
    held = json.loads(file.read_text())["cases"] if file.exists() else []
    cases = {case["name"]: case for case in held} | {measured["name"]: measured}
    found = {"cases": [cases[name] for name in CASES if name in cases]}
    file.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


def update(file: Path, measured: Path, selected: set[str]) -> None:
    """Put the selected cases of `measured` into the file.

    A case that the file has stays if fewer contenders played in the new one: a peer is missing.
    """
    held = json.loads(file.read_text())["cases"] if file.exists() else []
    before = {case["name"]: players(case) for case in held}
    for case in json.loads(measured.read_text())["cases"]:
        name, new = case["name"], players(case)
        if name not in selected:
            continue
        old = before.get(name, [])
        if len(new) < len(old):
            idle = [label for label in case["contenders"] if label not in new]
            print(f"{name}: not taken, {len(new)} contenders after {len(old)}: {', '.join(idle)}")
        else:
            add(file, case)
            print(f"{name}: taken")


def players(case: dict[str, Any]) -> list[str]:
    """Return the contenders of a measured case that could play."""
    return [label for label, row in case["contenders"].items() if row["rounds"]]


def main() -> int:
    options = parse()
    if options.update:
        update(options.update, options.json, {case.name for case in options.selected})
        return 0
    if options.list:
        for case in options.selected:
            print(f"{case.name:30}{case.title}")
        return 0
    machine = {"cpu": cpu_model(), "cores": os.cpu_count()}
    print(f"{machine['cpu']}, {machine['cores']} cores; {options.rounds} rounds, alternating\n")
    for case in options.selected:
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        measured = {**measure(case, options), **machine, "date": now}
        print(render(measured) + "\n", flush=True)
        if options.json:
            add(options.json, measured)
    return 0


if __name__ == "__main__":
    sys.exit(main())
