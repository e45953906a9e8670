r"""Laplace approximations of M modes, as a source of networks and of Gaussian outputs.

`moments(x)` are those of the network that is linear in its weights around each mode; the centre is
the network's own output. `draw` gives networks with drawn weights, whose outputs are not linear in
them: these predict worse than the linear ones (Immer et al., AISTATS 2021), and are there for
comparison (`predictive="sampled"`) and for everything that needs a network.

Normalisation layers keep their running statistics. Eigenvectors are saved, so that loading repeats
no decomposition.

Links from Gaussian logits to class probabilities:

========  =====================================================================================
mc        softmax of L draws of the logits (`Moments.draw`)
probit    :math:`\mathrm{softmax}(\mu_c / \sqrt{1 + \pi v_c / 8})`; with one logit the sigmoid
          (MacKay, Neural Computation 1992)
bridge    the Dirichlet that the Gaussian turns into under the softmax (Hobbhahn et al., UAI 2022):
          :math:`\alpha_c = v_c^{-1} (1 - 2/C + e^{\mu_c} C^{-2} \sum_j e^{-\mu_j})`, its mean
========  =====================================================================================

The bridge's Gaussian sums to zero over the classes: μ and Σ are first conditioned on that sum. Its
mean follows the variances of the classes relative to each other; of two classes these are equal, so
that the mean knows nothing of them.

`file_layout` is what a file must hold, from the numbers in its manifest.

Shapes: `M` modes, `B` batch, `C` classes or one logit, `G` groups, `O` moving, `I` fixed features,
`S` numbers of a block, `K` directions, `P` numbers of a parameter.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence, Set
from typing import Any

import torch
from torch import Tensor

from polymode.core.memory import free_bytes, human
from polymode.core.safe_files import TensorForm
from polymode.core.threads import PerThread
from polymode.curvature.blocks import Block, Dense, Diagonal, Kronecker, LowRank
from polymode.curvature.tangent import Survey, Tangent
from polymode.likelihoods.components import Moments
from polymode.methods.laplace.gaussian import GaussianPosterior, joint_moments, output_moments
from polymode.posterior.weights import KINDS, Weights
from polymode.stack.execution import limit_threads
from polymode.stack.fast.plan import threads_for
from polymode.stack.stack import Stack
from polymode.tracing.modules import Tensors

LINKS = ("mc", "probit", "bridge")


def probit(moments: Moments) -> Tensor:
    """Return logits (M, B, C) whose softmax, or sigmoid, is the probit approximation."""
    return moments.loc * (1 + math.pi / 8 * moments.variance).rsqrt()


def bridge(moments: Moments) -> Tensor:
    """Return log-probabilities (M, B, C), the mean of the bridge's Dirichlet."""
    mean, spread = moments.loc, moments.spread
    if spread.dim() == mean.dim():
        spread = spread.diag_embed()
    total = spread.sum((-2, -1)).unsqueeze(-1)
    rows = spread.sum(-1)
    mean = mean - rows * mean.sum(-1, keepdim=True) / total
    variance = spread.diagonal(dim1=-2, dim2=-1) - rows.square() / total
    classes = mean.shape[-1]
    product = mean + torch.logsumexp(-mean, -1, keepdim=True)  # logarithm of e^μ Σ e^−μ
    alpha = (1 - 2 / classes + product.exp() / classes**2) / variance
    return alpha.log() - alpha.sum(-1, keepdim=True).log()


