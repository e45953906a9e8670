"""Memory that is freed stays with the process, in large pages, unless the user objects; what is
kept for backward passes is counted."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from polymode.core import memory
from polymode.core.memory import saved_bytes
from polymode.stack.stack import Stack
from polymode.training.optimiser import Optimization, Training

CODE = """
import resource, torch
from polymode.likelihoods.kinds import Categorical
from polymode.stack.stack import Stack
from polymode.nets import resnet8

stack = Stack(lambda: resnet8((3, 32, 32), 10), 2, execution="threads").train()
x, y = torch.randn(32, 3, 32, 32), torch.arange(32) % 10
faults = []
for _ in range(6):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    stack.gradients(Categorical().nll, x, y)
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(min(faults[3:]))
"""


HUGE = """
import polymode, torch
held = torch.ones(2**24)
rollup = open("/proc/self/smaps_rollup").read().split("AnonHugePages:")[1]
print(rollup.split()[0])
"""


def _huge_pages() -> bool:
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return setting.exists() and "[never]" not in setting.read_text()


@pytest.mark.skipif(not _huge_pages(), reason="the system has no transparent huge pages")
@pytest.mark.cpu_seconds(12)
def test_large_tensors_lie_in_huge_pages() -> None:
    """64 MB in pages of 2 MB, all but the few that the system may not find at once."""
    environment = {k: v for k, v in os.environ.items() if k != "THP_MEM_ALLOC_ENABLE"}
    run = [sys.executable, "-c", HUGE]
    done = subprocess.run(run, capture_output=True, check=True, env=environment)
    assert int(done.stdout) > 32 * 1024
    unwanted = {**environment, "THP_MEM_ALLOC_ENABLE": "0"}
    done = subprocess.run(run, capture_output=True, check=True, env=unwanted)
    assert int(done.stdout) < 32 * 1024


@pytest.mark.skipif("glibc" not in str(os.confstr("CS_GNU_LIBC_VERSION")), reason="glibc only")
@pytest.mark.cpu_seconds(25)
def test_a_step_does_not_take_its_memory_anew() -> None:
    """Page faults of a step of two ResNet-8: none, and some thousand otherwise; the fewest of the
    last three steps, since on a busy machine a thread may get its share of memory late."""
    faults = {}
    for keep in ("1", "0"):
        environment = {**os.environ, "POLYMODE_KEEP_MEMORY": keep, "OMP_NUM_THREADS": "2"}
        run = [sys.executable, "-c", CODE]
        done = subprocess.run(run, capture_output=True, check=True, env=environment)
        faults[keep] = float(done.stdout)
    assert faults["1"] < faults["0"] / 4, faults


def test_counting_what_is_saved_holds_nothing_and_changes_nothing() -> None:
    """With a layer that saves its own output, and a second derivative, which frees no graph."""
    x = torch.randn(50, 3, requires_grad=True)
    weight = torch.randn(3, 41, requires_grad=True)
    found = []

    def work() -> None:
        out = OwnOutput.apply(x @ weight)
        (gradient,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        found.append(torch.autograd.grad(gradient.square().sum(), weight)[0])

    assert saved_bytes(work) >= 50 * 41 * 4
    work()
    assert torch.equal(*found)
    gc.collect()
    tensors = (o for o in gc.get_objects() if type(o) is torch.Tensor)
    assert not any(tensor.shape == (50, 41) for tensor in tensors)


class OwnOutput(torch.autograd.Function):
    """max(x, 0)."""

    @staticmethod
    def forward(ctx, x):
        out = x.relu()
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, grad):
        return grad * (ctx.saved_tensors[0] > 0)


def test_a_stack_that_is_larger_than_the_memory_is_refused_after_its_first_member() -> None:
    built = []

    def make() -> nn.Module:
        built.append(1)
        return nn.Linear(1000, 1000)

    with pytest.raises(ValueError, match=r"10,000,000 networks of 4 MB in a stack need 40 TB"):
        Stack(make, 10_000_000)
    assert len(built) == 1


def test_a_network_that_is_larger_than_the_memory_is_refused_unbuilt() -> None:
    """The system would promise 4 TB, and end the process in the midst of its first values."""
    wanted = r"the 1,000,000 × 1,000,000 numbers of one tensor need 4 TB of memory; .* free. Take"
    for make in (lambda: nn.Linear(10**6, 10**6), lambda: nn.Embedding(10**6, 10**6)):
        with pytest.raises(ValueError, match=wanted):
            Stack(make, 2)


def test_gradients_and_moments_need_room_too(monkeypatch) -> None:
    """What adam keeps is three times the networks, what sgd keeps once: 8 and 24 kB."""
    leaves = [torch.zeros(2, 1000, requires_grad=True)]
    for free, optimizer, fits in ((23_999, "adam", False), (24_000, "adam", True),
                                  (7_999, "sgd", False), (8_000, "sgd", True)):  # fmt: skip
        monkeypatch.setattr(memory, "free_bytes", lambda device, free=free: free)
        train = partial(Optimization, Training(epochs=1, optimizer=optimizer), leaves, 1, 1)
        if fits:
            train()
        else:
            with pytest.raises(
                ValueError, match=f"training by {optimizer}: gradients.*fewer modes"
            ):
                train()


@pytest.mark.parametrize(
    "line, folder, names",
    [
        ("0::/job/step", "", ("memory.max", "memory.current", "inactive_file")),
        (
            "4:memory:/job/step",
            "memory",
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ),
    ],
)
def test_limits_of_containers_and_jobs_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, folder: str, names: tuple
) -> None:
    """Both versions of control groups; the tightest limit from the process upwards holds."""
    limit, used, cached = names
    for path, most in ((tmp_path / folder / "job", 5000), (tmp_path / folder / "job/step", 9000)):
        path.mkdir(parents=True, exist_ok=True)
        (path / limit).write_text(f"{most}\n")
        (path / used).write_text("2000\n")
        (path / "memory.stat").write_text(f"cache 700\n{cached} 500\n")
    groups = tmp_path / "cgroup"
    groups.write_text(f"9:cpu:/\n{line}\n")
    found = memory._limits(groups, tmp_path)
    assert len(found) == 2
    monkeypatch.setattr(memory, "_limits", lambda: found)
    assert memory.free_bytes() == 5000 - 2000 + 500
    (tmp_path / folder / "job" / limit).write_text("max\n")
    assert memory.free_bytes() == 9000 - 2000 + 500
