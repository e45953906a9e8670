"""Tasks with a target at every pixel: masks of classes and maps of depth.

- `scenes`: overlapping shapes whose borders are blurred by a known amount, drawn when asked for.
- `shapes`: segmentation of scenes; `shapes_depth`: their depth. The truth is known at each pixel.
- `folders`: CamVid, Cityscapes and NYUv2 from their files (`read_maps`); `mni_tissue`: slices of a
  real volume.
- `build`: from images and maps to a task.
"""

from __future__ import annotations

from polymode.tasks.dense import (  # noqa: F401  (enter their tasks in TASKS)
    folders,
    mni_tissue,
    shapes,
    shapes_depth,
)
