"""Predictions of pictures with a class at each pixel, in bounded memory."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import polymode as pm
from polymode.posterior import maps
from polymode.prediction.averages import Averages

STREAM = torch.Generator().manual_seed(0)
IMAGES = torch.randn(9, 2, 6, 7, generator=STREAM)
MASKS = (IMAGES.sum(1) > 0).long() + (IMAGES[:, 0] > 1).long()
MASKS[:, 0] = -100
MAPS = ("mean", "predictive_entropy", "expected_entropy", "mutual_information", "variance",
        "confidence", "total_epistemic_variance", "disagreement", "classes",
        "log_mean")  # fmt: skip
PICTURE = 2 * 3 * 42 * 4  # bytes: 2 samples of 3 classes at 42 pixels


@pytest.fixture(scope="module")
def post():
    task = pm.Task(train=(IMAGES, MASKS), likelihood="categorical")
    return pm.fit("deep_ensemble", net=lambda: nn.Conv2d(2, 3, 3, padding=1), task=task,
                  num_modes=2, epochs=1, progress="silent", strict=False)  # fmt: skip


pytestmark = pytest.mark.filterwarnings("ignore:doubtful posterior")


@pytest.mark.parametrize("held", [0, 3 * PICTURE, 2**30])
def test_maps_are_the_same_whatever_is_held(post, held, monkeypatch) -> None:
    """All samples, or averages from some picture on; one at a time or all together."""
    whole = post.predict(IMAGES)
    assert not isinstance(whole, Averages)
    monkeypatch.setattr(maps, "HELD", held)
    monkeypatch.setattr(maps, "AT_A_TIME", 2 * PICTURE)
    pred = post.predict(IMAGES)
    assert isinstance(pred, Averages) == (held < 2**30)
    assert len(pred) == 9 and pred.num_axes == 2
    part, rows = pred[2:5], pred.as_rows()
    seen, of_whole = pred.observations(MASKS), whole.observations(MASKS)
    assert torch.equal(seen.examples, of_whole.examples)
    assert torch.equal(seen.targets, of_whole.targets)
    for name in MAPS:
        expected = getattr(whole, name)
        assert torch.allclose(getattr(pred, name), expected, atol=1e-6), name
        assert torch.allclose(getattr(part, name), expected[2:5], atol=1e-6), name
        assert torch.allclose(getattr(rows, name), expected.flatten(0, 2), atol=1e-6), name
        observed = getattr(of_whole.prediction, name)
        assert torch.allclose(getattr(seen.prediction, name), observed, atol=1e-6), name
    logs = pred.log_prob(MASKS)
    assert torch.allclose(logs, whole.log_prob(MASKS), atol=1e-6, equal_nan=True)


def test_pictures_come_few_at_a_time(post, monkeypatch) -> None:
    """From arrays and from a loader with larger batches; the same numbers."""
    whole = post.predict(IMAGES)
    monkeypatch.setattr(maps, "AT_A_TIME", 2 * PICTURE)
    loader = DataLoader(TensorDataset(IMAGES, MASKS), batch_size=5)
    for source, sizes in ((IMAGES, [2, 2, 2, 2, 1]), (loader, [2, 2, 1, 2, 2])):
        parts = list(post.stream(source))
        assert [len(part) for part in parts] == sizes
        means = torch.cat([part.mean for part in parts])
        assert torch.allclose(means, whole.mean, atol=1e-6)
    assert [len(part) for part in post.stream(IMAGES, batch_size=1)] == [1] * 9
    monkeypatch.setattr(maps, "AT_A_TIME", 1)
    assert [len(part) for part in post.stream(IMAGES)] == [1] * 9


def test_averages_of_maps(post) -> None:
    averages = post.averages(IMAGES)
    assert isinstance(averages, Averages)
    assert averages.mutual_information.shape == (9, 6, 7)
    with pytest.raises(ValueError, match="holds averages over its samples and not the samples"):
        averages.joint_log_prob(MASKS)
