"""How cost grows: `python -m benchmarks.growth --json results/growth.json`.

Time of one gradient step against the number of members, their width and the batch; of an
evaluation against the number of examples; of a prediction against the number of samples. One
thread, all points of a curve in turn, round by round; CPU time, so that a busy machine does not
bend a curve. `--most N` leaves out larger points.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import polymode as pm
from polymode.stack.stack import Stack

from .cases import lenet, mlp

SECONDS = 0.05  # of one time: short work is repeated
MEMBERS, WIDTH, BATCH = 10, 128, 128
ROWS = 1024


def loss(outputs: Tensor, y: Tensor, extra: dict[str, Tensor]) -> Tensor:
    """Cross-entropy of each member, (..., B, C) and (..., B) -> (...)."""
    losses = F.cross_entropy(outputs.flatten(0, -2), y.flatten(), reduction="none")
    return losses.view(y.shape).mean(-1)


def step(net: Callable[[], nn.Module], members: int, batch: int) -> Callable[[], Any]:
    """One gradient step of all members, with batches of their own."""
    stack = Stack(net, members).train()
    x = torch.randn(members, batch, 1, 28, 28)
    y = torch.randint(10, (members, batch))
    return lambda: stack.gradients(loss, x, y, own=True)


def dense(width: int) -> nn.Module:
    return mlp(784, width, width, 10)


def noisy() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, WIDTH), nn.ReLU(), nn.Dropout(0.2),
                         nn.Linear(WIDTH, 10))  # fmt: skip


def _task(examples: int) -> pm.Task:
    x, y = torch.randn(examples, 1, 28, 28), torch.randint(10, (examples,))
    y[:10] = torch.arange(10)
    return pm.Task(train=(x[:64], y[:64]), test=(x, y), likelihood="categorical")


def evaluation(examples: int) -> Callable[[], Any]:
    """All metrics of a test set, of which no prediction is kept."""
    task = _task(examples)
    post = pm.fit("deep_ensemble", net=partial(dense, WIDTH), task=task, num_modes=MEMBERS,
                  epochs=0, progress="silent")  # fmt: skip
    return lambda: pm.evaluate(post, task, keep=False)


def sampling(samples: int) -> Callable[[], Any]:
    """The prediction of noisy passes."""
    task = _task(ROWS)
    post = pm.fit("dropout", net=noisy, task=task, epochs=0, progress="silent")
    return lambda: post.predict(task.test, samples_per_mode=samples)


CURVES: dict[str, tuple[str, Callable[[int], Callable[[], Any]], tuple[int, ...]]] = {
    # title -> what is counted, work of a count, counts
    "step of M MLPs 784-128-128-10": (
        "member", lambda m: step(partial(dense, WIDTH), m, BATCH), (1, 2, 5, 10, 20, 50, 100)),
    "step of M LeNets 28x28": (
        "member", lambda m: step(lenet, m, BATCH), (1, 2, 5, 10, 20, 50, 100)),
    "step of 10 MLPs 784-W-W-10": (
        "unit of width", lambda w: step(partial(dense, w), MEMBERS, BATCH),
        (16, 32, 64, 128, 256, 512, 1024)),
    "step of 10 MLPs 784-128-128-10, batch B": (
        "row", lambda b: step(partial(dense, WIDTH), MEMBERS, b),
        (16, 32, 64, 128, 256, 512, 1024)),
    "step of 10 LeNets 28x28, batch B": (
        "row", lambda b: step(lenet, MEMBERS, b), (16, 32, 64, 128, 256, 512)),
    "evaluate 10 MLPs on N examples": (
        "example", evaluation, (250, 1000, 4000, 16_000, 64_000)),
    "predict 1,024 rows by S noisy passes": ("sample", sampling, (1, 4, 16, 64, 256)),
}  # fmt: skip


def measure(title: str, most: int, rounds: int) -> dict[str, Any]:
    """Return CPU milliseconds of each count, by round."""
    unit, make, counts = CURVES[title]
    works = {count: make(count) for count in counts if count <= most}
    taken: dict[int, list[float]] = {count: [] for count in works}
    repeats = {}
    for count, work in works.items():
        work()
        start = time.process_time()
        work()
        repeats[count] = max(1, int(SECONDS / (time.process_time() - start)))
    for _ in range(rounds):
        for count, work in works.items():
            start = time.process_time()
            for _ in range(repeats[count]):
                work()
            taken[count].append(1000 * (time.process_time() - start) / repeats[count])
    return {"title": title, "unit": unit, "counts": list(taken), "cpu_ms": list(taken.values())}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--most", type=int, default=2**31, help="the largest count to measure")
    parser.add_argument("--json", type=Path, metavar="FILE")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    curves = []
    for title in CURVES:
        curves.append(measure(title, asked.most, asked.rounds))
        least = map(min, curves[-1]["cpu_ms"])
        pairs = zip(curves[-1]["counts"], least, strict=True)
        print(f"{title}: {', '.join(f'{n}: {ms:.3g} ms' for n, ms in pairs)}", flush=True)
    report = {
        "date": datetime.now(timezone.utc).isoformat(),
        "cores": os.cpu_count(),
        "processor": platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "curves": curves,
    }
    if asked.json:
        asked.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
