"""TorchUncertainty's packed and batch-ensemble layers, in its routine and trainer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..cases import Case, uncertainty
from . import Job
from .torch_uncertainty import loader, routine, trainer

from torch_uncertainty.layers import (  # isort: skip
    BatchConv2d,
    BatchLinear,
    PackedConv2d,
    PackedLinear,
)
from torch_uncertainty.methods import BatchEnsemble  # isort: skip


def _model(case: Case) -> nn.Module:
    """The case's network in the peer's layers."""
    torch.manual_seed(0)
    layers = list(case.make_net())  # type: ignore[call-overload]
    kinds = (nn.Linear, nn.Conv2d)
    places = [n for n, layer in enumerate(layers) if isinstance(layer, kinds)]
    for n in places:
        layers[n] = _converted(case, layers[n], n == places[0], n == places[-1])
    net = nn.Sequential(*layers)
    return net if case.option == "packed" else BatchEnsemble(net, case.num_modes)


def _converted(case: Case, layer: Any, first: bool, last: bool) -> nn.Module:
    linear = isinstance(layer, nn.Linear)
    sizes = (layer.weight.shape[1], layer.weight.shape[0])
    number = case.num_modes
    if case.option == "packed":
        ends = {"first": first, "last": last}
        if linear:
            return PackedLinear(*sizes, alpha=2, num_estimators=number, **ends)
        return PackedConv2d(*sizes, layer.kernel_size, alpha=2, num_estimators=number, **ends)
    if linear:
        return BatchLinear(*sizes, number)
    return BatchConv2d(*sizes, layer.kernel_size, number)


def train(case: Case) -> Job:
    """All members in one routine, shared batches."""

    def run() -> Callable[[Tensor], Tensor]:
        model = _model(case)
        trainer(case).fit(routine(case, model, case.num_modes), loader(case, shuffle=True))
        model.eval()
        return lambda inputs: model(inputs).unflatten(0, (case.num_modes, -1))

    return Job(run, case.num_steps)


def predict(case: Case) -> Job:
    """The forward pass and the three quantities, without the routine."""
    model = _model(case).eval()

    @torch.inference_mode()
    def run() -> list[Tensor]:
        parts = (
            uncertainty(model(inputs).unflatten(0, (case.num_modes, -1)))
            for inputs, _ in loader(case, shuffle=False)
        )
        return [torch.cat(values) for values in zip(*parts, strict=True)]

    return Job(run, case.num_steps)
