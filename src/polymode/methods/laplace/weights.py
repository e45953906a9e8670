"""Laplace approximations of M modes, as a source of networks and of Gaussian outputs.

`moments(x)` are those of the network that is linear in its weights around each mode; the centre is
the network's own output. `draw` gives networks with drawn weights, whose outputs are not linear in
them: these predict worse than the linear ones (Immer et al., AISTATS 2021), and are there for
comparison (`predictive="sampled"`) and for everything that needs a network.

Normalisation layers keep their running statistics. Eigenvectors are saved, so that loading repeats
no decomposition.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from polymode.core.files import TensorForm
from polymode.core.memory import free_bytes, human
from polymode.core.threads import PerThread
from polymode.curvature.blocks import Block, Dense, Diagonal, Kronecker, LowRank
from polymode.curvature.tangent import Survey, Tangent
from polymode.likelihoods.components import Moments
from polymode.methods.laplace.files import file_layout
from polymode.methods.laplace.gaussian import (
    GaussianPosterior,
    joint_moments,
    output_moments,
)
from polymode.methods.laplace.links import bridge, probit
from polymode.posterior.weights import KINDS, Weights
from polymode.stack.stack import Stack
from polymode.tracing.modules import Tensors


class LaplaceWeights(Weights):
    """A Gaussian per mode around its network.

    Args:
        stack: the networks. posteriors: one Gaussian per mode.
        survey: what is known of the network's operations. num_outputs: K.
        samples_per_mode: L draws of logits or of weights.
        predictive: "linearised" or "sampled". link: see `links.py`.
        output_covariance: "full" or "diagonal".
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
        full = self.output_covariance == "full" and self.num_outputs > 1
        each = [
            output_moments(posterior, self.tangent(k), x, self.num_outputs, full)
            for k, posterior in enumerate(self.posteriors)
        ]
        return Moments(torch.stack([m for m, _ in each]), torch.stack([s for _, s in each]))

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
        each = [
            joint_moments(posterior, self.tangent(k), x, self.num_outputs)
            for k, posterior in enumerate(self.posteriors)
        ]
        return torch.stack([m for m, _ in each]), torch.stack([c for _, c in each])

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
        return self.stack.with_tensors({name: torch.stack(each) for name, each in drawn.items()})

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
        each = {name: torch.tensor(values[group]).to(like) for name, group in self.groups.items()}
        changed.posteriors = [posterior.with_precision(each) for posterior in self.posteriors]
        changed.log_evidence = None
        return changed

    # ---------------------------------------------------------------- files

    def tensors(self) -> Tensors:
        found = self.stack.tensors()
        each = [_named(posterior) for posterior in self.posteriors]
        found |= {name: torch.stack([own[name] for own in each]) for name in each[0]}
        if self.log_evidence is not None:
            found["log_evidence"] = torch.tensor(self.log_evidence, dtype=torch.float64)
        return found

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
            own = {name: tensor[k] for name, tensor in tensors.items()}
            blocks = tuple(
                _restored(fact, _below(f"block/{place}", own))
                for place, fact in enumerate(numbers["blocks"])
            )
            posteriors.append(GaussianPosterior(blocks, _below("precision", own)))
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
    found = {f"precision/{name}": tensor for name, tensor in posterior.precision.items()}
    for place, block in enumerate(posterior.blocks):
        found |= {f"block/{place}/{name}": tensor for name, tensor in block.tensors().items()}
    return found


def _below(start: str, tensors: Tensors) -> Tensors:
    start += "/"
    return {n.removeprefix(start): t for n, t in tensors.items() if n.startswith(start)}


def _facts(block: Block) -> dict[str, Any]:
    """Return what a block is beside its tensors."""
    if isinstance(block, Kronecker):
        rest = {"fixed_first": block.fixed_first, "fixed_basis": block.fixed_basis is not None}
        return {"kind": "kronecker", "name": block.name, **rest}
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
        own: dict[str, Any] = {"fixed_basis": None, **tensors}
        return Kronecker(facts["name"], fixed_first=facts["fixed_first"], **own)
    if kind == "diagonal":
        return Diagonal(facts["name"], **tensors)
    if kind == "dense":
        names, lengths = tuple(facts["names"]), tuple(facts["lengths"])
        return Dense(names, lengths, one_layer=facts["one_layer"], **tensors)  # type: ignore[arg-type]
    directions = {name: tensors[f"directions/{name}"] for name in facts["names"]}
    return LowRank(directions, tensors["values"])


KINDS[LaplaceWeights.kind] = LaplaceWeights
