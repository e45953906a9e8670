"""Posteriors: predictions stream, files are safe, loading takes no second copy."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from functools import partial

import pytest
import torch
from torch import nn

import polymode as pm
from polymode.core.likelihoods import Gaussian
from polymode.core.scaling import Scaling
from polymode.core.store import FileProblem

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


def test_sample_draws_members_uniformly(post) -> None:
    """χ² over 3 members with 3,000 draws; 13.8 is exceeded by chance once in 1,000."""
    drawn = post.sample(3000, seed=5)
    assert drawn.num_modes == 3000
    name = list(post.stack.params)[-1]
    biases = post.stack.params[name]
    counts = [(drawn.params[name] == biases[k]).all(1).sum().item() for k in range(3)]
    assert sum(counts) == 3000
    assert sum((count - 1000) ** 2 / 1000 for count in counts) < 13.8
    again = post.sample(3000, seed=5)
    assert torch.equal(drawn.params[name], again.params[name])


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (X[:, 0], r"inputs have shape \(40, 8, 8\).*\(B, 1, 8, 8\)"),
        (X[:0], "nothing to predict"),
        (X.index_fill(0, torch.tensor([7, 9]), float("nan")), "2 of 40 inputs.*row 7"),
    ],
)
def test_bad_inputs(post, x, message) -> None:
    with pytest.raises(ValueError, match=message):
        post.predict(x)


def test_too_many_predictions_are_refused_before_they_are_made(post, monkeypatch) -> None:
    monkeypatch.setattr("polymode.posterior.posterior.free_bytes", lambda: 1000)
    with pytest.raises(ValueError, match=r"need 4.8 kB; 1 kB free.*post.stream"):
        post.predict(X)


def test_bad_arguments(post) -> None:
    with pytest.raises(ValueError, match="`batch_size` must be an integer of at least 1, got 0"):
        post.predict(X, batch_size=0)
    with pytest.raises(ValueError, match="`num_samples`"):
        post.sample(0)


# ------------------------------------------------------------------------------------------ files


@pytest.fixture
def folder(post, tmp_path):
    post.save(tmp_path / "post")
    return tmp_path / "post"


def test_saved_and_loaded_predicts_the_same(post, folder) -> None:
    loaded = pm.load(folder, net=pm.nets.lenet)
    assert torch.equal(loaded.predict(X).log_probs, post.predict(X).log_probs)
    assert (loaded.method, loaded.config, loaded.seed) == (post.method, post.config, post.seed)


def test_learned_noise_is_saved(tmp_path) -> None:
    task = pm.Task(train=(X.flatten(1), X[:, 0, 0, :2]), likelihood=Gaussian("learned_per_output"))
    post = pm.fit(
        "deep_ensemble", net=pm.nets.mlp, task=task, num_modes=2, epochs=3, progress="silent"
    )
    post.save(tmp_path)
    loaded = pm.load(tmp_path, net=pm.nets.mlp)
    assert torch.equal(loaded.predict(X.flatten(1)).variance, post.predict(X.flatten(1)).variance)


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


def test_saving_again_replaces_and_leaves_no_litter(post, folder) -> None:
    post.save(folder)
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["members-2.safetensors", "posterior.json"]
    pm.load(folder, net=pm.nets.lenet)


def test_a_save_that_fails_leaves_the_old_one(post, folder, monkeypatch) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("polymode.posterior.files.write_json", full)
    with pytest.raises(OSError, match="No space"):
        post.save(folder)
    monkeypatch.undo()
    assert torch.equal(
        pm.load(folder, net=pm.nets.lenet).predict(X).log_probs, post.predict(X).log_probs
    )


def test_wrong_architecture(folder) -> None:
    with pytest.raises(FileProblem, match="holds another architecture"):
        pm.load(folder, net=pm.nets.mlp)


def test_truncated_and_tampered(folder) -> None:
    file = folder / "members-1.safetensors"
    raw = file.read_bytes()
    file.write_bytes(raw[:-100])
    with pytest.raises(FileProblem, match="truncated"):
        pm.load(folder, net=pm.nets.lenet)
    file.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    with pytest.raises(FileProblem, match="changed after it was written"):
        pm.load(folder, net=pm.nets.lenet)
    file.unlink()
    with pytest.raises(FileProblem, match="does not exist"):
        pm.load(folder, net=pm.nets.lenet)


def test_another_posteriors_tensors_are_noticed(post, folder, tmp_path) -> None:
    other = pm.fit(
        "deep_ensemble",
        net=pm.nets.lenet,
        task=TASK,
        num_modes=3,
        epochs=0,
        seed=9,
        progress="silent",
    )
    other.save(tmp_path / "other")
    (tmp_path / "other" / "members-1.safetensors").rename(folder / "members-1.safetensors")
    with pytest.raises(FileProblem, match="not the file that was written"):
        pm.load(folder, net=pm.nets.lenet)


def test_newer_version(folder) -> None:
    from polymode.core.store import read_json, write_json

    manifest = read_json(folder / "posterior.json", 2)
    write_json(folder / "posterior.json", manifest | {"schema": 99})
    with pytest.raises(FileProblem, match="schema version 99.*newer release"):
        pm.load(folder, net=pm.nets.lenet)


def test_nothing_is_pickled(folder) -> None:
    for path in folder.iterdir():
        raw = path.read_bytes()
        assert b"torch._utils" not in raw
        assert not raw.startswith((b"\x80", b"PK"))
    assert json.loads((folder / "posterior.json").read_text())["schema"] == 2


def test_members_that_differ_in_python_state_are_not_saved(tmp_path) -> None:
    class Scaled(nn.Module):
        def __init__(self, scale: float) -> None:
            super().__init__()
            self.layer, self.scale = nn.Linear(64, 10), scale

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x.flatten(1)) * self.scale

    post = pm.fit(
        "deep_ensemble", net=[Scaled(1.0), Scaled(2.0)], task=TASK, epochs=0, progress="silent"
    )
    with pytest.raises(ValueError, match="differ in plain attributes .scale"):
        post.save(tmp_path)


@pytest.mark.cpu_seconds(15)
def test_loading_takes_the_memory_of_the_members_once(tmp_path) -> None:
    """100 members of 4 MB: the peak above the start of loading is below 1.25 times their size."""
    wide = 1000

    def net() -> nn.Module:
        return nn.Linear(wide, wide)

    task = pm.Task(
        train=(torch.zeros(2, wide), torch.zeros(2, wide)), likelihood=Gaussian(noise=1.0)
    )
    post = pm.fit("deep_ensemble", net=net, task=task, num_modes=100, epochs=0, progress="silent")
    post.save(tmp_path)
    code = f"""
    import resource, polymode as pm
    from torch import nn
    from polymode.core.stack import Stack
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    post = pm.load({str(tmp_path)!r}, net=lambda: nn.Linear({wide}, {wide}))
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    )
    unit = 1 if sys.platform == "darwin" else 1024
    assert int(run.stdout) * unit < 1.25 * 100 * (wide * wide + wide) * 4
