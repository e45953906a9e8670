"""Heads and adapters on a frozen body: hand-written loops against polymode's fit and predict.

All see batches of the same sizes; nothing has a prior. A round is the whole call, features that are
computed once before training included.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import polymode as pm

from ..cases import Case, data, uncertainty
from . import Job


@lru_cache(maxsize=1)
def _body(case: Case) -> nn.Module:
    torch.manual_seed(0)
    return case.make_net().requires_grad_(False)


def _head(case: Case) -> nn.Linear:
    return nn.Linear(int(case.option), case.num_classes)


class _Batches:
    """A loader whose batches are slices: its own work is next to nothing."""

    def __init__(self, case: Case) -> None:
        self.case, (self.x, self.y) = case, data(case)

    def __len__(self) -> int:
        return -(-len(self.x) // self.case.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        size = self.case.batch_size
        return iter(zip(self.x.split(size), self.y.split(size), strict=True))


def _train(nets: list[nn.Module], batches: Any, epochs: int, features: Any) -> None:
    """One optimiser a member; `features` maps the inputs of a batch, once for all."""
    optimizers = [
        torch.optim.Adam([p for p in net.parameters() if p.requires_grad], fused=True)
        for net in nets
    ]
    for _ in range(epochs):
        for x, y in batches:
            with torch.no_grad():
                h = features(x)
            for net, optimizer in zip(nets, optimizers, strict=True):
                optimizer.zero_grad()
                F.cross_entropy(net(h), y).backward()
                optimizer.step()


def loop_body_once(case: Case) -> Job:
    """The body once for each batch, then every head."""
    batches, body = _Batches(case), _body(case)

    def run() -> None:
        heads: list[nn.Module] = [_head(case) for _ in range(case.num_modes)]
        _train(heads, batches, case.epochs, body)

    return Job(run, case.num_steps)


def loop_on_features(case: Case) -> Job:
    """The body once for all of the data, then every head on its features."""
    body = _body(case)

    def run() -> None:
        batches = _Batches(case)
        with torch.no_grad():
            batches.x = body(batches.x)
        heads: list[nn.Module] = [_head(case) for _ in range(case.num_modes)]
        _train(heads, batches, case.epochs, lambda h: h)

    return Job(run, case.num_steps)


def _fit(case: Case, net: Callable[[], nn.Module], train: Any, **options: Any) -> pm.Posterior:
    return pm.fit(
        "deep_ensemble",
        net=net,
        task=pm.Task(train=train, likelihood="categorical"),
        num_modes=case.num_modes,
        batch_size=case.batch_size,
        prior_precision=0.0,
        data_order="shared",
        schedule="constant",
        holdout=0,
        progress="silent",
        **{"epochs": case.epochs} | options,
    )


def _heads(case: Case) -> Callable[[], nn.Module]:
    body = _body(case)
    return lambda: nn.Sequential(body, _head(case))


def fit_batches(case: Case) -> Job:
    """`fit` on a loader: the body runs once for each batch."""
    batches, net = _Batches(case), _heads(case)
    return Job(lambda: _fit(case, net, batches), case.num_steps)


def fit_arrays(case: Case) -> Job:
    """`fit` on arrays, whose features are computed once."""
    net, train = _heads(case), data(case)
    return Job(lambda: _fit(case, net, train), case.num_steps)


def loop_predict(case: Case) -> Job:
    """The body once for each batch, every head, and the three quantities."""
    x, _ = data(case)
    body, heads = _body(case), [_head(case) for _ in range(case.num_modes)]

    @torch.inference_mode()
    def run() -> list[Tensor]:
        parts = []
        for inputs in x.split(256):
            h = body(inputs)
            parts.append(uncertainty(torch.stack([head(h) for head in heads])))
        return [torch.cat(part) for part in zip(*parts, strict=True)]

    return Job(run, case.num_steps)


def predict(case: Case) -> Job:
    """`predict`, then the three quantities."""
    x, _ = data(case)
    post = _fit(case, _heads(case), data(case), epochs=1)

    def run() -> tuple[Tensor, Tensor, Tensor]:
        prediction = post.predict(x)
        return prediction.mean, prediction.predictive_entropy, prediction.mutual_information

    return Job(run, case.num_steps)


class LoRA(nn.Module):
    """A frozen linear layer with a trained product of rank 4."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(4, base.in_features) / 4)
        self.up = nn.Parameter(torch.zeros(base.out_features, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + (x @ self.down.T) @ self.up.T


class Block(nn.Module):
    """A layer of a transformer: attention of four heads, and two dense layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        shape = batch, length, 3, 4, width // 4
        q, k, v = self.qkv(self.norm1(x)).view(shape).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        x = x + self.out(attended.reshape(batch, length, width))
        return x + self.narrow(F.gelu(self.wide(self.norm2(x))))


class Encoder(nn.Module):
    """Four layers over sequences of vectors, their mean, and a head."""

    def __init__(self, width: int, num_classes: int) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Block(width) for _ in range(4)))
        self.head = nn.Linear(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(x).mean(1))


@lru_cache(maxsize=1)
def _encoder(case: Case) -> nn.Module:
    torch.manual_seed(0)
    return Encoder(case.input_shape[1], case.num_classes).requires_grad_(False)


def _adapted(case: Case) -> nn.Module:
    """The encoder with adapters of its own in all layers; its tensors are not copied."""
    encoder = _encoder(case)
    net = copy.deepcopy(encoder, {id(p): p for p in encoder.parameters()})
    for block in net.blocks:
        for name in ("qkv", "out", "wide", "narrow"):
            setattr(block, name, LoRA(getattr(block, name)))
    net.head = nn.Linear(case.input_shape[1], case.num_classes)
    return net


def loop_adapters(case: Case) -> Job:
    """Network by network."""
    batches = _Batches(case)

    def run() -> None:
        nets = [_adapted(case) for _ in range(case.num_modes)]
        _train(nets, batches, case.epochs, lambda x: x)

    return Job(run, case.num_steps)


def fit_adapters(case: Case) -> Job:
    """`fit` with the same networks."""
    train = data(case)
    return Job(lambda: _fit(case, lambda: _adapted(case), train), case.num_steps)
