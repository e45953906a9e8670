"""Report: one self-contained HTML file, method cards, citations.

The package is also the function: `polymode.report(board, "report.html")` writes a report, whether
or not somebody has imported `polymode.report` as a module before.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from polymode.report.cards import cite, list_methods
from polymode.report.page import report

__all__ = ["cite", "list_methods", "report"]


class _Report(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Path:
        return report(*args, **kwargs)


_Report.__call__.__doc__ = report.__doc__
sys.modules[__name__].__class__ = _Report
