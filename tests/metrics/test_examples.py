"""The examples that `evaluate` keeps: the extremes, in bounded bytes, with inputs as they were."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import polymode as pm
from polymode.likelihoods.scaling import Scaling
from polymode.metrics import examples
from polymode.metrics.examples import Examples, pictured, surely_wrong, telling, uncertainty
from polymode.prediction import CategoricalPrediction, MixturePrediction


def classes(count: int, size: int = 4, seed: int = 0) -> tuple[CategoricalPrediction, torch.Tensor]:
    stream = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(2, count, size, generator=stream)
    return CategoricalPrediction.from_logits(logits), torch.randint(
        size, (count,), generator=stream
    )


def test_telling_examples_are_those_of_a_sort():
    prediction, labels = classes(50)
    unsure, wrong = telling(prediction, labels, 5)
    entropy = prediction.predictive_entropy
    assert unsure.tolist() == sorted(range(50), key=lambda i: -float(entropy[i]))[:5]
    missed = [i for i in range(50) if prediction.classes[i] != labels[i]]
    assert wrong.tolist() == sorted(missed, key=lambda i: -float(prediction.confidence[i]))[:5]


def test_a_perfect_method_has_no_wrong_examples():
    prediction, _ = classes(10)
    unsure, wrong = telling(prediction, prediction.classes)
    assert len(unsure) == 6 and len(wrong) == 0


def test_regressions_are_judged_by_their_worst_target():
    mean = torch.zeros(1, 3, 2)
    prediction = MixturePrediction(mean, torch.tensor([[[1.0, 1.0], [1.0, 3.0], [2.0, 1.0]]]))
    targets = torch.tensor([[0.0, 4.0], [0.0, 1.0], [0.0, 0.0]])
    assert uncertainty(prediction).tolist() == [1.0, 9.0, 4.0]
    assert surely_wrong(prediction, targets).tolist() == pytest.approx([4.0, 1 / 3, 0.0])


@pytest.mark.parametrize("batch", [7, 100])
def test_batches_give_what_the_whole_gives(batch):
    """More than `PARTS` batches of 7, so that candidates are thinned out on the way."""
    prediction, labels = classes(100)
    x = torch.arange(100.0)[:, None]
    collected = Examples()
    for start in range(0, 100, batch):
        part = slice(start, start + batch)
        collected.add(prediction[part], labels[part], lambda places, p=part: x[p][places])
    kept = collected.kept()
    wanted = torch.cat(telling(prediction, labels)).unique()
    assert sorted(kept.inputs.flatten().tolist()) == wanted.tolist()
    first = telling(kept.prediction, kept.targets)[0][0]
    assert kept.inputs[first, 0] == float(prediction.predictive_entropy.argmax())


def test_bytes_are_bounded(monkeypatch):
    prediction, labels = classes(40)
    for numbers, most in ((10, 6), (2**16, 2), (2**20, 0)):  # float32: 4 bytes each
        collected = Examples()
        collected.add(prediction, labels, lambda places, n=numbers: torch.zeros(len(places), n))
        kept = collected.kept()
        assert (kept is None) == (most == 0)
        if kept is not None:
            assert kept.inputs.nbytes <= examples.BYTES
            assert most <= len(kept.inputs) <= 2 * most


def test_large_pictures_are_averaged_down():
    x = torch.rand(2, 3, 256, 128, dtype=torch.float64)
    small = pictured(x)
    assert small.shape == (2, 3, 64, 64) and small.dtype == torch.float32
    torch.testing.assert_close(small[0, 0, 0, 0], x[0, 0, :4, :2].mean().float())


@pytest.mark.parametrize("loader", [False, True])
def test_evaluate_keeps_them_with_inputs_as_they_were(loader):
    """Scaling is undone; a loader in random order gives the same as arrays."""
    stream = torch.Generator().manual_seed(1)
    raw = 100 + 5 * torch.randn(60, 3, generator=stream)
    y = (raw[:, 0] > 100).long()
    scaling = Scaling.of(raw)
    data = scaling(raw), y
    test = DataLoader(TensorDataset(*data), batch_size=9, shuffle=True) if loader else data
    task = pm.Task(
        train=data, test=test, likelihood="categorical", input_scaling=scaling,
        class_names=["low", "high"],
    )  # fmt: skip
    post = pm.fit("map", net=pm.nets.mlp, task=task, epochs=2, progress="silent")
    results = pm.evaluate(post, task)
    kept = results.kept["examples"]
    assert results.class_names == ("low", "high")
    whole = post.predict(data[0])
    wanted = torch.cat(telling(whole, y)).unique()
    found = [int((raw - x).abs().sum(1).argmin()) for x in kept.inputs]
    assert sorted(found) == wanted.tolist()
    torch.testing.assert_close(kept.inputs, raw[found])
    assert torch.equal(kept.targets, y[found])
    assert "examples" not in pm.evaluate(post, task, keep=("test",)).kept
