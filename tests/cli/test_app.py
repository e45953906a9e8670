"""The command line end to end: runs, resumes, fails and complains as documented."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from polymode._version import __version__
from polymode.cli import running
from polymode.cli.app import main
from polymode.cli.check import TRAINING

QUICK = ["--set", "epochs=2", "--set", "net.hidden=[8]"]
BOTH = ["--task", "two_moons", "--method", "map", "--method", "deep_ensemble", "--seeds", "0,1"]


def lines(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def without_times(path) -> list[dict]:
    found = lines(path)
    for line in found:
        line["cost"].pop("predict_seconds")
        line["cost"].pop("train_seconds")
    return found


def test_run_writes_everything_and_names_the_report(tmp_path, capsys):
    out = tmp_path / "a b"
    assert main(["run", *BOTH, *QUICK, "--out", str(out)]) == 0
    printed = capsys.readouterr()
    assert printed.out.rstrip().splitlines()[-1] == f"Report: {out / 'report.html'}"
    assert "two_moons, 2 seeds: mean ± s.e. over seeds" in printed.out
    assert "[4/4] deep_ensemble, seed 1" in printed.err
    names = {path.name for path in out.iterdir()}
    expected = {"results.jsonl", "config.json", "environment.json", "report.html", "predictions"}
    assert names == expected
    assert len(list((out / "predictions").iterdir())) == 4
    assert [(r["method"], r["seed"]) for r in lines(out / "results.jsonl")] == [
        ("map", 0),
        ("deep_ensemble", 0),
        ("map", 1),
        ("deep_ensemble", 1),
    ]
    assert json.loads((out / "environment.json").read_text())["versions"]["polymode"] == __version__
    assert json.loads((out / "config.json").read_text())["methods"]["map"]["epochs"] == 2


def test_same_command_skips_what_is_done_and_gives_equal_results(tmp_path, capsys):
    for name in ("a", "b"):
        assert main(["run", *BOTH, *QUICK, "--out", str(tmp_path / name), "-q"]) == 0
    first, second = (tmp_path / name / "results.jsonl" for name in ("a", "b"))
    assert without_times(first) == without_times(second)
    before = first.read_bytes()
    capsys.readouterr()
    assert main(["run", *BOTH, *QUICK, "--out", str(tmp_path / "a")]) == 0
    assert "4 of 4 cells done already" in capsys.readouterr().err
    assert first.read_bytes() == before


def test_report_from_files_alone_is_the_same(tmp_path, capsys):
    assert main(["run", *BOTH, *QUICK, "--out", str(tmp_path), "-q"]) == 0
    assert capsys.readouterr() == (f"Report: {tmp_path / 'report.html'}\n", "")
    first = (tmp_path / "report.html").read_bytes()
    (tmp_path / "report.html").unlink()
    assert main(["report", str(tmp_path)]) == 0
    assert (tmp_path / "report.html").read_bytes() == first
    assert main(["cite", str(tmp_path)]) == 0
    assert "lakshminarayanan2017" in capsys.readouterr().out


def test_a_failing_cell_is_recorded_and_the_rest_goes_on(tmp_path, capsys):
    options = ["--set", "deep_ensemble.lr=1e30", "--set", "deep_ensemble.optimizer=sgd"]
    assert main(["run", *BOTH, *QUICK, *options, "--out", str(tmp_path)]) == 1
    failures = lines(tmp_path / "failures.jsonl")
    assert [(f["method"], f["seed"]) for f in failures] == [
        ("deep_ensemble", 0),
        ("deep_ensemble", 1),
    ]
    assert "Divergence" in failures[0]["error"]
    assert "Traceback" in failures[0]["traceback"]
    assert len(lines(tmp_path / "results.jsonl")) == 2
    printed = capsys.readouterr()
    assert "2 cell(s) failed; see" in printed.err
    assert "FAILED, Divergence" in printed.err
    assert printed.out.rstrip().endswith("report.html")
    assert "2 cells failed" in (tmp_path / "report.html").read_text()


def test_all_cells_failing_is_said(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(running, "fit", lambda *a, **k: 1 / 0)
    assert main(["run", *BOTH, *QUICK, "--out", str(tmp_path)]) == 1
    assert "4 cell(s) failed" in capsys.readouterr().err
    assert main(["report", str(tmp_path)]) == 2
    assert "has no finished cell yet" in capsys.readouterr().err


def test_interrupt_says_how_to_resume_and_resuming_completes(tmp_path, monkeypatch, capsys):
    real, calls = running.fit, []

    def interrupted(*args, **kwargs):
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    monkeypatch.setattr(running, "fit", interrupted)
    assert main(["run", *BOTH, *QUICK, "--out", str(tmp_path)]) == 130
    error = capsys.readouterr().err
    assert "Interrupted after 2 of 4 cells. Resume: polymode run --task two_moons" in error
    monkeypatch.setattr(running, "fit", real)
    assert main(["run", *BOTH, *QUICK, "--out", str(tmp_path)]) == 0
    whole = tmp_path / "whole"
    assert main(["run", *BOTH, *QUICK, "--out", str(whole), "-q"]) == 0
    assert without_times(tmp_path / "results.jsonl") == without_times(whole / "results.jsonl")


def test_ctrl_c_in_the_middle_of_training_exits_130(tmp_path):
    """The signal comes once a long cell trains, which its folder shows; its checkpoint is kept."""
    words = ["run", *BOTH, "--set", "epochs=1000000", "--out", str(tmp_path)]
    process = subprocess.Popen(
        [sys.executable, "-m", "polymode", *words],
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        text=True,
    )
    assert process.stderr is not None
    assert "0 of 4 cells" in process.stderr.readline()
    while process.poll() is None and not list((tmp_path / "checkpoints").glob("*")):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Interrupted after 0 of 4 cells. Resume: polymode run" in error
    assert list((tmp_path / "checkpoints").rglob("*.safetensors"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rnu"], "No such command 'rnu'"),
        (["run", "--tsk", "digits"], "No such option: --tsk"),
        (["run", "--task", "digits"], "Missing option '--method'"),
        (["run", "--task", "digit", "--method", "map"], "Did you mean 'digits'?"),
        (["run", "--task", "digits", "--method", "mpa"], "Did you mean 'map'?"),
        (["run", "--task", "digits", "--method", "map", "--seeds", "x"], "--seeds takes"),
        (["list", "method"], "Did you mean 'methods'?"),
        (["cite", "deep_ensembel"], "Did you mean 'deep_ensemble'?"),
        (["report", "nowhere"], "nowhere is no folder of a run"),
    ],
)
def test_usage_errors_are_one_line_and_code_2(words, message, capsys):
    assert main(words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert message in printed.err
    assert printed.err.startswith("polymode: ")
    assert printed.err.count("\n") == 1


def test_a_full_disk_is_one_line_and_code_1(tmp_path, monkeypatch, capsys):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device", str(tmp_path / "results.jsonl"))

    monkeypatch.setattr("polymode.cli.folder.RunFolder.add", full)
    assert main(["run", *BOTH, *QUICK, "--out", str(tmp_path), "-q"]) == 1
    assert capsys.readouterr().err.endswith("results.jsonl: No space left on device\n")


@pytest.mark.parametrize(
    ("kind", "name"), [("methods", "map"), ("tasks", "digits"), ("metrics", "nll")]
)
def test_list(kind, name, capsys):
    assert main(["list", kind]) == 0
    assert f"\n{name} " in capsys.readouterr().out
    assert main(["list", kind, "zzz*"]) == 0
    assert name not in capsys.readouterr().out


def test_check_passes_and_says_so(capsys):
    assert main(["check"]) == 0
    out = capsys.readouterr().out
    assert out.count("\nok  ") == 5
    assert "All is well." in out


def test_check_fails_aloud(monkeypatch, capsys):
    monkeypatch.setitem(TRAINING, "prior_precision", 1.02)  # not the prior of the exact answer
    monkeypatch.setattr("polymode.cli.check._report", lambda: 1 / 0)
    assert main(["check"]) == 1
    out = capsys.readouterr().out
    assert "FAIL map finds" in out
    assert "FAIL a report can be written: ZeroDivisionError" in out
    assert "3 check(s) failed." in out


def test_help_leads_with_three_examples(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert out.index("polymode run --task digits") < out.index("Options:")
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"polymode {__version__}\n"
    assert main([]) == 2


def _modules_after(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint(' '.join(sys.modules), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return set(done.stderr.split())


def test_help_imports_no_torch():
    """The package itself must be lazy for this; the command line's own modules are tested below."""
    if "torch" in _modules_after("import polymode"):
        pytest.skip("`import polymode` imports torch, so its command must too")
    assert "torch" not in _modules_after("from polymode.cli.app import main; main(['--help'])")


def test_command_line_itself_imports_no_torch():
    """With the package stubbed, so that `polymode/__init__.py` does not count."""
    import polymode

    stub = (
        "import types; package = types.ModuleType('polymode');"
        f"package.__path__ = [{os.path.dirname(polymode.__file__)!r}];"
        "sys.modules['polymode'] = package\n"
        "from polymode.cli.app import main; main(['--help'])"
    )
    found = _modules_after(stub)
    assert not found & {"torch", "matplotlib", "jinja2", "sklearn", "numpy"}
