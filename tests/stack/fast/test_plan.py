"""The rule that chooses an execution: what it gives, and that only sizes and layers count."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

from polymode.likelihoods.kinds import Categorical
from polymode.nets import lenet, resnet8
from polymode.stack.fast import measure, plan
from polymode.stack.fast.plan import Plan
from polymode.stack.stack import Stack
from polymode.tracing.code import _plain


def dense() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, 3))


def text() -> nn.Module:
    layer = nn.TransformerEncoderLayer(6, 2, 12, 0.0, batch_first=True)
    return nn.Sequential(layer, nn.Flatten(), nn.Linear(24, 3))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.LSTM(6, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x)[0][:, -1])


def signal() -> nn.Module:
    return nn.Sequential(nn.Conv1d(4, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(20, 3))


def wide_signal() -> nn.Module:
    layers = nn.Conv1d(4, 9_000, 6), nn.Flatten(), nn.Linear(9_000, 3)
    return nn.Sequential(*layers)


def images() -> nn.Module:
    return lenet((1, 8, 8), 3)


def strided() -> nn.Module:
    """A layer that torch's own kernels break in channels_last format."""
    return nn.Sequential(nn.Conv2d(1, 3, 1, stride=2), nn.Flatten(), nn.Linear(48, 3))


INPUTS = {dense: (6,), text: (4, 6), Recurrent: (4, 6), signal: (4, 6), wide_signal: (4, 6),
          images: (1, 8, 8), strided: (1, 8, 8)}  # fmt: skip


def used(net, kind: str = "gradients", num_modes: int = 3, rows: int = 8, **options) -> Plan:
    """Return the plan that a stack takes for work of this kind."""
    stack = Stack(net, num_modes, **options).train()
    x, y = torch.randn(rows, *INPUTS[net]), torch.arange(rows) % 3
    if kind == "gradients":
        stack.gradients(Categorical().nll, x, y)
    elif kind == "graph":
        stack(x)
    else:
        with torch.no_grad():
            stack(x)
    (chosen,) = stack.plans.values()
    return chosen


@pytest.mark.parametrize(
    ("net", "training", "prediction"),
    [
        (dense, "batched", "batched"),
        (text, "batched", "threads"),
        (signal, "batched", "threads"),
        (wide_signal, "threads", "threads"),
        (Recurrent, "threads", "threads"),
        (images, "threads", "threads"),
    ],
)
def test_executions_of_the_rule(net, training, prediction) -> None:
    assert used(net).execution == used(net, "graph").execution == training
    assert used(net, "outputs").execution == prediction
    assert used(net, num_modes=1).execution == used(net, "outputs", num_modes=1).execution == "loop"


def test_formats_and_wide_convolutions_of_the_rule() -> None:
    """Wide where pooling follows, so that members' shares are small; no format that breaks."""
    assert used(images) == Plan("threads", channels_last=True, wide=True)
    assert used(images, num_modes=1, rows=2) == Plan("loop", channels_last=True, num_threads=1)
    assert used(strided) == Plan("threads")
    stack = Stack(lambda: resnet8((3, 8, 8), 3), 2)
    with torch.no_grad():
        stack(torch.randn(2, 3, 8, 8))
    assert stack.plans == {"outputs of 2": Plan("threads", channels_last=True)}


def test_short_work_takes_one_thread_and_other_sizes_their_own() -> None:
    stack = Stack(lambda: nn.Sequential(nn.Linear(400, 400), nn.ReLU()), 4)
    with torch.no_grad():
        for rows in (2, 200, 2):
            stack(torch.randn(rows, 400))
    assert stack.plans == {
        "outputs of 2": Plan("batched", num_threads=1), "outputs of 200": Plan("batched")
    }  # fmt: skip


def test_members_that_differ_go_side_by_side() -> None:
    stack = Stack([nn.Sequential(nn.Linear(2, 2), nn.Dropout(rate)) for rate in (0.1, 0.2)])
    stack(torch.randn(3, 2))
    assert stack.plans["graph"].execution == "threads"


