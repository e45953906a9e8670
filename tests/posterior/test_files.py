"""Files of posteriors: safe, lazy where there are several, read without a second copy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn

import polymode as pm
from polymode.core.safe_files import FileProblem
from polymode.likelihoods.kinds import Gaussian

X = torch.randn(40, 1, 8, 8, generator=torch.Generator().manual_seed(0))
Y = torch.arange(40) % 10
TASK = pm.Task(train=(X, Y), likelihood="categorical")


@pytest.fixture(scope="module")
def post() -> pm.Posterior:
    return pm.fit(
        "deep_ensemble", net=pm.nets.lenet, task=TASK, num_modes=3, epochs=2, progress="silent"
    )


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
    from polymode.core.safe_files import read_json, write_json

    manifest = read_json(folder / "posterior.json", 3)
    write_json(folder / "posterior.json", manifest | {"schema": 99})
    with pytest.raises(FileProblem, match="schema version 99.*newer release"):
        pm.load(folder, net=pm.nets.lenet)


@pytest.mark.parametrize("schema", [1, 2])
@pytest.mark.parametrize("name", ["../members-1.safetensors", "{folder}/members-1.safetensors", 3])
def test_a_manifest_that_names_a_file_elsewhere_is_refused(folder, schema, name) -> None:
    from polymode.core.safe_files import read_json, write_json

    manifest = read_json(folder / "posterior.json", 3)
    (entry,) = manifest["tensors"]
    file = name.format(folder=folder) if isinstance(name, str) else name
    if schema == 1:
        manifest |= {"tensors": file, "tensors_digest": entry["digest"]}
    else:
        entry["file"] = file
    (folder.parent / "members-1.safetensors").write_bytes(
        (folder / "members-1.safetensors").read_bytes()
    )
    write_json(folder / "posterior.json", manifest | {"schema": schema})
    with pytest.raises(FileProblem, match="names a file outside its folder"):
        pm.load(folder, net=pm.nets.lenet)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_modes": 10**12}, "promises 1,000,000,000,000 modes, its files hold 3"),
        ({"num_modes": "3"}, "`num_modes` must be an integer of at least 1, got '3'"),
        ({"schema": "2"}, "its schema version is '2'"),
        ({"schema": None}, "its schema version is None"),
        ({"likelihood": None}, "`likelihood` must be an object"),
        ({"likelihood": {"name": []}}, "`likelihood` cannot be read"),
        ({"likelihood": {"name": "unknown"}}, "`likelihood` cannot be read"),
        ({"input_shape": [1, "8"]}, "`input_shape` must be a list of sizes"),
        ({"target_size": 0}, "`target_size` must be"),
        ({"target_scaling": {"shift": 0}}, "`target_scaling` cannot be read"),
        ({"target_scaling": {"shift": "a", "scale": 1}}, "`target_scaling` cannot be read"),
        ({"dtype": "float31"}, "`dtype` must be a type of numbers"),
        ({"dtype": "load"}, "`dtype` must be a type of numbers"),
        ({"channels_last": 1}, "`channels_last` must be"),
        ({"weights": "samples"}, "`weights` must be an object with a kind"),
        ({"weights": {"kind": "samples", "numbers": {}}}, "`weights` must be an object with a"),
        ({"weights": {"kind": "odd", "numbers": {"samples_per_mode": 1}}}, "of kind 'odd'"),
        ({"history": []}, "`history` cannot be read"),
        ({"tensors": []}, "promises 3 modes, its files hold 0"),
        ({"tensors": None}, "is not the manifest of a posterior"),
        ({"tensors": ["a"]}, "is not the manifest of a posterior"),
        ({"seed": "x"}, "`seed` must be an integer"),
    ],
)
def test_a_manifest_of_wrong_types_is_refused(folder, change, message) -> None:
    from polymode.core.safe_files import read_json, write_json

    manifest = read_json(folder / "posterior.json", 3)
    write_json(folder / "posterior.json", manifest | change)
    with pytest.raises(FileProblem, match=message):
        pm.load(folder, net=pm.nets.lenet)


@pytest.mark.parametrize("change", [{"modes": [0, 4]}, {"modes": [1, 3]}, {"seeds": [1]}])
def test_files_that_do_not_hold_the_modes_are_refused(folder, change) -> None:
    from polymode.core.safe_files import read_json, write_json

    manifest = read_json(folder / "posterior.json", 3)
    manifest["tensors"][0] |= change
    write_json(folder / "posterior.json", manifest)
    with pytest.raises(FileProblem, match="modes|seeds"):
        pm.load(folder, net=pm.nets.lenet)


def test_the_number_of_modes_is_held_against_the_tensors_first(folder, monkeypatch) -> None:
    """Memory for a trillion networks is not asked for before the file is looked at."""
    from polymode.core.safe_files import read_json, write_json
    from polymode.posterior.files import Shards

    manifest = read_json(folder / "posterior.json", 3)
    manifest["tensors"][0]["modes"] = [0, 10**12]
    write_json(folder / "posterior.json", manifest | {"num_modes": 10**12})
    monkeypatch.setattr(Shards, "_allocate", lambda *_: pytest.fail("memory was asked for"))
    with pytest.raises(FileProblem, match="does not hold 1,000,000,000,000 modes"):
        pm.load(folder, net=pm.nets.lenet)


def test_weights_that_are_not_numbers_are_refused(post, tmp_path) -> None:
    broken = pm.fit(
        "deep_ensemble", net=pm.nets.lenet, task=TASK, num_modes=2, epochs=0, progress="silent"
    )
    next(iter(broken.stack.params.values())).data.view(-1)[-1] = float("nan")
    broken.save(tmp_path)
    with pytest.raises(FileProblem, match=r"holds values that are not numbers \(NaN\)"):
        pm.load(tmp_path, net=pm.nets.lenet)


def test_nested_json_and_pipes_are_refused(folder) -> None:
    (folder / "posterior.json").write_text("[" * 100_000)
    with pytest.raises(FileProblem, match="nested too deeply"):
        pm.load(folder, net=pm.nets.lenet)
    (folder / "posterior.json").unlink()
    os.mkfifo(folder / "posterior.json")
    with pytest.raises(FileProblem, match="is a pipe or a device, not a file"):
        pm.load(folder, net=pm.nets.lenet)


def test_nothing_is_pickled(folder) -> None:
    for path in folder.iterdir():
        raw = path.read_bytes()
        assert b"torch._utils" not in raw
        assert not raw.startswith((b"\x80", b"PK"))
    assert json.loads((folder / "posterior.json").read_text())["schema"] == 3


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
    from polymode.stack.stack import Stack
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    post = pm.load({str(tmp_path)!r}, net=lambda: nn.Linear({wide}, {wide}))
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    )
    unit = 1 if sys.platform == "darwin" else 1024
    assert int(run.stdout) * unit < 1.25 * 100 * (wide * wide + wide) * 4


@pytest.mark.parametrize("last", [True, False])
def test_the_memory_format_of_convolutions_comes_back(post, last, tmp_path) -> None:
    """Products of another format have other last bits; also of a slice and of several files."""
    post[:].save(tmp_path / "as it is")
    other = pm.load(tmp_path / "as it is", net=pm.nets.lenet)
    other.stack.lay_out(last)
    other.save(tmp_path / "one")
    other.save(tmp_path / "several", modes_per_file=1)
    for folder in ("one", "several"):
        stack = pm.load(tmp_path / folder, net=pm.nets.lenet)[1:].stack
        assert stack.channels_last is last
