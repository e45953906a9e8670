"""`python -m benchmarks.fleet --json FILE`: 1,000 cells that do nothing, by processes and by Ray.

What is left is what each way costs per cell. Two workers each; starting them is timed apart.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from polymode.distributed.ray import Cluster
from polymode.examinations import Findings
from polymode.runs.cell import Finished
from polymode.runs.fleet import run_on_cluster
from polymode.runs.pool import run_cells
from polymode.runs.run_plan import Cell, Recipe

CELLS, WORKERS = 1000, 2


def nothing(seed: int) -> Findings:
    """A cell that does nothing."""
    return Findings(())


def timed(backend: str, folder: Path) -> dict[str, Any]:
    """Return seconds to the first cell that is done, and from there to the last."""
    from benchmarks.fleet import nothing as work  # by the name that workers know

    recipe = Recipe("", {}, "", {}, function=work)
    cells = [Cell("nothing", {}, seed, f"{seed}", "nothing") for seed in range(CELLS)]
    done: list[float] = []

    def tell(cell: Cell, news: Any) -> None:
        if isinstance(news, Finished):
            done.append(time.perf_counter())

    def checkpoint(key: str) -> Path:
        return folder / key

    started = time.perf_counter()
    if backend == "ray":
        run_on_cluster(Cluster(None, WORKERS, 1), recipe, cells, checkpoint, tell)
    else:
        run_cells(recipe, cells, checkpoint, tell, jobs=WORKERS, threads=1)
    assert len(done) == CELLS
    return {"start_s": done[0] - started, "cells_s": done[-1] - done[0]}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE")
    asked = parser.parse_args()
    facts = {"date": datetime.now(timezone.utc).isoformat(), "cores": os.cpu_count()}
    found: dict[str, Any] = {**facts, "processor": platform.machine(), "cells": CELLS}
    with tempfile.TemporaryDirectory() as folder:
        for backend in ("processes", "ray"):
            found[backend] = timed(backend, Path(folder))
            print(backend, found[backend])
    found["load"] = os.getloadavg()[0]
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
