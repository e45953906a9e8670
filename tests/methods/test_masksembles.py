"""Masksembles: masks as published, and members that are parts of one network."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import polymode as pm
from polymode.nets.conversion.masked import active_units, draw_masks

STREAM = torch.Generator().manual_seed(0)
ROWS = torch.randn(32, 4, generator=STREAM)
CLASSES = (ROWS[:, 0] > 0).long()
IMAGES = torch.randn(16, 3, 16, 16, generator=STREAM)
QUIET = {"progress": "silent", "epochs": 0}


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 2))


def rows() -> pm.Task:
    return pm.Task(train=(ROWS, CLASSES), likelihood="categorical")


@pytest.mark.parametrize(
    ("units", "members", "scale"), [(512, 4, 2.0), (100, 8, 3.0), (64, 4, 1.5)]
)
def test_masks_overlap_as_published(units, members, scale) -> None:
    """Every mask has the published number of units and each unit is in one. Over 40 draws, two
    masks share 1 / (2 s − 1) of their units, within 4 standard errors and the 2 % by which a whole
    number of units moves s (false alarms below 1e-4)."""
    stream = torch.Generator().manual_seed(1)
    overlaps = []
    for _ in range(40):
        masks = draw_masks(units, members, scale, stream).bool()
        assert masks.shape == (members, units)
        assert (masks.sum(1) == active_units(units, members, scale)).all()
        assert masks.any(0).all()
        both, either = (masks[0] & masks[1]).sum(), (masks[0] | masks[1]).sum()
        overlaps.append(both / either)
    seen = torch.stack(overlaps)
    error = 4 * seen.std() / 40**0.5 + 0.02
    assert abs(seen.mean() - 1 / (2 * scale - 1)) < error


def test_members_are_one_network_behind_masks(tmp_path) -> None:
    """Against the network with inputs times masks, in float64 to 1e-12; parameters are one row."""
    post = pm.fit("masksembles", net=mlp, task=rows(), epochs=3, num_modes=3, batch_size=8,
                  dtype=torch.float64, progress="silent")  # fmt: skip
    stack = post.stack
    assert list(stack.params) == []
    w = {name: tensor[0].detach() for name, tensor in stack.frozen.items()}
    x, mask = ROWS.double(), stack.buffers["2.mask"]
    assert not torch.equal(mask[0], mask[1])
    for k in range(3):
        hidden = torch.tanh(x @ w["0.weight"].T + w["0.bias"])
        expected = (hidden * mask[k]) @ w["2.weight"].T + w["2.bias"]
        torch.testing.assert_close(stack(x)[k], expected, rtol=1e-12, atol=1e-14)
    post.save(tmp_path)
    loaded = pm.load(tmp_path, net=mlp)
    assert torch.equal(loaded.predict(ROWS).log_probs, post.predict(ROWS).log_probs)
    more = pm.fit("masksembles", net=post, task=rows(), epochs=1, progress="silent", seed=5)
    assert torch.equal(more.stack.buffers["2.mask"], mask)


@pytest.mark.parametrize("name", ["lenet", "resnet8", "vit"])
def test_everyday_networks_have_the_same_members_in_every_execution(name) -> None:
    task = pm.Task(train=(IMAGES, torch.arange(16) % 3), likelihood="categorical")
    net = pm.nets.lenet if name == "lenet" else getattr(pm.nets, name)
    posts = [
        pm.fit("masksembles", net=net, task=task, execution=way, epochs=1, batch_size=8,
               num_modes=3, dtype=torch.float64, scale=1.5, progress="silent")
        for way in ("loop", "batched")
    ]  # fmt: skip
    first, second = (post.predict(IMAGES).log_probs for post in posts)
    torch.testing.assert_close(first, second, rtol=1e-8, atol=1e-10)
    assert not torch.equal(first[0], first[1])


def test_scale_one_is_one_network() -> None:
    post = pm.fit("masksembles", net=mlp, task=rows(), scale=1.0, epochs=2, progress="silent")
    log_probs = post.predict(ROWS).log_probs
    assert torch.equal(log_probs[0], log_probs[1])


@pytest.mark.parametrize(
    ("net", "options", "message"),
    [
        (lambda: nn.Sequential(nn.Linear(4, 2), nn.Tanh(), nn.Linear(2, 2)), {"scale": 6.0},
         r"cannot mask '2': 4 masks of 0 units each cannot cover 2 units with scale=6; take"),
        (lambda: nn.Linear(4, 2), {}, "masks what linear layers.*take one with hidden layers"),
        (mlp, {"scale": 0.5}, "`scale` of Masksembles must be"),
    ],
)  # fmt: skip
def test_what_cannot_be_masked_is_refused_in_one_line(net, options, message) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        pm.fit("masksembles", net=net, task=rows(), **QUIET, **options)
    assert "\n" not in str(refused.value)
