"""Networks whose symmetries are easily missed or wrongly claimed, with what can be counted by hand.

`EXPECTED` has, by name: the network, the shape of an input, the number of permutations, whether all
scalings are found, and a part of what is named as unseen.
"""

from __future__ import annotations

from collections.abc import Callable
from math import factorial as f
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .made_up import Net


def weight(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape))


def L(inputs: int, outputs: int, bias: bool = True) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=bias)


def _grouped_queries(net: Any, x: Tensor, spread: Callable[[Tensor], Tensor]) -> Tensor:
    q, k, v = (
        layer(x).unflatten(-1, (heads, 3)).transpose(1, 2)
        for layer, heads in ((net.q, 4), (net.k, 2), (net.v, 2))
    )
    k, v = spread(k), spread(v)
    seen = torch.softmax(q @ k.transpose(-2, -1) / 3**0.5, -1) @ v
    return net.o(seen.transpose(1, 2).flatten(2)).mean(1)


def _with_option(net: Any, x: Tensor) -> Tensor:
    q, k, v = (
        layer(x).unflatten(-1, (heads, 3)).transpose(1, 2)
        for layer, heads in ((net.q, 4), (net.k, 2), (net.v, 2))
    )
    seen = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    return net.o(seen.transpose(1, 2).flatten(2)).mean(1)


def _heads() -> dict[str, Callable[[], nn.Module]]:
    """Without biases: that of the keys has no effect, which is no symmetry that is looked for."""
    return {
        "q": lambda: L(5, 12, False), "k": lambda: L(5, 6, False), "v": lambda: L(5, 6, False),
        "o": lambda: L(12, 2),
    }  # fmt: skip


def _distances(net: Any, x: Tensor) -> Tensor:
    return (F.relu(net.a(x))[:, None] - net.p).pow(2).sum(-1)


def _own(net: Any, x: Tensor, h: Tensor) -> Tensor:
    return net.o(F.relu(net.b(h) + h[:, :2]))


def hidden(run: Callable[[Any, Tensor], Tensor], units: int = 4, out: int = 4, **parts: Any) -> Any:
    """A hidden layer `a`, what `run` makes of its ReLUs, and a last layer `o`."""
    return lambda: Net(
        lambda net, x: net.o(run(net, F.relu(net.a(x)))), a=L(3, units), o=L(out, 2),
        **{name: make() for name, make in parts.items()},
    )  # fmt: skip


def plain(run: Callable[[Any, Tensor], Tensor], units: int = 4, out: int = 4, **parts: Any) -> Any:
    """The same without ReLU."""
    return lambda: Net(
        lambda net, x: net.o(run(net, net.a(x))), a=L(3, units), o=L(out, 2),
        **{name: make() for name, make in parts.items()},
    )  # fmt: skip


def net(run: Callable[[Any, Tensor], Tensor], **parts: Callable[[], Any]) -> Any:
    return lambda: Net(run, **{name: make() for name, make in parts.items()})


