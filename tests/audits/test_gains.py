"""What cheap posteriors would change, held against closed forms and independent code."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import polymode as pm
from polymode.audits import Audit, Finding

from .networks import drawn, linear


def sharper(factor: float) -> nn.Module:
    net = linear()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(factor)
    return net


def gain(audit: Audit, name: str) -> Finding:
    return next(f for f in audit.findings if f.check == "gains" and f.name == name)


def test_a_temperature_gains_what_its_formula_says_and_the_best_can_be_saved(tmp_path) -> None:
    net, (x, y) = sharper(3.0), drawn(linear(), 1500, 0)
    audit = pm.audit(net, (x, y), val=drawn(linear(), 800, 1), checks=["gains"])
    found = gain(audit, "temperature")
    temperature = float(found.text.split("(")[1].split(")")[0])
    rows = torch.arange(1500)
    logs = [(net(x).detach().double() / t).log_softmax(-1)[rows, y] for t in (1, temperature)]
    assert found.estimate == pytest.approx(float((logs[1] - logs[0]).mean()), abs=1e-3)
    assert found.low < found.estimate < found.high and found.low > 0
    assert gain(audit, "best posterior").text.endswith("temperature.")
    audit.best.save(tmp_path / "post")
    loaded = pm.load(tmp_path / "post", net=linear)
    after = loaded.answer(x).prediction.log_prob(y).double().mean()
    assert float(after - logs[0].mean()) == pytest.approx(found.estimate, abs=1e-3)


def test_what_does_not_help_is_not_the_best() -> None:
    audit = pm.audit(linear(), drawn(linear(), 1000, 0), val=drawn(linear(), 100, 1))
    assert "None of" in gain(audit, "best posterior").text
    assert audit.best.bundle is None and audit.best.num_modes == 1


def test_dropout_is_tried_where_there_is_some_and_laplace_where_there_are_training_data() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))
    names = [f.name for f in pm.audit(net, drawn(linear(), 200, 0), checks=["gains"]).findings]
    assert "dropout" in names and "last-layer Laplace" not in names
    plain = pm.audit(
        linear(), drawn(linear(), 200, 0), train=drawn(linear(), 200, 1), checks=["gains"]
    )
    names = [f.name for f in plain.findings]
    assert "dropout" not in names and "last-layer Laplace" in names


def test_members_that_are_alike_are_not_worth_paying_for() -> None:
    test = drawn(linear(), 500, 0)
    same = [linear() for _ in range(3)]
    assert gain(pm.audit(same, test, checks=["gains"]), "members worth paying for").estimate == 1
    several = [linear() for _ in range(3)]
    for seed, net in enumerate(several):
        torch.manual_seed(seed)
        with torch.no_grad():
            net.weight.add_(3 * torch.randn_like(net.weight))
    audit = pm.audit(several, test, checks=["gains"])
    found = gain(audit, "members worth paying for")
    assert found.estimate == 3
    logits = torch.stack([net(test[0]).detach().double().log_softmax(-1) for net in several[:2]])
    nll = -(logits.exp().mean(0).log()[torch.arange(500), test[1]]).mean()
    assert float(found.evidence[0].lines[1][1]) == pytest.approx(float(nll), abs=1e-3)


def test_conformal_sets_hold_their_level() -> None:
    """Of 2000 examples 90 % ± 2.5 % are covered: beyond three standard errors of both sets."""
    audit = pm.audit(
        sharper(3.0), drawn(linear(), 2000, 0), val=drawn(linear(), 2000, 1), checks=["gains"]
    )
    share = float(gain(audit, "conformal").evidence[0].lines[0][1].split()[0])
    assert abs(share - 90) < 2.5
