"""Dropout with a rate that is a parameter: the concrete relaxation of its masks.

    z = sigmoid((log p/(1 − p) + log u/(1 − u)) / t),   u ~ U(0, 1),   h ↦ h (1 − z) / (1 − p)

z tends to a Bernoulli(p) variable, 1 where a unit is dropped, as t → 0, and has a gradient with
respect to the log-odds a = log p/(1 − p) for every t. The paper's t is 0.1.

Reference: Y. Gal, J. Hron, A. Kendall, Concrete dropout, NeurIPS 2017, equation 5.

Shapes: `M` modes, `B` batch.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

LAYERS = {nn.Dropout: 0, nn.Dropout1d: 1, nn.Dropout2d: 2, nn.Dropout3d: 3}
"""Layers whose rate can be learned, with the number of last axes that share a mask."""


class ConcreteDropout(nn.Module):
    """A dropout layer whose rate is learned, in place of one of torch's.

    Args:
        rate: p to begin with, in (0, 1).
        shared: number of last axes that share a mask, 2 for channels of images.
        relaxation: t, > 0.
    """

    def __init__(self, rate: float, shared: int = 0, relaxation: float = 0.1) -> None:
        super().__init__()
        if not 0 < rate < 1:
            raise ValueError(f"`rate` of ConcreteDropout must be in (0, 1), got {rate!r}")
        self.log_odds = nn.Parameter(torch.tensor(math.log(rate / (1 - rate))))
        self.shared, self.relaxation = shared, relaxation

    def forward(self, x: Tensor) -> Tensor:
        return self._dropped(x, self.log_odds) if self.training else x

    def for_all_members(self, tensors: dict[str, Tensor], x: Tensor) -> Tensor:
        """The same for a stack: log-odds (M,), inputs (M, B, ...)."""
        odds = tensors["log_odds"].view(-1, *(1,) * (x.dim() - 1))
        return self._dropped(x, odds) if self.training else x

    def _dropped(self, x: Tensor, log_odds: Tensor) -> Tensor:
        like = x
        for axis in range(1, self.shared + 1):
            like = like.narrow(-axis, 0, 1)
        uniform = torch.rand_like(like)
        dropped = torch.sigmoid((log_odds + torch.logit(uniform)) / self.relaxation)
        return x * ((1 - dropped) * (1 + log_odds.exp()))  # 1 / (1 − p) = 1 + e^a


def with_learned_rates(module: nn.Module, relaxation: float) -> nn.Module:
    """Replace dropout layers in place by those whose rate is learned; return the module."""
    for path in dropout_layers(module):
        layer = module.get_submodule(path)
        parent, _, name = path.rpartition(".")
        owner = module.get_submodule(parent)
        learned = ConcreteDropout(float(layer.p), LAYERS[type(layer)], relaxation)  # type: ignore[index, arg-type]
        reference = next(module.parameters(), torch.zeros(()))
        owner._modules[name] = learned.to(reference.device, reference.dtype).train(layer.training)
    return module


def dropout_layers(module: nn.Module) -> dict[str, float]:
    """Return the paths of the layers whose rate can be learned, with their rates."""
    return {
        path: float(layer.p)  # type: ignore[arg-type]
        for path, layer in module.named_modules()
        if type(layer) in LAYERS and 0 < float(layer.p) < 1  # type: ignore[arg-type]
    }
