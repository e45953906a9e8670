"""Packed and rank-one ensembles: hand-written loops over members against fit and predict.

Four members, α = 2. Thin networks see batches of their own, rank-one members share theirs, as in
the other contenders. `case.option` is "packed" or "batch_ensemble".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import polymode as pm

from ..cases import Case, data, mlp, uncertainty
from . import Job, plain_loop


def _thin(case: Case) -> Callable[[], nn.Module]:
    """The network with half its hidden widths."""
    if len(case.input_shape) == 1:
        return lambda: mlp(784, 64, 64, 10)

    def make() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 3, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 8, 5), nn.ReLU(),
            nn.MaxPool2d(2), nn.Flatten(), *list(mlp(128, 60, 42, 10))[1:],
        )  # fmt: skip

    return make


class RankOne(nn.Module):
    """A layer whose weight is shared, and what the members have: r, s and biases, (M, ...)."""

    def __init__(self, layer: Any, num_modes: int) -> None:
        super().__init__()
        self.layer = layer
        n_out, n_in = layer.weight.shape[:2]
        signs = torch.randint(2, (num_modes, n_in + n_out)) * 2.0 - 1
        self.r, self.s = nn.Parameter(signs[:, :n_in]), nn.Parameter(signs[:, n_in:])
        self.bias = nn.Parameter(layer.bias.detach().repeat(num_modes, 1))
        layer.bias = None

    def forward(self, x: Tensor, k: int) -> Tensor:
        """Return the layer's result of member k."""
        tail = (1,) * (x.dim() - 2)
        out = self.layer(x * self.r[k].view(-1, *tail)) * self.s[k].view(-1, *tail)
        return out + self.bias[k].view(-1, *tail)


def _rank_one(case: Case) -> nn.ModuleList:
    torch.manual_seed(0)
    kinds = (nn.Linear, nn.Conv2d)
    layers = case.make_net().children()
    return nn.ModuleList(RankOne(a, case.num_modes) if isinstance(a, kinds) else a for a in layers)


def _member(layers: nn.ModuleList, x: Tensor, k: int) -> Tensor:
    for layer in layers:
        x = layer(x, k) if isinstance(layer, RankOne) else layer(x)
    return x


def loop_train(case: Case) -> Job:
    """Members one after another; one optimiser for all."""
    if case.option == "packed":
        return plain_loop.train(replace(case, make_net=_thin(case)))
    x, y = data(case)

    def run() -> Callable[[Tensor], Tensor]:
        layers = _rank_one(case)
        optimizer = torch.optim.Adam(layers.parameters(), lr=case.lr)
        for inputs, labels in case.batches(x, y):
            optimizer.zero_grad()
            for k in range(case.num_modes):
                (F.cross_entropy(_member(layers, inputs, k), labels) / case.num_modes).backward()
            optimizer.step()
        return lambda inputs: torch.stack(
            [_member(layers, inputs, k) for k in range(case.num_modes)]
        )

    return Job(run, case.num_steps)


def loop_predict(case: Case) -> Job:
    """Members one after another, and the three quantities."""
    if case.option == "packed":
        return plain_loop.predict(replace(case, make_net=_thin(case)))
    x, _ = data(case)
    layers = _rank_one(case)

    @torch.inference_mode()
    def run() -> list[Tensor]:
        parts: Iterator[Any] = (
            uncertainty(torch.stack([_member(layers, inputs, k) for k in range(case.num_modes)]))
            for inputs in x.split(case.batch_size)
        )
        return [torch.cat(values) for values in zip(*parts, strict=True)]

    return Job(run, case.num_steps)


def fit(case: Case, **options: Any) -> pm.Posterior:
    """The whole call."""
    shared = {"data_order": "shared"} if case.option == "batch_ensemble" else {}
    settings: dict[str, Any] = dict(
        net=case.make_net, task=pm.Task(train=data(case), likelihood="categorical"),
        num_modes=case.num_modes, epochs=case.epochs, batch_size=case.batch_size, lr=case.lr,
        prior_precision=0.0, holdout=0, seed=0, progress="silent",
    )  # fmt: skip
    return pm.fit(case.option, **settings | shared | options)


def train(case: Case) -> Job:
    """polymode's fit."""
    return Job(lambda: fit(case).stack, case.num_steps)


def predict(case: Case) -> Job:
    """polymode's predict and the three quantities."""
    x, _ = data(case)
    posterior = fit(case, epochs=0)

    def run() -> tuple[Tensor, Tensor, Tensor]:
        prediction = posterior.predict(x)
        return prediction.mean, prediction.predictive_entropy, prediction.mutual_information

    return Job(run, case.num_steps)
