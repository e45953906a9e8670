"""Packed-Ensembles: M thin networks with, together, about the cost of a few wide ones.

    hidden width of a member: ⌈⌊α w⌋ / M⌉ for w of the network that is given
    p(y | x) ≈ (1/M) Σ_m p(y | f_{θ_m}(x)),        θ_m = MAP of thin network m

α is `alpha`, M `num_modes`, γ `gamma`, the number of sub-groups of layers within a member. The
published implementation packs the members into grouped convolutions of one network; that is the
same functions and the same gradients as M thin networks, which is what they are here. So members
do not interact, and each is `map` on its own network.

Where paper and this differ: members shuffle the data for themselves (`data_order="own"`), where the
published ones share batches (`"shared"`). Widths that M does not divide are rounded up, as in the
authors' first code; their later code refuses them. In their ResNets the first convolution of each
block has no sub-groups, for which `ungrouped` names layers: with γ = 2 and `ungrouped="conv1"`
the numbers of parameters are theirs.

Limits: a thin network fits less than a wide one; whether M of them are worth more than one wide
network depends on the data. Networks that are given lend the first units of each layer.
Reference: O. Laurent, A. Lafage, E. Tartaglione, G. Daniel, J.-M. Martinez, A. Bursuc, G. Franchi,
    Packed-Ensembles for efficient uncertainty estimation, ICLR 2023.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from polymode.core.options import option, rule
from polymode.core.warn import warn
from polymode.methods.map import MAP, init, step
from polymode.methods.method import METHODS, Method
from polymode.nets.conversion import Conversion, thin
from polymode.nets.conversion.conversion import Sample

ROUNDING = 1.1  # of a width, beyond which it is said


def _is_pattern(value: object) -> bool:
    try:
        return value is None or (isinstance(value, str) and bool(re.compile(value)))
    except re.error:
        return False


@dataclass(frozen=True, kw_only=True)
class Packed(MAP):
    """Options of `packed`: those of `map`, with four members, and"""

    usual_modes = 4
    alpha: float = option(
        2.0,
        gt=0,
        doc="width of all members together, as a multiple of the given network's",
        more="A hidden width w becomes α w / M, rounded up; α = M is `deep_ensemble`.",
    )
    gamma: int = option(
        1,
        ge=1,
        doc="sub-groups of the layers between the first and the last",
        more="Fewer where they do not divide the widths, or where a sub-group of a convolution"
        " would have less than 64 channels.",
    )
    ungrouped: str | None = option(
        None,
        rule=rule("a regular expression or None", _is_pattern),
        doc="layers without sub-groups, by a regular expression that is searched in their names",
        none="leaves out none",
    )


def convert(config: Packed, num_modes: int, sample: Sample) -> Conversion | None:
    """Return how the network becomes a thin one."""
    if config.alpha > num_modes:
        raise ValueError(
            f"`alpha` of packed must be at most `num_modes`, got {config.alpha:g} for"
            f" {num_modes} member{'s' * (num_modes > 1)}: thin networks are not wider than the one"
            " given; take more members or a smaller alpha"
        )
    names = [path for path, _ in sample.module.named_modules()]
    pattern = config.ungrouped
    ungrouped = frozenset(name for name in names if pattern and re.search(pattern, name))
    if pattern and (config.gamma == 1 or not ungrouped):
        why = "gamma=1 has no sub-groups" if config.gamma == 1 else "no layer has such a name"
        warn(f"`ungrouped` of packed is {pattern!r}, but {why}; it has no effect")
    widths = thin.widths(sample.module)
    conversion = thin.plan(sample, thin.Thinning(config.alpha, num_modes, config.gamma, ungrouped))
    layers = {} if conversion is None else conversion.numbers["layers"]
    _warn_of_rounding(config.alpha / num_modes, widths, layers)
    if config.gamma > 1 and all(groups == 1 for _, _, groups in layers.values()):
        warn(
            f"`gamma` of packed is {config.gamma}, but no layer gets sub-groups: they are the first"
            f" or last ones, or too narrow (a convolution needs {thin.FEWEST_CHANNELS} channels"
            " per sub-group); leave `gamma` at 1"
        )
    return conversion


def _warn_of_rounding(
    factor: float, widths: Mapping[str, int], layers: Mapping[str, list[int]]
) -> None:
    """Say which layer is rounded up the most, where that is more than a tenth of its width."""
    over = {
        path: width / (factor * widths[path])
        for path, (_, width, _) in layers.items()
        if ROUNDING * factor * widths[path] < width < widths[path]
    }
    if over:
        path = max(over, key=lambda name: over[name])
        others = f", and those of {len(over) - 1} other layers" if len(over) > 1 else ""
        warn(
            f"packed rounds the {factor * widths[path]:g} units of '{path}' up to"
            f" {layers[path][1]} per member, {over[path] - 1:.0%} more{others}; take `num_modes`"
            " that divides alpha times the widths"
        )


METHODS.register(
    "packed",
    summary="thin networks from independent initialisations, predictions averaged",
    kind="many modes",
    equation="p(y | x) ≈ (1/M) Σₘ p(y | f(x; θₘ)),  hidden widths α w / M",
    cost="about α²/M × training, α²/M × prediction",
    limits="Each member fits less than the whole network would; whether M thin networks are worth"
    " more than one wide one depends on the data.",
    paper="Laurent et al. 2023",
    sizes="by number of modes",
    bibtex="""@inproceedings{laurent2023packed,
  title={Packed-Ensembles for Efficient Uncertainty Estimation},
  author={Laurent, Olivier and Lafage, Adrien and Tartaglione, Enzo and Daniel, Geoffrey and
    Martinez, Jean-Marc and Bursuc, Andrei and Franchi, Gianni},
  booktitle={International Conference on Learning Representations}, year={2023}}""",
)(Method(Packed, init, step, convert=convert))
