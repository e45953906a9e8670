"""Examinations by name: options are checked, findings are labelled and go beside results."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest

import polymode as pm
from polymode.core.options import Config, option, rule
from polymode.examinations import EXAMINATIONS, Findings, findings_of, measure, read_asked
from polymode.metrics.results import Cost, Results, Row


@dataclass(frozen=True, kw_only=True)
class Weighing(Config):
    """Options of `weighing`."""

    called = "weighing"
    scale: float = option(1.0, gt=0)
    parts: tuple = option((), rule=rule("several", lambda parts: isinstance(parts, list | tuple)))


def _weigh(post, task, options):
    heights = options.scale * np.arange(post.num_modes)
    rows = (
        measure("mean_height", float(heights.mean()), unit="m", direction="up", n=len(heights)),
        measure("spread", math.nan, n=1),
    )
    return Findings(rows, {"heights": heights})


@pytest.fixture(autouse=True)
def weighing():
    about = {"summary": "how heavy", "measures": {"mean_height": "mean", "spread": "none"}}
    EXAMINATIONS.register("weighing", options=Weighing, **about)(_weigh)
    yield
    del EXAMINATIONS._entries["weighing"]


@pytest.fixture(scope="module")
def fitted():
    task = pm.task("two_moons")
    options = {"net": pm.nets.mlp, "task": task, "epochs": 0, "progress": "silent"}
    return pm.fit("deep_ensemble", num_modes=3, **options), task


def test_an_examination_is_called_with_its_options_and_labelled(fitted):
    found = pm.examine(*fitted, "weighing", scale=2.0)
    assert found["mean_height"] == Row(
        "examined:weighing:scale=2.0", "mean_height", 2.0, "m", "up", 3, None
    )
    assert found["spread"].value is None and found["spread"].note == "n/a (undefined)"
    assert found.arrays["heights"].tolist() == [0.0, 2.0, 4.0]
    assert found.name == "weighing" and pm.examine(fitted[0], "two_moons", "weighing").rows
    with pytest.raises(ValueError, match="`task` of examine is a list; give a name"):
        pm.examine(fitted[0], [], "weighing")
    assert found.displays() == {}
    assert "mean height ↑" in found.table() and "mean height ↑" in found._repr_html_()
    with pytest.raises(KeyError, match="no number 'mean_heigt' .* Did you mean 'mean_height'"):
        found["mean_heigt"]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("weihing", {}, "Unknown examination 'weihing'. Did you mean 'weighing'"),
        ("weighing", {"scal": 2}, "Unknown option 'scal' for examination 'weighing'. Did you mean"),
        ("weighing", {"scale": 0}, "`scale` of weighing must be > 0, got 0"),
    ],
)
def test_wrong_names_and_options_are_refused(fitted, name, options, message):
    with pytest.raises(ValueError, match=message):
        pm.examine(*fitted, name, **options)


def test_two_numbers_of_one_name_are_refused():
    with pytest.raises(ValueError, match="'x' has two numbers of one name"):
        Findings((measure("a", 1.0, n=1), measure("a", 2.0, n=1))).signed("x")


def test_what_is_typed_comes_back_in_one_order():
    asked = read_asked("weighing:scale=2,parts=[1,2]")
    assert asked.options == {"parts": [1, 2], "scale": 2}
    assert str(asked) == "weighing:parts=[1, 2],scale=2" == str(read_asked(str(asked)))
    assert str(read_asked("weighing")) == "weighing"
    with pytest.raises(ValueError, match="NAME:key=value,key=value, got 'weighing:scale'"):
        read_asked("weighing:scale")


def test_findings_go_beside_results_and_come_back(fitted):
    score = Row("test", "nll", 0.5, "nats/example", "down", 9, None)
    results = Results("two_moons", "map", "mlp", 0, {}, (score,), Cost(1, 1, 1, 0.1, 9))
    found = pm.examine(*fitted, "weighing")
    both = found.beside(found.beside(results))  # the second time replaces the first
    assert [row.metric for row in both.rows] == ["nll", "mean_height", "spread"]
    again = findings_of(both)["weighing"]
    assert again == found and again.arrays["heights"] is found.arrays["heights"]
    assert "height" not in both.table() and "examined" not in both.table(full=True)
    board = pm.compare([both])
    assert list(board.groups()) == ["test"]  # examinations are shown to those who ask for all
    assert list(board.groups(full=True)) == ["test", "examined:weighing"]
    assert "weighing" in board.table(full=True)


@pytest.mark.cpu_seconds(12)
def test_findings_import_no_plots():
    code = (
        "import sys; from polymode.examinations import EXAMINATIONS, Findings, measure;"
        "Findings((measure('a', 1.0, n=1),)).signed('x').table(); EXAMINATIONS.names();"
        "print([m for m in ('polymode.plots', 'matplotlib', 'scipy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]", done.stdout
