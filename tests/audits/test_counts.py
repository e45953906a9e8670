"""The laws of counts, by enumeration and against scipy, and the checks that rest on them."""

from __future__ import annotations

from itertools import combinations, product
from math import comb, prod

import numpy as np
import pytest
import torch
from scipy.stats import binom, binomtest

from polymode.audits.checks import CHECKS, NotApplicable, laws
from polymode.audits.checks.confusions import confusion_tables, pair_rates
from polymode.audits.checks.duplicates import copies_of, crossing_test

from .networks import drawn, linear, subject_of


def look(name, subject) -> dict:
    return {finding.name: finding for finding in CHECKS.get(name).value(subject)}


def test_the_law_of_a_sum_is_that_of_all_outcomes() -> None:
    rates = np.array([0.1, 0.7, 0.35, 0.02])
    law = np.zeros(5)
    for outcome in product((0, 1), repeat=4):
        law[sum(outcome)] += prod(r if o else 1 - r for r, o in zip(rates, outcome, strict=True))
    assert laws.sum_law(rates) == pytest.approx(law, abs=1e-15)
    for count in range(6):
        assert laws.excess_test(rates, count) == pytest.approx(law[count:].sum(), abs=1e-15)
    same = np.full(300, 0.02)
    assert laws.excess_test(same, 15) == pytest.approx(binom(300, 0.02).sf(14), rel=1e-10)
    many = np.full(40_000, 0.1)  # normal from here on
    assert laws.excess_test(many, 4130) == pytest.approx(binom(40_000, 0.1).sf(4129), rel=0.05)


def test_the_bound_is_above_the_law() -> None:
    generator = np.random.default_rng(0)
    for size in (5, 50, 200):
        rates = generator.random(size) * 0.2
        for count in range(size + 1):
            bound = laws.excess_bound(np.array(rates.sum()), np.array(float(count)))
            exact = laws.sum_law(rates)[count:].sum()
            assert np.exp(bound) >= exact * (1 - 1e-12) or exact < 1e-14


def test_losses_are_tested_as_by_mcnemar() -> None:
    for losses, gains in ((0, 0), (7, 1), (1, 7), (30, 12)):
        expected = 1.0
        if losses + gains:
            expected = binomtest(losses, losses + gains, 0.5, alternative="greater").pvalue
        assert laws.loss_test(losses, gains) == pytest.approx(expected, rel=1e-12)


def test_absence_counts_divisions() -> None:
    divisions = list(combinations(range(7), 4))  # which of 7 examples come here
    everywhere = sum(set((0, 1, 2)) <= set(here) for here in divisions)
    assert laws.absence_test(3, 4, 3) == pytest.approx(everywhere / comb(7, 4))


def test_confusions_and_their_rates_are_counted_pair_by_pair() -> None:
    generator = np.random.default_rng(3)
    probs = generator.dirichlet(np.ones(4), 60)
    predicted, labels = probs.argmax(1), generator.integers(4, size=60)
    counts, expected = confusion_tables(probs, predicted, labels)
    for a, b in combinations(range(4), 2):
        rows = range(60)
        assert counts[a, b] == sum({predicted[i], labels[i]} == {a, b} for i in rows)
        stated = [probs[i, a + b - predicted[i]] for i in rows if predicted[i] in (a, b)]
        assert expected[a, b] == pytest.approx(sum(stated))
        assert sorted(pair_rates(probs, predicted, (a, b))) == pytest.approx(sorted(stated))


class Swapped(torch.nn.Module):
    """A network whose outputs 1 and 3 are swapped."""

    def __init__(self, net) -> None:
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net(x)[:, [0, 3, 2, 1]]


def test_swapped_classes_are_named() -> None:
    net = linear(4)
    test = drawn(net, 800, 0)
    (name, finding), *_ = look("confusions", subject_of(Swapped(net), test)).items()
    assert name == "classes 1 and 3 confused"
    assert finding.p_value < 1e-9 and finding.severity == "high"
    (sound,) = look("confusions", subject_of(net, test)).values()
    assert sound.p_value > 0.05


