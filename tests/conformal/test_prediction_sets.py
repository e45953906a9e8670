"""Conformal sets: coverage in simulation with exact expectation, definitions, faults of others."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats
from torch import Tensor

from polymode.conformal import conformal_rank, conformal_sets, coverage, tune_raps
from polymode.prediction import CategoricalPrediction, MixturePrediction

DRAWS, N = 1000, 20
K = 19  # ceil(21 * 0.9)


def truth(n: int, generator: torch.Generator) -> tuple[CategoricalPrediction, Tensor]:
    """Two classes, P(1 | x) uniform and known; labels drawn from it."""
    p = torch.rand(n, generator=generator, dtype=torch.float64)
    labels = (torch.rand(n, generator=generator, dtype=torch.float64) < p).long()
    return CategoricalPrediction.from_probs(torch.stack([1 - p, p], 1)), labels


def thr_coverage(quantile: float) -> float:
    """P(1 - p_y <= q): the label's probability has density 2p, size-biased."""
    return 1 - max(1 - quantile, 0.0) ** 2


def aps_coverage(quantile: float) -> float:
    """The randomised score of the right model is uniform."""
    return min(quantile, 1.0)


def raps_coverage(quantile: float) -> float:
    """By quadrature over the larger probability m, uniform on (1/2, 1); penalty 0.1, k_reg 1."""

    def given(m: float) -> float:
        first = min(quantile / m, 1.0) * m
        second = min(max(quantile - 0.1 - m, 0.0), 1 - m)
        return 2 * (first + second)

    kinks = [point for point in (quantile, quantile - 0.1) if 0.5 < point < 1]
    return integrate.quad(given, 0.5, 1, points=kinks or None)[0]


RULES = {
    "thr": ({"method": "thr"}, thr_coverage),
    "aps": ({"method": "aps"}, aps_coverage),
    "raps": ({"method": "raps", "penalty": 0.1, "k_reg": 1}, raps_coverage),
}


@pytest.mark.parametrize("name", RULES)
def test_coverage_of_90_percent_with_20_examples(name) -> None:
    """Mean over 1,000 draws of the exact coverage given the calibration: >= 0.90, about 19/21.

    Its law is Beta(19, 2): mean 0.9048, standard error over 1,000 draws 0.0020. False alarms: 8e-3
    for the bound 0.90 (2.4 standard errors), 6e-5 for the mean, 1e-3 for the law.
    """
    options, exact = RULES[name]
    generator = torch.Generator().manual_seed(1)
    found = []
    for draw in range(DRAWS):
        prediction, labels = truth(N, generator)
        rule = conformal_sets(prediction, labels, level=0.9, seed=draw, **options)
        found.append(exact(rule.quantile))
    law = stats.beta(K, N + 1 - K)
    assert np.mean(found) >= 0.90
    assert abs(np.mean(found) - K / (N + 1)) < 4 * law.std() / math.sqrt(DRAWS)
    assert stats.kstest(found, law.cdf).pvalue > 1e-3


@pytest.mark.parametrize("name", RULES)
def test_sets_cover_what_the_quantile_says(name) -> None:
    """20,000 new examples against the exact coverage. False alarms: 6e-5 (four standard errors)."""
    options, exact = RULES[name]
    generator = torch.Generator().manual_seed(2)
    rule = conformal_sets(*truth(50, generator), level=0.8, **options)
    prediction, labels = truth(20_000, generator)
    expected = exact(rule.quantile)
    error = math.sqrt(expected * (1 - expected) / 20_000)
    assert abs(coverage(rule(prediction, seed=7), labels) - expected) < 4 * error


@pytest.mark.parametrize("method", ["thr", "aps", "raps"])
@pytest.mark.parametrize("randomized", [True, False])
def test_a_wrong_model_is_covered_too(method, randomized) -> None:
    """Probabilities that have little to do with the labels, ten classes, an ensemble of 3.

    Scores have no ties, so the mean over 300 draws of 30 and 30 examples is 25/31 = 0.806, also
    without randomisation. False alarms: 6e-5 each (four standard errors).
    """
    generator = torch.Generator().manual_seed(3)
    found = []
    for draw in range(300):
        logits = 2 * torch.randn(3, 60, 10, generator=generator, dtype=torch.float64)
        labels = torch.multinomial((0.5 * logits[0]).softmax(-1), 1, generator=generator)[:, 0]
        prediction = CategoricalPrediction.from_logits(logits)
        options = {"method": method, "randomized": randomized, "seed": draw}
        rule = conformal_sets(prediction[:30], labels[:30], level=0.8, **options)
        found.append(coverage(rule(prediction[30:], seed=draw), labels[30:]).item())
    error = 4 * np.std(found) / math.sqrt(300)
    assert abs(np.mean(found) - 25 / 31) < error


