"""Runs side by side, and tables for papers, pages and programs."""

from __future__ import annotations

import csv
import io
import json
import math
import shutil

import pytest

from polymode.cli.comparing import compare_folders, difference_table, differences
from polymode.cli.formats import FORMATS
from polymode.metrics import compare
from polymode.metrics.results import Cost, Results, Row
from polymode.runs.run_folder import RunFolder

DATA = {"task": "t", "options": {}, "fingerprint": {"test": "abc"}}


def result(method: str, seed: int, nll: float | None, accuracy: float = 0.5, **config) -> Results:
    note = "" if nll is not None else "n/a (infinite)"
    rows = (
        Row("test", "accuracy", accuracy, "fraction", "up", 40, None),
        Row("test", "nll", nll, "nats/example", "down", 40, None, note),
    )
    cost = Cost(1, 1, 3, 0.1, 40)
    return Results("t", method, "mlp", seed, {"lr": 0.1, **config}, rows, cost)


def folder(path, *results: Results, data=DATA) -> RunFolder:
    opened = RunFolder(path)
    with opened.writing(data):
        opened.configure({"data": data}, [])
        for number, each in enumerate(results):
            opened.add(f"{path.name}{number}", each, b"")
    return opened


def test_differences_are_paired_by_seed(tmp_path):
    """Seeds 0 and 1: map is behind by 0.1 and 0.3, so by 0.2 with a standard error of 0.1."""
    runs = [
        folder(tmp_path / "a", result("map", 0, 0.4), result("map", 1, 0.8)),
        folder(tmp_path / "b", result("best", 0, 0.3), result("best", 1, 0.5)),
    ]
    board = compare_folders(runs)
    gap = {g["metric"]: g for g in differences(board)}["nll"]
    assert (gap["entry"], gap["reference"], gap["n"]) == ("map", "best", 2)
    assert math.isclose(gap["mean"], 0.2) and math.isclose(gap["standard_error"], 0.1)
    assert gap["clear"] is False and gap["low"] < 0 < gap["high"]


def test_seeds_of_one_setup_in_two_folders_are_one_entry(tmp_path):
    runs = [
        folder(tmp_path / "a", result("map", 0, 0.4)),
        folder(tmp_path / "b", result("map", 1, 0.8)),
    ]
    (entry,) = compare_folders(runs).entries
    assert entry.seeds == [0, 1]
    assert differences(compare_folders(runs)) == []


def test_the_same_cell_in_two_folders_is_told_apart_by_the_folder(tmp_path):
    runs = [folder(tmp_path / name, result("map", 0, 0.4)) for name in "ab"]
    labels = compare_folders(runs).labels
    assert labels == [f"map (run={tmp_path / name})" for name in "ab"]


def test_folders_on_other_data_are_refused(tmp_path, command):
    folder(tmp_path / "a", result("map", 0, 0.4))
    folder(tmp_path / "b", result("map", 1, 0.4), data={**DATA, "task": "u"})
    folder(tmp_path / "c")
    assert command("compare", str(tmp_path / "a"), str(tmp_path / "b")) == 2
    assert "different tasks, data or task options; their numbers cannot be compared" in command.err
    assert command("compare", str(tmp_path / "a"), str(tmp_path / "c")) == 2
    assert "c has no finished cell yet" in command.err


def test_compare_as_text_and_as_json(finished, tmp_path, command):
    shutil.copytree(finished, tmp_path / "copy")
    assert command("compare", str(finished), str(finished)) == 0
    assert "minus " in command.out and "paired over shared seeds" in command.out
    assert command("compare", str(finished), str(tmp_path / "copy"), "--json") == 0
    found = command.json()
    assert len(found["seeds"]) == 4  # two methods, twice
    assert {gap["dataset"] for gap in found["differences"]} == {"test"}
    assert all(gap["entry"] != gap["reference"] for gap in found["differences"])


