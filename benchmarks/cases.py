"""What is measured: networks, data and sizes.

Only torch is needed here, so that a peer's interpreter can import it.

`M` modes, `B` batch, `C` classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def mlp(*sizes: int, activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    """Dense network with the given layer sizes; inputs are flattened first."""
    layers: list[nn.Module] = [nn.Flatten()]
    for fan_in, fan_out in zip(sizes, sizes[1:], strict=False):
        layers += [nn.Linear(fan_in, fan_out), activation()]
    return nn.Sequential(*layers[:-1])


def lenet() -> nn.Sequential:
    """LeNet with max-pooling for 1x28x28 images: convolutions 6-16 of 5x5, dense 120-84-10."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), *list(mlp(256, 120, 84, 10))[1:],
    )  # fmt: skip


def optunet() -> nn.Sequential:
    """OptuMNIST-v1, 355 parameters: convolutions 2 and 10 (two groups), dense 3-10."""
    return nn.Sequential(
        nn.Conv2d(1, 2, 4, bias=False), nn.ReLU(), nn.MaxPool2d(3),
        nn.Conv2d(2, 10, 5, groups=2, bias=False), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(10, 3), nn.ReLU(), nn.Linear(3, 10),
    )  # fmt: skip


def noisy_lenet() -> nn.Sequential:
    """LeNet with dropout before each of its dense layers."""
    layers: list[nn.Module] = []
    for layer in lenet():
        layers += [nn.Dropout(0.5), layer] if isinstance(layer, nn.Linear) else [layer]
    return nn.Sequential(*layers)


def noisy_mlp() -> nn.Sequential:
    """MLP 784-100-100-10 with dropout before each layer, inputs included."""
    layers: list[nn.Module] = []
    for layer in mlp(784, 100, 100, 10):
        layers += [nn.Dropout(0.5), layer] if isinstance(layer, nn.Linear) else [layer]
    return nn.Sequential(*layers)


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with BatchNorm and a 1x1 shortcut where the shape changes."""

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or width_in != width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(width_in, width, 1, stride, bias=False), nn.BatchNorm2d(width)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(out + self.shortcut(x))


def resnet8() -> nn.Sequential:
    """ResNet-8 for 3x32x32 images: widths 16-32-64, one block a stage, BatchNorm."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        ResidualBlock(16, 16, 1), ResidualBlock(16, 32, 2), ResidualBlock(32, 64, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


def resnet20() -> nn.Sequential:
    """ResNet-20 for 3x32x32 images: as ResNet-8, with three blocks a stage."""
    blocks = [
        ResidualBlock(*sizes)
        for sizes in (
            (16, 16, 1), (16, 16, 1), (16, 16, 1), (16, 32, 2), (32, 32, 1), (32, 32, 1),
            (32, 64, 2), (64, 64, 1), (64, 64, 1),
        )
    ]  # fmt: skip
    head = resnet8()
    return nn.Sequential(*head[:3], *blocks, *head[6:])