def test_randomisation_makes_coverage_exact() -> None:
    """One input, probabilities 0.5, 0.3, 0.2: without u scores tie, and sets cover all three.

    With u the 90 % sets of the right model cover 0.9, given enough examples. False alarms: 1e-4.
    """
    generator = torch.Generator().manual_seed(4)
    probs = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).expand(40_000, 3)
    labels = torch.multinomial(probs, 1, generator=generator)[:, 0]
    prediction = CategoricalPrediction.from_probs(probs)
    half = 20_000
    rule = conformal_sets(prediction[:half], labels[:half], method="aps")
    assert rule.quantile == pytest.approx(0.9, abs=4 * math.sqrt(0.09 / half))
    share = coverage(rule(prediction[half:]), labels[half:])
    assert share == pytest.approx(0.9, abs=4 * math.sqrt(2 * 0.09 / half))
    plain = conformal_sets(prediction[:half], labels[:half], method="aps", randomized=False)
    assert plain(prediction[half:]).members.all()


def plain_scores(probs: list[float], u: float, penalty: float, k_reg: int) -> list[float]:
    """Slow twin: classes sorted by probability, of equals the first first."""
    order = sorted(range(len(probs)), key=lambda c: (-probs[c], c))
    scores = [0.0] * len(probs)
    for place, c in enumerate(order):
        before = sum(probs[j] for j in order[:place])
        scores[c] = before + u * probs[c] + penalty * max(0, place + 1 - k_reg)
    return scores


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 12), st.integers(2, 6), st.integers(0, 2**31), st.floats(0.3, 0.97))
def test_definition_of_the_sets(n, classes, seed, level) -> None:
    """Each set is what the twin's scores say, without u, ties included (sixteenths)."""
    generator = torch.Generator().manual_seed(seed)
    votes = torch.randint(classes, (2 * n, 16), generator=generator)
    probs = torch.nn.functional.one_hot(votes, classes).double().mean(1)
    labels = torch.randint(classes, (n,), generator=generator)
    first, second = (CategoricalPrediction.from_probs(part) for part in probs.split(n))
    k = conformal_rank(n, level)
    for penalty, k_reg in ((0.0, 0), (0.25, 2)):
        twin = [plain_scores(row, 1.0, penalty, k_reg) for row in probs.tolist()]
        own = sorted(row[y] for row, y in zip(twin[:n], labels.tolist(), strict=True))
        quantile = own[k - 1] if k <= n else math.inf
        expected = torch.tensor([[s <= quantile for s in row] for row in twin[n:]])
        options = {"penalty": penalty, "k_reg": k_reg, "method": "raps", "randomized": False}
        rule = conformal_sets(first, labels, level, **options)
        assert rule.quantile == pytest.approx(quantile) and rule.vacuous == (k > n)
        margin = torch.tensor(twin[n:]).sub(quantile).abs() > 1e-6
        assert ((rule(second).members == expected) | ~margin).all()
        if penalty == 0:
            aps = conformal_sets(first, labels, level, "aps", randomized=False)
            assert (aps(second).members == rule(second).members).all()


def test_one_draw_per_example() -> None:
    """A fault known elsewhere: noise per class at test time and per example in calibration.

    With one u per example the classes of a set are the most probable ones, without a gap.
    """
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(500, 8, generator=generator)
    labels = torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]
    prediction = CategoricalPrediction.from_logits(logits)
    for method in ("aps", "raps"):
        sets = conformal_sets(prediction, labels, 0.7, method)(prediction, seed=1)
        ordered = sets.members.gather(1, prediction.mean.argsort(-1, descending=True))
        assert (ordered.int().diff(dim=1) <= 0).all()


def test_nothing_but_the_quantile_is_fitted() -> None:
    """A fault known elsewhere: a temperature fitted on the calibration set, unasked.

    The thr quantile is a score of the prediction as it came.
    """
    prediction, labels = truth(30, torch.Generator().manual_seed(6))
    scores = 1 - prediction.log_prob(labels).exp()
    rule = conformal_sets(prediction, labels)
    assert rule.quantile == pytest.approx(scores.sort().values[27].item(), abs=1e-15)


def test_empty_sets_are_seen() -> None:
    """A fault known elsewhere: empty sets filled unasked. Here only when asked."""
    sure = CategoricalPrediction.from_probs([[0.9, 0.05, 0.05]] * 30)
    unsure = CategoricalPrediction.from_probs([[0.4, 0.35, 0.25], [0.1, 0.1, 0.8]])
    labels = torch.zeros(30, dtype=torch.long)
    sets = conformal_sets(sure, labels)(unsure)
    assert sets.empty.tolist() == [True, True] and sets.sizes.tolist() == [0, 0]
    assert "empty=2" in repr(sets)
    filled = conformal_sets(sure, labels, allow_empty=False)(unsure)
    assert filled.members.tolist() == [[True, False, False], [False, False, True]]


