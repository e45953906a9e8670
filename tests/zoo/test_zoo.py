"""Zoos: what was trained is what is read, in any order, after a kill, and damage has a name."""

from __future__ import annotations

import json
import shutil
import threading

import numpy as np
import pytest
import torch

from polymode.cli.app import main
from polymode.core.safe_files import FileProblem, write_json
from polymode.zoo import Recipe, Zoo, find_zoo, train
from polymode.zoo.index import read_about, read_index

RECIPE = Recipe(
    task="two_moons", net="mlp", net_options={"hidden": [4]},
    options={"epochs": 2, "data_order": "own", "lr": 0.05},
)  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("zoo") / "moons"
    train(folder, RECIPE, 7, networks_per_shard=3, dtype="float32")
    return folder


@pytest.fixture
def folder(made, tmp_path):
    return shutil.copytree(made, tmp_path / "zoo")


def test_a_posterior_of_all_networks(made):
    """Whole shards; scores in the index are those of the networks that are read."""
    zoo = Zoo(made)
    assert len(zoo) == 9 and len(zoo.shards) == 3 and len(set(zoo.seeds)) == 9
    post, task = zoo.posterior(), zoo.recipe.make_task()
    assert post.num_modes == post.config["num_modes"] == 9
    assert [entry["modes"] for entry in post.weights.entries] == [[0, 3], [3, 6], [6, 9]]
    prediction = post.predict(task.test.x)
    right = (prediction.log_probs.argmax(-1) == task.test.y).double().mean(1)
    assert np.allclose(zoo.accuracy, right, atol=1e-6)
    nll = -prediction.log_probs[:, torch.arange(len(task.test.y)), task.test.y].double().mean(1)
    assert np.allclose(zoo.nll, nll, atol=1e-5)
    five = zoo.stack(2, 7)  # over the border of shards
    whole = zoo.stack()
    for name, tensor in five.params.items():
        assert torch.equal(tensor, whole.params[name][2:7])
    weights = torch.cat([t.detach().flatten(1) for t in whole.params.values()], 1)
    assert torch.cdist(weights, weights).fill_diagonal_(1).min() > 0.1  # no two alike


def test_resumed_and_enlarged_is_the_same(made, tmp_path):
    """Shard k does not depend on the others: removed, cut off or added later, it is the same."""
    whole = Zoo(made).shards
    train(tmp_path, RECIPE, 2, networks_per_shard=3, dtype="float32")
    index = tmp_path / "index.jsonl"
    index.write_bytes(index.read_bytes() + b'{"number": 1, "fi')  # a process was killed here
    assert "cut off" in read_index(tmp_path)[1][0]
    train(tmp_path, RECIPE, 9, networks_per_shard=3, dtype="float32")
    zoo = Zoo(tmp_path)
    assert [s.digest for s in zoo.shards] == [s.digest for s in whole]
    assert len(zoo.verify()) == 1  # the torn line stays, and has a name
    (tmp_path / zoo.shards[1].file).unlink()
    train(tmp_path, RECIPE, 9, networks_per_shard=3, dtype="float32")
    assert [s.digest for s in Zoo(tmp_path).shards] == [s.digest for s in whole]


def test_interrupted_is_not_lost(made, tmp_path):
    """Ctrl-C after the second shard; then the rest, with no option given again."""

    def stop(shard, done, wanted):
        if shard.number == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, RECIPE, 9, networks_per_shard=3, dtype="float32", watch=stop)
    assert len(Zoo(tmp_path)) == 6 and Zoo(tmp_path).verify() == []
    train(tmp_path, None, 9)
    assert [s.digest for s in Zoo(tmp_path).shards] == [s.digest for s in Zoo(made).shards]


def test_two_fill_one_folder(made, tmp_path):
    """While one trains, another takes the shards that are left; none is made twice."""
    options = {"networks_per_shard": 3, "dtype": "float32"}
    takers: list[threading.Thread] = []

    def call_another(shard, done, wanted):
        if not takers:
            takers.append(threading.Thread(target=train, args=(tmp_path, RECIPE, 9)))
            takers[0].start()
            takers[0].join(60)

    train(tmp_path, RECIPE, 9, watch=call_another, **options)
    assert [s.digest for s in Zoo(tmp_path).shards] == [s.digest for s in Zoo(made).shards]
    assert len((tmp_path / "index.jsonl").read_text().splitlines()) == 3


def test_half_precision_scores_what_it_stores(tmp_path):
    train(tmp_path, RECIPE, 3, networks_per_shard=3)
    zoo = Zoo(tmp_path)
    assert zoo.about["dtype"] == "float16"
    for tensor in zoo.stack().params.values():
        assert tensor.dtype == torch.float32 and torch.equal(tensor, tensor.half().float())
    task = zoo.recipe.make_task()
    log_probs = zoo.posterior().predict(task.test.x).log_probs.double()
    nll = -log_probs[:, torch.arange(len(task.test.y)), task.test.y].mean(1)
    assert np.allclose(zoo.nll, nll, atol=2e-6)  # rounding to half precision moves it by more


