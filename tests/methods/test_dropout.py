"""Dropout: moments in closed form, and samples that are functions of the input."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import polymode as pm
from polymode.likelihoods.kinds import Gaussian
from polymode.posterior import Noisy
from polymode.stack.stack import Stack

STREAM = torch.Generator().manual_seed(0)
X = torch.randn(12, 6, generator=STREAM, dtype=torch.float64)
Y = (X[:, 0] > 0).long()
TASK = pm.Task(train=(X, Y), likelihood="categorical")


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.4), nn.Linear(8, 2))


class Functional(nn.Module):
    """Dropout that a search for layers would miss."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.dropout(torch.tanh(self.first(x)), 0.4, self.training))


class DropConnect(nn.Module):
    """Dropout on the weights: noise without a batch axis."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, F.dropout(self.layer.weight, 0.4, self.training), self.layer.bias)


class Attention(nn.Module):
    """Dropout inside torch's attention layer; each example is three tokens of two numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(2, 2, dropout=0.4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.unflatten(1, (3, 2))
        return self.attend(tokens, tokens, tokens, need_weights=False)[0].mean(1)


class Parts(nn.Module):
    """Noise whose first axis has two entries per example."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        parts = F.dropout(self.layer(x.unflatten(1, (2, 3))).flatten(0, 1), 0.4, self.training)
        return parts.unflatten(0, (-1, 2)).sum(1)


class DotProduct(nn.Module):
    """Dropout inside the attention function, with a head axis."""

    def __init__(self) -> None:
        super().__init__()
        self.values = nn.Linear(2, 4)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.values(x.unflatten(1, (3, 2))).unflatten(2, (2, 2)).transpose(1, 2)
        rate = 0.4 if self.training else 0.0
        return F.scaled_dot_product_attention(heads, heads, heads, dropout_p=rate).mean((1, 2))


class Multiplicative(nn.Module):
    """Gaussian noise that multiplies units, one value per unit and example."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        return self.last(h * (1 + 0.5 * torch.randn_like(h)) if self.training else h)


class FixedSize(nn.Module):
    """DropConnect by hand: the size of its masks is written out, so no input is behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.last.weight
        if self.training:
            weight = weight * (torch.rand(2, 8) < 0.6) / 0.6
        return F.linear(torch.tanh(self.first(x)), weight, self.last.bias)


class Branch(FixedSize):
    """Stochastic depth by an `if`: the layer is there or not, for the whole batch."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        if not self.training or torch.rand(()) < 0.5:
            h = torch.tanh(h)
        return self.last(h)


class Rates(FixedSize):
    """Masks from rates that depend on the input, through torch.distributions."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        if self.training:
            h = h * torch.distributions.Bernoulli(logits=h.detach()).sample()
        return self.last(h)


class InPlace(FixedSize):
    """A mask that is filled in place, which vmap cannot do."""

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        return self.last(h * torch.empty(h.shape).bernoulli_(0.6) if self.training else h)


class Constant(FixedSize):
    """Tensors made in the forward method, before the noise and after it."""

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x * torch.arange(6)))
        return self.last(F.dropout(h, 0.4, self.training)) * torch.tensor([1.0, 2.0])


def channels() -> nn.Module:
    """Dropout of whole channels, in a network of convolutions."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 4, 2), nn.Dropout2d(0.4), nn.Flatten(),
        nn.Linear(8, 2),
    )  # fmt: skip


NETWORKS = [
    layers, Functional, DropConnect, Attention, Parts, DotProduct, Multiplicative, channels,
    FixedSize, Rates, Constant,
]  # fmt: skip


def fit(net=layers, **options) -> pm.Posterior:
    usual = {"epochs": 1, "dtype": torch.float64, "samples_per_mode": 3, "progress": "silent"}
    return pm.fit("dropout", **({"net": net, "task": TASK} | usual | options))


