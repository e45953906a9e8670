"""Tasks of real images: digits, nine named sets, and a folder of your own."""

from __future__ import annotations

from polymode.tasks.images import digits, folder, sets  # noqa: F401  (enter their tasks in TASKS)
