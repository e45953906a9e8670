from __future__ import annotations

import doctest
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from polymode.nets import unet

WALNUT = {"channels": (128,) * 6, "skips": (0, 0, 0, 4, 4), "norm": "group"}


def count(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


def test_docstring_examples():
    assert doctest.testmod(sys.modules["polymode.nets.unet"]).failed == 0


def test_parameter_count_of_the_kmnist_network():
    """76,905 parameters, of which 76,608 are weights of convolutions."""
    net = unet((1, 28, 28), 1, sigmoid=True)
    convolutions = [m for m in net.modules() if isinstance(m, nn.Conv2d)]
    assert count(net) == 76_905
    assert sum(m.weight.numel() for m in convolutions) == 76_608


def test_parameter_count_of_the_walnut_network():
    """The published 2,973,880 in 27 convolutions hold three skips that the code never uses, each
    with a 1x1 convolution from 128 channels to one (129) and its norm (2).
    """
    with torch.device("meta"):
        net = unet((1, 501, 501), 1, blank_skips=True, **WALNUT)
        plain = unet((1, 501, 501), 1, **WALNUT)
    convolutions = [m for m in net.modules() if isinstance(m, nn.Conv2d)]
    assert len(convolutions) == 27 - 3
    assert sum(m.weight.numel() for m in convolutions) == 2_964_480 - 3 * 128
    assert count(net) == 2_973_880 - 3 * (129 + 2)
    assert count(net) - count(plain) == 3 * (9 * 128 + 2)  # weights and norm of the blank channel


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 7, 13), (2, 4, 4), (1, 9, 32)])
@pytest.mark.parametrize("norm", [None, "group"])
def test_images_keep_their_sides(shape, norm):
    net = unet(shape, 2, channels=(4, 8, 4), skips=(2, 0), norm=norm)
    assert net(torch.randn(2, *shape)).shape == (2, 2, *shape[1:])


def test_equals_the_formula():
    """Two scales, a skip, no norm, written with functions."""
    net = unet((1, 6, 5), 1, channels=(3, 4), skips=(2,), sigmoid=True).double()
    x = torch.randn(2, 1, 6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    w = iter(net.parameters())

    def act(h: torch.Tensor) -> torch.Tensor:
        return F.leaky_relu(h, 0.2)

    fine = act(F.conv2d(x, next(w), next(w), padding=1))
    coarse = act(F.conv2d(fine, next(w), next(w), stride=2, padding=1))
    coarse = act(F.conv2d(coarse, next(w), next(w), padding=1))
    skip = act(F.conv2d(fine, next(w), next(w)))
    up = F.interpolate(coarse, size=(6, 6), mode="bilinear", align_corners=True)[..., :5]
    h = act(F.conv2d(torch.cat([up, skip], 1), next(w), next(w), padding=1))
    h = act(F.conv2d(h, next(w), next(w), padding=1))
    expected = torch.sigmoid(F.conv2d(h, next(w), next(w)))
    assert next(w, None) is None
    torch.testing.assert_close(net(x), expected, rtol=1e-12, atol=1e-12)


def test_groups_of_the_norms():
    net = unet((1, 8, 8), 1, channels=(8, 8, 8), skips=(0, 4), norm="group", blank_skips=True)
    groups = {
        n: (m.num_groups, m.num_channels)
        for n, m in net.named_modules()
        if hasattr(m, "num_groups")
    }
    assert groups == {
        "first.1": (2, 8),
        "down.0.1": (4, 8), "down.0.4": (4, 8), "down.1.1": (4, 8), "down.1.4": (4, 8),
        "up.0.skip.1": (1, 4), "up.0.conv.0": (1, 12), "up.0.conv.2": (2, 8), "up.0.conv.5": (2, 8),
        "up.1.conv.0": (1, 9), "up.1.conv.2": (2, 8), "up.1.conv.5": (2, 8),
    }  # fmt: skip


def test_sigmoid_and_scale():
    net = unet((1, 8, 8), 1, sigmoid=True)
    with torch.no_grad():
        net.last.weight *= 1e3
    outputs = net(torch.randn(2, 1, 8, 8))
    assert 0 <= outputs.min() and outputs.max() <= 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"channels": 32}, "sequence of integers >= 1, .* got 32"),
        ({"channels": ()}, r"`channels` of unet has no scale"),
        (
            {"channels": (32, 0, 32)},
            r"`channels` of unet must be a sequence of integers >= 1, .*\(32, 0, 32\)",
        ),
        ({"skips": (0, 4, 4)}, r"but the coarsest, 2 for 3 scales, got \(0, 4, 4\)"),
        ({"skips": 4}, "`skips` of unet must be a sequence .* got 4"),
        ({"skips": (4, -1)}, r"`skips` of unet must be integers >= 0, got \(4, -1\)"),
        ({"norm": "batch"}, r"`norm` of unet must be None or \"group\", got 'batch'"),
        ({"norm": "group", "channels": (4, 6, 4)}, r"multiples of 4.*got \(4, 6, 4\)"),
        ({"blank_skips": True}, r"`blank_skips` of unet must be False without a norm, got True"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        unet((1, 28, 28), 1, **options)
