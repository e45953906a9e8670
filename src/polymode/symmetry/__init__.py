"""Symmetries of networks: which units can change places, which can be scaled, and what follows.

`find` reads them from a network's graph; `apply` acts with them; `canonical` and `align` remove
them, so that networks can be compared weight by weight; `representation_cost` is the least mass of
weights that scalings can give a network; `mmd` and `Reference` measure how far two samples of
networks are from each other.
"""

from __future__ import annotations

from polymode.symmetry.align import align
from polymode.symmetry.apply import Element, apply, element, random_element
from polymode.symmetry.canonical import canonical
from polymode.symmetry.cost import CostCurve, RepresentationCost, cost_curve, representation_cost
from polymode.symmetry.discrepancy import MMD, mmd
from polymode.symmetry.find import find
from polymode.symmetry.quality import Quality, Reference
from polymode.symmetry.samples import networks_of
from polymode.symmetry.unit_groups import Symmetries

__all__ = [
    "MMD", "CostCurve", "Element", "Quality", "Reference", "RepresentationCost", "Symmetries",
    "align", "apply", "canonical", "cost_curve", "element", "find", "mmd", "networks_of",
    "random_element", "representation_cost",
]  # fmt: skip
