"""Experiments of a study: functions that fit nothing, as cells like all others."""

from __future__ import annotations

import json

import numpy as np
import pytest

from polymode.plots import size_curve
from polymode.runs.run_folder import RunFolder, without_times
from polymode.studies import STUDIES, Arm, Claim, Experiment, Part, Study, Table

MODULE = '''
import numpy as np
from polymode.examinations import Findings, measure

CALLS = []

def means(seed, *, num_draws=100, broken=False):
    """The mean of normal draws, which is within its error of 0."""
    CALLS.append((seed, num_draws))
    if broken:
        raise RuntimeError("broken on purpose")
    draws = np.random.default_rng(seed).standard_normal(num_draws)
    error = draws.std(ddof=1) / num_draws**0.5
    row = measure("mean", float(draws.mean()), n=num_draws, standard_error=float(error))
    return Findings((row,), {"running": np.cumsum(draws) / np.arange(1, num_draws + 1)})
'''
ARMS = {"few": {"num_draws": 10}, "many": {"num_draws": 1000}}


def _tables(runs):
    lines = tuple(
        (arm, *(f"{v:.4f}" for v in runs.values("draws", arm, "examined:draws", "mean").values()))
        for arm in runs.arms("draws")
    )
    return {"means": Table("Means", ("arm", "seed 0", "seed 1"), lines)} if lines else {}


def _figures(runs):
    curves = {}
    for arm in runs.arms("draws"):
        ends = runs.findings("draws", arm)[0].arrays["running"]
        curves[arm] = ([1, len(ends)], [ends[0], ends[-1]], [0.0, 0.0])
    return {"running": size_curve(curves)} if curves else {}


def _claims(runs):
    gap = runs.difference("draws", "few", "many", "examined:draws", "mean")
    return [Claim("means differ", "no", f"{gap.mean:.3f}" if gap else "", "undecided")]


@pytest.fixture
def experiment(tmp_path, monkeypatch):
    """A study with one experiment and one part that fits, and the module of the experiment."""
    (tmp_path / "experiment_of_means.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    import experiment_of_means as module  # type: ignore[import-not-found]

    def parts(preset):
        return {
            "draws": Experiment(function=module.means, arms=ARMS, seeds=(0, 1)),
            "fits": Part(
                task="two_moons",
                net="mlp",
                net_options={"hidden": [4]},
                task_options={"num_test": 30},
                arms={"MAP": Arm("map", {"epochs": 1})},
                seeds=(0,),
            ),
        }

    about = {"title": "Means", "paper": "Nobody 2026", "bibtex": "@misc{n}", "summary": "means"}
    shown = {"tables": _tables, "figures": _figures, "claims": _claims}
    STUDIES.register("means")(
        Study(**about, **shown, parts=parts, comparisons=lambda preset, runs: [])
    )
    module.CALLS.clear()
    yield module
    del STUDIES._entries["means"]


def run(command, out, *words) -> int:
    return command("run", "means", "--preset", "smoke", "--out", str(out), *words)


@pytest.mark.cpu_seconds(12)
def test_cells_are_run_shown_and_not_run_again(tmp_path, command, experiment):
    out = tmp_path / "o"
    assert run(command, out) == 0
    assert experiment.CALLS == [(0, 10), (0, 1000), (1, 10), (1, 1000)]
    assert "draws, seeds 0,1" in command.err and "many, seed 1: 0.0 s, 1 numbers" in command.err
    expected = {s: np.random.default_rng(s).standard_normal(10).mean() for s in (0, 1)}
    held = json.loads((out / "study.json").read_text())
    assert held["tables"]["means"]["lines"][0] == ["few", *(f"{v:.4f}" for v in expected.values())]
    assert held["claims"][0]["ours"] and (out / "figures" / "running.svg").is_file()
    assert 'id="examinations"' in (out / "draws" / "report.html").read_text()
    before = without_times(out / "draws" / "results.jsonl")
    assert run(command, out, "--part", "draws") == 0
    assert "4 cells, 4 done already, 0 to run" in command.err and len(experiment.CALLS) == 4
    assert run(command, out, "--part", "draws", "--set", "few.num_draws=20") == 0
    assert experiment.CALLS[4:] == [(0, 20), (1, 20)]  # other options are other cells
    assert without_times(out / "draws" / "results.jsonl")[:4] == before


def test_a_failing_cell_is_recorded_and_the_rest_goes_on(tmp_path, command, experiment):
    out = tmp_path / "o"
    assert run(command, out, "--part", "draws", "--set", "few.broken=true") == 1
    failed = [json.loads(line) for line in (out / "draws/failures.jsonl").read_text().splitlines()]
    assert [f["seed"] for f in failed] == [0, 1]
    assert "broken on purpose" in failed[0]["error"] and failed[0]["options"]["broken"] is True
    assert [r.label for r in RunFolder(out / "draws").results()] == ["many", "many"]


@pytest.mark.cpu_seconds(25)
def test_other_processes_give_the_same(tmp_path, command, experiment):
    one, two = tmp_path / "one", tmp_path / "two"
    assert run(command, one, "--part", "draws", "--seeds", "0", "-q") == 0
    assert run(command, two, "--part", "draws", "--seeds", "0", "-q", "--jobs", "2") == 0
    found = [sorted(without_times(out / "draws/results.jsonl")) for out in (one, two)]
    assert found[0] == found[1] and len(found[0]) == 2 and len(experiment.CALLS) == 2
    for kept in (one / "draws/predictions").iterdir():
        assert kept.read_bytes() == (two / "draws/predictions" / kept.name).read_bytes()


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("few.num_drws=3", "Unknown option 'num_drws' for experiment 'draws'. Did you mean"),
        ("task.noise=1", "'task' is not part of this run"),
    ],
)
def test_mistakes_are_found_before_anything_runs(tmp_path, command, experiment, setting, said):
    assert run(command, tmp_path / "o", "--part", "draws", "--set", setting) == 2
    assert said in command.err and not (tmp_path / "o").exists()
