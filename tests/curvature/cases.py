"""Small networks in float64 that hold every kind of layer, each with inputs."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import polymode as pm
from polymode.nets.filter_response import FilterResponseNorm2d

_STREAM = torch.Generator().manual_seed(0)


class Residual(nn.Module):
    """A layer used twice, a parameter that multiplies, no bias at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.twice = nn.Linear(3, 4), nn.Linear(4, 4)
        self.scale, self.norm = nn.Parameter(torch.full((4,), 0.7)), nn.LayerNorm(4)
        self.last = nn.Linear(4, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        h = h + self.scale * self.twice(F.gelu(self.twice(h)))
        return self.last(self.norm(h))


class Tied(nn.Module):
    """An embedding whose matrix is that of the last layer; learned positions."""

    def __init__(self, tie: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 3, padding_idx=None if tie else 2)
        self.hidden, self.last = nn.Linear(3, 3), nn.Linear(3, 5)
        self.places = nn.Parameter(0.1 * torch.randn(4, 3))
        if tie:
            self.last.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.hidden(self.embed(x) + self.places))
        return self.last(h.mean(1))


class Attention(nn.Module):
    """torch's own attention with three different inputs, and its encoder layer."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.batch_first = batch_first
        self.embed = nn.Linear(2, 4)
        self.cross = nn.MultiheadAttention(4, 2, batch_first=batch_first)
        self.layer = nn.TransformerEncoderLayer(4, 2, 5, dropout=0.1, batch_first=batch_first)
        self.last = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        h = h if self.batch_first else h.transpose(0, 1)
        h = self.layer(self.cross(h, 2 * h, h + 1)[0])
        return self.last(h.mean(1 if self.batch_first else 0))


class OneNumber(nn.Module):
    """A transformer of one's own whose tokens are single numbers, with torch's fused attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.packed = nn.Linear(1, 4), nn.Linear(4, 12)
        self.norm, self.last = nn.LayerNorm(4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x.unsqueeze(-1))
        q, k, v = (
            part.unflatten(-1, (2, 2)).transpose(1, 2)
            for part in self.packed(self.norm(h)).chunk(3, -1)
        )
        h = h + F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.last(h.mean(1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells, self.last = nn.GRU(2, 3, batch_first=True), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.cells(x)[0][:, -1])


class Cells(nn.Module):
    """Recurrent cells one step at a time: the four kinds in a row."""

    def __init__(self) -> None:
        super().__init__()
        self.gated, self.long = nn.GRUCell(2, 3), nn.LSTMCell(3, 2)
        self.plain, self.rough = nn.RNNCell(2, 3), nn.RNNCell(3, 2, nonlinearity="relu")
        self.last = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h, pair, p, r = None, None, None, None
        for step in x.unbind(1):
            h = self.gated(step, h)
            pair = self.long(h, pair)
            p = self.plain(pair[0] + step, p)
            r = self.rough(p, r)
        return self.last(torch.cat([r, pair[1]], -1))


class LongShort(nn.Module):
    """An LSTM with all of its options."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        how = {"num_layers": 2, "bidirectional": True, "dropout": 0.3} if bias else {}
        self.cells = nn.LSTM(2, 3, batch_first=bias, bias=bias, proj_size=2 * bias, **how)
        self.last = nn.Linear(7 if bias else 6, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = x if self.cells.batch_first else x.transpose(0, 1)
        made, (state, cell) = self.cells(h)
        if self.cells.batch_first:  # outputs, last state and last cell
            return self.last(torch.cat([made[:, 1], cell[2]], -1))
        return self.last(torch.cat([state[0], cell[0]], -1))


class Scalars(nn.Module):
    """Parameters without axes: a residual's weight, a shift, a learned temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 2)
        self.weight, self.shift = nn.Parameter(torch.tensor(0.4)), nn.Parameter(torch.tensor(0.1))
        self.temperature = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> Tensor:
        h = x + self.weight * self.first(x).tanh() + self.shift
        return self.last(h) / self.temperature


class Slopes(nn.Module):
    """PReLU with a slope for each channel of images, and with one for all tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.channels = nn.Conv2d(1, 3, 2), nn.PReLU(3)
        self.second, self.one, self.last = nn.Linear(3, 4), nn.PReLU(), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.channels(self.first(x)).flatten(2).permute(2, 0, 1)  # (T, B, 3)
        return self.last(self.one(self.second(h)).mean(0))


class Bag(nn.Module):
    """Sums and means of embeddings, in one step of torch's."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.total = nn.EmbeddingBag(5, 3), nn.EmbeddingBag(5, 3, mode="sum")
        self.last = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.cat([self.mean(x), self.total(x)], -1).tanh())


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))


