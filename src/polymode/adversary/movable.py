"""What an attack moves: one tensor of inputs, all real ones of several, or an embedding's output.

An attack searches one tensor (B, ...). Of several inputs it holds the real numbers of an example in
a row, in the order of their names, so that an L2 ball bounds all of them together and an L∞ ball
each one. Identifiers, masks and other whole numbers stay.

Where inputs are identifiers alone, an attack moves what the network's one embedding makes of them:
it searches a shift δ, and networks compute with e(x) + δ. All networks of a posterior get the same
δ, each with its own e(x). ε is then in the units of the embedding. No text belongs to such a
point: it is a worst case in the space of embeddings, not a sentence that somebody could write.

Reference: T. Miyato, A. Dai, I. Goodfellow, Adversarial training methods for semi-supervised text
classification, ICLR 2017, section 3 (perturbations of embeddings of words).

`B` batch.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from polymode.core.checks import as_numbers
from polymode.core.rows import Inputs, Rows, is_one_shape, leaves_of
from polymode.posterior import Posterior
from polymode.posterior.weights import of_stack
from polymode.stack.embedded import embeddings_of, with_shifts
from polymode.stack.vocabulary import explain_ids
from polymode.tracing.embeddings import beside_shifts


class NothingMoves(ValueError):
    """Inputs hold nothing that an attack could move."""


@dataclass(frozen=True)
class Movable:
    """The inputs of an attack, and the part of them that it moves.

    Attributes:
        inputs: (B, ...) as given, and as the networks take them.
        start: (B, ...) what moves, where it starts.
        embedding: path of the embedding whose output moves; None where inputs move.
    """

    inputs: Inputs
    start: Tensor
    embedding: str | None = None

    @property
    def space(self) -> str:
        """In which space `eps` is: that of the inputs, or of an embedding."""
        return "inputs" if self.embedding is None else f"embedding '{self.embedding}'"

    @property
    def is_whole(self) -> bool:
        """Whether what moves is all that the networks take."""
        return isinstance(self.inputs, Tensor) and self.embedding is None

    def rows(self, which: slice | Tensor) -> Movable:
        """Return some of the inputs."""
        return Movable(self.inputs[which], self.start[which], self.embedding)

    def inputs_at(self, moved: Tensor) -> Inputs:
        """Return what the networks take, differentiable with respect to `moved`."""
        if self.embedding is not None:
            return beside_shifts(self.inputs, [moved])
        if isinstance(self.inputs, Tensor):
            return moved
        real = [leaf for leaf in self.inputs.leaves if leaf.is_floating_point()]
        parts = iter(moved.split([leaf[0].numel() for leaf in real], 1))
        return self.inputs.map(
            lambda leaf: next(parts).view(leaf.shape) if leaf.is_floating_point() else leaf
        )

    def as_given(self, moved: Tensor) -> Any:
        """Return attacked inputs as users give them; of an embedding the shift of its output."""
        inputs = moved if self.embedding is not None else self.inputs_at(moved)
        return inputs.tree if isinstance(inputs, Rows) else inputs

    def read(self, post: Posterior, known: Any) -> Tensor:
        """Return what moves of inputs like these, which users give as `as_given` returns them."""
        if isinstance(self.inputs, Rows) and self.embedding is None:
            known = joined(post._inputs(known))
        known = as_numbers("`known` inputs", known)
        if known.shape != self.start.shape:
            shapes = f"{tuple(known.shape)}, the inputs {tuple(self.start.shape)}"
            raise ValueError(f"`known` inputs have shape {shapes}; give one for each input")
        return known.to(self.start)


def joined(x: Rows) -> Tensor:
    """Return all real numbers of several inputs, (B, D)."""
    real = [leaf for leaf in x.leaves if leaf.is_floating_point()]
    return torch.cat([leaf.reshape(len(x), -1) for leaf in real], 1)


def movable_of(post: Posterior, x: Any) -> Movable:
    """Return what an attack moves of inputs x, or say in one line why it moves nothing."""
    if is_one_shape(post.input_shape):
        x = as_numbers("Inputs `x`", x)
    else:
        x = post._inputs(x)
    real = [leaf for leaf in leaves_of(x) if leaf.is_floating_point()]
    if isinstance(x, Rows) and real:
        return Movable(x, joined(x).clone())
    if real:
        return Movable(x, x)
    x, like = post._inputs(x), post.weights.like
    path, shape = _embedding_of(post, x)
    start = torch.zeros(len(x), *shape, dtype=like.dtype, device=like.device)
    return Movable(x, start, path)


def _embedding_of(post: Posterior, x: Inputs) -> tuple[str, tuple[int, ...]]:
    """Return the one embedding that takes these identifiers, and the shape behind it."""
    types = ", ".join(sorted({str(leaf.dtype) for leaf in leaves_of(x)}))
    like = post.weights.like
    try:
        shapes = embeddings_of(like, x)
    except IndexError as error:
        explain_ids(error, like, x)
        raise
    except (RuntimeError, TypeError, ValueError):  # a network of real numbers
        shapes = {}
    if len(shapes) == 1:
        return next(iter(shapes.items()))
    if shapes:
        raise NothingMoves(
            f"attacks move the output of one embedding, and {len(shapes)} take these identifiers:"
            f" {', '.join(shapes)}; leave inputs that the network can do without (such as types of"
            " tokens) out, or attack a network that starts behind its embeddings"
        )
    raise NothingMoves(
        f"inputs are {types}, which an attack cannot move by less than 1, and no nn.Embedding takes"
        " them as they are, once; give images as x.float() / 255 with the scaling that the networks"
        " were trained with (`scaling`), or embedded tokens to a network that starts behind its"
        " embedding"
    )


def attacked_posterior(post: Posterior, movable: Movable) -> Posterior:
    """Return the posterior whose networks take `movable.inputs_at(moved)`, in the same memory."""
    if movable.embedding is None:
        return post
    weights = post.weights[:]  # in memory, where they are in files or on ranks
    beside = {name: tensor for name, tensor in weights.tensors().items() if not of_stack(name)}
    shifted = copy.copy(post)
    stack = with_shifts(weights.stack, [movable.embedding])
    shifted.weights = type(weights).restore(stack, beside, weights.numbers())
    return shifted
