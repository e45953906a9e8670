"""`torch.func`: stacked parameters, one vmapped `functional_call`, one Adam."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from ..cases import Case, data, uncertainty
from . import Job


def stacked(nets: list[nn.Module]) -> tuple[dict[str, Tensor], Callable[..., Tensor]]:
    """Stacked parameters, and the function from inputs (B, ...) to all outputs (M, B, C); from
    inputs (M, B, ...) of each member's own with `own`."""
    params, buffers = stack_module_state(nets)
    net = nets[0]

    def one(params: dict[str, Tensor], buffers: dict[str, Tensor], inputs: Tensor) -> Tensor:
        return functional_call(net, (params, buffers), (inputs,))

    def forward(inputs: Tensor, own: bool = False) -> Tensor:
        return vmap(one, in_dims=(0, 0, 0 if own else None))(params, buffers, inputs)

    return params, forward


def train(case: Case) -> Job:
    """Loss summed over members (so no member's gradient is scaled), one backward, one Adam step."""
    x, y = data(case)

    def run() -> Callable[[Tensor], Tensor]:
        nets = case.members()
        params, forward = stacked(nets)
        optimizer = torch.optim.Adam(params.values(), lr=case.lr)
        for inputs, labels in case.own_batches(x, y):
            optimizer.zero_grad()
            logits = forward(inputs, own=True)
            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
            (loss / labels.shape[1]).backward()
            optimizer.step()
        nets[0].eval()
        return forward

    return Job(run, case.num_steps)


def train_toy(case: Case) -> Job:
    """The toy, all networks at once, plain SGD."""
    x, y = data(case)
    targets = y.float()[:, None]

    def run() -> Callable[[Tensor], Tensor]:
        params, forward = stacked(case.members())
        optimizer = torch.optim.SGD(params.values(), lr=case.lr)
        for inputs, labels in case.own_batches(x, targets):
            optimizer.zero_grad()
            logits = forward(inputs, own=True)
            loss = F.binary_cross_entropy_with_logits(logits, labels, reduction="sum")
            (loss / case.batch_size).backward()
            optimizer.step()
        return forward

    return Job(run, case.num_steps)


def predict(case: Case) -> Job:
    """Mean probabilities, entropy and mutual information, batch by batch."""
    x, _ = data(case)
    _, forward = stacked([net.eval() for net in case.members()])

    @torch.inference_mode()
    def run() -> list[Tensor]:
        parts = [uncertainty(forward(inputs)) for inputs in x.split(case.batch_size)]
        return [torch.cat(part) for part in zip(*parts, strict=True)]

    return Job(run, case.num_steps)
