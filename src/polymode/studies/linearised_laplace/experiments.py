"""The experiments: a curve along training, the scale of normalised weights, and six networks.

Each is a function of a seed and options that trains what it needs and gives back its numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polymode import nets
from polymode.core.rng import generator
from polymode.examinations import Findings, measure
from polymode.likelihoods.kinds import Categorical, Gaussian
from polymode.methods import fit
from polymode.methods.laplace.evidence import Search
from polymode.methods.laplace.linear_model import Tangent, observed
from polymode.methods.laplace.prior_groups import prior_groups
from polymode.stack.stack import Stack
from polymode.studies.linearised_laplace.networks import IMAGE_NETS, Grid, as_image_net
from polymode.studies.linearised_laplace.variants import (
    VARIANTS,
    class_nll,
    covariance_at,
    evidence_of,
    set_up,
    value_nll,
    variant,
    with_one_group,
)
from polymode.tasks import Task
from polymode.tasks.files import DATASETS
from polymode.tasks.named import task as make_task

PRECISIONS = (100.0, 10.0, 5.0, 1.0, 0.1)  # those of the talk's illustration
GRID = np.linspace(-2.5, 2.5, 121)
FREE = ("0.weight", "3.weight", "6.weight")  # 2,600 weights, as in the talk
NORMALISED = FREE[:2]
STOPS = (16, 8, 4)  # the U-Net is trained for these shares of the epochs, and the best is kept
MACKAY = Search(learn_noise=True, steps=300, tolerance=1e-4)


class Curve:
    """The toy of the talk: a rough curve on two stretches, and an MLP with BatchNorm on it."""

    def __init__(
        self, seed: int, steps: int, hidden: tuple[int, ...] = (50, 50), num_train: int = 400
    ) -> None:
        self.task: Task = make_task("matern", seed=seed, noise="learned", num_train=num_train)
        self.free = tuple(f"{3 * k}.weight" for k in range(len(hidden) + 1))
        post = fit(
            "map",
            net=lambda: nets.mlp((1,), 1, hidden=hidden, norm="batch", bias=False),
            task=self.task, seed=seed, epochs=steps, batch_size=400, lr=1e-2,
            prior_precision=0.0, holdout=0, progress="silent",
        )  # fmt: skip
        assert post.target_scaling is not None
        self.scaling = post.target_scaling
        self.module = post.members[0].double()
        self.x, self.y = self.pair(self.task.train)
        self.stack = self.with_statistics(self.module)

    def pair(self, data: Any) -> tuple[Tensor, Tensor]:
        """Return inputs and scaled targets in float64."""
        return data.x.double(), self.scaling(data.y).double()

    def with_statistics(self, module: nn.Module) -> Stack:
        stack = Stack(module, dtype=torch.float64)
        stack.recompute_statistics([self.x])
        return stack

    def scaled(self, k: float) -> Stack:
        """Return the same function with its normalised weights times k: eps of the norms, in which
        the scale would show, times k², and statistics of its own."""
        module = self.stack.members()[0]
        with torch.no_grad():
            for name in NORMALISED:
                module.get_parameter(name).mul_(k)
        for layer in module.modules():
            if isinstance(layer, nn.BatchNorm1d):
                layer.eps *= k**2
        return self.with_statistics(module)

    def tangent(self, stack: Stack, form: str, inside: bool) -> Tangent:
        reference = self.x if inside else None
        return Tangent(stack, names=self.free, form=form, reference=reference)

    def data(self) -> Any:
        return observed(Gaussian(noise=1.0), self.y, 1.0)


def training(seed: int, *, steps: int = 1000) -> Findings:
    """Error bars along training: the four variants after so many full-batch steps of Adam.

    Statistics of the training inputs are inside the tangent, h = J θ. NLL in units of standardised
    targets, per value, with learned noise: on the test set and in the gap between the stretches.
    """
    curve = Curve(seed, steps)
    test, gap = curve.pair(curve.task.test), curve.pair(curve.task.ood["gap"])
    grid = torch.tensor(GRID)[:, None]
    new = torch.cat([grid, test[0], gap[0]])
    tangent = curve.tangent(curve.stack, "jacobian", inside=True)
    groups = prior_groups(curve.stack, "per_group")
    setup = set_up(tangent, groups, curve.x, curve.data(), new, chunk=400)
    beta = torch.ones(1, dtype=torch.float64)
    rows = [measure("closeness", tangent.closeness([curve.x]), n=len(curve.x))]
    arrays: dict[str, np.ndarray] = {
        "grid": GRID,
        "mean": setup.new_outputs[: len(GRID), 0].numpy(),
    }
    spreads = {}
    for mean, kind in VARIANTS:
        fitted = variant(setup, mean, kind, beta, MACKAY)
        choice = fitted.choice
        name, noise = f"{mean}_{kind}", float(choice.beta[0]) ** -1
        spread = fitted.covariance.flatten().clamp_min(0)
        spreads[name] = spread
        on_grid = spread[: len(GRID)].sqrt()
        arrays[f"sd_{name}"] = on_grid.numpy()
        ends = len(GRID), len(GRID) + len(test[0])
        for where, part, targets in (
            ("test", slice(*ends), test[1]),
            ("gap", slice(ends[1], None), gap[1]),
        ):
            nll = value_nll(setup.new_outputs[part, 0], spread[part] + noise, targets[:, 0])
            own_nll = value_nll(fitted.mean[part, 0], spread[part] + noise, targets[:, 0])
            rows += [
                nll_row(f"{where}_nll_{name}", nll, targets),
                nll_row(f"{where}_own_nll_{name}", own_nll, targets),
            ]
        gap_sd = spread[ends[1] :].sqrt().max().item()
        rows += [
            measure(f"gap_sd_{name}", gap_sd, n=len(gap[0])),
            measure(f"log_evidence_{name}", choice.terms.value, n=len(curve.x), unit="nats"),
            measure(f"noise_{name}", noise**0.5, n=len(curve.x)),
            measure(f"pruned_{name}", float(choice.pruned.sum()), n=len(choice.pruned)),
        ]
        if kind == "single":
            rows.append(measure(f"precision_{mean}", float(choice.precision[0]), n=1))
    rows.append(_wasserstein(spreads, len(GRID)))
    rows += _illustration(setup, len(GRID), test, gap)
    return Findings(tuple(rows), arrays)


def _wasserstein(spreads: dict[str, Tensor], end: int) -> Any:
    """Return the mean over the grid of the 2-Wasserstein distance between the marginals of the two
    single-λ variants: their means are the same, so it is the difference of their deviations."""
    first, second = (spreads[f"{mean}_single"][:end].sqrt() for mean in ("trained", "linear"))
    return measure("wasserstein_single", (first - second).abs().mean().item(), n=end)


def _illustration(setup: Any, end: int, test: Any, gap: Any) -> list[Any]:
    """Return evidences and held-out NLL at the talk's precisions, with the noise fitted at θ*."""
    start = torch.ones(1, dtype=torch.float64)
    beta = variant(setup, "linear", "single", start, MACKAY).choice.beta
    setup = with_one_group(setup)
    evidences = {mean: evidence_of(setup, mean) for mean in ("trained", "linear")}
    rows = []
    for value in PRECISIONS:
        precision = torch.tensor([value], dtype=torch.float64)
        spread = covariance_at(setup, evidences["linear"], precision, beta).flatten().clamp_min(0)
        for mean, evidence in evidences.items():
            at = evidence(precision, beta).value
            rows.append(
                measure(f"illustration_{mean}_{value:g}", at, n=len(setup.outputs), unit="nats")
            )
        ends = end, end + len(test[0])
        for where, part, pair in (("test", slice(*ends), test), ("gap", slice(ends[1], None), gap)):
            nll = value_nll(setup.new_outputs[part, 0], spread[part] + 1 / beta, pair[1][:, 0])
            rows.append(
                measure(f"illustration_{where}_nll_{value:g}", nll, n=len(pair[1]), unit="nats")
            )
    return rows


