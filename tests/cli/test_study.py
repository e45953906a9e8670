"""`polymode run STUDY`: parts, resuming, tables, exit codes, complaints."""

from __future__ import annotations

import json

import pytest

from polymode.plots import Comparison
from polymode.report import page as reports
from polymode.runs.run_folder import without_times
from polymode.studies import STUDIES, Arm, Claim, Part, Study, Table

OPTIONS = {"epochs": 2, "num_modes": 2}


def _parts(preset):
    tiny = {"num_test": 50}
    arms = {
        "First": Arm("deep_ensemble", OPTIONS),
        "Other": Arm("deep_ensemble", {**OPTIONS, "lr": 0.1}),
    }
    net = {"hidden": [8]}
    shared = {"task": "two_moons", "net": "mlp", "net_options": net, "arms": arms}
    return {
        "one": Part(**shared, seeds=(0, 1), task_options=tiny, validation=True),
        "two": Part(**shared, seeds=(0,), task_options={"num_test": 60}),
    }


def _tables(runs):
    values = runs.values("one", "First", "test", "nll")
    line = ("First", f"{sum(values.values()):.6f}")
    table = Table("Sums", ("arm", "NLL"), (line,), "sum over seeds")
    return {"sums": table, "paper_sums": table._replace(title="Paper")} if values else {}


def _comparisons(preset, runs):
    """The paper says 0.3 ± 5 of everything, and under preset paper −9 ± 1."""
    paper, tolerance = (-9.0, 1.0) if preset == "paper" else (0.3, 5.0)
    values = list(runs.values("one", "First", "test", "nll").values())
    mean = sum(values) / len(values) if values else None
    return [Comparison("First, NLL", paper, None, mean, None, tolerance, "nats", "down")]


@pytest.fixture(scope="module", autouse=True)
def tiny_study():
    """A study of six cells that takes a blink."""
    STUDIES.register("tiny")(
        Study(
            title="A <b>tiny</b> study",
            paper="Nobody 2026",
            bibtex="@misc{nobody2026}",
            summary="nothing at all",
            parts=_parts,
            tables=_tables,
            figures=lambda runs: {},
            claims=lambda runs: [Claim("one: it runs", "yes", "yes", "holds")],
            comparisons=_comparisons,
        )
    )
    yield
    del STUDIES._entries["tiny"]


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    from polymode.cli.app import main

    out = tmp_path_factory.mktemp("study") / "tiny"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reports, "report", lambda board, path, **_: path.touch())
        assert main(["run", "tiny", "--preset", "smoke", "--out", str(out), "-q"]) == 0
    return out


def test_a_study_runs_its_parts_and_shows_them_together(done, command, no_report):
    assert {path.name for path in done.iterdir()} == {"one", "two", "study.json", "report.html"}
    cells = [json.loads(line) for line in (done / "one" / "results.jsonl").read_text().splitlines()]
    assert [(c["label"], c["seed"]) for c in cells] == [
        ("First", 0), ("Other", 0), ("First", 1), ("Other", 1),
    ]  # fmt: skip
    assert any(row["dataset"].startswith("val:noise") for row in cells[0]["rows"])
    other = json.loads((done / "two" / "results.jsonl").read_text().splitlines()[0])
    assert not any(row["dataset"].startswith("val:") for row in other["rows"])
    held = json.loads((done / "study.json").read_text())
    total = sum(
        row["value"] for c in cells if c["label"] == "First" for row in c["rows"]
        if (row["dataset"], row["metric"]) == ("test", "nll")
    )  # fmt: skip
    assert held["tables"]["sums"]["lines"] == [["First", f"{total:.6f}"]]
    assert held["runs"]["one"]["seeds"] == [0, 1] and held["runs"]["one"]["cells"] == 4
    assert held["comparisons"][0]["verdict"] == "reproduced"
    page = (done / "report.html").read_text()
    assert "&lt;b&gt;tiny&lt;/b&gt;" in page and "<b>tiny</b>" not in page
    assert "✓ holds" in page and "reproduced" in page
    before = without_times(done / "one" / "results.jsonl")
    assert (
        command("run", "tiny", "--preset", "smoke", "--out", str(done)) == 0
    )  # nothing is run again
    assert "4 cells, 4 done already, 0 to run" in command.err
    assert "Sums" in command.out and command.out.endswith(f"Report: {done / 'report.html'}\n")
    assert without_times(done / "one" / "results.jsonl") == before


def test_tables_of_a_study(done, command):
    assert command("table", str(done)) == 0
    assert "| First | " in command.out and "Paper" not in command.out
    assert command("table", str(done), "--paper") == 0
    assert "**Paper**" in command.out and "one: it runs" in command.out
    assert "| First, NLL | 0.300 |" in command.out
    assert command("table", str(done), "--paper", "--format", "latex") == 0
    assert r"\begin{tabular}{lrrrr}" in command.out
    assert command("table", str(done), "--paper", "--json") == 0
    assert [t["title"] for t in json.loads(command.out)] == [
        "Sums", "Paper", "Claims of the paper", "Paper and ours",
    ]  # fmt: skip
    assert command("table", str(done), "--format", "csv") == 0
    assert command.out.startswith("table,line,column,text\nSums,First,NLL,")


