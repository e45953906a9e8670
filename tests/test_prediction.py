"""Predictions against closed forms, scipy and the faults known from other libraries."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from polymode.core.likelihoods import (
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

shapes = st.tuples(st.integers(1, 6), st.integers(0, 4), st.integers(2, 5))
seeds = st.integers(0, 2**31)


def categorical(shape: tuple[int, int, int], seed: int = 0, sharpness: float = 3.0) -> Any:
    draw = torch.Generator().manual_seed(seed)
    logits = sharpness * torch.randn(shape, generator=draw, dtype=torch.float64)
    return CategoricalPrediction(logits.log_softmax(-1))


def mixture(
    shape: tuple[int, int, int], seed: int = 0, df: float | None = None
) -> MixturePrediction:
    draw = torch.Generator().manual_seed(seed)
    loc = torch.randn(shape, generator=draw, dtype=torch.float64)
    scale = torch.rand(shape, generator=draw, dtype=torch.float64) + 0.1
    return MixturePrediction(loc, scale, df)


def from_probs(*samples: list[float]) -> CategoricalPrediction:
    """Return one input's prediction from the probabilities of each sample."""
    return CategoricalPrediction(torch.tensor(samples).unsqueeze(1).log())


# classes


@given(shapes, seeds, st.floats(0.0, 50.0))
@settings(max_examples=100, deadline=None)
def test_identities_of_a_categorical_prediction(
    shape: tuple[int, int, int], seed: int, sharpness: float
) -> None:
    pred = categorical(shape, seed, sharpness)
    samples, batch, classes = shape
    probs = pred.probs
    close: Any = dict(rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(pred.mean, probs.mean(0), **close)
    torch.testing.assert_close(pred.mean.sum(-1), torch.ones(batch, dtype=probs.dtype), **close)
    torch.testing.assert_close(pred.variance, pred.mean * (1 - pred.mean), **close)
    assert torch.equal(pred.variance, pred.aleatoric_variance + pred.epistemic_variance)
    entropies = torch.distributions.Categorical(probs=probs).entropy() if batch else probs[..., 0]
    torch.testing.assert_close(pred.expected_entropy, entropies.mean(0), rtol=1e-6, atol=1e-9)
    difference = pred.predictive_entropy - pred.expected_entropy
    torch.testing.assert_close(pred.mutual_information, difference, **close)
    assert (pred.mutual_information >= 0).all()
    assert (pred.mutual_information <= math.log(min(samples, classes)) + 1e-9).all()
    assert torch.equal(pred.confidence, pred.mean.gather(1, pred.classes[:, None])[:, 0])


def test_one_sample_has_no_epistemic_part_and_no_disagreement() -> None:
    pred = categorical((1, 4, 3))
    assert torch.equal(pred.mean, pred.probs[0])
    assert pred.mutual_information.tolist() == [0.0] * 4
    assert (pred.epistemic_variance == 0).all()
    with pytest.raises(ValueError, match="needs at least 2 samples, got 1"):
        _ = pred.disagreement


def test_entropy_of_the_mean_is_not_the_mean_of_the_entropies() -> None:
    """Two certain members that contradict each other: all of the uncertainty is epistemic."""
    pred = from_probs([1.0, 0.0], [0.0, 1.0])
    assert pred.predictive_entropy.item() == pytest.approx(math.log(2))
    assert pred.expected_entropy.item() == 0.0
    assert pred.mutual_information.item() == pytest.approx(math.log(2))
    assert pred.epistemic_variance.tolist() == [[0.25, 0.25]]
    assert pred.aleatoric_variance.tolist() == [[0.0, 0.0]]
    undecided = from_probs([0.5, 0.5], [0.5, 0.5])
    assert undecided.expected_entropy.item() == pytest.approx(math.log(2))
    assert undecided.mutual_information.item() == pytest.approx(0.0, abs=1e-6)


def test_zero_probabilities_give_minus_infinity_only_if_all_samples_agree() -> None:
    pred = from_probs([1.0, 0.0, 0.0], [0.25, 0.75, 0.0])
    found = torch.cat([pred.log_prob(torch.tensor([label])) for label in range(3)])
    expected = torch.tensor([math.log(0.625), math.log(0.375), -math.inf])
    torch.testing.assert_close(found, expected)
    for quantity in (pred.predictive_entropy, pred.expected_entropy, pred.variance):
        assert quantity.isfinite().all()


def test_log_probabilities_below_the_float_range_are_kept() -> None:
    """exp(-200) is zero in float32; its logarithm must not become -inf."""
    logits = torch.tensor([[[200.0, 0.0]], [[210.0, 0.0]]])
    pred = CategoricalPrediction(logits.log_softmax(-1))
    expected = -200.0 - math.log(2.0) + math.log1p(math.exp(-10.0))
    assert pred.log_prob(torch.tensor([1])).item() == pytest.approx(expected, rel=1e-6)


@given(st.integers(2, 7), st.integers(2, 4), seeds)
@settings(max_examples=50, deadline=None)
def test_disagreement_counts_pairs(samples: int, classes: int, seed: int) -> None:
    pred = categorical((samples, 3, classes), seed)
    votes = pred.log_probs.argmax(-1)
    pairs = [(i, j) for i in range(samples) for j in range(i)]
    counted = torch.stack([(votes[i] != votes[j]).double() for i, j in pairs]).mean(0)
    torch.testing.assert_close(pred.disagreement, counted)


def test_entropies_have_gradients_at_zero_probability() -> None:
    logits = torch.tensor([[[0.0, 0.0, -math.inf]], [[1.0, 0.0, -math.inf]]], requires_grad=True)
    pred = CategoricalPrediction(logits.log_softmax(-1))
    assert pred.expected_entropy.isfinite().all()
    (grad,) = torch.autograd.grad(pred.expected_entropy.sum(), logits)
    assert grad[..., :2].isfinite().all()


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.tensor([0, 3, 1]), r"in 0\.\.2, got 3 in row 1"),
        (torch.tensor([0.0, 1.0, 1.0]), "integers"),
        (torch.eye(3), "argmax"),
        (torch.tensor([0]), r"1 label\(s\) for 3 input\(s\)"),
    ],
)
def test_wrong_labels_are_refused(labels: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        categorical((2, 3, 3)).log_prob(labels)


def test_labels_may_be_of_any_integer_type() -> None:
    pred = categorical((2, 3, 3))
    expected = pred.log_prob(torch.tensor([0, 2, 1]))
    for labels in (torch.tensor([0, 2, 1], dtype=torch.uint8), np.array([0, 2, 1])):
        torch.testing.assert_close(pred.log_prob(labels), expected)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("log_probs", "message"),
    [
        (torch.randn(2, 3, 4), "normalised"),
        (torch.rand(2, 3, 4).softmax(-1), "normalised"),
        (torch.full((2, 3, 4), math.nan), "nan"),
        (torch.zeros(3, 4), r"axes \(samples, batch, outputs\)"),
        (torch.zeros(2, 3, 1), ">= 2 output"),
        (torch.zeros(0, 3, 2), ">= 1 sample"),
        (torch.zeros(2, 3, 4, dtype=torch.long), "floats"),
        ([[[0.0]]], "floats"),
    ],
)
def test_what_are_not_log_probabilities_is_refused(log_probs: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CategoricalPrediction(log_probs)


def test_classes_have_no_quantiles() -> None:
    pred = categorical((2, 3, 3))
    with pytest.raises(ValueError, match="use `mean`"):
        pred.quantile(0.5)
    with pytest.raises(ValueError, match="use `mean`"):
        pred.interval(0.9)


# densities


def test_two_distant_members_are_not_averaged_into_one() -> None:
    pred = MixturePrediction(torch.tensor([-5.0, 5.0])[:, None, None], 0.1)
    assert pred.std.item() == pytest.approx(math.sqrt(25.01), rel=1e-6)
    assert pred.aleatoric_variance.item() == pytest.approx(0.01)
    assert pred.epistemic_variance.item() == pytest.approx(25.0)
    assert pred.mean.item() == 0.0
    assert pred.log_prob(torch.tensor([5.0])).item() == pytest.approx(
        stats.norm(5.0, 0.1).logpdf(5.0) - math.log(2.0), rel=1e-5
    )
    assert pred.mutual_information.item() == pytest.approx(math.log(2.0), abs=1e-4)
    lower, upper = pred.interval(0.9)
    assert lower.item() == pytest.approx(stats.norm(-5.0, 0.1).ppf(0.1), rel=1e-6)
    assert upper.item() == pytest.approx(stats.norm(5.0, 0.1).ppf(0.9), rel=1e-6)
    assert pred.quantile(0.5).item() == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("df", [None, 0.8, 3.0])
@pytest.mark.parametrize("shape", [(1, 3, 1), (4, 3, 2), (3, 0, 2)])
def test_mixture_is_that_of_scipy(shape: tuple[int, int, int], df: float | None) -> None:
    pred = mixture(shape, df=df)
    y = torch.randn(shape[1:], dtype=torch.float64, generator=torch.Generator().manual_seed(9))
    args = (pred.loc.numpy(), pred.scale.numpy())
    law = stats.norm(*args) if df is None else stats.t(df, *args)
    joint = np.exp(law.logpdf(y.numpy()).sum(-1)).mean(0)
    torch.testing.assert_close(pred.log_prob(y), torch.as_tensor(np.log(joint)))
    torch.testing.assert_close(pred.cdf(y), torch.as_tensor(law.cdf(y.numpy()).mean(0)))
    torch.testing.assert_close(pred.cdf(0.5), torch.as_tensor(law.cdf(0.5).mean(0)))
    torch.testing.assert_close(pred.cdf(pred.quantile(0.3)), torch.full_like(y, 0.3))
    if df is None:
        second = (law.var() + law.mean() ** 2).mean(0)
        torch.testing.assert_close(pred.mean, torch.as_tensor(law.mean().mean(0)))
        torch.testing.assert_close(
            pred.variance, torch.as_tensor(second) - pred.mean.square(), rtol=1e-9, atol=1e-12
        )
    torch.testing.assert_close(
        pred.predictive_entropy, pred.expected_entropy + pred.mutual_information
    )


def test_outputs_are_joined_within_a_sample_before_samples_are_mixed() -> None:
    """Samples (-1, -1) and (1, 1): the target (-1, 1) is unlikely, though each half is likely."""
    pred = MixturePrediction(torch.tensor([[[-1.0, -1.0]], [[1.0, 1.0]]]), 0.1)
    together = pred.log_prob(torch.tensor([[1.0, 1.0]])).item()
    crossed = pred.log_prob(torch.tensor([[-1.0, 1.0]])).item()
    assert together - crossed == pytest.approx(200.0 - math.log(2.0), rel=1e-4)


def test_moments_of_heavy_tails() -> None:
    for df, mean, aleatoric, epistemic in (
        (4.0, 0.5, 2.0, 0.25),
        (2.0, 0.5, math.inf, 0.25),
        (1.5, 0.5, math.inf, 0.25),
        (1.0, math.nan, math.nan, math.nan),
        (0.5, math.nan, math.nan, math.nan),
    ):
        pred = MixturePrediction(torch.tensor([0.0, 1.0])[:, None, None], 1.0, df)
        found = (pred.mean.item(), pred.aleatoric_variance.item(), pred.epistemic_variance.item())
        assert found == pytest.approx((mean, aleatoric, epistemic), nan_ok=True)
        assert pred.std.item() == pytest.approx(math.sqrt(aleatoric + 0.25), nan_ok=True)
        assert pred.quantile(0.5).item() == pytest.approx(0.5, abs=1e-6)
        assert pred.predictive_entropy.isfinite().all()
        assert pred.log_prob(torch.tensor([1e15])).isfinite().all()


@pytest.mark.parametrize("df", [None, 4.0])
def test_quantiles_have_the_shape_of_what_is_asked(df: float | None) -> None:
    pred = mixture((3, 4, 2), df=df)
    levels = torch.tensor([0.05, 0.5, 0.95])
    found = pred.quantile(levels)
    assert found.shape == (3, 4, 2) and (found.diff(dim=0) > 0).all()
    torch.testing.assert_close(found[1], pred.quantile(0.5))
    assert pred.quantile(torch.tensor(0.5)).shape == (4, 2)
    lower, upper = pred.interval(0.9)
    torch.testing.assert_close(torch.stack([lower, upper]), found[::2], rtol=1e-6, atol=1e-6)
    assert pred[:0].quantile(0.5).shape == (0, 2)


def test_quantiles_far_out() -> None:
    pred = MixturePrediction(torch.zeros(2, 1, 1, dtype=torch.float64), 1.0)
    for q in (1e-300, 1e-30, 1e-9):
        assert pred.quantile(q).item() == pytest.approx(stats.norm.ppf(q), rel=1e-9)
    lower, upper = pred.interval(1 - 1e-9)
    assert -lower.item() == pytest.approx(upper.item(), rel=1e-7)


@pytest.mark.parametrize("q", [0.0, 1.0, -0.1, math.nan, [], [[0.5]], [0.5, 1.5]])
def test_impossible_quantiles_are_refused(q: Any) -> None:
    with pytest.raises(ValueError, match=r"`q` must be"):
        mixture((2, 3, 1)).quantile(q)
    if isinstance(q, float):
        with pytest.raises(ValueError, match="`level`"):
            mixture((2, 3, 1)).interval(q)


def test_rescale_undoes_a_standardisation() -> None:
    pred, y = mixture((3, 4, 2)), torch.randn(4, 2, dtype=torch.float64)
    shift, scale = torch.tensor([10.0, -3.0]), torch.tensor([2.0, 0.5])
    scaled = pred.rescale(shift, scale)
    torch.testing.assert_close(scaled.mean, shift + scale * pred.mean)
    torch.testing.assert_close(scaled.std, scale * pred.std)
    jacobian = scale.double().log().sum()
    torch.testing.assert_close(scaled.log_prob(shift + scale * y), pred.log_prob(y) - jacobian)
    torch.testing.assert_close(scaled.quantile(0.2), shift + scale * pred.quantile(0.2))
    torch.testing.assert_close(scaled.mutual_information, pred.mutual_information)
    with pytest.raises(ValueError, match="must be > 0"):
        pred.rescale(0.0, torch.tensor([1.0, 0.0]))


@pytest.mark.parametrize(
    ("loc", "scale", "df", "message"),
    [
        (torch.zeros(2, 3, 1), 0.0, None, "`scale` must be finite and > 0.*sample 0, input 0"),
        (torch.zeros(2, 3, 1), math.inf, None, "`scale`"),
        (torch.full((2, 3, 1), math.nan), 1.0, None, "`loc` must be finite.*6 of 6"),
        (torch.zeros(2, 3, 1), torch.ones(2, 4, 1), None, "broadcast"),
        (torch.zeros(2, 3, 1), torch.ones(5, 2, 3, 1), None, "broadcast"),
        (torch.zeros(2, 3, 1), 1.0, 0.0, "`df` must be a finite number > 0"),
        (torch.zeros(2, 3, 1), 1.0, math.nan, "`df`"),
        (torch.zeros(2, 3), 1.0, None, "axes"),
        (torch.zeros(2, 3, 0), 1.0, None, ">= 1 output"),
    ],
)
def test_what_are_not_densities_is_refused(loc: Any, scale: Any, df: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MixturePrediction(loc, scale, df)


def test_wrong_values_are_refused() -> None:
    pred = mixture((2, 3, 1))
    torch.testing.assert_close(pred.log_prob(torch.zeros(3)), pred.log_prob(torch.zeros(3, 1)))
    assert (pred.log_prob(torch.full((3,), math.inf)) == -math.inf).all()
    for y in (torch.zeros(1, 3), torch.zeros(4), torch.zeros(2, 3, 1)):
        with pytest.raises(ValueError, match="shape"):
            pred.log_prob(y)
    with pytest.raises(ValueError, match="1 NaN"):
        pred.log_prob(torch.tensor([0.0, math.nan, 1.0]))
    with pytest.raises(ValueError, match="epistemic_variance"):
        _ = pred.disagreement


# both


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
        with pytest.raises(ValueError, match="alike"):
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


def test_shown_text_tells_the_main_numbers() -> None:
    text = repr(MixturePrediction(torch.tensor([-5.0, 5.0])[:, None, None], 0.1))
    assert text == (
        "MixturePrediction(S=2, B=1, D=1, aleatoric_variance=0.01, epistemic_variance=25)"
    )


def test_probabilities_and_logits_give_the_same_prediction() -> None:
    logits = torch.randn(3, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    by_logits = CategoricalPrediction.from_logits(logits)
    by_probs = CategoricalPrediction.from_probs(logits.softmax(-1))
    torch.testing.assert_close(by_logits.mean, by_probs.mean)
    alone = CategoricalPrediction.from_logits(logits[0])
    assert alone.log_probs.shape == (1, 4, 5)


def test_energy_is_minus_the_mean_log_sum_exp_and_survives_storage() -> None:
    logits = torch.randn(3, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    prediction = CategoricalPrediction.from_logits(logits)
    expected = -logits.exp().sum(-1).log().mean(0)
    torch.testing.assert_close(prediction.energy, expected)
    torch.testing.assert_close(Prediction.from_arrays(*prediction.to_arrays()).energy, expected)
    torch.testing.assert_close(prediction[1:3].energy, expected[1:3])
    parts = [prediction[:1], prediction[1:]]
    torch.testing.assert_close(Prediction.cat(parts).energy, expected)
    outputs = Categorical().components(logits, {})
    torch.testing.assert_close(predict_from(outputs).energy, expected)
    with pytest.raises(ValueError, match="needs the network's outputs"):
        _ = CategoricalPrediction(prediction.log_probs).energy
    with pytest.raises(ValueError, match="alike"):
        Prediction.cat([prediction, CategoricalPrediction(prediction.log_probs)])


@pytest.mark.parametrize(
    ("probs", "message"),
    [
        ([[0.5, 0.6]], "add up to 1, but do not at sample 0, input 0"),
        ([[3.0, -1.0]], "use `from_logits`"),
        ([[math.nan, 1.0]], "nan if a sample diverged"),
        ([[1.0]], "2 output"),
        ([0.5, 0.5], "axes"),
        ([[1, 0]], "floats"),
    ],
)
def test_what_is_not_a_probability_is_refused(probs, message) -> None:
    with pytest.raises(ValueError, match=message):
        CategoricalPrediction.from_probs(probs)


def test_infinite_logits_are_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        CategoricalPrediction.from_logits([[math.inf, 0.0]])


def test_mean_in_the_log_keeps_what_an_exponential_loses() -> None:
    """exp(-110) is zero in float32; log-sum-exp over the samples is not."""
    log_probs = torch.tensor([[[0.0, -110.0, -90.0]], [[0.0, -120.0, -math.inf]]])
    prediction = CategoricalPrediction(log_probs)
    expected = log_probs.double().logsumexp(0) - math.log(2)
    torch.testing.assert_close(prediction.log_mean.double(), expected, atol=2e-7, rtol=1e-6)
    alone = CategoricalPrediction(torch.tensor([[[-1e-9, -20.7232658]]]))
    assert alone.log_mean[0, 0].item() == pytest.approx(-1e-9)  # not rounded to 0


def test_the_mean_in_the_log_has_a_gradient_where_all_samples_say_zero() -> None:
    logits = torch.tensor([[[0.0, -200.0]], [[0.0, -300.0]]], requires_grad=True)
    CategoricalPrediction(logits.log_softmax(-1)).log_mean.sum().backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_one_pass_in_blocks_is_the_same_as_all_at_once(monkeypatch) -> None:
    prediction = categorical((3, 17, 4))
    monkeypatch.setattr("polymode.prediction.categorical._BLOCK", 24)  # two inputs at a time
    parts = CategoricalPrediction(prediction.log_probs)
    for name in ("mean", "expected_entropy", "epistemic_variance", "aleatoric_variance"):
        torch.testing.assert_close(getattr(parts, name), getattr(prediction, name))