Expected = tuple[Callable[[], nn.Module], tuple[int, ...], int, bool, str]
EXPECTED: dict[str, Expected] = {
    # hidden units against a matrix, reduced
    "prototypes": (
        net(_distances, a=lambda: L(3, 4), p=lambda: weight(5, 4)), (3,), f(4), True, ""),
    "two units": (
        net(_distances, a=lambda: L(3, 2), p=lambda: weight(3, 2)), (3,), f(2), True, ""),
    "radial basis": (
        hidden(lambda n, h: torch.exp(-(h[:, None] - n.p).pow(2).sum(-1)), 4, 5,
               p=lambda: weight(5, 4)), (3,), f(4) * f(5), True, ""),
    "radial inputs": (
        net(lambda n, x: n.o(torch.exp(-(x[:, None] - n.p).pow(2).sum(-1))),
            p=lambda: weight(5, 3), o=lambda: L(5, 2)), (3,), f(5), True, ""),
    "codebook": (
        hidden(lambda n, h: torch.softmax(-(h[:, None] - n.p).pow(2).sum(-1), -1) @ n.p,
               p=lambda: weight(5, 4)), (3,), f(4) * f(5), True, ""),
    "absolute distances": (
        hidden(lambda n, h: (n.p - h.unsqueeze(1)).abs().mean(-1), 4, 5, p=lambda: weight(5, 4)),
        (3,), f(4) * f(5), True, ""),
    "products summed": (
        hidden(lambda n, h: F.relu((h[:, None] * n.p).sum(-1)), 4, 5, p=lambda: weight(5, 4)),
        (3,), f(4) * f(5), True, ""),
    "products in a row": (
        hidden(lambda n, h: (h[:, None] * n.p).flatten(1), 4, 20, p=lambda: weight(5, 4)),
        (3,), f(4) * f(5) ** 4, True, ""),
    "largest of sums": (
        hidden(lambda n, h: (h[:, None] + n.p).amax(2), 4, 5, p=lambda: weight(5, 4)),
        (3,), f(4) * f(5), True, ""),
    "capsules": (
        hidden(lambda n, h: (h.view(-1, 4, 3) * n.p).sum(-1), 12, 4, p=lambda: weight(4, 3)),
        (3,), f(4) * f(3) ** 4, True, ""),
    # inputs behind the first layer
    "inputs joined": (
        net(lambda n, x: n.o(torch.cat([F.relu(n.a(x)), x], 1)), a=lambda: L(3, 4),
            o=lambda: L(7, 2)), (3,), f(4), True, ""),
    "part of a layer added": (
        net(lambda n, x: _own(n, x, F.relu(n.a(x))), a=lambda: L(3, 4), b=lambda: L(4, 2),
            o=lambda: L(2, 2)), (3,), f(2) * f(2), True, ""),
    "part of a layer added to outputs": (
        net(lambda n, x: n.b(F.relu(n.a(x))) + F.relu(n.a(x))[:, :2], a=lambda: L(3, 4),
            b=lambda: L(4, 2)), (3,), f(2), True, ""),
    # numbers that are parameters
    "temperature": (
        net(lambda n, x: n.c(F.relu(n.a(x))) / n.t, a=lambda: L(3, 4), c=lambda: L(4, 2),
            t=lambda: weight()), (3,), f(4), True, ""),
    "one gain": (hidden(lambda n, h: n.g * h, g=lambda: weight(1)), (3,), f(4), True, ""),
    "gains": (hidden(lambda n, h: h / n.g, g=lambda: weight(4)), (3,), f(4), True, ""),
    "one shift": (plain(lambda n, h: F.relu(h + n.t), t=lambda: weight()), (3,), f(4), True, ""),
    "rezero": (
        hidden(lambda n, h: h + n.t * n.b(F.relu(n.c(h))), t=lambda: weight(), c=lambda: L(4, 5),
               b=lambda: L(5, 4)), (3,), f(4) * f(5), True, ""),
    # extrema and order
    "maxout": (
        plain(lambda n, h: h.view(-1, 4, 3).max(2).values, 12), (3,), f(4) * f(3) ** 4, True, ""),
    "maxout, other axis": (
        plain(lambda n, h: h.view(-1, 3, 4).amax(1), 12, 4), (3,), f(4) * f(3) ** 4, True, ""),
    "largest unit": (
        hidden(lambda n, h: h.max(1, keepdim=True)[0], 4, 1), (3,), f(4), True, ""),
    "largest units": (hidden(lambda n, h: h.topk(2, 1).values, 4, 2), (3,), f(4), True, ""),
    "sorted": (hidden(lambda n, h: h.sort(1).values), (3,), f(4), True, ""),
    "place of the largest": (
        hidden(lambda n, h: h + h.max(1, keepdim=True).indices), (3,), 1, False, "max"),
    # products of units, powers
    "gate": (
        net(lambda n, x: n.o(F.relu(n.a(x)) * n.b(x)), a=lambda: L(3, 6), b=lambda: L(3, 6),
            o=lambda: L(6, 2)), (3,), f(6), True, ""),
    "square": (plain(lambda n, h: h**2), (3,), f(4), True, ""),
    "root": (hidden(lambda n, h: (h + h.abs()).sqrt()), (3,), f(4), True, ""),
    "outer product": (
        net(lambda n, x: n.o((F.relu(n.a(x))[:, :, None] * F.relu(n.b(x))[:, None]).flatten(1)),
            a=lambda: L(3, 4), b=lambda: L(3, 2), o=lambda: L(8, 2)), (3,), f(4), True, ""),
    "halves": (plain(lambda n, h: F.glu(h, 1), 8, 4), (3,), f(4), True, ""),
    # ReLU in other words
    "clamp": (plain(lambda n, h: h.clamp(min=0)), (3,), f(4), True, ""),
    "clamp to 1": (plain(lambda n, h: h.clamp(0, 1)), (3,), f(4), True, ""),
    "times its sign": (plain(lambda n, h: h * (h > 0)), (3,), f(4), True, ""),
    "where": (plain(lambda n, h: torch.where(h > 0, h, 0.1 * h)), (3,), f(4), True, ""),
    # blocks of channels
    "pixel shuffle": (
        lambda: nn.Sequential(nn.Conv2d(2, 12, 3, padding=1), nn.ReLU(), nn.PixelShuffle(2),
                              nn.Conv2d(3, 2, 3)), (2, 4, 4), f(3), True, ""),
    "groups of inputs": (
        lambda: nn.Sequential(nn.Conv2d(4, 6, 1, groups=2), nn.ReLU(), nn.Conv2d(6, 2, 1)),
        (4, 2, 2), f(3) ** 2, True, ""),
    # attention
    "grouped queries, repeated": (
        net(lambda n, x: _grouped_queries(n, x, lambda t: t.repeat_interleave(2, 1)),
            **_heads()), (6, 5), f(3) ** 4, True, "blocks"),
    "grouped queries, by option": (
        net(_with_option, **_heads()), (6, 5), f(3) ** 4, True, "blocks"),
    # turned and shared matrices
    "turned": (
        hidden(lambda n, h: F.relu(h @ n.w.T + n.c), 4, 5, w=lambda: weight(5, 4),
               c=lambda: weight(5)), (3,), f(4) * f(5), True, ""),
    "tied autoencoder": (
        net(lambda n, x: F.relu(x @ n.w.T + n.b) @ n.w, w=lambda: weight(5, 3),
            b=lambda: weight(5)), (3,), f(5), True, ""),
    # named, not found
    "parallel branches": (
        net(lambda n, x: n.one(x) + n.two(x),
            one=lambda: nn.Sequential(L(3, 4), nn.ReLU(), L(4, 2)),
            two=lambda: nn.Sequential(L(3, 4), nn.ReLU(), L(4, 2))), (3,), f(4) ** 2, True,
        "add (branches one.0 and two.0 are alike)"),
    "weight norm": (
        lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(L(3, 5)), nn.ReLU(), L(5, 2)),
        (3,), 1, False, "ParametrizedLinear (0)"),
    "cumulative": (hidden(lambda n, h: h.cumsum(1)), (3,), 1, False, "cumsum"),
    "einsum": (
        hidden(lambda n, h: torch.einsum("bi,oi->bo", h, n.w), 4, 5, w=lambda: weight(5, 4)),
        (3,), 1, False, "einsum"),
    "computed places": (
        net(lambda n, x: n.o(F.relu(n.a(x))[:, n.k]), a=lambda: L(3, 4), o=lambda: L(2, 2),
            k=lambda: torch.tensor([0, 2])),
        (3,), 1, False, "getitem"),
}  # fmt: skip
