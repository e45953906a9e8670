"""The kernel A J Jᵀ Aᵀ of a linearised U-Net of 8 channels: row by row, and many rows at a time."""

from __future__ import annotations

from typing import Any

import torch

from ..cases import Case
from . import Job


def _model(case: Case) -> Any:
    from polymode.nets import unet
    from polymode.tomography import Linearised, parallel_beam

    side = case.input_shape[-1]
    torch.manual_seed(0)
    net = unet(case.input_shape, 1, channels=(8, 8, 8), sigmoid=True)
    x = torch.randn(1, *case.input_shape)
    return Linearised(net, x, parallel_beam(side, case.num_modes), prior="isotropic")


def polymode(case: Case) -> Job:
    """Rows of A J by batched vector-Jacobian products, then a product for each block."""
    from polymode.tomography.image_evidence import assemble

    model = _model(case)

    def run() -> float:
        found = assemble(model, pixels=False).observed.sum(0)
        return float(found.trace())

    return Job(run, case.num_steps)


def row_by_row(case: Case) -> Job:
    """K e for each unit vector e, a product with Jᵀ and one with J each."""
    from polymode.tomography.matrix_free import kernel_product

    model = _model(case)
    product = kernel_product(model, model.prior.start(1.0))
    unit = torch.eye(model.operator.num_observations, dtype=torch.float64)

    def run() -> float:
        found = torch.cat([product(row[None]) for row in unit])
        return float(found.trace())

    return Job(run, case.num_steps)


def jacobian_rows(case: Case) -> Job:
    """Rows of A J by autograd on one kept graph, one backward pass each, then J Jᵀ."""
    from polymode.nets import unet
    from polymode.tomography import parallel_beam

    side = case.input_shape[-1]
    torch.manual_seed(0)
    net = unet(case.input_shape, 1, channels=(8, 8, 8), sigmoid=True)
    x = torch.randn(1, *case.input_shape)
    operator = parallel_beam(side, case.num_modes)
    weights = [each for each in net.parameters() if each.dim() == 4]

    def run() -> float:
        seen = operator(net(x))[0]
        rows = []
        for one in seen:
            grads = torch.autograd.grad(one, weights, retain_graph=True)
            rows.append(torch.cat([each.flatten() for each in grads]))
        jacobian = torch.stack(rows).double()
        return float((jacobian @ jacobian.T).trace())

    return Job(run, case.num_steps)
