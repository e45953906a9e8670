"""`--examine`: findings in the folder, in JSON and in the report; keys, files, complaints."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pytest

from polymode.core.options import Config, option
from polymode.examinations import EXAMINATIONS, Findings, findings_of, measure
from polymode.runs.run_folder import RunFolder

ONE = ["--task", "two_moons", "--method", "map"]


@dataclass(frozen=True, kw_only=True)
class Counting(Config):
    """Options of `counting`."""

    power: int = option(1)


def _count(post, task, options):
    weights = np.array([post.stack.num_parameters**options.power], dtype=float)
    return Findings((measure("size", float(weights[0]), n=1, direction="up"),), {"w": weights})


@pytest.fixture(autouse=True)
def counting():
    about = {"summary": "counts", "measures": {"size": "number of weights"}}
    EXAMINATIONS.register("counting", options=Counting, **about)(_count)
    yield
    del EXAMINATIONS._entries["counting"]


def run(command, out, *words) -> int:
    return command.run(out, *ONE, *words, both=False)


def test_findings_are_kept_with_the_cell_and_shown(tmp_path, command):
    asked = ["--examine", "counting", "--examine", "counting:power=2"]
    assert run(command, tmp_path, *asked, "--json") == 0
    cells = {
        c["dataset"]: c["mean"]
        for c in command.json()["leaderboard"]["cells"]
        if c["metric"] == "size"
    }
    size = cells["examined:counting"]
    assert cells == {"examined:counting": size, "examined:counting:power=2": size**2}
    assert "--examine counting --examine counting:power=2" in command.json()["command"]
    (results,) = RunFolder(tmp_path).results(predictions=True)
    found = findings_of(results)
    assert found["counting:power=2"].arrays["w"].tolist() == [size**2]
    assert set(results.kept) >= {"test"} and "counting" not in results.kept
    page = (tmp_path / "report.html").read_text()
    assert 'id="examinations"' in page and "counting:power=2: counts" in page
    assert "number of weights" in page
    assert "map, one member: train loss" in page  # unasked, of every run that trains
    assert command("table", str(tmp_path)) == 0 and "counting" not in command.out
    assert command("table", str(tmp_path), "--full") == 0 and "counting:power=2" in command.out


def test_an_examination_that_is_added_is_run_and_no_other_cell_again(tmp_path, command, no_report):
    assert run(command, tmp_path, "-q") == 0
    assert run(command, tmp_path) == 0 and "1 done already" in command.err
    assert run(command, tmp_path, "--examine", "counting") == 0
    assert "0 done already, 1 to run" in command.err
    assert run(command, tmp_path, "--examine", "counting") == 0 and "1 done already" in command.err
    (results,) = RunFolder(tmp_path).results()
    assert results.get("examined:counting", "size") is not None


def test_loss_curves_are_made_of_every_cell_that_trains_asked_for_or_not(
    tmp_path, command, no_report
):
    assert run(command, tmp_path, "-q") == 0
    assert run(command, tmp_path, "--examine", "convergence") == 0
    assert "1 done already, 0 to run" in command.err
    (results,) = RunFolder(tmp_path).results(predictions=True)
    found = findings_of(results)["convergence"]
    assert found["train_loss"].value == pytest.approx(float(found.arrays["train loss"][-1, 0]))
    assert run(command, tmp_path / "untrained", "--set", "epochs=0", "-q") == 0
    (results,) = RunFolder(tmp_path / "untrained").results()
    assert findings_of(results) == {}


def test_a_file_may_ask_for_examinations(tmp_path, command, no_report):
    file = tmp_path / "c.toml"
    file.write_text('task = "two_moons"\nmethod = "map"\nexamine = "counting"\n')
    assert command.run(tmp_path / "x", "--config", str(file), both=False) == 0
    config = json.loads((tmp_path / "x" / "config.json").read_text())
    assert config["examine"] == ["counting"]
    file.write_text('task = "two_moons"\nmethod = "map"\nexamine = 3\n')
    assert command.run(tmp_path / "y", "--config", str(file), both=False) == 2
    assert "`examine` must be a name or a list of names" in command.err


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("countng", "Unknown examination 'countng'. Did you mean 'counting'?"),
        ("counting:powr=2", "Unknown option 'powr' for examination 'counting'. Did you mean"),
        ("counting:2", "NAME:key=value,key=value, got 'counting:2'"),
    ],
)
def test_mistakes_are_one_line_before_anything_runs(tmp_path, command, asked, said):
    assert run(command, tmp_path / "w", "--examine", asked) == 2
    assert said in command.err and len(command.err.splitlines()) == 1
    assert not (tmp_path / "w").exists()


def test_an_examination_that_fails_fails_its_cell(tmp_path, command, no_report, monkeypatch):
    def fail(post, task, *, power=1):
        raise RuntimeError("no weights here")

    entry = EXAMINATIONS._entries["counting"]
    monkeypatch.setitem(EXAMINATIONS._entries, "counting", type(entry)("counting", fail, {}))
    assert run(command, tmp_path, "--examine", "counting") == 1
    (failed,) = (tmp_path / "failures.jsonl").read_text().splitlines()
    assert "no weights here" in json.loads(failed)["error"]
    assert (tmp_path / "results.jsonl").read_text() == ""


def test_list_examinations(command):
    assert command("list", "examinations") == 0
    assert "counting" in command.out and "power=1" in command.out
    assert command("list", "examinations", "count*", "--json") == 0
    (entry,) = command.json()
    assert entry["measures"] == {"size": "number of weights"}


@pytest.mark.filterwarnings("default:map is not examined")
@pytest.mark.parametrize("asked", ["chains", "evidence", "pairs"])
def test_what_does_not_apply_to_a_posterior_is_left_out_and_its_scores_stay(
    tmp_path, command, no_report, asked
):
    """One network has no chains, no evidence and no pairs."""
    assert run(command, tmp_path, "-q", "--examine", asked) == 0
    assert f"warning: map is not examined by '{asked}': " in command.err
    (results,) = RunFolder(tmp_path).results()
    assert results.get("test", "nll") is not None
    assert asked not in findings_of(results)
    assert run(command, tmp_path, "--examine", asked) == 0 and "1 done already" in command.err
