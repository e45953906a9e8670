"""Laplace posteriors: predictions, files, refusals; and what a known library gets wrong."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import polymode as pm
from polymode.likelihoods.components import Moments
from polymode.likelihoods.kinds import Bernoulli, Gaussian
from polymode.methods.laplace.gaussian import GaussianPosterior
from polymode.methods.laplace.laplace_weights import bridge, probit
from polymode.methods.laplace.linear_model import Tangent
from polymode.training.events import Reporter

from .small_problem import LABELS, STREAM, STRUCTURES, VALUES, X, fit, net


def test_linear_regression_is_exact() -> None:
    """A linear network with known noise: the posterior predictive of Bayesian linear regression
    around the least-squares solution of the prior, in closed form."""
    noise, precision = 0.5, 2.0
    inputs = torch.cat([X, torch.ones(40, 1).double()], 1)
    h = inputs.mT @ inputs / noise**2 + precision * torch.eye(4).double()
    mean = torch.linalg.solve(h, inputs.mT @ VALUES / noise**2)
    layer = nn.Linear(3, 2).double()
    with torch.no_grad():
        layer.weight.copy_(mean[:3].mT)
        layer.bias.copy_(mean[3])
    task = pm.Task(train=(X, VALUES), likelihood=Gaussian(noise=noise))
    expected = torch.einsum("bi,ij,bj->b", inputs, h.inverse(), inputs)
    for structure in ("full", "last_layer"):
        post = pm.fit("laplace", net=layer, task=task, structure=structure, progress="silent",
                      prior_precision=precision)  # fmt: skip
        found = post.predict(X)
        torch.testing.assert_close(found.mean, inputs @ mean, rtol=1e-10, atol=1e-12)
        both = expected[:, None].expand(-1, 2)
        torch.testing.assert_close(found.epistemic_variance, both, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(found.variance, both + noise**2, rtol=1e-9, atol=1e-12)


def test_draws_have_the_covariance_of_the_posterior() -> None:
    """1,500 drawn networks: the second moments of 5 weights within 5 standard errors of H⁻¹, 15 of
    them, which chance misses for 1 seed in 50,000. The seed is fixed."""
    for structure in ("full", "kron"):
        post = fit(structure=structure)
        posterior = post.weights.posteriors[0]
        streams = [torch.randn(1500, t[0].numel(), generator=STREAM, dtype=torch.float64)
                   for t in post.stack.params.values()]  # fmt: skip
        made = []
        for row in zip(*(s.unbind(0) for s in streams), strict=True):
            noise = dict(zip(post.stack.params, row, strict=True))
            made.append(torch.cat(list(posterior.deviation(noise).values()))[:20:4])
        found = torch.stack(made)
        covariance = dense_covariance(posterior)[:20:4, :20:4]
        moments = found.mT @ found / len(found)
        spread = covariance.diagonal()
        error = ((spread[:, None] * spread + covariance.square()) / len(found)).sqrt()
        assert ((moments - covariance).abs() <= 5 * error + 1e-12).all(), structure


def dense_covariance(posterior: GaussianPosterior) -> Tensor:
    """H⁻¹ over all numbers, zeros where they are known."""
    blocks = []
    for block in posterior.blocks:
        prior = torch.cat([
            posterior.precision[n].expand(s) for n, s in zip(block.names, block.sizes, strict=True)
        ])  # fmt: skip
        inverse = (block.matrix() + prior.diag()).inverse()
        chosen = getattr(block, "chosen", None)
        if chosen is not None:
            whole = torch.zeros(sum(block.lengths), sum(block.lengths), dtype=inverse.dtype)
            whole[chosen[:, None], chosen] = inverse
            inverse = whole
        blocks.append(inverse)
    return torch.block_diag(*blocks)


def test_links() -> None:
    """probit and bridge by their formulas, one example at a time."""
    mean = torch.tensor([[[0.5, -0.3, 1.0]]], dtype=torch.float64)
    root = torch.tensor([[0.8, 0, 0], [0.1, 0.6, 0], [-0.2, 0.3, 0.9]]).double()
    covariance = root @ root.mT
    found = probit(Moments(mean, covariance[None, None]))[0, 0].softmax(-1)
    expected = (mean[0, 0] / (1 + torch.pi / 8 * covariance.diagonal()).sqrt()).softmax(-1)
    torch.testing.assert_close(found, expected)
    one = torch.ones(3, 3).double()
    conditioned = covariance - covariance @ one @ covariance / covariance.sum()
    centre = mean[0, 0] - covariance.sum(1) * mean.sum() / covariance.sum()
    alpha = (1 - 2 / 3 + centre.exp() * (-centre).exp().sum() / 9) / conditioned.diagonal()
    found = bridge(Moments(mean, covariance[None, None]))[0, 0].exp()
    torch.testing.assert_close(found, alpha / alpha.sum())
    torch.testing.assert_close(found.sum(), torch.ones(()).double())


@pytest.mark.parametrize("link", ["probit", "bridge"])
def test_closed_links_have_one_sample_per_mode(link) -> None:
    post = fit(link=link)
    found = post.predict(X)
    assert found.num_samples == 1
    moments = post.weights.moments(X)
    expected = {"probit": probit, "bridge": bridge}[link](moments)[0].softmax(-1)
    torch.testing.assert_close(found.mean, expected)
    with pytest.raises(ValueError, match="`samples_per_mode` must be 1"):
        post.predict(X, samples_per_mode=3)
    two = pm.Task(train=(X, (X[:, 0] > 0).long()), likelihood=Bernoulli())
    if link == "bridge":
        with pytest.raises(ValueError, match="one logit"):
            fit(net=net(1), task=two, link=link)
        return
    single = fit(net=net(1), task=two, link=link).predict(X).mean
    assert single.shape == (40, 2)
    certain = pm.fit("map", net=net(1), task=two, epochs=0, progress="silent").predict(X).mean
    assert ((single - 0.5).abs() < (certain - 0.5).abs()).all()  # not knowing makes it less sure


@pytest.mark.parametrize("structure", STRUCTURES)
def test_loading_repeats_no_decomposition(structure, tmp_path, monkeypatch) -> None:
    post = fit(structure=structure, net=[net(), net()], evidence="trained", prior="per_layer")
    post.save(tmp_path, modes_per_file=1)
    before = post.predict(X).mean

    for name in ("eigh", "eigvalsh", "cholesky", "svd", "qr"):
        original = getattr(torch.linalg, name)

        def only_of_outputs(matrix, *args, original=original, **options):
            assert matrix.shape[-1] <= 3, "a decomposition of more than the covariance of outputs"
            return original(matrix, *args, **options)

        monkeypatch.setattr(torch.linalg, name, only_of_outputs)
    loaded = pm.load(tmp_path, net=net)
    assert torch.equal(loaded.predict(X, samples_per_mode=1).mean,
                       post.predict(X, samples_per_mode=1).mean)  # fmt: skip
    assert torch.equal(loaded.predict(X).mean, before)
    for name, values in post.weights.precision.items():
        parts = torch.cat([part.precision[name] for part in loaded.weights.parts()])
        assert torch.equal(parts, values)


def test_full_of_a_large_network_is_refused_with_numbers() -> None:
    large = nn.Sequential(nn.Linear(3, 1000), nn.Tanh(), nn.Linear(1000, 1200), nn.Tanh(),
                          nn.Linear(1200, 3))  # fmt: skip
    with pytest.raises(ValueError, match=r"1,208,803 × 1,208,803 matrix: .* TB in float64.*"
                       r"free\. Try structure='kron' \([\d.]+ MB\), 'diag'"):  # fmt: skip
        fit(net=large, structure="full")


def test_what_is_not_covered_is_named() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cells, self.last = nn.GRU(1, 2, batch_first=True), nn.Linear(2, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.cells(x.unsqueeze(-1))[0][:, -1])

    with pytest.warns(UserWarning, match=r"'cells.weight_ih_l0', .*: not part of .* diagonal"):
        post = fit(net=Recurrent().double())
    kinds = [type(block).__name__ for block in post.weights.posteriors[0].blocks]
    assert kinds == ["Diagonal"] * 4 + ["Kronecker"] * 2
    with pytest.warns(UserWarning, match="sharing='reduce' changes nothing"):
        fit(sharing="reduce")
    with pytest.raises(ValueError, match="needs a linear last layer"):
        fit(net=nn.Sequential(Scaled()), structure="last_layer")


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


@pytest.mark.parametrize("structure", STRUCTURES)
def test_another_prior_is_the_fit_with_it(structure, monkeypatch) -> None:
    """Without the data, and without another decomposition."""
    post, other = (fit(structure=structure, prior_precision=p) for p in (1.0, 7.0))
    before = post.weights.moments(X).spread
    with monkeypatch.context() as patch:
        patch.setattr(torch.linalg, "eigh", None)
        changed = post.weights.with_precision(7.0)
    expected = other.weights.moments(X).spread
    torch.testing.assert_close(changed.moments(X).spread, expected, rtol=1e-8, atol=1e-11)
    assert torch.equal(post.weights.moments(X).spread, before)
    layers = fit(structure=structure, prior="per_layer", evidence="trained").weights
    titles = set(layers.groups.values())
    spread = layers.with_precision(dict.fromkeys(titles, 7.0)).moments(X).spread
    torch.testing.assert_close(spread, expected, rtol=1e-6, atol=1e-9)
    with pytest.raises(ValueError, match="one for each of the groups"):
        layers.with_precision({"elsewhere": 1.0})


@pytest.mark.parametrize("structure", STRUCTURES)
def test_moments_are_differentiable_in_the_inputs(structure) -> None:
    """Also through convolutions and norms; against central differences in float64."""

    def images() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 2, 2), nn.GroupNorm(1, 2), nn.Tanh(), nn.Conv2d(2, 2, 2), nn.Tanh(),
            nn.Flatten(), nn.Linear(8, 2),
        ).double()  # fmt: skip

    x = torch.randn(6, 1, 4, 4, generator=STREAM, dtype=torch.float64)
    task = pm.Task(train=(x, LABELS[:6] % 2), likelihood="categorical")
    weights = fit(net=images(), task=task, structure=structure).weights

    def total(x: Tensor) -> Tensor:
        moments = weights.moments(x)
        return moments.spread.square().sum() + moments.loc.sin().sum()

    inputs = x[:2].clone().requires_grad_()
    (gradient,) = torch.autograd.grad(total(inputs), inputs)
    for place in ((0, 0, 1, 2), (1, 0, 3, 0)):
        shift = torch.zeros_like(inputs)
        shift[place] = 1e-5
        with torch.no_grad():
            slope = float(total(inputs + shift) - total(inputs - shift)) / 2e-5
        assert gradient[place].item() == pytest.approx(slope, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_joint_covariances_are_those_of_the_weights(structure) -> None:
    """J H⁻¹ Jᵀ over four inputs at once, J and H written out; `moments` is its diagonal."""
    weights = fit(net=[net(), net()], structure=structure).weights
    mean, covariance = weights.joint(X[:4])
    assert covariance.shape == (2, 4, 3, 4, 3)
    moments = weights.moments(X[:4])
    torch.testing.assert_close(mean, moments.loc)
    each = torch.arange(4)
    torch.testing.assert_close(covariance[:, each, :, each].transpose(0, 1), moments.spread)
    for k, posterior in enumerate(weights.posteriors):
        names = [name for block in posterior.blocks for name in block.names]
        rows = Tangent(weights.stack, k, names=names).jacobian(X[:4]).flatten(0, 1)
        expected = rows @ dense_covariance(posterior) @ rows.mT
        torch.testing.assert_close(covariance[k].view(12, 12), expected, rtol=1e-8, atol=1e-10)


# ------------------------------------------------------- faults of a known library, not repeated


def test_noise_of_a_regression_is_in_its_variance() -> None:
    """Both parts are told, and they add up."""
    task = pm.Task(train=(X, VALUES), likelihood=Gaussian(noise=0.3))
    found = fit(net=net(2), task=task).predict(X)
    torch.testing.assert_close(found.aleatoric_variance, torch.full((40, 2), 0.09).double())
    torch.testing.assert_close(found.variance, found.epistemic_variance + 0.09)
    assert (found.epistemic_variance > 0).all()


@pytest.mark.parametrize("predictive", ["linearised", "sampled"])
def test_the_seed_decides(predictive) -> None:
    post = fit(predictive=predictive)
    first, same, other = (post.predict(X, seed=s).log_probs for s in (1, 1, 2))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    state = torch.random.get_rng_state()
    drawn = fit(fisher="mc"), fit(fisher="mc"), fit(fisher="mc", seed=1)
    assert torch.equal(torch.random.get_rng_state(), state)
    a, b, c = (each.weights.tensors()["block/0/moving"] for each in drawn)
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    chance = {"structure": "subnetwork", "subnetwork": "random", "subnetwork_size": 6}
    a, b, c = (fit(**chance, seed=s).weights.moments(X).spread for s in (0, 0, 1))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_diagonal_output_covariance_never_makes_the_full_one(monkeypatch) -> None:
    post, full = fit(output_covariance="diagonal"), fit()
    spread = full.weights.moments(X).spread.diagonal(dim1=-2, dim2=-1)
    asked = []
    original = GaussianPosterior.quadratic

    def watch(self, records, full=True):
        asked.append(full)
        return original(self, records, full)

    monkeypatch.setattr(GaussianPosterior, "quadratic", watch)
    found = post.weights.moments(X).spread
    assert asked == [False]
    torch.testing.assert_close(found, spread)


def test_an_interrupt_leaves_the_networks_as_they_were(monkeypatch) -> None:
    """In the middle of a prediction with drawn weights."""
    mine = net()
    before = copy.deepcopy(mine.state_dict())

    def interrupt(*_args, **_options):
        raise KeyboardInterrupt

    post = fit(net=mine, predictive="sampled")
    held = {name: tensor.clone() for name, tensor in post.weights.tensors().items()}
    monkeypatch.setattr(nn.Tanh, "forward", interrupt)
    with pytest.raises(KeyboardInterrupt):
        post.predict(X)
    with pytest.raises(KeyboardInterrupt):
        fit(net=mine)
    assert all(torch.equal(t, held[name]) for name, t in post.weights.tensors().items())
    assert all(torch.equal(t, before[name]) for name, t in mine.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in mine.parameters())


@pytest.mark.parametrize("moment", ["curvature", "evidence", "subnetwork"])
def test_an_interrupt_of_a_fit_leaves_the_network_as_it_was(moment, monkeypatch) -> None:
    """In the middle of a pass for the curvature or the choice of a subnetwork, and of the search
    for the evidence: weights, statistics, flags and hooks, also of a network in training mode with
    frozen weights."""
    monkeypatch.setattr(Reporter, "due", lambda self: True)
    mine = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2)).double()
    mine[0].bias.requires_grad_(False)
    before, flags = copy.deepcopy(mine.state_dict()), [p.requires_grad for p in mine.parameters()]
    state = torch.random.get_rng_state()
    told = []

    def interrupt(event) -> None:
        searching = "Jacobian" in event.what
        if event.kind == "finish" and searching == (moment == "evidence"):
            told.append(event.step)
            if len(told) == 3:
                raise KeyboardInterrupt

    options: dict = {"prior_precision": 1.0} if moment != "evidence" else {}
    if moment == "subnetwork":
        options |= {"structure": moment, "subnetwork": "obd", "subnetwork_size": 5}
    task = pm.Task(train=(X, VALUES), likelihood=Gaussian(noise="learned"))
    with pytest.raises(KeyboardInterrupt):
        pm.fit("laplace", net=mine, task=task, batch_size=10, progress="silent",
               on_event=interrupt, **options)  # fmt: skip
    assert told == [1, 2, 3]
    assert all(torch.equal(t, before[name]) for name, t in mine.state_dict().items())
    assert all(p.grad is None for p in mine.parameters())
    assert [p.requires_grad for p in mine.parameters()] == flags
    assert all(m.training and not m._forward_hooks for m in mine.modules())
    assert torch.equal(torch.random.get_rng_state(), state)


def test_batch_size_does_not_change_the_curvature() -> None:
    for structure in STRUCTURES:
        small, large = (fit(structure=structure, batch_size=size) for size in (7, 40))
        for name, tensor in small.weights.tensors().items():
            if "basis" in name or "directions" in name:
                continue  # vectors of equal eigenvalues are anyone's
            torch.testing.assert_close(tensor, large.weights.tensors()[name], rtol=1e-8, atol=1e-9)
        a, b = (each.weights.moments(X).spread for each in (small, large))
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("method", ["laplace", "laplace_map"])
def test_weights_in_low_precision_are_refused(method, dtype) -> None:
    """With what helps, which works."""
    task = pm.Task(train=(X.float(), LABELS), likelihood="categorical")
    how = {"net": net().to(dtype), "task": task, "progress": "silent"}
    if method == "laplace_map":
        how |= {"net": lambda: net().to(dtype), "epochs": 0}
    name = str(dtype).removeprefix("torch.")
    with pytest.raises(ValueError, match=f"^{method} needs .* '0.weight' is {name}: .*float32"):
        pm.fit(method, **how)
    post = pm.fit(method, **how, dtype=torch.float32)
    assert post.predict(X[:3].float()).probs.isfinite().all()
