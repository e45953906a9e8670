"""The parts of the study by preset.

`zoo`: the reference, trained as the deep ensemble is: its scores, the corollary, and all pairs.
`toy`: 10,000 networks 2-2-1. `mass`: squared norm and its minimum over scalings along training.
A table for each data set: one mode and several of every method, against the zoo.

cpu: LeNet on the 8x8 digits; 1,000 networks as reference; 5 modes, 50 samples in all for methods
that draw; 5 seeds. OptuNet on 2,000 images of MNIST for `mass`. Rates, lengths, the share of units
that dropout drops and how Laplace finds its prior precision were chosen on the validation part
(`benchmarks/symmetry_tuning.py`, whose outcome a test compares with these numbers). All have the
prior N(0, 1) and temperature 1.

paper: ResNet-18 on CIFAR-100 and Tiny-ImageNet, with the published networks as reference: imported
by `polymode.zoo.import_published` into folders `checkpoints/<data>-resnet18`. The paper's
hyperparameters are not published; these are the usual ones of the same group (SGD with Nesterov
momentum 0.9, rate 0.1, weight decay 5e-4, 75 epochs; SWAG with rank 20; VI with prior deviation
0.1; Laplace of the last layer; SGHMC with samples from epoch 15 on). The rate is divided by 10
twice there and follows a cosine here. Weight decay w compared with the mean loss is the prior
precision w N.
"""

from __future__ import annotations

from typing import Any

from polymode.methods import METHODS
from polymode.runs.part import Arm, Experiment, Part
from polymode.studies.symmetry.experiments import mass, toy, zoo

SAMPLES = 50  # in all, of methods that draw
MODES = 10
MODES_CPU = 5
DECAY = 5e-4
LAPLACE = {"structure": "last_layer", "evidence": "trained", "prior": "single"}

NAMES = {
    "Dropout": "dropout", "viBNN": "vi", "SWAG": "swag", "Laplace": "laplace", "SGHMC": "sghmc",
}  # fmt: skip
OOD = {
    "digits": "patches", "two_moons": "ring", "cifar100": "svhn", "tiny_imagenet": "svhn",
}  # fmt: skip
"""The OOD set of each table."""


def parts(preset: str) -> dict[str, Part | Experiment]:
    """Return the parts."""
    return {"smoke": _smoke, "cpu": _cpu, "paper": _paper}[preset]()


def examined(name: str, num_reference: int) -> str:
    """Return the examination of every posterior, as results name it."""
    return f"symmetry:num_reference={num_reference},zoo={name}"


