"""laplace-torch 0.3 and BackPACK, as their documentation uses them."""

from __future__ import annotations

import warnings

import torch
from torch.utils.data import DataLoader, TensorDataset

from ..cases import NUM_INPUTS, Case, data
from . import Job

warnings.filterwarnings("ignore")

from laplace import Laplace  # noqa: E402
from laplace.curvature import BackPackGGN, CurvlinopsGGN  # noqa: E402


def _fitted(case: Case, subset: str, structure: str, backend: type) -> tuple[Laplace, DataLoader]:
    x, y = data(case)
    x, y = x[: case.num_examples], y[: case.num_examples]
    loader = DataLoader(TensorDataset(x, y), batch_size=case.batch_size)
    net = case.members()[0].eval()
    return Laplace(net, "classification", subset, structure, backend=backend), loader


def variance(case: Case) -> Job:
    """Covariances of the outputs at some inputs, Kronecker."""
    la, loader = _fitted(case, "all", "kron", CurvlinopsGGN)
    la.fit(loader)
    x = data(case)[0][:NUM_INPUTS]

    def run() -> float:
        _, covariance = la._glm_predictive_distribution(x)
        return float(covariance.diagonal(dim1=1, dim2=2).mean())

    return Job(run, 1)


def kron(case: Case) -> Job:
    """Kronecker factors of the whole network, with their eigenvectors."""
    la, loader = _fitted(case, "all", "kron", CurvlinopsGGN)

    def run() -> float:
        la.fit(loader)
        return float(la.log_det_posterior_precision)

    return Job(run, case.num_steps)


def backpack_diagonal(case: Case) -> Job:
    """The diagonal GGN by BackPACK."""
    la, loader = _fitted(case, "all", "diag", BackPackGGN)

    def run() -> float:
        la.fit(loader)
        return float(la.log_det_posterior_precision)

    return Job(run, case.num_steps)


def evidence(case: Case) -> Job:
    """100 steps of Adam on the evidence of the last layer, full."""
    la, loader = _fitted(case, "last_layer", "full", CurvlinopsGGN)
    la.fit(loader)

    def run() -> float:
        la.prior_precision = 1.0
        la.optimize_prior_precision(method="marglik", n_steps=100, lr=0.1)
        return float(torch.as_tensor(la.prior_precision).mean())

    return Job(run, 100)
