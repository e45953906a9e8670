"""Max-pooling as a linear map, and from blocks: the same as torch's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from polymode.methods.particles.convolutions import conv_blocks, plain
from polymode.methods.particles.pooling import max_pool, pool_blocks

HALVES = ((2, 2), (2, 2), (0, 0), (1, 1), False)
OVERLAPPING = ((3, 3), (2, 2), (1, 1), (1, 1), True)


def formatted(x: torch.Tensor, channels_last: bool) -> torch.Tensor:
    return x.contiguous(memory_format=torch.channels_last) if channels_last else x


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("sizes", [HALVES, OVERLAPPING])
def test_spread_is_the_transpose_of_take_and_the_gradient(sizes, channels_last) -> None:
    x = formatted(torch.randn(4, 3, 9, 8, dtype=torch.float64), channels_last).requires_grad_()
    out, windows = max_pool(x, sizes)
    torch.testing.assert_close(windows.take(x), out, rtol=0, atol=0)
    grad, tangent = torch.randn_like(out), torch.randn_like(x)
    (expected,) = torch.autograd.grad(F.max_pool2d(x, *sizes), x, grad)
    for some in (windows, windows.first(4)):
        for g in (grad, grad.contiguous()):
            torch.testing.assert_close(some.spread(g), expected)
        torch.testing.assert_close((some.take(tangent) * grad).sum(), (tangent * expected).sum())
    few = windows.first(2)
    torch.testing.assert_close(few.take(tangent[:2]), windows.take(tangent)[:2])


def test_indices_of_large_images() -> None:
    x = torch.randn(1, 1, 200, 200)
    out, windows = max_pool(x, HALVES)
    torch.testing.assert_close(windows.first(1).take(x), out, rtol=0, atol=0)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(("channels", "padding"), [(1, (0, 0)), (3, (2, 1))])
@pytest.mark.parametrize("sides", [(9, 8), (8, 11)])
def test_from_blocks(sides, channels, padding, channels_last) -> None:
    x = torch.randn(5, channels, *sides).round()
    x[:, :, :4] = 0  # equal values: torch takes the first
    x = formatted(x, channels_last)
    weight, bias = torch.randn(6, channels, 3, 2).round(), torch.randn(6)
    images = F.conv2d(x, weight, bias, 1, padding)
    expected, indices = F.max_pool2d(images, 2, return_indices=True)
    blocks = conv_blocks(x, weight, bias, ((1, 1), padding, (1, 1), 1))
    found, windows = pool_blocks(blocks, HALVES)
    torch.testing.assert_close(found, expected)
    assert windows.shape == images.shape
    torch.testing.assert_close(windows.indices.long(), indices, rtol=0, atol=0)


def test_plain_strides_of_grey_images() -> None:
    x = torch.randn(2, 1, 3, 3).contiguous(memory_format=torch.channels_last)
    x = x.as_strided(x.shape, (9, 1, 3, 1))
    assert plain(x).stride() == (9, 9, 3, 1)
    assert plain(x).data_ptr() == x.data_ptr()