@dataclass(frozen=True)
class Case:
    """One line of work; `kind` says who contends (see `contenders`)."""

    name: str
    kind: str
    title: str
    make_net: Callable[[], nn.Module] = nn.Identity
    input_shape: tuple[int, ...] = ()
    num_classes: int = 10
    num_modes: int = 10
    num_examples: int = 6000
    epochs: int = 1
    batch_size: int = 128
    lr: float = 1e-3
    option: str = ""  # augmentation, corruption or file format, where the kind has such

    @property
    def num_steps(self) -> int:
        """Optimiser steps (or batches predicted) in a round."""
        return self.epochs * -(-self.num_examples // self.batch_size)

    def members(self) -> list[nn.Module]:
        """The M networks, the same for every contender: member k is drawn with seed k."""
        nets = []
        for k in range(self.num_modes):
            torch.manual_seed(k)
            nets.append(self.make_net())
        return nets

    def batches(self, x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Shuffled mini-batches of all epochs, in an order fixed by a seed."""
        generator = torch.Generator().manual_seed(0)
        for _ in range(self.epochs):
            for index in torch.randperm(len(x), generator=generator).split(self.batch_size):
                yield x[index], y[index]

    def own_batches(self, x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Mini-batches (M, B, ...) of all epochs: each member shuffles for itself."""
        generators = [torch.Generator().manual_seed(k) for k in range(self.num_modes)]
        for _ in range(self.epochs):
            orders = torch.stack([torch.randperm(len(x), generator=g) for g in generators])
            for index in orders.split(self.batch_size, 1):
                yield x[index], y[index]


@lru_cache(maxsize=2)
def data(case: Case) -> tuple[Tensor, Tensor]:
    """Inputs and int64 labels: noisy prototypes of classes; for the toy two separable clouds."""
    generator = torch.Generator().manual_seed(0)
    if case.kind == "toy":
        y = torch.arange(case.num_examples) % 2
        centre = 3.0 * y[:, None] - 1.5
        return centre + 0.4 * torch.randn(case.num_examples, 2, generator=generator), y
    prototypes = torch.randn(case.num_classes, *case.input_shape, generator=generator)
    y = torch.randint(case.num_classes, (case.num_examples,), generator=generator)
    noise = torch.randn(case.num_examples, *case.input_shape, generator=generator)
    return noise + prototypes[y], y


def in_the_box(case: Case) -> tuple[Tensor, Tensor]:
    """The same inputs, moved into [0, 1]: most of them within four standard deviations."""
    x, y = data(case)
    return ((x + 4) / 8).clamp(0, 1), y


@lru_cache(maxsize=2)
def images(case: Case) -> tuple[Tensor, Tensor]:
    """Images as bytes (N, C, H, W), smooth with some noise, and labels."""
    generator = torch.Generator().manual_seed(0)
    shape = (case.num_examples, *case.input_shape)
    coarse = torch.randint(256, (*shape[:2], 4, 4), generator=generator).float()
    smooth = F.interpolate(coarse, case.input_shape[1:], mode="bilinear")
    noise = torch.randint(-8, 8, shape, generator=generator)
    y = torch.randint(case.num_classes, (case.num_examples,), generator=generator)
    return smooth.add_(noise).clamp_(0, 255).to(torch.uint8), y


@lru_cache(maxsize=2)
def member_log_probs(case: Case, shift: float) -> tuple[Tensor, Tensor]:
    """Log-probabilities (M, B, C) of members that agree the more, the larger `shift`; labels."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(case.num_classes, (case.num_examples,), generator=generator)
    shared = torch.randn(case.num_examples, case.num_classes, generator=generator)
    logits = shared + torch.randn(case.num_modes, *shared.shape, generator=generator)
    logits[:, torch.arange(len(labels)), labels] += 2.0 * shift
    return logits.log_softmax(-1), labels


def evaluated_data(case: Case) -> tuple[list[nn.Module], Tensor, Tensor, Tensor]:
    """Linear members, test inputs with labels that they half know, and inputs from elsewhere."""
    generator = torch.Generator().manual_seed(0)
    x, outside = (torch.randn(case.num_examples, *case.input_shape, generator=generator) * s
                  for s in (1.0, 0.7))  # fmt: skip
    shared = torch.randn(case.num_classes, *case.input_shape, generator=generator) / 3
    nets: list[nn.Module] = []
    for _ in range(case.num_modes):
        net = nn.Linear(case.input_shape[0], case.num_classes, bias=False)
        own = torch.randn(shared.shape, generator=generator) / 3
        net.weight = nn.Parameter(shared + own)
        nets.append(net.eval())
    y = torch.cat([(part @ shared.T * 2).softmax(-1).multinomial(1, generator=generator)[:, 0]
                   for part in x.split(1000)])  # fmt: skip
    return nets, x, y, outside


def map_members(case: Case) -> list[nn.Module]:
    """1x1 convolutions that differ by half as much as they have in common."""
    generator = torch.Generator().manual_seed(0)
    shape = (case.num_classes, case.input_shape[0], 1, 1)
    shared, nets = torch.randn(shape, generator=generator), list[nn.Module]()
    for _ in range(case.num_modes):
        net = nn.Conv2d(case.input_shape[0], case.num_classes, 1, bias=False)
        net.weight = nn.Parameter(2 * shared + torch.randn(shape, generator=generator))
        nets.append(net.eval())
    return nets


class Pictures(torch.utils.data.Dataset):
    """Smooth pictures with masks of what most members see, made when they are asked for."""

    def __init__(self, case: Case) -> None:
        self.case = case
        generator = torch.Generator().manual_seed(0)
        self.weight = torch.randn(case.num_classes, case.input_shape[0], generator=generator)

    def __len__(self) -> int:
        return self.case.num_examples

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(number)
        rough = torch.randn(1, self.case.input_shape[0], 32, 32, generator=generator)
        image = F.interpolate(rough, self.case.input_shape[1:], mode="bilinear")[0]
        logits = 2 * torch.einsum("kc,chw->khw", self.weight, image)
        noise = -torch.rand(logits.shape, generator=generator).clamp(min=1e-9).log()
        return image, (logits - noise.log()).argmax(0)


def uncertainty(logits_MBC: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean probabilities (B, C), their entropy (B,) and the mutual information (B,), in nats."""
    log_probs = logits_MBC.log_softmax(-1)
    probs = log_probs.exp()
    mean = probs.mean(0)
    entropy = torch.special.entr(mean).sum(-1)
    expected_entropy = -(probs * log_probs).sum(-1).mean(0)
    return mean, entropy, entropy - expected_entropy


def flops(case: Case) -> float:
    """Floating-point operations of a round: one network on one batch, times M and the batches."""
    from torch.utils.flop_counter import FlopCounterMode

    if case.kind not in ("train", "predict", "toy", "overhead"):
        return 0.0
    x, _ = data(case)
    x = x[: case.batch_size]
    net = case.make_net()
    with FlopCounterMode(display=False) as counter:
        outputs = net(x)
        if case.kind != "predict":
            outputs.sum().backward()
    examples = case.num_examples * case.epochs * case.num_modes
    return counter.get_total_flops() * examples / len(x)


def _mlp_small() -> nn.Module:
    return mlp(2, 64, 64, 2)


def _mlp_784() -> nn.Module:
    return mlp(784, 128, 128, 10)


def _mlp_256() -> nn.Module:
    return mlp(784, 256, 256, 10)


def _body_1024() -> nn.Module:
    return nn.Sequential(mlp(*[1024] * 6), nn.ReLU())


def _mlp_20() -> nn.Module:
    return mlp(20, 16, 3)


def _mlp_8() -> nn.Module:
    return mlp(8, 50, 2)


def _mlp_tiny() -> nn.Module:
    return mlp(2, 2, 1)


_OVERHEAD = dict(
    make_net=_mlp_20, input_shape=(20,), num_classes=3, num_examples=1920, batch_size=32
)
_GREY, _COLOUR = (1, 28, 28), (3, 32, 32)
_DENSE = "1,000 × 1,000 inputs of 784 numbers, 3 hidden ReLU layers"
NUM_INPUTS = 64  # at which variances of outputs are wanted
CORRUPTIONS = (
    "gaussian_noise", "shot_noise", "impulse_noise", "speckle_noise", "defocus_blur", "glass_blur",
    "motion_blur", "zoom_blur", "gaussian_blur", "snow", "frost", "fog", "brightness", "spatter",
    "contrast", "elastic_transform", "pixelate", "jpeg", "saturate",
)  # fmt: skip

CASES = {
    case.name: case
    for case in (
        Case("train_mlp_small", "train", "train 10 MLPs 2-64-64-2, 4 epochs of 6,400 points",
             _mlp_small, (2,), num_classes=2, num_examples=6400, epochs=4),
        Case("train_mlp_784", "train", "train 10 MLPs 784-128-128-10, one epoch of 6,000 images",
             _mlp_784, _GREY),
        Case("train_lenet", "train", "train 10 LeNets, one epoch of 6,000 images 1x28x28",
             lenet, _GREY),
        Case("train_resnet8", "train", "train 4 ResNet-8, one epoch of 1,024 images 3x32x32",
             resnet8, _COLOUR, num_modes=4, num_examples=1024),
        *(Case(f"{method}_{work}_{name}", f"efficient_{work}",
               f"{work} 4 members of {method}: {title}", net, shape, num_modes=4, option=method)
          for method in ("packed", "batch_ensemble") for work in ("train", "predict")
          for name, net, shape, title in (
              ("mlp_784", partial(mlp, 784, 128, 128, 10), (784,), "MLP 784-128-128-10"),
              ("lenet", lenet, _GREY, "LeNet"))),
        Case("forde_mlp_small", "forde", "repulsion of 10 MLPs 2-64-64-2, 20 × 6,400 points",
             _mlp_small, (2,), num_classes=2, num_examples=6400, epochs=20),
        Case("forde_mlp_784", "forde", "repulsion of 10 MLPs 784-128-128-10, 12 × 3,072 images",
             _mlp_784, _GREY, num_examples=3072, epochs=12),
        Case("forde_lenet", "forde", "repulsion of 10 LeNets, 3,072 images 1x28x28",
             lenet, _GREY, num_examples=3072),
        Case("forde_resnet20", "forde_large", "repulsion of 10 ResNet-20, 1,024 images 3x32x32",
             resnet20, _COLOUR, num_examples=1024),
        *(Case(f"forde_memory_{name}", "forde_memory", f"{steps} steps of repulsion of 10 {title}",
               net, shape, num_examples=128 * steps)
          for name, steps, title, net, shape in (
              ("mlp_784", 4, "MLPs 784-128-128-10", _mlp_784, _GREY),
              ("lenet", 4, "LeNets", lenet, _GREY),
              ("resnet20", 2, "ResNet-20", resnet20, _COLOUR))),
        *(Case(f"forde_growth_{name}_{number}", "forde_growth",
               f"repulsion of {number} {title}, 1,024 images 1x28x28", net, _GREY,
               num_modes=number, num_examples=1024, epochs=epochs)
          for name, title, net, epochs in (("mlp_784", "MLPs 784-128-128-10", _mlp_784, 16),
                                           ("lenet", "LeNets", lenet, 1))
          for number in (5, 10, 20, 40)),
        Case("predict_mlp_784", "predict", "predict 6,000 images with 10 MLPs 784-128-128-10",
             _mlp_784, _GREY),
        Case("predict_lenet", "predict", "predict 6,000 images with 10 LeNets", lenet, _GREY),
        *(Case(f"frozen_{kind}", f"frozen_{kind}", f"{title}, a frozen MLP 1024 × 5 under 10 heads",
               _body_1024, (1024,), num_examples=1024, epochs=epochs, option="1024")
          for kind, title, epochs in (
              ("batches", "3 epochs of 1,024 rows, the body run for each batch", 3),
              ("kept", "100 epochs of 1,024 rows, features computed once", 100),
              ("predict", "predict 1,024 rows", 1))),
        Case("frozen_lora", "frozen_lora", "LoRA in 4 layers of 128 units, 5 × 256 sequences",
             input_shape=(16, 128), num_classes=4, num_examples=256, epochs=5,
             batch_size=32),
        Case("tiny_networks", "toy", "train 10,000 networks 2-2-1 on 400 points, 10 epochs, SGD",
             _mlp_tiny, (2,), num_modes=10_000, num_examples=400, epochs=10, batch_size=10, lr=2.0),
        Case("loop_overhead_1", "overhead", "training loop on one MLP 20-16-3, 100 epochs",
             num_modes=1, epochs=100, **_OVERHEAD),
        Case("loop_overhead_10", "overhead", "training loop on 10 MLPs 20-16-3, 25 epochs",
             num_modes=10, epochs=25, **_OVERHEAD),
        Case("memory_batched_step_mlp_784", "memory", "4 steps of 10 MLPs 784-128-128-10, batched",
             _mlp_784, _GREY, num_examples=512),
        Case("memory_batched_step_lenet", "memory", "4 steps of 10 LeNets, batched",
             lenet, _GREY, num_examples=512),
        *(Case(f"short_{name}", "short",
               f"100 steps of {modes} MLPs {sizes[0]}-{sizes[1]}-{sizes[1]}-10, {name}, in all",
               partial(mlp, *sizes, activation=activation), (sizes[0],), num_modes=modes,
               num_examples=12_800)
          for name, modes, sizes, activation in (
              ("relu_64", 4, (20, 64, 64, 10), nn.ReLU),
              ("gelu_64", 16, (784, 64, 64, 10), nn.GELU),
              ("tanh_256", 4, (784, 256, 256, 10), nn.Tanh),
              ("relu_512", 4, (784, 512, 512, 10), nn.ReLU),
              ("gelu_512", 16, (20, 512, 512, 10), nn.GELU))),
        Case("sghmc_step", "chain", "steps of sghmc, 10 MLPs 20-16-3", epochs=5, **_OVERHEAD),
        Case("whole_mlp_20", "whole", "200 gradients of 10 chains, MLPs 20-16-3, 1,920 examples",
             _mlp_20, (20,), num_classes=3, num_examples=1920),
        Case("whole_mlp_8", "whole", "200 gradients of 10 chains, MLPs 8-50-2, 512 examples",
             _mlp_8, (8,), num_classes=2, num_examples=512),
        Case("sgmcmc_step_1", "sampling", "steps of one SG-MCMC chain, MLP 20-16-3",
             num_modes=1, epochs=20, **_OVERHEAD),
        Case("sgmcmc_step_10", "sampling", "steps of 10 SG-MCMC chains, MLPs 20-16-3",
             epochs=10, **_OVERHEAD),
        Case("variational_mlp", "variational", "variational steps of 10 MLPs 784-128-128-10",
             _mlp_784, _GREY, num_examples=2560),
        Case("variational_lenet", "variational", "variational steps of a LeNet",
             lenet, _GREY, num_modes=1, num_examples=2560),
        Case("swag_training_mlp", "swag", "swag of 10 MLPs 784-128-128-10, 10 × 6,000 images",
             _mlp_784, _GREY, epochs=10, lr=0.01),
        Case("swag_training_lenet", "swag", "swag of 10 LeNets, 6,000 images", lenet, _GREY,
             lr=0.01),
        Case("swag_predict_memory", "swag_memory", "predict 2,560 images with 100 draws of a LeNet",
             lenet, _GREY, num_modes=1, num_examples=2560),
        Case("predict_drawn_lenet", "draws", "predict 2,560 images with 10 draws of 10 LeNets",
             lenet, _GREY, num_examples=2560),
        Case("passes_lenet", "passes", "100 passes of a LeNet with dropout over 512 images",
             noisy_lenet, _GREY, num_modes=1, num_examples=512),
        Case("passes_5_lenets", "passes", "100 passes of 5 LeNets with dropout over 256 images",
             noisy_lenet, _GREY, num_modes=5, num_examples=256),
        Case("passes_step_mlp", "passes_step", "steps of α = 0.5, K = 10, MLP 784-100-100-10",
             noisy_mlp, _GREY, num_modes=1, num_examples=1280),
        Case("passes_step_lenet", "passes_step", "steps of α = 0.5, K = 10, LeNet with dropout",
             noisy_lenet, _GREY, num_modes=1, num_examples=1280),
        Case("attack_lenet", "attack", "gradient of 10 LeNets' mixture at 1,280 images",
             lenet, _GREY, num_examples=1280),
        *(Case(f"laplace_{what}_{name}", f"laplace_{what}", f"{title}, {label}", net, _GREY,
               num_modes=1, num_examples=number, batch_size=256)
          for name, label, net in (("mlp", "MLP 784-256-256-10", _mlp_256),
                                   ("lenet", "LeNet", lenet))
          for what, title, number in (
              ("passes", "Kronecker factors of 6,144 images", 6144),
              ("variance", f"Kronecker covariances at {NUM_INPUTS} inputs", 2048),
              ("diagonal", "diagonal GGN of 2,048 images", 2048))),
        Case("laplace_evidence_lenet", "laplace_evidence",
             "100 steps on the evidence of the last layer, full, LeNet", lenet, _GREY, num_modes=1,
             num_examples=2048, batch_size=256),
        Case("attack_pgd_lenet", "pgd",
             "PGD on the mixture of 10 LeNets, 1,000 images 1x28x28, 20 steps",
             lenet, _GREY, num_examples=1000, epochs=20, batch_size=250),
        Case("pipeline_grey", "pipeline", "60,000 images 1x28x28 in batches of 128, one core",
             input_shape=_GREY, num_examples=60_000),
        Case("pipeline_colour", "pipeline", "50,000 images 3x32x32, crop + flip, one core",
             input_shape=_COLOUR, num_examples=50_000, option="crop+flip"),
        *(Case(f"corrupt_{kind}", "corrupt", f"{kind} of 10,000 images 3x32x32, one core",
               input_shape=_COLOUR, num_examples=10_000, option=kind) for kind in CORRUPTIONS),
        Case("read_idx", "read", "60,000 images 28x28, idx", input_shape=_GREY,
             num_examples=60_000, option="idx"),
        Case("read_uci_npz", "read", "45,730 rows of 10 numbers as `polymode data get` packs them",
             input_shape=(10,), num_examples=45_730, option="npz"),
        Case("read_uci_text", "read", "45,730 rows of 10 numbers, text", input_shape=(10,),
             num_examples=45_730, option="txt"),
        Case("kernel_dense", "kernel", f"NNGP and NTK of {_DENSE}", input_shape=(784,),
             num_examples=1000),
        Case("kernel_dense_cold", "kernel_cold", f"first NNGP and NTK of {_DENSE}",
             input_shape=(784,), num_examples=1000),
        Case("kernel_dense_process", "kernel_process",
             f"a fresh process with NNGP and NTK of {_DENSE}", input_shape=(784,),
             num_examples=1000),
        Case("kernel_pooled", "kernel",
             "NNGP and NTK of 8 × 8 images 3x16x16, 4 convolutions, 2 + 1 poolings",
             input_shape=(3, 16, 16), num_examples=8),
        Case("kernel_flatten", "kernel",
             "NNGP and NTK of 40 × 40 images 3x16x16, 4 convolutions, flattened",
             input_shape=(3, 16, 16), num_examples=40, option="flatten"),
        *(Case(f"ising_{width}", "ising",
               f"{steps} steps of 1,000 MLPs 25-{width}-{width}-1, full batch of 128 lattices",
               input_shape=(25,), num_modes=1000, num_examples=128, epochs=steps, batch_size=128,
               option=str(width))
          for width, steps in ((32, 20), (128, 10), (512, 2))),
        Case("scores_shared", "scores",
             "20 metrics that torchmetrics has, 10 members x 10,000 x 100 classes + OOD, one core",
             num_classes=100, num_examples=10_000),
        Case("scores_all", "all_scores",
             "all metrics that each has, 10 members x 10,000 x 100 classes + OOD, one core",
             num_classes=100, num_examples=10_000),
        Case("evaluate_large", "evaluate",
             "evaluate 50,000 test and 50,000 OOD inputs x 1,000 classes x 10 members, one core",
             input_shape=(32,), num_classes=1000, num_examples=50_000),
        Case("evaluate_maps", "maps",
             "evaluate 8 masks of 512 x 512 pixels, 20 classes x 10 members, one core",
             input_shape=(3, 512, 512), num_classes=20, num_examples=8, batch_size=1),
        *(Case(f"pairs_{number}", "pairs",
               f"mutual information of {number * (number - 1) // 2:,} pairs of {number:,} networks,"
               " 2,000 inputs", num_modes=number, num_examples=2000)
          for number in (250, 500, 1000)),
        Case("mmd_1000", "mmd", "MMD of 1,000 and 1,000 networks of 355 weights, 20 kernels",
             input_shape=(355,), num_modes=1000),
        Case("zoo_lenet", "zoo", "train and store 50 LeNets on 1,197 digits 1x8x8, 3 epochs",
             num_modes=50, num_examples=1197, epochs=3, batch_size=64, option="digits-lenet"),
        Case("zoo_mlp", "zoo", "train and store 500 MLPs 2-8-2 on two moons, 10 epochs",
             num_modes=500, num_examples=200, epochs=10, batch_size=64, option="two_moons-mlp"),
        Case("canonical_lenet", "canonical", "canonical form of 1,000 LeNets, scaled and sorted",
             lenet, _GREY, num_modes=1000),
        Case("representation_cost_optunet", "cost", "representation cost of 8,192 OptuNets",
             optunet, _GREY, num_modes=8192),
        Case("project_128_60", "project",
             "project 128² pixels at 60 angles, 183 cells, and back, 100 times",
             input_shape=(1, 128, 128), num_modes=60, num_examples=1, epochs=100, batch_size=1),
        *(Case(f"project_growth_{side}_{angles}", "project_growth",
               f"project {side}² pixels at {angles} angles and back", input_shape=(1, side, side),
               num_modes=angles, num_examples=1, epochs=200, batch_size=1)
          for side, angles in ((28, 30), (64, 30), (128, 30), (256, 30), (128, 15), (128, 60),
                               (128, 120))),
        *(Case(f"image_prior_{side}", "image_prior",
               f"deep image priors of {images} images of {side}² pixels, {steps} steps",
               input_shape=(1, side, side), num_modes=images, num_examples=1, epochs=steps,
               batch_size=1)
          for side, images, steps in ((28, 8, 100), (64, 4, 40), (128, 2, 20))),
        *(Case(f"image_kernel_{side}_{angles}", "image_kernel",
               f"kernel of a linearised U-Net, {side}² pixels, {angles} angles",
               input_shape=(1, side, side), num_modes=angles, num_examples=1, epochs=1,
               batch_size=1)
          for side, angles in ((28, 5), (28, 20), (56, 5))),
        Case("report", "report", "report of 10 methods x 5 seeds, 400 test inputs, 10 shifts",
             num_examples=400),
        Case("startup", "startup", "commands in a fresh process"),
        Case("import_time", "import", "import in a fresh process"),
    )
}  # fmt: skip
