"""What a file of a Laplace approximation must hold, from the numbers in its manifest.

Shapes: `M` modes, `G` groups, `O` moving, `I` fixed features, `S` numbers of a block, `K`
directions, `P` numbers of a parameter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from typing import Any

import torch

from polymode.core.files import TensorForm
from polymode.curvature.tangent import Survey
from polymode.methods.laplace.links import LINKS
from polymode.stack.stack import Stack

_CHOICES = {
    "predictive": ("linearised", "sampled"),
    "link": LINKS,
    "output_covariance": ("full", "diagonal"),
}
_KINDS = ("matrix", "bias", "element", "single", "unused")
Sizes = dict[str, tuple[int, ...]]
"""Shapes of one mode's tensors, by name."""


def file_layout(
    stack: Stack, forms: Mapping[str, TensorForm], numbers: Mapping[str, Any]
) -> dict[str, TensorForm]:
    """Return the tensors beside the networks, see `Weights.layout`."""
    _check_numbers(numbers, stack.params.keys())
    named: list[str] = []
    sizes: Sizes = {}
    for place, facts in enumerate(numbers["blocks"]):
        start = f"block/{place}/"
        held = {n.removeprefix(start): f for n, f in forms.items() if n.startswith(start)}
        sizes |= {start + n: shape for n, shape in _block(facts, held, stack).items()}
        named += facts["names"] if "names" in facts else [facts["name"]]
    if sorted(named) != sorted(numbers["groups"]):
        raise ValueError("`blocks` and `groups` are not of the same parameters")
    sizes |= {f"precision/{name}": () for name in named}
    if "log_evidence" in forms:
        sizes["log_evidence"] = ()
    modes = stack.num_modes
    return {n: _form(n, (modes, *size), forms, stack.dtype) for n, size in sizes.items()}


def _form(
    name: str, shape: tuple[int, ...], forms: Mapping[str, TensorForm], dtype: torch.dtype
) -> TensorForm:
    """Return what a tensor must be; curvature may be more exact than the networks."""
    if name.endswith("/chosen"):
        dtype = torch.int64
    elif name in forms and forms[name].dtype in (torch.float32, torch.float64):
        dtype = forms[name].dtype
    return TensorForm(dtype, torch.Size(shape))


def _block(facts: Mapping[str, Any], held: Mapping[str, TensorForm], stack: Stack) -> Sizes:
    """Return the shapes of a block's tensors; numbers that the parameters leave open are the
    file's, where they agree with each other."""
    names = facts["names"] if "names" in facts else [facts["name"]]
    lengths = {name: stack.params[name][0].numel() for name in names}
    kind, total = facts["kind"], sum(lengths.values())
    if kind == "kronecker":
        return _kronecker(facts, total, held)
    if kind == "diagonal":
        return {"values": (total,)}
    if kind == "dense":
        if list(facts["lengths"]) != list(lengths.values()):
            raise ValueError(f"`lengths` of a dense block must be {list(lengths.values())}")
        if (
            type(facts["one_layer"]) is not bool
            or facts["one_layer"]
            and not _is_layer(facts, stack)
        ):
            raise ValueError(f"no layer has {', '.join(lengths)}, as `one_layer` says")
        some = facts.get("chosen", "chosen" in held)
        size = min(total, held["chosen"].shape[-1]) if some else total
        sizes: Sizes = {"values": (size,), "basis": (size, size), "relative": (len(lengths),)}
        return sizes | ({"chosen": (size,)} if some else {})
    if kind == "low_rank":
        rank = held["values"].shape[-1]
        return {f"directions/{n}": (rank, p) for n, p in lengths.items()} | {"values": (rank,)}
    raise ValueError(f"no block is of kind {kind!r:.40}")


def _kronecker(facts: Mapping[str, Any], total: int, held: Mapping[str, TensorForm]) -> Sizes:
    (groups, moving), fixed = held["moving"].shape[-2:], held["fixed"].shape[-1]
    if type(facts["fixed_first"]) is not bool or groups * moving * fixed != total:
        raise ValueError(
            f"the factors of '{facts['name']}' are for {groups * moving * fixed:,} numbers, it has"
            f" {total:,}"
        )
    sizes: Sizes = {
        "moving": (groups, moving),
        "moving_basis": (groups, moving, moving),
        "fixed": (groups, fixed),
    }
    if facts.get("fixed_basis", "fixed_basis" in held):  # earlier releases did not say
        sizes["fixed_basis"] = (groups, fixed, fixed)
    return sizes


def _is_layer(facts: Mapping[str, Any], stack: Stack) -> bool:
    """Whether a block's parameters are the weight (O, I) of one layer, and perhaps its bias."""
    weight, *bias = (stack.params[name][0] for name in facts["names"])
    return weight.dim() > 1 and [tuple(b.shape) for b in bias] in ([], [(len(weight),)])


def _check_numbers(numbers: Mapping[str, Any], params: Set[str]) -> None:
    """Refuse what no posterior of this network was saved with."""
    for name, choices in _CHOICES.items():
        if numbers[name] not in choices:
            raise ValueError(
                f"`{name}` must be one of {', '.join(choices)}, got {numbers[name]!r:.40}"
            )
    if type(numbers["num_outputs"]) is not int or numbers["num_outputs"] < 1:
        raise ValueError(f"`num_outputs` must be at least 1, got {numbers['num_outputs']!r:.40}")
    groups = numbers["groups"]
    if not isinstance(groups, dict) or not all(isinstance(g, str) for g in groups.values()):
        raise ValueError("`groups` must name the group of each parameter")
    survey = numbers["survey"]
    right = (
        isinstance(survey, dict)
        and survey.keys() == set(Survey._fields)
        and isinstance(survey["kinds"], dict)
        and all(kind in _KINDS for kind in survey["kinds"].values())
        and set(groups) <= survey["kinds"].keys() <= params
        and isinstance(survey["layouts"], list)
        and all(layout is None or isinstance(layout, str) for layout in survey["layouts"])
        and all(isinstance(survey[name], bool) for name in ("copies", "loops"))
        and all(set(survey[name]) <= params for name in ("shared", "last"))
        and type(survey["numbers"]) in (int, float)
        and 0 <= survey["numbers"] < math.inf
    )
    if not right:
        raise ValueError("`survey` does not describe this network")