_CHOICES = {
    "predictive": ("linearised", "sampled"),
    "link": LINKS,
    "output_covariance": ("full", "position", "diagonal"),
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


class LaplaceWeights(Weights):
    """A Gaussian per mode around its network.

    Args:
        stack: the networks. posteriors: one Gaussian per mode.
        survey: what is known of the network's operations. num_outputs: K.
        samples_per_mode: L draws of logits or of weights.
        predictive: "linearised" or "sampled". link: see above.
        output_covariance: "full", "position" or "diagonal".
        log_evidence: of each mode, nats; None where it was not asked for.
        groups: the group of each parameter; its members share a precision.

    Attributes:
        precision: λ of each parameter tensor, (M,) by name.
    """

    kind = "laplace"

    def __init__(
        self,
        stack: Stack,
        posteriors: Sequence[GaussianPosterior],
        survey: Survey,
        num_outputs: int,
        samples_per_mode: int,
        predictive: str = "linearised",
        link: str = "mc",
        output_covariance: str = "full",
        log_evidence: Sequence[float] | None = None,
        groups: Mapping[str, str] | None = None,
    ) -> None:
        self.stack, self.posteriors, self.survey = stack, list(posteriors), survey
        self.num_outputs, self.samples_per_mode = num_outputs, samples_per_mode
        self.predictive, self.link = predictive, link
        self.output_covariance = output_covariance
        self.log_evidence = None if log_evidence is None else list(log_evidence)
        names = [name for block in self.posteriors[0].blocks for name in block.names]
        self.groups = dict(groups or dict.fromkeys(names, "all"))
        self._tangents: PerThread[dict[int, Tangent]] = PerThread(dict)

    @property
    def precision(self) -> Tensors:
        """λ of each parameter tensor that is not frozen, (M,) by name."""
        names = self.posteriors[0].precision
        return {n: torch.stack([p.precision[n] for p in self.posteriors]) for n in names}

    def tangent(self, k: int) -> Tangent:
        """Return the network of mode k, ready to be differentiated."""
        tangents = self._tangents()
        if k not in tangents:
            names = [name for block in self.posteriors[k].blocks for name in block.names]
            tangents[k] = Tangent(self.stack, k, self.survey, names)
        return tangents[k]

    def moments(self, x: Tensor) -> Moments | None:
        """Return the Gaussian of every mode's outputs, None where draws are asked for."""
        return None if self.predictive == "sampled" else self.linearised(x)

    def linearised(self, x: Tensor) -> Moments:
        """Return outputs (M, B, K) and their covariances of the linearised networks."""
        full = self.output_covariance != "diagonal" and self.num_outputs > 1
        with limit_threads(threads_for(self.stack, x)):
            moments = [
                output_moments(posterior, self.tangent(k), x, self.num_outputs, full)
                for k, posterior in enumerate(self.posteriors)
            ]
        return Moments(torch.stack([m for m, _ in moments]), torch.stack([s for _, s in moments]))

    def joint(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the Gaussian over the outputs at several inputs together: means (M, B, K) and
        covariances (M, B, K, B, K). J H^{-1/2} is written out, layer by layer: for few inputs."""
        numbers = self.num_outputs * len(x)
        largest = max(sum(block.sizes) for block in self.posteriors[0].blocks)
        need = numbers * (numbers + 2 * largest) * self.stack.dtype.itemsize
        if need > free_bytes(self.stack.device):
            raise ValueError(
                f"covariances between {len(x):,} inputs × {self.num_outputs} outputs need"
                f" {human(need)}; {human(free_bytes(self.stack.device))} free. Give fewer inputs"
            )
        outputs = [
            joint_moments(posterior, self.tangent(k), x, self.num_outputs)
            for k, posterior in enumerate(self.posteriors)
        ]
        return torch.stack([m for m, _ in outputs]), torch.stack([c for _, c in outputs])

    def logits(self, moments: Moments, samples_per_mode: int, seeds: Sequence[int]) -> Tensor:
        """Return logits (M, L, B, K): draws, or the one that a closed link stands for."""
        if self.link == "mc":
            return super().logits(moments, samples_per_mode, seeds)
        if samples_per_mode != 1:
            raise ValueError(
                f"`samples_per_mode` must be 1 where link='{self.link}' has no draws, got"
                f" {samples_per_mode}; take link='mc'"
            )
        return (probit if self.link == "probit" else bridge)(moments).unsqueeze(1)

    def draw(self, number: int, seed: int) -> Stack:
        noise = self.stack.normal("draw", seed, number)
        drawn: dict[str, list[Tensor]] = {name: [] for name in noise}
        for k, posterior in enumerate(self.posteriors):
            deviation = posterior.deviation({name: tensor[k] for name, tensor in noise.items()})
            for name, part in deviation.items():
                drawn[name].append(self.stack.params[name].detach()[k] + part)
        return self.stack.with_tensors({name: torch.stack(parts) for name, parts in drawn.items()})

    def __getitem__(self, modes: slice) -> LaplaceWeights:
        chosen, part = range(self.num_modes)[modes], copy.copy(self)
        part.stack, part._tangents = self.stack[modes], PerThread(dict)
        part.posteriors = [self.posteriors[k] for k in chosen]
        if self.log_evidence is not None:
            part.log_evidence = [self.log_evidence[k] for k in chosen]
        return part

    def with_precision(self, precision: float | Mapping[str, float]) -> LaplaceWeights:
        """Return the same networks and curvature under another prior, for all modes.

        Kronecker, diagonal and low-rank blocks keep their eigenvectors, and so does a dense one
        unless precisions change relative to each other.

        Args:
            precision: λ > 0 of all parameters, or of each group (`groups`).
        """
        titles = list(dict.fromkeys(self.groups.values()))
        values = precision if isinstance(precision, Mapping) else dict.fromkeys(titles, precision)
        if values.keys() != set(titles) or not all(value > 0 for value in values.values()):
            raise ValueError(
                f"`precision` must be a number > 0, or one for each of the groups"
                f" {', '.join(titles)}; got {precision!r}"
            )
        changed, like = copy.copy(self), next(iter(self.stack.params.values()))
        by_parameter = {
            name: torch.tensor(values[group]).to(like) for name, group in self.groups.items()
        }
        changed.posteriors = [
            posterior.with_precision(by_parameter) for posterior in self.posteriors
        ]
        changed.log_evidence = None
        return changed

    # ---------------------------------------------------------------- files

    def tensors(self) -> Tensors:
        tensors = self.stack.tensors()
        posteriors = [_named(posterior) for posterior in self.posteriors]
        tensors |= {
            name: torch.stack([named[name] for named in posteriors]) for name in posteriors[0]
        }
        if self.log_evidence is not None:
            tensors["log_evidence"] = torch.tensor(self.log_evidence, dtype=torch.float64)
        return tensors

    def numbers(self) -> dict[str, Any]:
        survey = self.survey._asdict()
        return {
            "samples_per_mode": self.samples_per_mode,
            "num_outputs": self.num_outputs,
            "predictive": self.predictive,
            "link": self.link,
            "output_covariance": self.output_covariance,
            "groups": self.groups,
            "survey": {**survey, "shared": sorted(self.survey.shared)},
            "blocks": [_facts(block) for block in self.posteriors[0].blocks],
        }

    @classmethod
    def layout(
        cls, stack: Stack, forms: Mapping[str, TensorForm], numbers: dict[str, Any]
    ) -> dict[str, TensorForm]:
        """A precision for each parameter that has a block, the blocks, and perhaps the evidence."""
        return file_layout(stack, forms, numbers)

    @classmethod
    def restore(cls, stack: Stack, tensors: Tensors, numbers: dict[str, Any]) -> LaplaceWeights:
        facts = dict(numbers["survey"])
        facts |= {"shared": frozenset(facts["shared"]), "last": tuple(facts["last"])}
        posteriors = []
        for k in range(stack.num_modes):
            mode_tensors = {name: tensor[k] for name, tensor in tensors.items()}
            blocks = tuple(
                _restored(fact, _below(f"block/{place}", mode_tensors))
                for place, fact in enumerate(numbers["blocks"])
            )
            posteriors.append(GaussianPosterior(blocks, _below("precision", mode_tensors)))
        evidence = tensors["log_evidence"].tolist() if "log_evidence" in tensors else None
        return cls(
            stack,
            posteriors,
            Survey(**facts),
            numbers["num_outputs"],
            numbers["samples_per_mode"],
            numbers["predictive"],
            numbers["link"],
            numbers["output_covariance"],
            evidence,
            numbers["groups"],
        )


def _named(posterior: GaussianPosterior) -> Tensors:
    named = {f"precision/{name}": tensor for name, tensor in posterior.precision.items()}
    for place, block in enumerate(posterior.blocks):
        named |= {f"block/{place}/{name}": tensor for name, tensor in block.tensors().items()}
    return named


def _below(start: str, tensors: Tensors) -> Tensors:
    start += "/"
    return {n.removeprefix(start): t for n, t in tensors.items() if n.startswith(start)}


def _facts(block: Block) -> dict[str, Any]:
    """Return what a block is beside its tensors."""
    if isinstance(block, Kronecker):
        fixed = {"fixed_first": block.fixed_first, "fixed_basis": block.fixed_basis is not None}
        return {"kind": "kronecker", "name": block.name, **fixed}
    if isinstance(block, Diagonal):
        return {"kind": "diagonal", "name": block.name}
    if isinstance(block, Dense):
        about = {"lengths": list(block.lengths), "one_layer": block.one_layer}
        about["chosen"] = block.chosen is not None
        return {"kind": "dense", "names": list(block.names), **about}
    return {"kind": "low_rank", "names": list(block.names)}


def _restored(facts: dict[str, Any], tensors: Tensors) -> Block:
    kind = facts["kind"]
    if kind == "kronecker":
        parts: dict[str, Any] = {"fixed_basis": None, **tensors}
        return Kronecker(facts["name"], fixed_first=facts["fixed_first"], **parts)
    if kind == "diagonal":
        return Diagonal(facts["name"], **tensors)
    if kind == "dense":
        names, lengths = tuple(facts["names"]), tuple(facts["lengths"])
        return Dense(names, lengths, one_layer=facts["one_layer"], **tensors)  # type: ignore[arg-type]
    directions = {name: tensors[f"directions/{name}"] for name in facts["names"]}
    return LowRank(directions, tensors["values"])


KINDS[LaplaceWeights.kind] = LaplaceWeights
