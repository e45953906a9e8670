"""What the rule of executions gives up: `python -m benchmarks.executions --json FILE`.

All ways to evaluate a stack, in one process and in turn, round by round: a gradient step with a
batch of each member's own (the default of ensembles), one with a batch that members share, and the
prediction of 1,000 rows. `--threads N` as in the other benchmarks. Where other processes are busy,
wall time says little of threads; CPU time is kept beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polymode.nets import resnet8
from polymode.stack.fast.plan import KINDS, Plan
from polymode.stack.stack import Stack

from .cases import lenet, mlp
from .worker import busy_seconds

SECONDS = 0.05  # of one time: short work is repeated
ROWS = 1000  # to predict


class Text(nn.Module):
    """A transformer over embedded inputs of 8 numbers."""

    def __init__(self, width: int, heads: int, layers: int, tokens: int) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, batch_first=True)
        self.embed, self.position = nn.Linear(8, width), nn.Parameter(torch.zeros(tokens, width))
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.embed(x) + self.position).mean(1))


class Recurrent(nn.Module):
    """An LSTM that answers with its last state."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body, self.head = nn.LSTM(8, width, batch_first=True), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x)[0][:, -1])


def signal(width: int) -> nn.Sequential:
    """Two 1-D convolutions over 8 channels."""
    return nn.Sequential(
        nn.Conv1d(8, width, 5, padding=2), nn.ReLU(), nn.MaxPool1d(2),
        nn.Conv1d(width, width, 5, padding=2), nn.ReLU(), nn.AdaptiveAvgPool1d(1),
        nn.Flatten(), nn.Linear(width, 10),
    )  # fmt: skip


def small_lenet() -> nn.Sequential:
    """LeNet for 1x8x8 images."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), *list(mlp(64, 120, 84, 10))[1:],
    )  # fmt: skip


def normed_cnn() -> nn.Sequential:
    """A user's network for 3x32x32 images, with BatchNorm between convolution and pooling."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int, int]] = {
    # title -> factory, shape of an input, members, batch
    "10 MLPs 2-64-64-2": (lambda: mlp(2, 64, 64, 2), (2,), 10, 128),
    "10 MLPs 784-128-128-10": (lambda: mlp(784, 128, 128, 10), (784,), 10, 128),
    "10 tanh MLPs 784-200-200-10": (
        lambda: mlp(784, 200, 200, 10, activation=nn.Tanh), (784,), 10, 128),
    "one MLP 784-128-128-10": (lambda: mlp(784, 128, 128, 10), (784,), 1, 128),
    "5 LeNets 8x8": (small_lenet, (1, 8, 8), 5, 128),
    "5 LeNets 28x28": (lenet, (1, 28, 28), 5, 128),
    "one LeNet 28x28": (lenet, (1, 28, 28), 1, 128),
    "5 CNNs with BatchNorm 32x32": (normed_cnn, (3, 32, 32), 5, 64),
    "4 ResNet-8 32x32": (lambda: resnet8((3, 32, 32), 10), (3, 32, 32), 4, 64),
    "10 transformers, width 16": (lambda: Text(16, 2, 1, 8), (8, 8), 10, 32),
    "10 transformers, width 32": (lambda: Text(32, 4, 2, 16), (16, 8), 10, 64),
    "4 transformers, width 128": (lambda: Text(128, 4, 2, 32), (32, 8), 4, 64),
    "10 LSTMs, width 32": (lambda: Recurrent(32), (16, 8), 10, 64),
    "10 1-D CNNs, width 16": (lambda: signal(16), (8, 64), 10, 64),
    "4 1-D CNNs, width 64": (lambda: signal(64), (8, 128), 4, 64),
}  # fmt: skip
WORKS = ("training, batches of their own", "training, shared batches", "prediction")


def loss(outputs: Tensor, y: Tensor, extra: dict[str, Tensor]) -> Tensor:
    """Cross-entropy of each member, (..., B, C) and (..., B) -> (...)."""
    targets = y.expand(outputs.shape[:-1])
    losses = F.cross_entropy(outputs.flatten(0, -2), targets.flatten(), reduction="none")
    return losses.view(targets.shape).mean(-1)


