"""A strided convolution and its shortcut against both on their own, in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, fx, nn

from polymode.core.strided import pair_shortcuts, strided_pair
from polymode.core.trace import trace
from polymode.nets import resnet8

GEOMETRIES = [
    (3, (2, 2), (1, 1), (1, 1), (8, 8)),
    (3, (2, 2), (1, 1), (1, 1), (7, 9)),
    (5, (2, 1), (2, 2), (1, 1), (6, 5)),
    (3, (3, 3), (2, 2), (2, 2), (8, 10)),
]


def draw(*shape: int, channels_last: bool = False) -> Tensor:
    x = torch.randn(
        *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(len(shape))
    )
    return (x.to(memory_format=torch.channels_last) if channels_last else x).requires_grad_()


def apart(x, weight, shortcut, geometry):
    found = torch.conv2d(x, weight, None, *geometry)
    return found, torch.conv2d(x, shortcut, None, geometry[0])


@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("case", GEOMETRIES)
@pytest.mark.cpu_seconds(6)
def test_gradients(case, channels_last) -> None:
    side, stride, padding, dilation, size = case
    geometry = stride, padding, dilation
    x = draw(2, 3, *size, channels_last=channels_last)
    tensors = x, draw(4, 3, side, side), draw(4, 3, 1, 1)

    def pair(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        return strided_pair(*tensors, geometry)

    found, expected = pair(*tensors), apart(*tensors, geometry)
    assert all(map(torch.equal, found, expected))
    heads = [out.detach().cos() for out in expected]
    for wanted in ([0, 1, 2], [0], [1], [2]):
        inputs = [tensors[k] for k in wanted]
        one, other = (
            torch.autograd.grad(o, inputs, heads, retain_graph=True) for o in (found, expected)
        )
        for mine, theirs in zip(one, other, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)
    assert torch.autograd.gradcheck(pair, tensors)
    assert torch.autograd.gradgradcheck(pair, tensors)


def networks() -> dict[str, nn.Module]:
    class Block(nn.Module):
        def __init__(self, first: nn.Conv2d, second: nn.Conv2d, late: bool = False) -> None:
            super().__init__()
            self.first, self.second, self.late = first, second, late

        def forward(self, x: Tensor) -> Tensor:
            shortcut = None if self.late else self.second(x)
            out = torch.tanh(self.first(x))
            return out + (self.second(x) if shortcut is None else shortcut)

    def conv(side: int, stride: int = 2, **options) -> nn.Conv2d:
        padding = options.pop("padding", side // 2)
        return nn.Conv2d(4, 4, side, stride, padding, **{"bias": False, **options})

    return {
        "shortcut first": Block(conv(3), conv(1)),
        "shortcut last": Block(conv(3), conv(1), late=True),
        "bias": Block(conv(3), conv(1, bias=True)),
        "groups": Block(conv(3, groups=2), conv(1)),
        "no stride": Block(conv(3, 1), conv(1, 1)),
        "both 1x1": Block(conv(1), conv(1)),
        "reflected": Block(conv(3, padding_mode="reflect"), conv(1)),
    }


@pytest.mark.parametrize("name", networks())
def test_pairs_are_found(name) -> None:
    template, x = networks()[name].double(), draw(2, 4, 8, 8)
    module, graph = trace(template)
    assert pair_shortcuts(module, graph) is name.startswith("shortcut")
    graph.lint()
    torch.testing.assert_close(fx.GraphModule(module, graph)(x), template(x), rtol=0, atol=0)


def test_whole_networks() -> None:
    template, x = resnet8((3, 12, 10), 3).double(), draw(4, 3, 12, 10)
    module, graph = trace(template)
    assert pair_shortcuts(module, graph)
    paired = fx.GraphModule(module, graph)
    out, expected = paired(x), template(x)
    assert torch.equal(out, expected)
    head, theirs = expected.detach().cos(), dict(template.named_parameters())
    mine = dict(paired.named_parameters())
    assert set(mine) == set(theirs)
    found = torch.autograd.grad(out, [x, *mine.values()], head)
    expected = torch.autograd.grad(expected, [x, *(theirs[name] for name in mine)], head)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
