"""`--config`: what a TOML file may say, who goes before whom, and what is wrong with it."""

from __future__ import annotations

import os

import pytest

from polymode.cli.request import read_config, request
from polymode.runs.part import Request
from polymode.runs.run_plan import make_plan
from polymode.runs.settings import UsageProblem

FILE = """
task = "two_moons"
method = ["map", "deep_ensemble"]
seeds = "0-2"
preset = "smoke"
out = "runs/x"

[net]
name = "mlp"
hidden = [8]

[deep_ensemble]
num_modes = 3
epochs = 7

[all]
epochs = 5
lr = 0.1
"""


def asked(path=None, **words) -> Request:
    nothing = dict.fromkeys(("task", "seeds", "net", "preset", "out"))
    return request(**{**nothing, "methods": [], "settings": [], "config": path, **words})


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "study.toml"
    path.write_text(FILE)
    return path


def test_the_file_alone_is_enough(file):
    wanted = asked(file)
    assert (wanted.task, wanted.methods) == ("two_moons", ("map", "deep_ensemble"))
    assert (wanted.seeds, wanted.net, wanted.out) == ((0, 1, 2), "mlp", "runs/x")
    plan = make_plan(wanted)
    assert plan.recipe.net_label == "mlp(hidden=[8])"
    assert plan.methods["map"]["epochs"] == 5  # of [all], over the preset's 2
    assert plan.methods["deep_ensemble"] == {
        "epochs": 7,  # its own table goes before [all], wherever it stands
        "lr": 0.1,
        "num_modes": 3,
        "schedule": "cosine",  # of the defaults
    }


def test_the_command_line_goes_before_the_file(file):
    words = {"seeds": "5", "net": "mlp", "out": "b", "preset": "cpu", "methods": ["map"]}
    wanted = asked(file, settings=["epochs=9", "map.lr=0.5"], **words)
    assert (wanted.seeds, wanted.out, wanted.preset) == ((5,), "b", "cpu")
    plan = make_plan(wanted)
    assert plan.methods == {"map": {"epochs": 9, "lr": 0.5, "schedule": "cosine"}}
    assert wanted.left_out == (f"{file}: [deep_ensemble] is left out: not a method of this run",)


def test_the_command_of_the_run_needs_no_file(file):
    """It says in words what the file said, so the report's command reproduces the run alone."""
    plan = make_plan(asked(file))
    command = plan.command("x")
    assert "--set 'net.hidden=[8]'" in command and "--set deep_ensemble.num_modes=3" in command
    assert str(file) not in command


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("task = 3", "`task` must be text, got 3"),
        ("method = 3", "`method` must be a name or a list of names, got 3"),
        ("method = []", "`method` must be"),
        ("seeds = 1.5", "`seeds` must be a number of at least 0, a list of such or text"),
        ("seeds = -1", "`seeds` must be a number of at least 0"),
        ("seeds = true", "`seeds` must be"),
        ('seeds = "2-0"', "runs backwards"),
        ("preset = 1", "`preset` must be text"),
        ('tsak = "digits"', "unknown key 'tsak'. Did you mean 'task'?"),
        ("[deep_ensembel]\nlr = 1", r"unknown table \[deep_ensembel\]. Did you mean"),
        ("[map]\nlr = 2020-01-01", r"\[map\] lr cannot be a date"),
        ("[map]\nlr = nan", r"\[map\] lr cannot be a float, got nan"),
        ("task = ", "study.toml: Invalid value"),
        ('task = "a"\n[task]\nnoise = 1', "study.toml: "),
    ],
)
def test_what_is_wrong_with_a_file_is_one_line_with_its_name(file, text, message):
    file.write_text(text)
    with pytest.raises(UsageProblem, match=message) as found:
        read_config(file)
    assert str(file) in str(found.value)


def test_wrong_types_of_options_are_found_by_their_owners(file, command):
    file.write_text('task = "two_moons"\nmethod = "map"\n[map]\nepochs = "ten"\n')
    assert command("run", "--config", str(file)) == 2
    assert "`epochs` of MAP must be an integer of at least 0, got 'ten'" in command.err
    file.write_text('method = "map"\n[task]\nname = "two_moons"\nnum_train = "ten"\n')
    assert command("run", "--config", str(file)) == 2
    assert "num_train" in command.err and command.err.count("\n") == 1


def test_a_file_that_is_not_there(command, tmp_path):
    assert command("run", "--config", str(tmp_path / "no.toml")) == 2
    assert "no.toml does not exist" in command.err
    assert command("run", "--config", str(tmp_path)) == 2
    assert "is a folder, not a file" in command.err


def test_files_without_an_end_are_refused(command, tmp_path):
    """A pipe that nobody fills, a device, and a file far larger than options are."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero"):
        assert command("run", "--config", str(path)) == 2
        assert "is a pipe or a device, not a file" in command.err
    with open(tmp_path / "large", "wb") as file:
        file.truncate(10_000_001)
    assert command("run", "--config", str(tmp_path / "large")) == 2
    assert "is larger than 10,000,000 bytes" in command.err


def test_the_file_in_the_docs_is_a_plan(tmp_path):
    from pathlib import Path

    page = Path(__file__).parents[2] / "docs" / "command-line.md"
    path = tmp_path / "study.toml"
    path.write_text(page.read_text().split("```toml\n")[1].split("```")[0])
    plan = make_plan(asked(path))
    assert plan.recipe.task_options == {"noise": 0.2}
    assert plan.recipe.net_label == "mlp(hidden=[32, 32])"
    assert plan.methods["deep_ensemble"]["num_modes"] == 10
    assert plan.methods["map"]["epochs"] == 20 and plan.seeds == (0, 1, 2, 3, 4)


def test_deep_nesting_is_a_sentence(tmp_path):
    path = tmp_path / "deep.toml"
    path.write_text("task = " + "[" * 100_000)
    with pytest.raises(UsageProblem, match="deep.toml: it is nested too deeply"):
        read_config(path)