def _arms(
    sgd: dict[str, Any],
    by_method: dict[str, dict[str, Any]],
    *,
    modes: int,
    samples: int,
    dropout: dict[str, Any],
) -> dict[str, Arm]:
    """Return one mode and several of each method that this release has, and the deep ensemble.

    Args:
        sgd: training of all that train by gradients. by_method: further options by method.
        dropout: options of the network that drops units.
    """
    shared = {key: sgd[key] for key in ("batch_size", "prior_precision")}
    arms: dict[str, Arm] = {}
    for many, suffix in ((1, "one"), (modes, "multi")):
        for name, method in NAMES.items():
            if method not in METHODS:
                continue
            trained = shared if method == "sghmc" else sgd
            options = {**trained, **by_method.get(method, {})}
            options |= {"num_modes": many, "samples_per_mode": max(samples // many, 1)}
            arms[f"{name}, {suffix}"] = Arm(method, options, dropout if name == "Dropout" else {})
    arms["DE"] = Arm("deep_ensemble", {**sgd, "num_modes": modes})
    return arms


def _smoke() -> dict[str, Part | Experiment]:
    sgd = {"lr": 0.05, "epochs": 2, "batch_size": 64, "prior_precision": 1.0}
    by_method: dict[str, dict[str, Any]] = {
        "swag": {"epochs": 4, "lr": 0.02, "clip_norm": None},
        "sghmc": {"epochs": 4, "step_limit": None},
    }
    arms = _arms(sgd, by_method, modes=3, samples=6, dropout={"dropout": 0.2})
    return {
        "zoo": Experiment(
            function=zoo,
            arms={"two_moons-mlp": {"name": "two_moons-mlp", "number": 50}},
            seeds=(0,),
        ),
        "toy": Experiment(function=toy, arms={"2-2-1": {"number": 100}}, seeds=(0,)),
        "mass": Experiment(
            function=mass,
            arms={"two_moons-mlp": {"name": "two_moons-mlp", "number": 5, "moments": [0, 1, 2]}},
            seeds=(0,),
        ),
        "two_moons": Part(
            task="two_moons", net="mlp", net_options={"hidden": [8]}, arms=arms, seeds=(0, 1),
            examine=(examined("two_moons-mlp", 50),),
        ),
    }  # fmt: skip


def _cpu() -> dict[str, Part | Experiment]:
    sgd = {
        "optimizer": "nesterov", "momentum": 0.9, "schedule": "cosine", "batch_size": 64,
        "data_order": "own", "lr": 0.02, "epochs": 30, "prior_precision": 1.0,
    }  # fmt: skip
    by_method: dict[str, dict[str, Any]] = {
        "laplace": LAPLACE,
        "swag": {
            "optimizer": "sgd",
            "lr": 0.05,
            "schedule": "constant",
            "epochs": 60,
            "clip_norm": None,
        },
        "sghmc": {"lr": 0.01, "epochs": 80, "data_order": "own", "step_limit": None},
        "vi": {"optimizer": "adam", "momentum": 0.0, "lr": 3e-2, "std_lr": 0.01, "epochs": 20},
    }
    arms = _arms(sgd, by_method, modes=MODES_CPU, samples=SAMPLES, dropout={"dropout": 0.05})
    optunet = {"name": "mnist-optunet", "number": 64, "moments": [0, 1, 2, 4, 8, 16, 30]}
    optunet |= {"settings": {"task.num_train": 2000, "task.num_test": 1000, "prior_precision": 0.4}}
    return {
        "zoo": Experiment(
            function=zoo,
            arms={"digits-lenet": {"name": "digits-lenet", "number": 1000}},
            seeds=(0,),
        ),
        "toy": Experiment(function=toy, arms={"2-2-1": {"number": 10_000}}, seeds=(0,)),
        "digits": Part(
            task="digits", net="lenet", arms=arms, seeds=tuple(range(5)),
            examine=(examined("digits-lenet", 1000),),
        ),
        "mass": Experiment(
            function=mass,
            arms={
                "mnist-optunet": optunet,
                "digits-lenet": {
                    "name": "digits-lenet", "number": 32, "moments": [0, 1, 2, 4, 8, 16, 30],
                },
            },
            seeds=(0,),
            data=("mnist",),
        ),
    }  # fmt: skip


def _paper() -> dict[str, Part | Experiment]:
    parts: dict[str, Part | Experiment] = {
        "toy": Experiment(function=toy, arms={"2-2-1": {"number": 10_000}}, seeds=(0,)),
        "mass": Experiment(
            function=mass,
            arms={
                "mnist-optunet": {
                    "name": "mnist-optunet", "number": 1024, "moments": [0, 1, 2, 4, 8, 15, 30, 60],
                },
            },
            seeds=(0,),
            data=("mnist",),
        ),
    }  # fmt: skip
    for name, examples in (("cifar100", 50_000), ("tiny_imagenet", 100_000)):
        sgd = {
            "optimizer": "nesterov", "momentum": 0.9, "schedule": "cosine", "batch_size": 128,
            "data_order": "own", "lr": 0.1, "epochs": 75, "prior_precision": DECAY * examples,
            "augment": "crop+flip",
        }  # fmt: skip
        by_method: dict[str, dict[str, Any]] = {
            "laplace": LAPLACE,
            "swag": {
                "optimizer": "sgd",
                "lr": 0.05,
                "schedule": "constant",
                "rank": 20,
                "clip_norm": None,
            },
            "sghmc": {
                "lr": 1e-3,
                "epochs": 75,
                "batch_size": 256,
                "augment": "crop+flip",
                "burn_in": 15 * -(-examples // 256),
                "step_limit": None,
            },
            "vi": {"prior_precision": 100.0, "kl_weight": 2e-5 * examples, "std_lr": 0.01},
        }
        arms = _arms(sgd, by_method, modes=MODES, samples=160, dropout={"dropout": 0.1})
        folder = f"checkpoints/{name.replace('_', '-')}-resnet18"
        parts[name] = Part(
            task=name, task_options={"num_val": 0, "ood": ["svhn"], "shifts": []}, net="resnet18",
            arms=arms, seeds=tuple(range(3)), examine=(examined(folder, 1000),),
        )  # fmt: skip
    return parts
