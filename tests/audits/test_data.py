"""What is said of the data and of slices, where the truth is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.stats import f_oneway

from polymode.audits.checks import CHECKS, NotApplicable
from polymode.audits.checks.data import separation
from polymode.audits.checks.label_errors import fit_noise
from polymode.audits.checks.slices import grown, path_words

from .networks import drawn, linear, subject_of


def look(name, subject) -> dict:
    return {finding.name: finding for finding in CHECKS.get(name).value(subject)}


class Sharper(torch.nn.Module):
    """A network that is too sure, of all inputs or of those with x0 above 0."""

    def __init__(self, net, only: bool = False) -> None:
        super().__init__()
        self.net, self.only = net, only

    def forward(self, x):
        factor = torch.where(x[:, :1] > 0, 6.0, 1.0) if self.only else 4.0
        return self.net(x) * factor


def mislabelled(labels: torch.Tensor, share: float, classes: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(9)
    wrong = torch.rand(len(labels), generator=generator) < share
    return torch.where(wrong, (labels + 1) % classes, labels)


def test_the_share_of_wrong_labels_is_that_of_a_general_optimiser() -> None:
    net = linear(factor=6.0)
    x, y = drawn(net, 400, 0)
    y = mislabelled(y, 0.1)
    logits = 2.0 * net(x).detach().double()
    noise = fit_noise(logits, y)

    def negative(parameters: np.ndarray) -> float:
        probs = (logits / np.exp(parameters[0])).softmax(-1)[range(len(y)), y]
        eps = 1 / (1 + np.exp(-parameters[1]))
        return -float(((1 - eps) * probs + eps / 3).log().sum())

    best = minimize(negative, [0.0, -2.0], method="Nelder-Mead", options={"fatol": 1e-8})
    assert noise.temperature == pytest.approx(np.exp(best.x[0]), rel=1e-2)
    assert noise.share == pytest.approx(2 / 3 / (1 + np.exp(-best.x[1])), rel=1e-2)
    assert noise.share == pytest.approx(0.1, abs=0.05) and noise.p_value < 1e-4


def test_wrong_labels_are_named_and_overconfidence_is_not_taken_for_them() -> None:
    net = linear(factor=15.0)
    x, y = drawn(net, 1500, 1)
    wrong = mislabelled(y, 0.03)
    (finding,) = look("label_errors", subject_of(net, (x, wrong))).values()
    assert finding.p_value < 1e-6 and finding.severity == "medium"
    rows = [int(line[0]) for line in finding.evidence[0].lines]
    assert np.mean([bool(wrong[i] != y[i]) for i in rows]) > 0.8
    for sound in (net, Sharper(net)):
        assert look("label_errors", subject_of(sound, (x, y)))["label errors"].p_value > 0.01
    with pytest.raises(NotApplicable, match="below 1 %"):
        look("label_errors", subject_of(linear(factor=0.1), (x, y)))


def test_the_likelihood_ratio_raises_few_false_alarms() -> None:
    """At level 5 %, over 150 sound sets: more than 15 alarms have probability 0.6 %."""
    generator = torch.Generator().manual_seed(4)
    alarms = 0
    for _ in range(150):
        logits = 3.0 * torch.randn(200, 3, generator=generator, dtype=torch.float64)
        labels = torch.multinomial((logits / 1.5).softmax(-1), 1, generator=generator)[:, 0]
        alarms += fit_noise(logits, labels).p_value < 0.05
    assert alarms <= 15


def test_missing_classes_and_constant_columns_are_named() -> None:
    net = linear()
    (x, y), train = drawn(net, 400, 2), drawn(net, 800, 3)
    fixed = x.clone()
    fixed[:, 2] = 0.0
    sound = look("data", subject_of(net, (x, y), train))
    assert all(finding.p_value > 0.05 for finding in sound.values())
    without = train[1] != 2
    findings = look("data", subject_of(net, (fixed, y), (train[0][without], train[1][without])))
    assert "'2'" in findings["classes without training examples"].text
    assert findings["classes without training examples"].p_value < 1e-9
    assert "'x2'" in findings["columns constant in the test set"].text
    assert findings["columns constant in the test set"].p_value < 1e-9
    assert findings["columns constant in the training set"].p_value == 1.0
    alone = look("data", subject_of(net, (fixed[y != 1], y[y != 1])))
    assert "'1'" in alone["classes without test examples"].text
    assert alone["constant columns"].kind == "fact"
    rare = x.clone()
    rare[:, 3] = (torch.arange(400) == 7).float()
    never = train[0].clone()
    never[:, 3] = 0.0  # one value in 400 may be missing in 800 by chance
    chance = look("data", subject_of(net, (rare, y), (never, train[1])))
    assert chance["columns constant in the training set"].p_value > 0.3


def test_a_column_that_gives_the_label_is_named() -> None:
    net = linear()
    x, y = drawn(net, 1200, 5)
    leaking = x.clone()
    leaking[:, 1] = y + 0.1 * x[:, 1]
    assert look("data", subject_of(net, (leaking, y)))["column x1 gives the label"].p_value < 1e-4
    sound = look("data", subject_of(net, (x, y)))
    assert [finding.p_value for name, finding in sound.items() if "gives" in name] == [1.0]
    values = x.double().numpy()
    eta = separation(values, y.numpy())
    statistic = f_oneway(*(values[y.numpy() == k] for k in range(3))).statistic
    assert eta / (1 - eta) * (1200 - 3) / 2 == pytest.approx(statistic)


def test_the_words_of_a_slice_select_its_rows() -> None:
    generator = np.random.default_rng(0)
    values = generator.standard_normal((600, 2)).astype(np.float32)
    values = np.c_[values, generator.random(600) < 0.5].astype(np.float32)
    stairs = 4 * values[:, 0] + values[:, 2]  # asks for one column several times
    tree = grown(values, stairs)
    leaves = tree.apply(values)
    for leaf in np.unique(leaves):
        words = path_words(tree, int(leaf), ["a", "b", "city = Ulm"])
        rule = words.replace("city = Ulm", "(c > 0.5)").replace("city ≠ Ulm", "(c < 0.5)")
        rule = rule.replace(" and ", " & ").replace("≤", "<=")
        rule = " & ".join(
            f"({p.split(' < ')[0]} < {p.split(' < ')[1].split(' ')[0]}) & ({p.split(' < ', 1)[1]})"
            if p.count("<") == 2 and "c" not in p
            else f"({p})"
            for p in rule.split(" & ")
        )
        chosen = eval(rule, {"a": values[:, 0], "b": values[:, 1], "c": values[:, 2]})
        assert (chosen != (leaves == leaf)).mean() < 0.02, words  # limits have three digits


def test_the_slice_that_is_overconfident_is_named() -> None:
    net = linear()
    test = drawn(net, 1500, 6)
    findings = look("slices", subject_of(Sharper(net, only=True), test))
    name = next(name for name in findings if "overconfident" in name)
    assert "x0 >" in name and findings[name].p_value < 1e-6
    assert "errors" in findings["most errors"].text
    sound = look("slices", subject_of(net, test))
    assert all(f.p_value > 0.01 for f in sound.values() if f.p_value is not None)
    place = np.where(test[0][:, 0] > 0, "Ulm", "Bonn")
    images = test[0][:, None, None, :]

    class Image(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = Sharper(net, only=True)

        def forward(self, x):
            return self.net(x[:, 0, 0])

    findings = look("slices", subject_of(Image(), (images, test[1]), groups={"city": place}))
    assert any(name.endswith(("city = Ulm", "city ≠ Bonn")) for name in findings)
    with pytest.raises(NotApplicable, match="no table of columns, and no groups"):
        look("slices", subject_of(Image(), (images, test[1])))
