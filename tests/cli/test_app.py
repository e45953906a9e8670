"""The command line as a newcomer meets it: help, lists, complaints, self-test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings

import pytest

from polymode._version import __version__
from polymode.cli.app import app, main
from polymode.cli.check import TRAINING


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rnu"], "No such command 'rnu'. Did you mean 'run'?"),
        (["run", "--tsk", "digits"], "No such option: --tsk. Did you mean '--task'?"),
        (["data", "get", "--form", "x"], "Did you mean '--from'?"),
        (["run", "--verbose"], "No such option: --verbose. See `polymode run --help`"),
        (["--verbose"], "No such option: --verbose. See `polymode --help`"),
        (["run", "digits"], "'digits' is a task, not a study: polymode run --task digits --method"),
        (["run", "digits", "--method", "map"], "polymode run --task digits --method map"),
        (["run", "map"], "'map' is a method, not a study: polymode run --task digits --method map"),
        (
            ["run", "--task", "digits", "--method", "map", "--set", "learning_rate=1"],
            "Unknown option 'learning_rate' for method 'map'. Did you mean 'lr'?",
        ),
        (["run", "--task", "digits"], "Missing option '--method'"),
        (["run", "--method", "map"], "Missing option '--task'"),
        (["run", "--task", "digit", "--method", "map"], "Did you mean 'digits'?"),
        (["run", "--task", "digits", "--method", "mpa"], "Did you mean 'map'?"),
        (["run", "--task", "digits", "--method", "map", "--seeds", "x"], "--seeds takes"),
        (["run", "--task", "digits", "--method", "map", "--seeds", "-1"], "of at least 0"),
        (["run", "--task", "digits", "--method", "map", "--jobs", "0"], "--jobs must be at least"),
        (["run", "--task", "digits", "--method", "map", "--preset", "smok"], "mean 'smoke'?"),
        (["run", "--task", "digits", "--method", "map", "--preset", "paper"], "no published set"),
        (["run", "--task", "digits", "--method", "map", "--device", "gpu"], "--device takes cpu"),
        (["run", "--task", "digits", "--method", "map", "--device", "cuda"], "sees no CUDA GPU"),
        (["run", "--task", "digits", "--method", "map", "--device", "mps"], "no MPS device"),
        (["list", "method"], "Did you mean 'methods'?"),
        (["cite", "deep_ensembel"], "Did you mean 'deep_ensemble'?"),
        (["report", "nowhere"], "nowhere is not the folder of a run"),
        (["table", "nowhere"], "nowhere is not the folder of a run"),
        (["compare", "nowhere"], "nowhere is not the folder of a run"),
    ],
)
def test_usage_errors_are_one_line_and_code_2(words, message, command):
    assert command(*words) == 2
    assert command.out == ""
    assert message in command.err
    assert command.err.startswith("polymode: ")
    assert command.err.count("\n") == 1
    if words[0] not in ("rnu", "data", "cite", "report"):
        assert command(*words, "--json") == 2
        assert message in command.json()["error"] and command.json()["exit"] == 2


def test_a_device_that_is_there_is_taken_by_number(monkeypatch):
    from polymode.runs.run_plan import check_device
    from polymode.runs.settings import UsageProblem

    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert [check_device(name) for name in ("cuda", "CUDA:1", "cpu:0")] == ["cuda", "cuda:1", "cpu"]
    with pytest.raises(UsageProblem, match="there is cuda:0 to cuda:1 here"):
        check_device("cuda:2")


@pytest.mark.parametrize(
    ("kind", "name", "fact"),
    [
        ("methods", "map", "bibtex"),
        ("tasks", "digits", "licence"),
        ("metrics", "nll", "unit"),
        ("nets", "lenet", "summary"),
    ],
)
def test_list(kind, name, fact, command):
    assert command("list", kind) == 0
    assert f"\n{name} " in command.out
    assert command("list", kind, f"{name[:2]}*", "--json") == 0
    entries = {entry["name"]: entry for entry in command.json()}
    assert entries[name][fact]
    assert command("list", kind, "zzz*") == 0
    assert command.out == "" and f"none of the {kind} matches 'zzz*'" in command.err
    assert command("list", kind, "zzz*", "--json") == 0
    assert command.json() == []


def test_warnings_take_one_line_and_are_said_once(command, tmp_path):
    idle = ["--set", "epochs=0", "--seeds", "0-1", "-q", "--out", str(tmp_path / "run")]
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("always")
        patch.setattr("polymode.report.page.write_report", lambda *given: None)
        assert command("run", "--task", "two_moons", "--method", "map", *idle) == 0
    (said,) = [line for line in command.err.splitlines() if "epochs=0" in line]
    assert (
        said.startswith("polymode: warning: epochs=0 with a function") and "fit(" not in command.err
    )


def test_ctrl_c_while_a_library_is_imported_takes_one_line(tmp_path):
    """The library turns the interrupt into an error of its own, as extension modules do."""
    (tmp_path / "torch.py").write_text(
        "import os, signal, time\n"
        "try:\n    os.kill(os.getpid(), signal.SIGINT)\n    time.sleep(30)\n"
        "except BaseException:\n    raise ImportError('half of torch') from None\n"
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    words = [sys.executable, "-m", "polymode", "list", "methods"]
    run = subprocess.run(
        words, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert (run.returncode, run.stderr) == (130, "polymode: interrupted\n")


def test_list_options_of_one_method_and_of_all(command):
    assert command("list", "options", "forde") == 0
    assert command.out.startswith("option ") and "\nalpha " in command.out
    assert command("list", "options", "--json") == 0
    found = {(entry["method"], entry["name"]): entry for entry in command.json()}
    assert found["swag", "samples_per_mode"]["default"] == "30"
    assert found["lit", "weight"]["allowed"] == "≥ 0"


@pytest.mark.parametrize("kind", ["methods", "options", "tasks", "studies", "metrics", "nets"])
def test_lists_fit_a_terminal_of_80_columns(kind, command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert command("list", kind) == 0
    assert max(map(len, command.out.splitlines())) <= 80


@pytest.mark.cpu_seconds(12)
def test_check_passes_and_says_so(command):
    assert command("check", "--json") == 0
    found = command.json()
    assert found["passed"] and found["versions"]["polymode"] == __version__
    assert len(found["checks"]) == 8
    assert command.err.count("ok  ") == 8


@pytest.mark.cpu_seconds(10)
def test_check_fails_aloud(monkeypatch, command):
    monkeypatch.setitem(TRAINING, "prior_precision", 1.02)  # not the prior of the exact answer
    monkeypatch.setattr("polymode.cli.check._report", lambda: 1 / 0)
    monkeypatch.setattr("polymode.cli.check._score", lambda *_: 0.5)
    assert command("check") == 1
    assert "FAIL map finds" in command.out
    assert "FAIL class scores match hand-worked values" in command.out
    assert "FAIL a report can be written: ZeroDivisionError" in command.out
    assert "6 check(s) failed." in command.out


def test_help_leads_with_examples(command):
    assert command("--help") == 0
    assert command.out.index("polymode run --task digits") < command.out.index("Options:")
    assert command.out.split("Options:")[0].count("\n    polymode ") == 3
    assert command("run", "--help") == 0
    assert command.out.split("Options:")[0].count("\n    polymode ") == 4
    assert command("--version") == 0
    assert command.out == f"polymode {__version__}\n"
    assert command() == 2


def test_the_flags_of_run_are_these():
    """A new hyperparameter is a `--set`, not a flag."""
    from typer.main import get_command

    run = get_command(app).commands["run"]  # type: ignore[attr-defined]
    assert [option.opts[-1] for option in run.params] == [
        "study", "--task", "--table", "--target", "--method", "--seeds", "--set", "--config",
        "--preset", "--part", "--net", "--examine", "--out", "--jobs", "--backend", "--address",
        "--device", "--fresh", "--dry-run", "--quiet", "--json",
    ]  # fmt: skip


@pytest.mark.cpu_seconds(10)
def test_output_into_a_closed_pipe_is_no_traceback():
    script = "import sys; from polymode.cli import main; sys.argv[1:] = ['list', 'tasks']; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    error = process.stderr.read()
    process.stderr.close()
    process.wait(60)
    assert b"Traceback" not in error


def _modules_after(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint(' '.join(sys.modules), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return set(done.stderr.split())


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["data", "--help"], ["--versio"]])
def test_help_and_typos_import_nothing_heavy(words):
    found = _modules_after(f"from polymode.cli.app import main; main({words!r})")
    heavy = {"torch", "matplotlib", "jinja2", "sklearn", "numpy", "scipy", "rich", "webbrowser"}
    assert not found & heavy


@pytest.mark.cpu_seconds(20)
def test_a_plain_run_imports_studies_and_plots_no_sooner_than_it_needs_them(tmp_path):
    """A run without its report needs neither."""
    words = "run --task two_moons --method map --set epochs=1 --set net.hidden=[8] -q --out".split()
    found = _modules_after(
        "from polymode.cli.app import main\n"
        "import polymode.cli.run_task as run_task\n"
        "run_task._write_report = lambda *_: True\n"
        f"main({[*words, str(tmp_path)]!r})"
    )
    assert "polymode.runs.running" in found
    assert not found & {"polymode.studies", "polymode.plots", "polymode.report", "matplotlib"}


def test_data_list_as_json(command, monkeypatch, tmp_path):
    monkeypatch.setenv("POLYMODE_DATA", str(tmp_path))
    assert command("data", "list", "*mnist", "--json") == 0
    found = {entry["name"]: entry for entry in command.json()["datasets"]}
    assert found["mnist"]["here"] is None and found["mnist"]["licence"]
    assert command.json()["folder"] == str(tmp_path)


def test_main_is_what_python_dash_m_runs():
    done = subprocess.run(
        [sys.executable, "-m", "polymode", "rnu", "--json"],
        capture_output=True,
        text=True,
        env=os.environ,
    )
    assert done.returncode == 2
    assert json.loads(done.stdout)["exit"] == 2
    assert main(["--version"]) == 0