def test_confusions_raise_few_false_alarms() -> None:
    """At level 5 %, over 200 sound networks: more than 18 alarms have probability 0.5 %."""
    generator = np.random.default_rng(5)
    alarms = 0
    for _ in range(200):
        probs = generator.dirichlet(np.full(5, 0.4), 150)
        labels = (probs.cumsum(1) > generator.random((150, 1))).argmax(1)
        counts, _ = confusion_tables(probs, probs.argmax(1), labels)
        p_values = [
            laws.excess_test(pair_rates(probs, probs.argmax(1), pair), int(counts[pair]))
            for pair in combinations(range(5), 2)
        ]
        alarms += 10 * min(p_values) < 0.05
    assert alarms <= 18


def test_copies_are_found_and_cross_at_random_only() -> None:
    generator = np.random.default_rng(2)
    rows = torch.as_tensor(generator.integers(0, 2, (400, 6)).astype(np.float32))
    copies = copies_of(rows[:100], rows[100:])
    for i, place in enumerate(copies.source):
        equal = (rows[100:] == rows[i]).all(1).nonzero()[:, 0]
        assert place == (int(equal[0]) if len(equal) else -1)
    assert crossing_test(copies, 100, 300) > 0.05  # a table that repeats by nature
    assert copies_of(torch.tensor([[-0.0]]), torch.tensor([[0.0]])).source.tolist() == [0]
    x = torch.randn(400, 6)
    leaked = copies_of(torch.cat([x[:95], x[100:105]]), x[100:])
    assert leaked.crossing == 5 and leaked.sizes.tolist() == [2] * 5
    assert crossing_test(leaked, 100, 300) == pytest.approx((2 * 0.25 * 0.75) ** 5)


def test_leaked_rows_are_named_with_what_they_do_to_the_score() -> None:
    net = linear()
    train, test = drawn(net, 600, 1), drawn(net, 300, 2)
    sound = look("duplicates", subject_of(net, test, train))
    assert all(finding.p_value > 0.05 for finding in sound.values())
    x = torch.cat([test[0][:240], train[0][:30], train[0][30:60] * 1.0001])
    y = torch.cat([test[1][:240], net(x[240:]).argmax(-1)])
    findings = look("duplicates", subject_of(net, (x, y), train))
    assert findings["leaked test rows"].estimate == pytest.approx(0.1)
    assert findings["leaked test rows"].p_value < 1e-6
    assert findings["score inflated by leaked rows"].p_value < 0.01
    assert findings["near-duplicates"].p_value < 1e-6
    with pytest.raises(NotApplicable, match="no training data"):
        look("duplicates", subject_of(net, test))


def test_two_versions_are_compared_in_pairs_and_by_group() -> None:
    net = linear()
    x, y = drawn(net, 600, 3)
    place = np.where(x[:, 0] > 0, "a", "b")

    class Worse(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x):
            return self.net(x) * torch.where(x[:, :1] > 0, -0.2, 1.0)

    subject = subject_of(Worse(), (x, y), groups={"place": place}, baseline=net)
    findings = look("baseline", subject)
    old, new = (net(x).argmax(-1) == y).numpy(), (Worse()(x).argmax(-1) == y).numpy()
    group = findings["regression of place=a"]
    inside = place == "a"
    table = (int((old & ~new)[inside].sum()), int((~old & new)[inside].sum()))
    assert group.p_value == pytest.approx(
        binomtest(table[0], sum(table), 0.5, alternative="greater").pvalue
    )
    assert group.p_value < 1e-3 and group.estimate == pytest.approx(
        new[inside].mean() - old[inside].mean()
    )
    assert findings["regression of place=b"].p_value == 1.0
    assert findings["regression of NLL"].p_value < 1e-3
    better = look("baseline", subject_of(net, (x, y), baseline=Worse()))
    assert better["regression of all examples"].kind == "gain"
    assert better["regression of all examples"].p_value > 0.9
