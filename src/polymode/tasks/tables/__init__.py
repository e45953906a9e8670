"""Tasks of real tables: nine UCI regressions, and a table of your own."""

from __future__ import annotations

from polymode.tasks.tables import own, uci  # noqa: F401  (enter their tasks in TASKS)
