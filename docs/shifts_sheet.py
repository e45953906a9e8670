"""Draw the sheet of all shifts, docs/shifts.png: `python -m docs.shifts_sheet`.

A photograph that scikit-learn ships (china.jpg, CC BY 2.0), cut and reduced to 32x32, and one of
its digits, 8x8, each clean and at the five severities. Pixels are shown as they are.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from sklearn.datasets import load_digits, load_sample_image
from torch import Tensor

from polymode.tasks.shifts import CORRUPTIONS, SEVERITIES, corrupt

SIDE, TILE, GAP, NAMES, HEAD, DPI = 32, 64, 2, 120, 22, 100


def main() -> None:
    kinds = [*CORRUPTIONS, "rotation", "translation"]
    strips = {name: [strip(image, kind) for kind in kinds] for name, image in pictures().items()}
    wide = (TILE + GAP) * (1 + len(SEVERITIES))
    width, height = NAMES + len(strips) * (wide + 3 * GAP), HEAD + (TILE + GAP) * len(kinds)
    figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI)
    for part, (name, rows) in enumerate(strips.items()):
        left = NAMES + part * (wide + 3 * GAP)
        figure.text(left / width, 1 - 15 / height, f"{name}: clean, severity 1 to 5", size=8)
        for row, tiles in enumerate(rows):
            bottom = height - HEAD - (row + 1) * (TILE + GAP)
            figure.figimage(tiles, left, bottom, origin="upper")
            middle = (bottom + TILE / 2) / height
            figure.text(4 / width, middle, kinds[row].replace("_", " "), size=8, va="center")
    figure.savefig(Path(__file__).with_name("shifts.png"), dpi=DPI, metadata={"Software": None})


def pictures() -> dict[str, Tensor]:
    """Return a colour image (1, 3, 32, 32) and a grey one (1, 1, 8, 8), in [0, 1]."""
    china = torch.tensor(load_sample_image("china.jpg"), dtype=torch.float32) / 255
    square = china.permute(2, 0, 1)[None, :, :, 120:547]
    digit = torch.tensor(load_digits().images[3], dtype=torch.float32) / 16
    photograph = F.interpolate(square, (SIDE, SIDE), mode="area").clamp(0, 1)
    return {"photograph, 32x32": photograph, "digit, 8x8": digit[None, None]}


def strip(image: Tensor, kind: str) -> np.ndarray:
    """Return the clean image and its five severities side by side, (TILE, width, 3)."""
    images = torch.cat([image, *(corrupt(image, kind, severity) for severity in SEVERITIES)])
    zoom = TILE // images.shape[-1]
    tiles = images.repeat_interleave(zoom, 2).repeat_interleave(zoom, 3).expand(-1, 3, -1, -1)
    apart = F.pad(tiles, (0, GAP), value=1.0)
    return apart.permute(2, 0, 3, 1).flatten(1, 2).numpy()


if __name__ == "__main__":
    main()
