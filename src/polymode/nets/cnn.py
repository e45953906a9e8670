"""A plain convolutional network: 3x3 convolutions, one pooling, one hidden dense layer.

Source: Y. Li, Y. Gal, "Dropout inference in Bayesian neural networks with alpha-divergences", ICML
2017: two convolutions of 32 channels, max-pooling by 2, 100 units, dropout before both dense
layers, for MNIST. `B` batch, `K` outputs.
"""

from __future__ import annotations

from torch import nn

from polymode.core.checks import Count, Probability, Shape, Sizes, check_call
from polymode.nets.sizes import check_image, check_sizes
from polymode.tracing.modules import not_too_large


@not_too_large()
def cnn(
    input_shape: Shape,
    num_outputs: int,
    *,
    channels: Sizes = (32, 32),
    hidden: Count = 100,
    dropout: Probability = 0.0,
) -> nn.Sequential:
    """Return the network: 3x3 convolutions without padding, max-pooling by 2, dense hidden-K.

    471,478 parameters for (1, 28, 28) and 10 outputs (320 + 9,248 + 460,900 + 1,010).

    Args:
        input_shape: (C, H, W); H and W must leave something behind the convolutions.
        num_outputs: K >= 1, `task.num_outputs`.
        channels: of each convolution.
        hidden: units of the dense layer.
        dropout: probability in [0, 1) that an input of a dense layer is dropped.

    Returns:
        module from (B, C, H, W) to (B, K).

    >>> sum(p.numel() for p in cnn((1, 28, 28), 10).parameters())
    471478
    """
    check_call(cnn, locals())
    check_sizes("cnn", input_shape, num_outputs, dropout)
    if len(channels) == 0:
        raise ValueError("`channels` of cnn has no convolution; two are channels=(32, 32)")
    width, *sides = check_image("cnn", input_shape, smallest=2 * len(channels) + 2)
    layers: list[nn.Module] = []
    for number in channels:
        layers += [nn.Conv2d(width, number, kernel_size=3), nn.ReLU()]
        width = number
    height, length = ((side - 2 * len(channels)) // 2 for side in sides)
    drop = [nn.Dropout(dropout)] if dropout > 0 else []
    return nn.Sequential(
        *layers, nn.MaxPool2d(2), nn.Flatten(),
        *drop, nn.Linear(width * height * length, hidden), nn.ReLU(),
        *[nn.Dropout(dropout) for _ in drop], nn.Linear(hidden, num_outputs),
    )  # fmt: skip
