r"""A network that makes one image, linearised in its weights, and what is observed of the image.

    y = A f + noise,    noise ~ N(0, σ² I),    f = f̂ + J (θ − θ̃)  or  J θ,    θ ~ N(0, Σ)

f̂ is the image of the trained network, J (n, P) its Jacobian in the weights that have a prior
(`filter_prior.py`). Observations are then Gaussian with covariance K = A J Σ Jᵀ Aᵀ + σ² I.

Products with J and Jᵀ take many vectors at once; nothing here holds J.

Shapes: `n` pixels, `m` observations, `P` weights, `S` vectors at once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.func import vmap

from polymode.core.checks import Images, check_call
from polymode.core.text import first_line
from polymode.methods.laplace.linear_model import FORMS, Tangent
from polymode.stack.stack import Stack
from polymode.tomography.filter_prior import Block, FilterPrior, filter_prior
from polymode.tomography.operator import LinearOperator

_NUMBERS = 5 * 2**20  # of the activations that are held at a time, 100 passes at 28 x 28


class Linearised:
    """The linear model around a trained network, for one observed image.

    Args:
        net: a trained module, or `member` of a stack; from `x` to an image.
        x: the fixed input, (1, C, H, W) or whatever the module takes as one example.
        operator: A.
        prior: "matern", "isotropic", or a `FilterPrior` of the module.
        form: "offset", f = f̂ + J (θ − θ̃), or "jacobian", f = J θ; see `linear_model.py`.

    Attributes:
        image: f̂, (n,). shift: f − J θ, (n,). point: θ̃, (P,).
    """

    def __init__(
        self,
        net: nn.Module | Stack,
        x: Images,
        operator: LinearOperator,
        *,
        prior: str | FilterPrior = "matern",
        form: str = "offset",
        member: int = 0,
    ) -> None:
        check_call(Linearised.__init__, locals())
        if form not in FORMS:
            raise ValueError(f"`form` must be one of {', '.join(FORMS)}, got '{form}'")
        dtype = next(net.parameters()).dtype if isinstance(net, nn.Module) else net.dtype
        stack = Stack([net], dtype=dtype) if isinstance(net, nn.Module) else net
        if not 0 <= member < len(stack):
            raise ValueError(
                f"`member` must be one of {len(stack)}, 0 to {len(stack) - 1}, got {member}"
            )
        self._stack, self._member = stack, member
        self.prior = filter_prior(stack, prior) if isinstance(prior, str) else prior
        self.tangent = Tangent(stack, member, names=self.prior.names, form=form)
        self.operator, self.x = operator, x.to(dtype)
        try:
            self.image = self.tangent.outputs(self.x).flatten()
        except RuntimeError as error:
            raise ValueError(
                f"the network cannot evaluate `x` of shape {tuple(x.shape)}: {first_line(error)}"
            ) from error
        if self.image.numel() != operator.shape[1]:
            height, width = operator.image_shape
            raise ValueError(
                f"the network makes {self.image.numel()} pixels, the operator sees {height} ×"
                f" {width} = {operator.shape[1]}; give the input that the network was trained on"
            )
        self.shift = self.tangent.shift(self.x).flatten()
        self.point = self.tangent.point

    def with_prior(self, kind: str) -> Linearised:
        """Return the same linear model with the other kind of prior."""
        model = object.__new__(Linearised)
        model.__dict__.update(self.__dict__)
        model.prior = filter_prior(self._stack, kind)
        assert model.prior.names == self.prior.names
        return model

    @property
    def dtype(self) -> torch.dtype:
        return self.image.dtype

    def images(self, weights: Tensor) -> Tensor:
        """Return J w of weights (S, P): images (S, n)."""
        multiply = lambda vector: self.tangent.jvp(vector, self.x).flatten()  # noqa: E731
        return self._in_parts(multiply, weights, len(self.image))

    def weights(self, images: Tensor) -> Tensor:
        """Return Jᵀ c of images (S, n): weights (S, P)."""
        pull = lambda vector: self.tangent.vjp(vector[None], self.x)  # noqa: E731
        return self._in_parts(pull, images, len(self.point))

    def _in_parts(self, function: Callable[[Tensor], Tensor], rows: Tensor, width: int) -> Tensor:
        images = rows.new_empty(len(rows), width, dtype=self.dtype)
        for part in self._parts(len(rows)):
            vectors = rows[part].to(self.dtype)
            with warnings.catch_warnings():  # of kernels that are slow there, but right
                warnings.filterwarnings("ignore", "There is a performance drop")
                single = len(vectors) == 1
                images[part] = function(vectors[0])[None] if single else vmap(function)(vectors)
        return images

    def _parts(self, number: int) -> Iterator[slice]:
        step = max(1, _NUMBERS // (64 * len(self.image)))
        for begin in range(0, number, step):
            yield slice(begin, min(begin + step, number))

    def observe(self, images: Tensor) -> Tensor:
        """Return A of images (S, n): (S, m)."""
        return self.operator(images.view(len(images), 1, *self.operator.image_shape))

    def back(self, observations: Tensor) -> Tensor:
        """Return Aᵀ of observations (S, m): images (S, n)."""
        return self.operator.T(observations).flatten(1)

    def of_block(self, block: Block) -> Linearised:
        """Return the linear model in the weights of one block, with all others fixed."""
        model = object.__new__(Linearised)
        model.__dict__.update(self.__dict__)
        places = self.tangent.slices
        names = [
            name for name in self.prior.names if block.start <= places[name].start < block.stop
        ]
        model.prior = FilterPrior(
            tuple(names), (replace(block, start=0, stop=block.stop - block.start),)
        )
        model.tangent = Tangent(self._stack, self._member, names=names, form=self.tangent.form)
        model.point = model.tangent.point
        return model
