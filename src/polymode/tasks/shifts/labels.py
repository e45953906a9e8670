"""Label noise: a fraction of the labels is wrong, at random or by a map from class to class.

Symmetric noise takes any other class, each as likely. Asymmetric noise follows a map, such as the
classes that are often confused (G. Patrini et al., "Making deep neural networks robust to label
noise", CVPR 2017); "pair" takes each class to the next. `N` examples, `C` classes.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from polymode.core.registry import suggest
from polymode.core.rng import generator

KINDS = ("symmetric", "pair")


def label_noise(
    labels: Tensor,
    fraction: float,
    num_classes: int,
    *,
    seed: int,
    kind: str | Mapping[int, int] = "symmetric",
) -> Tensor:
    """Return labels with exactly round(fraction x number that can change) of them wrong.

    Args:
        labels: (N,) integers in 0 ... num_classes - 1.
        fraction: of wrong labels, in [0, 1].
        num_classes: C, at least 2.
        seed: draws which examples, and, if symmetric, which classes. The examples that are wrong at
            a fraction are also wrong at every higher one.
        kind: "symmetric"; "pair", class c becomes c + 1 and the last becomes 0; or a map from class
            to class, where classes absent from it keep their labels.

    Returns:
        labels (N,), new, of the same type and device.

    >>> label_noise(torch.tensor([0, 0, 1, 2]), 0.5, 3, seed=0, kind={0: 1})
    tensor([0, 1, 1, 2])
    """
    _check(labels, fraction, num_classes)
    stream = generator(seed, "label_noise")
    order = torch.randperm(len(labels), generator=stream)
    steps = torch.randint(1, num_classes, (len(labels),), generator=stream)
    noisy = labels.detach().cpu().long()
    if kind == "symmetric":
        wrong = (noisy + steps) % num_classes
    else:
        wrong = _targets(kind, num_classes)[noisy]
    changeable = order[(wrong != noisy)[order]]
    chosen = changeable[: round(fraction * len(changeable))]
    return noisy.index_copy(0, chosen, wrong[chosen]).to(labels)


def _targets(kind: str | Mapping[int, int], num_classes: int) -> Tensor:
    """Return the class (C,) that each class is taken for."""
    classes = torch.arange(num_classes)
    if kind == "pair":
        return (classes + 1) % num_classes
    if not isinstance(kind, Mapping):
        raise ValueError(
            f"`kind` of label_noise must be one of {', '.join(KINDS)} or a map from class to class,"
            f" got {kind!r}.{suggest(str(kind), KINDS)}"
        )
    for source, target in kind.items():
        if source not in range(num_classes) or target not in range(num_classes):
            raise ValueError(
                f"`kind` of label_noise takes class {source!r} to {target!r}; classes are"
                f" 0 to {num_classes - 1}"
            )
        classes[source] = target
    return classes


def _check(labels: Tensor, fraction: float, num_classes: int) -> None:
    if num_classes < 2:
        raise ValueError(f"`num_classes` of label_noise must be >= 2, got {num_classes}")
    if not 0 <= fraction <= 1:
        raise ValueError(f"`fraction` of label_noise must be in [0, 1], got {fraction}")
    if labels.ndim != 1 or labels.is_floating_point() or labels.dtype == torch.bool:
        raise ValueError(
            f"labels must be integers (N,), got {labels.dtype} of shape {tuple(labels.shape)}"
        )
    bad = ((labels < 0) | (labels >= num_classes)).nonzero()
    if len(bad):
        first = int(bad[0])
        raise ValueError(
            f"labels must be 0 to {num_classes - 1}, got {int(labels[first])} in row {first}"
            f" ({len(bad):,} of {len(labels):,} rows)"
        )
