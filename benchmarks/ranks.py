"""`python -m benchmarks.ranks --json results/scale.json`: what ranks cost and gain on this machine.

Every point is a group of fresh processes with one thread each; points are measured in turn, round
by round. CPU time per step is kept beside wall time, and the share of all cores that other
processes took meanwhile: on a busy machine two ranks get no more of the cores than one, and only
CPU time tells what they cost.

`python -m benchmarks.ranks --evaluation --json results/ranks_evaluation.json`: the bytes that come
to a rank for each prediction of classes, with all samples and as averages.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import socket
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from typing import Any

SHAPE, BATCH, EXAMPLES = (1, 28, 28), 128, 2560
WARM = 4  # steps before the clock starts
POINTS = {
    "deep_ensemble 5 on 1": ("deep_ensemble", 5, 1),
    "deep_ensemble 10 on 1": ("deep_ensemble", 10, 1),
    "deep_ensemble 10 on 2": ("deep_ensemble", 10, 2),
    "forde 5 on 1": ("forde", 5, 1),
    "forde 10 on 1": ("forde", 10, 1),
    "forde 10 on 2": ("forde", 10, 2),
    "kernel 10 on 1": ("kernel", 10, 1),
    "messages on 2": ("messages", 2, 2),
    "small 10 on 1": ("small", 10, 1),
}
MODES, ROWS = 8, 1024  # of the predictions whose bytes are counted
CASES = [(10, 1), (10, 30), (1000, 1), (1000, 30)]  # classes, samples of each mode
SMALL, LARGE = 8, 4_000_000  # bytes of the messages that latency and rate are taken from


def work(method: str, number: int) -> dict[str, Any]:
    """Return what one rank measures per step: milliseconds, those of CPU time, and bytes."""
    import torch

    import polymode as pm

    torch.set_num_threads(1)
    if method == "messages":
        return messages()
    if method == "kernel":
        return kernel(number)
    if method == "small":
        return small(number)
    if method == "evaluation":
        return evaluation(number)
    stream = torch.Generator().manual_seed(0)
    x = torch.randn(EXAMPLES, *SHAPE, generator=stream)
    y = torch.randint(10, (EXAMPLES,), generator=stream)
    task = pm.Task(train=(x, y), likelihood="categorical")
    events: list[Any] = []
    options: dict[str, Any] = {"epochs": 2 if method == "deep_ensemble" else 1, "batch_size": BATCH}
    before = bytes_so_far()
    post = pm.fit(
        method, net=pm.nets.lenet, task=task, num_modes=number, execution="loop", progress="silent",
        on_event=lambda event: events.append((event, time.process_time())), **options,
    )  # fmt: skip
    steps = post.history.total_steps
    came = (bytes_so_far() - before) / steps
    timed = [e for e in events if e[0].kind in ("progress", "end") and e[0].step > WARM]
    if not timed:  # not the first rank
        return {}
    (first, cpu_first), (last, cpu_last) = timed[0], timed[-1]
    ms = 1000 / (last.step - first.step)
    wall, cpu = last.elapsed - first.elapsed, cpu_last - cpu_first
    return {"ms": ms * wall, "cpu_ms": ms * cpu, "bytes": came}


def bytes_so_far() -> int:
    try:
        from polymode.distributed import ranks
    except ImportError:  # a release before ranks
        return 0
    return ranks.traffic().num_bytes


def small(number: int) -> dict[str, Any]:
    """Return the CPU time of a step of MLPs 20-16-3: the least of some windows of 20 steps or more.

    Half a millisecond, so that what the loop itself does for ranks would show.
    """
    import torch
    from torch import nn

    import polymode as pm

    stream = torch.Generator().manual_seed(0)
    x = torch.randn(640, 20, generator=stream)
    task = pm.Task(train=(x, torch.randint(3, (640,), generator=stream)), likelihood="categorical")
    marks: list[tuple[int, float]] = []

    def see(event: Any) -> None:
        if event.kind in ("progress", "end"):
            marks.append((event.step, time.process_time()))

    pm.fit(
        "deep_ensemble", task=task, num_modes=number, epochs=600, batch_size=64, on_event=see,
        net=lambda: nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 3)),
        execution="batched", progress="silent",
    )  # fmt: skip
    windows = zip(marks[2:], marks[3:], strict=False)
    return {"cpu_ms": 1000 * min((d - b) / (c - a) for (a, b), (c, d) in windows if c - a >= 20)}


def kernel(number: int) -> dict[str, Any]:
    """Return the time of the repulsion alone, between the gradients of so many members."""
    import math

    import torch

    from polymode.methods.particles.repulsion import repulsion

    gradients = torch.randn(number, BATCH, math.prod(SHAPE))
    repulsion(gradients)
    started = time.process_time()
    for _ in range(10):
        repulsion(gradients)
    return {"cpu_ms": 100 * (time.process_time() - started)}


def messages() -> dict[str, Any]:
    """Return the latency of a small message and the rate of large ones between ranks."""
    import torch

    from polymode.distributed import ranks

    ranks.start()
    found = {}
    with ranks.sharing(ranks.share_of(2)):
        for name, size, times in (("latency_ms", SMALL, 300), ("large_ms", LARGE, 20)):
            tensor = torch.zeros(1, size // 4)
            taken, cpu = [], time.process_time()
            for _ in range(times):
                started = time.perf_counter()
                ranks.gather(tensor)
                taken.append(time.perf_counter() - started)
            found[name] = 1000 * median(taken)
            found[f"cpu_{name}"] = 1000 * (time.process_time() - cpu) / times
    return found


def evaluation(number: int) -> dict[str, Any]:
    """Return the bytes that come to this rank per input, for predictions of each case."""
    import torch
    from torch import nn

    import polymode as pm

    stream = torch.Generator().manual_seed(0)
    x, counts = torch.randn(ROWS, 8, generator=stream), {}
    for classes, samples in CASES:
        y = torch.randint(classes, (64,), generator=stream)
        task = pm.Task(train=(x[:64], y), likelihood="categorical", target_size=classes)
        post = pm.fit(
            "dropout", task=task, num_modes=number, epochs=1, progress="silent",
            net=lambda c=classes: nn.Sequential(nn.Dropout(0.1), nn.Linear(8, c)),
        )  # fmt: skip
        marks = [bytes_so_far()]
        for predict in (post.predict, post.averages):
            for rows in x.split(256):
                predict(rows, samples_per_mode=samples)
            marks.append(bytes_so_far())
        gathered, reduced = ((b - a) / ROWS for a, b in zip(marks, marks[1:], strict=False))
        counts[f"{classes} {samples}"] = {"gathered": gathered, "reduced": reduced}
    return counts


def group(method: str, number: int, size: int, source: str | None = None) -> dict[str, Any]:
    """Run one point in fresh processes; return what rank 0 found, and how busy others were."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    where = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    if source:
        where["PYTHONPATH"] = source
    words = [sys.executable, str(Path(__file__)), "--worker", method, str(number)]
    busy, own, started = _busy(), _own(), time.perf_counter()
    ranks = [
        subprocess.Popen(
            words,
            env={**os.environ, **where, "RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    told = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise RuntimeError(f"{method}, {number} modes on {size} ranks failed")
    wall = time.perf_counter() - started
    others = (_busy() - busy - (_own() - own)) / wall / (os.cpu_count() or 1)
    return {**json.loads(told[0].splitlines()[-1]), "others": max(0.0, others)}


def _busy() -> float:
    """Seconds of CPU time that all processes of the machine have taken."""
    fields = Path("/proc/stat").read_text().split("\n")[0].split()[1:]
    user, nice, system, _, _, irq, soft, steal = map(int, fields[:8])
    return (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")


def _own() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ranks", description=__doc__)
    parser.add_argument("--worker", nargs=2, metavar=("METHOD", "MODES"), help=argparse.SUPPRESS)
    parser.add_argument("--evaluation", action="store_true", help="count bytes of predictions")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--base", metavar="DIR", help="sources of a release without ranks")
    parser.add_argument("--json", type=Path, metavar="FILE")
    asked = parser.parse_args()
    if asked.worker:
        print(json.dumps(work(asked.worker[0], int(asked.worker[1]))))
        return
    if asked.evaluation:
        ranks = {size: group("evaluation", MODES, size) for size in (2, 4)}
        counts: dict[str, Any] = {"modes": MODES, "rows": ROWS, "ranks": ranks}
        if asked.json:
            asked.json.write_text(json.dumps(counts, indent=1) + "\n")
        return
    points: dict[str, tuple[Any, ...]] = dict(POINTS)
    if asked.base:
        points["small without ranks"] = ("small", 10, 1, asked.base)
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in points}
    for number in range(asked.rounds):
        for name, point in points.items() if number % 2 == 0 else reversed(points.items()):
            rounds[name].append(group(*point))
            print(name, rounds[name][-1], file=sys.stderr, flush=True)
    facts = {"date": datetime.now(timezone.utc).isoformat(), "cores": os.cpu_count()}
    found = {**facts, "processor": platform.machine(), "rounds": rounds}
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
