"""The folder of a run: append, repair, round trip of predictions."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch

from polymode.cli.arguments import UsageProblem
from polymode.cli.folder import RunFolder, _pack, _unpack
from polymode.metrics.results import Cost, Kept, Results, Row
from polymode.prediction import CategoricalPrediction, MixturePrediction


def result(seed: int, nll: float = 0.1) -> Results:
    rows = (Row("test", "nll", nll, "nats/example", "down", 4, None),)
    prediction = CategoricalPrediction(torch.randn(2, 4, 3).log_softmax(-1))
    kept = {"test": Kept(prediction, torch.tensor([0, 1, 2, 0]))}
    return Results("t", "map", "mlp", seed, {"lr": 0.1}, rows, Cost(1, 3, 0.1, 4), kept)


@pytest.fixture
def folder(tmp_path):
    opened = RunFolder(tmp_path / "run")
    opened.open({"task": "t"})
    return opened


def test_results_and_predictions_come_back(folder):
    first = result(0)
    folder.add("k0", first)
    (read,) = folder.results(predictions=True)
    assert read == first
    kept = read.kept["test"]
    assert torch.equal(kept.prediction.log_probs, first.kept["test"].prediction.log_probs)
    assert torch.equal(kept.targets, first.kept["test"].targets)
    assert kept.inputs is None
    assert folder.done() == {"k0"}


def test_regression_predictions_come_back():
    prediction = MixturePrediction(torch.randn(2, 5, 1), torch.rand(2, 5, 1) + 0.1, 3.0)
    kept = {"odd/name:1": Kept(prediction, torch.randn(5, 1), torch.randn(5, 1))}
    read = _unpack(_pack(kept))["odd/name:1"]
    assert torch.equal(read.prediction.loc, prediction.loc)
    assert read.prediction.df == 3.0
    assert torch.equal(read.inputs, kept["odd/name:1"].inputs)


def test_predictions_are_never_unpickled():
    file = io.BytesIO()
    np.savez(file, about=np.array([object()], dtype=object))
    with pytest.raises(ValueError, match="allow_pickle"):
        _unpack(file.getvalue())


def test_a_line_cut_short_is_dropped_and_repaired(folder):
    folder.add("k0", result(0))
    path = folder.path / "results.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + whole[: len(whole) // 2])
    assert folder.done() == {"k0"}
    folder.add("k1", result(1))
    assert folder.done() == {"k0", "k1"}
    assert path.read_bytes().startswith(whole)
    assert [each.seed for each in folder.results()] == [0, 1]


def test_a_broken_line_in_the_middle_is_named(folder):
    folder.add("k0", result(0))
    path = folder.path / "results.jsonl"
    path.write_bytes(b"{broken\n" + path.read_bytes())
    with pytest.raises(UsageProblem, match=r"results.jsonl, line 1 cannot be read"):
        folder.results()


def test_the_last_of_two_runs_of_one_cell_counts(folder):
    folder.add("old", result(0, nll=0.5))
    folder.add("new", result(0, nll=0.1))
    (read,) = folder.results()
    assert read["test", "nll"].value == 0.1


def test_failures_that_were_made_good_do_not_count(folder):
    folder.append("failures.jsonl", {"key": "k0"})
    folder.append("failures.jsonl", {"key": "k1"})
    assert folder.failures() == 2
    folder.add("k0", result(0))
    assert folder.failures() == 1


def test_other_data_are_refused(folder):
    folder.write("config.json", {"data": {"task": "t"}})
    folder.open({"task": "other"})  # no results yet, nothing to mix up
    folder.add("k0", result(0))
    folder.open({"task": "t"})
    with pytest.raises(UsageProblem, match="holds results on task 't'.*choose another --out"):
        folder.open({"task": "other"})


def test_unwritable_folder_and_foreign_files(tmp_path, folder):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageProblem, match="cannot write to"):
        RunFolder(tmp_path / "file").open({})
    (folder.path / "config.json").write_text("[]")
    with pytest.raises(UsageProblem, match="config.json cannot be read"):
        folder.read("config.json")
    folder.append("results.jsonl", {"key": "k", "schema": 99})
    with pytest.raises(UsageProblem, match="schema version 99"):
        folder.results()
