"""Linear operators: dense twins, the dot test on white noise, and all transforms of torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import sparse
from torch import Tensor

from polymode.core import memory
from polymode.tomography import LinearOperator, blur, inpainting

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # in jvp
SHAPE = (5, 4)


def made(kind: str) -> LinearOperator:
    stream = torch.Generator().manual_seed(1)
    dense = torch.randn(7, 20, generator=stream, dtype=torch.float64)
    dense = dense * (torch.rand(7, 20, generator=stream) < 0.4)
    return {
        "dense": lambda: LinearOperator.from_matrix(dense.numpy(), SHAPE),
        "scipy": lambda: LinearOperator.from_matrix(sparse.csc_matrix(dense.numpy()), SHAPE),
        "coo": lambda: LinearOperator.from_matrix(dense.to_sparse(), SHAPE),
        "callable": lambda: LinearOperator.from_callable(lambda x: x.sum(-1).cumsum(-1), SHAPE),
        "inpainting": lambda: inpainting(torch.arange(20).reshape(SHAPE) % 3 == 0),
        "blur": lambda: blur(SHAPE, 0.8),
    }[kind]()


KINDS = ["dense", "scipy", "coo", "callable", "inpainting", "blur"]


def noise(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.parametrize("kind", KINDS)
def test_operator_and_adjoint_are_those_of_the_dense_matrix(kind) -> None:
    A = made(kind)
    m, n = A.shape
    x, y = noise(3, 2, 1, *SHAPE), noise(3, 2, m, seed=1)
    dense = A.matrix()
    assert dense.shape == (m, n) == A.T.matrix().T.shape and A.T.shape == (n, m)
    torch.testing.assert_close(A(x), x.flatten(2) @ dense.T)
    torch.testing.assert_close(A.T(y).flatten(2), y @ dense)
    torch.testing.assert_close(A.adjoint(y)[0, 0], A.T(y[0, 0]))
    assert A.T.T is A and A(x.float()).dtype == torch.float32
    assert A.adjoint(y).shape == (3, 2, 1, *SHAPE)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-6), (torch.float64, 1e-14)])
def test_dot_product_with_white_noise(kind, dtype, bound) -> None:
    """<A x, u> = <x, A^T u>, relative to the norms; smooth images would hide errors."""
    A = made(kind)
    x, u = noise(1, 1, *SHAPE, dtype=dtype), noise(1, A.shape[0], seed=1, dtype=dtype)
    forward, back = (A(x) * u).sum(), (x * A.T(u)).sum()
    assert abs(forward - back) <= bound * A(x).norm() * u.norm()


@pytest.mark.parametrize("kind", KINDS)
def test_under_autograd_and_the_transforms(kind) -> None:
    A = made(kind)
    x, v, u = noise(2, 1, *SHAPE), noise(2, 1, *SHAPE, seed=1), noise(2, A.shape[0], seed=2)
    leaf = x.clone().requires_grad_()
    (grad,) = torch.autograd.grad((A(leaf) * u).sum(), leaf)
    torch.testing.assert_close(grad, A.adjoint(u))

    out, pull = torch.func.vjp(A, x)
    torch.testing.assert_close(out, A(x))
    torch.testing.assert_close(pull(u)[0], A.adjoint(u))
    torch.testing.assert_close(torch.func.jvp(A, (x,), (v,))[1], A(v))
    torch.testing.assert_close(torch.func.jvp(A.T, (u,), (2 * u,))[1], 2 * A.T(u))

    many = noise(4, 2, 1, *SHAPE, seed=3)
    torch.testing.assert_close(torch.func.vmap(A)(many), A(many))
    torch.testing.assert_close(torch.func.vmap(A, in_dims=1)(many), A(many.movedim(1, 0)))
    pulls = torch.func.vmap(pull)(noise(4, 2, A.shape[0], seed=4))[0]
    torch.testing.assert_close(pulls, A.T(noise(4, 2, A.shape[0], seed=4)))

    def energy(x: Tensor) -> Tensor:
        return 0.5 * (A(x) ** 2).sum()

    hessian = torch.func.jacfwd(torch.func.jacrev(energy))(x[:1]).reshape(20, 20)
    torch.testing.assert_close(hessian, A.matrix().T @ A.matrix())
    jacobian = torch.func.jacrev(lambda x: A(torch.tanh(x)))(x[:1]).reshape(A.shape[0], 20)
    slope = 1 - torch.tanh(x[0].flatten()) ** 2
    torch.testing.assert_close(jacobian, A.matrix() * slope)


def test_gradients_twice_agree_with_finite_differences() -> None:
    A = made("scipy")
    x = noise(1, 1, *SHAPE).requires_grad_()
    assert torch.autograd.gradcheck(A, x, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: A(x) ** 2, x)


def test_memory_of_a_step_with_a_callable_can_be_counted() -> None:
    """`saved_bytes` hooks into saved tensors, which torch.func.vjp does not allow."""
    A = made("callable")
    x = noise(2, 1, *SHAPE).requires_grad_()
    assert memory.saved_bytes(lambda: (A(x) ** 2).sum().backward()) > 0


def test_wrong_input_is_refused() -> None:
    A = made("scipy")
    with pytest.raises(ValueError, match=r"\(\.\.\., 1, 5, 4\), got \(2, 5, 4\)"):
        A(torch.zeros(2, 5, 4))
    with pytest.raises(ValueError, match=r"shape \(\.\.\., 7\), got \(2, 6\)"):
        A.T(torch.zeros(2, 6))
    with pytest.raises(ValueError, match=r"5 × 4 = 20 pixels, got shape \(7, 21\)"):
        LinearOperator.from_matrix(np.ones((7, 21)), SHAPE)
    with pytest.raises(ValueError, match="must be finite, got 1 entries"):
        LinearOperator.from_matrix(sparse.csr_matrix([[np.nan] + [0.0] * 19]), SHAPE)
    with pytest.raises(ValueError, match="must be linear"):
        LinearOperator.from_callable(lambda x: x + 1, SHAPE)
    with pytest.raises(ValueError, match="must be linear"):
        LinearOperator.from_callable(torch.tanh, SHAPE)
    with pytest.raises(ValueError, match="keeps 0 pixels"):
        inpainting(torch.zeros(3, 3, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"`width` of blur must be a number in \(0, 10"):
        blur(SHAPE, 0)


def test_memory_is_asked_before_a_dense_matrix(monkeypatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda device="cpu": 1000)
    with pytest.raises(ValueError, match=r"7 × 20 numbers .* 2.24 kB of memory; 1 kB free"):
        made("scipy").matrix()