def scale(seed: int, *, k: float = 1.0, steps: int = 1000) -> Findings:
    """Normalised weights times k, the function unchanged: how far do error bars move?

    For both forms of the linear model, with statistics frozen and inside the tangent, for one λ and
    one per group, all at θ*: the largest change of a standard deviation on a grid, and that in per
    cent of the deviation at k = 1.
    """
    curve = Curve(seed, steps)
    grid = torch.tensor(GRID)[:, None]
    beta = torch.ones(1, dtype=torch.float64)
    scaled = curve.scaled(k)
    with torch.no_grad():
        moved = (scaled(grid) - curve.stack(grid)).abs().max().item()
    rows = [measure("outputs_moved", moved, n=len(grid))]
    for form in ("jacobian", "offset"):
        for inside in (False, True):
            spreads: dict[str, list[Tensor]] = {}
            for stack in (curve.stack, scaled):
                tangent = curve.tangent(stack, form, inside)
                groups = prior_groups(stack, "per_group")
                setup = set_up(tangent, groups, curve.x, curve.data(), grid, chunk=400)
                for kind in ("single", "multiple"):
                    fitted = variant(setup, "linear", kind, beta, MACKAY)
                    spreads.setdefault(kind, []).append(fitted.covariance.flatten().sqrt())
            for kind, (before, after) in spreads.items():
                change = 100 * (after / before - 1).abs().max().item()
                where = "inside" if inside else "frozen"
                rows.append(measure(f"change_{form}_{where}_{kind}", change, n=len(grid), unit="%"))
    return Findings(tuple(rows))


