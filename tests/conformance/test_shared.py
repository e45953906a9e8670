"""A frozen body with a head for each mode: what every method does with it, with no code of its own.

A method added to the registry is picked up by name.
"""

from __future__ import annotations

import importlib

import pytest
import torch
from torch import Tensor, nn

import polymode as pm
from polymode.core.safe_files import TensorFile
from polymode.methods import METHODS

from .small_fits import assert_near, needs

STREAM = torch.Generator().manual_seed(0)
X = torch.randn(32, 4, generator=STREAM)
LABELS = (X[:, 0] > 0).long()
SHORT = {"epochs": 3, "batch_size": 16, "progress": "silent", "num_modes": 2}

pytestmark = pytest.mark.parametrize("method", METHODS.names())


class Net(nn.Module):
    """A body, and a head of two layers, with noise between them as some methods need, and
    statistics as others do."""

    def __init__(self, body: nn.Module, normalised: bool) -> None:
        super().__init__()
        self.body = body
        between = [nn.BatchNorm1d(6, affine=False)] if normalised else []
        middle = nn.Sequential(*between, nn.Tanh())
        self.head = nn.Sequential(nn.Linear(8, 6), middle, nn.Dropout(0.2), nn.Linear(6, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def new_body() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh())


def net_on(method: str, body: nn.Module):
    return lambda: Net(body, needs(method) == "BatchNorm")


def fit(method: str, body: nn.Module, **options) -> pm.Posterior:
    task = pm.Task(train=(X, LABELS), likelihood="categorical")
    return pm.fit(method, **({"net": net_on(method, body), "task": task} | SHORT | options))


def test_only_what_is_trained_has_a_posterior(method, tmp_path) -> None:
    """By a regular expression: those differ from the start, `params` are those; the body's bits
    stay, in one storage, one row in the file."""
    body = new_body()
    before = {name: tensor.clone() for name, tensor in body.state_dict().items()}
    post = fit(method, body, trainable=r"^head\.", epochs=4)
    start = fit(method, body, trainable=r"^head\.", epochs=0)
    stack = post.stack
    trained = [f"head.{n}.{kind}" for n in (0, 3) for kind in ("weight", "bias")]
    if METHODS.get(method).value.convert is not None:  # some of it may be shared, or new
        trained = [name for name in stack.params if name.startswith("head.")]
    assert list(stack.params) == trained
    name = "network/head.0.bias"
    assert not torch.equal(stack.tensors()[name], start.stack.tensors()[name])
    assert stack.shares
    for name, tensor in stack.frozen.items():
        assert tensor.untyped_storage().nbytes() == tensor[0].nbytes, name
        if name.startswith("body."):
            assert torch.equal(tensor[1], before[name.removeprefix("body.")])
    assert all(torch.equal(t, before[name]) for name, t in body.state_dict().items())
    post.save(tmp_path)
    (path,) = tmp_path.glob("members-*.safetensors")
    with TensorFile(path) as file:
        assert file.forms["network/body.0.weight"].shape == (1, 8, 4)
    loaded = pm.load(tmp_path, net=net_on(method, new_body()))
    assert loaded.stack.shares
    assert torch.equal(loaded.predict(X).mean, post.predict(X).mean)


def without_cuts(monkeypatch) -> None:
    """Let whole networks be trained from now on."""
    module = importlib.import_module("polymode.methods.fit")
    monkeypatch.setattr(module, "trunk_of", lambda *_: None)


def test_executions_agree_where_a_body_is_shared(method, monkeypatch) -> None:
    """In float64 to 1e-8, with dropout, against loop; the members are the networks."""
    without_cuts(monkeypatch)
    body, posts = new_body().double(), {}
    for way in ("loop", "batched", "threads"):
        posts[way] = fit(method, body, trainable=r"^head\.", execution=way, dtype=torch.float64)
    for way, post in posts.items():
        assert_near(post, posts["loop"], way)
    members = [member(X.double()) for member in posts["batched"].members]
    outputs = posts["batched"].stack.eval()(X.double())
    torch.testing.assert_close(torch.stack(members), outputs, rtol=1e-10, atol=1e-12)


def test_on_features_is_as_on_the_whole_network(method, monkeypatch, tmp_path) -> None:
    """In float64 to 1e-6: parameters, predictions and a draw. Draws, members, files and slices of
    modes are those of the whole network."""
    body = new_body().double()
    post = fit(method, body, trainable=r"^head\.", dtype=torch.float64)
    x = X.double()
    prediction = post.predict(X)
    drawn, members = post.weights.draw(0, 5), post.members
    assert torch.equal(post.weights.draw(0, 5)(x), drawn(x))
    torch.testing.assert_close(
        torch.stack([member(x) for member in members]), post.stack.eval()(x), rtol=1e-10, atol=1e-12
    )
    assert drawn.params.keys() >= post.stack.params.keys()
    part = post[:1].predict(X)
    torch.testing.assert_close(part.log_probs, prediction.log_probs[: len(part.log_probs)])
    post.save(tmp_path)
    loaded = pm.load(tmp_path, net=net_on(method, new_body()))
    assert torch.equal(loaded.predict(X).log_probs, prediction.log_probs)
    assert loaded.weights.kind == post.weights.kind
    assert torch.equal(loaded.sample(3).eval()(x), post.sample(3).eval()(x))
    without_cuts(monkeypatch)
    whole = fit(method, body, trainable=r"^head\.", dtype=torch.float64)
    assert not whole.weights.kind.startswith("on_trunk")
    if not METHODS.get(method).value.uses_inputs(METHODS.get(method).value.config()):
        assert post.weights.kind == f"on_trunk/{whole.weights.kind}"
    for name, tensor in whole.stack.params.items():
        torch.testing.assert_close(post.stack.params[name], tensor, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(
        prediction.log_probs, whole.predict(X).log_probs, rtol=1e-6, atol=1e-8
    )
    torch.testing.assert_close(whole.weights.draw(0, 5)(x), drawn(x), rtol=1e-6, atol=1e-8)