@pytest.mark.parametrize("method", ["thr", "aps", "raps"])
def test_too_few_examples(method) -> None:
    """9 examples allow 90 %, 8 do not: everything is in the set, and `.vacuous` says so."""
    prediction, labels = truth(9, torch.Generator().manual_seed(7))
    assert not conformal_sets(prediction, labels, 0.9, method).vacuous
    rule = conformal_sets(prediction[:8], labels[:8], 0.9, method)
    assert rule.vacuous and rule.quantile == math.inf
    assert rule(prediction).members.all()


def test_seeds() -> None:
    """Same seed, same sets; u of calibration and of new examples differ."""
    prediction, labels = truth(200, torch.Generator().manual_seed(8))
    rule = conformal_sets(prediction, labels, 0.6, "aps", seed=3)
    assert rule == conformal_sets(prediction, labels, 0.6, "aps", seed=3)
    assert rule.quantile != conformal_sets(prediction, labels, 0.6, "aps", seed=4).quantile
    assert (rule(prediction, seed=3).members == rule(prediction, seed=3).members).all()
    assert (rule(prediction, seed=3).members != rule(prediction, seed=4).members).any()


def test_raps_has_smaller_sets_where_tails_are_long() -> None:
    """A noisy model of 50 classes, as in the paper; tuned on further data, and better than aps."""
    generator = torch.Generator().manual_seed(9)
    logits = torch.randn(3000, 50, generator=generator)
    logits[:, 0] += 4
    labels = torch.multinomial((3 * logits).softmax(-1), 1, generator=generator)[:, 0]
    prediction = CategoricalPrediction.from_logits(logits)
    tuned = tune_raps(prediction[:1000], labels[:1000])
    assert tuned == tune_raps(prediction[:1000], labels[:1000])
    assert tuned["penalty"] in (0.001, 0.01, 0.1, 0.2, 0.5)
    sizes = {}
    for method, options in (("aps", {}), ("raps", tuned)):
        rule = conformal_sets(prediction[1000:2000], labels[1000:2000], method=method, **options)
        sizes[method] = rule(prediction[2000:], seed=1).sizes.double().mean()
    assert sizes["raps"] < 0.8 * sizes["aps"]
    order = prediction[:1000].mean.argsort(-1, descending=True)
    ranks = (order == labels[:1000, None]).int().argmax(1) + 1
    assert tuned["k_reg"] == ranks.sort().values[900].item()  # ceil(1001 * 0.9) is 901
    assert tune_raps(prediction[:5], labels[:5])["k_reg"] == 50


def test_errors() -> None:
    prediction, labels = truth(20, torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match="Did you mean 'raps'"):
        conformal_sets(prediction, labels, method="rap")
    with pytest.raises(ValueError, match=r"in \(0, 1\), got 90"):
        conformal_sets(prediction, labels, 90)
    with pytest.raises(ValueError, match="belong to raps"):
        conformal_sets(prediction, labels, penalty=0.1)
    with pytest.raises(ValueError, match=">= 0"):
        conformal_sets(prediction, labels, method="raps", penalty=-0.1)
    with pytest.raises(ValueError, match="whole number"):
        conformal_sets(prediction, labels, method="raps", k_reg=1.5)
    with pytest.raises(ValueError, match=r"Got 3 label\(s\) for 20"):
        conformal_sets(prediction, labels[:3])
    with pytest.raises(ValueError, match="need as many, >= 1"):
        conformal_sets(prediction[:0], labels[:0])
    with pytest.raises(ValueError, match="Calibrated on 2 classes, got a prediction of 3"):
        conformal_sets(prediction, labels)(CategoricalPrediction.from_probs([[0.2, 0.3, 0.5]]))
    with pytest.raises(ValueError, match="use `conformal_intervals`"):
        conformal_sets(MixturePrediction(torch.zeros(1, 20, 1), 1.0), labels)


@pytest.mark.parametrize("method", ["aps", "raps"])
def test_new_examples_have_draws_of_their_own(method) -> None:
    """With the u of the calibration, the calibration's own labels would be covered k times of n in
    every run; with others the number varies (equal in 20 runs by chance: below 1e-6)."""
    prediction, labels = truth(50, torch.Generator().manual_seed(0))
    shares = set()
    for seed in range(20):
        rule = conformal_sets(prediction, labels, 0.6, method, seed=seed)
        shares.add(float(coverage(rule(prediction, seed=seed), labels)))
    assert len(shares) > 1
