"""The images of the study: which are scored, and which others hyperparameters are tuned on.

28 x 28: KMNIST's test images; the scored ones come from the front, those for tuning from the end.
128 x 128: the Shepp-Logan head, tuned on ellipses at random; CT slices of a file
`ct_slices_128.npz` with `x` (N, 128, 128) uint8 in the data folder. These slices are
reconstructions themselves, so the "truth" has their noise; the projections are simulated.
Walnut: a file `walnut.npz`, see `walnut`.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from polymode.tasks.files import MissingData, data_folder, load
from polymode.tasks.readers.npz import read_npz
from polymode.tomography import LinearOperator, Scan, scan_of
from polymode.tomography.phantoms import random_ellipses, shepp_logan


def images_of(data: str, scored: int, tuning: int) -> tuple[Tensor, Tensor]:
    """Return images (N, 1, H, W) in [0, 1] that are scored, and others.

    Args:
        data: "kmnist", "ct", "ellipses" or "shepp_logan"; the first two with ":FIRST", the number
            of the first image, the others with ":SIDE", if not the usual.
    """
    name, _, more = data.partition(":")
    if name == "kmnist":
        first = int(more or 0)
        images = load("kmnist", ["x_test"])["x_test"]
        return _grey(images[first : first + scored]), _grey(images[len(images) - tuning :])
    if name == "ellipses":
        side = int(more or 28)
        drawn = torch.stack([random_ellipses(side, seed=k) for k in range(scored + tuning)])
        return drawn[:scored, None], drawn[scored:, None]
    if name == "shepp_logan":
        side = int(more or 128)
        ellipses = [random_ellipses(side, seed=k) for k in range(tuning)]
        return shepp_logan(side)[None, None], torch.stack(ellipses)[:, None]
    if name != "ct":
        raise ValueError(f"`data` must be kmnist, ellipses, shepp_logan or ct, got '{data}'")
    first = int(more or 0)
    slices = _file("ct_slices_128.npz", ["x"])["x"]
    return _grey(slices[first : first + scored]), _grey(slices[len(slices) - tuning :])


def walnut() -> Scan:
    """Return the real scan of a walnut, from `walnut.npz` in the data folder.

    It holds `observations` (m,), `truth` (H, W), `noise_sd`, and the projection matrix in CSR form:
    `data`, `indices`, `indptr`, `shape`. The published files (Zenodo 4940651 and 4279549) are
    not in this form and have to be converted once.
    """
    from scipy.sparse import csr_matrix

    names = ["observations", "truth", "noise_sd", "data", "indices", "indptr", "shape"]
    held = _file("walnut.npz", names)
    matrix = csr_matrix(
        (held["data"], held["indices"], held["indptr"]), shape=tuple(held["shape"].tolist())
    )
    truth = torch.from_numpy(held["truth"]).float()
    operator = LinearOperator.from_matrix(matrix, (truth.shape[0], truth.shape[1]), "walnut scan")
    observations = torch.from_numpy(held["observations"]).float()
    return scan_of(operator, observations, float(held["noise_sd"]), truth)


def _file(name: str, arrays: list[str]) -> dict[str, np.ndarray]:
    path = data_folder() / name
    if not path.is_file():
        raise MissingData(
            f"{path} is not there; put a file with the arrays {', '.join(arrays)} in its place, see"
            " docs/studies/tomography.md, or leave out the part that needs it"
        )
    return dict(read_npz(path, tuple(arrays)))


def _grey(images: np.ndarray) -> Tensor:
    return torch.from_numpy(images.astype(np.float32) / 255.0)[:, None]
