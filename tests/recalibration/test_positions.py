"""Recalibration at positions: equal to the same data as rows, whole and as a stream."""

from __future__ import annotations

import pytest
import torch

from polymode.core import memory
from polymode.prediction import CategoricalPrediction, MappedPrediction, MixturePrediction
from polymode.recalibration import METHODS, recalibrate, temperature

DENSITIES = [name for name in METHODS.names() if METHODS.get(name).metadata["densities"]]
CLASSES = [name for name in METHODS.names() if name not in DENSITIES]
SAMPLES = [name for name in CLASSES if METHODS.get(name).metadata["samples"]]


def masks(examples: int = 7) -> tuple[CategoricalPrediction, torch.Tensor]:
    """Of 3 samples, 3 classes at 5 × 4 pixels; a tenth of the pixels, and one image, have no
    label."""
    random = torch.Generator().manual_seed(0)
    logits = torch.randn(3, examples, 5, 4, 3, generator=random, dtype=torch.float64)
    probs = (1.5 * logits.mean(0)).softmax(-1)
    labels = torch.multinomial(probs.flatten(0, 2), 1, generator=random).view(examples, 5, 4)
    labels[torch.rand(labels.shape, generator=random) < 0.1] = -100
    labels[4] = -100
    return CategoricalPrediction.from_logits(3 * logits), labels


def depths(outputs: int = 2) -> tuple[MixturePrediction, torch.Tensor]:
    random = torch.Generator().manual_seed(1)
    loc = torch.randn(3, 6, 5, 4, outputs, generator=random, dtype=torch.float64)
    noise = torch.randn(loc.shape[1:], generator=random, dtype=torch.float64)
    y = loc.mean(0) + 0.4 * noise.exp()
    y[torch.rand(y.shape[:-1], generator=random) < 0.1] = torch.nan
    return MixturePrediction(loc, 0.3), y


CASES = [(name, "mean") for name in METHODS.names()] + [(name, "samples") for name in SAMPLES]


@pytest.mark.parametrize(("method", "apply_to"), CASES)
def test_positions_are_rows(method, apply_to) -> None:
    """The same numbers; maps at positions are those of their rows, wherever they are."""
    prediction, targets = depths() if method in DENSITIES else masks()
    rows = prediction.observations(targets)
    expected = recalibrate(rows.prediction, rows.targets, method, apply_to=apply_to)
    fixed = recalibrate(prediction, targets, method, apply_to=apply_to)
    assert fixed == expected and fixed.n == len(rows.targets)
    parts = (prediction[start : start + 2] for start in range(0, len(prediction), 2))
    streamed = recalibrate(parts, targets, method, apply_to=apply_to)
    assert streamed == expected
    after, of_rows = fixed(prediction), fixed(rows.prediction)
    observed = after.observations(targets).prediction
    torch.testing.assert_close(observed.mean, of_rows.mean)
    torch.testing.assert_close(observed.log_prob(rows.targets), of_rows.log_prob(rows.targets))
    joined = torch.cat([fixed(prediction[:3]).mean, fixed(prediction[3:]).mean])
    torch.testing.assert_close(joined, after.mean)


def test_streams_of_single_targets_are_the_whole() -> None:
    prediction, labels = masks()
    flat = prediction.observations(labels)
    whole = recalibrate(flat.prediction, flat.targets)
    parts = (flat.prediction[start : start + 40] for start in range(0, len(flat.targets), 40))
    assert recalibrate(parts, flat.targets) == whole


def test_temperature_by_pieces_is_that_of_all(monkeypatch) -> None:
    prediction, labels = masks()
    whole = {way: recalibrate(prediction, labels, apply_to=way) for way in ("mean", "samples")}
    monkeypatch.setattr(temperature, "_PIECE", 60)
    for way, expected in whole.items():
        found = recalibrate(prediction, labels, apply_to=way).parameters["temperature"]
        assert found == pytest.approx(expected.parameters["temperature"], rel=1e-10)


def test_a_stream_that_does_not_fit_is_refused_at_its_start(monkeypatch) -> None:
    prediction, labels = masks()
    monkeypatch.setattr(memory, "free_bytes", lambda *_: 5_000)
    with pytest.raises(ValueError, match="420 numbers of 7 examples, which need 10.1 kB"):
        recalibrate(iter([prediction[:4], prediction[4:]]), labels)


@pytest.mark.parametrize("outputs", [1, 2])
def test_mapped_maps_answer_as_their_rows(outputs) -> None:
    """Every number of a mapped prediction at positions, with targets that are not observed."""
    prediction, y = depths(outputs)
    prediction, y = prediction[:2], y[:2]
    after = recalibrate(prediction, y, "quantile_cdf", num_levels=5)(prediction)
    assert isinstance(after, MappedPrediction) and after.num_axes == 2
    rows, flat = after.as_rows(), y.flatten(0, 2)
    for name in ("mean", "variance", "predictive_entropy"):
        expected = getattr(rows, name).unflatten(0, (2, 5, 4))
        torch.testing.assert_close(getattr(after, name), expected)
    seen = ~flat.isnan().any(-1)
    for name in ("cdf", "density", "crps", "log_prob"):
        answer = getattr(after, name)(y)
        expected = getattr(rows, name)(flat.nan_to_num())
        torch.testing.assert_close(answer.flatten(0, 2)[seen], expected[seen])
        assert answer.flatten(0, 2)[~seen].isnan().all()
    levels = torch.tensor([0.1, 0.5, 0.9])
    torch.testing.assert_close(after.quantile(levels).flatten(1, 3), rows.quantile(levels))
    torch.testing.assert_close(after.quantile(0.3).flatten(0, 2), rows.quantile(0.3))
    torch.testing.assert_close(after.cdf(0.2).flatten(0, 2), rows.cdf(0.2))
    torch.testing.assert_close(after.sample(3).flatten(1, 3), rows.sample(3))
    assert "mean 5 %" in after._repr_html_()


@pytest.mark.parametrize(
    ("targets", "says"),
    [
        (lambda y: y[:3], r"got \(?3|got \(0"),
        (lambda y: torch.full_like(y, -100), "all are ignored"),
        (lambda y: y.where(y != 2, 255), "Labels must be in 0..2, got 255"),
        (lambda y: y[:, :4], "need targets there"),
        (lambda y: y.double(), "Labels must be integers"),
    ],
)
def test_wrong_targets_are_refused_in_one_line(targets, says) -> None:
    prediction, labels = masks()
    for given in (prediction, (prediction[:4], prediction[4:])):
        with pytest.raises(ValueError, match=says) as caught:
            recalibrate(given, targets(labels))
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="Need a Prediction, got int"):
        recalibrate(3, labels)  # type: ignore[arg-type]
