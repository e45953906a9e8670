"""What the networks of a zoo are: a task, a network and how it is trained.

Names are `<data>-<network>`, as in the published set (O. Laurent, E. Aldea, G. Franchi, ICLR 2024).
The training of `mnist-optunet` is that of the public relative of the paper's network (SGD with rate
0.04, weight decay 2e-4, 60 epochs in batches of 64; the rate is halved twice there and follows a
cosine here). Weight decay w compared with the mean loss is the prior precision w N.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polymode.core.checks import check_call
from polymode.core.registry import Registry
from polymode.core.safe_files import FileProblem, json_safe
from polymode.methods.fit import check_options
from polymode.methods.method import METHODS
from polymode.nets.user_network import networks_for
from polymode.tasks.named import task as make_task
from polymode.tasks.task import Task


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How the networks of a zoo are made; every one starts and shuffles by its own stream.

    Attributes:
        task, task_options: see `pm.task`; its seed is 0 for all networks.
        net, net_options: of `pm.nets`.
        method, options: what trains one network per mode, and how; not `num_modes`.
    """

    task: str
    net: str
    task_options: dict[str, Any] = field(default_factory=dict)
    net_options: dict[str, Any] = field(default_factory=dict)
    method: str = "deep_ensemble"
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_call(Recipe, vars(self))
        check_options(self.method, self.options)
        if METHODS.get(self.method).value.convert is not None:
            raise ValueError(
                f"a zoo holds networks as they are built, but {self.method} converts them; take"
                " deep_ensemble, or train and save one posterior: pm.fit(...).save(folder)"
            )
        if "num_modes" in self.options:
            raise ValueError(
                "`num_modes` does not belong to the options of a zoo: a network has one mode;"
                " give the number of networks"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return it in a form JSON holds."""
        return dict(json_safe(dataclasses.asdict(self)))

    def with_settings(self, settings: dict[str, Any]) -> Recipe:
        """Return a recipe with other options: `task.NAME`, `net.NAME`, or the method's `NAME`.

        >>> RECIPES.get("digits-lenet").value.with_settings({"net.dropout": 0.1}).net_options
        {'dropout': 0.1}
        """
        groups: dict[str, dict[str, Any]] = {
            "task": dict(self.task_options), "net": dict(self.net_options), "": dict(self.options),
        }  # fmt: skip
        for name, value in settings.items():
            group, dot, option = name.partition(".")
            if dot and group not in ("task", "net"):
                raise ValueError(
                    f"'{name}' belongs to nothing: write task.{option}, net.{option}, or {option}"
                )
            groups[group if dot else ""][option if dot else name] = value
        return dataclasses.replace(
            self, task_options=groups["task"], net_options=groups["net"], options=groups[""]
        )

    def make_task(self) -> Task:
        """Return the task."""
        return make_task(self.task, **self.task_options)

    def make_net(self, input_shape: tuple[int, ...], num_outputs: int) -> Any:
        """Return what makes a network for these shapes."""
        make = networks_for(self.net, input_shape, num_outputs)
        return lambda: make(**self.net_options)


def recipe_of(folder: Path, about: dict[str, Any]) -> Recipe:
    """Return the recipe that a zoo's file holds."""
    try:
        recipe = Recipe(**about["recipe"])
        for name in ("task", "net", "method"):
            if not isinstance(value := getattr(recipe, name), str):
                raise ValueError(f"`{name}` must be text, got {value!r:.60}")
        for name in ("task_options", "net_options", "options"):
            if not isinstance(value := getattr(recipe, name), dict):
                raise ValueError(f"`{name}` must be an object, got {value!r:.60}")
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise FileProblem(f"{folder}: its recipe cannot be read: {error}") from None
    return recipe


RECIPES: Registry[Recipe] = Registry("recipe of a zoo")

_SGD: dict[str, Any] = {
    "optimizer": "nesterov", "momentum": 0.9, "schedule": "cosine", "batch_size": 64,
    "data_order": "own",
}  # fmt: skip

RECIPES.register("two_moons-mlp", summary="MLP 2-8-2 on two moons, 42 parameters, for trials")(
    Recipe(
        task="two_moons",
        net="mlp",
        net_options={"hidden": [8]},
        options={**_SGD, "lr": 0.05, "epochs": 5, "prior_precision": 1},
    )
)
RECIPES.register("digits-lenet", summary="LeNet on the 8x8 digits, 21,386 parameters")(
    Recipe(
        task="digits", net="lenet", options={**_SGD, "lr": 0.02, "epochs": 30, "prior_precision": 1}
    )  # fmt: skip
)
RECIPES.register("mnist-optunet", summary="OptuNet on MNIST, 355 parameters")(
    Recipe(
        task="mnist",
        net="optunet",
        options={
            **_SGD,
            "optimizer": "sgd",
            "momentum": 0.0,
            "lr": 0.04,
            "epochs": 60,
            "prior_precision": 2e-4 * 55_000,
        },  # fmt: skip
    )
)
RECIPES.register("fashion_mnist-lenet", summary="LeNet on Fashion-MNIST, 44,426 parameters")(
    Recipe(
        task="fashion_mnist",
        net="lenet",
        options={**_SGD, "lr": 0.05, "epochs": 10, "prior_precision": 5e-4 * 55_000},
    )
)
RECIPES.register("cifar10-resnet8", summary="ResNet-8 on CIFAR-10, 78,042 parameters")(
    Recipe(
        task="cifar10",
        net="resnet8",
        options={
            **_SGD,
            "lr": 0.1,
            "epochs": 30,
            "batch_size": 128,
            "prior_precision": 5e-4 * 45_000,
            "augment": "crop+flip",
        },  # fmt: skip
    )
)
