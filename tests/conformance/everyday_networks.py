"""Small networks as people write them: every layer and habit that a method is likely to meet.

`NETWORKS` maps a name to a builder without arguments. Inputs are (B, 4) unless `INPUTS` says
otherwise; outputs are (B, 2), logits of two classes.
"""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

Build = Callable[[], nn.Module]
NETWORKS: dict[str, Build] = {}
INPUTS: dict[str, tuple[int, ...]] = {}


def network(name: str, input_shape: tuple[int, ...] = (4,)) -> Callable[[Build], Build]:
    """Enter a builder, or a class that needs no arguments."""

    def enter(build: Build) -> Build:
        assert name not in NETWORKS, name
        NETWORKS[name] = build
        INPUTS[name] = input_shape
        return build

    return enter


class Call(nn.Module):
    """A module made of a function."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def body(*layers: nn.Module, first: int = 4, last: int = 5) -> nn.Sequential:
    """Layers between two linear ones."""
    return nn.Sequential(nn.Linear(first, 5), *layers, nn.Linear(last, 2))


# ------------------------------------------------------------------------------ recurrent


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.Module], **options: object) -> None:
        super().__init__()
        self.cells = kind(3, 3, batch_first=True, **options)
        self.head = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cells(x)[0][:, -1])


network("LSTM", (2, 3))(partial(Recurrent, nn.LSTM))
network("GRU", (2, 3))(partial(Recurrent, nn.GRU))
network("RNN", (2, 3))(partial(Recurrent, nn.RNN, num_layers=2))


# -------------------------------------------------------- parameters of unusual shape and use


@network("ReZero")
class ReZero(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.gate = nn.Parameter(torch.tensor(0.1))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x + self.gate * self.b(torch.relu(self.a(x))))


@network("layer scale")
class LayerScale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.head = nn.Linear(4, 4), nn.Linear(4, 2)
        self.gain = nn.Parameter(torch.full((4,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x + self.gain * self.a(x))


@network("learned temperature")
class Tempered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = body(nn.Tanh())
        self.log_t = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) / self.log_t.exp()


network("PReLU")(lambda: body(nn.PReLU()))


@network("one parameter")
class OneParameter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.w * x[:, :2]


@network("unused parameters")
class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.idle = body(nn.ReLU()), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


@network("frozen trunk")
def frozen() -> nn.Module:
    net = body(nn.ReLU())
    net[0].requires_grad_(False)
    return net


@network("tied weights")
class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.b(torch.tanh(self.a(x)))))


@network("a layer called twice")
class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.a(torch.relu(self.a(x))))


network("no bias")(
    lambda: nn.Sequential(nn.Linear(4, 5, bias=False), nn.ReLU(), nn.Linear(5, 2, bias=False))
)


@network("ParameterList")
class Listed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.ParameterList([torch.randn(4, 4) / 2, torch.randn(4, 2) / 2])

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ self.w[0]) @ self.w[1]


@network("ParameterDict")
class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.ParameterDict({"in": torch.randn(4, 3) / 2, "out": torch.randn(3, 2) / 2})

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x @ self.w["in"]) @ self.w["out"]


@network("einsum")
class Einsum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w, self.head = nn.Parameter(torch.randn(2, 4, 3) / 2), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.einsum("bi,hij->bhj", x, self.w).flatten(1))


@network("bilinear")
class TwoWays(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pair, self.head = nn.Bilinear(2, 2, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.pair(x[:, :2], x[:, 2:]))


class Offset(nn.Linear):
    """A linear layer with a forward pass of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 0.5 + 0.1


network("a subclass of Linear")(lambda: nn.Sequential(Offset(4, 5), nn.ReLU(), nn.Linear(5, 2)))


# ------------------------------------------------------------------------------ kinds of layers

