"""Small convolutional networks: OptuNet, LeNet and a plain CNN.

`optunet`: OptuMNIST-v1 (O. Laurent, ENSTA, github.com/ENSTA-U2IS-AI/optuMNIST), the public relative
of the network whose thousands of solutions are compared in O. Laurent, E. Aldea, G. Franchi, "A
symmetry-aware exploration of Bayesian neural network posteriors", ICLR 2024; its sizes were found
by the hyperparameter search Optuna. The paper's OptuNet has slightly more parameters (reportedly
392), and we know of no public code for it.

`lenet`: Y. LeCun, L. Bottou, Y. Bengio, P. Haffner, "Gradient-based learning applied to document
recognition", Proc. IEEE 86 (1998), in the form used since: ReLU and max-pooling, every map of the
second convolution sees all six of the first, and a linear last layer.

`cnn`: Y. Li, Y. Gal, "Dropout inference in Bayesian neural networks with alpha-divergences", ICML
2017: two convolutions of 32 channels, max-pooling by 2, 100 units, dropout before both dense
layers, for MNIST. `B` batch, `K` outputs.
"""

from __future__ import annotations

from torch import nn

from polymode.core.checks import Count, Probability, Shape, Sizes, check_call
from polymode.nets.sizes import check_image, check_sizes
from polymode.tracing.modules import not_too_large


@not_too_large()
def optunet(input_shape: Shape, num_outputs: int) -> nn.Sequential:
    """Return conv 2 (4x4), max-pooling by 3, conv 10 (5x5, two groups), global mean, dense 3-K.

    355 parameters for (1, 28, 28) and 10 outputs (32 + 250 + 33 + 40), as published; the
    convolutions have no biases. The authors name an accuracy of 75 to 85 % on MNIST. About one
    start in twenty has all three units before the outputs at zero on every image, and stays so.

    Args:
        input_shape: (C, H, W), H and W >= 18, so that the second convolution fits.
        num_outputs: K >= 1, `task.num_outputs`.

    Returns:
        module from (B, C, H, W) to (B, K).

    >>> sum(p.numel() for p in optunet((1, 28, 28), 10).parameters())
    355
    """
    check_call(optunet, locals())
    check_sizes("optunet", input_shape, num_outputs)
    channels, _, _ = check_image("optunet", input_shape, smallest=18)
    return nn.Sequential(
        nn.Conv2d(channels, 2, kernel_size=4, bias=False),
        nn.ReLU(),
        nn.MaxPool2d(3),
        nn.Conv2d(2, 10, kernel_size=5, groups=2, bias=False),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(10, 3),
        nn.ReLU(),
        nn.Linear(3, num_outputs),
    )


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
