"""The skeleton of docs/add-a-method.md is registered here, so that it goes through the suite, too."""

from __future__ import annotations

import importlib.util
from pathlib import Path

_path = Path(__file__).parents[2] / "docs" / "skeleton_method.py"
_spec = importlib.util.spec_from_file_location("skeleton_method", _path)
assert _spec is not None
assert _spec.loader is not None
_spec.loader.exec_module(importlib.util.module_from_spec(_spec))
