"""What a declaration says is what is refused, and what help and tables show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from polymode.core.checks import Rule
from polymode.core.options import Config, belongs, declarations, option


@dataclass(frozen=True, kw_only=True)
class Walk(Config):
    """Options of a walk:"""

    step: float = option(0.1, gt=0, le=1, doc="length of a step")
    number: int = option(3, ge=1, doc="how many", more="Few.")
    burn_in: int | None = option(None, ge=0, doc="steps before", none="is half of all")
    kind: str | Callable[[], int] = option("plain", choices=("plain", "lazy"), doc="which walk")
    backwards: bool = option(False, doc="whether it goes back")
    rules = (
        Rule("{name} needs number > 1 with step={config.step:g}", lambda w: w.number > w.step),
        belongs("burn_in", kind="lazy"),
    )


@dataclass(frozen=True, kw_only=True)
class Run(Walk):
    """Options of a run: those of `Walk`, and"""

    step: float = 0.5
    number: int = option(7, le=9)
    rules = (Rule("runs are not lazy", lambda run: run.kind != "lazy"),)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"step": 0.0}, r"`step` of Walk must be in (0, 1], got 0.0"),
        ({"step": True}, r"`step` of Walk must be in (0, 1], got True"),
        ({"step": float("nan")}, r"`step` of Walk must be in (0, 1], got nan"),
        ({"step": None}, r"`step` of Walk must be in (0, 1], got None"),
        ({"number": 2.0}, "`number` of Walk must be an integer of at least 1, got 2.0"),
        ({"burn_in": -1}, "`burn_in` of Walk must be an integer of at least 0, got -1"),
        ({"kind": "lasy"}, "`kind` of Walk must be one of plain, lazy, got 'lasy'. Did you mean"),
        ({"kind": 3}, "`kind` of Walk must be one of plain, lazy, got 3"),
        ({"backwards": 1}, "`backwards` of Walk must be True or False, got 1"),
        ({"step": 1, "number": 1}, "Walk needs number > 1 with step=1"),
        ({"burn_in": 2}, "`burn_in` of Walk belongs to kind='lazy', not to 'plain'"),
    ],
)
def test_wrong_values_are_refused(options, message) -> None:
    with pytest.raises(ValueError) as error:
        Walk(**options)
    assert str(error.value).startswith(message)


def test_right_values_are_taken() -> None:
    walk = Walk(step=1, number=2, burn_in=0, kind="lazy", backwards=True)
    assert replace(walk, kind=int, burn_in=None).kind is int


def test_subclasses_inherit_what_they_do_not_state() -> None:
    """A plain value changes the default; a declaration adds to that of the base; rules hold on."""
    assert Run().step == 0.5 and Run().number == 7
    for wrong in ({"step": 2.0}, {"number": 0}, {"number": 10}, {"burn_in": 2}):
        with pytest.raises(ValueError):
            Run(**wrong)
    with pytest.raises(ValueError, match="runs are not lazy"):
        Run(kind="lazy")
    assert declarations(Run)["number"].doc == "how many"


def test_tables_and_help_follow() -> None:
    table = {name: declared.allowed for name, declared in declarations(Walk).items()}
    assert table == {
        "step": "in (0, 1]",
        "number": "≥ 1",
        "burn_in": "≥ 0 or None",
        "kind": "plain, lazy or a function",
        "backwards": "True, False",
    }
    assert declarations(Walk)["burn_in"].meaning(unset=True) == "steps before; None is half of all"
    assert declarations(Walk)["burn_in"].meaning(unset=False) == "steps before"
    assert "    number: how many, ≥ 1. Few." in (Walk.__doc__ or "").splitlines()
    assert "    burn_in: steps before, ≥ 0; None is half of all." in (Walk.__doc__ or "")
