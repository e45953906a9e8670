"""Let the CUDA build of torchvision be imported beside a CPU build of torch.

The compiled operators of that wheel cannot be loaded without CUDA, and `import torchvision` then
stops at "operator torchvision::nms does not exist". Declaring the schemas of the two operators it
names at import time is enough for transforms, datasets and models; calling a compiled operator
still fails.
Import this module before the first import of torchvision.
"""

from __future__ import annotations

import torch

_LIBRARY = torch.library.Library("torchvision", "DEF")
_LIBRARY.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
_LIBRARY.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
