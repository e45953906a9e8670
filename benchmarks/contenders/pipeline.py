"""Input pipelines on one core: shuffled, scaled, augmented batches, and who consumes them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ..cases import Case, images
from . import Job


def lenet_training(case: Case) -> Job:
    """The consumer: one LeNet trains on batches that lie ready."""
    from polymode.nets import lenet

    pixels, y = images(case)
    x = pixels.float() / 255
    net = lenet(case.input_shape, case.num_classes)
    optimizer = torch.optim.Adam(net.parameters(), fused=True)

    def run() -> None:
        torch.set_num_threads(1)
        for i in range(0, len(x), case.batch_size):
            rows = slice(i, i + case.batch_size)
            optimizer.zero_grad()
            F.cross_entropy(net(x[rows]), y[rows]).backward()
            optimizer.step()

    return Job(run, case.num_steps)


def polymode(case: Case) -> Job:
    """Bytes in memory, and the augmentation of the training loop's hook."""
    from polymode.core.rng import generator
    from polymode.likelihoods.scaling import Scaling
    from polymode.tasks.augment import augmentation
    from polymode.training.data import Pixels

    pixels, y = images(case)
    source = Pixels(pixels, y, Scaling(torch.tensor(0.5), torch.tensor(0.25)))
    augment = augmentation(case.option) if case.option else None

    def run() -> None:
        torch.set_num_threads(1)
        for number, (x, _) in enumerate(source.epoch(case.batch_size, 0)):
            if augment is not None:
                augment(x, generator(0, "augment", number))

    return Job(run, case.num_steps)


class _OneByOne(Dataset):
    """Each image by itself, as transforms of a `Dataset` usually work."""

    def __init__(self, pixels: Tensor, y: Tensor, augmented: bool) -> None:
        self.pixels, self.y, self.augmented = pixels, y, augmented

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        x = (self.pixels[row].float() / 255 - 0.5) / 0.25
        if self.augmented:
            side = x.shape[-1]
            top, left = torch.randint(9, (2,)).tolist()
            x = F.pad(x, (4, 4, 4, 4))[:, top : top + side, left : left + side]
            x = x.flip(-1) if torch.rand(()) < 0.5 else x
        return x, self.y[row]


def data_loader(case: Case) -> Job:
    """`torch.utils.data.DataLoader` over single images, in this process."""
    loader = DataLoader(
        _OneByOne(*images(case), bool(case.option)), batch_size=case.batch_size, shuffle=True
    )

    def run() -> None:
        torch.set_num_threads(1)
        for _ in loader:
            pass

    return Job(run, case.num_steps)
