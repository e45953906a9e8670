"""The bodies by name: where their weights come from, their network, and what it takes as inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from polymode.core.registry import Registry
from polymode.core.rng import generator
from polymode.tasks.bodies import efficientnet_lite, sentence_encoder
from polymode.tasks.bodies.sentence_encoder import Vocabulary
from polymode.tasks.bodies.weights import load_weights, read_weights
from polymode.tasks.files import load, require
from polymode.tasks.images.pixels import channels_first

SIDE = 96  # to which images are brought; the weights were trained with 224
LONGEST = 128  # tokens of a text that are read


class Body(NamedTuple):
    """A trained network without its head.

    Attributes:
        build: a network whose weights mean nothing yet, or that needs no file.
        skip: beginnings of names in the file of weights that are not the body's.
        batches: raw inputs to the network's inputs.
        has_file: whether weights are those of the data set of the same name.
        version: of how inputs are made; another one makes features anew.
    """

    build: Callable[[], nn.Module]
    skip: tuple[str, ...]
    batches: Callable[[Sequence[str] | np.ndarray], Tensor]
    has_file: bool = True
    version: int = 1


BODIES: Registry[Body] = Registry("body")
"""By name, which is that of the data set with its weights."""


def _images(images: Sequence[str] | np.ndarray) -> Tensor:
    return efficientnet_lite.as_inputs(channels_first(np.asarray(images)), SIDE)


def _texts(texts: Sequence[str] | np.ndarray) -> Tensor:
    words = load("all_minilm_l6_v2", ("words",))["words"]
    return Vocabulary.read(words.tobytes()).tokens(list(texts), LONGEST)


def _random_convolutions() -> nn.Module:
    """Return two random convolutions, (B, 3, 8, 8) to 256 features: a body that needs no file."""
    first, second = nn.Conv2d(3, 32, 3, bias=False), nn.Conv2d(32, 64, 3, bias=False)
    with torch.no_grad():
        for number, layer in enumerate((first, second)):
            weight = layer.weight
            noise = torch.randn(weight.shape, generator=generator(0, "random body", number))
            weight.copy_(noise * (2 / weight[0].numel()) ** 0.5)
    return nn.Sequential(
        first, nn.ReLU(), second, nn.ReLU(), nn.AvgPool2d(2), nn.Flatten()
    )  # fmt: skip


def _small_images(images: Sequence[str] | np.ndarray) -> Tensor:
    return channels_first(np.asarray(images)).float() / 255


BODIES.register("random_convolutions", summary="8x8 images to 256 features, random, for trials")(
    Body(_random_convolutions, (), _small_images, has_file=False)
)
BODIES.register("efficientnet_lite0", summary="images to 1,280 features, ImageNet")(
    Body(efficientnet_lite.build, ("_fc.",), _images)
)
BODIES.register("all_minilm_l6_v2", summary="sentences to 384 features")(
    Body(sentence_encoder.build, ("pooler.", "embeddings.position_ids"), _texts)
)


def load_body(name: str) -> nn.Module:
    """Return a body with its weights, frozen and in evaluation mode.

    Its weights must be here: `polymode data get NAME`.
    """
    body = BODIES.get(name).value
    if not body.has_file:
        return body.build().requires_grad_(False).eval()
    require(name)
    weights = read_weights(load(name, ("weights",))["weights"].tobytes(), f"the weights of {name}")
    return load_weights(body.build(), weights, body.skip).requires_grad_(False).eval()


def encoded(name: str, inputs: Sequence[str] | np.ndarray) -> Tensor:
    """Return what a body takes: texts as tokens (N, T), images (N, H, W, 3) as pixels."""
    return BODIES.get(name).value.batches(inputs)
