"""The folder of a run: append, repair, order, round trip of predictions."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
import torch

from polymode.core.safe_files import FileProblem
from polymode.metrics.results import Cost, Kept, Results, Row
from polymode.prediction import CategoricalPrediction, MixturePrediction
from polymode.runs.archive import Stored, pack
from polymode.runs.run_folder import RunFolder, WriteProblem, without_times
from polymode.runs.settings import UsageProblem


def result(seed: int, nll: float = 0.1, method: str = "map") -> Results:
    rows = (Row("test", "nll", nll, "nats/example", "down", 4, None),)
    prediction = CategoricalPrediction(torch.randn(2, 4, 3).log_softmax(-1))
    return Results(
        task="t",
        method=method,
        net="mlp",
        seed=seed,
        config={"lr": 0.1},
        rows=rows,
        cost=Cost(1, 1, 3, 0.1, 4),
        kept={"test": Kept(prediction, torch.tensor([0, 1, 2, 0]))},
    )


def add(folder: RunFolder, key: str, results: Results) -> None:
    folder.add(key, results, pack(results.kept))


@pytest.fixture
def folder(tmp_path):
    opened = RunFolder(tmp_path / "run")
    with opened.writing({"task": "t"}):
        yield opened


def test_results_and_predictions_come_back(folder):
    first = result(0)
    add(folder, "k0", first)
    (read,) = folder.results(predictions=True)
    assert read == first
    kept = read.kept["test"]
    assert torch.equal(kept.prediction.log_probs, first.kept["test"].prediction.log_probs)
    assert torch.equal(kept.targets, first.kept["test"].targets)
    assert kept.inputs is None
    assert folder.done() == {"k0"}


def test_regression_predictions_come_back(tmp_path):
    prediction = MixturePrediction(torch.randn(2, 5, 1), torch.rand(2, 5, 1) + 0.1, 3.0)
    kept = {"odd/name:1": Kept(prediction, torch.randn(5, 1), torch.randn(5, 1))}
    path = tmp_path / "kept.npz"
    path.write_bytes(pack(kept))
    stored = Stored(path)
    assert list(stored) == ["odd/name:1"] and len(stored) == 1 and "test" not in stored
    read = stored["odd/name:1"]
    assert torch.equal(read.prediction.loc, prediction.loc)
    assert read.prediction.df == 3.0
    assert torch.equal(read.inputs, kept["odd/name:1"].inputs)


def test_predictions_are_never_unpickled(tmp_path):
    np.savez(tmp_path / "kept.npz", about=np.array([object()], dtype=object))
    with pytest.raises(FileProblem, match="holds object, which is not read"):
        Stored(tmp_path / "kept.npz")


@pytest.mark.parametrize("share", [0.0, 0.3, 0.999])
def test_a_line_cut_short_is_dropped_and_repaired(folder, share):
    add(folder, "k0", result(0))
    path = folder.path / "results.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + whole[: int(share * len(whole))])
    assert folder.done() == {"k0"}
    add(folder, "k1", result(1))
    assert folder.done() == {"k0", "k1"}
    assert path.read_bytes().startswith(whole)
    assert [each.seed for each in folder.results()] == [0, 1]


def test_a_long_line_without_an_end_is_repaired_too(folder):
    (folder.path / "failures.jsonl").write_bytes(b'{"key": "a"}\n' + b"x" * 200_000)
    folder.append("failures.jsonl", {"key": "b"})
    assert [line["key"] for line in folder.failures()] == ["a", "b"]
    (folder.path / "failures.jsonl").write_bytes(b"x" * 200_000)
    folder.append("failures.jsonl", {"key": "b"})
    assert [line["key"] for line in folder.failures()] == ["b"]


@pytest.mark.parametrize("line", [b"{broken\n", b"3\n", b"{}\n"])
def test_a_broken_line_in_the_middle_is_named_and_left_out(folder, line):
    add(folder, "k0", result(0))
    path = folder.path / "results.jsonl"
    path.write_bytes(line + path.read_bytes())
    assert [each.seed for each in folder.results()] == [0] and folder.done() == {"k0"}
    (problem,) = folder.damage()
    assert f"{path}, line 1 cannot be read" in problem
    folder.configure({}, [{"key": "k0"}, {"key": "k1"}])
    assert folder.damage() == [problem]
    add(folder, "k1", result(1))
    assert folder.damage() == []  # whichever cell it was of, all have results now


def test_a_changed_digit_is_found(folder):
    add(folder, "k0", result(0, nll=0.25))
    add(folder, "k1", result(1))
    path = folder.path / "results.jsonl"
    path.write_text(path.read_text().replace("0.25", "0.15"))
    assert folder.done() == {"k1"} and [each.seed for each in folder.results()] == [1]
    (problem,) = folder.damage()
    assert problem.startswith(f"{path}, line 1 was changed after it was written")
    add(folder, "k0", result(0, nll=0.25))
    assert folder.done() == {"k0", "k1"} and folder.damage() == []


def test_changed_predictions_are_found(folder):
    for seed in (0, 1):
        add(folder, f"k{seed}", result(seed))
    file = folder.path / "predictions" / "k0.npz"
    raw = file.read_bytes()
    for content in (raw[:-9], b"", raw[:100] + bytes([raw[100] ^ 1]) + raw[101:]):
        file.write_bytes(content)
        assert folder.done() == {"k1"}
        assert [each.seed for each in folder.results(predictions=True)] == [1]
        assert folder.damage() == [f"{file} was changed after it was written: its digest differs"]
    add(folder, "k0", result(0))
    assert folder.done() == {"k0", "k1"} and folder.damage() == []


def test_lines_of_before_there_were_digests_are_read(folder):
    for seed in (0, 1):
        add(folder, f"k{seed}", result(seed))
    path = folder.path / "results.jsonl"
    lines = [json.loads(text) for text in path.read_text().splitlines()]
    for line in lines:
        del line["digest"], line["predictions"]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert len(folder.results(predictions=True)) == 2 and folder.damage() == []
    file = folder.path / "predictions" / "k0.npz"
    raw = file.read_bytes()
    for content in (raw[:-9], b"", raw[:100] + bytes([raw[100] ^ 1]) + raw[101:]):
        file.write_bytes(content)
        assert folder.done() == {"k1"}
        (problem,) = folder.damage()
        assert str(file) in problem
    file.unlink()  # numbers without predictions are still numbers
    assert folder.done() == {"k0", "k1"}
    assert not folder.results(predictions=True)[0].kept


DEEP = "[" * 100_000


@pytest.mark.parametrize("line", ['{"key": ' + DEEP, '{"key": "k1", "schema": 2, "rows": 3}'])
def test_odd_lines_are_left_out(folder, line):
    add(folder, "k0", result(0))
    for name in ("results.jsonl", "events.jsonl", "failures.jsonl"):
        with open(folder.path / name, "a") as file:
            file.write(line + "\n")
    assert [each.seed for each in folder.results()] == [0] and folder.done() == {"k0"}
    assert "line 2 cannot be read" in folder.damage()[0]
    folder.events(), folder.failures()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (DEEP, "nested too deeply"),
        ('{"cells": null}', "`cells` must be a list of cells"),
        ('{"cells": [{"key": "../x"}]}', "`cells` must be a list of cells"),
        ('{"redo": [1]}', "`redo` must be an object of numbers"),
        ('{"redo": {"k0": "1"}}', "`redo` must be an object of numbers"),
        ('{"data": 3}', "`data` must be an object, got 3"),
        ('{"command": null}', "`command` must be text"),
    ],
)
def test_an_odd_config_is_refused(folder, content, message):
    add(folder, "k0", result(0))
    (folder.path / "config.json").write_text(content)
    for use in (folder.done, folder.results, folder.config, lambda: folder.check({})):
        with pytest.raises(UsageProblem, match=message):
            use()


def test_broken_events_cost_an_estimate_and_no_more(folder):
    folder.log("done", key="k", seconds=1)
    with open(folder.path / "events.jsonl", "ab") as file:
        file.write(b"{broken\n3\n")
    folder.log("done", key="l", seconds=2)
    assert [event["key"] for event in folder.events()] == ["k", "l"]


def test_a_write_that_fails_leaves_the_lines_before_it(folder, monkeypatch):
    add(folder, "k0", result(0))
    before = (folder.path / "results.jsonl").read_bytes()
    real = os.write

    def half(file, content):
        real(file, content[: len(content) // 2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("polymode.runs.run_folder.os.write", half)
    with pytest.raises(WriteProblem, match="No space left on device; finished cells are kept"):
        add(folder, "k1", result(1))
    monkeypatch.undo()
    assert (folder.path / "results.jsonl").read_bytes() == before


def test_the_last_of_two_runs_of_one_cell_counts(folder):
    add(folder, "old", result(0, nll=0.5))
    add(folder, "new", result(0, nll=0.1))
    (read,) = folder.results()
    assert read["test", "nll"].value == 0.1


def test_of_two_cells_with_one_setup_the_later_line_counts(folder):
    """Keys may change where what they are made of did; whichever cell was run last is shown."""
    add(folder, "old", result(0, nll=0.1))
    add(folder, "other", result(1, nll=0.2))
    add(folder, "new", result(0, nll=0.3))
    folder.configure({}, [{"key": "new"}, {"key": "old"}, {"key": "other"}])
    assert sorted((each.seed, each.rows[0].value) for each in folder.results()) == [
        (0, 0.3), (1, 0.2),
    ]  # fmt: skip
    add(folder, "old", result(0, nll=0.4))
    assert sorted(each.rows[0].value for each in folder.results()) == [0.2, 0.4]


def test_arrays_of_several_examinations_come_back_by_their_labels(folder):
    """Alike in their names, other in shapes and values; beside predictions."""
    examined = {
        "chains": {"values": np.arange(3.0), "steps": np.arange(2)},
        "pairs:samples=4": {"values": np.full((2, 2), 7.0)},
        "none": {},
    }
    found = result(0)
    folder.add("k0", found, pack(found.kept, examined))
    (read,) = folder.results(predictions=True)
    assert list(read.arrays) == list(examined)
    for label, arrays in examined.items():
        assert list(read.arrays[label]) == list(arrays)
        for name, array in arrays.items():
            assert np.array_equal(read.arrays[label][name], array)
    assert torch.equal(
        read.kept["test"].prediction.log_probs, found.kept["test"].prediction.log_probs
    )


def test_results_come_in_the_order_of_the_plan(folder):
    """Workers finish in any order, and methods may be added later; tables do not change places."""
    cells = [{"key": "b"}, {"key": "a"}]
    folder.configure({"data": {"task": "t"}}, cells)
    folder.configure({"data": {"task": "t"}}, [{"key": "c"}, {"key": "a"}])
    for key, method in (("c", "third"), ("a", "second"), ("x", "unknown"), ("b", "first")):
        add(folder, key, result(0, method=method))
    methods = [each.method for each in folder.results()]
    assert methods == ["first", "second", "third", "unknown"]


def test_cells_to_redo_are_not_done_until_they_have_a_new_line(folder):
    for key in ("a", "b"):
        add(folder, key, result(0, method=key))
    folder.configure({}, [], redo=["a", "b"])
    assert folder.done() == set() and len(folder.results()) == 2
    add(folder, "a", result(0, nll=0.3, method="a"))
    assert folder.done() == {"a"}
    folder.configure({}, [])  # a run that resumes keeps what is to be redone in mind
    assert folder.done() == {"a"}
    assert folder.results()[0]["test", "nll"].value == 0.3


def test_what_a_killed_run_left_is_swept(tmp_path):
    folder = RunFolder(tmp_path)
    with folder.writing({}):
        add(folder, "done", result(0))
    for key in ("done", "training"):
        folder.checkpoint(key).mkdir(parents=True)
    halves = [tmp_path / ".config.json.7.tmp", tmp_path / "predictions" / ".k.npz.7.tmp"]
    halves.append(folder.checkpoint("training") / ".training.safetensors.7.tmp")
    for half in halves:
        half.write_text("half")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / ".other.tmp").touch()
    (tmp_path / "checkpoints" / "link").symlink_to(elsewhere)
    with folder.writing({}):
        pass
    assert not any(half.exists() for half in halves)
    assert (elsewhere / ".other.tmp").exists()
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"training", "link"}
    assert folder.done() == {"done"}


@pytest.mark.parametrize("odd", ["..", "../../precious", ".", "", "{tmp}/precious", "a/b", 3])
def test_a_key_that_is_a_path_removes_nothing(tmp_path, odd):
    """A folder from someone else may name any path as the key of a finished cell."""
    folder, precious = RunFolder(tmp_path / "run"), tmp_path / "precious"
    with folder.writing({}):
        add(folder, "done", result(0))
    for place in (precious, folder.checkpoint("done"), folder.checkpoint("training")):
        place.mkdir(parents=True)
        (place / "file").write_text("kept")
    key = odd.format(tmp=tmp_path) if isinstance(odd, str) else odd
    lines = folder.path / "results.jsonl"
    lines.write_text(lines.read_text().replace('"done"', json.dumps(key)))
    with folder.writing({}):
        pass
    assert "results.jsonl, line 1 cannot be read" in folder.damage()[0]
    assert "is not the key of a cell" in folder.damage()[0]
    with pytest.raises(ValueError, match="is not the key of a cell"):
        folder.forget(key)
    assert (precious / "file").exists() and lines.exists()
    assert (folder.checkpoint("training") / "file").exists()


@pytest.mark.parametrize("name", ["checkpoints", "predictions", "results.jsonl", "LOCK"])
def test_a_link_out_of_the_folder_is_refused(tmp_path, name):
    """What is behind it would be removed, cut or written over."""
    run, precious = tmp_path / "run", tmp_path / "precious"
    run.mkdir()
    if "s.j" in name or name == "LOCK":
        precious.write_text("no newline")
    else:
        (precious / "done").mkdir(parents=True)
    (run / name).symlink_to(precious)
    with pytest.raises(UsageProblem, match=f"{name} is not a plain"):
        with RunFolder(run).writing({}):
            pass
    assert (precious / "done").is_dir() or precious.read_text() == "no newline"


def test_a_pipe_in_place_of_the_results_is_refused(tmp_path):
    os.mkfifo(tmp_path / "results.jsonl")
    with pytest.raises(UsageProblem, match="results.jsonl is not a plain file"):
        with RunFolder(tmp_path).writing({}):
            pass


def test_failures_that_were_made_good_do_not_count(folder):
    folder.append("failures.jsonl", {"key": "k0"})
    folder.append("failures.jsonl", {"key": "k1"})
    assert len(folder.failures()) == 2
    add(folder, "k0", result(0))
    assert len(folder.failures()) == 1


def test_other_data_are_refused(folder):
    folder.write("config.json", {"data": {"task": "t"}})
    folder.check({"task": "other"})  # no results yet, nothing to mix up
    add(folder, "k0", result(0))
    folder.check({"task": "t"})
    with pytest.raises(UsageProblem, match="holds results on task 't'.*choose another --out"):
        folder.check({"task": "other"})


def test_unwritable_folder_and_foreign_files(tmp_path, folder):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageProblem, match="cannot write to"):
        with RunFolder(tmp_path / "file").writing({}):
            pass
    (folder.path / "config.json").write_text("[]")
    with pytest.raises(UsageProblem, match="config.json cannot be read"):
        folder.read("config.json")
    (folder.path / "config.json").unlink()
    folder.append("results.jsonl", {"key": "k", "schema": 99})
    with pytest.raises(UsageProblem, match="schema version 99"):
        folder.results()


def test_without_times_is_all_but_times(folder):
    slow = result(0)
    add(folder, "k0", slow)
    add(folder, "k0", slow.replace(cost=slow.cost._replace(train_seconds=9.0, predict_seconds=8.0)))
    first, second = without_times(folder.path / "results.jsonl")
    assert first == second
    assert json.loads(first)["rows"][0]["value"] == 0.1
