"""The parts of the study by preset.

paper: what the paper and its code say. CIFAR: ResNet18 with a head that starts at 0, SGD with
Nesterov momentum 0.9, rate 0.1, constant for half of 300 epochs, then linear to 0.001 at nine
tenths; weight decay 5e-4 on all parameters; batches of 128, crop and flip; 10 members, 5 seeds; all
19 corruptions. A tenth of the training images is held out, as in the code. TinyImageNet: a
preactivation ResNet18, 150 epochs. The code drops the last, smaller batch; here it counts. The
figures' own set-ups are not published but for their 16 members: those of `cpu` stand in.

cpu: LeNet on a part of Fashion-MNIST with 5 seeds, and on a part of CIFAR-10 with 3 and fewer
alphas; 5 members; 750 and 700 steps at half the rate; the 128 largest eigenvalues. Corruptions are
the fifteen of the benchmark: the other four serve to choose alpha, on the validation set. Where the
file with a part of CIFAR-10 is not there, as many images of the whole are taken. Five parts look
for what the gain takes: `fashion_mnist_few`, 2,000 images, which LeNets fit to the last,
`fashion_mnist_long`, the same for five times as many epochs; `fashion_mnist_mlp`, 10 MLPs, quick
enough for so many seeds that small differences show, `fashion_mnist_mlp_long`, five times as many
epochs again; and `cifar10_resnet8`, 2,000 images, as they are, and networks with BatchNorm, nearer
to the paper's.

The deep ensemble is there in both orders of the data: each member shuffles for itself (DE), and
all see the same batches, as the members of FoRDE do. Claims are judged against the better one. All
arms train on all data to the last step (`holdout=0`).

Weight decay w compared with the mean loss is the prior precision w N of `map`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from polymode.runs.part import Arm, Part
from polymode.tasks.files import find
from polymode.tasks.shifts import CORRUPTIONS
from polymode.tasks.validation import VALIDATION_CORRUPTIONS

ALPHAS = (0.0, 0.1, 0.2, 0.4, 0.8, 1.0)
WEIGHT_DECAY = 5e-4
HELD_OUT = [name for name in CORRUPTIONS if name not in VALIDATION_CORRUPTIONS]
FAMILIES = {
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    "weather": ("snow", "frost", "fog", "brightness"),
    "digital": ("contrast", "elastic_transform", "pixelate", "jpeg"),
}
FIGURE_MEMBERS = 16
SAME_BATCHES = "DE, same batches"
"""The deep ensemble whose members see the same batches, as those of FoRDE do."""

_SGD: dict[str, Any] = {
    "optimizer": "nesterov", "momentum": 0.9, "lr": 0.1, "schedule": "ramp", "batch_size": 128,
}  # fmt: skip
_ADAM: dict[str, Any] = {"optimizer": "adam", "lr": 1e-2, "schedule": "cosine"}


def parts(preset: str) -> dict[str, Part]:
    """Return the parts: two figures, then the tables."""
    tables = {"smoke": _smoke, "cpu": _cpu, "paper": _paper}[preset]
    return {**_figures(preset), **tables()}


def name_of(alpha: float) -> str:
    """Return the arm that has this alpha.

    >>> name_of(0.0), name_of(0.4), name_of(1.0)
    ('FoRDE-Identity', 'FoRDE α=0.4', 'FoRDE-PCA')
    """
    return {0.0: "FoRDE-Identity", 1.0: "FoRDE-PCA"}.get(alpha, f"FoRDE α={alpha:g}")


def _figures(preset: str) -> dict[str, Part]:
    """Return the parts of the 1-D regression and the 2-D classification."""
    short = preset == "smoke"
    members = 4 if short else FIGURE_MEMBERS
    seeds = (0, 1) if short else tuple(range(10))
    curve = {**_ADAM, "epochs": 2 if short else 500, "batch_size": 128, "num_modes": members}
    plane = {**_ADAM, "epochs": 2 if short else 200, "batch_size": 32, "num_modes": members}
    return {
        "regression": Part(
            task="three_clusters", net="mlp", arms=_toy_arms(curve), seeds=seeds
        ),
        "classification": Part(
            task="five_gaussians", net="mlp", arms=_toy_arms(plane), seeds=seeds
        ),
    }  # fmt: skip


def _toy_arms(training: dict[str, Any]) -> dict[str, Arm]:
    return {
        "DE": Arm("deep_ensemble", training),
        SAME_BATCHES: Arm("deep_ensemble", {**training, "data_order": "shared"}),
        "weight-RDE": Arm("weight_rde", {**training, "estimator": "kde"}),
        "function-RDE": Arm("function_rde", training),
        "FoRDE": Arm("forde", training),
    }


def _arms(
    training: dict[str, Any],
    *,
    examples: int,
    components: int | None = None,
    alphas: tuple[float, ...] = ALPHAS,
) -> dict[str, Arm]:
    """Return the lines of the table and the points of the sweep; `examples` are trained on."""
    shared = {**training, "prior_precision": WEIGHT_DECAY * examples}
    arms = {
        "DE": Arm("deep_ensemble", shared),
        SAME_BATCHES: Arm("deep_ensemble", {**shared, "data_order": "shared"}),
        "weight-RDE": Arm("weight_rde", {**shared, "estimator": "kde"}),
        "function-RDE": Arm("function_rde", shared),
    }
    pca = {"lengthscales": "pca", "num_components": components}
    for alpha in alphas:
        scales = {"lengthscales": "identity"} if alpha == 0 else {**pca, "alpha": alpha}
        arms[name_of(alpha)] = Arm("forde", {**shared, **scales})
    return arms


def _further(shared: dict[str, Any], prior_scale: float) -> dict[str, Arm]:
    return {
        "feature-RDE": Arm("feature_rde", {**shared, "prior_scale": prior_scale}),
        "LIT": Arm("lit", shared),
    }


VARIANTS: dict[str, dict[str, Any]] = {
    "PCA, every 4th step": {"every": 4},
    "PCA, every 8th step": {"every": 8},
    "PCA, a quarter of the batch": {"fraction": 0.25},
    "PCA, an eighth of the batch": {"fraction": 0.125},
    "PCA, directions among components": {"directions": "components"},
    "PCA, weight 0.1": {"weight": 0.1},
    "PCA, weight 1": {"weight": 1.0},
    "PCA, one bandwidth for all pairs": {"bandwidth": "all"},
    "PCA, of the log-probability": {"scalar": "log_prob"},
}
"""FoRDE-PCA at less cost, with a stronger repulsion than the usual 1/128, with the bandwidth of the
paper's algorithm, and with the gradient that its text speaks of."""


