"""Networks for tests of symmetries: users' own ones, with residual, joined and grouped parts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polymode import nets
from polymode.core.rng import global_stream
from polymode.stack.stack import Stack


class Net(nn.Module):
    """A network whose forward pass is given as a function of (module, x)."""

    def __init__(self, run: Callable[[Any, Tensor], Tensor], **parts: Any) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


def parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape))


def _residual(net: Any, x: Tensor) -> Tensor:
    h = F.relu(net.stem(x))
    for first, second in zip(net.first, net.second, strict=True):
        h = h + second(F.leaky_relu(first(h)))
    return net.out(h)


def residual(width: int = 6, inner: int = 5, depth: int = 2, bias: bool = True) -> nn.Module:
    return Net(
        _residual,
        stem=nn.Linear(3, width, bias=bias),
        first=nn.ModuleList(nn.Linear(width, inner, bias=bias) for _ in range(depth)),
        second=nn.ModuleList(nn.Linear(inner, width, bias=bias) for _ in range(depth)),
        out=nn.Linear(width, 2, bias=bias),
    )


def _joined(net: Any, x: Tensor) -> Tensor:
    a = F.relu(net.a(x))
    b = F.relu(net.b(a))
    both = torch.cat([a, b], 1)
    return net.out(F.relu(torch.cat([net.c(both), net.d(both)], 1) + net.e(a)))


def joined() -> nn.Module:
    return Net(
        _joined, a=nn.Linear(3, 4), b=nn.Linear(4, 4), c=nn.Linear(8, 2), d=nn.Linear(8, 3),
        e=nn.Linear(4, 5), out=nn.Linear(5, 2),
    )  # fmt: skip


def _grouped(net: Any, x: Tensor) -> Tensor:
    h = F.relu(net.stem(x))
    h = F.relu(h + net.c(F.relu(net.b(F.relu(net.a(h))))))
    return net.out(F.max_pool2d(h, 2).flatten(1))


def grouped() -> nn.Module:
    return Net(
        _grouped, stem=nn.Conv2d(2, 5, 1), a=nn.Conv2d(5, 6, 1),
        b=nn.Conv2d(6, 9, 3, padding=1, groups=3), c=nn.Conv2d(9, 5, 1), out=nn.Linear(20, 2),
    )  # fmt: skip


def depthwise() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 1), nn.ReLU(), nn.Conv2d(4, 8, 3, groups=4), nn.ReLU(),
        nn.ConvTranspose2d(8, 6, 2, groups=2), nn.ReLU(), nn.Conv2d(6, 2, 1),
    )  # fmt: skip


def _attending(net: Any, x: Tensor) -> Tensor:
    h = net.embed(x)
    h = h + net.attention(h, h, h, need_weights=False)[0]
    queries, keys, values = (
        layer(h).unflatten(-1, (2, 4)).transpose(1, 2) for layer in (net.q, net.k, net.v)
    )
    seen = F.scaled_dot_product_attention(queries, keys, values)
    return net.out((h + net.back(seen.transpose(1, 2).flatten(2))).mean(1))


def attending() -> nn.Module:
    parts = {name: nn.Linear(8, 8) for name in ("q", "k", "v", "back")}
    return Net(
        _attending, embed=nn.Linear(3, 8), out=nn.Linear(8, 2),
        attention=nn.MultiheadAttention(8, 2, batch_first=True), **parts,
    )  # fmt: skip


def _halves(net: Any, x: Tensor) -> Tensor:
    h = net.a(x)
    return net.out(torch.cat([F.relu(h[:, :4]), torch.tanh(h[:, 4:])], 1))


def halves() -> nn.Module:
    """Two kinds of activation in one layer."""
    return Net(_halves, a=nn.Linear(3, 8), out=nn.Linear(8, 2))


def _gated(net: Any, x: Tensor) -> Tensor:
    h = F.relu(net.conv(x))
    gate = torch.sigmoid(net.up(F.relu(net.down(h.mean((2, 3))))))
    return net.out((net.gain * h * gate[:, :, None, None]).mean((2, 3)))


def gated() -> nn.Module:
    """Squeeze and excitation, and a gain that is a plain parameter."""
    return Net(
        _gated, conv=nn.Conv2d(2, 6, 3), down=nn.Linear(6, 4), up=nn.Linear(4, 6),
        gain=parameter(6, 1, 1), out=nn.Linear(6, 2),
    )  # fmt: skip


def _repeated(net: Any, x: Tensor) -> Tensor:
    h = F.relu(net.a(x))
    return net.out(F.relu(net.b(F.relu(net.b(h)))))


def repeated() -> nn.Module:
    """One layer that is used twice."""
    return Net(_repeated, a=nn.Linear(3, 5), b=nn.Linear(5, 5), out=nn.Linear(5, 2))


def _tied(net: Any, x: Tensor) -> Tensor:
    return net.out(F.relu(net.c(F.relu(net.b(F.relu(net.a(x)))))))


def tied() -> nn.Module:
    """Two layers with one weight and biases of their own."""
    net = Net(_tied, a=nn.Linear(3, 5), b=nn.Linear(5, 5), c=nn.Linear(5, 5), out=nn.Linear(5, 2))
    net.c.weight = net.b.weight
    return net


def _mixed(net: Any, x: Tensor) -> Tensor:
    h = net.embed(x)
    h = h + net.back(F.gelu(net.tokens(net.norm(h).transpose(1, 2)))).transpose(1, 2)
    return net.out(h.mean(1))


def mixed() -> nn.Module:
    """Layers along both axes, as in MLP-Mixer."""
    return Net(
        _mixed, embed=nn.Linear(3, 8), norm=nn.LayerNorm(8), tokens=nn.Linear(6, 7),
        back=nn.Linear(7, 6), out=nn.Linear(8, 2),
    )  # fmt: skip


OWN: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "residual": (residual, (3,)),
    "joined": (joined, (3,)),
    "grouped": (grouped, (2, 4, 4)),
    "depthwise": (depthwise, (2, 5, 5)),
    "attending": (attending, (6, 3)),
    "halves": (halves, (3,)),
    "gated": (gated, (2, 5, 5)),
    "repeated": (repeated, (3,)),
    "tied": (tied, (3,)),
    "mixed": (mixed, (6, 3)),
}

_small = partial(nets.resnet8, width=4)


def _case(make: Callable[..., nn.Module], shape: tuple[int, ...], **options: Any) -> Any:
    return partial(make, shape, 3, **options), shape


NETS = {
    "mlp": _case(nets.mlp, (4,), hidden=(6, 5)),
    "mlp-tanh": _case(nets.mlp, (4,), hidden=(6, 5), activation="tanh", bias=False),
    "mlp-batch": _case(nets.mlp, (4,), hidden=(6, 5), norm="batch", activation="leaky_relu"),
    "mlp-prelu": _case(nets.mlp, (4,), hidden=(6, 5), norm="layer", activation=nn.PReLU),
    "tabular": _case(nets.tabular, (4,), codes=[(1, 5)], hidden=(6, 5)),
    "optunet": _case(nets.optunet, (1, 18, 20)),
    "lenet": _case(nets.lenet, (1, 8, 8)),
    "cnn": _case(nets.cnn, (1, 10, 10), channels=(4, 5), hidden=6),
    "resnet8": _case(_small, (2, 8, 8)),
    "resnet8-padding": _case(_small, (2, 8, 8), shortcut="padding"),
    "resnet8-preactivation": _case(_small, (2, 8, 8), preactivation=True),
    "resnet8-frn": _case(_small, (2, 8, 8), norm="filter_response", activation="silu", bias=True),
    "resnet8-frn-relu": _case(_small, (2, 8, 8), norm="filter_response"),
    "resnet8-fixup": _case(_small, (2, 8, 8), norm=None),
    "resnet20": _case(nets.resnet20, (2, 8, 8), width=2),
    "resnet18": _case(nets.resnet18, (2, 8, 8), width=2),
    "vit": _case(nets.vit, (2, 4, 6), patch=2, dim=8, depth=2, heads=2),
    "vit-mean": _case(nets.vit, (2, 4, 4), patch=2, dim=8, depth=1, heads=4, pool="mean"),
    "unet": _case(nets.unet, (1, 8, 8), channels=(4, 6, 4), skips=(2, 1)),
    "unet-group": _case(
        nets.unet, (1, 8, 9), channels=(4, 8, 4), skips=(0, 2), norm="group", blank_skips=True
    ),
}
ALL = NETS | OWN


def randomised(make: Callable[[], nn.Module], num_modes: int, seed: int = 0) -> Stack:
    """A float64 stack in which no parameter or statistic has the special value it starts at."""
    modules = []
    with global_stream(seed):
        for _ in range(num_modes):
            net = make().double().eval()
            with torch.no_grad():
                for tensor in net.parameters():
                    tensor += 0.1 * torch.randn_like(tensor)
                for name, buffer in net.named_buffers():
                    if "running_mean" in name:
                        buffer.normal_()
                    elif "running_var" in name:
                        buffer.uniform_(0.5, 2.0)
            modules.append(net)
    return Stack(modules, execution="loop")


def inputs(shape: tuple[int, ...], seed: int = 0) -> Tensor:
    stream = torch.Generator().manual_seed(seed)
    return torch.randn(4, *shape, generator=stream, dtype=torch.float64)


def outputs_of(stack: Stack, x: Tensor) -> Tensor:
    """Outputs of each member as a plain module, also where a stack has no way to run it."""
    with torch.no_grad():
        return torch.stack([member(x) for member in stack.members()])