def networks(
    seed: int,
    *,
    net: str = "cnn",
    task: str = "mnist",
    num_train: int = 150,
    num_test: int = 250,
    epochs: int = 60,
    width: float = 1.0,
) -> Findings:
    """Table 1: test NLL of the four variants on one network, trained on `num_train` images.

    Statistics of BatchNorm are frozen, h = J θ, the curvature is whole. Images are at half
    their resolution. The U-Net is given noisy ones; its NLL is per pixel, see `_image_to_image`.
    """
    images = _images(task, num_train, num_test)
    if net == "unet":
        return _image_to_image(seed, images, epochs, width)
    build, options = IMAGE_NETS[net]
    make_net = as_image_net(build, options, width)
    post = fit(
        "map", net=make_net, task=images, seed=seed, epochs=epochs, batch_size=50, lr=2e-3,
        prior_precision=1e-4 * num_train, schedule="cosine", augment=None, progress="silent",
        holdout=0,
    )  # fmt: skip
    stack = Stack(post.members, dtype=torch.float32)
    (x, labels), (new, targets) = (_all(data) for data in (images.train, images.test))
    tangent = Tangent(stack)
    data = observed(Categorical(), labels)
    setup = set_up(tangent, prior_groups(stack, "per_group"), x, data, new)
    how = Search(steps=30, tolerance=2e-2)
    rows = _about(tangent, setup, x)
    accuracy = (setup.new_outputs.argmax(-1) == targets).double().mean().item()
    rows.append(measure("accuracy", accuracy, n=len(new), direction="up"))
    rows.append(nll_row("nll_map", class_nll(setup.new_outputs, None, targets), new))
    for mean, kind in VARIANTS:
        fitted = variant(setup, mean, kind, torch.zeros(0, dtype=torch.float64), how)
        nll = class_nll(setup.new_outputs, fitted.covariance, targets)
        own_nll = class_nll(fitted.mean, fitted.covariance, targets)
        rows += _of_variant(fitted.choice, f"{mean}_{kind}", nll, own_nll, new)
    return Findings(tuple(rows))


def _images(name: str, num_train: int, num_test: int) -> Task:
    """Return a task with so many images, MNIST's at half their resolution."""
    sizes: dict[str, Any] = {"num_train": num_train, "num_test": num_test, "ood": [], "shifts": []}
    full = make_task(name, **(sizes if name in DATASETS else {}))
    (x, labels), (new, targets) = (_all(data) for data in (full.train, full.test))
    if x.shape[-1] >= 28:
        x, new = F.avg_pool2d(x, 2), F.avg_pool2d(new, 2)
    return Task(
        train=(x[:num_train], labels[:num_train]),
        test=(new[:num_test], targets[:num_test]),
        likelihood="categorical",
        target_size=full.target_size,
    )


def _about(tangent: Tangent, setup: Any, x: Tensor) -> list[Any]:
    return [
        measure("weights", float(len(tangent.point)), n=1),
        measure("groups", float(len(setup.places)), n=1),
        measure("closeness", tangent.closeness(x.split(256)), n=len(x)),
    ]


