"""Predictions at positions: maps of what rows have, and rows of what was observed."""

from __future__ import annotations

import math

import pytest
import torch

from polymode.likelihoods.components import Categories, Components
from polymode.prediction import CategoricalPrediction, MixturePrediction, Prediction, predict_from

S, B, E, C = 4, 3, (5, 2), 3
DRAW = torch.Generator().manual_seed(0)
LOGITS = torch.randn(S, B, *E, C, generator=DRAW, dtype=torch.float64)
LOC = torch.randn(S, B, *E, 2, generator=DRAW, dtype=torch.float64)
LABELS = torch.randint(C, (B, *E), generator=DRAW)
LABELS[0, :2] = -100
VALUES = torch.randn(B, *E, 2, generator=DRAW, dtype=torch.float64)
VALUES[1, 2] = math.nan

CLASSES = CategoricalPrediction.from_logits(LOGITS)
DENSITIES = MixturePrediction(LOC, 0.7)
MAPS = [(CLASSES, LABELS), (DENSITIES, VALUES)]


def rows_of(prediction: Prediction) -> Prediction:
    tensors, metadata = prediction.to_arrays()
    return Prediction.from_arrays({k: t.flatten(1, 3) for k, t in tensors.items()}, metadata)


@pytest.mark.parametrize("prediction", [CLASSES, DENSITIES], ids=["classes", "densities"])
@pytest.mark.parametrize(
    "name",
    [
        "mean", "variance", "std", "predictive_entropy", "expected_entropy", "mutual_information",
        "within_modes", "between_modes", "aleatoric_variance", "epistemic_variance",
    ],
)  # fmt: skip
def test_maps_are_rows(prediction, name) -> None:
    value, expected = getattr(prediction, name), getattr(rows_of(prediction), name)
    torch.testing.assert_close(value, expected.unflatten(0, (B, *E)))


@pytest.mark.parametrize(
    "name", ["classes", "confidence", "one_minus_confidence", "disagreement", "energy"]
)
def test_maps_of_classes_are_rows(name) -> None:
    value, expected = getattr(CLASSES, name), getattr(rows_of(CLASSES), name)
    torch.testing.assert_close(value, expected.unflatten(0, (B, *E)))


def test_intervals_of_maps_are_rows() -> None:
    low, high = DENSITIES.interval(0.9)
    expected = rows_of(DENSITIES).interval(0.9)
    torch.testing.assert_close(low, expected[0].unflatten(0, (B, *E)))
    torch.testing.assert_close(high, expected[1].unflatten(0, (B, *E)))


@pytest.mark.parametrize(("prediction", "targets"), MAPS, ids=["classes", "densities"])
def test_observations_are_what_has_a_target(prediction, targets) -> None:
    rows = prediction.observations(targets)
    flat = targets.flatten(0, 2)
    observed = flat != -100 if flat.dim() == 1 else ~flat.isnan().any(1)
    assert len(rows.prediction) == int(observed.sum()) < B * 10
    torch.testing.assert_close(rows.targets, flat[observed])
    expected = torch.arange(B).repeat_interleave(10)[observed]
    torch.testing.assert_close(rows.examples, expected)
    logs = prediction.log_prob(targets)
    assert int(logs.isnan().sum()) == int((~observed).sum())
    torch.testing.assert_close(rows.prediction.log_prob(rows.targets), logs[~logs.isnan()])


def test_observations_of_rows_are_the_rows() -> None:
    rows, targets = rows_of(CLASSES), LABELS.flatten().clamp(min=0)
    seen = rows.observations(targets)
    assert seen.prediction is rows
    assert seen.targets is targets
    assert seen.examples.tolist() == list(range(B * 10))


@pytest.mark.parametrize(("prediction", "targets"), MAPS, ids=["classes", "densities"])
def test_joint_is_a_mixture_of_products(prediction, targets) -> None:
    """log 1/S Σ_s Π_p p_s(y_p), by a loop; at least the product of mixtures need not be."""
    logs = torch.stack(
        [prediction._take_samples([s], 1).log_prob(targets).nan_to_num(nan=0.0) for s in range(S)]
    )
    expected = logs.flatten(2).sum(-1).logsumexp(0) - math.log(S)
    torch.testing.assert_close(prediction.joint_log_prob(targets), expected)
    product = prediction.log_prob(targets).nansum((1, 2))
    assert not torch.allclose(expected, product)


def test_one_sample_knows_no_difference() -> None:
    """With one network the joint is the sum over positions."""
    one = CLASSES._take_samples([1], 1)
    torch.testing.assert_close(one.joint_log_prob(LABELS), one.log_prob(LABELS).nansum((1, 2)))


def test_components_by_mode() -> None:
    by_mode = LOGITS.log_softmax(-1).unflatten(0, (2, 2))
    prediction = predict_from(Categories(by_mode), axes=2)
    assert (prediction.num_modes, prediction.num_samples) == (2, 4)
    assert prediction.by_mode[0].shape == by_mode.shape
    one_each = predict_from(Components(LOC, torch.ones_like(LOC), None), axes=2)
    assert one_each.num_modes == 4


@pytest.mark.parametrize(("prediction", "targets"), MAPS, ids=["classes", "densities"])
def test_stored_sliced_joined_and_shown(prediction, targets) -> None:
    again = Prediction.from_arrays(*prediction.to_arrays())
    torch.testing.assert_close(again.mean, prediction.mean)
    assert len(prediction[1:]) == 2
    assert len(Prediction.cat([prediction, again])) == 2 * B
    assert Prediction.join([prediction, again]).num_samples == 2 * S
    assert "E1=5, E2=2" in repr(prediction)
    assert "mean " in prediction._repr_html_()


@pytest.mark.parametrize(
    ("prediction", "targets", "message"),
    [
        (CLASSES, LABELS[:, :3], r"\(B, \*E\) = \(3, 5, 2\)"),
        (CLASSES, LABELS.float(), "integers"),
        (CLASSES, LABELS.clamp(min=0) + 3, "in 0..2"),
        (DENSITIES, VALUES[:2], r"\(B, \*E, D\)"),
    ],
)
def test_targets_that_do_not_fit(prediction, targets, message) -> None:
    with pytest.raises(ValueError, match=message):
        prediction.log_prob(targets)
    if targets.shape[:3] != (B, *E):
        with pytest.raises(ValueError, match="positions"):
            prediction.observations(targets)


@pytest.mark.parametrize("prediction", [CLASSES, DENSITIES], ids=["classes", "densities"])
def test_draws_of_an_example_are_of_one_sample(prediction) -> None:
    """Two samples that are sure of opposite maps never give a map with both.

    False alarms: none, since neither sample gives the other's class or a value 20 s.d. away.
    """
    sign = torch.tensor([-1.0, 1.0]).view(2, 1, 1, 1).expand(2, B, *E).double()
    if prediction is CLASSES:
        sure = CategoricalPrediction.from_logits(torch.stack([-50 * sign, 50 * sign], -1))
    else:
        sure = MixturePrediction(20 * sign.unsqueeze(-1), 1.0)  # type: ignore[assignment]
    draws = sure.sample(64).reshape(64, B, -1)
    up = draws > 0
    assert (up.all(-1) | ~up.any(-1)).all()
    assert up.any() and not up.all()