def _variants(pca: Arm, names: Iterable[str] = VARIANTS) -> dict[str, Arm]:
    return {name: Arm("forde", {**pca.options, **VARIANTS[name]}) for name in names}


def _smoke() -> dict[str, Part]:
    training = {**_SGD, "lr": 0.05, "epochs": 1, "num_modes": 2}
    arms = _arms(training, examples=1197, components=16, alphas=(0.0, 0.4, 1.0))
    arms |= _variants(arms["FoRDE-PCA"])
    return {"digits": Part(task="digits", net="lenet", arms=arms, seeds=(0, 1), validation=True)}


def _cpu() -> dict[str, Part]:
    few = {**_SGD, "lr": 0.05, "num_modes": 5}
    grey = {"num_train": 12_000, **_sizes(2000)}
    colour = {"num_train": 9000, **_sizes(2000)}
    arms = _arms({**few, "epochs": 8}, examples=12_000, components=128)
    arms |= _further(arms["DE"].options, 1e-3) | _variants(arms["FoRDE-PCA"])
    coloured = _arms(
        {**few, "epochs": 10}, examples=9000, components=128, alphas=(0.0, 0.4, 1.0)
    )  # fmt: skip
    small = {"num_train": 2000, **_sizes(1000)}
    fitted = _two_arms({**few, "epochs": 60}, examples=2000)
    longer = _two_arms({**few, "epochs": 300}, examples=2000)
    residual = _two_arms({**few, "lr": 0.1, "epochs": 20, "augment": None}, examples=2000)
    images = _colour_images()
    looked_at = ("PCA, weight 0.1", "PCA, weight 1", "PCA, directions among components")
    dense = _forde_arms({**few, "num_modes": 10, "epochs": 8}, (0.0, 0.4, 1.0))
    dense |= _variants(dense["FoRDE-PCA"], looked_at)
    dense_longer = _forde_arms({**few, "num_modes": 10, "epochs": 40}, (0.0, 0.4, 1.0))
    return {
        "fashion_mnist": _part("fashion_mnist", grey, "lenet", arms, 5),
        "cifar10_subset": _part(images, colour, "lenet", coloured, 3),
        "fashion_mnist_few": _part("fashion_mnist", small, "lenet", fitted, 8),
        "fashion_mnist_long": _part("fashion_mnist", small, "lenet", longer, 4),
        "fashion_mnist_mlp": _mlps(grey, dense, 8),
        "fashion_mnist_mlp_long": _mlps(grey, dense_longer, 8),
        "cifar10_resnet8": _part(images, small, "resnet8", residual, 3),
    }


