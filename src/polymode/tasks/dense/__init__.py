"""Tasks with a target at every pixel: masks of classes and maps of depth.

- `scenes`: overlapping shapes whose borders are blurred by a known amount, drawn when asked for.
- `shapes`: segmentation of scenes; `shapes_depth`: their depth. The truth is known at each pixel.
- `build`: from images and maps to a task.
"""

from __future__ import annotations

from polymode.tasks.dense import shapes, shapes_depth  # noqa: F401  (enter their tasks in TASKS)