def test_differences_and_leaderboard_have_one_verdict():
    """With nine tests a gap that is clear by itself is not clear; both tables must say so."""
    base, gaps = [0.10, 0.11, 0.09, 0.10], [0.012, 0.018, 0.010, 0.020]
    values = {"best": base, "near": [v + g for v, g in zip(base, gaps, strict=True)]}
    for k in range(2, 10):
        wide = (0.04, 0.09, 0.01, 0.1)
        values[f"m{k}"] = [v + k * d for v, d in zip(base, wide, strict=True)]
    values["far"] = [v + 3 for v in base]
    results = [result(m, s, v, 1 - v) for m, vs in values.items() for s, v in enumerate(vs)]
    board = compare([*results, result("alone", 9, 0.2, 0.2)])
    found = {(g["entry"], g["metric"]): g for g in differences(board)}
    assert found["near", "nll"]["low"] > 0  # clear, if it were the only one
    for (label, metric), gap in found.items():
        cell = board[label, "test", metric]
        assert board[gap["reference"], "test", metric].best
        assert gap["clear"] == (not cell.tied and not cell.untested)
    assert not found["near", "nll"]["clear"] and found["far", "nll"]["clear"]
    lines = {
        line.split()[0]: line
        for line in difference_table(board, differences(board)).split("\n")[3:]
    }
    assert lines["best"].split() == ["best", "*", "*"]
    assert lines["near"].endswith("≈") and lines["far"].rstrip()[-1].isdigit()
    assert lines["alone"].split() == ["alone", "n/a?", "n/a?"]


def test_folders_whose_results_are_on_other_data_are_refused(tmp_path, command):
    for name, mark in (("a", "x"), ("b", "y")):
        folder(tmp_path / name, result(name, 0, 0.4).replace(data={"test": mark}))
    assert command("compare", str(tmp_path / "a"), str(tmp_path / "b")) == 2
    assert "'test' is different data for a, seed 0, and b, seed 0" in command.err


@pytest.fixture
def board():
    rows = [
        result("map", 0, 0.25, 0.75),
        result("map", 1, 0.35, 0.85),
        result("map", 2, 0.3, 0.8),
        result("a_b|<i>&", 0, 0.1, 0.75),
        result("a_b|<i>&", 1, 0.1, 0.75),
        result("a_b|<i>&", 2, 0.1, 0.75),
        result("broken", 0, None),
        result("near", 0, 0.1),
        result("near", 1, 0.3),
        result("near", 2, 0.2),
    ]
    return compare(rows)


def test_markdown(board):
    text = FORMATS["md"](board, False)
    lines = text.splitlines()
    assert lines[0].startswith("t, 1 to 3 seeds: mean ± s.e. over seeds, of one seed over examples")
    assert "best in bold; ≈ not clearly worse; ? too few seeds" in lines[0]
    assert "| test, n = 40 | accuracy ↑ | NLL ↓ |" in lines
    assert "| map | **0.800 ± 0.029** | 0.3000 ± 0.0289 |" in lines
    assert "| a\\_b\\|\\<i\\>& | 0.750 ± 0.000 ≈ | **0.1000 ± 0.0000** |" in lines
    assert "| broken | 0.500 ? | n/a |" in lines
    assert "| near | 0.500 ± 0.000 | 0.2000 ± 0.0577 ≈ |" in lines


def test_latex(board):
    text = FORMATS["latex"](board, False)
    assert text.startswith("% t, 1 to 3 seeds")
    assert r"test, n = 40 & accuracy $\uparrow$ & NLL $\downarrow$ \\" in text
    assert r"a\_b|<i>\& & $0.750 \pm 0.000 \approx$ & $\mathbf{0.1000 \pm 0.0000}$ \\" in text
    assert r"broken & $0.500 ?$ & n/a \\" in text
    assert text.count(r"\begin{tabular}{lrr}") == text.count(r"\end{tabular}") == 1
    assert text.count("{") == text.count("}")


def test_csv_and_json_have_every_number(board):
    rows = list(csv.DictReader(io.StringIO(FORMATS["csv"](board, False))))
    assert len(rows) == 8
    row = next(r for r in rows if (r["entry"], r["metric"]) == ("map", "nll"))
    assert float(row["mean"]) == pytest.approx(0.3) and row["unit"] == "nats/example"
    assert json.loads(FORMATS["json"](board, False))["task"] == "t"


@pytest.mark.parametrize("name", ["md", "latex", "csv", "json"])
def test_tables_of_a_run(finished, command, name):
    assert command("table", str(finished), "--format", name, "--full") == 0
    assert "deep" in command.out and command.out.endswith("\n")
    assert command("table", str(finished), "--format", name + "x") == 2
    assert f"Did you mean '{name}'?" in command.err
    assert command("table", str(finished), "--json") == 0
    assert command.json()["task"] == "two_moons"
