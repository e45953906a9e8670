"""What the tests of reports share: results that nobody trained."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def made_up() -> ModuleType:
    """Return the module next door; tests are no package, so it is read by its path."""
    spec = importlib.util.spec_from_file_location("made_up", Path(__file__).with_name("made_up.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