network("weight norm")(
    lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 5)), nn.ReLU(), nn.Linear(5, 2))
)
network("spectral norm")(
    lambda: nn.Sequential(
        parametrizations.spectral_norm(nn.Linear(4, 5)), nn.ReLU(), nn.Linear(5, 2)
    )
)


@network("old weight norm")
def old_weight_norm() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        layer = nn.utils.weight_norm(nn.Linear(4, 5))
    return nn.Sequential(layer, nn.ReLU(), nn.Linear(5, 2))


@network("old spectral norm")
def old_spectral_norm() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        layer = nn.utils.spectral_norm(nn.Linear(4, 5))
    return nn.Sequential(layer, nn.ReLU(), nn.Linear(5, 2))


network("embedding", (3,))(lambda: nn.Sequential(nn.Embedding(6, 3), nn.Flatten(), nn.Linear(9, 2)))
network("embedding bag", (3,))(lambda: nn.Sequential(nn.EmbeddingBag(6, 3), nn.Linear(3, 2)))


@network("attention", (3, 4))
class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix, self.head = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.mix(x, x, x, need_weights=False)[0].mean(1))


@network("transformer", (3, 4))
class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1, batch_first=True)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(x)[:, 0])


def convolutional(*layers: nn.Module, last: int) -> nn.Module:
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(last, 2))


network("transposed convolution", (1, 3, 3))(
    lambda: convolutional(nn.ConvTranspose2d(1, 2, 2, stride=2), nn.ReLU(), last=72)
)
network("Conv1d", (2, 5))(lambda: convolutional(nn.Conv1d(2, 3, 3), nn.ReLU(), last=9))
network("Conv3d", (1, 3, 3, 3))(lambda: convolutional(nn.Conv3d(1, 2, 2), nn.ReLU(), last=16))
network("grouped convolution", (2, 4, 4))(
    lambda: convolutional(nn.Conv2d(2, 4, (3, 2), groups=2, dilation=(1, 2)), nn.GELU(), last=16)
)
network("GroupNorm", (2, 4, 4))(
    lambda: convolutional(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), last=16)
)
network("InstanceNorm", (2, 4, 4))(
    lambda: convolutional(nn.Conv2d(2, 3, 3), nn.InstanceNorm2d(3, affine=True), nn.ReLU(), last=12)
)
network("BatchNorm")(lambda: body(nn.BatchNorm1d(5), nn.ReLU()))
network("BatchNorm without affine")(lambda: body(nn.BatchNorm1d(5, affine=False), nn.ReLU()))
network("BatchNorm without statistics")(
    lambda: body(nn.BatchNorm1d(5, track_running_stats=False), nn.ReLU())
)
network("LayerNorm and SiLU")(lambda: body(nn.LayerNorm(5), nn.SiLU()))
network("max-pooling", (1, 6, 6))(
    lambda: convolutional(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), last=8)
)

# ------------------------------------------------------------------------------ noise

network("dropout")(lambda: body(nn.ReLU(), nn.Dropout(0.2)))
network("alpha dropout")(lambda: body(nn.SELU(), nn.AlphaDropout(0.2)))
network("RReLU")(lambda: body(nn.RReLU()))


@network("functional dropout")
class FunctionalDropout(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.dropout(torch.relu(self.body(x)), 0.2, self.training))