def test_moments_of_a_linear_layer_behind_dropout() -> None:
    """f = W (x z) / (1 − p) + b with z ~ Bernoulli(1 − p): mean W x + b and covariance
    p / (1 − p) Σ_i x_i² w_i w_iᵀ over samples.

    20 samples of 300 modes with one and the same network. Means and covariances are averages of
    independent numbers, so nearly Gaussian with the standard error that they show; each of the 12
    numbers lies within 5 of it, which chance misses for 7 seeds in a million. The seed is fixed.
    """
    rate, modes, number = 0.3, 300, 6000
    linear = nn.Linear(4, 2).double()
    with torch.no_grad():
        linear.weight.copy_(torch.tensor([[1.0, -2.0, 0.5, 1.5], [0.5, 1.0, -1.0, 2.0]]))
    net = nn.Sequential(nn.Dropout(rate), linear)
    stack = Stack([copy.deepcopy(net) for _ in range(modes)], execution="batched")
    x = torch.tensor([[0.5, -1.0, 2.0, 0.0], [1.0, 1.0, -1.0, 3.0]], dtype=torch.float64)
    with torch.no_grad():
        samples = Noisy(stack, 20).outputs(20, seed=1)(x).flatten(0, 1)  # (S, B, K)
        mean, weight = linear(x), linear.weight
    spread = torch.einsum("bi,ci,di->bcd", x.square(), weight, weight) * rate / (1 - rate)
    deviations = samples - mean
    products = torch.einsum("sbc,sbd->sbcd", deviations, deviations)
    for found, wanted in ((deviations, torch.zeros_like(mean)), (products, spread)):
        error = found.std(0) / number**0.5
        assert ((found.mean(0) - wanted).abs() < 5 * error).all()
        assert (error < 0.03 * spread.max()).all()  # so the test can tell


@pytest.mark.parametrize("execution", ["loop", "batched"])
@pytest.mark.parametrize("net", NETWORKS)
def test_predictions_do_not_depend_on_the_batch_size(net, execution) -> None:
    """Also the order of examples does not matter, and noise is there at all."""
    post = fit(net, num_modes=2, execution=execution)
    whole = post.predict(X).log_probs
    assert whole.shape == (6, 12, 2)
    assert (whole[0] - whole[1]).abs().max() > 1e-3
    for size in (1, 5):
        parts = post.predict(X, batch_size=size).log_probs
        torch.testing.assert_close(parts, whole, rtol=1e-10, atol=1e-12)
    turned = post.predict(X.flip(0)).log_probs.flip(1)
    torch.testing.assert_close(turned, whole, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("net", [*NETWORKS, Branch])
def test_a_sample_is_one_function_of_the_input(net) -> None:
    post = fit(net)
    twice = X[[0, 3, 0, 5, 0]]
    for number in range(2):
        drawn = post.weights.draw(number, seed=4)(twice)[0]
        torch.testing.assert_close(drawn[[2, 4]], drawn[[0, 0]], rtol=1e-12, atol=1e-14)
    first, *others = (post.weights.draw(number, seed=4)(X) for number in range(6))
    assert max((first - other).abs().max() for other in others) > 1e-3


def test_what_vmap_cannot_do_is_done_without_a_word(capsys, monkeypatch, tmp_path) -> None:
    """An execution that is tried and fails is not chosen, and torch's report of it is kept back."""
    monkeypatch.setenv("POLYMODE_CACHE", str(tmp_path))
    predicted = fit(InPlace, num_modes=2, execution="auto").predict(X).log_probs
    assert predicted.isfinite().all() and capsys.readouterr().err == ""


def test_training_draws_noise_for_each_example() -> None:
    """Pinned noise is for predictions; the bound that training minimises has one per example."""
    stack = Stack(layers, 1, dtype=torch.float64).train()
    outputs = stack(X[:1].expand(50, 6))[0]
    assert len(outputs.detach().unique(dim=0)) > 10


def test_masks_of_two_layers_differ() -> None:
    """Two equal layers in one pass; a stream that begins anew would give one mask twice."""
    net = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5), nn.Linear(64, 64, bias=False))
    nn.init.eye_(net[2].weight)
    with torch.no_grad():
        kept = Noisy(Stack(net), 1).draw(0, seed=0)(torch.ones(1, 64))[0, 0]
    assert set(kept.tolist()) == {0.0, 4.0}
    assert (kept == 4.0).sum() < 26  # 16 expected of both masks, 32 if they were one


