"""TorchUncertainty: its routine and trainer, with logger, checkpoints and bar switched off."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
)

from ..cases import Case, data
from ..peers import torchvision_shim  # noqa: F401  (before the first import of torchvision)
from . import Job

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

from torch_uncertainty import TUTrainer  # noqa: E402
from torch_uncertainty.methods import deep_ensembles  # noqa: E402
from torch_uncertainty.routines import ClassificationRoutine  # noqa: E402
from torch_uncertainty.transforms import RepeatTarget  # noqa: E402


def loader(case: Case, shuffle: bool) -> DataLoader:
    """Loader that indexes a whole batch at once, the fastest way through arrays in memory."""
    dataset = TensorDataset(*data(case))
    sampler = RandomSampler(dataset) if shuffle else SequentialSampler(dataset)
    batches = BatchSampler(sampler, case.batch_size, drop_last=False)
    return DataLoader(dataset, sampler=batches, batch_size=None)


def trainer(case: Case) -> TUTrainer:
    """A quiet trainer on the CPU."""
    return TUTrainer(
        accelerator="cpu",
        max_epochs=case.epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def routine(case: Case, model: nn.Module, num_modes: int) -> ClassificationRoutine:
    """The classification routine of an ensemble of `num_modes`, or of one network."""
    return ClassificationRoutine(
        model=model,
        num_classes=case.num_classes,
        loss=nn.CrossEntropyLoss(),
        is_ensemble=num_modes > 1,
        format_batch_fn=RepeatTarget(num_modes) if num_modes > 1 else None,
        optim_recipe=torch.optim.Adam(model.parameters(), lr=case.lr),
    )


def train_joint(case: Case) -> Job:
    """All members in one routine; its loss is a mean over members: gradients are divided by M."""

    def run() -> Callable[[Tensor], Tensor]:
        nets = case.members()
        model = deep_ensembles(nets)
        trainer(case).fit(routine(case, model, len(nets)), loader(case, shuffle=True))
        return lambda inputs: torch.stack([net.eval()(inputs) for net in nets])

    return Job(run, case.num_steps)


def train_separate(case: Case) -> Job:
    """A routine and a trainer of its own for each member."""

    def run() -> Callable[[Tensor], Tensor]:
        nets = case.members()
        for net in nets:
            trainer(case).fit(routine(case, net, 1), loader(case, shuffle=True))
        return lambda inputs: torch.stack([net.eval()(inputs) for net in nets])

    return Job(run, case.num_steps)


def test(case: Case) -> Job:
    """`trainer.test` with the metrics the routine has by default."""
    model = deep_ensembles(case.members())

    def run() -> tuple[None, Tensor, Tensor]:
        (scores,) = trainer(case).test(
            routine(case, model, case.num_modes), loader(case, shuffle=False), verbose=False
        )
        return None, torch.tensor(scores["test/cls/Entropy"]), torch.tensor(scores["test/ens_MI"])

    return Job(run, case.num_steps)


def forward(case: Case) -> Job:
    """The ensemble's forward pass alone, no uncertainty computed."""
    model = deep_ensembles(case.members()).eval()

    @torch.inference_mode()
    def run() -> None:
        for inputs, _ in loader(case, shuffle=False):
            model(inputs)

    return Job(run, case.num_steps)