@network("stochastic depth")
class StochasticDepth(nn.Module):
    """A block that is left out for some examples of a training batch."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        block = torch.relu(self.block(x))
        if self.training:
            block = block * torch.bernoulli(torch.full((len(x), 1), 0.8)) / 0.8
        return self.head(x + block)


# ------------------------------------------------------------------------------ habits of forward


@network("a branch on the batch")
class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = body(nn.ReLU()), body(nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) if x.mean() > 0 else self.b(x)


@network("gradient checkpointing")
class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(4, 5), nn.ReLU()), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(checkpoint(self.body, x, use_reentrant=False))


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x.sign()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return gradient


network("autograd Function")(lambda: body(Call(StraightThrough.apply)))


@network("Fourier transform")
class Fourier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.head = nn.Linear(4, 4), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.view_as_real(torch.fft.rfft(self.a(x))).flatten(1))


@network("complex parameters")
class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.randn(3, 2, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        return (torch.fft.rfft(x) @ self.a).real


@network("in-place ReLU")
class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.head = nn.Linear(4, 5), nn.Linear(5, 2)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        h = self.relu(self.a(x))
        h += 1
        return self.head(h)


@network("changes its input")
class ChangesInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = body(nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x.mul_(0.5))


@network("mixture of experts")
class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(4, 3), nn.ModuleList(nn.Linear(4, 2) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        weight = self.gate(x).softmax(1)
        outputs = torch.stack([expert(x) for expert in self.experts], 1)
        return (weight[:, :, None] * outputs).sum(1)


@network("experts by row")
class SparseExperts(nn.Module):
    """Rows go to the expert with the largest gate, by indexing."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(4, 2), nn.ModuleList(nn.Linear(4, 2) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        share, choice = self.gate(x).softmax(1).max(1)
        out = torch.zeros(len(x), 2, dtype=x.dtype)
        for number, expert in enumerate(self.experts):
            rows = choice == number
            if rows.any():
                out[rows] = expert(x[rows]) * share[rows, None]
        return out


network("capsules")(
    lambda: nn.Sequential(
        nn.Linear(4, 8), Call(lambda x: F.normalize(x.view(-1, 4, 2), dim=-1).sum(1))
    )
)
network("views")(
    lambda: nn.Sequential(nn.Linear(4, 4), Call(lambda x: x.view(len(x), 2, 2).mT[:, 0]))
)
network("squeeze", (4, 1))(
    lambda: nn.Sequential(Call(operator.methodcaller("squeeze", -1)), nn.Linear(4, 2))
)
network("lambdas")(lambda: body(Call(lambda x: x * torch.sigmoid(x)), Call(torch.sin)))


@network("buffers")
class Buffers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = body(nn.ReLU())
        self.register_buffer("mean", torch.tensor([0.1, 0.2, 0.3, 0.4]))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("mask", torch.tensor([True, True, False, True]))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.calls += 1
        return self.body((x - self.mean) * self.mask)


@network("skip by cat")
class Dense(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.head = nn.Linear(4, 5), nn.Linear(9, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.cat([torch.relu(self.a(x)), x], 1))


@network("hooks")
def hooked() -> nn.Module:
    net = body(nn.ReLU())
    net[0].register_forward_hook(lambda module, inputs, output: output * 0.5)
    return net


@network("a method in place of forward")
def replaced_forward() -> nn.Module:
    net = body(nn.ReLU())
    first = net[0]
    first.forward = lambda x: F.linear(x, first.weight, first.bias) * 0.5
    return net


@network("positional encoding", (3, 4))
class Positions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        angle = torch.arange(3.0)[:, None] / math.e ** torch.arange(4.0)
        self.code = angle.sin()  # a tensor as a plain attribute
        self.body = body(nn.ReLU(), first=12)

    def forward(self, x: Tensor) -> Tensor:
        return self.body((x + self.code).flatten(1))


# ------------------------------------------------------------------------------ types and wrappers

network("float64")(lambda: body(nn.ReLU()).double())
network("bfloat16")(lambda: body(nn.ReLU()).bfloat16())
network("DataParallel")(lambda: nn.DataParallel(body(nn.ReLU())))


@network("torch.jit.script")
def scripted() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(body(nn.ReLU()))


@network("torch.jit.trace")
def traced() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.trace(body(nn.ReLU()), torch.zeros(2, 4))


network("lazy")(lambda: nn.Sequential(nn.LazyLinear(5), nn.ReLU(), nn.Linear(5, 2)))


@network("quantised")
def quantised() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(body(nn.ReLU()), {nn.Linear})
