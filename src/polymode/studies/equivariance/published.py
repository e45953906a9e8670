"""Numbers of the talk: orbit same predictions out of distribution, rotated Fashion-MNIST.

J. E. Gerken, P. Kessel, Emergent equivariance in deep ensembles, ICML 2024 (the slides of the
talk). What ± is, the OOD sets behind the table, the number of members, the network and its training
are not on the slides.
"""

from __future__ import annotations

from typing import NamedTuple


class Value(NamedTuple):
    """A number with what stands behind its ±."""

    mean: float
    spread: float


GROUPS = ("C4", "C8", "C16")
ENSEMBLE, ONE, STEERED, CANON = "DeepEns+DA", "only DA", "E2CNN", "Canon"
OSP: dict[str, dict[str, Value]] = {
    ENSEMBLE: {"C4": Value(3.85, 0.12), "C8": Value(7.72, 0.34), "C16": Value(15.24, 0.69)},
    ONE: {"C4": Value(3.41, 0.18), "C8": Value(6.73, 0.24), "C16": Value(12.77, 0.71)},
    STEERED: {"C4": Value(4.0, 0.0), "C8": Value(7.71, 0.21), "C16": Value(15.08, 0.34)},
    CANON: {"C4": Value(4.0, 0.0), "C8": Value(7.45, 0.14), "C16": Value(12.41, 0.85)},
}
