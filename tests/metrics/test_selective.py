"""Risk-coverage curves: hand-worked tables, all orders of ties, closed forms, standard errors."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score
from torch import Tensor

from polymode.metrics import selective
from polymode.metrics.score import CLASSIFICATION
from polymode.prediction import CategoricalPrediction, MixturePrediction

METRICS = [
    selective.aurc,
    selective.e_aurc,
    selective.augrc,
    selective.risk_at_coverage,
    selective.coverage_at_risk,
]
tables = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1)), min_size=1, max_size=6)


def predict(confidence, wrong) -> tuple[CategoricalPrediction, Tensor]:
    """Return a prediction of two classes, the first with these confidences > 1/2, and labels."""
    top = torch.as_tensor(confidence, dtype=torch.float64)
    labels = torch.as_tensor(wrong).long()
    return CategoricalPrediction.from_probs(torch.stack([top, 1 - top], 1)), labels


def plain(losses) -> tuple[list[float], float, float]:
    """Return risk, AURC and AUGRC of losses in the order of acceptance, step by step."""
    n, risk, total = len(losses), [], 0.0
    for k, loss in enumerate(losses, start=1):
        total += loss
        risk.append(total / k)
    if n == 1:
        return risk, risk[0], risk[0]
    areas = [0.0, 0.0]
    for k in range(1, n):
        areas[0] += (risk[k - 1] + risk[k]) / 2 / n
        areas[1] += (risk[k - 1] * k / n + risk[k] * (k + 1) / n) / 2 / n
    return risk, areas[0] / (1 - 1 / n), areas[1] / (1 - 1 / n)


def test_by_hand():
    """Accepted in the order right, wrong, right, wrong; given in another."""
    confidence, loss = torch.tensor([0.8, 0.6, 0.9, 0.7]), torch.tensor([1, 1, 0, 0])
    curve = selective.risk_coverage(confidence, loss)
    assert curve.coverage.tolist() == [0.25, 0.5, 0.75, 1.0]
    assert curve.risk.tolist() == [0.0, 0.5, 1 / 3, 0.5]
    assert curve.oracle.tolist() == [0.0, 0.0, 1 / 3, 0.5]
    assert curve.random.tolist() == [0.5] * 4
    assert curve.aurc == pytest.approx(13 / 36)
    assert curve.oracle_aurc == pytest.approx(7 / 36)
    assert curve.e_aurc == pytest.approx(6 / 36)
    assert curve.random_aurc == pytest.approx(0.5)
    assert curve.augrc == pytest.approx((0.125 + 0.25 + 0.375) / 3)
    assert curve.oracle_augrc == pytest.approx((0 + 0.125 + 0.375) / 3)
    assert curve.random_augrc == pytest.approx(0.5 * (1 + 1 / 4) / 2)


def test_published_examples_of_another_library():
    """The examples in the documentation of TorchUncertainty. Of the last one it says 0.25, and with
    two rows exchanged it would say 0.5: a right and a wrong answer are tied at the threshold."""
    assert selective.aurc(*predict([0.7, 0.6, 0.8], [0, 1, 0])).value == pytest.approx(1 / 12)
    pair = predict([0.9, 0.6, 0.8, 0.5 + 1e-9, 0.7], [0, 1, 0, 1, 0])
    assert selective.coverage_at_risk(*pair, risk=0.3).value == 0.8
    probs = [0.9, 0.7, 0.95, 0.8, 0.6, 0.7, 0.85, 0.8]
    pair = predict(probs, [0, 1, 0, 1, 0, 0, 1, 0])
    assert selective.risk_at_coverage(*pair, coverage=0.5).value == (1 + 0.5) / 4


@settings(max_examples=60, deadline=None)
@given(tables)
def test_ties_are_the_mean_over_all_their_orders(table):
    """The slow twin averages over every order of the examples that sorts their confidences."""
    confidence, loss = zip(*table, strict=True)
    orders = [
        plain([loss[i] for i in order])
        for order in itertools.permutations(range(len(table)))
        if all(confidence[a] >= confidence[b] for a, b in itertools.pairwise(order))
    ]
    curve = selective.risk_coverage(torch.tensor(confidence), torch.tensor(loss))
    risk = np.mean([order[0] for order in orders], axis=0)
    assert curve.risk.numpy() == pytest.approx(risk, abs=1e-12)
    assert curve.aurc == pytest.approx(np.mean([order[1] for order in orders]), abs=1e-12)
    assert curve.augrc == pytest.approx(np.mean([order[2] for order in orders]), abs=1e-12)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(-2, 2), min_size=1, max_size=5))
def test_oracle_is_the_least_and_random_the_mean_of_all_orders(loss):
    curve = selective.risk_coverage(torch.zeros(len(loss)), torch.tensor(loss, dtype=torch.float64))
    orders = [plain(order)[1:] for order in itertools.permutations(loss)]
    least, mean = np.min(orders, axis=0), np.mean(orders, axis=0)
    assert (curve.oracle_aurc, curve.oracle_augrc) == pytest.approx(least, abs=1e-12)
    assert (curve.random_aurc, curve.random_augrc) == pytest.approx(mean, abs=1e-12)
    assert (curve.aurc, curve.augrc) == pytest.approx(mean, abs=1e-12)  # all are tied


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 1)), min_size=1), st.randoms())
def test_order_of_examples_never_matters(table, random):
    """To the last bit, also for losses whose sum depends on the order of adding."""
    first = selective.risk_coverage(*torch.tensor(table, dtype=torch.float64).T)
    random.shuffle(table)
    again = selective.risk_coverage(*torch.tensor(table, dtype=torch.float64).T)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize("metric", METRICS, ids=lambda m: m.__name__)
def test_order_of_examples_never_matters_to_metrics(metric):
    stream = torch.Generator().manual_seed(0)
    confidence = 0.55 + 0.05 * torch.randint(0, 5, (60,), generator=stream)
    wrong = torch.rand(60, generator=stream) > confidence
    order = torch.randperm(60, generator=stream)
    first, again = (metric(*predict(confidence[o], wrong[o])) for o in (slice(None), order))
    assert first.value == again.value
    assert first.n == 60 and first.each is None
    if metric is not selective.coverage_at_risk:
        assert first.standard_error == pytest.approx(again.standard_error, rel=1e-12)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 1)), min_size=2, max_size=40))
def test_augrc_is_a_function_of_error_rate_and_auroc(table):
    """Traub et al., from coverage 0 on: (1 - AUROC) e (1 - e) + e^2 / 2, also with ties."""
    confidence, loss = torch.tensor(table).double().T
    n, e = len(loss), loss.mean().item()
    auroc = 0.5 if e in (0.0, 1.0) else roc_auc_score(1 - loss, confidence)
    curve = selective.risk_coverage(confidence, loss)
    from_zero = curve.augrc * (1 - 1 / n) + curve.risk[0].item() / (2 * n * n)
    assert from_zero == pytest.approx((1 - auroc) * e * (1 - e) + e * e / 2, abs=1e-12)


def test_population_values():
    """A share v of coverage has error probability v at its end: risk v/2, AURC 1/4, AUGRC 1/6,
    risk at 80 % is 0.4, coverage at risk 0.2 is 0.4; the oracle at e = 1/2 has
    e + (1 - e) log(1 - e). Six numbers within 4.5 standard errors: false alarms 4e-5."""
    stream = torch.Generator().manual_seed(4)
    rank = torch.rand(20_000, generator=stream, dtype=torch.float64)
    pair = predict(1 - rank / 2.1, torch.rand(20_000, generator=stream) < rank)
    oracle = 0.5 + 0.5 * math.log(0.5)
    for score, truth in (
        (selective.aurc(*pair), 1 / 4),
        (selective.e_aurc(*pair), 1 / 4 - oracle),
        (selective.augrc(*pair), 1 / 6),
        (selective.risk_at_coverage(*pair), 0.4),
        (selective.risk_at_coverage(*pair, coverage=1.0), 0.5),
    ):
        assert abs(score.value - truth) < 4.5 * score.standard_error
        assert score.standard_error < 0.005
    covered = selective.coverage_at_risk(*pair, risk=0.2)
    error = selective.risk_at_coverage(*pair, coverage=0.4).standard_error / 0.5  # slope of risk
    assert abs(covered.value - 0.4) < 4.5 * error
    assert covered.standard_error is None


@pytest.mark.parametrize("levels", [None, 8], ids=["distinct", "ties"])
@pytest.mark.parametrize("metric", METRICS[:-1], ids=lambda m: m.__name__)
def test_standard_errors_match_simulation(metric, levels):
    """300 examples, 500 times. The spread of the estimates has a relative error of 1/sqrt(1000) =
    3.2 %, so 15 % off has a chance below 1e-5 a case."""
    stream = torch.Generator().manual_seed(7)
    scores = []
    for _ in range(500):
        confidence = torch.rand(300, generator=stream, dtype=torch.float64)
        if levels is not None:
            confidence = (confidence * levels).floor() / levels
        confidence = 0.51 + 0.48 * confidence
        wrong = torch.rand(300, generator=stream) > confidence**0.7
        scores.append(metric(*predict(confidence, wrong)))
    spread = np.std([score.value for score in scores], ddof=1)
    claimed = math.sqrt(np.mean([score.standard_error**2 for score in scores]))
    assert claimed == pytest.approx(spread, rel=0.15)


@pytest.mark.parametrize("metric", METRICS[:3], ids=lambda m: m.__name__)
def test_standard_errors_are_those_of_the_jackknife(metric):
    """Leaving out each of 400 examples in turn: the same to O(1/N), and no chance in it."""
    stream = torch.Generator().manual_seed(8)
    confidence = 0.51 + 0.48 * torch.rand(400, generator=stream, dtype=torch.float64)
    wrong = torch.rand(400, generator=stream) > confidence - 0.3
    keep = ~torch.eye(400, dtype=torch.bool)
    without = [metric(*predict(confidence[k], wrong[k])).value for k in keep]
    expected = math.sqrt(399 * np.var(without))
    assert metric(*predict(confidence, wrong)).standard_error == pytest.approx(expected, rel=0.02)


def test_standard_error_knows_that_the_threshold_moves():
    """The risk rises from 0 to 1 around half coverage: the binomial part alone would be 2.4 times
    too small. 1,000 examples, 500 times; 15 % off has a chance below 1e-5."""
    stream = torch.Generator().manual_seed(9)
    scores = []
    for _ in range(500):
        rank = torch.rand(1000, generator=stream, dtype=torch.float64)
        wrong = torch.rand(1000, generator=stream) < (rank - 0.45) * 10
        scores.append(selective.risk_at_coverage(*predict(1 - rank / 2.1, wrong), coverage=0.5))
    spread = np.std([score.value for score in scores], ddof=1)
    claimed = math.sqrt(np.mean([score.standard_error**2 for score in scores]))
    assert claimed == pytest.approx(spread, rel=0.15)


def test_metrics_judge_the_mixture():
    """Two members whose mean errs in row 1 and ranks the rows 0, 2, 1."""
    probs = [[[0.9, 0.1], [0.3, 0.7], [0.8, 0.2]], [[0.9, 0.1], [0.8, 0.2], [0.6, 0.4]]]
    prediction, labels = CategoricalPrediction.from_probs(probs), torch.tensor([0, 1, 0])
    expected = plain([0, 0, 1])
    assert selective.aurc(prediction, labels).value == pytest.approx(expected[1])
    assert selective.augrc(prediction, labels).value == pytest.approx(expected[2])


def test_all_tied_is_a_random_order():
    pair = predict([0.75] * 40, [1] * 2 + [0] * 38)
    assert selective.aurc(*pair).value == pytest.approx(0.05)
    assert selective.augrc(*pair).value == pytest.approx(0.05 * (1 + 1 / 40) / 2)
    assert selective.risk_at_coverage(*pair).value == pytest.approx(0.05)
    assert selective.coverage_at_risk(*pair).value == 1.0  # exactly 5 % are allowed
    assert selective.coverage_at_risk(*pair, risk=0.049).value == 0.0
    constant = CategoricalPrediction.from_probs(torch.full((6, 3), 1 / 3))
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    assert selective.aurc(constant, labels).value == pytest.approx(4 / 6)


def test_saturated_confidences_are_not_tied():
    """All are 1 in float32; the only wrong one is the least sure of them."""
    logits = torch.tensor([[40.0, 0.0], [30.0, 0.0], [20.0, 0.0]])
    prediction = CategoricalPrediction.from_logits(logits)
    assert (prediction.confidence == 1.0).all()
    assert selective.e_aurc(prediction, torch.tensor([0, 0, 1])).value == pytest.approx(0.0)


def test_coverage_and_risk_are_read_off_the_curve():
    confidence = torch.linspace(0.99, 0.6, 100, dtype=torch.float64)
    wrong = torch.zeros(100)
    wrong[[0, 6]] = 1
    pair = predict(confidence, wrong)
    assert selective.risk_at_coverage(*pair, coverage=0.07).value == 2 / 7  # 0.07 * 100 > 7
    assert selective.risk_at_coverage(*pair, coverage=0.071).value == 2 / 8
    assert selective.risk_at_coverage(*pair, coverage=1e-6).value == 1.0
    assert selective.coverage_at_risk(*pair).value == 1.0  # although the first one is wrong
    assert selective.coverage_at_risk(*pair, risk=0.019).value == 0.0
    wrong[60:] = 1
    assert selective.coverage_at_risk(*predict(confidence, wrong)).value == 0.61  # 3 / 61
    assert selective.coverage_at_risk(*predict(confidence, wrong), risk=1.0).value == 1.0


def test_no_errors_all_errors_one_example():
    right, wrong = predict([0.9, 0.8, 0.7], [0, 0, 0]), predict([0.9, 0.8, 0.7], [1, 1, 1])
    found = [[metric(*pair).value for metric in METRICS] for pair in (right, wrong)]
    assert found[0] == [0.0, 0.0, 0.0, 0.0, 1.0]
    assert found[1] == pytest.approx([1.0, 0.0, (1 + 1 / 3) / 2, 1.0, 0.0])
    assert [metric(*wrong).standard_error for metric in METRICS[:2]] == pytest.approx([0.0, 0.0])
    one = [metric(*predict([0.9], [1])) for metric in METRICS]
    assert [score.value for score in one] == [1.0, 0.0, 1.0, 1.0, 0.0]
    assert all(score.standard_error is None and score.n == 1 for score in one)


def test_infinite_confidences_rank_like_others():
    loss = torch.tensor([0.0, 1.0, 1.0])
    infinite = selective.risk_coverage(torch.tensor([math.inf, 0.0, -math.inf]), loss)
    assert infinite.risk.tolist() == [0.0, 0.5, 2 / 3]


@pytest.mark.parametrize(
    ("confidence", "loss", "message"),
    [
        (torch.zeros(0), torch.zeros(0), r"must both be \(N,\), N >= 1, got \(0,\) and \(0,\)"),
        (torch.zeros(2), torch.zeros(3), r"got \(2,\) and \(3,\)"),
        (torch.zeros(2, 1), torch.zeros(2, 1), r"got \(2, 1\)"),
        (torch.tensor([math.nan, 1.0]), torch.zeros(2), "`confidence` has 1 NaN of 2; drop"),
        (torch.zeros(2), torch.tensor([math.nan, math.inf]), "`loss` has 2 NaN or infinite of 2"),
    ],
)
def test_bad_curves_are_refused(confidence, loss, message):
    with pytest.raises(ValueError, match=message):
        selective.risk_coverage(confidence, loss)


@pytest.mark.parametrize("metric", METRICS, ids=lambda m: m.__name__)
def test_bad_predictions_are_refused(metric):
    prediction, labels = predict([0.9, 0.8], [0, 1])
    with pytest.raises(ValueError, match=f"`{metric.__name__}` scores class probabilities"):
        metric(MixturePrediction(torch.zeros(1, 2, 1), 1.0), torch.zeros(2))
    with pytest.raises(ValueError, match=r"got 1 label\(s\) for 2 prediction\(s\)"):
        metric(prediction, labels[:1])
    with pytest.raises(ValueError, match="0 examples"):
        metric(prediction[:0], labels[:0])
    with pytest.raises(ValueError, match="in 0..1, got 2 in row 1"):
        metric(prediction, torch.tensor([0, 2]))


def test_bad_levels_are_refused():
    pair = predict([0.9, 0.8], [0, 1])
    for coverage in (0.0, 1.2, math.nan):
        with pytest.raises(ValueError, match=r"`coverage` of risk_at_coverage must be in \(0, 1\]"):
            selective.risk_at_coverage(*pair, coverage=coverage)
    for risk in (-0.1, 5, math.nan):
        with pytest.raises(ValueError, match=r"`risk` of coverage_at_risk must be in \[0, 1\]"):
            selective.coverage_at_risk(*pair, risk=risk)


def test_registered():
    named = ["aurc", "e_aurc", "augrc", "risk_at_coverage_80", "coverage_at_risk_5"]
    pair = predict([0.9, 0.8, 0.7, 0.6], [0, 1, 0, 1])
    for name, metric in zip(named, METRICS, strict=True):
        entry = CLASSIFICATION.get(name)
        assert entry.value(*pair) == metric(*pair)
        assert entry.metadata["family"] == "selective"
        assert entry.metadata["headline"] == (name == "aurc")
        assert entry.metadata["direction"] == ("up" if name == "coverage_at_risk_5" else "down")
