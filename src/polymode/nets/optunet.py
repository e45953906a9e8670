"""OptuNet: a convolutional network with a few hundred weights.

Source: OptuMNIST-v1 (O. Laurent, ENSTA, github.com/ENSTA-U2IS-AI/optuMNIST), the public relative of
the network whose thousands of solutions are compared in O. Laurent, E. Aldea, G. Franchi, "A
symmetry-aware exploration of Bayesian neural network posteriors", ICLR 2024; its sizes were found
by the hyperparameter search Optuna. `B` batch, `K` outputs.

The paper's OptuNet has slightly more parameters (reportedly 392), and we know of no public code for
it; this is the public one.
"""

from __future__ import annotations

from torch import nn

from polymode.core.checks import Shape, check_call
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
