"""Audits of networks whose faults are known, and the statistics behind them."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import torch
from scipy.stats import binom
from torch import nn

import polymode as pm
from polymode.audits.audit import corrected
from polymode.audits.checks.calibration import gap_test
from polymode.audits.finding import Finding
from polymode.cli.app import main


class Sharper(nn.Module):
    """A network whose logits are multiplied."""

    def __init__(self, net: nn.Module, factor: float) -> None:
        super().__init__()
        self.net, self.factor = net, factor

    def forward(self, x):
        return self.factor * self.net(x)


def build() -> nn.Module:
    torch.manual_seed(1)
    net = nn.Linear(4, 3)
    with torch.no_grad():
        net.weight.mul_(3.0)
    return net


def labelled(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Labels that are drawn with the probabilities of the network of `build`."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 4, generator=generator)
    probs = build()(x).softmax(-1).detach()
    return x, torch.multinomial(probs, 1, generator=generator)[:, 0]


def test_a_sound_network_is_sound_and_an_overconfident_one_is_named(tmp_path) -> None:
    test, val = labelled(1500, 0), labelled(500, 1)
    sound = pm.audit(build(), test, val=val)
    assert sound.severity == "none" and not sound.fails("low") and "Sound" in sound.verdict
    hot = pm.audit(Sharper(build(), 3.0), test, val=val)
    assert hot.problems[0].name == "overconfident" and hot.fails("high")
    temperature = float(hot.problems[0].remedy.split()[3].strip(","))
    assert temperature == pytest.approx(3.0, rel=0.25)
    assert "claims" in hot.verdict and "right" in hot.verdict
    page = hot.save(tmp_path)
    text = page.read_text()
    assert "Overconfident" in text and "<script src" not in text
    held = json.loads((tmp_path / "audit.json").read_text())
    assert held["severity"] == "high" and held["findings"][0]["name"] == "overconfident"
    assert "| confidence |" in (tmp_path / "audit.md").read_text()


def test_a_group_that_is_mislabelled_is_named() -> None:
    x, y = labelled(2000, 2)
    group = np.where(x[:, 0] > 1, "far", "near")
    wrong = torch.as_tensor(group == "far") & (torch.rand(2000) < 0.5)
    y = torch.where(wrong, (y + 1) % 3, y)
    result = pm.audit(build(), (x, y), groups={"place": group}, checks=["groups"])
    names = [finding.name for finding in result.problems]
    assert "accuracy of place=far" in names and "accuracy of place=near" not in names


def test_the_law_of_the_number_of_mistakes_is_exact() -> None:
    """Equal confidences give a binomial; others the sum of two."""
    confidence, correct = np.full(40, 0.9), np.r_[np.ones(31), np.zeros(9)]
    law = binom(40, 0.1)
    expected = 2 * min(law.cdf(9), law.sf(8))
    assert gap_test(confidence, correct) == pytest.approx(expected, rel=1e-10)
    confidence = np.r_[np.full(20, 0.9), np.full(20, 0.6)]
    law = np.convolve(binom(20, 0.1).pmf(range(21)), binom(20, 0.4).pmf(range(21)))
    expected = 2 * min(law[:10].sum(), law[9:].sum())
    assert gap_test(confidence, correct) == pytest.approx(expected, rel=1e-10)
    many = np.full(40_000, 0.9)  # normal from here on
    outcome = np.r_[np.ones(35_870), np.zeros(4130)]
    law = binom(40_000, 0.1)
    assert gap_test(many, outcome) == pytest.approx(2 * law.sf(4129), rel=0.05)


def test_severities_hold_after_correction_only() -> None:
    def finding(name: str, p_value: float | None) -> Finding:
        return Finding(check="c", name=name, text=name, severity="high", p_value=p_value)

    judged = corrected(
        [finding("a", 0.03), finding("b", 0.001), finding("c", None), finding("d", 0.4)]
    )
    assert {f.name: f.severity for f in judged} == {
        "a": "none",
        "b": "high",
        "c": "high",
        "d": "none",
    }


def test_the_command_ends_with_a_code_a_pipeline_can_use(tmp_path, monkeypatch, capsys) -> None:
    from safetensors.torch import save_file

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "models.py").write_text(
        "from torch import nn\n\ndef build():\n    return nn.Linear(4, 3)\n"
    )
    (x, y), (x_val, y_val) = labelled(800, 3), labelled(400, 4)
    arrays = {"x_test": x, "y_test": y, "x_val": x_val, "y_val": y_val}
    np.savez("data.npz", **{name: value.numpy() for name, value in arrays.items()})
    good = build().state_dict()
    save_file(good, "good.safetensors")
    torch.save({name: 4 * tensor for name, tensor in good.items()}, "bad.pt")
    call = ["audit", "--net", "models:build", "--data", "data.npz"]
    try:
        assert main([*call, "--weights", "good.safetensors"]) == 0
        assert main([*call, "--weights", "bad.pt", "--out", "bad"]) == 1
        assert "Overconfident" in capsys.readouterr().out
        assert (tmp_path / "bad" / "audit.html").is_file()
        torch.save(nn.Linear(4, 3), "module.pt")
        for words, reason in (
            (["--weights", "module.pt"], "holds more than tensors"),
            (["--weights", "none.pt"], "no file none.pt"),
            (["--weights", "good.safetensors", "--groups", "city"], "has no array 'city'"),
            (["--fail-on", "all"], "--fail-on takes"),
            (["--budget", "soon"], "--budget takes"),
        ):
            assert main([*call, *words]) == 2
            assert reason in capsys.readouterr().err
    finally:
        sys.modules.pop("models", None)


def test_wrong_calls_are_one_line() -> None:
    x, y = labelled(30, 5)
    for arguments, reason in (
        (dict(net=build, test=(x, y)), "a factory would make untrained networks"),
        (dict(net=build(), test=(x, y), groups={"a": [1, 2]}), "one value for each of the 30"),
        (dict(net=build(), test=(x, y), checks=["unknown"]), "unknown"),
    ):
        with pytest.raises((ValueError, KeyError), match=reason):
            pm.audit(**arguments)
    assert (
        "[" in pm.audit(build(), (x, y)).findings[0].text
    )  # 20 rows: intervals as wide as they are
