"""The least a training loop can do: `autograd.grad` and a fused Adam step, nothing checked."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from ..cases import Case, data
from . import Job
from .vmap import stacked


def train(case: Case) -> Job:
    """One network: the module itself; several: the vmapped stack."""
    x, y = data(case)

    def run() -> Callable[[Tensor], Tensor]:
        nets = case.members()
        if len(nets) == 1:
            params, forward = list(nets[0].parameters()), nets[0]
        else:
            by_name, forward = stacked(nets)
            params = list(by_name.values())
        optimizer = torch.optim.Adam(params, lr=case.lr, fused=True)
        for inputs, labels in case.own_batches(x, y):
            if len(nets) == 1:
                loss = F.cross_entropy(forward(inputs[0]), labels[0])
            else:
                logits = forward(inputs, own=True)
                loss = len(nets) * F.cross_entropy(logits.flatten(0, 1), labels.flatten())
            for param, grad in zip(params, torch.autograd.grad(loss, params), strict=True):
                param.grad = grad.contiguous()  # fused Adam assumes the layout of the parameter
            optimizer.step()
        return lambda inputs: forward(inputs).reshape(len(nets), len(inputs), -1)

    return Job(run, case.num_steps)
