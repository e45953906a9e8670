"""What is typed: seeds and settings."""

from __future__ import annotations

import shlex

import pytest

from polymode.cli.arguments import parse_seeds, parse_settings
from polymode.runs.settings import Setting, UsageProblem, span


@pytest.mark.parametrize(
    ("text", "seeds"),
    [("0", [0]), ("0-2", [0, 1, 2]), ("0,3,5-6", [0, 3, 5, 6]), (" 1 , 1-2 ", [1, 2])],
)
def test_seeds(text, seeds):
    assert parse_seeds(text) == seeds
    assert parse_seeds(span(seeds)) == seeds


@pytest.mark.parametrize(
    "text", ["", "-1", "a", "1-", "0..2", "3-1", "1.5", "0-99999", "99999999999999999999"]
)
def test_bad_seeds(text):
    with pytest.raises(UsageProblem, match="--seeds"):
        parse_seeds(text)


def test_settings():
    parsed = parse_settings(["a.b=1e-3", "c=null", "d=x=y", "e=[1, 2]", "f=true", 'g="1"'])
    expected = [("a", "b", 1e-3), ("", "c", None), ("", "d", "x=y"), ("", "e", [1, 2])]
    assert parsed == [*expected, ("", "f", True), ("", "g", "1")]
    assert parse_settings([str(setting) for setting in parsed]) == parsed
    for bad in ("epochs", "=3", "map.=3"):
        with pytest.raises(UsageProblem, match="--set takes key=value"):
            parse_settings([bad])


def test_a_setting_survives_the_shell():
    odd = Setting("task", "path", "it's a; $HOME")
    assert parse_settings([shlex.split(shlex.join([str(odd)]))[0]]) == [odd]
