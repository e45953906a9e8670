"""Who contends in which kind of case. Each file of this folder is one contender.

A contender's function takes a `Case` and returns a `Job`; building is not timed, `Job.run` is one
timed round. A round of training starts from fresh networks and ends with trained ones, so every
round does the same work.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..cases import Case

PEER = "torch_uncertainty"
PEERS = (
    PEER,
    f"{PEER}_efficient",
    "torchmetrics_scores",
    "torchmetrics_stream",
    "foolbox_pgd",
    "map_peers",
)  # files that need the peers' interpreter
LAPLACE = "laplace_torch"  # a file that needs an interpreter of its own
TANGENTS = "neural_tangents_kernels"  # likewise
ASTRA = "astra_toolbox"  # likewise
MATMUL = "matmul"


@dataclass(frozen=True)
class Job:
    """One round of a contender.

    Args:
        run: the timed work. Training returns a function from inputs to logits (M, B, C) of the
            trained members, prediction returns (mean probabilities, entropy, mutual information),
            others return None.
        num_steps: optimiser steps, or batches, in a round.
        scale: by how much times and allocated bytes are multiplied, where only a part of the work
            is done; resident memory stays as measured.
    """

    run: Callable[[], Any]
    num_steps: int
    scale: float = 1.0


@dataclass(frozen=True)
class Kind:
    """Who contends, and what is compared.

    Args:
        contenders: label -> "file.function"; the others are compared with the first.
        figure: the figure of a round that is compared.
        ratio: "speed-up" (first / other), or the name of other / first.
        check: name of the number that shows whether contenders did the same work.
    """

    contenders: dict[str, str]
    figure: str = "wall"
    ratio: str = "speed-up"
    check: str = ""


KINDS = {
    **{
        f"frozen_{name}": Kind({first: f"frozen.{theirs}", "polymode": f"frozen.{ours}"}, "cpu")
        for name, first, theirs, ours in (
            ("batches", "loop, body once a batch", "loop_body_once", "fit_batches"),
            ("kept", "loop on features", "loop_on_features", "fit_arrays"),
            ("predict", "body, then heads", "loop_predict", "predict"),
            ("lora", "loop over networks", "loop_adapters", "fit_adapters"),
        )
    },
    "train": Kind(
        {
            "plain_loop": "plain_loop.train",
            "vmap": "vmap.train",
            "polymode": "polymode_stack.train",
            "torch_uncertainty separate": f"{PEER}.train_separate",
            "torch_uncertainty joint, shared batches": f"{PEER}.train_joint",
        },
        check="loss",
    ),
    "efficient_train": Kind(
        {
            "plain loop": "efficient.loop_train",
            "polymode": "efficient.train",
            "torch_uncertainty": f"{PEER}_efficient.train",
        },
        figure="cpu",
        check="loss",
    ),
    "efficient_predict": Kind(
        {
            "plain loop": "efficient.loop_predict",
            "polymode": "efficient.predict",
            "torch_uncertainty": f"{PEER}_efficient.predict",
        },
        figure="cpu",
        check="mut.inf.",
    ),
    "forde": Kind(
        {
            "deep_ensemble": "forde.deep_ensemble",
            "forde": "forde.forde",
            "forde, 64 components": "forde.truncated_pca",
            "forde, among 64 components": "forde.among_components",
            "forde, among 64 components, every=4": "forde.among_components_every_4",
            "forde, every=4": "forde.every_4",
            "forde, every=8": "forde.every_8",
            "forde, fraction=0.25": "forde.quarter",
            "forde, fraction=0.125": "forde.eighth",
            "forde, chunk_size=2": "forde.two_kept",
            "plain loop, no repulsion": "plain_loop.train_shared",
            "plain loop, autograd twice": "plain_forde.train",
        },
        figure="cpu",
        ratio="CPU ratio",
        check="loss",
    ),
    "forde_large": Kind(
        {
            "deep_ensemble": "forde.deep_ensemble",
            "forde": "forde.forde",
            "forde, every=8": "forde.every_8",
            "forde, chunk_size=1": "forde.one_kept",
            "plain loop, no repulsion": "plain_loop.train_shared",
        },
        figure="cpu",
        ratio="CPU ratio",
        check="loss",
    ),
    "forde_memory": Kind(
        {
            "deep_ensemble": "forde.deep_ensemble",
            "forde": "forde.forde",
            "forde, 64 components": "forde.truncated_pca",
            "forde, chunk_size=2": "forde.two_kept",
            "forde, chunk_size=1": "forde.one_kept",
            "plain loop, no repulsion": "plain_loop.train_shared",
        },
        figure="allocated_mb",
        ratio="memory ratio",
    ),
    "forde_growth": Kind(
        {
            "forde": "forde.forde",
            "deep_ensemble": "forde.deep_ensemble",
            "kernel alone": "forde.kernel",
            "forde, among 64 components": "forde.among_components",
            "its kernel alone": "forde.kernel_among_components",
        },
        figure="cpu",
        ratio="part of forde",
    ),
    "predict": Kind(
        {
            "plain_loop": "plain_loop.predict",
            "vmap": "vmap.predict",
            "polymode": "polymode_stack.predict",
            "torch_uncertainty test": f"{PEER}.test",
            "torch_uncertainty forward": f"{PEER}.forward",
        },
        check="mut.inf.",
    ),
    "toy": Kind(
        {
            "plain_loop (50, scaled)": "plain_loop.train_toy",
            "vmap": "vmap.train_toy",
            "polymode": "polymode_stack.train_toy",
        },
        check="solved",
    ),
    "overhead": Kind(
        {"bare grad + fused Adam": "bare.train", "polymode": "polymode_stack.train"},
        ratio="time ratio",
        check="loss",
    ),
    "memory": Kind(
        {
            "members x one network": "plain_loop.train_one",
            "plain_loop": "plain_loop.train",
            "vmap": "vmap.train",
            "polymode batched": "polymode_stack.train_batched",
        },
        figure="allocated_mb",
        ratio="memory ratio",
    ),
    "chain": Kind(
        {"gradients + update": "drawing.chain_parts", "sghmc": "drawing.sghmc_steps"},
        figure="cpu",
        ratio="CPU ratio",
    ),
    "whole": Kind(
        {
            "gradients alone": "whole.gradients",
            "leapfrog steps": "whole.leapfrog_steps",
            "microcanonical steps": "whole.langevin_steps",
        },
        figure="cpu",
        ratio="CPU ratio",
    ),
    "sampling": Kind(
        {
            "autograd.grad + fused update": "sampling.bare",
            "sgld": "sampling.sgld",
            "sghmc": "sampling.sghmc",
            "sgnht": "sampling.sgnht",
            "sghmc, preconditioned": "sampling.preconditioned",
        },
        figure="cpu",
        ratio="CPU ratio",
    ),
    "variational": Kind(
        {
            "map": "variational.plain",
            "ivon": "variational.ivon",
            "vi, local": "variational.local",
            "vi, flipout": "variational.flipout",
            "vi, weights": "variational.weights",
        },
        figure="cpu",
        ratio="CPU ratio",
    ),
    "swag": Kind(
        {"map": "sampling.plain_training", "swag": "sampling.swag_training"},
        figure="cpu",
        ratio="CPU ratio",
        check="loss",
    ),
    "swag_memory": Kind(
        {"draw by draw": "sampling.one_by_one", "predict": "sampling.predict"},
        figure="allocated_mb",
        ratio="memory ratio",
    ),
    "draws": Kind(
        {"draw + forward": "drawing.draw_and_forward", "predict": "drawing.predict_draws"},
        figure="cpu",
        ratio="CPU ratio",
    ),
    "passes": Kind(
        {"loop of 100 passes": "passes.predict_loop", "predict": "passes.predict"}, figure="cpu"
    ),
    "passes_step": Kind(
        {"one pass over a tenfold batch": "passes.tenfold_batch", "dropout": "passes.alpha_steps"},
        figure="cpu",
        ratio="CPU ratio",
    ),
    "attack": Kind(
        {"loop over networks": "drawing.attack_loop", "predict_batch": "drawing.attack"},
        figure="cpu",
        ratio="CPU ratio",
    ),
    "pgd": Kind(
        {
            "loop over networks": "attacking.loop",
            "foolbox": "foolbox_pgd.attack",
            "polymode": "attacking.polymode",
        },
        figure="cpu",
        check="accuracy",
    ),
    "short": Kind(
        {"plain_loop": "plain_loop.train", "polymode": "polymode_stack.train"}, check="loss"
    ),
    "pipeline": Kind(
        {
            "LeNet training": "pipeline.lenet_training",
            "polymode": "pipeline.polymode",
            "DataLoader, image by image": "pipeline.data_loader",
        },
    ),
    "corrupt": Kind(
        {
            "image by image (100, scaled)": "corruption.image_by_image",
            "polymode": "corruption.polymode",
        },
    ),
    "read": Kind(
        {"bytes alone": "reading.raw", "polymode": "reading.polymode", "numpy": "reading.numpy"},
        ratio="time ratio",
    ),
    "laplace_passes": Kind(
        {
            "forward + C backward": "laplace_own.passes",
            "polymode": "laplace_own.kron",
            "laplace-torch": f"{LAPLACE}.kron",
        },
        figure="cpu",
        ratio="CPU ratio",
        check="log det",
    ),
    "laplace_variance": Kind(
        {"laplace-torch": f"{LAPLACE}.variance", "polymode": "laplace_own.variance"},
        figure="cpu",
        check="variance",
    ),
    "laplace_diagonal": Kind(
        {"BackPACK": f"{LAPLACE}.backpack_diagonal", "polymode": "laplace_own.diagonal"},
        figure="cpu",
        check="log det",
    ),
    "laplace_evidence": Kind(
        {"laplace-torch": f"{LAPLACE}.evidence", "polymode": "laplace_own.evidence"},
        figure="cpu",
        check="precision",
    ),
    "kernel": Kind(
        {
            "neural-tangents": f"{TANGENTS}.warm",
            "neural-tangents, float64": f"{TANGENTS}.warm_double",
            "polymode, float32": "kernels.single",
            "polymode": "kernels.double",
        },
        figure="cpu",
        check="mean NTK",
    ),
    "kernel_cold": Kind(
        {
            "neural-tangents": f"{TANGENTS}.cold",
            "polymode, float32": "kernels.single",
            "polymode": "kernels.double",
        },
        figure="cpu",
        check="mean NTK",
    ),
    "kernel_process": Kind(
        {"neural-tangents": f"{TANGENTS}.fresh", "polymode": "kernels.fresh"}, figure="cpu"
    ),
    "ising": Kind(
        {"loop over members (20, scaled)": "ising.loop", "polymode": "ising.stack"},
        figure="cpu",
        check="mean square",
    ),
    "scores": Kind(
        {"torchmetrics": "torchmetrics_scores.own", "polymode": "scores.polymode_shared"},
        check="AUROC, MI",
    ),
    "all_scores": Kind(
        {
            "torchmetrics + torch_uncertainty": "torchmetrics_scores.with_torch_uncertainty",
            "polymode": "scores.polymode",
        },
        check="AUROC, MI",
    ),
    "evaluate": Kind(
        {
            "torchmetrics, 20 metrics": "torchmetrics_stream.shared",
            "polymode, 20 metrics": "evaluating.shared",
            "polymode": "evaluating.everything",
        },
        figure="cpu",
        check="AUROC, MI",
    ),
    "maps": Kind(
        {
            "torch_uncertainty, all pixels": "map_peers.all_pixels",
            "torch_uncertainty, 1 % of pixels": "map_peers.some_pixels",
            "plain loop": "maps.plain_loop",
            "polymode": "maps.polymode",
        },
        figure="cpu",
        check="NLL",
    ),
    "pairs": Kind(
        {
            "pair by pair (1,000, scaled)": "pairs.formula",
            "pair by pair, entropies kept (1,000, scaled)": "pairs.entropies_kept",
            "polymode": "pairs.polymode",
        },
    ),
    "mmd": Kind(
        {
            "the paper's code's way (2 of 20 kernels, scaled)": "mmd.published",
            "polymode": "mmd.polymode",
            "polymode, no null": "mmd.polymode_alone",
        },
        figure="cpu",
        check="MMD²",
    ),
    "zoo": Kind(
        {"one after another (5, scaled)": "zoo.plain_loop", "polymode": "zoo.polymode"},
        figure="cpu",
    ),
    "canonical": Kind(
        {
            "network by network (200, scaled)": "symmetry.canonical_loop",
            "polymode": "symmetry.canonical",
        },
    ),
    "cost": Kind(
        {
            "CVXPY, network by network (20, scaled)": "symmetry.cost_by_cvxpy",
            "polymode": "symmetry.cost",
        },
        check="mean m* of 20",
    ),
    "project": Kind(
        {
            "ASTRA, chord lengths": f"{ASTRA}.line",
            "ASTRA, linear": f"{ASTRA}.linear",
            "polymode": "projecting.polymode",
        },
        figure="cpu",
        check="norm of A 1",
    ),
    "project_growth": Kind(
        {"polymode": "projecting.polymode", "building the matrix": "projecting.building"},
        figure="cpu",
        ratio="in applications",
        check="norm of A 1",
    ),
    "image_prior": Kind(
        {"one after another": "image_prior.plain_loop", "polymode": "image_prior.polymode"},
        figure="cpu",
        check="loss",
    ),
    "image_kernel": Kind(
        {
            "row by row": "image_kernel.row_by_row",
            "rows of J one by one": "image_kernel.jacobian_rows",
            "polymode": "image_kernel.polymode",
        },
        figure="cpu",
        check="trace",
    ),
    "report": Kind(
        {
            "matplotlib, 26 empty figures": "reporting.empty_figures",
            "polymode": "reporting.polymode",
        },
        ratio="time ratio",
        check="MB",
    ),
    "startup": Kind(
        {
            "python": "imports.bare",
            "polymode --help": "imports.cli_help",
            "import torch": "imports.torch",
            "polymode list methods": "imports.cli_list",
        },
        ratio="time ratio",
    ),
    "import": Kind(
        {"import torch": "imports.torch", "import polymode": "imports.polymode"},
        ratio="time ratio",
    ),
}


def load(case: Case, label: str) -> Callable[[Case], Job]:
    """The function that builds the job of the contender called `label` (or of the matmul probe)."""
    target = "matmul.train" if label == MATMUL else KINDS[case.kind].contenders[label]
    file, function = target.split(".")
    return getattr(importlib.import_module(f"{__name__}.{file}"), function)
