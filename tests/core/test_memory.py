"""Memory that is freed stays with the process, unless the user objects."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CODE = """
import resource, statistics, torch
from polymode.core import choice
from polymode.core.likelihoods import Categorical
from polymode.core.stack import Stack
from polymode.nets import resnet8

choice._BUDGET = 0.0
stack = Stack(lambda: resnet8((3, 32, 32), 10), 2, execution="threads").train()
x, y = torch.randn(64, 3, 32, 32), torch.arange(64) % 10
faults = []
for _ in range(8):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    stack.gradients(Categorical().nll, x, y)
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(statistics.median(faults[3:]))
"""


@pytest.mark.skipif("glibc" not in str(os.confstr("CS_GNU_LIBC_VERSION")), reason="glibc only")
def test_a_step_does_not_take_its_memory_anew() -> None:
    """Page faults of a step of two ResNet-8, median of five: none, and some thousand otherwise."""
    faults = {}
    for keep in ("1", "0"):
        environment = {**os.environ, "POLYMODE_KEEP_MEMORY": keep}
        run = [sys.executable, "-c", CODE]
        done = subprocess.run(run, capture_output=True, check=True, env=environment)
        faults[keep] = float(done.stdout)
    assert faults["1"] < faults["0"] / 4