def convolutions() -> nn.Module:
    """Stride, padding, dilation, groups, transposed; BatchNorm, GroupNorm, FilterResponseNorm; an
    activation in place."""
    norm = nn.BatchNorm2d(4)
    norm.running_mean += 0.1 * torch.arange(4)
    norm.running_var *= 1.5
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=2, padding=1, groups=2), norm, nn.ReLU(inplace=True),
        nn.Conv2d(4, 4, (3, 2), dilation=(1, 2), padding="same"), nn.GroupNorm(2, 4), nn.Tanh(),
        nn.ConvTranspose2d(4, 4, 3, stride=2, padding=1, output_padding=1, groups=2),
        FilterResponseNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3),
    )  # fmt: skip


def one_channel() -> nn.Module:
    """Kernels of one number: from one channel, and one for each channel."""
    return nn.Sequential(
        nn.Conv2d(1, 3, 1), nn.Tanh(), nn.Conv2d(3, 3, 1, groups=3), nn.ConvTranspose2d(3, 1, 1),
        nn.Tanh(), nn.Flatten(), nn.Linear(6, 2),
    )  # fmt: skip


def convolutions_1d() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(2, 3, 3, padding=1, padding_mode="circular"), nn.Tanh(),
        nn.ConvTranspose1d(3, 2, 2, stride=2, dilation=2), nn.Flatten(), nn.Linear(22, 2),
    )  # fmt: skip


def weight_norm() -> nn.Module:
    """Of rows, of columns and of the matrix."""
    normed = torch.nn.utils.parametrizations.weight_norm
    layers = normed(nn.Linear(3, 4)), normed(nn.Linear(4, 3), dim=1)
    third = normed(nn.Linear(3, 3), dim=None)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], third, nn.Tanh(), nn.Linear(3, 2))


def _normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=_STREAM, dtype=torch.float64)


CASES = {
    "mlp": (mlp, _normal(5, 3)),
    "residual": (Residual, _normal(5, 3)),
    "embedding": (partial(Tied, False), torch.randint(5, (5, 4), generator=_STREAM)),
    "tied": (partial(Tied, True), torch.randint(5, (5, 4), generator=_STREAM)),
    "attention": (partial(Attention, True), _normal(5, 3, 2)),
    "attention, batch second": (partial(Attention, False), _normal(5, 3, 2)),
    "one number a token": (OneNumber, _normal(5, 3)),
    "one channel": (one_channel, _normal(5, 1, 3, 2)),
    "recurrent": (Recurrent, _normal(5, 3, 2)),
    "convolutions": (convolutions, _normal(5, 2, 6, 5)),
    "convolutions 1d": (convolutions_1d, _normal(5, 2, 5)),
    "weight norm": (weight_norm, _normal(5, 3)),
    "vit": (partial(pm.nets.vit, (1, 4, 4), 2, patch=2, dim=4, depth=1, heads=2),
            _normal(5, 1, 4, 4)),
    "fixup": (partial(pm.nets.resnet, (1, 4, 4), 2, width=2, blocks=(1,), norm=None),
              _normal(5, 1, 4, 4)),
    "long short-term memory": (partial(LongShort, True), _normal(5, 3, 2)),
    "long short-term memory, batch second": (partial(LongShort, False), _normal(5, 3, 2)),
    "cells": (Cells, _normal(5, 3, 2)),
    "scalars": (Scalars, _normal(5, 3)),
    "slopes": (Slopes, _normal(5, 1, 4, 3)),
    "bag": (Bag, torch.randint(5, (5, 4), generator=_STREAM)),
}  # fmt: skip
