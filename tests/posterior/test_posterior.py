"""Posteriors: predictions are mixtures over samples, stream, and have units."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch.utils.data import DataLoader

import polymode as pm
from polymode.core import memory
from polymode.likelihoods.kinds import Gaussian
from polymode.likelihoods.scaling import Scaling

X = torch.randn(40, 1, 8, 8, generator=torch.Generator().manual_seed(0))
Y = torch.arange(40) % 10
TASK = pm.Task(train=(X, Y), likelihood="categorical")


@pytest.fixture(scope="module")
def post() -> pm.Posterior:
    return pm.fit(
        "deep_ensemble", net=pm.nets.lenet, task=TASK, num_modes=3, epochs=2, progress="silent"
    )


def test_predict_is_the_members_softmax(post) -> None:
    prediction = post.predict(X)
    with torch.no_grad():
        expected = torch.stack([member(X).log_softmax(-1) for member in post.members])
    torch.testing.assert_close(prediction.log_probs, expected, rtol=1e-4, atol=1e-5)
    assert prediction.mean.shape == (40, 10)


def test_stream_gives_the_parts_of_predict(post) -> None:
    parts = list(post.stream(X, batch_size=7))
    assert [len(part) for part in parts] == [7, 7, 7, 7, 7, 5]
    whole = torch.cat([part.log_probs for part in parts], dim=1)
    torch.testing.assert_close(whole, post.predict(X).log_probs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (X[:, 0], r"inputs have shape \(40, 8, 8\).*\(B, 1, 8, 8\)"),
        (X[:0], "nothing to predict"),
        (X.long(), r"inputs are torch.int64, which these networks do not take .*x.float\(\)"),
        (X.index_fill(0, torch.tensor([7, 9]), float("nan")), "2 of 40 inputs.*row 7"),
    ],
)
def test_bad_inputs(post, x, message) -> None:
    with pytest.raises(ValueError, match=message):
        post.predict(x)


def test_too_many_predictions_are_refused_before_they_are_made(post, monkeypatch) -> None:
    """Also those of loaders: by their samplers, or, where these do not tell, as they come."""
    read: list[int] = []

    class Rows(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 40

        def __getitem__(self, row: int) -> tuple[torch.Tensor, torch.Tensor]:
            read.append(row)
            return X[row], Y[row]

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return (Rows()[row] for row in range(40))

    monkeypatch.setattr(memory, "free_bytes", lambda device: 1000)
    for x in (X, DataLoader(Rows(), batch_size=4)):
        with pytest.raises(ValueError, match=r"40 inputs.*need 4.8 kB of.*1 kB free.*post.stream"):
            post.predict(x)
    assert not read
    with pytest.raises(ValueError, match=r"the first 12 inputs .*need 1.44 kB.*post.stream"):
        post.predict(DataLoader(Stream(), batch_size=4))
    monkeypatch.undo()
    assert len(post.predict(DataLoader(Stream(), batch_size=4))) == 40


def test_bad_arguments(post) -> None:
    with pytest.raises(ValueError, match="`batch_size` of predict must be an integer >= 1, got 0"):
        post.predict(X, batch_size=0)
    with pytest.raises(ValueError, match="`num_samples`"):
        post.sample(0)


def test_predictions_are_in_the_units_of_the_targets(tmp_path) -> None:
    """Training sees standardised targets, users do not; exact for the linear model, saved too."""
    x = torch.linspace(-1, 1, 60)[:, None]
    y = 5000 + 300 * x
    task = pm.Task(
        train=(x, y),
        test=(x, y),
        likelihood=Gaussian(noise=0.01),
        target_scaling=Scaling.of(y),
        target_unit="kg",
    )
    options = {"epochs": 200, "lr": 0.05, "batch_size": 60, "prior_precision": 1e-9}
    net = partial(pm.nets.mlp, hidden=())
    post = pm.fit("map", net=net, task=task, progress="silent", **options)
    prediction = post.predict(task.test)
    torch.testing.assert_close(prediction.mean, y, rtol=1e-3, atol=0)
    scale = Scaling.of(y).scale.item()
    torch.testing.assert_close(prediction.std, torch.full_like(y, 0.01 * scale))
    post.save(tmp_path)
    again = pm.load(tmp_path, net=net).predict(x)
    assert torch.equal(again.mean, prediction.mean) and torch.equal(again.std, prediction.std)
    assert pm.evaluate(post, task)["test", "rmse"].value < 5


def test_some_modes_have_a_configuration_and_curves_of_their_own() -> None:
    task = pm.task("two_moons", num_train=40)
    post = pm.fit("deep_ensemble", net=pm.nets.mlp, task=task, epochs=2, progress="silent")
    part = post[1:3]
    assert (post.config["num_modes"], part.config["num_modes"], part.num_modes) == (5, 2, 2)
    assert part.history.train_loss == tuple(row[1:3] for row in post.history.train_loss)
    assert len(post.history.train_loss[0]) == 5 and part.config["lr"] == post.config["lr"]


def test_a_device_that_is_not_here_is_refused_on_load(post, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: False)
    post.save(tmp_path)
    with pytest.raises(ValueError, match="torch has no MPS device here; use device='cpu'"):
        pm.load(tmp_path, net=post.members[0], device="mps")
