"""Masksembles: members are fixed, overlapping parts of one network.

    f_m(x): each hidden layer sees its input times mask_m,    p(y | x) ≈ (1/M) Σ_m p(y | f_m(x))

Masks are drawn once, from the seed and a layer's name, as published (`nets/conversion/masked.py`):
with scale s two of them share 1 / (2 s − 1) of the units that they have together. So s = 1 is one
network, and a large s nearly a deep ensemble of small ones. All parameters are shared and follow
the mean of the members' gradients; running statistics are each member's own.

Where paper and this differ: the paper puts mask layers where the user wants them; here every Linear
and convolution behind the first gets one, as in later libraries. Members have batches of their own
by default, where the paper splits one batch. Layers of fewer than ten units are taken where M masks
can cover them.
Limits: a mask takes units away, so each member fits less; scale trades that for diversity.
Reference: N. Durasov, T. Bagautdinov, P. Baque, P. Fua, Masksembles for uncertainty estimation,
    CVPR 2021.

Shapes: `M` modes, `C` units.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from polymode.core.options import option
from polymode.core.rng import generator
from polymode.methods import map as map_method
from polymode.methods.batch_ensemble import finish, step
from polymode.methods.map import MAP, State
from polymode.methods.method import METHODS, Method, Problem
from polymode.nets.conversion import Conversion, masked
from polymode.nets.conversion.conversion import Sample
from polymode.stack.stack import Stack


@dataclass(frozen=True, kw_only=True)
class Masksembles(MAP):
    """Options of `masksembles`: those of `map`, with four members, and"""

    usual_modes = 4
    stops_together = True
    scale: float = option(
        2.0,
        ge=1,
        le=6,
        doc="how little masks overlap: two share 1 / (2 scale − 1) of their units",
        more="1 is one network; the authors use up to 6.",
    )


def convert(config: Masksembles, num_modes: int, sample: Sample) -> Conversion:
    """Return which layers get masks."""
    return masked.plan(sample)


def init(config: Masksembles, problem: Problem, stack: Stack) -> State:
    """Draw the masks, unless the networks have theirs from an earlier training."""
    names = [name for name in stack.buffers if name.rpartition(".")[2] == "mask"]
    if not names:
        raise ValueError(
            "masksembles masks what linear layers and convolutions take in from trained layers, but"
            " the network has no such layer; take one with hidden layers, or batch_ensemble"
        )
    if all(bool(stack.buffers[name].all()) for name in names):
        for name in names:
            _set_mask(config, problem, stack, name)
    return map_method.init(config, problem, stack)


def _set_mask(config: Masksembles, problem: Problem, stack: Stack, name: str) -> None:
    mask, stream = stack.buffers[name], generator(problem.seed, "masks", name)
    try:
        values = masked.draw_masks(mask.shape[1], len(stack), config.scale, stream)
    except ValueError as error:
        layer = name.removesuffix(".mask")
        raise ValueError(
            f"masksembles cannot mask '{layer}': {error}; take a wider layer, fewer `num_modes` or"
            " a smaller `scale`"
        ) from None
    with torch.no_grad():
        mask.copy_(values)


METHODS.register(
    "masksembles",
    summary="one network whose members are fixed, overlapping parts of its units",
    kind="many modes",
    equation="p(y | x) ≈ (1/M) Σₘ p(y | f(x; θ, maskₘ))",
    cost="M × training, M × prediction; parameters of one network",
    limits="A mask takes units away, so each member fits less than the network would.",
    paper="Durasov et al. 2021",
    bibtex="""@inproceedings{durasov2021masksembles,
  title={Masksembles for Uncertainty Estimation},
  author={Durasov, Nikita and Bagautdinov, Timur and Baque, Pierre and Fua, Pascal},
  booktitle={IEEE/CVF Conference on Computer Vision and Pattern Recognition}, year={2021}}""",
)(Method(Masksembles, init, step, finish, convert=convert, uses_inputs=lambda config: True))
