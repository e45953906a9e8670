"""What predictions of classes and of densities share: parts, storage, dtype, likelihoods."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from polymode.likelihoods.kinds import (
    Bernoulli,
    Categorical,
    Categories,
    Gaussian,
    HeteroscedasticGaussian,
    Likelihood,
    StudentT,
)
from polymode.prediction import (
    CategoricalPrediction,
    MixturePrediction,
    Prediction,
    predict_from,
)

from .made_up import categorical, mixture


@pytest.mark.parametrize("pred", [categorical((3, 5, 4)), mixture((3, 5, 2), df=3.0)], ids=repr)
def test_parts_are_taken_joined_and_stored(pred: Prediction) -> None:
    assert (len(pred), pred.num_samples) == (5, 3)
    mask = torch.tensor([True, False, True, False, False])
    for index, rows in (
        (slice(1, 3), [1, 2]),
        (slice(2, 2), []),
        ([4, 0], [4, 0]),
        ([], []),
        (mask, [0, 2]),
        (mask.numpy(), [0, 2]),
        (3, [3]),
        (-1, [4]),
        (np.int64(2), [2]),
    ):
        part = pred[index]  # type: ignore[index]
        assert type(part) is type(pred) and len(part) == len(rows) and part.num_samples == 3
        torch.testing.assert_close(part.mean, pred.mean[rows])
        assert "S=3" in repr(part) and f"B={len(rows)}" in repr(part)
    with pytest.raises(IndexError):
        pred[5]
    with pytest.raises(IndexError):
        pred[torch.zeros(1, 2, dtype=torch.long)]
    assert [len(one) for one in pred] == [1] * 5  # type: ignore[attr-defined]
    joined = Prediction.cat([pred[:2], pred[2:2], pred[2:]])
    tensors, rest = joined.to_arrays()
    assert json.loads(json.dumps(rest)) == rest and all(t.is_contiguous() for t in tensors.values())
    again = Prediction.from_arrays(tensors, json.loads(json.dumps(rest)))
    assert type(again) is type(pred) and repr(again) == repr(pred)
    for name in ("mean", "variance", "predictive_entropy", "mutual_information"):
        torch.testing.assert_close(getattr(again, name), getattr(pred, name))


def test_only_predictions_alike_are_joined() -> None:
    for others in (
        [categorical((3, 5, 4)), categorical((2, 5, 4))],
        [categorical((3, 5, 4)), categorical((3, 5, 2))],
        [categorical((3, 5, 4)), mixture((3, 5, 4))],
        [mixture((3, 5, 4)), mixture((3, 5, 4), df=3.0)],
    ):
        with pytest.raises(ValueError, match="of the same kind"):
            Prediction.cat(others)
    with pytest.raises(ValueError, match="empty"):
        Prediction.cat([])
    with pytest.raises(ValueError, match="Not a stored prediction"):
        Prediction.from_arrays({}, {"kind": "else"})


def test_an_empty_batch_is_predicted() -> None:
    empty = categorical((3, 5, 4))[:0]
    assert empty.mean.shape == (0, 4) and empty.disagreement.shape == (0,)
    assert empty.log_prob(torch.zeros(0, dtype=torch.long)).shape == (0,)
    none = mixture((3, 5, 2))[:0]
    assert none.mean.shape == none.mutual_information.shape == none.interval(0.9)[0].shape == (0, 2)
    assert none.log_prob(torch.zeros(0, 2)).shape == (0,)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype_is_that_of_the_samples(dtype: torch.dtype) -> None:
    predictions = [
        CategoricalPrediction(torch.randn(3, 5, 4, dtype=dtype).log_softmax(-1)),
        MixturePrediction(torch.randn(3, 5, 4, dtype=dtype), 1.0),
        MixturePrediction(torch.randn(3, 5, 4, dtype=dtype), 1.0, df=3.0),
    ]
    names = "mean variance std predictive_entropy expected_entropy mutual_information".split()
    for pred in predictions:
        assert {getattr(pred, name).dtype for name in names} == {dtype}
    assert {t.dtype for p in predictions[1:] for t in (p.quantile(0.2), p.cdf(0.0))} == {dtype}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "likelihood",
    [
        Categorical(),
        Bernoulli(),
        Gaussian(noise=0.5),
        Gaussian(noise="learned_per_output"),
        HeteroscedasticGaussian(),
        StudentT(df=4.0, scale="learned"),
    ],
    ids=str,
)
def test_prediction_mixes_the_likelihoods_of_its_samples(likelihood: Likelihood) -> None:
    """exp(log_prob) of the prediction is the mean over members of the likelihood."""
    size = 2
    outputs = torch.randn(3, 5, likelihood.num_outputs(size), dtype=torch.float64)
    params = likelihood.init(3, size, dtype=torch.float64)
    if likelihood.classification:
        targets = torch.randint(size, (5,))
    else:
        targets = torch.randn(5, size, dtype=torch.float64)
    pred = predict_from(likelihood.components(outputs, params))
    mixed = likelihood.log_prob(outputs, targets, params).exp().mean(0).log()
    torch.testing.assert_close(pred.log_prob(targets), mixed)


def test_further_leading_axes_are_samples_too() -> None:
    log_probs = torch.randn(2, 3, 5, 4).log_softmax(-1)
    pred = predict_from(Categories(log_probs))
    assert pred.num_samples == 6
    torch.testing.assert_close(pred.mean, log_probs.exp().mean((0, 1)))
    regression = HeteroscedasticGaussian().components(torch.randn(2, 3, 0, 4), {})
    assert predict_from(regression).num_samples == 6
    with pytest.raises(ValueError, match="axes"):
        predict_from(Categories(log_probs[0, 0]))
