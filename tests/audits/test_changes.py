"""Audits under corruptions, of inputs from elsewhere, under attacks, and of regressions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from torch import nn

import polymode as pm
from polymode.audits.checks.intervals import coverage_test
from polymode.likelihoods import Gaussian


class Quadrants(nn.Module):
    """Which quarter of an image is brightest; `fragile`: it is upset by what varies pixel by pixel.

    It then says the next class, as sure as ever.
    """

    def __init__(self, fragile: bool) -> None:
        super().__init__()
        self.fragile, self.scale = fragile, nn.Parameter(torch.tensor(20.0))

    def forward(self, x):
        means = nn.functional.avg_pool2d(x, 8).flatten(1)
        logits = self.scale * (means - means.mean(1, keepdim=True))
        if not self.fragile:
            return logits
        rough = (x[..., 1:] - x[..., :-1]).abs().mean((1, 2, 3)) > 0.09
        return torch.where(rough[:, None], logits.roll(1, 1), logits)


def images(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    levels = 0.3 + 0.4 * torch.rand(n, 1, 2, 2, generator=random)
    x = nn.functional.interpolate(levels, size=(16, 16))
    probs = Quadrants(fragile=False)(x).softmax(-1).detach()
    return x, torch.multinomial(probs, 1, generator=random)[:, 0]


def test_a_corruption_that_hurts_unnoticed_is_named() -> None:
    test = images(300)
    names = {
        fragile: [f.name for f in pm.audit(Quadrants(fragile), test, checks=["shifts"]).problems]
        for fragile in (False, True)
    }
    assert not names[False]
    assert "unnoticed gaussian_noise" in names[True] and "unnoticed fog" not in names[True]


def test_standardised_images_are_corrupted_as_pixels() -> None:
    """The same network behind a standardisation has the same curves."""
    x, y = images(100)
    x[0, 0, 0, :2] = torch.tensor([0.0, 1.0])  # so that the range of the test set is [0, 1]

    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = Quadrants(fragile=False)

        def forward(self, z):
            return self.net(0.25 * z + 0.5)

    plain = pm.audit(Quadrants(fragile=False), (x, y), checks=["shifts"]).findings[-1]
    other = pm.audit(Shifted(), ((x - 0.5) / 0.25, y), checks=["shifts"]).findings[-1]
    assert other.estimate == pytest.approx(plain.estimate, abs=1e-5)


class Radial(nn.Module):
    """Two classes; `modest`: less sure the farther its input is from the middle."""

    def __init__(self, modest: bool) -> None:
        super().__init__()
        self.modest, self.weight = modest, nn.Parameter(torch.tensor([[2.0, 0.0], [-2.0, 0.0]]))

    def forward(self, x):
        logits = x @ self.weight.T
        return logits / (1 + x.square().sum(1, keepdim=True)) ** 2 if self.modest else logits


def test_a_set_from_elsewhere_that_is_accepted_is_named_and_one_that_is_not_is_not() -> None:
    torch.manual_seed(0)
    x = torch.randn(400, 2)
    far = 15 * torch.randn(300, 2)
    for modest in (False, True):
        net = Radial(modest)
        y = torch.distributions.Categorical(logits=net(x)).sample()
        audit = pm.audit(net, (x, y), ood={"far": far}, checks=["ood", "attacks"])
        assert [f.name for f in audit.problems] == ([] if modest else ["accepts far"])
        (fact,) = [f for f in audit.findings if f.check == "attacks"]
        assert fact.estimate <= (net(x).argmax(-1) == y).double().mean() + 0.15
        table = [t for f in audit.findings for t in f.evidence if t.title.startswith("Inputs")][0]
        area = float(table.lines[0][2].split()[0])
        assert (area > 0.9) == modest


def values(n: int, seed: int = 0) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(seed)
    net = nn.Linear(3, 1)
    x = torch.randn(n, 3)
    return net, x, (net(x) + 0.5 * torch.randn(n, 1)).detach()


def test_intervals_that_are_too_narrow_are_named_by_group_too() -> None:
    net, x, y = values(1500)
    assert not pm.audit(net, (x, y), likelihood=Gaussian(noise=0.5)).problems
    narrow = pm.audit(net, (x, y), likelihood=Gaussian(noise=0.3))
    assert "intervals too narrow at 90 %" in [f.name for f in narrow.problems]
    group = np.where(x[:, 0] > 1, "a", "b")
    y[group == "a"] += 2 * torch.randn(int((group == "a").sum()), 1)
    audit = pm.audit(net, (x, y), groups={"g": group}, likelihood=Gaussian(noise=0.5))
    names = [f.name for f in audit.problems]
    assert "intervals too narrow for g=a" in names and "intervals too narrow for g=b" not in names


def test_the_noise_of_a_point_network_comes_from_validation_data() -> None:
    net, x, y = values(4000)
    audit = pm.audit(net, (x[:1000], y[:1000]), val=(x[1000:], y[1000:]), likelihood="gaussian")
    assert not audit.problems
    wide = pm.audit(net, (x[:1000], y[:1000]), val=(x[1000:], y[1000:] * 3), likelihood="gaussian")
    assert "intervals too wide at 90 %" in [f.name for f in wide.problems]
    with pytest.raises(ValueError, match="needs its noise"):
        pm.audit(net, (x, y), likelihood="gaussian")
    pair = torch.cat([y, 5 * y], 1)
    two = nn.Linear(3, 2)
    with torch.no_grad():
        two.weight.copy_(torch.cat([net.weight, 5 * net.weight]))
        two.bias.copy_(torch.cat([net.bias, 5 * net.bias]))
    audit = pm.audit(
        two, (x[:1000], pair[:1000]), val=(x[1000:], pair[1000:]), likelihood="gaussian"
    )
    assert not audit.problems
    assert audit.best.likelihood.noise == pytest.approx((0.5, 2.5), rel=0.05)


def test_the_test_of_coverage_has_its_level() -> None:
    """With noise fitted on as many rows as are tested, 5 % of 2000 sound audits are rejected.

    The number is binomial: outside 3.5 % to 6.5 % in fewer than one of 400 runs.
    """
    random = np.random.default_rng(0)
    rejected = 0
    for _ in range(2000):
        fitted, tested = random.normal(size=(2, 200))
        inside = int((np.abs(tested) <= 1.6448536 * np.sqrt((fitted**2).mean())).sum())
        rejected += coverage_test(inside, 200, 0.9, 200) < 0.05
    assert 0.035 < rejected / 2000 < 0.065
    assert coverage_test(170, 200, 0.9, None) == binomtest(170, 200, 0.9).pvalue
