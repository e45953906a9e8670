"""The examination `symmetry`: a posterior's networks against a reference, symmetries in or out.

The reference is a zoo of independent networks (`zoo=`, a folder or a recipe's name) or another
posterior that was saved (`against=`). MMD² compares weights as they are; NS is the same after
removal of the symmetries from both sides, in two canonical forms: *sorted* (units scaled to norm 1
and put in order) and *aligned* (scaled, then matched to the first network of the reference). The
number of each is the unbiased MMD² of all weights, mean over twenty kernels
(`symmetry/discrepancy.py`); the arrays hold every layer and kernel. The corollary's test
(`symmetry/corollary.py`) says whether units are exchangeable among the posterior's samples.

Lengthscales are those of the paper's code, found for each comparison from the distances between the
two sides. With `lengthscales="reference"` they are found once from the reference, so that numbers
of different posteriors are distances in one and the same space.

The canonical forms of a reference and the distances within it are kept for the next posterior.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from polymode.core.options import Config, option, rule
from polymode.examinations.examination import EXAMINATIONS
from polymode.examinations.findings import Findings, NotApplicable, measure, require_one_input
from polymode.metrics.results import Row
from polymode.posterior import Posterior
from polymode.posterior.files import load
from polymode.stack.stack import Stack
from polymode.symmetry.corollary import largest_units, uniformity
from polymode.symmetry.forms import FORMS, hidden_layers, in_form
from polymode.symmetry.quality import Quality, Reference
from polymode.symmetry.samples import networks_of
from polymode.tasks import Task
from polymode.tracing.modules import Tensors
from polymode.zoo import find_zoo

_MOST_KEPT = 2  # references held at a time


class _Held(NamedTuple):
    """A reference in all forms, and the network that others are aligned with."""

    forms: dict[str, Reference]
    first: Stack


_held: dict[tuple[Any, ...], _Held] = {}


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


@dataclass(frozen=True, kw_only=True)
class Symmetry(Config):
    """Options of `symmetry`."""

    called = "symmetry"
    zoo: str = option(
        "",
        rule=rule(
            "a folder or the name of a recipe; an open zoo has its own in zoo.folder", _is_text
        ),
        doc="folder of a zoo, or a recipe, which is trained if it is not there yet",
    )
    against: str = option(
        "",
        rule=rule("the folder of a posterior that was saved: other.save(FOLDER)", _is_text),
        doc="folder of a posterior that `save` wrote, of the same network",
    )
    num_reference: int = option(1000, ge=2, doc="networks of the zoo")
    num_permutations: int = option(100, ge=2, doc="divisions at random for the null")
    lengthscales: str = option(
        "cross",
        choices=("cross", "reference"),
        doc="found for each comparison, or the same for all",
    )
    samples_per_mode: int | None = option(
        None, ge=1, doc="L", none="is that of the posterior's predictions"
    )

    rules = (
        rule(
            "{name} needs one reference: zoo=FOLDER or RECIPE, or against=FOLDER",
            lambda options: bool(options.zoo) != bool(options.against),
        ),
    )


MEASURES = {
    "mmd": "unbiased MMD² of all weights against the reference, mean over 20 kernels",
    "mmd_null_std": "its standard deviation when networks are divided at random",
    "mmd_p": "share of such divisions with a value at least as large",
    "mmd_layers": "the same MMD² of each layer, mean over layers",
    "mmd_between": "the same from pairs of different modes alone: 0 if modes are draws from where"
    " the reference is from",
    "corollary_p": "p that the unit of the largest weight is uniform; smallest of the layers'"
    " times their number",
}
for _form, _words in FORMS.items():
    MEASURES |= {
        f"ns_{_form}": f"MMD² after removal of symmetries, {_words}",
        f"ns_{_form}_null_std": "its standard deviation when networks are divided at random",
        f"ns_{_form}_p": "share of such divisions with a value at least as large",
        f"ns_{_form}_layers": "the same of each layer, mean over layers",
        f"ns_{_form}_between": "the same from pairs of different modes alone",
    }


@EXAMINATIONS.register(
    "symmetry",
    summary="MMD of the weights to a zoo of independent networks, with symmetries and without",
    measures=MEASURES,
    options=Symmetry,
)
def symmetry(post: Posterior, task: Task, options: Symmetry) -> Findings:
    """Return how far the posterior's networks are from a reference; see the module."""
    require_one_input("symmetries are found in networks of one input", post.input_shape)
    if post.weights.like.calling is not None:
        raise NotApplicable("symmetries are found in networks that return one tensor")
    stack = networks_of(post, options.samples_per_mode)
    if stack.num_modes < 2:
        raise NotApplicable("symmetry needs at least 2 samples; this posterior has 1")
    modes = torch.arange(post.num_modes).repeat(stack.num_modes // post.num_modes)
    held = _reference(post, options)
    rows: list[Row] = []
    arrays: dict[str, np.ndarray] = {}
    for form, reference in held.forms.items():
        params = in_form(form, stack, held.first, post.input_shape)
        quality = reference.compare(params, modes=modes, num_permutations=options.num_permutations)
        rows += _rows(form, quality, stack.num_modes, post.num_modes)
        arrays |= _arrays(form, quality)
    smallest, layers = 1.0, hidden_layers(stack, post.input_shape)
    for layer in layers:
        weights = stack.params[layer]
        tested = uniformity(largest_units(weights), weights.shape[1])
        smallest = min(smallest, tested.p_value * len(layers))
    rows.append(measure("corollary_p", smallest, n=stack.num_modes))
    return Findings(tuple(rows), arrays)


def _rows(form: str, quality: Quality, count: int, modes: int) -> list[Row]:
    name, between = f"ns_{form}" if form else "mmd", quality.whole.between
    note = "n/a (one mode)" if between is None else ""
    value = None if between is None else float(between.mean())
    return [
        measure(f"{name}_between", value, direction="down", n=modes, note=note),
        measure(name, quality.whole.aggregate, direction="down", n=count),
        measure(f"{name}_null_std", quality.whole.null_std, n=len(quality.whole.null)),
        measure(f"{name}_p", quality.whole.p_value, n=len(quality.whole.null)),
        measure(f"{name}_layers", quality.layer_mean, direction="down", n=len(quality.layers)),
    ]


def _arrays(form: str, quality: Quality) -> dict[str, np.ndarray]:
    """Return unbiased and biased MMD² of all weights and of each layer, (1 + layers, 2, 10)."""
    name, every = form or "as they are", [quality.whole, *quality.layers.values()]
    kernels = quality.whole.each_null
    assert kernels is not None
    return {
        f"{name}: unbiased": np.stack([result.unbiased.numpy() for result in every]),
        f"{name}: biased": np.stack([result.biased.numpy() for result in every]),
        f"{name}: null s.d.": np.array([result.null_std for result in every]),
        f"{name}: lengthscales": np.stack([result.lengthscales.numpy() for result in every]),
        f"{name}: null s.d. of each kernel": kernels.std(0).numpy(),
    }


def _reference(post: Posterior, options: Symmetry) -> _Held:
    """Return the reference, made once."""
    number, fixed = options.num_reference, options.lengthscales == "reference"
    if options.zoo:
        reference_zoo = find_zoo(options.zoo, number)
        key: tuple[Any, ...] = (str(reference_zoo.folder), reference_zoo.digest, number, fixed)
        stack = None if key in _held else reference_zoo.stack(0, number)
    else:
        path = Path(options.against) / "posterior.json"
        key = (str(path), path.stat().st_mtime_ns if path.exists() else 0, number, fixed)
        if key not in _held:
            posterior = load(options.against, net=post[:1].members[0])
            stack = networks_of(posterior)
            stack = stack[: min(number, stack.num_modes)]
    if key not in _held:
        assert stack is not None
        first = stack[[0]]
        forms: dict[str, Tensors] = {
            form: in_form(form, stack, first, post.input_shape) for form in ("", *FORMS)
        }
        while len(_held) >= _MOST_KEPT:
            _held.pop(next(iter(_held)))
        references = {form: Reference(params, fixed=fixed) for form, params in forms.items()}
        _held[key] = _Held(references, first)
    return _held[key]
