"""The suite itself finds what it is there to find."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import pytest

from polymode.core.options import option
from polymode.methods import MAP, METHODS, sghmc
from polymode.methods import map as map_
from polymode.methods.method import Method

from .option_effects import dead_options
from .small_fits import check_resume


def test_a_sampler_that_loses_its_samples_on_resume_fails(tmp_path) -> None:
    """Its chain goes on as it should, but what it kept before the interrupt is gone."""

    class Forgetful(sghmc.SGHMC):
        pass

    kept: dict[str, Any] = {}

    def init(config, problem, stack):
        state = sghmc.init(config, problem, stack)
        kept.clear()
        kept.update(state.kept)
        return state._replace(kept={})

    def step(config, problem, state, batch):
        state, info = sghmc.step(config, problem, state._replace(kept=kept), batch)
        return state._replace(kept={}), info

    def finish(config, problem, state):
        return sghmc.finish(config, problem, state._replace(kept=kept))

    METHODS.register("forgetful", kind="one mode")(Method(Forgetful, init, step, finish))
    try:
        with pytest.raises(AssertionError):
            check_resume("forgetful", tmp_path)
    finally:
        METHODS._entries.pop("forgetful", None)


@pytest.mark.parametrize("speaks", [False, True])
def test_options_without_effect_are_found(speaks) -> None:
    """Of any type, though numbers that are not valid are refused; not if they say so."""

    @dataclass(frozen=True, kw_only=True)
    class Idle(MAP):
        number: int = option(4, ge=1)
        share: float = option(0.3)
        name: str = option("one", choices=("one", "two"))
        flag: bool = option(False)

    def init(config, problem, stack):
        if speaks:
            warnings.warn("number, share, name and flag have no effect", stacklevel=2)
        return map_.init(config, problem, stack)

    METHODS.register("idle", kind="one mode")(Method(Idle, init, map_.step))
    try:
        found = [entry.split("=")[0] for entry in dead_options("idle")]
    finally:
        METHODS._entries.pop("idle", None)
    assert found == ([] if speaks else ["number", "share", "name", "flag"])
