"""Symmetries of networks: which units can change places, which can be scaled, and what follows.

`find` reads them from a network's graph; `apply` acts with them; `canonical` and `align` remove
them, so that networks can be compared weight by weight; `representation_cost` is the least mass of
weights that scalings can give a network.
"""

from __future__ import annotations

from polymode.symmetry.align import align
from polymode.symmetry.apply import Element, apply, element, random_element
from polymode.symmetry.canonical import canonical
from polymode.symmetry.cost import CostCurve, RepresentationCost, cost_curve, representation_cost
from polymode.symmetry.find import find
from polymode.symmetry.groups import Symmetries

__all__ = [
    "CostCurve", "Element", "RepresentationCost", "Symmetries", "align", "apply", "canonical",
    "cost_curve", "element", "find", "random_element", "representation_cost",
]  # fmt: skip
