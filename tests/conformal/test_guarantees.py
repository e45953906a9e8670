"""Guarantees for groups, classes, boxes, shifts, folds, streams and risks, by simulation.

The coverage of each draw is known exactly or counted on one new example, so means over draws are
compared with their law; every test states how often it fails by chance.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from polymode.conformal import (
    PredictionIntervals,
    PredictionSets,
    adaptive,
    by_class,
    by_group,
    conformal_intervals,
    control_risk,
    covered,
    cross_conformal,
    difficulty_groups,
    fold_numbers,
    group_coverage,
    weighted,
)
from polymode.prediction import CategoricalPrediction, MixturePrediction, Prediction


def stream(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(shape: tuple[int, ...], random: torch.Generator) -> torch.Tensor:
    return torch.randn(shape, generator=random, dtype=torch.float64)


def within(share: float, exact: float, draws: int, deviation: float) -> bool:
    """Whether a mean over draws is within 4 standard errors of its law: 6e-5 false alarms."""
    return abs(share - exact) < 4 * deviation / math.sqrt(draws)


def test_every_group_is_covered() -> None:
    """Noise of 1 and 4 in two groups, unknown to the model: marginal calibration covers one too
    often and one too rarely, by group both have the Beta law of 19/21."""
    draws, law, random = 400, stats.beta(19, 2), stream(0)
    shares: dict[str, list[float]] = {"a": [], "b": []}
    noise = torch.tensor([1.0] * 20 + [4.0] * 20, dtype=torch.float64)
    names, marginal = ["a"] * 20 + ["b"] * 20, []
    for _ in range(draws):
        values = noise * normal((40,), random)
        prediction = MixturePrediction(torch.zeros(1, 40, 1, dtype=torch.float64), 1.0)
        rule = by_group(prediction, values, names, 0.9, "split")
        for name, std in (("a", 1.0), ("b", 4.0)):
            q = rule.quantiles[name][0]
            shares[name].append(2 * stats.norm.cdf(q / std) - 1)
        whole = conformal_intervals(prediction, values, 0.9).quantile[0]
        marginal.append(2 * stats.norm.cdf(whole / 4) - 1)
    for name in shares:
        assert within(float(np.mean(shares[name])), 19 / 21, draws, law.std())
        assert stats.kstest(shares[name], law.cdf).pvalue > 1e-3
    assert np.mean(marginal) < 0.87


def test_every_class_is_covered() -> None:
    """A rare class that the model finds improbable. One new example of each class a draw: 1 - 1/10
    of 9 examples each; four standard errors."""
    draws, random, hits = 400, stream(1), np.zeros(2)
    labels = torch.tensor([0] * 39 + [1] * 9 + [0, 1])
    for _ in range(draws):
        logits = normal((50, 2), random)
        logits[:, 0] += 2.0 - labels
        prediction = CategoricalPrediction.from_logits(logits)
        rule = by_class(prediction[:48], labels[:48], 0.9)
        sets = rule(prediction[48:])
        hits += covered(sets, labels[48:]).numpy()
    exact = np.array([36 / 40, 9 / 10])
    assert rule.counts == (39, 9)
    for share, target in zip(hits / draws, exact, strict=True):
        assert within(share, target, draws, math.sqrt(target * (1 - target)))


def test_strata_of_difficulty_are_covered() -> None:
    """Predicted spreads that are right in order, wrong in size: each of three strata is covered at
    80 % (four standard errors of 3,000 new examples and their calibration)."""
    random = stream(2)

    def draw(n: int):
        width = 0.1 + 2 * torch.rand(n, 1, generator=random, dtype=torch.float64)
        values = width.square() * normal((n, 1), random)
        return MixturePrediction(torch.zeros(1, n, 1, dtype=torch.float64), width[None]), values

    strata = difficulty_groups(draw(3000)[0], 3)
    (given, values), (new, new_values) = draw(3000), draw(3000)
    groups = strata(given)
    rule = by_group(given, values, groups, 0.8, "split")
    inside = covered(rule(new, strata(new)), new_values)[:, 0]
    plain = covered(conformal_intervals(given, values, 0.8)(new), new_values)[:, 0]
    assert sorted(rule.counts) == [0, 1, 2] and min(rule.counts.values()) > 900
    for k in range(3):
        of_group = strata(new) == k
        error = 4 * math.sqrt(0.16 / 900 + 0.16 / 900)
        assert abs(inside[of_group].double().mean() - 0.8) < error
    assert plain[strata(new) == 2].double().mean() < 0.65


@pytest.mark.parametrize("method", ["scaled", "cqr_r"])
def test_boxes_cover_all_outputs_at_once(method) -> None:
    """Three dependent outputs in different units. One new example a draw with 19 others: 18/20
    exactly; four standard errors."""
    draws, random, hits, single = 200, stream(3), 0, 0
    units = torch.tensor([1.0, 50.0, 0.01], dtype=torch.float64)
    for _ in range(draws):
        values = units * (normal((20, 3), random) + normal((20, 1), random))
        prediction = MixturePrediction(torch.zeros(1, 20, 3, dtype=torch.float64), units)
        rule = conformal_intervals(prediction[:19], values[:19], 0.9, method, joint=True)
        hits += bool(covered(rule(prediction[19:]), values[19:]).all())
        separate = conformal_intervals(prediction[:19], values[:19], 0.9, method)
        single += bool(covered(separate(prediction[19:]), values[19:]).all())
    assert within(hits / draws, 0.9, draws, 0.3) and single < hits


def test_weights_undo_a_shift_of_the_inputs() -> None:
    """Inputs N(0, 1) at calibration, N(1, 1) later, where the noise is larger. With the ratio of
    densities coverage is at least 0.8 and at most 0.8 + 1/(effective n) more, without far lower.
    800 draws of 60 examples; four standard errors."""
    draws, random, hits, plain = 800, stream(4), 0, 0
    for _ in range(draws):
        x = normal((61,), random)
        x[60] += 1.0
        values = (0.2 * (1.5 * x).exp()) * normal((61,), random)
        prediction = MixturePrediction(torch.zeros(1, 61, 1, dtype=torch.float64), 1.0)
        ratio = (x - 0.5).exp()
        rule = weighted(prediction[:60], values[:60], ratio[:60], 0.8, "split")
        hits += bool(covered(rule(prediction[60:], ratio[60:]), values[60:]).all())
        usual = conformal_intervals(prediction[:60], values[:60], 0.8)
        plain += bool(covered(usual(prediction[60:]), values[60:]).all())
    error = 4 * 0.4 / math.sqrt(draws)
    assert hits / draws > 0.8 - error and hits / draws < 0.9 + error and plain / draws < 0.7


def test_equal_weights_are_split_conformal() -> None:
    random = stream(5)
    prediction = MixturePrediction(normal((2, 30, 2), random), 1.0)
    values = normal((30, 2), random)
    rule = weighted(prediction, values, torch.full((30,), 7.0), 0.9, "scaled")
    ours = rule(prediction, torch.full((30,), 7.0))
    usual = conformal_intervals(prediction, values, 0.9, "scaled")(prediction)
    torch.testing.assert_close(ours.lower, usual.lower)
    assert rule.effective_n == pytest.approx(30)
    heavy = rule(prediction[:1], torch.tensor([1e9]))
    assert heavy.upper.isinf().all()
    with pytest.raises(ValueError, match=r"finite and >= 0, got -1 in row 1"):
        weighted(prediction[:2], values[:2], torch.tensor([1.0, -1.0]))
    with pytest.raises(ValueError, match="all 0"):
        weighted(prediction[:2], values[:2], torch.zeros(2))


def ridge(x: torch.Tensor, y: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    gram = x.T @ x + 0.1 * torch.eye(x.shape[1], dtype=x.dtype)
    return at @ torch.linalg.solve(gram, x.T @ y)


@pytest.mark.parametrize(("num_folds", "draws"), [(5, 300), (30, 100)])
def test_folds_cover(num_folds, draws) -> None:
    """Ridge regression in 10 dimensions on 30 examples: coverage above the bound by far, and near
    to the level (Barber et al., section 7): not four standard errors below 0.86. Residuals of
    training cover less than 0.8."""
    random, hits, naive = stream(6), 0, 0
    for _ in range(draws):
        x = normal((31, 10), random)
        y = x.sum(1) + 2 * normal((31,), random)
        folds = fold_numbers(30, num_folds, seed=int(y[0] * 1e3) % 997)
        means = [ridge(x[:30][folds != k], y[:30][folds != k], x) for k in range(num_folds)]
        models = [MixturePrediction(mean.view(1, -1, 1), 1.0) for mean in means]
        rule = cross_conformal([m[:30] for m in models], y[:30], folds, 0.9, "split")
        hits += bool(covered(rule([m[30:] for m in models]), y[30:]).all())
        whole = ridge(x[:30], y[:30], x)
        naive += bool((y[30] - whole[30]).abs() <= (y[:30] - whole[:30]).abs().quantile(0.9))
    assert rule.guaranteed > 0.45 and hits / draws > 0.86 - 4 * 0.3 / math.sqrt(draws)
    assert naive / draws < 0.8


def test_folds_by_hand_and_as_modes_of_one_prediction() -> None:
    """Three folds of two examples, against a loop over the definition."""
    random, y = stream(7), torch.arange(6.0).double()
    models = [MixturePrediction(normal((1, 8, 1), random), 1.0) for _ in range(3)]
    folds = torch.tensor([0, 0, 1, 1, 2, 2])
    rule = cross_conformal([m[:6] for m in models], y, folds, 0.7, "split")
    ours = rule([m[6:] for m in models])
    for b in (6, 7):
        residuals = [abs(float(y[i]) - float(models[folds[i]].mean[i])) for i in range(6)]
        centre = [float(models[folds[i]].mean[b]) for i in range(6)]
        lows = sorted(c - r for c, r in zip(centre, residuals, strict=True))
        highs = sorted(c + r for c, r in zip(centre, residuals, strict=True))
        assert ours.lower[b - 6].item() == pytest.approx(lows[2 - 1])  # floor(7 * 0.3) = 2
        assert ours.upper[b - 6].item() == pytest.approx(highs[5 - 1])  # ceil(7 * 0.7) = 5
    joined = Prediction.join(models)
    again = cross_conformal(joined[:6], y, folds, 0.7, "split")(joined[6:])
    torch.testing.assert_close(again.lower, ours.lower)
    assert cross_conformal(joined[:6], y, folds, 0.9).vacuous
    with pytest.raises(ValueError, match=r"`folds` must be in 0..2"):
        cross_conformal(joined[:6], y, folds + 1)
    with pytest.raises(ValueError, match="Calibrated on 3 models, got predictions of 2"):
        rule(models[:2])


def test_a_stream_keeps_its_level_whatever_comes() -> None:
    """Noise that grows tenfold and shifts: the average is within the bound, which holds for any
    sequence; a fixed rule is not."""
    random, rate = stream(8), 0.05
    prediction = MixturePrediction(torch.zeros(1, 600, 1, dtype=torch.float64), 1.0)
    values = normal((600,), random) * torch.linspace(0, 1, 600).double().mul(3).exp()
    rule = adaptive(prediction[:100], values[:100], 0.9, "split", rate=rate, window=100)
    fixed = conformal_intervals(prediction[:100], values[:100], 0.9)(prediction)
    steps = [rule.update(prediction[t : t + 1], values[t : t + 1]) for t in range(100, 600)]
    missed = 1 - np.mean([step.covered for step in steps])
    assert missed == pytest.approx(rule.miss_rate) and abs(missed - 0.1) <= rule.bound
    assert rule.bound == pytest.approx(0.95 / (0.05 * 500))
    assert 1 - covered(fixed, values)[100:].double().mean() > 0.1 + rule.bound
    assert all(bool(covered(s.region, values[t : t + 1]).all()) == s.covered
               for t, s in zip(range(100, 600), steps, strict=True))  # fmt: skip
    for power in range(60):
        rule.update(prediction[:1], torch.tensor([2.0**power * 1e3]))
    assert rule.predict(prediction[:1]).upper.isinf().all()


@pytest.mark.parametrize("loss", ["false_negative", "any_missed"])
def test_the_risk_of_labels_is_controlled(loss) -> None:
    """Six labels with probabilities that are too low: the mean loss of one new example over 1,500
    draws of 50 is at most 0.2, and not below 0.2 - 2/51 by more than four standard errors."""
    draws, random, losses = 1500, stream(9), []
    for _ in range(draws):
        logits = normal((51, 6), random)
        holds = torch.rand(51, 6, generator=random) < logits.sigmoid()
        rule = control_risk((logits - 1).sigmoid()[:50], holds[:50], 0.2, loss)
        missed = holds[50] & ~rule((logits - 1).sigmoid()[50:]).members[0]
        share = float(missed.sum()) / max(1, int(holds[50].sum()))
        losses.append(share if loss == "false_negative" else float(missed.any()))
    error = 4 * np.std(losses) / math.sqrt(draws)
    assert np.mean(losses) <= 0.2 + error and np.mean(losses) >= 0.2 - 2 / 51 - error


def test_risk_by_hand_and_limits() -> None:
    probs = torch.tensor([[0.9, 0.2], [0.8, 0.4], [0.7, 0.6], [0.3, 0.1]])
    labels = torch.tensor([[1, 0], [1, 1], [1, 0], [1, 0]])
    rule = control_risk(probs, labels, 0.4, "any_missed")  # (m + 1) / 5 <= 0.4 for one miss
    assert rule.threshold == pytest.approx(0.4) and not rule.vacuous
    assert rule(probs).members.tolist() == [[1, 0], [1, 1], [1, 1], [0, 0]]
    assert control_risk(probs, labels, 0.1).vacuous
    assert control_risk(probs, labels * 0, 0.5).threshold == math.inf
    with pytest.raises(ValueError, match="Did you mean 'any_missed'"):
        control_risk(probs, labels, 0.4, "any_misse")
    with pytest.raises(ValueError, match="must be true or false"):
        control_risk(probs, labels * 2, 0.4)


def test_coverage_of_groups_by_hand() -> None:
    intervals = PredictionIntervals(torch.zeros(5, 1).double(), torch.ones(5, 1).double())
    values = torch.tensor([0.5, 2.0, 0.1, 0.2, 3.0])
    shares = group_coverage(intervals, values, ["a", "b", "a", "b", "b"])
    assert (shares.names, shares.counts) == (["a", "b"], [2, 3])
    assert shares.coverage.tolist() == pytest.approx([1, 1 / 3])
    assert shares.worst == pytest.approx(1 / 3)
    sets = PredictionSets(torch.tensor([[True, False], [True, True]]))
    assert group_coverage(sets, torch.tensor([1, 1]), [0, 1]).coverage.tolist() == [0, 1]


def test_small_unseen_and_wrong_groups() -> None:
    prediction = MixturePrediction(torch.zeros(1, 30, 1), 1.0)
    values, names = torch.randn(30, generator=stream(10)), ["big"] * 25 + ["small"] * 5
    with pytest.warns(UserWarning, match=r"1 group\(s\) have too few examples for 0.9 .*small"):
        rule = by_group(prediction, values, names)
    assert rule.vacuous == ["small"] and rule.counts == {"big": 25, "small": 5}
    with pytest.warns(UserWarning, match=r"no calibration example \(first: other\)"):
        intervals = rule(prediction[:2], ["big", "other"])
    assert intervals.upper[0].isfinite() and intervals.upper[1].isinf()
    for groups, message in (
        (names[:3], r"3 group\(s\) for 30"),
        ([math.nan] * 30, "got nan in row 0"),
        ("all", "one name or number"),
    ):
        with pytest.raises(ValueError, match=message):
            by_group(prediction, values, groups)
    classes = CategoricalPrediction.from_probs([[0.5, 0.5]] * 10)
    with pytest.raises(ValueError, match="Calibrated on a prediction of 1 output"):
        rule(classes, ["big"] * 10)
    with pytest.warns(UserWarning, match="too few"):
        sets = by_class(classes, torch.zeros(10).long(), 0.9)(classes)
    assert sets.members[:, 1].all()
