"""polymode's Laplace: the same quantities as the peers', and the passes that they stand on."""

from __future__ import annotations

from collections.abc import Callable

import torch

from polymode.curvature.tangent import Tangent, survey
from polymode.likelihoods.kinds import Categorical
from polymode.methods.laplace.curvature import Curvature, Setting, curvature
from polymode.methods.laplace.gaussian import GaussianPosterior, log_evidence, output_moments
from polymode.methods.method import Problem
from polymode.stack.stack import Stack
from polymode.training.data import Arrays

from ..cases import NUM_INPUTS, Case, data
from . import Job

_TIMES = 20  # CPU time is counted in hundredths of a second


def _fit(case: Case, structure: str) -> tuple[Stack, Callable[[], Curvature]]:
    x, y = data(case)
    x, y = x[: case.num_examples], y[: case.num_examples]
    stack = Stack(case.members()[:1])
    problem = Problem(Categorical(), len(x), case.num_classes, case.num_steps, Arrays(x, y))
    known = survey(stack, x)
    setting = Setting(structure, batch_size=case.batch_size)
    return stack, lambda: curvature(setting, problem, stack, 0, known)


def _posterior(found: Curvature) -> GaussianPosterior:
    names = [name for block in found.blocks for name in block.names]
    return GaussianPosterior(found.blocks, dict.fromkeys(names, torch.tensor(1.0)))


def variance(case: Case) -> Job:
    """Covariances of the outputs at some inputs, Kronecker."""
    stack, fit = _fit(case, "kron")
    posterior = _posterior(fit())
    x = data(case)[0][:NUM_INPUTS]
    tangent = Tangent(stack, 0, survey(stack, x), list(posterior.precision))

    def run() -> float:
        with torch.no_grad():
            for _ in range(_TIMES):
                _, covariance = output_moments(posterior, tangent, x, case.num_classes, True)
        return float(covariance.diagonal(dim1=1, dim2=2).mean())

    return Job(run, 1, scale=1 / _TIMES)


def _round(case: Case, structure: str) -> Job:
    _, fit = _fit(case, structure)
    return Job(lambda: float(_posterior(fit()).logdet()), case.num_steps)


def kron(case: Case) -> Job:
    """Kronecker factors of the whole network, with their eigenvectors."""
    return _round(case, "kron")


def diagonal(case: Case) -> Job:
    return _round(case, "diag")


def evidence(case: Case) -> Job:
    """100 steps of Adam on the evidence of the last layer, full."""
    stack, fit = _fit(case, "last_layer")
    found = fit()
    params = {name: tensor.detach()[0] for name, tensor in stack.params.items()}
    names = [name for block in found.blocks for name in block.names]

    def once() -> float:
        log_precision = torch.zeros((), requires_grad=True)
        optimizer = torch.optim.Adam([log_precision], lr=0.1)
        for _ in range(100):
            optimizer.zero_grad()
            precision = dict.fromkeys(names, log_precision.exp())
            (-log_evidence(found, params, precision)).backward()
            optimizer.step()
        return float(log_precision.detach().exp())

    return Job(lambda: [once() for _ in range(_TIMES)][0], 100, scale=1 / _TIMES)


def passes(case: Case) -> Job:
    """One forward and C backward passes over the data, gradients of all weights."""
    x, y = data(case)
    net = case.members()[0].eval()
    parameters = list(net.parameters())

    def run() -> None:
        for part in x[: case.num_examples].split(case.batch_size):
            outputs = net(part)
            for c in range(case.num_classes):
                torch.autograd.grad(outputs[:, c].sum(), parameters, retain_graph=True)

    return Job(run, case.num_steps)
