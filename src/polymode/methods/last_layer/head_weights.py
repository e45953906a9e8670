r"""A Gaussian over the last linear layer of each mode, its outputs in closed form.

.. math:: w_k \sim N(\bar w_k, R_k R_k^\top), \quad
          f_k(x) \sim N(\bar w_k^\top \phi(x), \|R_k^\top \phi(x)\|^2)

for each output k by itself; φ are the network's features, with a one for the bias. Values are
predicted in closed form, classes by draws of the logits or in the mean field: with `link="probit"`
from logits that are divided by :math:`\sqrt{1 + \pi v / 8}`.

Shapes: `M` modes, `L` samples per mode, `B` batch, `F` features with the one, `K` outputs.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from polymode.core.safe_files import TensorForm
from polymode.likelihoods.components import Moments
from polymode.methods.last_layer.cut import (
    checked_features,
    head_params,
    joint_weight,
    names_of,
    with_ones,
    without_head,
)
from polymode.posterior.weights import KINDS, Weights, form_of
from polymode.stack.stack import Stack
from polymode.tracing.modules import Tensors

LINKS = ("mc", "probit")


class HeadWeights(Weights):
    """Networks whose last layer has a Gaussian around its weights.

    Args:
        stack: one network per mode, the last layer at its mean.
        head: path of the last layer.
        root: R, square roots (M, K, F, F) of covariances, or standard deviations (M, K, F).
        samples_per_mode: L draws of logits or of networks.
        link: "mc" or "probit".
    """

    kind = "head"

    def __init__(
        self, stack: Stack, head: str, root: Tensor, samples_per_mode: int, link: str = "mc"
    ) -> None:
        self.stack, self.head, self.root = stack, head, root
        self.samples_per_mode, self.link = samples_per_mode, link

    def features(self, x: Tensor) -> Tensor:
        """Return what the last layer is called with, (M, B, F), with the ones of its bias."""
        params = head_params(self.stack, self.head)
        features = without_head(self.stack, self.head).eval()(x)
        return with_ones(checked_features(features, params), params)

    def moments(self, x: Tensor) -> Moments:
        features = self.features(x)
        mean = features @ joint_weight(head_params(self.stack, self.head)).detach().mT
        return Moments(mean, variances(features, self.root))

    def logits(self, moments: Moments, samples_per_mode: int, seeds: Sequence[int]) -> Tensor:
        if self.link == "mc":
            return super().logits(moments, samples_per_mode, seeds)
        if samples_per_mode != 1:
            raise ValueError(
                f"`samples_per_mode` must be 1 where link='{self.link}' has no draws, got"
                f" {samples_per_mode}; take link='mc'"
            )
        return (moments.loc * (1 + math.pi / 8 * moments.variance).rsqrt()).unsqueeze(1)

    def draw(self, number: int, seed: int) -> Stack:
        names = [name for name in names_of(self.head) if name in self.stack.params]
        noise = self.stack.normal("draw", seed, number)
        kinds = dict(zip(("weight", "bias"), (noise[name] for name in names), strict=False))
        joint = joint_weight(kinds)
        if self.root.dim() == joint.dim():
            deviation = self.root * joint
        else:
            deviation = (self.root @ joint.unsqueeze(-1)).squeeze(-1)
        size = self.stack.params[names[0]].shape[-1]
        parts = [deviation[..., :size], deviation[..., size:].squeeze(-1)]
        return self.stack.with_tensors(
            {n: self.stack.params[n].detach() + p for n, p in zip(names, parts, strict=False)}
        )

    def __getitem__(self, modes: slice) -> HeadWeights:
        part = copy.copy(self)
        part.stack, part.root = self.stack[modes], self.root[modes]
        return part

    def tensors(self) -> Tensors:
        return self.stack.tensors() | {"root": self.root}

    def numbers(self) -> dict[str, Any]:
        return {**super().numbers(), "head": self.head, "link": self.link}

    @classmethod
    def layout(
        cls, stack: Stack, forms: Mapping[str, TensorForm], numbers: dict[str, Any]
    ) -> dict[str, TensorForm]:
        """A root of the covariance, or its diagonal."""
        joint = joint_weight(head_params(stack, checked_numbers(stack, numbers)))
        full = "root" in forms and len(forms["root"].shape) == joint.dim() + 1
        return {"root": form_of(joint, (*joint.shape, *joint.shape[-1:] * full))}

    @classmethod
    def restore(cls, stack: Stack, tensors: Tensors, numbers: dict[str, Any]) -> HeadWeights:
        return cls(
            stack, numbers["head"], tensors["root"], numbers["samples_per_mode"], numbers["link"]
        )


def checked_numbers(stack: Stack, numbers: Mapping[str, Any]) -> str:
    """Return the path of the head that a file names, or refuse what no head was saved with."""
    head, link = numbers["head"], numbers["link"]
    layers = [path for path, m in stack.template.named_modules() if isinstance(m, nn.Linear)]
    if head not in layers:
        raise ValueError(f"`head` must be a linear layer of the network, got {head!r:.40}")
    if link not in LINKS:
        raise ValueError(f"`link` must be one of {', '.join(LINKS)}, got {link!r:.40}")
    return str(head)


def variances(features: Tensor, root: Tensor) -> Tensor:
    """Return ‖Rₖᵀ φ‖² (..., B, K) of features (..., B, F) and roots (..., K, F, F), (..., K, F)."""
    if root.dim() == features.dim():
        return features.square() @ root.square().mT
    spread = features.unsqueeze(-3) @ root  # (..., K, B, F)
    return spread.square().sum(-1).mT


KINDS[HeadWeights.kind] = HeadWeights
