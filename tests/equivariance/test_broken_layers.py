"""Layers whose geometry breaks a symmetry are named; others are not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from polymode import nets
from polymode.equivariance import group
from polymode.equivariance.broken_layers import broken_layers


def network(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


CASES = [
    (nn.Conv2d(1, 2, 3, padding=1), 8, "C4", ""),
    (nn.Conv2d(1, 2, 3, stride=2), 9, "C4", ""),
    (nn.Conv2d(1, 2, 3, stride=2), 8, "C4", "stride 2 on 8 pixels leaves 1 over"),
    (nn.Conv2d(1, 2, 3, stride=2), 8, "C2", "leaves 1 over"),
    (nn.Conv2d(1, 2, 4, padding="same"), 8, "C4", "one more column at one edge"),
    (nn.Conv2d(1, 2, 3, padding="same"), 8, "C4", ""),
    (nn.Conv2d(1, 2, (3, 1)), 8, "C4", "the same along both axes"),
    (nn.Conv2d(1, 2, (3, 1)), 8, "C2", ""),
    (nn.Conv2d(1, 2, (3, 1)), 8, "D2", ""),
    (nn.Conv2d(1, 2, (3, 1)), 8, "D4", "the same along both axes"),
    (nn.MaxPool2d(2), 8, "D4", ""),
    (nn.MaxPool2d(2), 9, "D4", "stride 2 on 9 pixels leaves 1 over"),
    (nn.MaxPool2d(2), 9, "C16", "leaves 1 over"),
    (nn.AvgPool2d(3, stride=2, padding=1), 8, "C4", "leaves 1 over"),
    (nn.AvgPool2d(3, stride=2, padding=1), 9, "C4", ""),
    (nn.Conv2d(1, 2, 3, padding=1), 8, "T@8x8", "padding_mode='circular'"),
    (nn.Conv2d(1, 2, 3, padding=1, padding_mode="circular"), 8, "T@8x8", ""),
]


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize(("layer", "side", "name", "cause"), CASES)
def test_layers(layer, side, name, cause) -> None:
    torch.manual_seed(0)
    found = broken_layers(network(layer), group(name), (1, side, side))
    assert [each.name for each in found] == (["0"] if cause else [])
    assert not cause or cause in str(found[0])
    assert not cause or f"breaks the symmetry under {name}" in str(found[0])


def test_networks_of_this_library() -> None:
    """LeNet is fair on 28 and 44 pixels, not on 46, where its second pooling leaves a column."""
    c4 = group("C4")
    assert not broken_layers(nets.lenet((1, 28, 28), 10), c4, (1, 28, 28))
    assert not broken_layers(nets.lenet((3, 44, 44), 10), c4, (3, 44, 44))
    (layer,) = broken_layers(nets.lenet((3, 46, 46), 10), c4, (3, 46, 46))
    assert layer.name == "5" and "MaxPool2d" in layer.layer


def test_what_has_no_maps_is_not_looked_at() -> None:
    module = nn.Linear(6, 3)
    module.train()
    assert broken_layers(module, group("SO3-octahedral"), (6,)) == []
    net = network(nn.Conv2d(1, 2, 3), nn.Dropout(0.5))
    net.train()
    broken_layers(net, group("C4"), (1, 8, 8))
    assert net.training and not net[0]._forward_hooks
