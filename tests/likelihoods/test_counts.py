"""Count, Laplace and quantile heads: log-densities against scipy, checks, and end to end."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

import polymode as pm
from polymode.likelihoods import (
    Laplace,
    NegativeBinomial,
    Poisson,
    Positions,
    QuantileHeads,
)
from polymode.likelihoods.kinds import likelihood_from_config
from polymode.likelihoods.scaling import Scaling
from polymode.methods.laplace.curvature import roots

STREAM = torch.Generator().manual_seed(0)
OUTPUTS = torch.randn(3, 20, 2, generator=STREAM, dtype=torch.float64)
COUNTS = torch.randint(0, 9, (20, 2), generator=STREAM).double()


def test_log_probabilities_equal_scipy():
    rate = OUTPUTS.exp().numpy()
    expected = stats.poisson(rate).logpmf(COUNTS.numpy()).sum(-1)
    np.testing.assert_allclose(Poisson().log_prob(OUTPUTS, COUNTS, {}), expected, rtol=1e-12)
    for r in (0.3, 7.0, (2.0, 50.0)):
        p = np.array(r) / (np.array(r) + rate)
        expected = stats.nbinom(np.array(r), p).logpmf(COUNTS.numpy()).sum(-1)
        found = NegativeBinomial(r).log_prob(OUTPUTS, COUNTS, {})
        np.testing.assert_allclose(found, expected, rtol=1e-11)
    expected = stats.laplace(OUTPUTS.numpy(), 0.4).logpdf(COUNTS.numpy()).sum(-1)
    found = Laplace(0.4).log_prob(OUTPUTS, COUNTS, {})
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    scales = {"log_scale": torch.tensor([0.1, -1.0, 0.5], dtype=torch.float64)}
    law = stats.laplace(OUTPUTS.numpy(), scales["log_scale"].exp()[:, None, None].numpy())
    expected = -law.logpdf(COUNTS.numpy()).sum(-1).mean(-1)
    np.testing.assert_allclose(Laplace().nll(OUTPUTS, COUNTS, scales), expected, rtol=1e-12)


def test_large_dispersion_is_poisson_also_in_float32():
    single = NegativeBinomial(1e7).log_prob(OUTPUTS.float(), COUNTS.float(), {})
    expected = Poisson().log_prob(OUTPUTS, COUNTS, {})
    np.testing.assert_allclose(single, expected, rtol=2e-5)


def test_dispersions_belong_to_members_and_have_gradients():
    law = NegativeBinomial()
    params = law.init(3, 2, torch.float64)
    log_r = (params["log_dispersion"] + torch.tensor([0.0, 1.0, 2.0])).requires_grad_()
    losses = law.nll(OUTPUTS, COUNTS, {"log_dispersion": log_r})
    for k in range(3):
        alone = NegativeBinomial(math.exp(k)).nll(OUTPUTS[k], COUNTS, {})
        torch.testing.assert_close(losses[k], alone)
    assert torch.autograd.gradcheck(
        lambda t: law.nll(OUTPUTS[:, :4], COUNTS[:4], {"log_dispersion": t}), log_r
    )
    with pytest.raises(ValueError, match="params\\['log_dispersion'\\]"):
        law.nll(OUTPUTS, COUNTS, {})


@pytest.mark.parametrize("law", [Poisson(), NegativeBinomial(1.7)], ids=str)
def test_curvature_is_the_expected_hessian(law):
    """Sum over counts of p(y) times the second derivative; of a Poisson count it is at any y."""
    outputs = OUTPUTS[0, :5]
    root = roots(law, outputs, COUNTS[:5], {})
    found = torch.einsum("rbi,rbj->bij", root, root)
    total = torch.zeros(5, 2, dtype=torch.float64)
    for y in range(400):
        counts = torch.full_like(outputs, float(y))
        leaf = outputs.clone().requires_grad_()
        logs = torch.stack([law.log_prob(leaf[:, [d]], counts[:, [d]], {}) for d in range(2)], 1)
        (slope,) = torch.autograd.grad(logs.sum(), leaf, create_graph=True)
        (bend,) = torch.autograd.grad(slope.sum(), leaf)
        total -= logs.exp().detach() * bend
    torch.testing.assert_close(found, torch.diag_embed(total), rtol=1e-8, atol=1e-10)


def test_drawn_curvature_tends_to_the_exact_one():
    """2,000 draws of one output: within five standard errors, false alarms 1 in 10⁶ per entry."""
    outputs = torch.tensor([[0.7]], dtype=torch.float64)
    for law in (Poisson(), NegativeBinomial(1.5), Laplace(0.5)):
        stream = torch.Generator().manual_seed(1)
        drawn = roots(law, outputs, outputs, {}, fisher="mc", mc_samples=2000, stream=stream)
        squares = drawn.square().flatten() * 2000
        exact = roots(law, outputs, outputs, {}).square().sum()
        assert abs(squares.mean() - exact) < 5 * squares.std() / 2000**0.5 + 1e-12


def test_what_is_no_count_is_refused():
    for law in (Poisson(), NegativeBinomial()):
        with pytest.raises(ValueError, match=r"counts 0, 1, 2, \.\.\., got \[-1.0\] in row 1"):
            law.check(torch.tensor([3, -1]))
        with pytest.raises(ValueError, match=r"got \[0.5\] in row 0 \(1 of 2 rows"):
            law.check(torch.tensor([0.5, 1.0]))
    with pytest.raises(ValueError, match="counts have no scale"):
        x = torch.randn(9, 2)
        pm.Task(train=(x, torch.ones(9)), likelihood="poisson",
                target_scaling=Scaling.of(torch.rand(9, 1)))  # fmt: skip
    with pytest.raises(ValueError, match="`dispersion` of NegativeBinomial"):
        NegativeBinomial(-1.0)
    for levels in ((0.5,), (0.5, 0.5), (0.0, 0.5), "0.1", (0.9, 0.1)):
        with pytest.raises(ValueError, match="at least two increasing numbers"):
            QuantileHeads(levels)


def test_quantiles_do_not_cross_and_start_at_the_normal_ones():
    law = QuantileHeads((0.1, 0.5, 0.8))
    start = law.components(torch.zeros(4, 6, dtype=torch.float64), {}).values
    np.testing.assert_allclose(start[0, 1], stats.norm.ppf(law.levels), atol=3e-6)
    wild = law.components(30 * torch.randn(50, 3, generator=STREAM), {}).values
    assert (wild.diff(dim=-1) > 0).all()


def test_pinball_loss_is_its_definition_and_least_at_the_quantiles():
    law = QuantileHeads((0.2, 0.5, 0.9))
    outputs = torch.randn(7, 3, generator=STREAM, dtype=torch.float64)
    y = torch.randn(7, 1, generator=STREAM, dtype=torch.float64)
    x = y[:, 0].numpy()
    quantiles = law.components(outputs, {}).values[:, 0].numpy()
    expected = sum(
        np.where(x < q, (tau - 1) * (x - q), tau * (x - q))
        for tau, q in zip(law.levels, quantiles.T, strict=True)
    )
    np.testing.assert_allclose(-law.log_prob(outputs, y, {}), expected, rtol=1e-12)
    values = torch.linspace(0, 1, 1001, dtype=torch.float64)[:, None]
    free = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([free], max_iter=300, line_search_fn="strong_wolfe")

    def loss():
        optimiser.zero_grad()
        total = law.nll(free.expand(1001, 3), values, {})
        total.backward()
        return total

    optimiser.step(loss)
    found = law.components(free.detach()[None], {}).values[0, 0]
    np.testing.assert_allclose(found, law.levels, atol=2e-3)


@pytest.mark.parametrize(
    "law", [Poisson(), NegativeBinomial((2.0, 3.0)), Laplace("learned_per_output"),
            QuantileHeads((0.1, 0.9)), Positions(Poisson(), axes=1, outputs="last")], ids=str,
)  # fmt: skip
def test_configurations_survive(law):
    assert likelihood_from_config(law.to_config()) == law


def made(likelihood, size=80, outputs=1):
    stream = torch.Generator().manual_seed(3)
    x = torch.randn(size, 2, generator=stream)
    y = torch.poisson((0.8 + x[:, :1].expand(size, outputs) / 2).exp(), generator=stream)
    half = size // 2
    sets = {"train": (x[:half], y[:half]), "test": (x[half:], y[half:]), "ood": {"far": 4 * x[:20]}}
    return pm.Task(**sets, likelihood=likelihood)


NAMES = ["poisson", "negative_binomial", "laplace", "quantile"]


@pytest.mark.parametrize("name", NAMES)
def test_every_number_of_an_ensemble_and_its_files(name, tmp_path):
    """Fit, predict, evaluate, save, load: the same predictions; scores, or the reason for none."""
    task = made(name, outputs=2)
    assert (task.target_scaling is None) == (name in ("poisson", "negative_binomial"))
    number = task.likelihood.num_outputs(2)
    post = pm.fit("deep_ensemble", net=lambda: torch.nn.Linear(2, number), task=task, num_modes=2,
                  epochs=3, progress="silent")  # fmt: skip
    results = pm.evaluate(post, task)
    for metric in ("nll", "crps", "fair_crps", "energy_score", "rmse", "coverage_90", "width_90",
                   "dyadic_nll", "quantile_calibration", "winkler_90"):  # fmt: skip
        assert math.isfinite(results["test", metric].value), metric
    note = results["test", "nll_standardised"].note
    assert ("a count in another unit" in note) == (name in ("poisson", "negative_binomial"))
    post.save(tmp_path / "post")
    again = pm.load(tmp_path / "post", net=lambda: torch.nn.Linear(2, number))
    x = task.test.x
    first, second = post.predict(x), again.predict(x)
    for key, tensor in first.to_arrays()[0].items():
        torch.testing.assert_close(second.to_arrays()[0][key], tensor)
    assert again.likelihood == post.likelihood


@pytest.mark.parametrize("method", ["map", "laplace", "sghmc", "dropout"])
def test_methods_fit_counts(method):
    options = {"sghmc": {"burn_in": 5}, "laplace": {"prior_precision": 1.0}}.get(method, {})
    post = pm.fit(method, net=lambda: torch.nn.Sequential(
        torch.nn.Linear(2, 8), torch.nn.Dropout(0.1), torch.nn.Tanh(), torch.nn.Linear(8, 1)),
        task=made("poisson"), epochs=6, progress="silent", **options)  # fmt: skip
    prediction = post.predict(torch.zeros(3, 2))
    assert prediction.mean.shape == (3, 1) and (prediction.variance >= prediction.mean - 1e-5).all()


def test_counts_at_positions():
    """A map of counts (N, T): each position is a count of its own."""
    stream = torch.Generator().manual_seed(4)
    x, y = torch.randn(30, 3, 5, generator=stream), torch.randint(0, 4, (30, 5), generator=stream)
    task = pm.Task(train=(x, y.float()), test=(x, y.float()), likelihood=Positions(Poisson()))
    post = pm.fit("map", net=lambda: torch.nn.Conv1d(3, 1, 1), task=task, epochs=2,
                  progress="silent")  # fmt: skip
    assert post.predict(x).mean.shape == (30, 5, 1)
    assert math.isfinite(pm.evaluate(post, task)["test", "nll"].value)


def test_quantile_heads_are_refused_by_what_needs_a_density():
    net = lambda: torch.nn.Linear(2, 7)  # noqa: E731
    with pytest.raises(ValueError, match="laplace approximates p.*pinball loss"):
        pm.fit("laplace", net=net, task=made("quantile"), epochs=1, progress="silent")
    with pytest.warns(UserWarning, match="sghmc has a posterior as its target.*pinball"):
        pm.fit("sghmc", net=net, task=made("quantile"), epochs=2, progress="silent")
