"""Lengthscales against NumPy's covariance and against the metric written out."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from polymode.methods.particles.lengthscales import IDENTITY, pca_lengthscales, principal_axes

STREAM = torch.Generator().manual_seed(0)
SHAPE = torch.randn(6, 6, generator=STREAM, dtype=torch.float64)
X = 30 + torch.randn(200, 6, generator=STREAM, dtype=torch.float64) @ SHAPE


@pytest.mark.parametrize("size", [200, 64, 1])
def test_streaming_gives_numpys_covariance(size) -> None:
    vectors, values = principal_axes(X.split(size))
    covariance = np.cov(X.numpy(), rowvar=False)
    torch.testing.assert_close(
        vectors @ values.diag() @ vectors.T, torch.as_tensor(covariance), rtol=1e-9, atol=1e-9
    )
    assert (values[:-1] >= values[1:]).all()
    torch.testing.assert_close(vectors.T @ vectors, torch.eye(6, dtype=torch.float64))


def test_truncation_keeps_the_largest() -> None:
    vectors, values = principal_axes([X.view(200, 2, 3)], 2)
    whole_vectors, whole_values = principal_axes([X])
    assert vectors.shape == (6, 2)
    torch.testing.assert_close(values, whole_values[:2])
    torch.testing.assert_close(vectors.abs(), whole_vectors[:, :2].abs())


@pytest.mark.parametrize("alpha", [0.0, 0.4, 1.0])
def test_map_has_the_metric(alpha) -> None:
    """|apply(s)|² = sᵀ((1 − α) I + α UΛUᵀ) s, and `transpose` is the map's transpose."""
    scales = pca_lengthscales([X], alpha=alpha, dtype=torch.float64)
    s = torch.randn(4, 3, 6, generator=STREAM, dtype=torch.float64)
    covariance = torch.as_tensor(np.cov(X.numpy(), rowvar=False))
    metric = (1 - alpha) * torch.eye(6, dtype=torch.float64) + alpha * covariance
    mapped = scales.apply(s)
    torch.testing.assert_close(mapped.square().sum(-1), ((s @ metric) * s).sum(-1))
    t = torch.randn(mapped.shape, generator=STREAM, dtype=torch.float64)
    torch.testing.assert_close((mapped * t).sum(), (s * scales.transpose(t)).sum())


def test_alpha_zero_is_the_identity_and_reads_no_data() -> None:
    assert pca_lengthscales(iter(()), alpha=0.0) is IDENTITY


def test_constant_inputs_are_harmless() -> None:
    scales = pca_lengthscales([torch.ones(5, 3)])
    assert scales.apply(torch.ones(3)).abs().max() < 1e-6


def test_bad_data_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2 training inputs, got 1"):
        principal_axes([X[:1]])
    with pytest.raises(ValueError, match="at most the 6 input dimensions, got 7"):
        principal_axes([X], 7)
    with pytest.raises(ValueError, match=r"real-valued inputs, got torch\.int64"):
        principal_axes([torch.ones(3, 2, dtype=torch.int64)])
    with pytest.raises(ValueError, match=r"10,000,000 × 10,000,000 covariance"):
        principal_axes([torch.ones(2, 10_000_000)])
