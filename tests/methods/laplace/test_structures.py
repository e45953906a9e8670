"""Every structure of curvature against the dense GGN in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from polymode.curvature.tangent import Tangent, member, survey
from polymode.likelihoods.kinds import Categorical, Gaussian, Likelihood
from polymode.methods.laplace.curvature import Setting, curvature
from polymode.methods.laplace.gaussian import GaussianPosterior, joint_moments, output_moments
from polymode.methods.method import Problem
from polymode.stack.stack import Stack
from polymode.training.data import Arrays

from ...curvature.cases import CASES
from ...curvature.test_tangent import one_by_one, stack_of


def problem_of(stack: Stack, x: Tensor, likelihood: Likelihood) -> Problem:
    outputs = stack.module(0).eval()(x).shape[-1]
    stream = torch.Generator().manual_seed(3)
    if likelihood.classification:
        y = torch.randint(outputs, (len(x),), generator=stream)
    else:
        y = torch.randn(len(x), outputs, generator=stream, dtype=torch.float64)
    return Problem(likelihood, len(x), outputs, 1, Arrays(x, y), seed=0)


def dense(problem: Problem, stack: Stack, k: int, x: Tensor) -> dict[tuple[str, str], Tensor]:
    """The GGN by its definition, in blocks: Jᵀ (∂²/∂f² of −log p) J, summed over examples."""
    module = member(stack, k)
    with torch.no_grad():
        outputs = module(x)
    size = outputs.shape[-1]
    unit = torch.eye(size, dtype=torch.float64)[:, None].expand(-1, len(x), -1)
    rows = one_by_one(module, x, unit)
    targets = next(iter(problem.data.batches(len(x))))[1]

    def hessian(f: Tensor, y: Tensor) -> Tensor:
        return torch.autograd.functional.hessian(
            lambda f: -problem.likelihood.log_prob(f[None], y[None], {})[0], f
        )

    inner = torch.stack([hessian(f, y) for f, y in zip(outputs, targets, strict=True)])
    return {
        (a, b): torch.einsum("rnp,nrs,snq->pq", rows[a], inner, rows[b]) for a in rows for b in rows
    }


def assembled(blocks: dict[tuple[str, str], Tensor], names: list[str]) -> Tensor:
    return torch.cat([torch.cat([blocks[a, b] for b in names], 1) for a in names])


@pytest.mark.parametrize("likelihood", [Categorical(), Gaussian(noise=0.5)], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_structures_against_the_dense_matrix(name, likelihood) -> None:
    stack, x = stack_of(name)
    problem, known = problem_of(stack, x, likelihood), survey(stack, x)
    truth, names = dense(problem, stack, 1, x), list(stack.params)
    whole = assembled(truth, names)

    def close(found: Tensor, expected: Tensor) -> None:
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8)

    def blocks(structure: str, **options):
        setting = Setting(structure, batch_size=2, **options)
        chosen = options.get("chosen")
        found = curvature(setting, problem, stack, 1, known, chosen)
        assert found.num_examples == len(x)
        return found.blocks

    (full,) = blocks("full")
    close(full.matrix(), whole)
    for block in blocks("diag"):
        close(block.values, truth[block.name, block.name].diagonal())
    (low,) = blocks("low_rank", rank=x.shape[0] * problem.target_size)
    close(low.matrix(), whole)
    last = list(known.last)
    (layer,) = blocks("last_layer")
    close(layer.matrix(), assembled(truth, last))
    some = torch.arange(0, len(whole), 3)
    found = curvature(Setting("subnetwork", batch_size=3), problem, stack, 1, known, some)
    close(found.blocks[0].matrix(), whole[some][:, some])


@pytest.mark.parametrize("name", CASES)
def test_outputs_determinants_and_samples_against_the_dense_matrix(name) -> None:
    """J H⁻¹ Jᵀ, log det H, γ, variances and H^{-1/2} of each structure, with a precision of its own
    for every parameter, from H written out."""
    stack, x = stack_of(name)
    problem, known = problem_of(stack, x, Categorical()), survey(stack, x)
    size = problem.target_size
    unit = torch.eye(size, dtype=torch.float64)[:, None].expand(-1, len(x), -1)
    rows = one_by_one(member(stack, 1), x, unit)
    chosen = torch.arange(0, stack.num_parameters, 3)
    for structure in ("kron", "diag", "full", "last_layer", "subnetwork", "low_rank"):
        setting = Setting(structure, batch_size=3, rank=4)
        found = curvature(setting, problem, stack, 1, known, chosen)
        names = [n for block in found.blocks for n in block.names]
        precision = {n: torch.tensor(0.5 + 0.1 * k).double() for k, n in enumerate(names)}
        posterior = GaussianPosterior(found.blocks, precision)
        inverse, other, logdet = 0.0, 0.0, torch.zeros(())
        spreads = posterior.variances()
        gamma = posterior.effective()
        for block in found.blocks:
            index = getattr(block, "index", None) or (slice(None),) * len(block.names)
            prior = torch.cat([
                precision[n].expand(s) for n, s in zip(block.names, block.sizes, strict=True)
            ])  # fmt: skip
            h = block.matrix() + prior.diag()
            j = torch.cat([rows[n][..., i] for n, i in zip(block.names, index, strict=True)], -1)
            inverse = inverse + torch.einsum("rbp,pq,sbq->brs", j, h.inverse(), j)
            other = other + torch.einsum("rp,pq,sq->rs", j[:, 0], h.inverse(), j[:, 1])
            logdet = logdet + torch.logdet(h)
            parts = h.inverse().diagonal().split(block.sizes)
            for n, i, part in zip(block.names, index, parts, strict=True):
                torch.testing.assert_close(spreads[n][i], part, rtol=1e-8, atol=1e-10)
                expected = (1 - precision[n] * part).sum()
                torch.testing.assert_close(gamma[n], expected, rtol=1e-7, atol=1e-9)
            check_root(block, precision, h, stack)
        tangent = Tangent(stack, 1, known, names)
        _, spread = output_moments(posterior, tangent, x, size, True)
        torch.testing.assert_close(spread, inverse, rtol=1e-8, atol=1e-10, msg=structure)
        _, spread = output_moments(posterior, tangent, x, size, False)
        diagonal = inverse.diagonal(dim1=1, dim2=2)
        torch.testing.assert_close(spread, diagonal, rtol=1e-8, atol=1e-10)
        _, between = joint_moments(posterior, tangent, x, size)
        each = torch.arange(len(x))
        torch.testing.assert_close(between[each, :, each], inverse, rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(between[0, :, 1], other, rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(posterior.logdet(), logdet, rtol=1e-9, atol=1e-9)


def check_root(block, precision, h: Tensor, stack: Stack) -> None:
    """The map from noise to deviations, as a matrix W, has W Wᵀ = H⁻¹."""
    lengths = {n: stack.params[n][0].numel() for n in block.names}
    total = sum(lengths.values())
    if total > 70:
        return  # one column each: the smaller blocks have the same code
    index = getattr(block, "chosen", None)
    columns = []
    for unit in torch.eye(total, dtype=torch.float64)[slice(None) if index is None else index]:
        parts = dict(zip(lengths, unit.split(list(lengths.values())), strict=True))
        made = torch.cat(list(block.deviation(parts, precision).values()))
        columns.append(made if index is None else made[index])
    w = torch.stack(columns, 1)
    torch.testing.assert_close(w @ w.mT, h.inverse(), rtol=1e-7, atol=1e-9)
