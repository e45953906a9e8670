"""A contender in a process of its own: builds, warms up, then answers commands in JSON lines.

    python -m benchmarks.worker CASE LABEL [--threads N]

`go` runs one timed round, `peak` tells the memory; end of input, or ten minutes without a command,
ends the process.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import platform
import resource
import select
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

import torch
import torch.nn.functional as F
from torch import nn

from .cases import CASES, Case, data
from .contenders import KINDS, Job, load

IDLE_SECONDS = 600
WARM_UP_STEPS = 4  # gigabytes of graphs take the heap three steps until it grows no more
NOT_INSTALLED = (
    "polymode",
    "torch_uncertainty",
    "torchmetrics",
    "torchvision",
    "lightning",
    "foolbox",
    "cvxpy",
    "laplace",
    "neural_tangents",
    "astra",
)


def claim_stdout() -> TextIO:
    """Keep standard output for the protocol; what libraries print goes to standard error."""
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return channel


def next_command() -> str:
    """The next line of standard input, "" at its end or after `IDLE_SECONDS` of silence."""
    ready, _, _ = select.select([sys.stdin], [], [], IDLE_SECONDS)
    return sys.stdin.readline().strip() if ready else ""


def warm_torch() -> None:
    """Load what torch loads lazily (autograd, optimisers, convolutions): it counts for nobody."""
    net = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.Flatten(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.randn(2, 1, 4, 4)).sum().backward()
    optimizer.step()


def memory_mb(field: str) -> float:
    """Resident memory of this process: now ("VmRSS") or its peak since `reset_peak` ("VmHWM")."""
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{field}:")[1].split()[0]) / 1024


def reset_peak() -> None:
    """Forget the peak of resident memory so far."""
    with contextlib.suppress(PermissionError):  # then the peak of the imports stays in
        Path("/proc/self/clear_refs").write_text("5")


def cpu_seconds() -> float:
    """CPU time of this process, all its threads, and its finished children."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def busy_seconds() -> float:
    """CPU time that all processes of the machine have used so far."""
    user, nice, system, _, _, *rest = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + sum(rest)) / os.sysconf("SC_CLK_TCK")


def allocated_peak_mb(run: Callable[[], Any]) -> float:
    """Peak of the bytes torch's CPU allocator holds during `run`, beyond those held before."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profiler:
        run()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    totals = [e["args"]["Total Allocated"] for e in events if e.get("name") == "[memory]"]
    return max(totals) / 2**20


@torch.no_grad()
def check(case: Case, result: Any) -> float | None:
    """One number that shows whether contenders did the same work: see `Kind.check`."""
    if result is None:
        return None
    plain = (
        "scores",
        "all_scores",
        "evaluate",
        "maps",
        "report",
        "pgd",
        "mmd",
        "cost",
        "image_prior",
        "image_kernel",
    )
    if case.kind in plain or case.kind.startswith(("laplace", "kernel", "ising", "project")):
        return float(result)
    if case.kind in ("predict", "efficient_predict"):
        return float(result[2].mean())
    x, y = (part[:512] for part in data(case))
    logits = result(x)
    if case.kind == "toy":
        targets = y.float()[:, None].expand_as(logits)
        losses = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
        return float((losses.mean((1, 2)) <= 0.01).float().mean())
    return float(F.cross_entropy(logits.flatten(0, 1), y.repeat(len(logits))))


def play_round(case: Case, job: Job) -> tuple[dict[str, Any], Any]:
    """One timed round, scaled to the whole work; `others` is how many cores other processes had."""
    gc.collect()
    if KINDS[case.kind].figure == "allocated_mb":
        figures: dict[str, Any] = {"allocated_mb": job.scale * allocated_peak_mb(job.run)}
    else:
        figures = {}
    busy, cpu, start = busy_seconds(), cpu_seconds(), time.perf_counter()
    result = job.run()
    wall, cpu = time.perf_counter() - start, cpu_seconds() - cpu
    figures["others"] = max(0.0, busy_seconds() - busy - cpu) / wall
    figures["wall"], figures["cpu"] = job.scale * wall, job.scale * cpu
    figures["ms_per_step"] = 1000 * figures["wall"] / job.num_steps
    return figures, result


def versions() -> dict[str, str]:
    """Versions of the interpreter and of the packages in play."""
    found = {"python": platform.python_version()}
    peers = ("torch_uncertainty", "lightning", "torchmetrics", "foolbox", "cvxpy", "laplace")
    peers += ("neural_tangents", "jax", "astra")
    for name in ("torch", "polymode", *peers):
        if name in sys.modules:
            found[name] = str(getattr(sys.modules[name], "__version__", "?"))
    return found


def serve(case: Case, label: str, send: Callable[[dict[str, Any]], None]) -> None:
    """Build, warm up, then obey."""
    build = load(case, label)
    warm_torch()
    if case.make_net is not nn.Identity:
        data(case)
    reset_peak()
    base = memory_mb("VmRSS")
    few = WARM_UP_STEPS * case.batch_size
    short = replace(case, num_examples=min(few, case.num_examples), epochs=1)
    start = time.perf_counter()
    build(short).run()
    warm_up = time.perf_counter() - start
    job = build(case)
    about = {"threads": torch.get_num_threads(), "warm_up": warm_up, "versions": versions()}
    send({"ready": True, **about})
    checked: float | None = None
    rounds = 0
    while command := next_command():
        if command == "go":
            figures, result = play_round(case, job)
            if rounds == 0:
                checked = check(case, result)
            rounds += 1
            send(figures)
        elif command == "peak":
            children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
            peak = children if case.kind in ("import", "startup") else memory_mb("VmHWM") - base
            send({"peak_mb": peak, "check": checked})


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.worker")
    parser.add_argument("case")
    parser.add_argument("label")
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    channel = claim_stdout()

    def send(message: dict[str, Any]) -> None:
        channel.write(json.dumps(message) + "\n")

    if options.threads:
        torch.set_num_threads(options.threads)
    try:
        serve(CASES[options.case], options.label, send)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in NOT_INSTALLED:
            raise
        send({"error": "not installed"})


if __name__ == "__main__":
    main()
