"""The parts of the study by preset.

Every method of the box takes part that is registered: conversions of the same network into cheaper
ensembles, deterministic heads, averages of one mode, beside one network, a deep ensemble and FoRDE.

cpu: digits, parts of Fashion-MNIST and of CIFAR-10, two tables; small networks, so that all of it
takes less than an hour of one core. paper: the same networks, wider and for longer, on all data of
Fashion-MNIST and the tables, and ResNet18 on CIFAR-10; 5 seeds, 20 on tables.

*At equal training*, all arms have the same epochs. *At equal parameters*, the lines are those whose
numbers in memory are about those of one network, among them Packed, a deep ensemble of four thin
networks; one network with four times the weights stands beside the deep ensemble. *At equal time*,
an arm that is cheaper than the deep ensemble has more epochs, one that is dearer has fewer: `SMALL`
and `IMAGES` are by how much, measured once per method and rounded; what training took in the end
stands beside it.

Members are four everywhere. Options are those of the papers where they are options at all; rates
and epochs are the same for all methods, and nothing was tuned. All arms train on all data to the
last step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from polymode.methods import METHODS
from polymode.runs.part import Arm, Part

MEMBERS = 4
SINGLE, ENSEMBLE, WIDE = "one network", "deep ensemble", "one network, 4 × parameters"
THIN = "packed, one network's parameters"
METHODS_OF_THE_BOX = (
    "packed", "batch_ensemble", "tabm", "masksembles", "mimo", "lp_bnn", "vbll", "sngp", "ddu",
    "evidential", "ema", "swa", "mc_batchnorm", "dropout",
)  # fmt: skip
SMALL = {
    "map": 2.0, "packed": 1.3, "batch_ensemble": 0.7, "tabm": 0.7, "vbll": 0.65,
    "evidential": 1.2, "ema": 1.7, "swa": 1.7, "mc_batchnorm": 2.0, "forde": 0.4,
    "sngp": 1.5, "ddu": 2.0, "lp_bnn": 0.2,
}  # fmt: skip
IMAGES = {
    "map": 3.7, "packed": 1.5, "batch_ensemble": 0.6, "vbll": 2.5, "evidential": 3.6, "ema": 3.6,
    "swa": 3.6, "forde": 0.35, "masksembles": 0.7, "sngp": 2.9, "ddu": 3.7, "lp_bnn": 0.5,
    "mimo": 2.3,
}  # fmt: skip
"""Epochs that take as long as the deep ensemble's, over its own, by CPU time of one thread: small
dense networks, where four members cost little more than one, and convolutions. A method that is
not there takes as long, or was not measured."""
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
        time: what equal training time is, `SMALL` or `IMAGES`.
        timed: methods that are also run at equal time; None for all.
        thin: alpha of Packed at which it has one network's parameters, where 2 is not it: the
            first and the last layer of a small network hold much, and thinning saves less there.
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
    time: Mapping[str, float] = field(default_factory=lambda: SMALL)
    timed: tuple[str, ...] | None = None
    thin: float | None = None


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
    if setting.thin is not None:
        packed = _arm("packed", setting)
        every[THIN] = packed._replace(options={**packed.options, "alpha": setting.thin})
    for method in METHODS_OF_THE_BOX:
        if _applies(method, setting):
            every[method] = _arm(method, setting)
    if setting.classes:
        every["FoRDE"] = _arm("forde", setting)
    equal = {}
    for name, arm in every.items():
        factor = setting.time.get(arm.method, 1.0)
        wanted = setting.timed is None or arm.method in setting.timed
        if factor != 1.0 and name not in (WIDE, THIN) and wanted:
            epochs = max(1, round(factor * arm.options["epochs"]))
            equal[timed(name)] = arm._replace(options={**arm.options, "epochs": epochs})
    return {**every, **equal}


def _applies(method: str, setting: Setting) -> bool:
    if method not in METHODS.names() or (method in NORMALISED and not setting.normalised):
        return False
    return method not in (TABLES_ONLY if setting.classes else CLASSES_ONLY)


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
        task_options={}, thin=1.4,
    )  # fmt: skip


def _table(name: str, epochs: int, seeds: int) -> Setting:
    return Setting(
        task=name, net="mlp", net_options={"hidden": [64, 64]}, wide={"hidden": [134, 134]},
        training={**_ADAM, "epochs": epochs, "lr": 3e-3, "batch_size": 64, "prior_precision": 1.0},
        task_options={"noise": "learned"}, classes=False, seeds=seeds, thin=1.8,
    )  # fmt: skip


def _images(
    task: str, epochs: int, seeds: int, sizes: dict[str, Any], timed: tuple[str, ...] | None = None
) -> Setting:
    return Setting(
        task=task, net="cnn", net_options={"channels": [8, 16], "hidden": 32},
        wide={"channels": [16, 32], "hidden": 64}, seeds=seeds, task_options=sizes, timed=timed,
        time=IMAGES,
        training={**_ADAM, "epochs": epochs, "lr": 3e-3, "batch_size": 64, "prior_precision": 1.0},
    )  # fmt: skip


def _smoke() -> dict[str, Setting]:
    curve = _table("gap_regression", 2, 2)
    return {"digits": replace(_digits(1, 2), timed=("map", "packed")), "gap_regression": curve}


def _cpu() -> dict[str, Setting]:
    grey = {"num_train": 1500, "num_val": 500, "num_test": 1000, "ood": ["notmnist"], "shifts": []}
    colour = {"num_train": 1500, "num_val": 500, "num_test": 1000, "shifts": []}
    few = ("map", "packed", "batch_ensemble", "mimo", "forde")
    return {
        "digits": _digits(20, 5),
        "uci_energy": _table("uci_energy", 60, 5),
        "uci_concrete": _table("uci_concrete", 40, 5),
        "fashion_mnist": _images("fashion_mnist", 6, 3, grey, few),
        "cifar10_subset": _images("cifar10_subset", 6, 3, colour, few),
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
