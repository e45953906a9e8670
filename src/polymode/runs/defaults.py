"""What `polymode run` takes where nothing is said: a network and training options for each task.

The one place for such choices. Those of digits had the lowest validation NLL of `map` among six
settings (40, 60, 80 epochs at lr 0.001; 60 at 0.002, constant and cosine; this one), mean over
seeds 10 to 12. The six had been looked at on the test set before, so the demo's figures illustrate
and do not compare. All others are not tuned: sizes and lengths that are usual for such data and end
within minutes on two cores, so the large image sets are learnt for few epochs. All methods take as
many epochs, and no preset has fewer than the 1,000 steps that `fit` takes where nothing is said:
fewer are enough for Adam, not for methods with an optimiser or sampler of their own.

Presets: `cpu` is what stands here; `smoke` is the same with two epochs and little data, to see in
seconds whether all of it runs; `paper` is for tasks with a published set-up, and none has one yet.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from polymode.core.registry import suggest
from polymode.runs.settings import UsageProblem

PRESETS = ("smoke", "cpu", "paper")
SMOKE_EPOCHS = 2


@dataclass(frozen=True)
class Defaults:
    """A network of `polymode.nets` with its options, and options of every method that has them.

    `task_options` are those of the task, where the preset is not its usual size.
    """

    net: str = "mlp"
    net_options: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    task_options: dict[str, Any] = field(default_factory=dict)


_CURVE = Defaults(options={"epochs": 1000, "lr": 1e-2, "schedule": "cosine"})
_PLANE = Defaults(options={"epochs": 500, "lr": 1e-2, "schedule": "cosine"})
_GREY = Defaults(net="lenet", options={"epochs": 10, "lr": 2e-3, "schedule": "cosine"})
_COLOUR = Defaults(net="resnet8", options={"epochs": 20, "lr": 1e-2, "schedule": "cosine"})
_LINEAR: dict[str, Any] = {"hidden": []}


def _table(epochs: int) -> Defaults:
    """One hidden layer of 50 units, as in the published comparisons on tables of UCI."""
    options = {"epochs": epochs, "lr": 1e-2, "schedule": "cosine", "batch_size": 32}
    return Defaults(net_options={"hidden": [50]}, options=options)


def _maps(epochs: int, batch_size: int, **net_options: Any) -> Defaults:
    """A U-Net, as targets are maps; without options it has three scales of 32 channels."""
    options = {"epochs": epochs, "lr": 1e-2, "schedule": "cosine", "batch_size": batch_size}
    return Defaults(net="unet", net_options=net_options, options=options)


DEFAULTS: dict[str, Defaults] = {
    "digits": Defaults(
        net="lenet",
        options={"epochs": 40, "lr": 3e-3, "schedule": "cosine", "batch_size": 64},
    ),
    **dict.fromkeys(("two_moons", "donuts", "five_gaussians"), _PLANE),
    **dict.fromkeys(
        ("gap_regression", "x_sin_x", "curve", "wiggle", "matern", "three_clusters"), _CURVE
    ),
    "linear_regression": Defaults(
        net_options=_LINEAR, options={"epochs": 1000, "lr": 3e-2, "schedule": "cosine"}
    ),
    "logistic_regression": Defaults(
        net_options=_LINEAR, options={"epochs": 1000, "lr": 3e-2, "schedule": "cosine"}
    ),
    "two_modes": Defaults(
        net_options={"hidden": [1], "activation": "tanh"}, options=_CURVE.options
    ),
    "tiny_nets": Defaults(net_options={"hidden": [2]}, options=_PLANE.options),
    "synthetic_regression": Defaults(
        net_options={"hidden": [100, 100, 100]}, options=_CURVE.options
    ),
    "mnist1d": Defaults(
        net_options={"hidden": [100, 100]},
        options={"epochs": 50, "lr": 2e-3, "schedule": "cosine"},
    ),
    **dict.fromkeys(("mnist", "fashion_mnist", "kmnist", "notmnist"), _GREY),
    **dict.fromkeys(("histology", "nct_crc_he"), _GREY),
    **dict.fromkeys(
        ("cifar10", "cifar10_subset", "cifar100", "svhn", "tiny_imagenet", "image_folder"), _COLOUR
    ),
    **dict.fromkeys(
        ("uci_boston", "uci_concrete", "uci_energy", "uci_wine", "uci_yacht"), _table(200)
    ),
    **dict.fromkeys(("uci_kin8nm", "uci_naval", "uci_power", "table", "frame"), _table(40)),
    "uci_protein": _table(20),
    "body_features": _table(200),
    **dict.fromkeys(("shapes", "shapes_depth"), _maps(125, 25, channels=[16, 32], skips=[4])),
    "mni_tissue": _maps(150, 8),
    **dict.fromkeys(("camvid", "nyuv2"), _maps(40, 8)),
    "cityscapes": _maps(10, 8),
}


_FEW: dict[str, Any] = {"num_train": 512, "num_val": 128, "num_test": 256}
SMOKE_SIZES: dict[str, dict[str, Any]] = {
    **dict.fromkeys(
        (
            "mnist", "fashion_mnist", "kmnist", "notmnist", "cifar10", "cifar10_subset", "cifar100",
            "svhn", "tiny_imagenet", "image_folder",
        ),
        {**_FEW, "shifts": ["gaussian_noise"]},
    ),
    **dict.fromkeys(("histology", "nct_crc_he"), {"num_train": 512, "num_test": 256}),
    "mnist1d": _FEW,
    **dict.fromkeys(
        ("camvid", "cityscapes", "nyuv2"), {"num_train": 16, "num_val": 4, "num_test": 8}
    ),
}  # fmt: skip
"""Options of tasks under `smoke`; the others are small, or cannot be made smaller."""


def defaults_for(task: str, preset: str = "cpu") -> Defaults:
    """Return the defaults of a task; an MLP with the methods' own options where none are kept."""
    usual = DEFAULTS.get(task, Defaults())
    if preset not in PRESETS:
        raise UsageProblem(
            f"Unknown preset '{preset}'.{suggest(preset, PRESETS)} Presets: {', '.join(PRESETS)}."
        )
    if preset == "paper":
        raise UsageProblem(
            f"task '{task}' has no published set-up here, so there is no preset 'paper' for it;"
            " use --preset cpu, and --set for your own sizes"
        )
    if preset == "smoke":
        options = {**usual.options, "epochs": SMOKE_EPOCHS}
        return replace(usual, options=options, task_options=dict(SMOKE_SIZES.get(task, {})))
    return usual
