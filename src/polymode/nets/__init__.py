"""Reference networks: functions from (input_shape, num_outputs) to a plain `nn.Module`.

From small to large; `docs/nets.md` has the table with sources and parameter
counts. `activations`, `filter_response` and `sizes` are what they share; `user_network` builds and
checks networks that users bring.
"""

from __future__ import annotations

from polymode.nets.convolutional import cnn, lenet, optunet
from polymode.nets.mlp import mlp
from polymode.nets.resnet import resnet, resnet8, resnet18, resnet20
from polymode.nets.tabular import tabular
from polymode.nets.unet import unet
from polymode.nets.vit import vit

__all__ = [
    "mlp", "optunet", "lenet", "cnn", "resnet8", "resnet20", "resnet18", "resnet", "vit", "unet",
    "tabular",
]  # fmt: skip
