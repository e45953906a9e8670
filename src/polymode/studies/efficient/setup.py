"""The parts of the study by preset.

Every method of the box takes part that is registered: conversions of the same network into cheaper
ensembles, deterministic heads, averages of one mode, beside one network, a deep ensemble and FoRDE.

cpu: digits, parts of Fashion-MNIST and of CIFAR-10, two tables; small networks, so that all of it
takes less than an hour of one core. paper: ResNet18 on CIFAR-10, Fashion-MNIST with LeNet at full
size, all data, 5 seeds.

*At equal training*, all arms have the same epochs. *At equal parameters*, the lines are those whose
numbers in memory are about those of one network: Packed with α = 2 and M = 4 is a deep ensemble of
four networks with a quarter of the weights each; one network with four times the weights stands
beside the deep ensemble. *At equal time*, an arm that is cheaper than the deep ensemble has more
epochs ("× 4"), one that is dearer has fewer: `TIME` is by how much, measured once per method on
digits and rounded; what training took in the end stands beside it.

Members are four everywhere. Options are those of the papers where they are options at all; rates
and epochs are the same for all methods and were chosen for one network, by the validation NLL. All
arms train on all data to the last step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from polymode.methods import METHODS
from polymode.runs.part import Arm, Part

MEMBERS = 4
SINGLE, ENSEMBLE, WIDE = "one network", "deep ensemble", "one network, 4 × parameters"
TIME = {
    "map": 4.0,
    "packed": 2.0,
    "batch_ensemble": 1.0,
    "tabm": 1.0,
    "masksembles": 1.0,
    "mimo": 4.0,
    "lp_bnn": 1.0,
    "vbll": 4.0,
    "sngp": 4.0,
    "ddu": 4.0,
    "evidential": 4.0,
    "ema": 4.0,
    "swa": 4.0,
    "mc_batchnorm": 4.0,
    "dropout": 4.0,
    "forde": 0.5,
}
"""Epochs that take as long as the deep ensemble's, over the deep ensemble's."""
SEVERAL = (
    "deep_ensemble",
    "packed",
    "batch_ensemble",
    "tabm",
    "masksembles",
    "mimo",
    "lp_bnn",
    "forde",
)
"""Methods whose members are modes, or inputs, so that `num_modes` is 4; the others have one."""
CLASSES_ONLY = ("ddu",)
TABLES_ONLY = ("tabm",)
NORMALISED = ("mc_batchnorm",)
OPTIONS: dict[str, dict[str, Any]] = {
    "packed": {"alpha": 2.0},
    "forde": {"lengthscales": "identity"},
    "ema": {"decay": 0.99},
}


@dataclass(frozen=True)
class Setting:
    """A task and network of the study.

    Attributes:
        task, task_options, net, net_options: as of `Part`.
        wide: options of the network with four times the parameters.
        training: options of every arm. seeds: how many.
        classes: whether it is a classification. normalised: whether the network has BatchNorm.
        timed: methods that are also run at equal time; None for all.
    """

    task: str
    net: str
    net_options: dict[str, Any]
    wide: dict[str, Any]
    training: dict[str, Any]
    seeds: int
    task_options: dict[str, Any]
    classes: bool = True
    normalised: bool = False
    timed: tuple[str, ...] | None = None


def parts(preset: str) -> dict[str, Part]:
    """Return the parts of a preset, cheapest first."""
    settings = {"smoke": _smoke, "cpu": _cpu, "paper": _paper}[preset]()
    return {name: part_of(setting) for name, setting in settings.items()}


def part_of(setting: Setting) -> Part:
    """Return the part with all arms that are registered and apply."""
    return Part(
        task=setting.task,
        task_options=setting.task_options,
        net=setting.net,
        net_options=setting.net_options,
        arms=arms(setting),
        seeds=tuple(range(setting.seeds)),
        examine=("price",),
    )


def timed(name: str) -> str:
    """Return the name of an arm at equal training time."""
    return f"{name}, equal time"


def arms(setting: Setting) -> dict[str, Arm]:
    """Return the arms of equal training, then those of equal time."""
    every = {SINGLE: _arm("map", setting), ENSEMBLE: _arm("deep_ensemble", setting)}
    every[WIDE] = every[SINGLE]._replace(net_options=setting.wide)
    for method in TIME:
        if method not in ("map", "forde") and _applies(method, setting):
            every[method] = _arm(method, setting)
    if setting.classes:
        every["FoRDE"] = _arm("forde", setting)
    equal = {}
    for name, arm in every.items():
        factor = TIME.get(arm.method, 1.0)
        wanted = setting.timed is None or arm.method in setting.timed
        if factor != 1.0 and name != WIDE and wanted:
            epochs = max(1, round(factor * arm.options["epochs"]))
            equal[timed(name)] = arm._replace(options={**arm.options, "epochs": epochs})
    return {**every, **equal}


def _applies(method: str, setting: Setting) -> bool:
    if method not in METHODS.names() or (method in NORMALISED and not setting.normalised):
        return False
    return setting.classes or method not in CLASSES_ONLY


def _arm(method: str, setting: Setting) -> Arm:
    modes = MEMBERS if method in SEVERAL else 1
    options = {**setting.training, "num_modes": modes, **OPTIONS.get(method, {})}
    net_options = {**setting.net_options, "dropout": 0.1} if method == "dropout" else {}
    return Arm(method, options, net_options)


_ADAM: dict[str, Any] = {"optimizer": "adam", "schedule": "cosine", "holdout": 0}


def _digits(epochs: int, seeds: int) -> Setting:
    return Setting(
        task="digits", net="mlp", net_options={"hidden": [64, 64], "norm": "batch"},
        wide={"hidden": [156, 156], "norm": "batch"}, normalised=True, seeds=seeds,
        training={**_ADAM, "epochs": epochs, "lr": 3e-3, "batch_size": 64, "prior_precision": 1.0},
        task_options={},
    )  # fmt: skip


def _table(name: str, epochs: int, seeds: int) -> Setting:
    return Setting(
        task=name, net="mlp", net_options={"hidden": [64, 64]}, wide={"hidden": [134, 134]},
        training={**_ADAM, "epochs": epochs, "lr": 3e-3, "batch_size": 64, "prior_precision": 1.0},
        task_options={"noise": "output"}, classes=False, seeds=seeds,
    )  # fmt: skip


def _images(
    task: str, epochs: int, seeds: int, sizes: dict[str, Any], timed: tuple[str, ...] | None = None
) -> Setting:
    return Setting(
        task=task, net="cnn", net_options={"channels": [8, 16], "hidden": 32},
        wide={"channels": [16, 32], "hidden": 64}, seeds=seeds, task_options=sizes, timed=timed,
        training={**_ADAM, "epochs": epochs, "lr": 3e-3, "batch_size": 64, "prior_precision": 1.0},
    )  # fmt: skip


def _smoke() -> dict[str, Setting]:
    curve = replace(_table("gap_regression", 2, 2), task_options={})
    return {"digits": replace(_digits(1, 2), timed=("map", "packed")), "gap_regression": curve}


def _cpu() -> dict[str, Setting]:
    grey = {"num_train": 2000, "num_val": 500, "num_test": 1000, "ood": ["notmnist"], "shifts": []}
    colour = {"num_train": 2000, "num_val": 500, "num_test": 1000, "shifts": []}
    return {
        "digits": _digits(20, 5),
        "uci_energy": _table("uci_energy", 80, 5),
        "uci_concrete": _table("uci_concrete", 60, 5),
        "fashion_mnist": _images("fashion_mnist", 8, 3, grey, ("map", "packed", "mimo", "forde")),
        "cifar10_subset": _images("cifar10_subset", 8, 3, colour, ("map", "packed", "forde")),
    }


def _paper() -> dict[str, Setting]:
    sgd = {
        "optimizer": "nesterov", "momentum": 0.9, "lr": 0.1, "schedule": "cosine",
        "batch_size": 128, "epochs": 200, "prior_precision": 25.0, "holdout": 0,
        "augment": "crop+flip",
    }  # fmt: skip
    residual = Setting(
        task="cifar10", net="resnet18", net_options={}, wide={"width": 128}, training=sgd, seeds=5,
        task_options={}, normalised=True,
    )  # fmt: skip
    return {
        "digits": _digits(100, 5),
        "uci_energy": _table("uci_energy", 1000, 20),
        "uci_concrete": _table("uci_concrete", 1000, 20),
        "fashion_mnist": replace(
            _images("fashion_mnist", 50, 5, {"shifts": []}),
            net_options={"channels": [32, 64], "hidden": 100},
            wide={"channels": [64, 128], "hidden": 200},
        ),
        "cifar10": residual,
    }
