"""Samples by mode: what lies where, and the split of mutual information within and between."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polymode.likelihoods.components import Categories
from polymode.prediction import CategoricalPrediction, MixturePrediction, Prediction, predict_from
from polymode.recalibration import recalibrate

from .made_up import categorical, mixture


def modes_of(pred: Any, num_modes: int) -> Any:
    """Return the same samples as those of so many modes."""
    tensors, rest = pred.to_arrays()
    return Prediction.from_arrays(tensors, {**rest, "num_modes": num_modes})


def test_samples_lie_mode_by_mode() -> None:
    log_probs = torch.randn(2, 3, 5, 4).log_softmax(-1)
    pred = predict_from(Categories(log_probs, torch.randn(2, 3, 5)))
    assert isinstance(pred, CategoricalPrediction) and pred.log_normalizer is not None
    assert (pred.num_modes, pred.samples_per_mode, pred.num_samples) == (2, 3, 6)
    assert torch.equal(pred.log_probs[1 * 3 + 2], log_probs[1, 2])
    by_mode = pred.by_mode
    assert torch.equal(by_mode.log_probs, log_probs)
    assert by_mode.log_probs.data_ptr() == pred.log_probs.data_ptr()
    assert by_mode.log_normalizer is not None and by_mode.log_normalizer.shape == (2, 3, 5)
    assert torch.equal(by_mode.log_normalizer.flatten(0, 1), pred.log_normalizer)
    assert repr(pred).startswith("CategoricalPrediction(M=2, S=6, B=5, C=4")
    assert "M = 2, S = 6" in pred._repr_html_()
    densities = modes_of(mixture((6, 5, 2)), 3)
    assert densities.by_mode.loc.shape == densities.by_mode.scale.shape == (3, 2, 5, 2)
    assert torch.equal(densities.by_mode.loc[2, 1], densities.loc[5])
    assert densities.by_mode.epistemic is None


@pytest.mark.parametrize("pred", [categorical((6, 5, 4)), mixture((6, 5, 2))], ids=repr)
def test_modes_are_kept_taken_and_joined(pred: Any) -> None:
    assert (pred.num_modes, pred.samples_per_mode) == (6, 1) and "M=" not in repr(pred)
    three = modes_of(pred, 3)
    tensors, rest = three.to_arrays()
    again = Prediction.from_arrays(tensors, json.loads(json.dumps(rest)))
    assert again.num_modes == three[1:2].num_modes == three[[0]].num_modes == 3
    assert Prediction.cat([three[:2], three[2:]]).num_modes == 3
    with pytest.raises(ValueError, match="of the same kind"):
        Prediction.cat([three, pred])
    first = three.take_modes(slice(1))
    assert (first.num_modes, first.num_samples) == (1, 2)
    others = three.take_modes([2, -2])
    assert (others.num_modes, others.num_samples) == (2, 4)
    name = next(iter(tensors))
    assert torch.equal(others.to_arrays()[0][name], tensors[name][[4, 5, 2, 3]])
    joined = Prediction.join([first, three.take_modes(slice(1, None))])
    assert joined.num_modes == 3 and torch.equal(joined.mean, three.mean)
    with pytest.raises(ValueError, match="of the same kind.*2 and 1 samples per mode"):
        Prediction.join([three, pred])
    with pytest.raises(ValueError, match="of the same kind"):
        Prediction.join([three, three[:2]])
    with pytest.raises(ValueError, match="of the same kind"):
        Prediction.join([pred, mixture((6, 5, 4), df=3.0)])
    with pytest.raises(ValueError, match="empty"):
        Prediction.join([])
    with pytest.raises(IndexError):
        three.take_modes([3])
    with pytest.raises(IndexError, match="No mode of the 3"):
        three.take_modes(slice(3, None))


def test_files_without_modes_have_one_for_each_sample() -> None:
    for pred in (categorical((6, 5, 4)), mixture((6, 5, 2))):
        tensors, rest = modes_of(pred, 2).to_arrays()
        del rest["num_modes"]
        assert Prediction.from_arrays(tensors, rest).num_modes == 6


@pytest.mark.parametrize("wrong", [0, -1, 4, 7, 1.5])
def test_modes_have_equally_many_samples(wrong: Any) -> None:
    with pytest.raises(ValueError, match="must divide the number of samples, 6"):
        modes_of(categorical((6, 5, 4)), wrong)
    with pytest.raises(ValueError, match="must divide the number of samples, 6"):
        modes_of(mixture((6, 5, 4)), wrong)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 10**6), st.floats(0.0, 30.0))
@settings(max_examples=60, deadline=None)
def test_chain_rule_of_classes(modes: int, per_mode: int, seed: int, sharpness: float) -> None:
    """Both parts by their own formulas: entropies of the modes' means stand in between."""
    pred = modes_of(categorical((modes * per_mode, 3, 4), seed, sharpness), modes)
    means = pred.probs.unflatten(0, (modes, per_mode)).mean(1)
    inner = torch.special.entr(means).sum(-1).mean(0)
    close: Any = dict(rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(pred.within_modes, inner - pred.expected_entropy, **close)
    torch.testing.assert_close(pred.between_modes, pred.predictive_entropy - inner, **close)
    total = pred.within_modes + pred.between_modes
    torch.testing.assert_close(total, pred.mutual_information, **close)
    assert (pred.within_modes >= 0).all() and (pred.between_modes >= 0).all()
    assert (pred.between_modes <= math.log(modes) + 1e-9).all()


def test_split_of_densities() -> None:
    """Two far modes of two equal samples, and the other way round: log 2 here or there."""
    loc = torch.tensor([0.0, 0.0, 9.0, 9.0], dtype=torch.float64)[:, None, None]
    apart = MixturePrediction(loc, 0.1, num_modes=2)
    assert apart.between_modes.item() == pytest.approx(math.log(2), abs=1e-4)
    assert apart.within_modes.item() == pytest.approx(0.0, abs=1e-4)
    mixed = MixturePrediction(loc[[0, 2, 1, 3]], 0.1, num_modes=2)
    assert mixed.between_modes.item() == pytest.approx(0.0, abs=1e-4)
    assert mixed.within_modes.item() == pytest.approx(math.log(2), abs=1e-4)
    share = MixturePrediction(loc, 0.1, epistemic=0.75, num_modes=2)
    assert share.between_modes.item() == pytest.approx(math.log(2), abs=1e-4)
    assert share.within_modes.item() == pytest.approx(math.log(2), abs=1e-4)  # ½ log 4


def test_one_sample_per_mode_has_nothing_within() -> None:
    pred = categorical((3, 5, 4))
    assert (pred.within_modes == 0).all()
    assert torch.equal(pred.between_modes, pred.mutual_information)


def test_recalibration_keeps_modes() -> None:
    pred, labels = modes_of(categorical((6, 40, 3)), 2), torch.arange(40) % 3
    assert recalibrate(pred, labels, apply_to="samples")(pred).num_modes == 2
    assert recalibrate(pred, labels)(pred).num_modes == 1
    densities = modes_of(mixture((6, 40, 1)), 3)
    assert recalibrate(densities, torch.zeros(40), "scale")(densities).num_modes == 3
    assert densities.rescale(1.0, 2.0).num_modes == densities.double().num_modes == 3
