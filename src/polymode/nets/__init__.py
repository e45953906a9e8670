"""Reference networks: functions from (input_shape, num_outputs) to a plain `nn.Module`."""

from __future__ import annotations

from polymode.nets.lenet import lenet
from polymode.nets.mlp import mlp

__all__ = ["lenet", "mlp"]
