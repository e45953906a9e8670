"""Files of every kind of weights, in one file or several that are opened when their turn comes."""

from __future__ import annotations

import pytest
import torch

import polymode as pm
from polymode.core.safe_files import FileProblem, read_json, read_tensors, write_json, write_tensors
from polymode.likelihoods.kinds import Gaussian as GaussianNoise
from polymode.posterior.files import Shards
from polymode.stack.stack import Stack

from .made_up import KINDS, SEED, X, by_draws, made_up, net, posterior

EXACT = {"rtol": 1e-11, "atol": 1e-13}
TWO = {"one": "samples", "samples": "samples", "noisy": "noisy", "gaussian": "gaussian"}


def assert_predicts_the_same(a: pm.Posterior, b: pm.Posterior) -> None:
    for options in ({}, {"seed": 3, "samples_per_mode": 1}):
        mine, theirs = a.predict(X, **options), b.predict(X, **options)
        torch.testing.assert_close(mine.loc, theirs.loc, **EXACT)
        torch.testing.assert_close(mine.scale, theirs.scale, **EXACT)


@pytest.mark.parametrize("modes_per_file", [None, 3, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_saved_and_loaded(kind, modes_per_file, tmp_path) -> None:
    """Predictions, draws, networks that are sampled, and tensors are the same, however many files
    there are; what was loaded can be saved again, in another number of files."""
    weights = made_up(kind)
    post = posterior(weights)
    post.save(tmp_path / "a", modes_per_file=modes_per_file)
    files = sorted(p.name for p in (tmp_path / "a").glob("*.safetensors"))
    numbers = {None: ["1"], 3: ["1-0", "1-1"], 1: ["1-0", "1-1", "1-2", "1-3"]}
    assert files == [f"members-{number}.safetensors" for number in numbers[modes_per_file]]
    loaded = pm.load(tmp_path / "a", net=net)
    loaded.save(tmp_path / "b")
    loaded.save(tmp_path / "c", modes_per_file=2)
    for again in (loaded, pm.load(tmp_path / "b", net=net), pm.load(tmp_path / "c", net=net)):
        assert (again.num_modes, again.num_samples) == (4, post.num_samples)
        assert again.weights.most == weights.most
        assert_predicts_the_same(again, post)
        torch.testing.assert_close(by_draws(again.weights, 1, 9), by_draws(weights, 1, 9), **EXACT)
        with torch.no_grad():
            torch.testing.assert_close(
                again.sample(6, seed=2)(X), post.sample(6, seed=2)(X), **EXACT
            )
    whole = pm.load(tmp_path / "b", net=net).weights
    assert whole.kind == TWO[kind]
    for name, tensor in whole.tensors().items():
        assert torch.equal(tensor, weights.tensors()[name]), name


@pytest.mark.parametrize("kind", KINDS)
def test_some_modes_keep_their_streams(kind, tmp_path) -> None:
    """Modes 1 and 2 of four draw as they did among four; also as parts of several files."""
    post = posterior(made_up(kind))
    post[1:3].save(tmp_path / "part")
    post.save(tmp_path / "whole", modes_per_file=2)
    for part in (pm.load(tmp_path / "part", net=net), pm.load(tmp_path / "whole", net=net)[1:3]):
        assert part.stack.seeds == post.stack.seeds[1:3]
        assert_predicts_the_same(part, post[1:3])


def test_several_files_are_opened_when_their_turn_comes(tmp_path) -> None:
    """A changed byte in the last file is found when that is read, and not before."""
    post = posterior(made_up("samples"))
    post.save(tmp_path, modes_per_file=2)
    last = tmp_path / "members-1-1.safetensors"
    raw = last.read_bytes()
    last.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    loaded = pm.load(tmp_path, net=net)
    assert isinstance(loaded.weights, Shards)
    assert "4 × Sequential" in repr(loaded) and loaded.num_samples == 12
    assert_predicts_the_same(loaded[:2], post[:2])
    with pytest.raises(FileProblem, match="members-1-1.safetensors was changed after"):
        loaded.predict(X)
    last.write_bytes(raw)
    assert_predicts_the_same(loaded, post)
    parts = list(loaded.weights.parts())
    assert [part.num_modes for part in parts] == [2, 2]
    streamed = [part.loc for part in loaded.stream(X, batch_size=4)]
    torch.testing.assert_close(torch.cat(streamed, 1), post.predict(X).loc, **EXACT)


def test_a_file_of_another_save_is_noticed(tmp_path) -> None:
    posterior(made_up("one")).save(tmp_path / "a", modes_per_file=2)
    posterior(made_up("one", seed=8)).save(tmp_path / "b", modes_per_file=2)
    name = "members-1-1.safetensors"
    (tmp_path / "b" / name).replace(tmp_path / "a" / name)
    with pytest.raises(FileProblem, match="not the file that was written"):
        pm.load(tmp_path / "a", net=net).predict(X)


def test_modes_that_do_not_fit_into_memory_are_not_joined(tmp_path, monkeypatch) -> None:
    post = posterior(made_up("one"))
    post.save(tmp_path, modes_per_file=2)
    loaded = pm.load(tmp_path, net=net)
    monkeypatch.setattr("polymode.posterior.files.free_bytes", lambda: 1000)
    with pytest.raises(ValueError, match="all 4 modes need .* 1 kB free. post.predict and"):
        loaded.members  # noqa: B018
    assert_predicts_the_same(loaded, post)


def test_saving_again_replaces_all_files(tmp_path) -> None:
    posterior(made_up("one")).save(tmp_path, modes_per_file=1)
    posterior(made_up("samples")).save(tmp_path, modes_per_file=3)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["members-2-0.safetensors", "members-2-1.safetensors", "posterior.json"]


def test_modes_saved_over_the_files_they_were_read_from(tmp_path) -> None:
    post = posterior(made_up("gaussian"))
    post.save(tmp_path, modes_per_file=1)
    loaded = pm.load(tmp_path, net=net)
    loaded.save(tmp_path, modes_per_file=3)
    assert_predicts_the_same(loaded, post)


@pytest.mark.parametrize("wrong", [0, 1.5, True])
def test_modes_per_file_is_checked(wrong, tmp_path) -> None:
    with pytest.raises(ValueError, match="`modes_per_file` must be an integer of at least 1"):
        posterior(made_up("one")).save(tmp_path, modes_per_file=wrong)


def test_schema_1_is_read_as_one_sample_per_mode(tmp_path) -> None:
    """A folder as it was written before samples were drawn, by hand."""
    stack = Stack(net, 2, seed=SEED, dtype=torch.float64)
    digest = write_tensors(tmp_path / "members-1.safetensors", stack.tensors(), {"schema": 1})
    manifest = {
        "schema": 1,
        "method": "deep_ensemble",
        "config": {"num_modes": 2},
        "seed": SEED,
        "likelihood": GaussianNoise(noise=0.5).to_config(),
        "input_shape": [3],
        "target_size": 2,
        "target_scaling": None,
        "num_modes": 2,
        "dtype": "float64",
        "channels_last": None,
        "network": "Sequential",
        "tensors": "members-1.safetensors",
        "tensors_digest": digest,
    }
    write_json(tmp_path / "posterior.json", manifest)
    post = pm.load(tmp_path, net=net)
    assert (post.weights.kind, post.num_samples, post.method) == ("samples", 2, "deep_ensemble")
    assert post.stack.seeds == stack.seeds
    with torch.no_grad():
        torch.testing.assert_close(post.predict(X).loc, stack(X), **EXACT)


def test_weights_of_an_unknown_kind_are_refused(tmp_path) -> None:
    posterior(made_up("one")).save(tmp_path)
    manifest = read_json(tmp_path / "posterior.json", 3)
    manifest["weights"]["kind"] = "kronecker"
    write_json(tmp_path / "posterior.json", manifest)
    with pytest.raises(FileProblem, match="kind 'kronecker'; this release has samples, noisy, gau"):
        pm.load(tmp_path, net=net)


def test_files_hold_what_the_kind_needs(tmp_path) -> None:
    posterior(made_up("gaussian")).save(tmp_path)
    tensors, _ = read_tensors(tmp_path / "members-1.safetensors")
    groups = {name.split("/")[0] for name in tensors}
    assert groups == {"network", "extra", "std", "deviations"}
    manifest = read_json(tmp_path / "posterior.json", 3)
    assert manifest["weights"] == {"kind": "gaussian", "numbers": {"samples_per_mode": 3}}
