"""OOD measures against scikit-learn, hand-worked ties, Gaussian closed forms; scores and errors."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve
from torch.distributions import Normal

from polymode.metrics import ood
from polymode.metrics.score import OOD_CLASSIFICATION, OOD_REGRESSION, NotDefined, entries
from polymode.prediction import CategoricalPrediction, MixturePrediction

coarse = st.lists(st.integers(0, 4), min_size=1, max_size=30)
every = pytest.mark.parametrize("measure", ood.MEASURES)


def values(inside, outside) -> dict[str, float]:
    pair = torch.as_tensor(inside), torch.as_tensor(outside)
    return {name: measure(*pair).value for name, measure in ood.MEASURES.items()}


@settings(max_examples=150, deadline=None)
@given(coarse, coarse)
@pytest.mark.cpu_seconds(6)
def test_equal_scikit_learn_with_many_ties(inside, outside):
    truth = np.array([0] * len(inside) + [1] * len(outside))
    scores = np.array(inside + outside)
    false, true, _ = roc_curve(truth, scores, drop_intermediate=False)
    expected = {
        "auroc": roc_auc_score(truth, scores),
        "aupr_in": average_precision_score(1 - truth, -scores),
        "aupr_out": average_precision_score(truth, scores),
        "fpr95": false[true >= 0.95][0],
    }
    assert values(inside, outside) == pytest.approx(expected, abs=1e-12)


def test_by_hand_with_ties():
    """From the top: 5 (out), 4 (out, in), 3 (in), 2 (out, out, in), 1 (in)."""
    inside, outside = torch.tensor([4, 3, 2, 1]), torch.tensor([5, 4, 2, 2])
    found = values(inside, outside)
    assert found["auroc"] == (4 + 3.5 + 1.5 + 1.5) / 16
    assert found["aupr_out"] == pytest.approx((1 + 2 / 3 + 4 / 7 + 4 / 7) / 4, abs=1e-15)
    assert found["aupr_in"] == pytest.approx((1 + 2 / 4 + 3 / 5 + 4 / 7) / 4, abs=1e-15)
    assert found["fpr95"] == 3 / 4  # all four must be found: threshold 2, not within its ties
    assert ood.fpr95(-outside, -inside).value == 3 / 4  # test set positive: 4, 2, 2 are accepted


def test_fpr95_counts_exactly_95_in_100():
    """95 of 100 are enough, and 94 are not; 0.95 n is not rounded the wrong way."""
    outside = torch.cat([torch.full((95,), 2.0), torch.zeros(5)])
    inside = torch.tensor([2.0, 1.0, 1.0, 1.0])
    assert ood.fpr95(inside, outside).value == 0.25
    outside[0] = 0.5
    assert ood.fpr95(inside, outside).value == 1.0


def test_constant_scores_are_chance_and_separated_ones_perfect():
    constant = values(torch.ones(30), torch.ones(10))
    assert constant == {"auroc": 0.5, "aupr_in": 0.75, "aupr_out": 0.25, "fpr95": 1.0}
    assert ood.auroc(torch.ones(20), 2 * torch.ones(20))[:3] == (1.0, 40, 0.0)
    apart = values(torch.ones(30), 2 * torch.ones(10))
    assert apart == {"auroc": 1.0, "aupr_in": 1.0, "aupr_out": 1.0, "fpr95": 0.0}
    assert ood.auroc(2 * torch.ones(20), torch.ones(20)).value == 0.0


def test_infinite_scores_rank_like_others():
    infinite = values([-math.inf, 0.0, math.inf], [math.inf, math.inf, 1.0])
    assert infinite == values([-9.0, 0.0, 9.0], [9.0, 9.0, 1.0])


def test_gaussian_scores_have_closed_forms():
    """N(0, 1) against N(d, 1): AUROC is Phi(d / sqrt 2), FPR95 is Phi(z95 - d). Four numbers
    within 4.5 of their own standard errors: false alarms 3e-5."""
    stream = torch.Generator().manual_seed(2)
    phi = Normal(0.0, 1.0)
    z95 = phi.icdf(torch.tensor(0.95))
    for d in (0.5, 2.0):
        inside = torch.randn(20_000, generator=stream)
        outside = d + torch.randn(10_000, generator=stream)
        for score, truth in (
            (ood.auroc(inside, outside), phi.cdf(torch.tensor(d / math.sqrt(2)))),
            (ood.fpr95(inside, outside), phi.cdf(z95 - d)),
        ):
            assert abs(score.value - truth.item()) < 4.5 * score.standard_error
            assert score.standard_error < 0.02


@every
def test_standard_errors_match_simulation(measure):
    """Scores N(0, 1) and N(1.5, 1), 400 and 300 of them, 500 times. The spread of the estimates has
    a relative error of 1/sqrt(1000) = 3.2 %, so 15 % off has a chance below 1e-5 a measure."""
    stream = torch.Generator().manual_seed(5)
    scores = [
        ood.MEASURES[measure](
            torch.randn(400, generator=stream), 1.5 + torch.randn(300, generator=stream)
        )
        for _ in range(500)
    ]
    spread = np.std([score.value for score in scores], ddof=1)
    claimed = math.sqrt(np.mean([score.standard_error**2 for score in scores]))
    assert claimed == pytest.approx(spread, rel=0.15)


@pytest.mark.parametrize("measure", ["auroc", "aupr_in", "aupr_out"])
def test_standard_errors_are_those_of_the_jackknife(measure):
    """Leaving out each of 600 + 400 inputs in turn: the same to O(1/n), and no chance in it."""
    stream = torch.Generator().manual_seed(8)
    score = ood.MEASURES[measure]
    u, v = torch.randn(600, generator=stream), 1 + torch.randn(400, generator=stream)
    of_inside = [score(u[keep], v).value for keep in ~torch.eye(600, dtype=torch.bool)]
    of_outside = [score(u, v[keep]).value for keep in ~torch.eye(400, dtype=torch.bool)]
    expected = math.sqrt(599 * np.var(of_inside) + 399 * np.var(of_outside))
    assert score(u, v).standard_error == pytest.approx(expected, rel=0.02)


def test_auroc_has_the_error_of_delong():
    """Placements by double loop, as in the paper."""
    stream = torch.Generator().manual_seed(6)
    inside = torch.randint(0, 6, (23,), generator=stream)
    outside = torch.randint(2, 8, (17,), generator=stream)
    kernel = [[float(v > u) + 0.5 * float(v == u) for u in inside] for v in outside]
    by_out, by_in = np.mean(kernel, axis=1), np.mean(kernel, axis=0)
    expected = math.sqrt(np.var(by_out, ddof=1) / 17 + np.var(by_in, ddof=1) / 23)
    assert ood.auroc(inside, outside).standard_error == pytest.approx(expected, rel=1e-12)


@settings(max_examples=100, deadline=None)
@given(coarse, coarse, st.randoms())
def test_only_the_order_of_scores_matters(inside, outside, random):
    found = values(inside, outside)
    assert values([x**3 - 7.0 for x in inside], [x**3 - 7.0 for x in outside]) == found
    random.shuffle(inside)
    random.shuffle(outside)
    assert values(inside, outside) == found


@settings(max_examples=100, deadline=None)
@given(coarse, coarse)
def test_exchanging_the_sets(inside, outside):
    u, v = torch.tensor(inside), torch.tensor(outside)
    assert ood.auroc(u, v).value == pytest.approx(1 - ood.auroc(v, u).value, abs=1e-15)
    assert ood.auroc(u, v).value == pytest.approx(ood.auroc(-v, -u).value, abs=1e-15)
    assert ood.aupr_in(u, v).value == pytest.approx(ood.aupr_out(-v, -u).value, abs=1e-15)


@every
def test_one_example_of_a_set_has_a_value_and_no_standard_error(measure):
    assert ood.MEASURES[measure](torch.zeros(1), torch.ones(5)).standard_error is None
    assert ood.MEASURES[measure](torch.zeros(5), torch.ones(1)).standard_error is None
    assert ood.MEASURES[measure](torch.zeros(1), torch.ones(1)).n == 2
    assert ood.MEASURES[measure](torch.zeros(2), torch.ones(2)).standard_error == 0.0


@every
@pytest.mark.parametrize(
    ("inside", "outside", "message"),
    [
        (torch.zeros(0), torch.ones(2), r"`inside` of {} must be scores of shape \(n,\)"),
        (torch.zeros(2), torch.ones(0), r"`outside` of {} .* \(0,\); give .* of the OOD set"),
        (torch.zeros(2, 2), torch.ones(2), "`inside` of {}"),
        (torch.tensor([0.0, math.nan]), torch.ones(2), "`inside` of {} has 1 NaN of 2; drop"),
    ],
)
def test_bad_scores_are_refused(measure, inside, outside, message):
    with pytest.raises(ValueError, match=message.format(measure)):
        ood.MEASURES[measure](inside, outside)


def classifier(logits: list[list[list[float]]]) -> CategoricalPrediction:
    return CategoricalPrediction.from_logits(torch.tensor(logits))


def test_direction_uncertain_is_ood():
    sure = classifier([[[5.0, 0.0]] * 4] * 2)
    unsure = classifier([[[1.0, 0.0]] * 4, [[0.0, 1.0]] * 4])
    for entry in entries(OOD_CLASSIFICATION):
        best = 0.0 if entry.metadata["direction"] == "down" else 1.0
        assert entry.value(sure, unsure).value == best, entry.name
    near = MixturePrediction(torch.zeros(2, 4, 1), 1.0)
    far = MixturePrediction(torch.tensor([[[-1.0]] * 4, [[1.0]] * 4]), 1.0)
    for entry in entries(OOD_REGRESSION):
        best = 0.0 if entry.metadata["direction"] == "down" else 1.0
        assert entry.value(near, far).value == best, entry.name


def test_scores_by_hand():
    """Two members, (0.9, 0.1) and (0.5, 0.5)."""
    prediction = CategoricalPrediction.from_probs([[[0.9, 0.1]], [[0.5, 0.5]]])
    mean = -0.7 * math.log(0.7) - 0.3 * math.log(0.3)
    members = (-0.9 * math.log(0.9) - 0.1 * math.log(0.1) + math.log(2)) / 2
    expected = {
        "predictive_entropy": mean,
        "mutual_information": mean - members,
        "one_minus_confidence": 0.3,
        "epistemic_variance": 2 * 0.2**2,
        "variance": 2 * 0.3 * 0.7,
    }
    found = {name: ood.SCORES[name](prediction).item() for name in expected}
    assert found == pytest.approx(expected, abs=1e-6)
    outputs = classifier([[[1.0, 2.0]], [[3.0, 4.0]]])
    expected_energy = -(np.logaddexp(1, 2) + np.logaddexp(3, 4)) / 2
    assert ood.energy(outputs).item() == pytest.approx(expected_energy, rel=1e-6)
    wide = MixturePrediction(torch.tensor([[[0.0, 0.0]], [[2.0, 40.0]]]), 1.0)
    assert ood.epistemic_variance(wide).tolist() == [1.0 + 400.0]
    assert ood.variance(wide).tolist() == [1.0 + 400.0 + 2.0]


def test_saturated_confidences_still_rank():
    """In float32 all three confidences are exactly 1; a test set of them is not all ties."""
    logits = torch.tensor([[30.0, 0.0, 0.0], [25.0, 0.0, 0.0], [20.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    prediction = CategoricalPrediction.from_logits(logits)
    assert (prediction.confidence[:3] == 1.0).all()
    found = ood.one_minus_confidence(prediction)
    expected = 2 / (logits[:, 0].double().exp() + 2)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0.0)


def test_equal_confidences_stay_tied_whatever_the_other_classes():
    rows = [[0.9, 0.1, 0.0], [0.05, 0.05, 0.9], [0.03, 0.9, 0.07], [0.9, 0.06, 0.04]]
    prediction = CategoricalPrediction.from_probs(rows)
    assert ood.one_minus_confidence(prediction).unique().numel() == 1


def test_scores_that_do_not_exist_say_so():
    one = CategoricalPrediction.from_probs([[0.9, 0.1]])
    for name in ("mutual_information", "epistemic_variance"):
        with pytest.raises(NotDefined, match="needs at least 2 samples, got 1"):
            ood.SCORES[name](one)
    with pytest.raises(NotDefined, match="needs the network's logits"):
        ood.energy(one)
    heavy = MixturePrediction(torch.zeros(2, 3, 1), 1.0, df=2.0)
    with pytest.raises(NotDefined, match="df = 2 <= 2 has no variance"):
        ood.variance(heavy)
    assert ood.epistemic_variance(heavy).tolist() == [0.0] * 3
    with pytest.raises(NotDefined, match="df = 1 <= 1 has no mean"):
        ood.epistemic_variance(MixturePrediction(torch.zeros(2, 3, 1), 1.0, df=1.0))
    for name in ("predictive_entropy", "mutual_information", "one_minus_confidence", "energy"):
        with pytest.raises(ValueError, match=f"`{name}` is a score of class probabilities"):
            ood.SCORES[name](heavy)


def test_predictions_that_are_not_of_one_posterior_are_refused():
    metric = OOD_CLASSIFICATION.get("auroc_predictive_entropy").value
    two = classifier([[[1.0, 0.0]] * 3] * 2)
    for other, message in (
        (classifier([[[1.0, 0.0, 0.0]] * 3] * 2), "and 2 classes, the OOD set .* and 3 classes"),
        (classifier([[[1.0, 0.0]] * 3] * 5), "of 2 sample.* of 5 sample.*with one posterior"),
        (MixturePrediction(torch.zeros(2, 3, 2), 1.0), "the OOD set a MixturePrediction"),
    ):
        with pytest.raises(ValueError, match=message):
            metric(two, other)
    with pytest.raises(ValueError, match="the OOD set is empty: 0 inputs"):
        metric(two, two[:0])


def test_every_measure_of_every_score_is_registered():
    classes = ["predictive_entropy", "mutual_information", "one_minus_confidence", "energy"]
    for table, scores in (
        (OOD_CLASSIFICATION, [*classes, "epistemic_variance"]),
        (OOD_REGRESSION, ["variance", "epistemic_variance"]),
    ):
        names = {f"{measure}_{score}" for measure in ood.MEASURES for score in scores}
        assert set(table.names()) == names
        assert all("OOD positive" in entry.metadata["summary"] for entry in entries(table))
        assert {entry.metadata["family"] for entry in entries(table)} == {"ood"}
    shown = [e.name for e in entries(OOD_CLASSIFICATION) if e.metadata["headline"]]
    pair = ["auroc_predictive_entropy", "auroc_mutual_information"]
    assert shown == [*pair, "fpr95_predictive_entropy"]
    shown = [e.name for e in entries(OOD_REGRESSION) if e.metadata["headline"]]
    assert shown == ["auroc_variance", "auroc_epistemic_variance"]
    for name in set(OOD_CLASSIFICATION.names()) & set(OOD_REGRESSION.names()):
        one, other = (t.get(name).metadata for t in (OOD_CLASSIFICATION, OOD_REGRESSION))
        assert one["title"] == other["title"]
    assert OOD_CLASSIFICATION.get("fpr95_epistemic_variance").metadata["epistemic"]
    assert not OOD_CLASSIFICATION.get("fpr95_predictive_entropy").metadata["epistemic"]


def test_registered_metrics_are_the_functions_of_the_scores():
    stream = torch.Generator().manual_seed(3)
    inside = CategoricalPrediction.from_logits(2 * torch.randn(3, 50, 4, generator=stream))
    outside = CategoricalPrediction.from_logits(torch.randn(3, 40, 4, generator=stream))
    for entry in entries(OOD_CLASSIFICATION):
        measure = next(name for name in ood.MEASURES if entry.name.startswith(name + "_"))
        score = ood.SCORES[entry.name.removeprefix(measure + "_")]
        expected = ood.MEASURES[measure](score(inside), score(outside))
        assert entry.value(inside, outside) == expected
        assert expected.n == 90 and expected.each is None


def test_ranks_are_shared_by_measures_and_belong_to_both_predictions(monkeypatch) -> None:
    """One sort a score; another test set, or another OOD set, is sorted anew."""
    calls = []
    of = ood.Ranked.of
    monkeypatch.setattr(ood.Ranked, "of", lambda *args: calls.append(args[2]) or of(*args))
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 2, 5, 4, generator=draw)
    first, second, third = (CategoricalPrediction.from_logits(each) for each in logits)
    table = OOD_CLASSIFICATION
    for name in table.names("*_predictive_entropy"):
        table.get(name).value(first, second)
    assert calls == ["predictive_entropy"]
    value = table.get("auroc_predictive_entropy").value
    again = value(third, second).value
    assert again == ood.auroc(third.predictive_entropy, second.predictive_entropy).value
    assert value(first, third).value == (
        ood.auroc(first.predictive_entropy, third.predictive_entropy).value
    )
    assert len(calls) == 3 + 2
