"""Tasks of real tables: nine UCI regressions, and a table of your own."""

from __future__ import annotations

from polymode.tasks.tables import table, uci  # noqa: F401  (enter their tasks in TASKS)
