"""`polymode run` end to end: runs, resumes, fails, is interrupted and redone as documented."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time

import pytest

from polymode._version import __version__
from polymode.report import page as reports
from polymode.runs import cell as cells
from polymode.runs import estimate, running
from polymode.runs.lock import FolderLock
from polymode.runs.run_folder import RunFolder, without_times


def lines(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.cpu_seconds(30)
def test_run_writes_everything_and_names_the_report(tmp_path, command):
    """The same command twice: but for measured times to the byte the same, figures too."""
    out, second = tmp_path / "a b", tmp_path / "second"
    assert command.run(out) == 0
    assert command.out.rstrip().splitlines()[-1] == f"Report: {out / 'report.html'}"
    assert "two_moons, 2 seeds: mean ± s.e. over seeds" in command.out
    assert "4 cells, 0 done already, 4 to run: about " in command.err
    assert "[4/4] deep_ensemble, seed 1" in command.err
    _check_files(out)
    again = tmp_path / "sub" / "r.html"  # the report comes from the files alone
    assert command("report", str(out), "-o", str(again)) == 0
    assert command.out == f"Report: {again}\n"
    assert again.read_bytes() == (out / "report.html").read_bytes()
    assert command.run(second, "-q") == 0
    first_lines, lines_again = (without_times(run / "results.jsonl") for run in (out, second))
    assert first_lines == lines_again and len(first_lines) == 4
    figures, figures_again = (_untimed_figures(run / "report.html") for run in (out, second))
    assert figures == figures_again and len(figures) > 5


def _untimed_figures(page) -> list[str]:
    images = re.findall(r'<img src="(data:image/svg[^"]*)"[^>]*alt="([^"]*)"', page.read_text())
    return [image for image, alt in images if "training time" not in alt]


def _check_files(out) -> None:
    names = {path.name for path in out.iterdir()}
    assert names == {
        "results.jsonl", "config.json", "environment.json", "report.html", "predictions",
        "events.jsonl",
    }  # fmt: skip
    assert len(list((out / "predictions").iterdir())) == 4
    assert [(r["method"], r["seed"]) for r in lines(out / "results.jsonl")] == [
        ("map", 0),
        ("deep_ensemble", 0),
        ("map", 1),
        ("deep_ensemble", 1),
    ]
    assert json.loads((out / "environment.json").read_text())["versions"]["polymode"] == __version__
    config = json.loads((out / "config.json").read_text())
    assert config["methods"]["map"]["epochs"] == 2 and config["preset"] == "cpu"
    assert [cell["seed"] for cell in config["cells"]] == [0, 0, 1, 1]
    kinds = [event["kind"] for event in lines(out / "events.jsonl")]
    assert kinds == ["run", *["begin", "start", "end", "done"] * 4, "finished"]


def test_cite_knows_the_methods_of_a_run(finished, command):
    assert command("cite", str(finished)) == 0
    assert "mackay1992" in command.out and "lakshminarayanan2017" in command.out


def test_same_command_skips_what_is_done_and_gives_equal_results(
    tmp_path, command, finished, no_report
):
    """Two runs of one command differ in times alone, to the byte; predictions do not differ."""
    assert command.run(tmp_path, "-q") == 0
    path = tmp_path / "results.jsonl"
    assert without_times(path) == without_times(finished / "results.jsonl")
    for kept in (finished / "predictions").iterdir():
        assert kept.read_bytes() == (tmp_path / "predictions" / kept.name).read_bytes()
    assert (command.out, command.err) == (f"Report: {tmp_path / 'report.html'}\n", "")
    before = path.read_bytes()
    assert command.run(tmp_path) == 0
    assert "4 cells, 4 done already, 0 to run: nothing to run" in command.err
    assert path.read_bytes() == before


def test_more_seeds_are_added_and_their_time_is_known_from_those_before(copied, command, no_report):
    assert command.run(copied, "--seeds", "0-2") == 0
    assert "6 cells, 4 done already, 2 to run: about " in command.err
    assert "(from 4 finished cells)" in command.err
    assert len(RunFolder(copied).results()) == 6


def test_the_report_is_opened_in_a_browser(finished, command, monkeypatch):
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda address: bool(opened.append(address)))
    monkeypatch.setattr(reports, "report", lambda *a, **k: None)
    assert command("report", str(finished), "--open") == 0
    assert opened == [(finished / "report.html").as_uri()]
    assert "open the file yourself" in command.err


def test_a_report_that_cannot_be_made_does_not_hide_the_results(copied, command, monkeypatch):
    monkeypatch.setattr(reports, "report", lambda *a, **k: 1 / 0)
    assert command.run(copied) == 1
    assert "two_moons, 2 seeds" in command.out and "Report:" not in command.out
    assert "all results are kept, but there is no report: ZeroDivisionError" in command.err
    assert command.run(copied, "--json", "-q") == 1
    assert command.json()["report"] is None and command.json()["leaderboard"]["cells"]


def test_a_folder_that_another_process_writes_is_refused_in_one_line(tmp_path, command):
    with FolderLock(tmp_path / "LOCK"):
        assert command.run(tmp_path, "-q") == 2
    assert command.err.startswith(f"polymode: {tmp_path} is being written by process {os.getpid()}")
    assert len(command.err.splitlines()) == 1


def test_a_failing_cell_is_recorded_and_the_rest_goes_on(tmp_path, command, no_report):
    options = ["--set", "deep_ensemble.lr=1e30", "--set", "deep_ensemble.optimizer=sgd"]
    assert command.run(tmp_path, *options) == 1
    failures = lines(tmp_path / "failures.jsonl")
    assert [(f["method"], f["seed"]) for f in failures] == [
        ("deep_ensemble", 0),
        ("deep_ensemble", 1),
    ]
    assert "Divergence" in failures[0]["error"]
    assert "Traceback" in failures[0]["traceback"]
    assert failures[0]["options"]["lr"] == 1e30
    assert failures[0]["task"] == {"name": "two_moons", "num_test": 50}
    assert failures[0]["net"] == "mlp(hidden=[8])"
    assert len(lines(tmp_path / "results.jsonl")) == 2
    assert "2 cell(s) failed; see" in command.err
    assert "FAILED, Divergence" in command.err
    assert command.out.rstrip().endswith("report.html")
    assert command.run(tmp_path, *options, "--json") == 1  # failed cells are tried again
    assert command.json()["cells"] == {"cells": 4, "before": 2, "failed": 2}
    assert len(lines(tmp_path / "failures.jsonl")) == 4


def test_all_cells_failing_is_said(tmp_path, monkeypatch, command):
    monkeypatch.setattr(cells, "fit", lambda *a, **k: 1 / 0)
    assert command.run(tmp_path) == 1
    assert "4 cell(s) failed" in command.err
    assert command.run(tmp_path, "--json") == 1
    assert command.json()["leaderboard"] is None
    assert command("report", str(tmp_path)) == 2
    assert "has no finished cell yet" in command.err


def test_an_error_of_a_file_elsewhere_fails_the_cell_alone(
    tmp_path, monkeypatch, command, no_report
):
    real = cells.evaluate

    def missing(post, task, **options):
        if post.method == "map":
            raise FileNotFoundError(2, "No such file or directory", "/data/images.npz")
        return real(post, task, **options)

    monkeypatch.setattr(cells, "evaluate", missing)
    assert command.run(tmp_path) == 1
    assert "2 cell(s) failed" in command.err
    assert len(lines(tmp_path / "results.jsonl")) == 2


def test_json_is_all_there_is_on_stdout(tmp_path, command, no_report):
    assert command.run(tmp_path, "--json") == 0
    found = command.json()
    assert found["report"] == str(tmp_path / "report.html")
    assert found["cells"] == {"cells": 4, "before": 0, "failed": 0}
    board = {(c["entry"], c["dataset"], c["metric"]): c for c in found["leaderboard"]["cells"]}
    assert 0 < board["map", "test", "nll"]["mean"] and board["map", "test", "nll"]["n"] == 2
    assert "[4/4]" in command.err
    assert command.run(tmp_path, "--json", "-q") == 0
    assert command.err == "" and command.json()["cells"]["before"] == 4


def test_a_dry_run_writes_nothing(tmp_path, command):
    out = tmp_path / "x"
    assert command.run(out, "--dry-run") == 0
    assert "4 cells, 0 done already, 4 to run: about" in command.out
    assert "first steps of 2 methods timed; scoring comes on top" in command.out
    assert not out.exists()
    assert command.run(out, "--dry-run", "--json", "--jobs", "2") == 0
    plan = command.json()
    assert plan["seconds"] > 0 and [cell["todo"] for cell in plan["cells"]] == [True] * 4


def test_a_plan_without_a_speed_says_so(tmp_path, monkeypatch, command):
    monkeypatch.setattr("polymode.runs.estimate.fit", lambda *a, **k: 1 / 0)
    assert command.run(tmp_path / "x", "--dry-run") == 0
    assert "4 to run: no estimate before the first cell" in command.out


def test_fresh_redoes_all_and_the_last_line_counts(copied, monkeypatch, command, no_report):
    """Old results stay until new ones are there, also when Ctrl-C comes in between."""
    real, calls = cells.fit, []

    def interrupted(*args, **kwargs):
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    monkeypatch.setattr(cells, "fit", interrupted)
    assert command.run(copied, "--fresh", "-q") == 130
    assert len(lines(copied / "results.jsonl")) == 6
    assert len(RunFolder(copied).results()) == 4
    resume = command.err.split("Resume: ")[1]
    assert "--fresh" not in resume
    monkeypatch.setattr(cells, "fit", real)
    assert command.run(copied) == 0
    assert "4 cells, 2 done already, 2 to run" in command.err
    found = without_times(copied / "results.jsonl")
    assert len(found) == 8 and found[:4] == found[4:]
    assert command.run(copied) == 0
    assert "4 done already" in command.err


def test_interrupt_says_how_to_resume_and_resuming_completes(
    tmp_path, monkeypatch, command, finished, no_report
):
    real, calls = cells.fit, []

    def interrupted(*args, **kwargs):
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    monkeypatch.setattr(cells, "fit", interrupted)
    assert command.run(tmp_path, "--json") == 130
    assert "Interrupted after 2 of 4 cells. Resume: polymode run --task two_moons" in command.err
    assert command.json()["exit"] == 130
    monkeypatch.setattr(cells, "fit", real)
    assert command.run(tmp_path) == 0
    found = without_times(tmp_path / "results.jsonl")
    assert found == without_times(finished / "results.jsonl")


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("fit", "Interrupted before the first cell. Resume: polymode run"),
        ("report", "after the last cell, before the report. Resume: polymode"),
    ],
)
def test_ctrl_c_before_and_after_the_cells(tmp_path, monkeypatch, command, where, message):
    def stop(*args, **kwargs):
        raise KeyboardInterrupt("stopped after step 3")

    monkeypatch.setattr(estimate if where == "fit" else reports, where, stop)
    assert command.run(tmp_path) == 130
    assert message in command.err
    assert not (tmp_path / "LOCK").exists()


@pytest.mark.cpu_seconds(25)
def test_training_goes_on_from_its_checkpoint_and_the_time_adds_up(
    tmp_path, monkeypatch, command, no_report
):
    """Ctrl-C comes at a step past 500, as a true signal; what was trained before counts."""
    words = ["--task", "two_moons", "--method", "map", "--set", "epochs=1200", "--seeds", "0", "-q"]
    real, sent = running._Book.tell, []

    def tell(self, cell, news):
        real(self, cell, news)
        if not sent and getattr(news, "step", 0) > 500:
            sent.append(news)
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(running._Book, "tell", tell)
    assert command.run(tmp_path, *words, both=False) == 130
    assert "Interrupted after 0 of 1 cells. Resume: polymode run" in command.err
    assert list((tmp_path / "checkpoints").rglob("*.safetensors"))
    assert command.run(tmp_path, *words, both=False) == 0
    events = {event["kind"]: event for event in reversed(lines(tmp_path / "events.jsonl"))}
    assert events["resume"]["step"] >= events["stopped"]["step"] > 500
    result = lines(tmp_path / "results.jsonl")[0]
    assert result["cost"]["train_seconds"] > events["stopped"]["seconds"] > 0
    assert not (tmp_path / "checkpoints").exists()
    whole = tmp_path / "whole"
    assert command.run(whole, *words, both=False) == 0
    assert without_times(whole / "results.jsonl") == without_times(tmp_path / "results.jsonl")


@pytest.mark.cpu_seconds(15)
def test_ctrl_c_exits_130(tmp_path):
    """A process of its own, interrupted once its folder shows that a long cell trains."""
    words = "run --task two_moons --method map --set epochs=1000000 --out"
    process = subprocess.Popen(
        [sys.executable, "-m", "polymode", *words.split(), str(tmp_path)],
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        text=True,
    )
    while process.poll() is None and not list((tmp_path / "checkpoints").glob("*")):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Interrupted after 0 of 1 cells. Resume: polymode run" in error


@pytest.mark.cpu_seconds(10)
def test_a_full_disk_is_one_line_and_code_1_and_what_was_done_is_kept(tmp_path, command, no_report):
    """The system itself refuses to let a file grow beyond a limit, in the midst of a line."""
    words = ["--task", "two_moons", "--method", "map", "-q", "--seeds"]
    assert command.run(tmp_path, *words, "0", both=False) == 0
    line = (tmp_path / "results.jsonl").stat().st_size
    largest = max(path.stat().st_size for path in tmp_path.rglob("*"))
    fitting = int(1.5 * largest / line) + 1  # lines before the largest other file matters
    limit = int((fitting + 0.5) * line)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        code = command.run(tmp_path, *words, f"0-{fitting + 2}", both=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (code, command.out) == (1, "")
    assert command.err.count("\n") == 1
    assert f"cannot write to {tmp_path / 'results.jsonl'}: File too large" in command.err
    assert (tmp_path / "results.jsonl").read_bytes().endswith(b"\n")
    assert [r["seed"] for r in lines(tmp_path / "results.jsonl")] == list(range(fitting))
    assert command.run(tmp_path, *words, f"0-{fitting + 2}", both=False) == 0
    assert [r["seed"] for r in lines(tmp_path / "results.jsonl")] == list(range(fitting + 3))


def test_a_checkpoint_that_cannot_be_written_ends_the_run(tmp_path, monkeypatch, command):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("polymode.training.checkpoint.write_tensors", full)
    assert command.run(tmp_path, "-q", "--json") == 1
    assert "No space left on device; finished cells are kept" in command.json()["error"]
    assert not (tmp_path / "failures.jsonl").exists()


@pytest.mark.parametrize("out", ["/proc/polymode", "/dev/null/x"])
def test_a_folder_that_cannot_be_made(out, command, tmp_path):
    from pathlib import Path

    assert command.run(Path(out), "-q") == 2
    assert f"polymode: cannot write to {out}: " in command.err
    assert command.err.count("\n") == 1


def test_folders_of_other_releases_are_refused(copied, command, no_report):
    config = json.loads((copied / "config.json").read_text())
    before = (copied / "results.jsonl").read_bytes()
    for change, message in (
        ({"schema": 99}, "schema version 99, this polymode reads up to 2"),
        ({"version": "0.0.1"}, f"holds results of polymode 0.0.1, this is {__version__}"),
    ):
        (copied / "config.json").write_text(json.dumps({**config, **change}))
        assert command.run(copied, "-q", "--fresh") == 2
        assert message in command.err and command.err.count("\n") == 1
    assert (copied / "results.jsonl").read_bytes() == before
    assert command("report", str(copied)) == 0  # older results may be read


def test_the_usual_folder_names_the_preset(tmp_path, monkeypatch, command, no_report):
    monkeypatch.chdir(tmp_path)
    words = ["--task", "two_moons", "--method", "map", "--preset", "smoke", "-q"]
    assert command("run", *words) == 0
    assert command.out == "Report: runs/two_moons-smoke/report.html\n"
