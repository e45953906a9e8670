"""Stored predictions: read when they are asked for, and again only where that is needed."""

from __future__ import annotations

import os

import pytest
import torch

from polymode.metrics.results import Kept
from polymode.prediction import CategoricalPrediction
from polymode.runs import archive
from polymode.runs.archive import Stored, _Recent, pack


def kept(seed: int) -> Kept:
    stream = torch.Generator().manual_seed(seed)
    probs = torch.rand(2, 5, 3, generator=stream)
    prediction = CategoricalPrediction.from_probs(probs / probs.sum(-1, keepdim=True))
    return Kept(prediction, torch.arange(5) % 3, None)


@pytest.fixture
def readings(monkeypatch) -> list[str]:
    """The names of the arrays that are read, file by file."""
    names: list[str] = []
    read = archive.read_npz

    def noted(path, wanted, **options):
        names.append(" ".join(wanted := list(wanted)))
        return read(path, wanted, **options)

    monkeypatch.setattr(archive, "read_npz", noted)
    return names


def test_whether_there_is_a_prediction_is_told_without_reading_it(tmp_path, readings) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(pack({"test": kept(0), "ood:ring": kept(1)}))
    stored = Stored(path)
    readings.clear()
    assert "test" in stored and "train" not in stored and list(stored) == ["test", "ood:ring"]
    assert readings == []


def test_a_prediction_is_read_again_only_if_its_file_has_changed(tmp_path, readings) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(pack({"test": kept(0)}))
    first = Stored(path)["test"]
    torch.testing.assert_close(first.prediction.log_probs, kept(0).prediction.log_probs)
    readings.clear()
    assert Stored(path)["test"].prediction is first.prediction
    assert readings == ["about"]  # each opening looks whether the file is one
    path.write_bytes(pack({"test": kept(1)}))
    os.utime(path, ns=(0, 10**9))
    other = Stored(path)["test"].prediction
    torch.testing.assert_close(other.log_probs, kept(1).prediction.log_probs)


def test_what_was_read_last_is_held_up_to_so_many_bytes() -> None:
    recent, values = _Recent(most=10), [kept(seed) for seed in range(4)]
    for number, size in ((0, 4), (1, 4)):
        recent.put((number,), values[number], size)
    assert recent.get((0,)) is values[0]  # now 1 is the oldest
    recent.put((2,), values[2], 4)
    assert recent.get((1,)) is None and recent.get((0,)) is values[0]
    assert recent.get((2,)) is values[2]
    recent.put((3,), values[3], 11)  # larger than all there is
    assert recent.get((3,)) is None and recent.get((0,)) is values[0]
    recent.put((0,), values[0], 4)  # again: counted once
    recent.put((4,), values[3], 2)
    assert recent.get((2,)) is values[2]
