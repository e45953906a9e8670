"""The suite itself finds what it is there to find."""

from __future__ import annotations

from typing import Any

import pytest

from polymode.methods import METHODS, sghmc
from polymode.methods.method import Method

from .test_methods import check_resume


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