def test_parts_of_an_example_have_masks_of_their_own() -> None:
    """The same part in two examples has the same mask, two parts of one example have not."""
    net = Parts().double()
    with torch.no_grad():
        net.layer.weight.zero_(), net.layer.bias.fill_(0.6)
        draws = [Noisy(Stack(net), 1).draw(0, seed)(X[:3])[0] for seed in range(30)]
    for sums in draws:  # each 0, 1 or 2, the number of parts that were left on
        assert torch.equal(sums[1:], sums[:1].expand(2, 2))
    assert any(1.0 in sums[0].round().tolist() for sums in draws)


@pytest.mark.parametrize("execution", ["loop", "batched"])
def test_masks_of_a_mode_do_not_depend_on_the_number_of_modes(execution) -> None:
    """Mode k of 1 + k modes and of 3 has the same network and the same noise."""

    def log_probs(modes: int) -> Tensor:
        return fit(num_modes=modes, execution=execution).predict(X).log_probs.unflatten(0, (-1, 3))

    whole = log_probs(3)
    for k in range(3):
        torch.testing.assert_close(log_probs(k + 1)[k], whole[k], rtol=1e-8, atol=1e-10)
    assert (whole[0] - whole[1]).abs().max() > 1e-3


def test_batch_norm_predicts_with_running_statistics() -> None:
    """A sample's outputs are those of one of the 2⁸ masks behind the frozen layer."""

    def net() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))

    post = fit(net, epochs=3)
    before = {name: tensor.clone() for name, tensor in post.stack.buffers.items()}
    drawn = post.weights.draw(0, seed=2)
    with torch.no_grad():
        outputs = drawn(X)[0]
        post.predict(X, samples_per_mode=5)
        member = post.members[0]
        hidden = member[1](member[0](X))  # evaluation mode: running statistics
        masks = torch.cartesian_prod(*[torch.tensor([0.0, 2.0], dtype=torch.float64)] * 8)
        candidates = F.linear(hidden * masks[:, None], member[3].weight, member[3].bias)
    distance = (candidates - outputs).abs().amax((1, 2))
    assert distance.min() < 1e-12
    assert all(torch.equal(t, before[name]) for name, t in post.stack.buffers.items())


class ByFunction(FixedSize):
    """BatchNorm as a function, whose statistics no layer can freeze."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("var", torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        h = F.batch_norm(self.first(x), self.mean, self.var, training=self.training)
        return self.last(F.dropout(h, 0.4, self.training))


def test_statistics_that_predictions_would_change_are_refused() -> None:
    with pytest.raises(ValueError, match=r"changes 2 of its buffers \(mean, var\), so predictions"):
        fit(ByFunction)


def test_spectral_normalisation_stays_as_it_was_trained() -> None:
    def net() -> nn.Module:
        first = nn.utils.parametrizations.spectral_norm(nn.Linear(6, 8))
        return nn.Sequential(first, nn.Dropout(0.4), nn.Linear(8, 2))

    post = fit(net)
    before = {name: tensor.clone() for name, tensor in post.stack.buffers.items()}
    post.predict(X)
    assert before and all(torch.equal(before[n], t) for n, t in post.stack.buffers.items())


@pytest.mark.parametrize("rate", [None, 0.0])
def test_a_network_that_draws_nothing_is_refused(rate) -> None:
    quiet = [] if rate is None else [nn.Dropout(rate)]
    with pytest.raises(ValueError, match=r"this Sequential draws nothing. Add nn.Dropout\(0.1\)"):
        fit(lambda: nn.Sequential(nn.Linear(6, 4), *quiet, nn.Linear(4, 2)))


def test_options_are_checked() -> None:
    with pytest.raises(ValueError, match="`samples_per_mode` of Dropout must be an integer"):
        fit(samples_per_mode=0)


def test_learned_noise_of_the_likelihood_is_that_of_the_mode() -> None:
    """Each of the M L densities has the noise of its mode."""
    law = Gaussian(noise="learned")
    task = pm.Task(train=(X, X[:, :1].sin()), likelihood=law, target_scaling=None)
    post = fit(
        lambda: nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.4), nn.Linear(8, 1)),
        task=task,
        num_modes=2,
        epochs=20,
        lr=0.05,
    )
    noise = post.stack.extra["log_noise"].exp().detach()
    assert noise[0] != noise[1]
    scale = post.predict(X).scale.unflatten(0, (2, 3))
    torch.testing.assert_close(scale, noise.view(2, 1, 1, 1).expand_as(scale))
