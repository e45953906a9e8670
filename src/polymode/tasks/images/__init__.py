"""Tasks of real images: digits, nine named sets, histology, and a folder of your own."""

from __future__ import annotations

from polymode.tasks.images import (  # noqa: F401  (enter their tasks in TASKS)
    digits,
    histology,
    image_folder,
    named_sets,
)
