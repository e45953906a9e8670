"""Which networks take the batched products, and which are left to vmap."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polymode.stack.fast.dense import dense_forward


class Functional(nn.Module):
    """Sums, products and functional activations, with a further argument at its default."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 2, bias=False)

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        h = F.leaky_relu(self.a(x), 0.2) * x + 1.0
        return self.b(torch.flatten(h, start_dim=1))


class Viewing(Functional):
    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return self.b(self.a(x).view(-1, 4))


class Counter(Functional):
    calls = 0

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        self.calls += 1
        return self.b(self.a(x))


class Branching(Functional):
    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return self.b(self.a(x)) if x.sum() > 0 else self.b(x)


def hooked() -> nn.Module:
    module = nn.Sequential(nn.Linear(4, 2))
    module[0].register_forward_hook(lambda *args: None)
    return module


KNOWN = [
    Functional,
    lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(4, 8), nn.LayerNorm(8), nn.SiLU(), nn.Linear(8, 2)
    ),
    lambda: nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Linear(8, 2)
    ),
]
UNKNOWN = [
    Viewing, Counter, Branching, hooked,
    lambda: nn.Sequential(nn.Conv1d(4, 2, 1)),
    lambda: nn.Sequential(nn.BatchNorm1d(4, momentum=None), nn.Linear(4, 2)),
    lambda: nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 2)),
    lambda: nn.Linear(4, 2),
]  # fmt: skip


def stacked(module: nn.Module, count: int) -> dict[str, Tensor]:
    tensors = dict(module.named_parameters()) | dict(module.named_buffers())
    return {name: torch.stack([t.detach()] * count) for name, t in tensors.items()}


@pytest.mark.parametrize("make", KNOWN)
@pytest.mark.parametrize("training", [True, False])
def test_known_networks_give_the_modules_outputs(make, training) -> None:
    module = make().double().train(training)
    forward = dense_forward(module)
    assert forward is not None
    x = torch.randn(3, 7, 4, dtype=torch.float64)
    outputs = forward(stacked(module, 3), x)
    expected = torch.stack([module(x[k]) for k in range(3)])
    torch.testing.assert_close(outputs, expected, rtol=1e-12, atol=1e-13)


def test_linear_layers_act_on_the_last_of_many_axes() -> None:
    module = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.LayerNorm((3, 5))).double()
    nn.init.normal_(module[2].weight)
    x = torch.randn(2, 7, 3, 4, dtype=torch.float64)
    outputs = dense_forward(module)(stacked(module, 2), x)
    torch.testing.assert_close(outputs, torch.stack([module(x[k]) for k in range(2)]))


@pytest.mark.parametrize("make", UNKNOWN)
def test_other_networks_are_left_alone(make) -> None:
    module = make()
    assert dense_forward(module) is None
    assert getattr(module, "calls", 0) == 0