def _colour_images() -> str:
    """Return the small file with a part of CIFAR-10, or all of it where that is not there."""
    return "cifar10" if find("cifar10_subset") is None else "cifar10_subset"


def _sizes(num_test: int) -> dict[str, Any]:
    return {"num_val": 1000, "num_test": num_test, "ood": [], "shifts": HELD_OUT}


def _two_arms(training: dict[str, Any], *, examples: int) -> dict[str, Arm]:
    """Return the deep ensemble in both orders and FoRDE-PCA."""
    arms = _arms(training, examples=examples, components=128, alphas=(1.0,))
    return {name: arms[name] for name in ("DE", SAME_BATCHES, "FoRDE-PCA")}


def _forde_arms(training: dict[str, Any], alphas: tuple[float, ...]) -> dict[str, Arm]:
    """Return the deep ensemble and FoRDE with these alphas, on 12,000 images."""
    arms = _arms(training, examples=12_000, components=128, alphas=alphas)
    return {name: arm for name, arm in arms.items() if not name.endswith("RDE")}


def _mlps(options: dict[str, Any], arms: dict[str, Arm], seeds: int) -> Part:
    part = _part("fashion_mnist", options, "mlp", arms, seeds)
    return replace(part, net_options={"hidden": [128, 128]})


def _part(task: str, options: dict[str, Any], net: str, arms: dict[str, Arm], seeds: int) -> Part:
    return Part(
        task=task, task_options=options, net=net, arms=arms, seeds=tuple(range(seeds)),
        validation=True,
    )  # fmt: skip


def _paper() -> dict[str, Part]:
    parts = {}
    for name, examples, epochs, net_options in (
        ("cifar10", 45_000, 300, {}),
        ("cifar100", 45_000, 300, {}),
        ("tiny_imagenet", 90_000, 150, {"preactivation": True}),
    ):
        alphas = ALPHAS if name.startswith("cifar") else (0.0, 1.0)
        training = {**_SGD, "epochs": epochs, "num_modes": 10}
        shared = {**training, "prior_precision": WEIGHT_DECAY * examples}
        scale = 1e-3 if name == "cifar10" else 5e-3
        parts[name] = Part(
            task=name,
            task_options={"num_val": examples // 9, "ood": [], "shifts": list(CORRUPTIONS)},
            net="resnet18",
            net_options={"zero_head": True, **net_options},
            arms={
                **_arms(training, examples=examples, alphas=alphas),
                **_further(shared, scale),
            },
            seeds=tuple(range(5)),
            validation=True,
        )
    return parts
