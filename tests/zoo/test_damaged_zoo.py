"""Zoos that were altered, digests remade: one line each; damaged shards are made again."""

from __future__ import annotations

import json
import os
import random
import shutil

import pytest
import torch

from polymode.cli.app import main
from polymode.core.safe_files import FileProblem, json_digest, write_json
from polymode.zoo import Recipe, Zoo, train

from ..altered import altered

RECIPE = Recipe(
    task="two_moons", net="mlp", net_options={"hidden": [4]},
    options={"epochs": 1, "data_order": "own", "lr": 0.05},
)  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("zoo") / "moons"
    train(folder, RECIPE, 4, networks_per_shard=2, dtype="float32")
    return folder


@pytest.fixture
def folder(made, tmp_path):
    return shutil.copytree(made, tmp_path / "zoo")


def use(folder) -> None:
    """Ask of a zoo all that can be asked, but training."""
    zoo = Zoo(folder)
    assert zoo.verify() == [] or all(isinstance(each, str) for each in zoo.verify())
    assert len(zoo.accuracy) == len(zoo.nll) == len(zoo.seeds) == len(zoo)
    assert zoo.describe() and isinstance(zoo.digest, str)
    if len(zoo):
        assert zoo.stack().num_modes == len(zoo)


def rewrite(folder, lines) -> None:
    (folder / "index.jsonl").write_text(
        "".join(json.dumps({**line, "check": json_digest(line)}) + "\n" for line in lines)
    )


@pytest.mark.cpu_seconds(8)
def test_altered_values_with_digests_remade_end_in_one_line(folder):
    """600 alterations of zoo.json and of a line of the index: types, ranges, nesting, absence."""
    draw = random.Random(0)
    about = json.loads((folder / "zoo.json").read_text())
    about.pop("digest")
    lines = [json.loads(line) for line in (folder / "index.jsonl").read_text().splitlines()]
    for line in lines:
        line.pop("check")
    refused = 0
    for _ in range(300):
        rewrite(folder, lines)
        what, changed = altered(about, draw)
        write_json(folder / "zoo.json", changed)
        refused += is_refused(folder, what)
    assert refused > 200
    write_json(folder / "zoo.json", about)
    for number in range(300):
        what, changed = altered(lines[number % 2], draw)
        rewrite(folder, [changed, lines[1 - number % 2]])
        refused += is_refused(folder, what)
    assert refused > 220


def is_refused(folder, what: str) -> bool:
    try:
        use(folder)
    except FileProblem as problem:
        assert "\n" not in str(problem), what
        return True
    except Exception as error:
        pytest.fail(f"{what}: {type(error).__name__}: {error}")
    return False


@pytest.mark.parametrize(
    "change, message",
    [
        ({"target_size": 0}, "`target_size` must be an integer of at least 1, got 0"),
        ({"input_shape": [2, 2.5]}, "`input_shape` must be a list of sizes"),
        ({"networks_per_shard": "3"}, "`networks_per_shard` must be an integer of at least 1"),
        ({"likelihood": {"name": "x"}}, "networks that can be made: Unknown likelihood 'x'"),
        ({"input_shape": [10**9]}, "holds another architecture: .* 4,000,000,014 parameters"),
        ({"recipe": {"net_options": {"hidden": [10**9, 10**9]}}}, "ask for 2,000,000,002"),
        ({"recipe": {"net_options": {"hidden": [1] * 10_000}}}, "ask for 20,000"),
        ({"recipe": {"net": 3}}, "its recipe cannot be read: `net` of Recipe must be text, got 3"),
    ],
)
def test_what_a_zoo_cannot_be_is_said_before_memory_is_taken(folder, change, message):
    about = json.loads((folder / "zoo.json").read_text())
    about.pop("digest")
    if "recipe" in change:
        change = {"recipe": {**about["recipe"], **change["recipe"]}}
    write_json(folder / "zoo.json", {**about, **change})
    with pytest.raises(FileProblem, match=message):
        Zoo(folder).stack()


def test_the_command_line_says_it_in_one_line(folder, capsys):
    about = json.loads((folder / "zoo.json").read_text())
    about.pop("digest")
    write_json(folder / "zoo.json", {**about, "likelihood": {"name": "\x1b[2J\nx"}})
    for words in (["info"], ["verify"], ["train", "--networks", "4"]):
        assert main(["zoo", words[0], str(folder), *words[1:]]) == 2
        said = capsys.readouterr()
        assert "Traceback" not in said.err and "\x1b" not in said.err
        assert [line for line in said.err.splitlines() if line.startswith("polymode:")]


@pytest.mark.filterwarnings("default::UserWarning")
@pytest.mark.parametrize("damage", ["flipped", "cut", "pipe", "zero"])
@pytest.mark.cpu_seconds(5)
def test_training_makes_a_damaged_shard_again_and_says_so(folder, made, damage, capsys):
    """What is there already is read before it counts; the shard ends as it was."""
    path = folder / Zoo(folder).shards[1].file
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.unlink()
    if damage == "pipe":
        os.mkfifo(path)
    elif damage == "zero":
        path.symlink_to("/dev/zero")
    else:
        path.write_bytes(raw if damage == "flipped" else raw[:100])
    assert main(["zoo", "verify", str(folder)]) == 1
    capsys.readouterr()
    assert main(["zoo", "train", str(folder), "--networks", "4"]) == 0
    said = capsys.readouterr().err
    assert path.name in said and "shard 1 is made again" in said and "4 of 4 networks" in said
    assert main(["zoo", "verify", str(folder)]) == 0
    assert [s.digest for s in Zoo(folder).shards] == [s.digest for s in Zoo(made).shards]
    capsys.readouterr()
    assert main(["zoo", "train", str(folder), "--networks", "4"]) == 0
    assert "made again" not in capsys.readouterr().err


def test_a_damaged_shard_beyond_the_ones_asked_for_is_named_too(folder):
    path = folder / Zoo(folder).shards[1].file
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.warns(UserWarning, match="shard-00001.safetensors is truncated"):
        train(folder, None, 2)


def test_the_seed_and_every_batch_of_the_test_set_count(tmp_path):
    """Another seed gives other networks; a test set of several uneven batches is scored whole."""
    recipe = RECIPE.with_settings({"task.num_test": 700})
    for seed in (0, 1):
        train(tmp_path / f"{seed}", recipe, 2, networks_per_shard=2, seed=seed, dtype="float32")
    first, second = Zoo(tmp_path / "0"), Zoo(tmp_path / "1")
    assert not set(first.seeds) & set(second.seeds)
    test = recipe.make_task().test
    log_probs = first.posterior().predict(test.x).log_probs.double()
    nll = -log_probs[:, torch.arange(700), test.y].mean(1)
    assert torch.allclose(torch.tensor(first.nll), nll, atol=1e-5)


def test_methods_that_convert_networks_are_refused_in_one_line() -> None:
    with pytest.raises(ValueError, match="holds networks as they are built, but packed conv") as no:
        Recipe(task="digits", net="mlp", method="packed")
    assert "\n" not in str(no.value)
