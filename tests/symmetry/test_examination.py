"""The examination `symmetry`: MMD feels symmetries, NS does not; references of both kinds."""

from __future__ import annotations

import pytest
import torch

import polymode as pm
from polymode.cli.app import main
from polymode.posterior import Posterior, Samples
from polymode.symmetry import apply, find, mmd, networks_of, random_element
from polymode.zoo import Recipe, Zoo, train

RECIPE = Recipe(
    task="two_moons", net="mlp", net_options={"hidden": [5]},
    options={"epochs": 2, "data_order": "own", "lr": 0.05},
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("zoo") / "moons"
    train(folder, RECIPE, 40, networks_per_shard=40, dtype="float32")
    return folder


@pytest.fixture(scope="module")
def task():
    return pm.task("two_moons")


def make_net():
    return pm.nets.mlp((2,), 2, hidden=(5,), dropout=0.3)


@pytest.fixture(scope="module")
def ensemble(task):
    options = {"epochs": 2, "lr": 0.05, "num_modes": 12, "progress": "silent", "data_order": "own"}
    net = lambda: pm.nets.mlp((2,), 2, hidden=(5,))  # noqa: E731
    return pm.fit("deep_ensemble", net=net, task=task, **options)


def rows(stack):
    return torch.cat([tensor.detach().flatten(1) for tensor in stack.params.values()], 1)


def posterior_of(stack, like):
    return Posterior(
        Samples(stack), like.likelihood, method=like.method, config=like.config, seed=0,
        input_shape=like.input_shape, target_size=like.target_size,
    )  # fmt: skip


def test_mmd_is_that_of_the_weights(ensemble, task, folder):
    found = pm.examine(ensemble, task, "symmetry", zoo=folder, num_reference=40)
    expected = mmd(rows(ensemble.stack), rows(Zoo(folder).stack()), num_permutations=100)
    assert found["mmd"].value == pytest.approx(expected.aggregate, abs=1e-6)
    assert found["mmd_null_std"].value == pytest.approx(expected.null_std, rel=1e-3)
    assert found["mmd_p"].value == pytest.approx(expected.p_value)
    assert found.arrays["as they are: unbiased"].shape == (3, 2, 10)  # all, and two layers
    assert found["mmd"].n == 12 and found["mmd"].direction == "down"


def test_ns_does_not_feel_symmetries(ensemble, task, folder):
    """All networks of the posterior permuted and scaled alike: as a sample they are far from the
    zoo, without symmetries as near as before."""
    symmetries = find(ensemble)
    moved = apply(ensemble, random_element(symmetries, seed=3), symmetries)
    options = {"zoo": str(folder), "num_reference": 40}
    before = pm.examine(ensemble, task, "symmetry", **options)
    after = pm.examine(posterior_of(moved, ensemble), task, "symmetry", **options)
    assert abs(after["mmd"].value - before["mmd"].value) > 1e-3
    for name in ("ns_sorted", "ns_aligned"):
        assert after[name].value == pytest.approx(before[name].value, abs=1e-5)


def test_one_mode_is_far_and_fails_the_corollary(task, folder, ensemble):
    """Dropout's networks have other names of tensors than the zoo's; that does not matter."""
    options = {"epochs": 2, "samples_per_mode": 12, "progress": "silent"}
    post = pm.fit("dropout", net=make_net, task=task, **options)
    found = pm.examine(post, task, "symmetry", zoo=str(folder), num_reference=40)
    many = pm.examine(ensemble, task, "symmetry", zoo=str(folder), num_reference=40)
    assert found["mmd"].value > 10 * abs(many["mmd"].value)
    assert found["mmd_p"].value < 0.02 < many["mmd_p"].value
    assert found["corollary_p"].value < 0.01 < many["corollary_p"].value
    assert found["mmd_between"].value is None and "one mode" in found["mmd_between"].note
    assert many["mmd_between"].value == pytest.approx(many["mmd"].value)  # a sample of each mode
    several = pm.fit("dropout", net=make_net, task=task, num_modes=3, **options)
    apart = pm.examine(several, task, "symmetry", zoo=str(folder), num_reference=40)
    assert apart["mmd_between"].value < apart["mmd"].value


def test_against_a_posterior(ensemble, task, tmp_path):
    ensemble[:6].save(tmp_path / "other")
    found = pm.examine(ensemble[6:], task, "symmetry", against=str(tmp_path / "other"))
    expected = mmd(rows(ensemble[6:].stack), rows(networks_of(ensemble[:6])), num_permutations=0)
    assert found["mmd"].value == pytest.approx(expected.aggregate, abs=1e-6)
    fixed = pm.examine(
        ensemble[6:], task, "symmetry", against=str(tmp_path / "other"), lengthscales="reference"
    )
    assert fixed["mmd"].value != found["mmd"].value


def test_what_cannot_be_is_refused(ensemble, task, folder, tmp_path):
    with pytest.raises(ValueError, match="symmetry needs one reference"):
        pm.examine(ensemble, task, "symmetry")
    with pytest.raises(ValueError, match="`num_reference` of symmetry must be an integer"):
        pm.examine(ensemble, task, "symmetry", zoo=str(folder), num_reference=1)
    with pytest.raises(ValueError, match="must be one of cross, reference"):
        pm.examine(ensemble, task, "symmetry", zoo=str(folder), lengthscales="mine")
    with pytest.raises(ValueError, match="at least 2 samples"):
        pm.examine(ensemble[:1], task, "symmetry", zoo=str(folder), num_reference=40)
    with pytest.raises(ValueError, match="`against` of symmetry .*saved.*got Posterior"):
        pm.examine(ensemble, task, "symmetry", against=ensemble)
    with pytest.raises(ValueError, match="`zoo` of symmetry .*zoo.folder, got Zoo"):
        pm.examine(ensemble, task, "symmetry", zoo=Zoo(folder))
    with pytest.raises(ValueError, match="has 40 networks, 50 are asked for; ask for fewer, or"):
        pm.examine(ensemble, task, "symmetry", zoo=str(folder), num_reference=50)
    other = pm.fit("deep_ensemble", net="mlp", task=task, epochs=1, num_modes=2, progress="silent")
    with pytest.raises(ValueError, match="another architecture than the reference"):
        pm.examine(other, task, "symmetry", zoo=str(folder), num_reference=40)


def test_from_the_command_line(folder, tmp_path, capsys):
    asked = f"symmetry:zoo={folder},num_reference=40"
    code = main(
        ["run", "--task", "two_moons", "--method", "deep_ensemble", "--set", "epochs=1", "--set",
         "net.hidden=[5]", "--set", "num_modes=3", "--examine", asked, "--out", str(tmp_path / "r")]
    )  # fmt: skip
    assert code == 0, capsys.readouterr().err
    assert "ns_aligned" in (tmp_path / "r" / "results.jsonl").read_text()
