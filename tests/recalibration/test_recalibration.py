"""What every recalibration of classes keeps to: identities, storage, errors, ensembles."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polymode.prediction import CategoricalPrediction, MixturePrediction
from polymode.recalibration import METHODS, Recalibration, fit_temperature, recalibrate

DENSITIES = [name for name in METHODS.names() if METHODS.get(name).metadata["densities"]]
CLASSES = [name for name in METHODS.names() if name not in DENSITIES]
SAMPLES = [name for name in CLASSES if METHODS.get(name).metadata["samples"]]


def draw(samples: int = 4, n: int = 60, classes: int = 3, seed: int = 0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, classes, generator=generator, dtype=dtype)
    labels = torch.multinomial((2 * logits).softmax(-1), 1, generator=generator)[:, 0]
    labels[:classes] = torch.arange(classes)
    noise = torch.randn(samples, n, classes, generator=generator, dtype=dtype)
    return CategoricalPrediction.from_logits(3 * logits + 2 * noise), labels


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(CLASSES), st.booleans(), st.integers(0, 2**31), st.integers(1, 4))
def test_probabilities_add_up(method, on_samples, seed, samples) -> None:
    """The constructor of predictions takes them: normalised, in the dtype of the input, S right."""
    prediction, labels = draw(samples, seed=seed, dtype=torch.float32)
    new, _ = draw(samples, 7, seed=seed + 1, dtype=torch.float32)
    apply_to = "samples" if on_samples and method in SAMPLES else "mean"
    after = recalibrate(prediction, labels, method, apply_to=apply_to)(new)
    assert after.num_samples == (samples if apply_to == "samples" else 1)
    assert after.mean.dtype == torch.float32 and len(after) == 7
    torch.testing.assert_close(after.mean.sum(-1), torch.ones(7))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 4))
def test_temperature_keeps_the_class(seed, samples) -> None:
    """And the order of all classes; a T found twice is 1."""
    prediction, labels = draw(samples, seed=seed)
    map_ = recalibrate(prediction, labels)
    after = map_(prediction)
    assert (after.mean.argsort(-1) == prediction.mean.argsort(-1)).all()
    if 0.01 < map_.parameters["temperature"] < 100:
        assert recalibrate(after, labels).parameters["temperature"] == pytest.approx(1, abs=1e-8)
    assert after.log_prob(labels).mean() >= prediction.log_prob(labels).mean() - 1e-12


def test_temperature_of_the_mean_is_that_of_its_log() -> None:
    prediction, labels = draw()
    expected = fit_temperature(prediction.log_mean, labels)
    map_ = recalibrate(prediction, labels)
    assert map_.parameters["temperature"] == pytest.approx(expected, rel=1e-10)
    torch.testing.assert_close(map_(prediction).mean, (prediction.log_mean / expected).softmax(-1))


@pytest.mark.parametrize("method", SAMPLES)
def test_ensembles_are_recalibrated(method) -> None:
    """A fault known elsewhere: corrections that refuse ensembles.

    On samples, the mixture's own NLL falls, its members stay apart, and the fit is better for the
    mixture than the one that a single member would choose.
    """
    prediction, labels = draw(5, 300)
    map_ = recalibrate(prediction, labels, method, apply_to="samples")
    after = map_(prediction)
    assert after.num_samples == 5 and (after.mutual_information > 1e-3).any()
    assert after.log_prob(labels).mean() > prediction.log_prob(labels).mean()
    assert recalibrate(prediction, labels, method)(prediction).mutual_information.max() < 1e-12
    alone = recalibrate(CategoricalPrediction(prediction.log_probs[:1]), labels, method)
    of_one = Recalibration(method, "samples", 3, 300, alone.parameters)(prediction)
    assert after.log_prob(labels).mean() > of_one.log_prob(labels).mean()


@pytest.mark.parametrize("method", METHODS.names())
def test_storage(method) -> None:
    """Through JSON and back: equal, and the same predictions to the last bit."""
    prediction, labels = draw()
    targets = labels
    if method in DENSITIES:
        prediction = MixturePrediction(prediction.log_probs, torch.ones(1))
        targets = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    map_ = recalibrate(prediction, targets, method)
    back = Recalibration.from_dict(json.loads(json.dumps(map_.to_dict(), allow_nan=False)))
    assert back == map_ == recalibrate(prediction, targets, method)
    assert (back(prediction).mean == map_(prediction).mean).all()
    assert len(repr(map_)) < 80 and method in repr(map_) and "n=60" in repr(map_)


def test_storage_errors() -> None:
    stored = recalibrate(*draw()).to_dict()
    with pytest.raises(ValueError, match="Not a stored recalibration"):
        Recalibration.from_dict({"method": "temperature"})
    with pytest.raises(ValueError, match="Did you mean 'temperature'"):
        Recalibration.from_dict({**stored, "method": "temperatur"})


def test_missing_classes() -> None:
    """A temperature needs no class in particular; for others a warning says what happens."""
    prediction, labels = draw()
    some = labels < 2
    recalibrate(prediction[some], labels[some])
    with pytest.warns(UserWarning, match="1 of 3 classes .*first: 2.* placed by the regulariser"):
        map_ = recalibrate(prediction[some], labels[some], "vector")
    assert map_(prediction).log_prob(labels).isfinite().all()


def test_errors() -> None:
    prediction, labels = draw()
    other, _ = draw(classes=4)
    with pytest.raises(ValueError, match="Fitted on 3 classes or outputs, got a prediction of 4"):
        recalibrate(prediction, labels)(other)
    with pytest.raises(ValueError, match=r"Got 5 target\(s\) for 60 prediction\(s\)"):
        recalibrate(prediction, labels[:5])
    with pytest.raises(ValueError, match="need as many, >= 1"):
        recalibrate(prediction[:0], labels[:0])
    with pytest.raises(ValueError, match="Did you mean 'isotonic'"):
        recalibrate(prediction, labels, "isotonik")
    with pytest.raises(ValueError, match="isotonic cannot map samples"):
        recalibrate(prediction, labels, "isotonic", apply_to="samples")
    with pytest.raises(ValueError, match="'mean' or 'samples', got 'logits'"):
        recalibrate(prediction, labels, apply_to="logits")
    with pytest.raises(ValueError, match="for recalibration 'temperature'. Options: none"):
        recalibrate(prediction, labels, penalty=1.0)
    with pytest.raises(ValueError, match="Did you mean 'num_bins'"):
        recalibrate(prediction, labels, "histogram_binning", num_bin=3)
    with pytest.raises(ValueError, match="Need a Prediction, got Tensor"):
        recalibrate(prediction.mean, labels)
    with pytest.raises(ValueError, match="`energy` needs"):
        _ = recalibrate(prediction, labels)(prediction).energy


@pytest.mark.parametrize("method", SAMPLES)
def test_modes_stay_where_samples_are_mapped(method) -> None:
    """Six samples of two modes: each mode afterwards is what its samples alone become."""
    prediction, labels = draw(6)
    prediction = CategoricalPrediction(prediction.log_probs, num_modes=2)
    fitted = recalibrate(prediction, labels, method, apply_to="samples")
    after = fitted(prediction)
    assert (after.num_modes, after.samples_per_mode) == (2, 3)
    second = fitted(prediction.take_modes([1]))
    torch.testing.assert_close(after.take_modes([1]).mean, second.mean)
    assert fitted(prediction.take_modes([0])).num_modes == 1
    assert recalibrate(prediction, labels, method)(prediction).num_modes == 1
