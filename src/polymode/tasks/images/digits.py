"""Handwritten digits of 8x8 pixels, the default task: real, small, and shipped with scikit-learn.

Pixels lie in [0, 1]; then every set (train, val, test, OOD, shifts) is normalised alike, with mean
and standard deviation over all pixels of the training split and of nothing else. `N` examples.
"""

from __future__ import annotations

import torch
from torch import Tensor

from polymode.core.rng import generator
from polymode.likelihoods.kinds import Categorical
from polymode.likelihoods.scaling import Scaling
from polymode.tasks.named import TASKS
from polymode.tasks.shifts import SEVERITIES, corrupt
from polymode.tasks.shifts.filters import LUMA
from polymode.tasks.splits import FIXED, stratified_order
from polymode.tasks.task import Task

NUM_TEST, NUM_VAL, NUM_PATCHES = 400, 200, 400


@TASKS.register(
    "digits",
    description="handwritten digits of 8x8 pixels, ten classes; OOD photographs and scrambled"
    " digits, shifts by noise and rotation",
    source="E. Alpaydin, C. Kaynak, Optical Recognition of Handwritten Digits, UCI (1998), test"
    " part, as scikit-learn ships it; photographs china.jpg and flower.jpg of scikit-learn",
    licence="CC BY 4.0 (digits); CC BY 2.0 (photographs)",
    kind="real",
    size="1,197 / 200 / 400",
)
def digits(*, seed: int = 0) -> Task:
    """Return the digits (1, 8, 8) in ten classes, split 1,197 / 200 / 400, stratified by class.

    The split, and the OOD sets, are the same for every seed; the seed draws the noise of the shift.

    OOD sets: `patches`, 400 grey 8x8 patches of two photographs (far); `scrambled`, the test digits
    with their pixels in one other order (near: every pixel statistic but the places is kept).
    Shifts of the test set, severities 1 to 5: `gaussian_noise` and `rotation`.

    Limit: the 13 writers are not marked in the data, so each writes in all three splits; for other
    writers expect more errors than on `test`.
    """
    images, labels = _load()
    order = stratified_order(labels, "digits")
    test, val, train = order.split([NUM_TEST, NUM_VAL, len(order) - NUM_TEST - NUM_VAL])
    mean, std = float(images[train].mean()), float(images[train].std())
    scaling = Scaling(torch.tensor(mean), torch.tensor(std))

    def pairs(rows: Tensor) -> tuple[Tensor, Tensor]:
        return scaling(images[rows]), labels[rows]

    def shifted(kind: str) -> dict[int, tuple[Tensor, Tensor]]:
        return {
            severity: (scaling(corrupt(images[test], kind, severity, seed=seed)), labels[test])
            for severity in SEVERITIES
        }

    pixels = torch.randperm(64, generator=generator(FIXED, "digits", "scrambled"))
    scrambled = images[test].flatten(1)[:, pixels].view(-1, 1, 8, 8)
    return Task(
        name="digits",
        train=pairs(train),
        val=pairs(val),
        test=pairs(test),
        likelihood=Categorical(),
        target_size=10,
        ood={"patches": scaling(_patches()), "scrambled": scaling(scrambled)},
        near_ood=("scrambled",),
        shifts={kind: shifted(kind) for kind in ("gaussian_noise", "rotation")},
        input_scaling=scaling,
        class_names="0123456789",
        description=f"8x8 digits; inputs are (pixel - {mean:.4f}) / {std:.4f}, pixels in [0, 1]",
    )


def _load() -> tuple[Tensor, Tensor]:
    """Return images (N, 1, 8, 8) in [0, 1] and labels (N,) in the order of the file."""
    from sklearn.datasets import load_digits

    file = load_digits()
    images = torch.tensor(file.images, dtype=torch.float32)[:, None] / 16
    return images, torch.tensor(file.target, dtype=torch.int64)


def _patches() -> Tensor:
    """Return grey patches (N, 1, 8, 8) in [0, 1], drawn from the tiles of two photographs."""
    from sklearn.datasets import load_sample_images

    tiles = []
    for photograph in load_sample_images().images:  # china.jpg and flower.jpg
        colour = torch.tensor(photograph, dtype=torch.float32) / 255
        rows, columns = colour.shape[0] // 8 * 8, colour.shape[1] // 8 * 8
        grey = (colour @ torch.tensor(LUMA))[:rows, :columns]
        tiles.append(grey.unfold(0, 8, 8).unfold(1, 8, 8).reshape(-1, 1, 8, 8))
    every = torch.cat(tiles)
    chosen = torch.randperm(len(every), generator=generator(FIXED, "digits", "patches"))
    return every[chosen[:NUM_PATCHES]]