def test_verbs_know_a_study(done, command, tmp_path):
    assert command("list", "studies") == 0
    assert "tiny" in command.out and "one, two" in command.out and "forde" in command.out
    assert command("cite", "tiny") == 0 and command.out == "@misc{nobody2026}\n"
    assert command("cite", str(done)) == 0 and command.out == "@misc{nobody2026}\n"
    assert command("report", str(done), "-o", str(tmp_path / "r.html")) == 0
    assert (tmp_path / "r.html").read_bytes() == (done / "report.html").read_bytes()
    assert command("compare", str(done)) == 2
    assert "holds a study; give the folder of one of its parts" in command.err
    assert command("table", str(done / "one"), "--paper") == 2
    assert "holds no study, so there is no paper to compare with" in command.err


def test_outside_the_papers_tolerance_is_exit_code_3(tmp_path, command, no_report):
    out = str(tmp_path / "p")
    words = ["run", "tiny", "--preset", "paper", "--part", "one", "--seeds", "3", "--out", out]
    assert command(*words) == 3
    assert "1 of 1 numbers are outside the paper's tolerance" in command.err
    assert command(*words, "--json") == 3
    assert command.json()["exit"] == 3 and command.json()["outside"] == 1
    assert command("table", out, "--paper") == 3
    assert command("table", out) == 0


def test_a_failing_cell_is_exit_code_1_and_the_rest_goes_on(tmp_path, command, no_report):
    out = tmp_path / "f"
    words = ["run", "tiny", "--part", "one", "--seeds", "0", "--out", str(out)]
    assert command(*words, "--set", "Other.optimizer=sgd", "--set", "Other.lr=1e30") == 1
    assert "1 cell(s) failed; see failures.jsonl in one" in command.err
    (failed,) = (out / "one" / "failures.jsonl").read_text().splitlines()
    assert json.loads(failed)["options"]["lr"] == 1e30
    assert len((out / "one" / "results.jsonl").read_text().splitlines()) == 1
    assert command(*words) == 0  # what failed had other options; the cell of this study runs
    assert len((out / "one" / "results.jsonl").read_text().splitlines()) == 2


def test_ctrl_c_says_how_to_resume(tmp_path, command, no_report, monkeypatch):
    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("polymode.runs.running.run_cell", stop)
    out = str(tmp_path / "i")
    assert command("run", "tiny", "--preset", "smoke", "--seeds", "0,1", "--out", out) == 130
    expected = f"Resume: polymode run tiny --preset smoke --seeds 0,1 --out {out}"
    assert expected in command.err and "after 0 of 4 cells of part one" in command.err


def test_dry_run_writes_nothing(tmp_path, command):
    out = tmp_path / "d"
    assert command("run", "tiny", "--dry-run", "--json", "--out", str(out)) == 0
    assert {p: f["todo"] for p, f in command.json()["parts"].items()} == {"one": 4, "two": 2}
    assert not out.exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tinny"], "Unknown study 'tinny'. Did you mean 'tiny'?"),
        (["tiny", "--task", "digits"], "has its own tasks and methods; leave out --task"),
        (["tiny", "--part", "oen"], "Unknown part 'oen'. Did you mean 'one'?"),
        (["tiny", "--preset", "cup"], "Unknown preset 'cup'. Did you mean 'cpu'?"),
        (["tiny", "--set", "First.epoch=3"], "Unknown option 'epoch' for method 'deep_ensemble'"),
        (["tiny", "--set", "Frist.epochs=3"], "'Frist' is not part of this run. Did you mean"),
        (["tiny", "--seeds", "-1"], "--seeds takes numbers of at least 0"),
        (["--part", "one", "--task", "digits", "--method", "map"], "--part belongs to a study"),
    ],
)  # fmt: skip
def test_wrong_calls_are_one_line(words, said, command, tmp_path):
    assert command("run", *words, "--out", str(tmp_path / "w")) == 2
    assert said in command.err and len(command.err.splitlines()) == 1
    assert not (tmp_path / "w").exists()


def test_a_folder_of_another_study_or_preset_is_refused(done, command):
    assert command("run", "tiny", "--out", str(done)) == 2
    assert "holds study 'tiny', preset smoke; choose another --out" in command.err
    assert (
        command("run", "tiny", "--set", "task.num_test=70", "--preset", "smoke", "--out", str(done))
        == 2
    )
    assert "other data or options; choose another --out" in command.err


def test_missing_data_are_named_in_one_command(command, tmp_path, monkeypatch):
    monkeypatch.setenv("POLYMODE_DATA", str(tmp_path / "none"))
    assert command("run", "forde", "--out", str(tmp_path / "w")) == 2
    assert "polymode data get fashion_mnist cifar10" in command.err
    assert not (tmp_path / "w").exists()