def test_damage_is_named_and_nothing_else_is_lost(folder, capsys):
    zoo = Zoo(folder)
    flipped, missing = (folder / zoo.shards[k].file for k in (0, 2))
    raw = bytearray(flipped.read_bytes())
    raw[-1] ^= 1
    flipped.write_bytes(raw)
    missing.unlink()
    problems = zoo.verify()
    assert len(problems) == 2
    assert str(flipped) in problems[0] and "digest does not match" in problems[0]
    assert str(missing) in problems[1] and "does not exist" in problems[1]
    with pytest.raises(FileProblem, match=flipped.name):
        zoo.stack()
    assert zoo.stack(3, 6).num_modes == 3  # the shard between
    assert main(["zoo", "verify", str(folder)]) == 1
    said = capsys.readouterr().err
    assert flipped.name in said and missing.name in said and "as they were" in said
    flipped.unlink()
    train(folder, RECIPE, 9, networks_per_shard=3, dtype="float32")
    assert (
        Zoo(folder).verify() == [] and len((folder / "index.jsonl").read_text().splitlines()) == 5
    )


def test_a_changed_line_of_the_index_is_named(folder):
    index = folder / "index.jsonl"
    lines = index.read_text().splitlines()
    line = json.loads(lines[1])
    line["accuracy"][0] = 0.999
    index.write_text("\n".join([lines[0], json.dumps(line), lines[2]]) + "\n")
    zoo = Zoo(folder)
    assert len(zoo) == 6 and "line 2" in zoo.problems[0] and "digest" in zoo.problems[0]
    assert any("not in the index" in problem for problem in zoo.verify())


def test_what_cannot_be_is_refused(folder, tmp_path, monkeypatch):
    other = RECIPE.with_settings({"lr": 0.1})
    with pytest.raises(FileProblem, match="another kind: its recipe"):
        train(folder, other, 9, networks_per_shard=3, dtype="float32")
    with pytest.raises(ValueError, match="`num_networks` of a zoo must be an integer"):
        train(tmp_path / "new", RECIPE, 0)
    with pytest.raises(ValueError, match="float16, float32, float64, got 'int8'"):
        train(tmp_path / "new", RECIPE, 1, dtype="int8")
    with pytest.raises(ValueError, match="`num_modes` does not belong"):
        RECIPE.with_settings({"num_modes": 3})
    with pytest.raises(ValueError, match="Did you mean 'lr'"):
        RECIPE.with_settings({"learning_rate": 3})
    with pytest.raises(FileProblem, match="neither the folder of a zoo"):
        find_zoo(str(tmp_path / "nowhere"))
    with pytest.raises(FileProblem, match="Did you mean 'digits-lenet'"):
        find_zoo("digits-lent")
    monkeypatch.setenv("POLYMODE_CACHE", str(tmp_path / "cache"))
    with pytest.raises(FileProblem, match="has not been trained yet: polymode zoo train digits-le"):
        find_zoo("digits-lenet")
    with pytest.raises(ValueError, match="is no zoo yet: a new one needs a recipe"):
        train(tmp_path / "new", None, 1)
    with pytest.raises(FileProblem, match="has 9 networks, 10 are asked for"):
        find_zoo(str(folder), 10)
    about = read_about(folder)
    write_json(folder / "zoo.json", {**about, "recipe": {**about["recipe"], "nets": "mlp"}})
    with pytest.raises(FileProblem, match="its recipe cannot be read: .*'nets'"):
        Zoo(folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileProblem, match="has no zoo.json"):
        Zoo(tmp_path / "empty")


def test_numbers_too_large_for_half_precision_are_refused(tmp_path):
    from polymode.zoo.train import stored_as

    with pytest.raises(FileProblem, match="up to 70000, which float16 does not hold"):
        stored_as("weight", torch.tensor([7e4]), "float16")


def test_the_command_line(tmp_path, capsys):
    out = tmp_path / "digits"
    small = ["--networks", "2", "--per-shard", "2", "--out", str(out)]
    code = main(
        ["zoo", "train", "digits-lenet", *small, "--set", "epochs=1", "--set", "net.dropout=0.1"]
    )
    assert code == 0
    talk = capsys.readouterr()
    assert "2 of 2 networks" in talk.err and "2 × lenet on digits" in talk.out
    assert main(["zoo", "train", str(out), "--networks", "3"]) == 0  # goes on with its options
    assert "4 of 4 networks" in capsys.readouterr().err
    (out / "shard-00001.safetensors").unlink()
    assert main(["zoo", "verify", str(out)]) == 1
    command = capsys.readouterr().err.split("`")[1].split()
    assert command[0] == "polymode" and main(command[1:]) == 0  # what it says to do mends it
    capsys.readouterr()
    assert main(["zoo", "verify", str(out)]) == 0
    assert main(["zoo", "info", str(out), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out.split("written\n")[1])
    assert facts["networks"] == 4 and facts["parameters"] == 21_386
    assert facts["about"]["recipe"]["net_options"] == {"dropout": 0.1}
    assert main(["zoo", "info"]) == 0 and "mnist-optunet" in capsys.readouterr().out
    assert main(["zoo", "train", "digits-lenet", "--set", "epochs=1"]) == 2
    assert "--out" in capsys.readouterr().err
    assert main(["zoo", "train", "digits-lent"]) == 2
    assert "Did you mean 'digits-lenet'" in capsys.readouterr().err
