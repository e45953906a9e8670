"""Deep image priors of several images: one after another, and as one stack."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import nn

from ..cases import Case
from . import Job

TV_WEIGHT, LR, CLIP = 1e-4, 1e-3, 1.0


@lru_cache(maxsize=1)
def _scan(side: int, images: int) -> Any:
    from polymode.tomography import parallel_beam, simulate

    stream = torch.Generator().manual_seed(0)
    coarse = torch.rand(images, 1, 4, 4, generator=stream)
    smooth = nn.functional.interpolate(coarse, side, mode="bilinear")
    return simulate(parallel_beam(side, 20), smooth)


def _nets(case: Case) -> list[nn.Module]:
    from polymode.nets import unet

    nets = []
    for k in range(case.num_modes):
        torch.manual_seed(k)
        nets.append(unet(case.input_shape, 1, sigmoid=True))
    return nets


def polymode(case: Case) -> Job:
    """A member for each image."""
    from polymode.tomography import DeepImagePrior, deep_image_prior

    scan = _scan(case.input_shape[-1], case.num_modes)
    options = DeepImagePrior(
        steps=case.epochs, tv_weight=TV_WEIGHT, lr=LR, clip_norm=CLIP, look_every=case.epochs
    )

    def run() -> float:
        return float(deep_image_prior(scan, _nets(case), options).losses.mean())

    return Job(run, case.num_steps)


def plain_loop(case: Case) -> Job:
    """torch's Adam, its fused one, and the least-loss iterate, image by image."""
    from polymode.tomography import fbp, total_variation

    scan = _scan(case.input_shape[-1], case.num_modes)
    inputs = fbp(scan.operator, scan.observations)

    def run() -> float:
        total = 0.0
        for k, net in enumerate(_nets(case)):
            adam = torch.optim.Adam(net.parameters(), lr=LR, fused=True)
            least, kept = float("inf"), {}
            for _ in range(case.epochs):
                image = net(inputs[k : k + 1])
                misfit = (scan.operator(image)[0] - scan.observations[k]).square().mean()
                loss = misfit + TV_WEIGHT * total_variation(image).sum()
                adam.zero_grad()
                loss.backward()
                if loss.item() < least:
                    least = loss.item()
                    kept = {name: p.detach().clone() for name, p in net.named_parameters()}
                nn.utils.clip_grad_norm_(net.parameters(), CLIP)
                adam.step()
            total += least if kept else 0.0
        return total / case.num_modes

    return Job(run, case.num_steps)
