"""Curvature of likelihoods and networks: roots, Kronecker factors, every structure against the
dense GGN in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from polymode.curvature.tangent import Tangent, member, survey
from polymode.likelihoods.kinds import (
    Bernoulli,
    Categorical,
    Gaussian,
    HeteroscedasticGaussian,
    Likelihood,
    StudentT,
)
from polymode.methods.laplace.curvature import Setting, curvature, roots
from polymode.methods.laplace.gaussian import GaussianPosterior, joint_moments, output_moments
from polymode.methods.method import Problem
from polymode.stack.stack import Stack
from polymode.training.data import Arrays

from ...curvature.cases import CASES
from ...curvature.stacks import one_by_one, stack_of

OUTPUTS = torch.tensor([[0.3, -1.2, 0.8], [2.0, 0.1, -0.4]], dtype=torch.float64)


def squared(v: Tensor) -> Tensor:
    return torch.einsum("rbk,rbj->bkj", v, v)


@pytest.mark.parametrize(
    ("likelihood", "outputs", "targets"),
    [
        (Categorical(), OUTPUTS, torch.tensor([0, 2])),
        (Bernoulli(), OUTPUTS[:, :1], torch.tensor([0, 1])),
        (Gaussian(noise=(0.5, 1.0, 2.0)), OUTPUTS, OUTPUTS + 1),
    ],
    ids=str,
)
def test_exact_is_the_hessian(likelihood: Likelihood, outputs: Tensor, targets: Tensor) -> None:
    """For these three the Fisher information is the Hessian, whatever the targets."""
    found = squared(roots(likelihood, outputs, targets, {}))
    for n in range(2):
        hessian = torch.autograd.functional.hessian(
            lambda f, n=n: -likelihood.log_prob(f[None], targets[n : n + 1], {})[0], outputs[n]
        )
        torch.testing.assert_close(found[n], hessian, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("likelihood", "size"),
    [(StudentT(df=4.0, scale=0.7), 1), (HeteroscedasticGaussian(), 2)],
    ids=str,
)
def test_exact_is_the_expectation(likelihood: Likelihood, size: int) -> None:
    """Against the integral of ∇ log p ∇ log pᵀ p(y) over y on a fine grid."""
    outputs = OUTPUTS[:1, :size]
    y = torch.linspace(-400, 400, 800_001, dtype=torch.float64)[:, None]
    many = outputs.expand(len(y), -1).clone().requires_grad_()
    log_prob = likelihood.log_prob(many, y, {})
    gradient = torch.autograd.grad(log_prob.sum(), many)[0]
    weight = log_prob.detach().exp() * 1e-3
    expected = torch.einsum("n,nk,nj->kj", weight, gradient, gradient)
    found = squared(roots(likelihood, outputs, y[:1], {}))[0]
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    "likelihood", [Categorical(), Gaussian(noise=0.5), StudentT(df=6.0, scale=0.7)], ids=str
)
def test_drawn_targets_have_the_right_mean(likelihood: Likelihood) -> None:
    """20,000 draws at 2 examples: each entry within 5 standard errors of the exact one, estimated
    from the draws; of 18 entries chance misses one for about 1 seed in 100,000. Fixed seed."""
    number = 20_000
    outputs = OUTPUTS.repeat(number, 1)
    stream = torch.Generator().manual_seed(0)
    v = roots(likelihood, outputs, outputs, {}, fisher="mc", stream=stream)[0]
    products = torch.einsum("nk,nj->nkj", v, v).view(number, 2, 3, 3)
    exact = squared(roots(likelihood, OUTPUTS, OUTPUTS, {}))
    error = products.std(0) / number**0.5
    assert ((products.mean(0) - exact).abs() <= 5 * error + 1e-12).all()
    several = roots(likelihood, OUTPUTS, OUTPUTS, {}, fisher="mc", mc_samples=7, stream=stream)
    assert several.shape == (7, 2, 3)


def test_empirical_is_the_gradient_at_the_targets() -> None:
    targets = torch.tensor([0, 2])
    found = roots(Categorical(), OUTPUTS, targets, {}, fisher="empirical")
    expected = torch.nn.functional.one_hot(targets, 3) - OUTPUTS.softmax(-1)
    torch.testing.assert_close(found[0], expected)


STREAM = torch.Generator().manual_seed(5)


def net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 2, stride=2, padding=1, groups=2), nn.Tanh(),
        nn.Conv2d(4, 2, 2), nn.Tanh(), nn.Flatten(), nn.Linear(18, 3),
    )  # fmt: skip


def seen(module: nn.Module, x: Tensor, cotangents: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Windows a (N, T, I) and gradients g (R, N, T, O) of every layer, group by group."""
    inputs, outputs = {}, {}

    def keep(name: str):
        def hook(layer: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> None:
            inputs[name], outputs[name] = args[0], out

        return hook

    for name, layer in module.named_children():
        layer.register_forward_hook(keep(name))
    out = module(x)
    found = {}
    for name, layer in module.named_children():
        if not list(layer.parameters()):
            continue
        grads = torch.stack([
            torch.autograd.grad(out, outputs[name], v, retain_graph=True)[0] for v in cotangents
        ])  # fmt: skip
        a, groups = inputs[name], getattr(layer, "groups", 1)
        if isinstance(layer, nn.Conv2d):
            grads = grads.flatten(3).mT
            a = nn.functional.unfold(a, layer.kernel_size, 1, layer.padding, layer.stride).mT
        else:
            a, grads = a.unsqueeze(1), grads.unsqueeze(2)
        pairs = zip(a.chunk(groups, -1), grads.chunk(groups, -1), strict=True)
        found[f"{name}.weight"] = list(pairs)
        found[f"{name}.bias"] = [(torch.ones(*a.shape[:2], 1, dtype=a.dtype), grads)]
    return found


@pytest.mark.parametrize("sharing", ["expand", "reduce"])
def test_factors_are_those_of_the_papers(sharing) -> None:
    """expand: Σ g gᵀ ⊗ Σ a aᵀ / (N T) over examples and positions; reduce: of the sum of g and the
    mean of a over positions. One pair of factors per group; a bias has a = 1."""
    stack = Stack(net, 1, dtype=torch.float64)
    x = torch.randn(5, 2, 6, 6, generator=STREAM, dtype=torch.float64)
    problem = problem_of(stack, x, Categorical())
    setting = Setting("kron", sharing=sharing, batch_size=2)
    found = curvature(setting, problem, stack, 0, survey(stack, x))
    module = stack.module(0).eval()
    probs = module(x).softmax(-1).detach()
    unit = torch.eye(3, dtype=torch.float64)
    cotangents = torch.stack([probs[:, [c]].sqrt() * (unit[c] - probs) for c in range(3)])
    expected = seen(module, x, cotangents)
    for block in found.blocks:
        parts = []
        for a, g in expected[block.name]:
            if sharing == "reduce":
                a, g = a.mean(1, keepdim=True), g.sum(2, keepdim=True)
            flat_a, flat_g = a.flatten(0, 1), g.flatten(0, 2)
            parts.append(torch.kron(flat_g.mT @ flat_g, flat_a.mT @ flat_a / len(flat_a)))
        whole = torch.block_diag(*parts)
        torch.testing.assert_close(block.matrix(), whole, rtol=1e-9, atol=1e-11)


def test_one_example_is_exact() -> None:
    """With one example and one position, M ⊗ A is the block of the GGN itself."""
    stack = Stack(lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)), 1,
                  dtype=torch.float64)  # fmt: skip
    x = torch.randn(1, 3, generator=STREAM, dtype=torch.float64)
    problem = problem_of(stack, x, Categorical())
    found = curvature(Setting("kron"), problem, stack, 0, survey(stack, x))
    truth = dense(problem, stack, 0, x)
    for block in found.blocks:
        torch.testing.assert_close(
            block.matrix(), truth[block.name, block.name], rtol=1e-9, atol=1e-12
        )


def test_embeddings_have_the_frequencies_of_labels() -> None:
    stack = Stack(lambda: nn.Sequential(nn.Embedding(4, 2), nn.Flatten(), nn.Linear(6, 2)), 1,
                  dtype=torch.float64)  # fmt: skip
    x = torch.tensor([[0, 1, 1], [3, 1, 0], [1, 1, 1]])
    problem = problem_of(stack, x, Categorical())
    found = curvature(Setting("kron"), problem, stack, 0, survey(stack, x))
    block = found.blocks[0]
    assert block.fixed_basis is None
    torch.testing.assert_close(block.fixed[0], torch.tensor([2.0, 6.0, 0.0, 1.0]).double() / 9)


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
