"""What a prediction costs: numbers held, and floating-point operations for one example.

Operations are counted by torch while the posterior predicts a batch of test inputs: matrix
products, convolutions and attention, a multiplication with its addition as two. Elementwise work is
not counted. Numbers held are those in memory: what members share counts once, running statistics
count, the weights of samples that are drawn anew at each prediction do not.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from polymode.core.rows import Rows
from polymode.examinations.examination import EXAMINATIONS
from polymode.examinations.findings import Findings, NotApplicable, measure
from polymode.posterior import Posterior
from polymode.stack.sharing import num_bytes
from polymode.tasks import Task
from polymode.training.data import Arrays

EXAMPLES = 64


@EXAMINATIONS.register(
    "price",
    summary="numbers that a posterior holds, and operations of a prediction",
    measures={
        "numbers_held": "floating-point numbers in memory; what members share counts once",
        "flops": "floating-point operations of predicting one example",
    },
)
def price(post: Posterior, task: Task) -> Findings:
    """Return the two numbers; operations are a mean over up to 64 test inputs in one batch."""
    inputs = _inputs(task)
    post.predict(inputs)  # traces and draws that are made once do not count
    with FlopCounterMode(display=False) as counter:
        post.predict(inputs)
    total, number = counter.get_total_flops(), len(inputs)
    held = sum(
        num_bytes(tensor) // tensor.element_size()
        for tensor in post.weights.tensors().values()
        if tensor.is_floating_point()
    )
    note = "" if total else "n/a (members run in threads, where operations are not counted)"
    return Findings(
        (
            measure("numbers_held", float(held), n=1, unit="numbers", direction="down"),
            measure(
                "flops", total / number if total else None, n=number, unit="flop/example",
                direction="down", note=note,
            ),
        )
    )  # fmt: skip


def _inputs(task: Task) -> Any:
    data = task.test if isinstance(task.test, Arrays) else task.train
    if not isinstance(data, Arrays) or not isinstance(data.x, torch.Tensor | Rows):
        raise NotApplicable("price needs a test set in memory")
    return data.x[:EXAMPLES]
