"""The parts of the study by preset.

paper: what is known of the talk's set-up. The toy is an MLP 1-50-50-1 with BatchNorm, 2,600
weights in the Bayesian model; Table 1 has networks of about 50,000 weights on MNIST-type data with
the whole curvature; shifts are rotations of MNIST. Not known, and chosen here: the toy's data (a
draw of a Matérn process, of the same authors), optimisers and lengths of training, the sizes of the
six networks but for their order, the number of images, whether scales and shifts of norms are in
the Bayesian model (here they are, with a prior of their own), and which statistics BatchNorm has in
the tangent. The transformer and the U-Net of the talk have other data (recalled, not checked: point
clouds, tomography). With all of MNIST the whole curvature of 50,000 weights is a matrix of 20 GB.

cpu: the toy with three seeds and four lengths of training; the scale of its normalised weights;
model selection among networks of 1, 5 and 20 hidden layers on 80 examples of it, five seeds; the
six networks on few images, so that kernels of N K rows hold the whole curvature (of the U-Net's
images a grid of 9 pixels each, so that they need not be fewer); rotated and
corrupted MNIST with LeNet, where `laplace` and its rivals are trained as usual; `large`, ResNet-20
with 272,474 weights on 100 images of CIFAR-10 and Kronecker factors.
"""

from __future__ import annotations

from typing import Any

from polymode.runs.part import Arm, Experiment, Part
from polymode.studies.linearised_laplace import experiments, occam
from polymode.studies.linearised_laplace.networks import IMAGE_NETS, part_of

STEPS = (50, 200, 1000, 3000)
SCALES = (1 / 3, 1.0, 3.0, 10.0)
SHIFTED = ("rotation", "gaussian_noise", "motion_blur")


def parts(preset: str) -> dict[str, Part | Experiment]:
    """Return the parts: the toy, the scale, the six networks, the shifts."""
    return {"smoke": _smoke, "cpu": _cpu, "paper": _paper}[preset]()


def steps_name(steps: int) -> str:
    """Return the arm after so many steps.

    >>> steps_name(1000)
    '1,000 steps'
    """
    return f"{steps:,} steps"


def scale_name(k: float) -> str:
    """Return the arm of a scale.

    >>> scale_name(1 / 3), scale_name(10.0)
    ('k = 1/3', 'k = 10')
    """
    return "k = 1/3" if k < 1 else f"k = {k:g}"


def _toy(steps: tuple[int, ...], scales: tuple[float, ...], seeds: int, trained: int) -> Any:
    return {
        "training": Experiment(
            function=experiments.training,
            arms={steps_name(n): {"steps": n} for n in steps},
            seeds=tuple(range(seeds)),
        ),
        "scale": Experiment(
            function=experiments.scale,
            arms={scale_name(k): {"k": k, "steps": trained} for k in scales},
            seeds=tuple(range(seeds)),
        ),
    }


def _networks(seeds: int, **options: Any) -> dict[str, Experiment]:
    """Return Table 1: the classifiers, and the U-Net, whose data are others."""
    return {
        part: Experiment(
            function=experiments.networks,
            arms={name: {"net": name, **options} for name in IMAGE_NETS if part_of(name) == part},
            seeds=tuple(range(seeds)),
        )
        for part in ("networks", "unet")
    }


def _smoke() -> dict[str, Part | Experiment]:
    small = {"task": "digits", "num_train": 30, "num_test": 40, "epochs": 2, "width": 0.3}
    return {
        **_toy((5,), (1.0, 3.0), 2, 5),
        "occam": occam.part((1, 5), (5,), 5, 2),
        **_networks(2, **small),
    }


def _cpu() -> dict[str, Part | Experiment]:
    sizes = {"task": "mnist", "num_train": 100, "num_test": 200, "epochs": 80}
    images = {"num_train": 500, "num_test": 400, "num_val": 100, "ood": [], "shifts": list(SHIFTED)}
    colour = {"num_train": 100, "num_test": 100, "num_val": 100, "ood": [], "shifts": []}
    return {
        **_toy(STEPS, SCALES, 3, 1000),
        "occam": occam.part(occam.DEPTHS, occam.WIDTHS, 1000, 5),
        **_networks(3, **sizes),
        "shifts": _shifts(
            images, "lenet", {"epochs": 40, "batch_size": 50}, 500, members=5, seeds=3
        ),
        "large": _large(
            "cifar10_subset", colour, "resnet20", {"epochs": 40, "batch_size": 50}, 100, seeds=3
        ),
    }


def _paper() -> dict[str, Part | Experiment]:
    images = {"ood": [], "shifts": list(SHIFTED)}
    colour: dict[str, Any] = {"ood": [], "shifts": []}
    return {
        **_toy((50, 200, 1000, 3000, 10_000), SCALES, 10, 3000),
        "occam": occam.part(occam.DEPTHS, (10, 50, 100), 3000, 10),
        **_networks(5, task="mnist", num_train=1000, num_test=10_000, epochs=100),
        "shifts": _shifts(images, "resnet18", {"epochs": 90}, 60_000, members=5, seeds=5),
        "large": _large("cifar10", colour, "resnet18", {"epochs": 200}, 50_000, seeds=5),
    }


def _shifts(
    images: dict[str, Any],
    net: str,
    training: dict[str, Any],
    examples: int,
    *,
    members: int,
    seeds: int,
) -> Part:
    """Return rotation and corruption: linearised Laplace and what the talk compares it with."""
    shared = {"lr": 2e-3, "prior_precision": 1e-4 * examples, **training}
    linear = {**shared, "evidence": "linear"}
    some = {"structure": "subnetwork", "subnetwork_size": 1000}
    arms = {
        "MAP": Arm("map", shared),
        "Laplace, KFAC": Arm("laplace", {**linear, "structure": "kron"}),
        "Laplace, KFAC, θ̃": Arm("laplace", {**shared, "structure": "kron", "evidence": "trained"}),
        "Laplace, diagonal": Arm("laplace", {**linear, "structure": "diag"}),
        "Laplace, last layer": Arm("laplace", {**linear, "structure": "last_layer"}),
        "subnetwork, energy": Arm("laplace", {**linear, **some, "subnetwork": "jacobian_energy"}),
        "subnetwork, variance": Arm(
            "laplace", {**linear, **some, "subnetwork": "largest_variance"}
        ),
        "dropout": Arm("dropout", shared, {"dropout": 0.2}),
        "deep ensemble": Arm("deep_ensemble", {**shared, "num_modes": members}),
        "SWAG": Arm("swag", {**shared, "lr": 0.02, "clip_norm": None}),
    }
    return Part(task="mnist", task_options=images, net=net, arms=arms, seeds=tuple(range(seeds)))


def _large(
    task: str,
    images: dict[str, Any],
    net: str,
    training: dict[str, Any],
    examples: int,
    *,
    seeds: int,
) -> Part:
    """Return one large network with Kronecker factors: θ̃ and θ*, one λ and one per group."""
    shared = {"lr": 2e-3, "prior_precision": 1e-4 * examples, "augment": None, **training}
    arms = {"MAP": Arm("map", shared)}
    for evidence, where in (("linear", "θ*"), ("trained", "θ̃")):
        for prior, title in (("single", "single λ"), ("per_group", "multiple λ")):
            options = {**shared, "structure": "kron", "evidence": evidence, "prior": prior}
            arms[f"{where}, {title}"] = Arm("laplace", options)
    return Part(task=task, task_options=images, net=net, arms=arms, seeds=tuple(range(seeds)))