def nll_row(name: str, value: float, new: Tensor) -> Any:
    return measure(name, value, n=len(new), unit="nats", direction="down")


def _of_variant(choice: Any, name: str, nll: float, own_nll: float, new: Tensor) -> list[Any]:
    """Return the numbers of one variant; `own_nll` is around the linear model's own mean."""
    pruned = float(choice.pruned.sum())
    middle = float(choice.precision.log().mean().exp())
    return [
        nll_row(f"nll_{name}", nll, new),
        nll_row(f"own_nll_{name}", own_nll, new),
        measure(f"log_evidence_{name}", choice.terms.value, n=1, unit="nats"),
        measure(f"precision_{name}", middle, n=len(choice.precision)),
        measure(f"pruned_{name}", pruned, n=len(choice.pruned)),
        measure(f"steps_{name}", float(choice.steps), n=1),
    ]


def _all(data: Any) -> tuple[Tensor, Tensor]:
    """Return all inputs and targets."""
    pairs = list(data.batches(512))
    return torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs])


def _image_to_image(seed: int, images: Task, epochs: int, width: float) -> Findings:
    """The U-Net: pixels of clean images, measured with noise, from noisy ones.

    Targets have noise of their own, training stops early, and half of the test images say when.
    """
    x, y, new, targets = _denoising(seed, images)
    half = len(new) // 2
    held, new, wanted, targets = new[:half], new[half:], targets[:half], targets[half:]
    task = Task(train=(x, y), likelihood=Gaussian(noise="learned"), target_scaling=None)
    make_net = as_image_net(*IMAGE_NETS["unet"], width)
    best, post = float("inf"), None
    for share in STOPS:
        candidate = fit(
            "map", net=make_net, task=task, seed=seed, epochs=max(1, epochs // share),
            batch_size=20, lr=2e-3, prior_precision=1e-4 * len(x), schedule="cosine",
            progress="silent", holdout=0,
        )  # fmt: skip
        with torch.no_grad():
            error = (candidate.members[0].eval()(held) - wanted).square().mean().item()
        if error < best:
            best, post = error, candidate
    assert post is not None
    stack = Stack(post.members, dtype=torch.float32)
    tangent = Tangent(stack)
    data = observed(Gaussian(noise=1.0), y, 1.0)
    setup = set_up(tangent, prior_groups(stack, "per_group"), x, data, new, chunk=8)
    noise = (setup.outputs - data.targets).square().mean().double()
    rows = _about(tangent, setup, x)
    error = (setup.new_outputs - targets).square().mean().sqrt().item()
    rows += [
        measure("error", error, n=len(new), direction="down"),
        measure("training_error", float(noise) ** 0.5, n=len(x)),
        nll_row("nll_map", value_nll(setup.new_outputs, noise.expand_as(targets), targets), new),
    ]
    how = Search(steps=30, tolerance=2e-2, learn_noise=True)
    for mean, kind in VARIANTS:
        fitted = variant(setup, mean, kind, 1 / noise.reshape(1), how)
        beta = fitted.choice.beta
        spread = fitted.covariance.diagonal(dim1=-2, dim2=-1).clamp_min(0) + 1 / beta
        nll = value_nll(setup.new_outputs, spread, targets)
        own_nll = value_nll(fitted.mean, spread, targets)
        rows += _of_variant(fitted.choice, f"{mean}_{kind}", nll, own_nll, new)
        rows.append(measure(f"noise_{mean}_{kind}", float(beta[0]) ** -0.5, n=1))
    return Findings(tuple(rows))


def _denoising(seed: int, images: Task) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return noisy images and a grid of noisy pixels of the clean ones, to train and to test on.

    Both have independent noise of half the images' standard deviation; targets are standardised.
    """
    stream = generator(seed, "linearised_laplace", "noise")
    grid, pairs = Grid(), []
    for part in (images.train, images.test):
        clean = _all(part)[0]
        noise = 0.5 * clean.std() * torch.randn(2, *clean.shape, generator=stream)
        pairs += [clean + noise[0], grid(clean + noise[1])]
    x, y, new, targets = pairs
    centre, size = y.mean(), y.std()
    return x, (y - centre) / size, new, (targets - centre) / size
