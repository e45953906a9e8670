"""LeNet: two convolutions and three dense layers, for small images.

Source: Y. LeCun, L. Bottou, Y. Bengio, P. Haffner, "Gradient-based learning applied to document
recognition", Proc. IEEE 86 (1998), in the form used since: ReLU and max-pooling, every map of the
second convolution sees all six of the first, and a linear last layer. `B` batch, `K` outputs.
"""

from __future__ import annotations

from torch import nn

from polymode.core.checks import Probability, Shape, check_call
from polymode.nets.sizes import check_image, check_sizes
from polymode.tracing.modules import not_too_large

SMALL = 20  # pixels: below, the convolutions are padded so that something is left of the image


@not_too_large()
def lenet(input_shape: Shape, num_outputs: int, *, dropout: Probability = 0.0) -> nn.Sequential:
    """Return LeNet: conv 6 and 16 (5x5, each with max-pooling by 2), dense 120-84-K.

    44,426 parameters for (1, 28, 28) and 10 outputs (156 + 2,416 + 30,840 + 10,164 + 850). The
    convolutions are not padded, except by 2 pixels where the shorter side has fewer than 20: then
    (1, 8, 8) gives 2x2 maps before the dense layers and 21,386 parameters with 10 outputs.

    Args:
        input_shape: (C, H, W), H and W >= 4.
        num_outputs: K >= 1, `task.num_outputs`.
        dropout: probability in [0, 1) that a unit of the two hidden dense layers is dropped.

    Returns:
        module from (B, C, H, W) to (B, K).

    >>> sum(p.numel() for p in lenet((1, 28, 28), 10).parameters())
    44426
    """
    check_call(lenet, locals())
    check_sizes("lenet", input_shape, num_outputs, dropout)
    channels, *sides = check_image("lenet", input_shape, smallest=4)
    padding = 2 if min(sides) < SMALL else 0
    height, width = (_after(_after(side, padding), padding) for side in sides)

    def dense(inputs: int, units: int) -> list[nn.Module]:
        layers: list[nn.Module] = [nn.Linear(inputs, units), nn.ReLU()]
        return [*layers, nn.Dropout(dropout)] if dropout > 0 else layers

    return nn.Sequential(
        nn.Conv2d(channels, 6, kernel_size=5, padding=padding),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, kernel_size=5, padding=padding),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        *dense(16 * height * width, 120),
        *dense(120, 84),
        nn.Linear(84, num_outputs),
    )


def _after(side: int, padding: int) -> int:
    """Return the side of the maps after a 5x5 convolution and pooling by 2."""
    return (side + 2 * padding - 4) // 2
