r"""A linear operator from images to observations, with its exact adjoint.

.. math:: y = A x, \qquad \langle A x, u\rangle = \langle x, A^\top u\rangle

`A(x)` maps images to observations and `A.T(y)` maps observations to images. Both can be used under
autograd and under `torch.func` (vjp, jvp, vmap and their compositions): derivatives of a linear map
are the map itself and its adjoint, so that is all that is evaluated. A sparse CSR tensor of torch
works under none of the three transforms, which is why it is wrapped here.

`inpainting` and `blur` see the image itself; projectors are in `projector.py`.

Shapes: `N` images at once, `H`, `W` height and width, `n` = H W pixels, `m` observations; `...`
for any leading axes.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from polymode.core.checks import Range, check_call
from polymode.core.memory import require_free

Rows = Callable[[Tensor], Tensor]
_SOME_ROWS = 2**25  # numbers of the rows that `matrix` evaluates at a time


class _Apply(torch.autograd.Function):
    """y = A x for rows (N, n) -> (N, m); its derivatives are itself and its adjoint."""

    @staticmethod
    def forward(rows: Tensor, apply: Rows, adjoint: Rows) -> Tensor:
        return apply(rows)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Rows, Rows], output: Tensor) -> None:
        _, ctx.rows_out, ctx.rows_back = inputs

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor, None, None]:
        return _Apply.apply(cotangents[0], ctx.rows_back, ctx.rows_out), None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        return _Apply.apply(tangents[0], ctx.rows_out, ctx.rows_back)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], rows: Tensor, apply: Rows, adjoint: Rows
    ) -> tuple[Tensor, int]:
        assert in_dims[0] is not None
        rows = rows.movedim(in_dims[0], 0)
        flat = _Apply.apply(rows.flatten(0, 1), apply, adjoint)
        return flat.unflatten(0, rows.shape[:2]), 0


@dataclass(frozen=True, eq=False)
class LinearOperator:
    """A linear map from images of one size to `m` observations.

    Args:
        image_shape: (H, W).
        num_observations: m >= 1.
        apply_rows: from rows (N, H W) to rows (N, m), linear.
        adjoint_rows: from rows (N, m) to rows (N, H W), its exact adjoint.
        name: what it is, for people.

    Most are made by `LinearOperator.from_matrix`, `LinearOperator.from_callable`, `inpainting`,
    `blur`, `parallel_beam` and `fan_beam`.
    """

    image_shape: tuple[int, int]
    num_observations: int
    apply_rows: Rows
    adjoint_rows: Rows
    name: str = "operator"

    @property
    def shape(self) -> tuple[int, int]:
        """(m, n): observations and pixels."""
        return self.num_observations, math.prod(self.image_shape)

    @property
    def T(self) -> Adjoint:
        """The adjoint, a map from observations (..., m) to images (..., 1, H, W)."""
        return Adjoint(self)

    def __repr__(self) -> str:
        height, width = self.image_shape
        return f"LinearOperator({self.name}: {height}×{width} → {self.num_observations:,})"

    def __call__(self, images: Tensor) -> Tensor:
        """Return the observations (..., m) of images (..., 1, H, W), in their dtype."""
        if tuple(images.shape[-3:]) != (1, *self.image_shape):
            height, width = self.image_shape
            raise ValueError(
                f"`images` of the {self.name} must have shape (..., 1, {height}, {width}), got"
                f" {tuple(images.shape)}; make the operator for images of this size, and give them"
                " a channel axis: images[:, None]"
            )
        leading = images.shape[:-3]
        rows = images.reshape(math.prod(leading), -1)
        return _Apply.apply(rows, self.apply_rows, self.adjoint_rows).reshape(*leading, -1)

    def adjoint(self, observations: Tensor) -> Tensor:
        """Return A^T of observations (..., m), images (..., 1, H, W)."""
        self.check_observations(observations)
        leading = observations.shape[:-1]
        rows = observations.reshape(math.prod(leading), -1)
        images = _Apply.apply(rows, self.adjoint_rows, self.apply_rows)
        return images.reshape(*leading, 1, *self.image_shape)

    def matrix(self) -> Tensor:
        """Return A as a dense matrix (m, n) of float64; asks for the memory first."""
        m, n = self.shape
        require_free(
            2 * m * n * 8,
            f"the {m:,} × {n:,} numbers of the {self.name} as a dense matrix",
            "Use the operator and its adjoint without it, or take a smaller image or fewer angles",
        )
        few, short = (n, m) if n <= m else (m, n)
        rows = self.apply_rows if n <= m else self.adjoint_rows
        matrix = torch.empty(few, short, dtype=torch.float64)
        step = max(1, _SOME_ROWS // max(m, n))
        for start in range(0, few, step):
            unit = torch.zeros(min(step, few - start), few, dtype=torch.float64)
            unit[torch.arange(len(unit)), torch.arange(start, start + len(unit))] = 1.0
            matrix[start : start + len(unit)] = rows(unit)
        return matrix.T.contiguous() if n <= m else matrix

    def check_observations(self, observations: Tensor) -> None:
        """Refuse observations of another number than m."""
        if observations.dim() == 0 or observations.shape[-1] != self.num_observations:
            raise ValueError(
                f"observations of the {self.name} must have shape (..., {self.num_observations}),"
                f" got {tuple(observations.shape)}; flatten what belongs to one image, or make the"
                " operator for what was measured"
            )

    @classmethod
    def from_matrix(
        cls, matrix: Any, image_shape: tuple[int, int], name: str = "matrix"
    ) -> LinearOperator:
        """Return the operator of a matrix (m, H W): numpy, torch, or sparse of scipy or torch.

        Sparse matrices are kept in CSR form together with their transpose.
        """
        rows_of = _sparse_rows if _is_sparse(matrix) else _dense_rows
        (m, n), apply, adjoint = rows_of(matrix)
        if n != math.prod(image_shape):
            height, width = image_shape
            raise ValueError(
                f"`matrix` must have a column for each of the {height} × {width} ="
                f" {height * width} pixels, got shape ({m}, {n})"
            )
        return cls((int(image_shape[0]), int(image_shape[1])), m, apply, adjoint, name)

    @classmethod
    def from_callable(
        cls,
        function: Callable[[Tensor], Tensor],
        image_shape: tuple[int, int],
        name: str = "callable",
    ) -> LinearOperator:
        """Return the operator of a linear function from images (N, 1, H, W) to (N, ...).

        The adjoint is derived by a vector-Jacobian product, so the function must be written in
        torch. That it is linear is tried on white noise.
        """
        height, width = int(image_shape[0]), int(image_shape[1])
        _check_linear(function, height, width, name)

        def apply(rows: Tensor) -> Tensor:
            return function(rows.unflatten(1, (1, height, width))).flatten(1)

        def adjoint(rows: Tensor) -> Tensor:
            zeros = rows.new_zeros(len(rows), height * width).requires_grad_()
            with torch.enable_grad():  # torch.func.vjp refuses hooks on saved tensors
                return torch.autograd.grad(apply(zeros), zeros, rows)[0]

        m = apply(torch.zeros(1, height * width)).shape[1]
        return cls((height, width), m, apply, adjoint, name)


@dataclass(frozen=True, eq=False)
class Adjoint:
    """The adjoint of an operator: observations (..., m) to images (..., 1, H, W)."""

    T: LinearOperator

    @property
    def shape(self) -> tuple[int, int]:
        m, n = self.T.shape
        return n, m

    def __call__(self, observations: Tensor) -> Tensor:
        return self.T.adjoint(observations)

    def matrix(self) -> Tensor:
        return self.T.matrix().T


# ---------------------------------------------------------------- how a matrix is applied to rows


def _is_sparse(matrix: Any) -> bool:
    if isinstance(matrix, Tensor):
        return matrix.layout != torch.strided
    return hasattr(matrix, "tocsr")


def _dense_rows(matrix: Any) -> tuple[tuple[int, int], Rows, Rows]:
    dense = torch.as_tensor(matrix)
    if dense.dim() != 2 or not torch.isfinite(dense).all():
        raise ValueError(
            f"`matrix` must be a matrix of finite numbers, got shape {tuple(dense.shape)}"
        )
    dense = dense.detach().double()
    copies: dict[Any, Tensor] = {}

    def cast(rows: Tensor) -> Tensor:
        key = (rows.dtype, rows.device)
        if key not in copies:
            copies[key] = dense.to(rows)
        return copies[key]

    return (
        (dense.shape[0], dense.shape[1]),
        lambda rows: rows @ cast(rows).T,
        lambda rows: rows @ cast(rows),
    )


def _sparse_rows(matrix: Any) -> tuple[tuple[int, int], Rows, Rows]:
    csr = _scipy_csr(matrix)
    if not np.isfinite(csr.data).all():
        bad = int((~np.isfinite(csr.data)).sum())
        raise ValueError(f"`matrix` must be finite, got {bad} entries that are not")
    return (
        (int(csr.shape[0]), int(csr.shape[1])),
        partial(_multiply, csr, {}),
        partial(_multiply, csr.T.tocsr(), {}),
    )


def _scipy_csr(matrix: Any) -> Any:
    from scipy import sparse  # late: imports of polymode are cheap

    if isinstance(matrix, Tensor):
        coo = matrix.detach().to_sparse_coo().coalesce().cpu()
        values, (rows, columns) = coo.values().double().numpy(), coo.indices().numpy()
        return sparse.csr_matrix((values, (rows, columns)), shape=tuple(coo.shape))
    return matrix.tocsr().astype(np.float64)


def _multiply(csr: Any, copies: dict[Any, Tensor], rows: Tensor) -> Tensor:
    """Return (csr @ rows^T)^T for rows (N, columns of csr), in the dtype and place of `rows`."""
    key = (rows.dtype, rows.device)
    if key not in copies:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sparse (CSR|invariant)")  # "beta" for years
            copies[key] = torch.sparse_csr_tensor(
                torch.as_tensor(csr.indptr, dtype=torch.int32),
                torch.as_tensor(csr.indices, dtype=torch.int32),
                torch.as_tensor(csr.data),
                size=csr.shape,
                check_invariants=False,
            ).to(rows)
    if len(rows) == 1:
        return (copies[key] @ rows[0])[None]
    return (copies[key] @ rows.T).T.contiguous()


def _check_linear(function: Callable[[Tensor], Tensor], height: int, width: int, name: str) -> None:
    """Refuse a function that is not linear, by trying it on white noise."""
    stream = torch.Generator().manual_seed(0)
    noise = torch.randn(2, 1, height, width, generator=stream, dtype=torch.float64)
    try:
        images = torch.cat([noise, noise[:1] - 2 * noise[1:], 0 * noise[:1]])
        first, second, combined, none = function(images).flatten(1)
    except RuntimeError as error:
        raise ValueError(
            f"the function of the {name} must take images (N, 1, {height}, {width}) of any floating"
            f" dtype and return (N, ...); it failed with: {error}"
        ) from error
    off = float((combined - (first - 2 * second)).norm() / (first.norm() + second.norm()))
    if float(none.norm()) > 0 or not off < 1e-6:
        raise ValueError(
            f"the function of the {name} must be linear; A(u - 2 v) differs from A(u) - 2 A(v) by"
            f" {off:.1e} of their norms, and A(0) has norm {float(none.norm()):.1e}. Subtract what"
            " it adds, or linearise it"
        )


def inpainting(mask: Tensor) -> LinearOperator:
    """Return the operator that keeps the pixels where `mask` (H, W) is True, row by row.

    >>> A = inpainting(torch.tensor([[True, False], [False, True]]))
    >>> A(torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]))
    tensor([1., 4.])
    """
    check_call(inpainting, locals())
    mask = torch.as_tensor(mask)
    if mask.dim() != 2 or mask.dtype != torch.bool:
        raise ValueError(
            f"`mask` of inpainting must be a boolean tensor (H, W), got {mask.dtype}"
            f" {tuple(mask.shape)}; take mask > 0.5"
        )
    pixels = mask.flatten().nonzero()[:, 0]
    if len(pixels) == 0:
        raise ValueError("`mask` of inpainting keeps 0 pixels: there is nothing to learn from")

    def spread(rows: Tensor) -> Tensor:
        images = rows.new_zeros(len(rows), mask.numel())
        images[:, pixels.to(rows.device)] = rows
        return images

    shape = (mask.shape[0], mask.shape[1])
    return LinearOperator(
        shape, len(pixels), lambda rows: rows[:, pixels.to(rows.device)], spread, "inpainting"
    )


def blur(
    image_shape: tuple[int, int],
    width: Annotated[float, Range("in (0, 10,000] pixels", lambda width: 0 < width <= 10_000)],
) -> LinearOperator:
    """Return the operator that blurs with a Gaussian of standard deviation `width` > 0, in pixels.

    The kernel ends at three standard deviations and sums to 1; outside of the image is 0.
    """
    check_call(blur, locals())
    reach = max(1, math.ceil(3 * width))
    line = torch.exp(-0.5 * (torch.arange(-reach, reach + 1, dtype=torch.float64) / width) ** 2)
    line = line / line.sum()
    shape = (int(image_shape[0]), int(image_shape[1]))
    smooth = partial(_smooth, line, shape)
    return LinearOperator(shape, math.prod(shape), smooth, smooth, "blur")  # it is symmetric


def _smooth(line: Tensor, shape: tuple[int, int], rows: Tensor) -> Tensor:
    kernel, reach = line.to(rows), len(line) // 2
    images = rows.unflatten(1, (1, *shape))
    images = F.conv2d(images, kernel[None, None, :, None], padding=(reach, 0))
    return F.conv2d(images, kernel[None, None, None, :], padding=(0, reach)).flatten(1)
