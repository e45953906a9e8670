"""A network that takes inputs in their own units and standardises them itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from polymode.likelihoods.scaling import Scaling


class Standardised(nn.Module):
    """A network behind (x − shift) / scale.

    So predictions, attacks and files are in the units of the inputs that were given, and nothing
    but the network knows of the scaling.

    Args:
        network: gets the standardised inputs.
        scaling: of one example's features.
    """

    shift: Tensor
    scale: Tensor

    def __init__(self, network: nn.Module, scaling: Scaling) -> None:
        super().__init__()
        self.network = network
        like = next(network.parameters(), torch.zeros(()))
        self.register_buffer("shift", scaling.shift.to(like))
        self.register_buffer("scale", scaling.scale.to(like))

    def forward(self, x: Tensor) -> Tensor:
        """Return the network's outputs at raw inputs."""
        outputs: Tensor = self.network((x - self.shift) / self.scale)
        return outputs


def standardised(networks: Any, scaling: Scaling) -> Any:
    """Return what makes networks, or one of them, such that they standardise their inputs."""
    if isinstance(networks, Standardised):
        return networks
    if isinstance(networks, nn.Module):
        return Standardised(networks, scaling)
    make: Callable[[], nn.Module] = networks
    return lambda: standardised(make(), scaling)
