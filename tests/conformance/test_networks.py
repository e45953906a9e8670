"""Everyday networks with every method: a posterior that predicts and is saved, or one line.

A combination that works gives finite predictions of the right shape, and is equal after saving and
loading. One that cannot work is refused in one line that says why and what to take instead; these
are `REFUSED`, with what the line must say. Data are 8 rows, and training is one pass.
"""

from __future__ import annotations

import warnings

import pytest
import torch
from everyday_networks import INPUTS, NETWORKS

import polymode as pm
from polymode.methods import METHODS

STREAM = torch.Generator().manual_seed(0)
LABELS = torch.arange(8) % 2
OPTIONS = {"cyclical_sgmcmc": {"num_cycles": 2}, "snapshot": {"num_cycles": 2}}
NAMES = [name for name in METHODS.names() if not METHODS.get(name).value.__module__ == "skeleton"]

ALL = "every method"
# (network, method): what the one line says. `dropout` and `concrete_dropout` need noise to keep,
# `forde` and `lit` differentiate with respect to inputs, which tokens do not allow.
REFUSED: dict[tuple[str, str], str] = {
    ("lazy", ALL): "'0.weight' of the network has no shape yet: it belongs to a lazy layer",
    ("quantised", ALL): "'0' of the network is a quantised Linear.*quantise it after fitting",
    ("torch.jit.script", ALL): "the network is a TorchScript module.*give the module that it was",
    ("torch.jit.trace", ALL): "the network is a TorchScript module.*give the module that it was",
    ("old weight norm", ALL): "'0' of the network has torch.nn.utils.weight_norm.*parametrizations",
    ("complex parameters", ALL): "'a' of the network is torch.complex64.*view_as_real",
}
_MENDED_ELSEWHERE: set[tuple[str, str]] = set()
NOISY = {
    "dropout",
    "alpha dropout",
    "functional dropout",
    "stochastic depth",
    "transformer",
    "RReLU",
}
LAYERS = {"dropout", "alpha dropout", "transformer"}


def refusal(network: str, method: str) -> str | None:
    """Return what the one line must say, None where the method takes the network."""
    if (network, ALL) in REFUSED:
        return REFUSED[network, ALL]
    if method == "dropout" and network not in NOISY:
        return "dropout needs a network that draws noise in training.*Add nn.Dropout"
    if method == "concrete_dropout" and network not in LAYERS:
        return "concrete_dropout learns the rates of nn.Dropout layers.*Add nn.Dropout"
    return REFUSED.get((network, method))


def inputs(network: str) -> torch.Tensor:
    shape = (8, *INPUTS[network])
    if "embedding" in network:
        return torch.randint(6, shape, generator=STREAM)
    return torch.randn(shape, generator=STREAM)


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("method", NAMES)
def test_everyday_network(method, network, tmp_path) -> None:
    x, build = inputs(network), NETWORKS[network]
    if (network, method) in _MENDED_ELSEWHERE:
        pytest.skip("mended in another change")
    expected = refusal(network, method)
    task = pm.Task(train=(x, LABELS), likelihood="categorical")
    options = {"epochs": 1, "batch_size": 4, "num_modes": 2, "progress": "silent"}

    def fit() -> pm.Posterior:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return pm.fit(method, net=build, task=task, **options, **OPTIONS.get(method, {}))

    if expected is not None:
        with pytest.raises(ValueError, match=expected) as refused:
            fit()
        assert "\n" not in str(refused.value)
        return
    post = fit()
    prediction = post.predict(x)
    assert prediction.log_probs.shape == (prediction.num_samples, 8, 2)
    assert torch.isfinite(prediction.log_probs).all()
    post.save(tmp_path)
    saved, loaded = post.weights.tensors(), pm.load(tmp_path, net=build).weights.tensors()
    assert saved.keys() == loaded.keys()
    assert all(torch.equal(tensor, loaded[name]) for name, tensor in saved.items())
