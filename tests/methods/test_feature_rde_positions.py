"""Repelling features at positions: a pointwise convolution is a linear head."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import polymode as pm

STREAM = torch.Generator().manual_seed(0)
IMAGES = torch.randn(12, 2, 4, 4, generator=STREAM, dtype=torch.float64)
MASKS = (IMAGES.sum(1) > 0).long()


class Net(nn.Module):
    """Convolutions with a head that is a layer of either kind."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.body, self.head = nn.Conv2d(2, 5, 3, padding=1), head
        self.last = isinstance(head, nn.Linear)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.body(x))
        return self.head(h.movedim(1, -1) if self.last else h)


def pair(seed: int) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(seed)
    pointwise = Net(nn.Conv2d(5, 2, 1)).double()
    linear = Net(nn.Linear(5, 2)).double()
    values = {n: t.reshape(2, 5) if t.dim() == 4 and n == "head.weight" else t
              for n, t in pointwise.state_dict().items()}  # fmt: skip
    linear.load_state_dict(values)
    return pointwise, linear


def test_a_pointwise_convolution_is_a_linear_head() -> None:
    """The same steps from the same weights, repulsion included, to rounding."""
    pairs = [pair(seed) for seed in range(3)]
    task = pm.Task(train=(IMAGES, MASKS), likelihood="categorical")
    posts = [
        pm.fit("feature_rde", net=list(nets), task=task, epochs=5, lr=0.01, holdout=0,
               weight=1.0, progress="silent")
        for nets in zip(*pairs, strict=True)
    ]  # fmt: skip
    first, second = (post.weights.tensors() for post in posts)
    for name, tensor in first.items():
        torch.testing.assert_close(tensor.flatten(1), second[name].flatten(1), msg=name)
    apart = [p[0].state_dict()["body.weight"] for p in pairs]
    assert not torch.allclose(first["network/body.weight"], torch.stack(apart))
    plain = pm.fit("deep_ensemble", net=[p[0] for p in pairs], task=task, epochs=5, lr=0.01,
                   holdout=0, data_order="shared", progress="silent")  # fmt: skip
    assert not torch.allclose(
        first["network/body.weight"], plain.weights.tensors()["network/body.weight"]
    )
