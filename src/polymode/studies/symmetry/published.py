"""Numbers of the paper's table: ResNet-18, one mode and several modes of each method.

Source: O. Laurent, E. Aldea, G. Franchi, A symmetry-aware exploration of Bayesian neural network
posteriors, ICLR 2024, table 1 as its slides show it. MMD and NS are in a unit that neither the
slides nor the code name; accuracy, ECE, ACE, Brier score, AUPR and FPR95 in percent; mutual
information in nats × 100, as its size suggests. OOD for CIFAR-100 is SVHN.
"""

from __future__ import annotations

from typing import NamedTuple


class Printed(NamedTuple):
    """One line of the table."""

    mmd: float
    ns: float
    accuracy: float
    ece: float
    ace: float
    brier: float
    aupr: float
    fpr95: float
    id_mi: float
    ood_mi: float


CIFAR100 = {
    "Dropout, one": Printed(4.5, 7.5, 74.2, 14.7, 3.2, 38.8, 76.4, 47.7, 5.7, 9.1),
    "viBNN, one": Printed(9.0, 10.2, 57.9, 24.6, 3.0, 63.7, 60.9, 79.1, 2.7, 4.2),
    "SWAG, one": Printed(6.7, 7.2, 70.9, 2.3, 1.2, 38.9, 86.2, 48.0, 2.4, 6.3),
    "Laplace, one": Printed(5.7, 7.0, 75.1, 0.9, 0.9, 34.6, 81.3, 42.4, 27.6, 63.3),
    "SGHMC, one": Printed(7.5, 7.9, 73.7, 4.9, 1.0, 36.2, 79.4, 62.3, 0.2, 0.5),
    "Dropout, multi": Printed(0.7, 4.5, 79.5, 4.3, 1.0, 29.2, 78.2, 48.1, 20.5, 46.3),
    "viBNN, multi": Printed(6.1, 5.6, 66.5, 2.8, 2.0, 45.3, 71.9, 71.7, 45.5, 81.1),
    "SWAG, multi": Printed(5.0, 5.4, 72.8, 1.5, 1.1, 36.9, 89.1, 50.6, 6.5, 19.7),
    "Laplace, multi": Printed(0.6, 4.3, 78.9, 6.9, 0.8, 30.3, 82.9, 41.3, 44.1, 98.5),
    "DE": Printed(0.0, 0.0, 79.5, 1.6, 0.6, 28.7, 81.1, 45.6, 22.5, 58.0),
}
TINY_IMAGENET = {
    "Dropout, one": Printed(9.5, 4.9, 63.2, 16.4, 2.4, 53.9, 48.8, 81.1, 8.3, 8.4),
    "SWAG, one": Printed(9.1, 3.9, 66.4, 10.5, 0.7, 46.2, 61.9, 57.7, 3.0, 4.5),
    "Laplace, one": Printed(5.5, 6.1, 33.1, 6.0, 3.6, 77.1, 48.8, 77.7, 200.7, 228.0),
    "SGHMC, one": Printed(9.8, 5.3, 58.3, 2.6, 1.0, 54.1, 56.3, 72.7, 0.24, 0.30),
    "Dropout, multi": Printed(4.3, 1.8, 70.2, 9.9, 1.2, 42.1, 74.8, 58.2, 34.1, 60.0),
    "SWAG, multi": Printed(6.7, 5.4, 69.3, 3.6, 0.6, 41.3, 96.5, 55.9, 17.6, 32.1),
    "Laplace, multi": Printed(0.5, 3.1, 37.0, 10.9, 3.3, 75.1, 48.4, 72.5, 219.5, 254.7),
    "DE": Printed(0.0, 0.0, 70.3, 6.5, 0.7, 40.9, 86.3, 50.2, 38.4, 83.4),
}
TABLES = {"cifar100": CIFAR100, "tiny_imagenet": TINY_IMAGENET}
"""By the part that repeats it."""

TOLERANCE = {
    "accuracy": 1.5, "ece": 2.0, "ace": 1.0, "brier": 3.0, "aupr": 5.0, "fpr95": 10.0,
    "id_mi": 10.0, "ood_mi": 20.0,
}  # fmt: skip
"""What counts as the same, in the table's units; hyperparameters are not published, so it is wide.
MMD and NS are not compared: their unit is not known."""
