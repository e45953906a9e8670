"""Numbers of the talk, as printed.

Its second table, ResNet-50 on CIFAR-10, is not held against anything: its caption says negative
log-likelihoods, but all its entries are below 0, which those of ten classes cannot be, and read as
log-likelihoods they would say the opposite of the text.
"""

from __future__ import annotations

from typing import NamedTuple


class Printed(NamedTuple):
    """Test NLL of the four variants, mean and spread; None where nothing is printed."""

    linear_single: tuple[float, float] | None
    linear_multiple: tuple[float, float]
    trained_single: tuple[float, float] | None
    trained_multiple: tuple[float, float]


TABLE = {
    "transformer": Printed((0.162, 0.042), (0.162, 0.042), (0.310, 0.060), (0.162, 0.042)),
    "cnn": Printed((0.025, 0.000), (0.025, 0.000), (0.253, 0.001), (0.205, 0.002)),
    "resnet": Printed((0.017, 0.000), (0.016, 0.001), (0.252, 0.006), (0.236, 0.005)),
    "preactivation_resnet": Printed((0.017, 0.000), (0.016, 0.000), (0.220, 0.004), (0.239, 0.004)),
    "fixup": Printed((0.055, 0.006), (0.061, 0.005), (0.153, 0.021), (0.200, 0.018)),
    "unet": Printed(None, (-2.240, 0.027), None, (-1.703, 0.023)),
}