@pytest.mark.parametrize("kind", ["gradients", "graph"])
def test_chunks_are_a_matter_of_sizes_not_of_free_memory(kind, monkeypatch) -> None:
    """Where memory is scarce there is a warning, and the same chunks."""
    plans = []
    monkeypatch.setattr(plan, "CHUNK_BYTES", 5000)
    for free in (10**12, 10**3):
        monkeypatch.setattr(plan, "free_bytes", lambda device, free=free: free)
        scarce = pytest.warns(UserWarning, match="1 kB free. Give chunk_size=1 with")
        with scarce if free == 10**3 else nullcontext():
            plans.append(used(dense, kind, num_modes=5))
    assert plans[0] == plans[1]
    assert plans[0].execution == "chunked" and 1 <= plans[0].chunk_size < 5


def test_the_stopwatch_takes_what_the_clock_favours(monkeypatch) -> None:
    """Whichever of the candidates that is."""
    torch.set_num_threads(2)
    monkeypatch.setattr(plan.Job, "trial", lambda job, stack, chosen: lambda: chosen)
    tried: set[Plan] = set()
    monkeypatch.setattr(measure, "_seconds", lambda work: tried.add(work()) or 1.0)
    used(images, execution="measure")
    assert {chosen.execution for chosen in tried} == {"batched", "loop", "threads"}
    for favourite in sorted(tried, key=str):

        def clock(work, favourite=favourite) -> float:
            return 1.0 if work() == favourite else 1.5

        monkeypatch.setattr(measure, "_seconds", clock)
        assert used(images, execution="measure") == favourite


def test_a_network_that_cannot_be_batched_is_measured_in_other_ways() -> None:
    assert used(Recurrent, execution="measure").execution in ("loop", "threads")


BITS = """
import hashlib, os, sys, threading
import torch
import polymode as pm
from polymode.core import memory
from polymode.stack.fast import plan
from tests.stack.fast.test_plan import INPUTS, dense, images, text

if sys.argv[1] == "busy":
    plan.free_bytes = lambda device: 2**40
    over, ones = threading.Event(), torch.ones(300, 300)
    threading.Thread(target=lambda: [ones @ ones for _ in iter(over.is_set, True)]).start()
torch.set_num_threads(2)
stream = torch.Generator().manual_seed(0)
for _ in range(10):
    digest = hashlib.blake2b()
    for net in (dense, images, text):
        x = torch.randn(24, *INPUTS[net], generator=stream.manual_seed(0))
        task = pm.Task(train=(x, torch.arange(24) % 3), likelihood="categorical")
        post = pm.fit("deep_ensemble", net=net, task=task, num_modes=3, epochs=1, batch_size=8,
                      progress="silent")
        for tensor in [*post.stack.tensors().values(), post.predict(x).log_probs]:
            digest.update(tensor.contiguous().numpy().tobytes())
    print(digest.hexdigest())
if sys.argv[1] == "busy":
    over.set()
"""


@pytest.mark.cpu_seconds(25)
def test_the_same_seed_gives_the_same_bits_in_a_quiet_and_in_a_busy_process(tmp_path) -> None:
    """20 of 20 fits: with no cache folder, and with one that an earlier release has filled."""
    full = tmp_path / "full"
    full.mkdir()
    (full / "executions.json").write_text('{"job": ["loop", false, null, 1, false]}')
    digests = []
    for load, cache in (("quiet", "/nowhere"), ("busy", str(full))):
        environment = {**os.environ, "POLYMODE_CACHE": cache, "PYTHONPATH": os.getcwd()}
        run = [sys.executable, "-W", "ignore", "-c", BITS, load]
        done = subprocess.run(run, capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == 0, done.stderr
        digests += done.stdout.split()
    assert len(digests) == 20 and len(set(digests)) == 1


def test_constants_of_code_are_the_same_in_every_process() -> None:
    """The order in which a set is shown differs from process to process."""
    code = compile("lambda x: x in {'b', 'c', 'a'}", "", "eval")
    (inner,) = (constant for constant in code.co_consts if hasattr(constant, "co_code"))
    assert ["'a'", "'b'", "'c'"] in _plain(inner)[2]
    assert " at 0x" not in repr(_plain(code))
