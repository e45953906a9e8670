"""The skeleton of docs/add-a-method.md is registered here: it goes through the suite, too."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

_path = Path(__file__).parents[2] / "docs" / "skeleton_method.py"
_spec = importlib.util.spec_from_file_location("skeleton_method", _path)
assert _spec is not None
assert _spec.loader is not None
sys.modules["skeleton_method"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(sys.modules["skeleton_method"])