def ways(images: bool, work: str) -> list[Plan]:
    """Return all plans that make a difference for this work."""
    counts = (1, None) if torch.get_num_threads() > 1 else (None,)
    layouts = (False, True) if images else (False,)
    plans = [Plan("batched", num_threads=count) for count in counts]
    plans += [Plan("loop", layout, num_threads=n) for layout in layouts for n in counts]
    plans += [Plan("threads", layout) for layout in layouts]
    if images and work != WORKS[0]:
        plans.append(Plan("threads", channels_last=True, wide=True))
    return plans


def prepared(title: str, work: str, plan: Plan | None) -> tuple[Callable[[], Any], Stack]:
    """Return the work of one plan, or of the rule, and its stack."""
    make, shape, members, batch = NETWORKS[title]
    torch.manual_seed(0)
    stack = Stack(make, members)
    if plan is not None:
        stack.lay_out(plan.channels_last)
        stack.plans = dict.fromkeys(KINDS, plan)
    stream = torch.Generator().manual_seed(1)
    own = work == WORKS[0]
    rows = (ROWS,) if work == WORKS[2] else (members, batch) if own else (batch,)
    x = torch.randn(*rows, *shape, generator=stream)
    y = torch.randint(2, rows, generator=stream)
    if work == WORKS[2]:
        return torch.no_grad()(lambda: stack(x)), stack
    stack.train()
    return lambda: stack.gradients(loss, x, y, own=own), stack


def rule_of(title: str, work: str) -> Plan:
    """Return the plan that the rule chooses."""
    run, stack = prepared(title, work, None)
    run()
    (plan,) = stack.plans.values()
    return plan._replace(wide=plan.wide and work != WORKS[0])  # on shared inputs only


def measure(title: str, work: str, rounds: int) -> dict[str, Any]:
    """Return milliseconds of each way, by round, and which one the rule chooses."""
    runs = {}
    for plan in ways(len(NETWORKS[title][1]) == 3, work):
        run, _ = prepared(title, work, plan)
        try:
            run(), run()
        except RuntimeError:  # `vmap` does not know all operations
            continue
        runs[plan] = run
    start = time.perf_counter()
    next(iter(runs.values()))()
    repeats = max(1, int(SECONDS / (time.perf_counter() - start)))
    taken: dict[Plan, list[dict[str, float]]] = {plan: [] for plan in runs}
    for _ in range(rounds):
        for plan, run in runs.items():
            busy, cpu, start = busy_seconds(), time.process_time(), time.perf_counter()
            for _ in range(repeats):
                run()
            wall, cpu = time.perf_counter() - start, time.process_time() - cpu
            others = max(0.0, busy_seconds() - busy - cpu) / wall
            ms = 1000 / repeats
            taken[plan].append({"wall_ms": ms * wall, "cpu_ms": ms * cpu, "others": others})
    return {
        "network": title, "work": work, "rule": name_of(rule_of(title, work)),
        "ways": {name_of(plan): times for plan, times in taken.items()},
    }  # fmt: skip


def name_of(plan: Plan) -> str:
    """Return a plan in words."""
    words = [plan.execution]
    words += ["channels last"] * plan.channels_last + ["wide"] * plan.wide
    words += ["one thread"] * (plan.num_threads == 1 and torch.get_num_threads() > 1)
    return ", ".join(words)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.executions", description=__doc__)
    parser.add_argument("networks", nargs="*", help="titles that contain one of these; all if none")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", type=Path, metavar="FILE")
    asked = parser.parse_args()
    if asked.threads:
        torch.set_num_threads(asked.threads)
    points = []
    for title in NETWORKS:
        if asked.networks and not any(word in title for word in asked.networks):
            continue
        for work in WORKS:
            points.append(measure(title, work, asked.rounds))
            best = {way: min(t["wall_ms"] for t in ts) for way, ts in points[-1]["ways"].items()}
            least = min(best.values())
            ratios = (f"{way} {ms / least:.2f}" for way, ms in sorted(best.items(), key=_value))
            rule = points[-1]["rule"]
            print(f"{title}, {work}: {least:.2f} ms; {rule}; {'; '.join(ratios)}", flush=True)
    report = {
        "date": datetime.now(timezone.utc).isoformat(),
        "cores": os.cpu_count(),
        "processor": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "points": points,
    }
    if asked.json:
        asked.json.write_text(json.dumps(report, indent=1) + "\n")


def _value(pair: tuple[str, float]) -> float:
    return pair[1]


if __name__ == "__main__":
    main()
