"""The table of a method's options says what the method does."""

from __future__ import annotations

import re

import pytest

import polymode as pm
from polymode.methods import METHODS, Option

EVERY = [(name, option) for name in METHODS.names() for option in pm.options(name)]
NUMBER = r"-?\d+(?:\.\d+)?"


def edges(allowed: str) -> tuple[list[float], list[float]]:
    """Return the numbers next to the ends of a range, those outside and those inside.

    >>> edges("in [0, 1)"), edges("> 0 or None"), edges("≥ 1")
    (([-0.001, 1.0], [0.0, 0.999]), ([0.0], [0.001]), ([0.0], [1.0]))
    """
    if found := re.search(rf"in ([\[(])({NUMBER}), ({NUMBER})([\])])", allowed):
        low, high = float(found[2]), float(found[3])
        from_below = (low - 0.001, low) if found[1] == "[" else (low, low + 0.001)
        from_above = (high + 0.001, high) if found[4] == "]" else (high, high - 0.001)
        outside, inside = zip(from_below, from_above, strict=True)
        return list(outside), list(inside)
    found = re.search(rf"([≥>]) ({NUMBER})", allowed)
    assert found, allowed
    end = float(found[2])
    return ([end - 1], [end]) if found[1] == "≥" else ([end], [end + 0.001])


@pytest.mark.parametrize(("method", "option"), EVERY, ids=lambda v: getattr(v, "name", v))
def test_every_option_is_explained_and_its_range_is_the_one_that_holds(method, option) -> None:
    """Numbers next to the ends of a range and words that are not a choice are refused as such;
    the ends themselves are not.

    The oracle is the validation of the options, which does not read docstrings.
    """
    config = METHODS.get(method).value.config
    assert option.meaning and option.allowed, f"{option.name} of {method} is not explained"
    whole = "int" in str(config.__dataclass_fields__[option.name].type)
    wrong: list[object] = []
    right: list[object] = []
    if re.search(r"[≥>]|in [\[(]", option.allowed):
        outside, inside = edges(option.allowed)
        wrong += [int(v) if whole else v for v in outside]
        right += [int(v) if whole else v for v in inside]
    if isinstance(option.default, str):
        wrong.append("neither")
        right += option.allowed.split(" or ")[0].split(", ")
        assert option.default in right
    for value in (*wrong, *right):
        given = (value,) if isinstance(option.default, tuple) else value
        refused = False
        try:
            config(**{option.name: given})
        except ValueError as error:  # some values need other options as well
            refused = f"`{option.name}` of {config.__name__} must be" in str(error)
            refused = refused and "for nesterov" not in str(error)
        assert refused == (value in wrong), f"{option.name}={value!r}"


def test_the_table_prints_itself_and_fits_the_terminal(monkeypatch) -> None:
    table = pm.options("forde")
    assert [option.name for option in table][:2] == ["num_modes", "weight"]  # its own come first
    assert table["alpha"] == Option(
        "alpha", None, "in [0, 1] or None", "blend of identity (0) and pca (1); None is 1"
    )
    assert table["num_modes"].default == 10 and table["lr"].default == 1e-3
    for width in (60, 80, 200):
        monkeypatch.setenv("COLUMNS", str(width))
        lines = repr(table).splitlines()
        assert max(map(len, lines)) <= width
        assert lines[0] == "Options of forde" and any(line.startswith("alpha ") for line in lines)
    assert "<td" in table._repr_html_()


def test_options_by_class_by_value_and_of_nothing() -> None:
    assert pm.options(pm.methods.SWAG) == pm.options("swag")
    assert pm.options(pm.methods.SWAG(lr=0.5))["lr"].default == 0.5
    with pytest.raises(ValueError, match="Unknown method 'frode'. Did you mean 'forde'"):
        pm.options("frode")
    with pytest.raises(ValueError, match="options takes a method's name such as 'forde', got a"):
        pm.options(3)
    with pytest.raises(KeyError):
        pm.options("map")["alpha"]
