"""Files whose tensors or manifests are not what the weights need: refused in one line, early."""

from __future__ import annotations

import copy
import json
import random
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import polymode as pm
from polymode.core.safe_files import FileProblem, read_json, read_tensors, write_json, write_tensors
from polymode.likelihoods.kinds import Gaussian as GaussianNoise
from polymode.posterior.weights import of_stack

from .made_up import KINDS, made_up, net, posterior

X = torch.randn(24, 3, generator=torch.Generator().manual_seed(0))
CLASSES = pm.Task(train=(X, (X[:, 0] > 0).long()), likelihood="categorical")
VALUES = pm.Task(train=(X, X[:, :2].sin()), likelihood=GaussianNoise(noise="learned"))
FITS = {
    "kron": ("laplace", CLASSES, {"prior_precision": 1.0}),
    "low_rank": ("laplace", VALUES, {"prior_precision": 1.0, "structure": "low_rank", "rank": 2}),
    "subnetwork": (
        "laplace",
        VALUES,
        {"prior_precision": 1.0, "structure": "subnetwork", "subnetwork": [1, 5, 50]},
    ),
    "concrete": ("concrete_dropout", CLASSES, {}),
}


@pytest.fixture(scope="module")
def made() -> dict[str, pm.Posterior]:
    """A posterior of two modes of every kind of weights."""
    posts = {kind: posterior(made_up(kind, modes=2)) for kind in KINDS}
    for name, (method, task, options) in FITS.items():
        posts[name] = pm.fit(
            method, net=net, task=task, num_modes=2, epochs=1, progress="silent", **options
        )
    return posts


def rewrite(folder: Path, change) -> None:
    """Change tensors as one would who also makes digests and the manifest anew."""
    manifest = read_json(folder / "posterior.json", 3)
    for entry in manifest["tensors"]:
        tensors, metadata = read_tensors(folder / entry["file"])
        change(tensors)
        entry["digest"] = write_tensors(folder / entry["file"], tensors, metadata)
    del manifest["groups"]
    write_json(folder / "posterior.json", manifest)


CHANGES = {
    "missing": lambda tensors, name: tensors.pop(name),
    "other type": lambda tensors, name: tensors.update({name: tensors[name].to(torch.int32)}),
    "longer": lambda tensors, name: tensors.update(
        {name: torch.cat([tensors[name], tensors[name]], -1)}
    ),
    "fewer modes": lambda tensors, name: (
        tensors.update({name: tensors[name][:1, :1].clone()})
        if tensors[name].dim() > 1
        else tensors.update({name: tensors[name][:1].clone()})
    ),
    "surplus": lambda tensors, name: tensors.update({f"{name}.more": tensors[name].clone()}),
}
ANY_NAME = ("facts/",)  # as many as a sampler reports


@pytest.mark.parametrize("modes_per_file", [None, 1])
@pytest.mark.parametrize("kind", ["samples", "gaussian", *FITS])
def test_a_tensor_beside_the_networks_is_needed_as_it_was(
    kind, modes_per_file, made, tmp_path
) -> None:
    """Without it, of another type or shape, or with one more, a file is refused when it is loaded,
    in one line that names the file; also where files are read in their turn."""
    made[kind].save(tmp_path, modes_per_file=modes_per_file)
    kept = {path: path.read_bytes() for path in tmp_path.iterdir()}
    names = [name for name in made[kind].weights.tensors() if not of_stack(name)]
    stream = random.Random(0)
    for name in stream.sample(names, min(3, len(names))):
        for what, change in CHANGES.items():
            if what == "fewer modes" and modes_per_file == 1 and not name.startswith("kept/"):
                continue
            if name == "log_evidence" and what == "missing":
                continue  # it may be left out
            rewrite(tmp_path, lambda tensors, c=change, n=name: c(tensors, n))
            with pytest.raises(FileProblem) as refused:
                pm.load(tmp_path, net=net)
            assert "\n" not in str(refused.value)
            assert str(tmp_path) in str(refused.value), what
            for path, raw in kept.items():
                path.write_bytes(raw)
    pm.load(tmp_path, net=net)


def test_a_group_that_is_missing_altogether_is_noticed(made, tmp_path) -> None:
    """A Gaussian without standard deviations is a posterior, too, but not the one saved."""
    made["gaussian"].save(tmp_path)
    manifest = read_json(tmp_path / "posterior.json", 3)
    (entry,) = manifest["tensors"]
    tensors, metadata = read_tensors(tmp_path / entry["file"])
    rest = {name: tensor for name, tensor in tensors.items() if not name.startswith("std/")}
    entry["digest"] = write_tensors(tmp_path / entry["file"], rest, metadata)
    write_json(tmp_path / "posterior.json", manifest)
    with pytest.raises(FileProblem, match="the manifest asks for deviations, extra, network, std"):
        pm.load(tmp_path, net=net)


def test_numbers_that_would_lose_digits_are_refused(made, tmp_path) -> None:
    """Networks in float64 are not read as float32; those in float32 are read as float64."""
    made["one"].save(tmp_path)
    manifest = read_json(tmp_path / "posterior.json", 3)
    write_json(tmp_path / "posterior.json", manifest | {"dtype": "float32"})
    with pytest.raises(FileProblem, match="of type float64 where the manifest asks for float32"):
        pm.load(tmp_path, net=net)
    pm.fit("map", net=net, task=VALUES, epochs=1, progress="silent", dtype=torch.float32).save(
        tmp_path
    )
    manifest = read_json(tmp_path / "posterior.json", 3)
    write_json(tmp_path / "posterior.json", manifest | {"dtype": "float64"})
    assert pm.load(tmp_path, net=net).stack.dtype == torch.float64


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # kB


@pytest.mark.parametrize(
    "change",
    [
        {"input_shape": [5_000_000]},
        {"input_shape": [10**12]},
        {"input_shape": [1000, 5000]},
        {"target_size": 5_000_000},
        {"target_size": 10**15},
        {"dtype": "float64", "input_shape": [2_500_000]},
    ],
)
def test_no_network_is_built_of_the_size_that_a_manifest_names(change, tmp_path) -> None:
    """An MLP with an input or output of that size has at least 1 GB: it is held against the file
    first. On memory that is used for it, the process would grow by more than 0.3 GB."""
    post = pm.fit("map", net=pm.nets.mlp, task=VALUES, epochs=0, progress="silent")
    post.save(tmp_path)
    manifest = read_json(tmp_path / "posterior.json", 3)
    write_json(tmp_path / "posterior.json", manifest | change)
    before = peak()
    with pytest.raises(FileProblem) as refused:
        pm.load(tmp_path, net=pm.nets.mlp)
    assert peak() - before < 300_000
    assert "\n" not in str(refused.value)


def test_targets_without_end_take_no_memory(tmp_path) -> None:
    """A network that does not depend on the manifest, with learned noise of 10⁹ targets."""
    pm.fit("map", net=net, task=VALUES, epochs=0, progress="silent").save(tmp_path)
    manifest = read_json(tmp_path / "posterior.json", 3)
    change = {"target_size": 10**9, "target_scaling": None}
    write_json(tmp_path / "posterior.json", manifest | change)
    before = peak()
    with pytest.raises(ValueError):
        pm.load(tmp_path, net=net).predict(X)
    assert peak() - before < 300_000


def test_modes_without_numbers_take_no_memory(tmp_path, made) -> None:
    """10¹² modes of empty tensors make no file longer."""
    made["one"].save(tmp_path)
    manifest = read_json(tmp_path / "posterior.json", 3)
    (entry,) = manifest["tensors"]
    empty = {name: torch.empty(10**12, 0) for name in made["one"].weights.tensors()}
    entry |= {"modes": [0, 10**12]}
    entry["digest"] = write_tensors(tmp_path / entry["file"], empty, {})
    write_json(tmp_path / "posterior.json", manifest | {"num_modes": 10**12})
    with pytest.raises(FileProblem, match="holds another architecture"):
        pm.load(tmp_path, net=net)


def test_a_builder_that_looks_at_values_is_built_as_it_is(tmp_path) -> None:
    """The manifest's sizes reach it only after they were read; so it is still served."""

    def looks(input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
        width = int(torch.full((), 4.0).item())
        return nn.Sequential(nn.Linear(input_shape[0], width), nn.Linear(width, num_outputs))

    post = pm.fit("map", net=looks, task=CLASSES, epochs=1, progress="silent")
    post.save(tmp_path)
    loaded = pm.load(tmp_path, net=looks)
    assert torch.equal(loaded.predict(X).mean, post.predict(X).mean)


# ---------------------------------------------------------------- damaged on purpose

ODD = [None, -1, 0, 3, 10**12, 1e308, float("nan"), "x", [], {}, True, [1], {"a": 1}, ["x"] * 3]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the ways to all values within a JSON value."""
    if path:
        yield path
    if isinstance(value, dict | list):
        keys = value if isinstance(value, dict) else range(min(3, len(value)))
        for key in keys:
            yield from places(value[key], (*path, key))


def changed(value: Any, stream: random.Random) -> Any:
    """Return a JSON value of which one part, anywhere, is another."""
    value = copy.deepcopy(value)
    *way, last = stream.choice(list(places(value)))
    at = value
    for key in way:
        at = at[key]
    at[last] = stream.choice(ODD)
    return value


@pytest.mark.cpu_seconds(6)
@pytest.mark.parametrize("kind", [*KINDS, *FITS])
def test_a_changed_manifest_gives_a_posterior_or_one_line(kind, made, tmp_path) -> None:
    """Forty random changes with remade digests; seconds of the same found no other end."""
    made[kind].save(tmp_path)
    raw = (tmp_path / "posterior.json").read_bytes()
    stream = random.Random(kind)
    for _ in range(40):
        manifest = changed(read_json(tmp_path / "posterior.json", 3), stream)
        write_json(tmp_path / "posterior.json", manifest)
        try:
            pm.load(tmp_path, net=net).predict(X[:2])
        except ValueError as problem:
            assert "\n" not in str(problem)
        (tmp_path / "posterior.json").write_bytes(raw)


@pytest.mark.parametrize("kind", ["gaussian", "kron"])
def test_a_changed_header_gives_a_posterior_or_one_line(kind, made, tmp_path) -> None:
    """Also where it promises tensors of a size below 0, or metadata that is no object."""
    made[kind].save(tmp_path)
    path = tmp_path / "members-1.safetensors"
    raw, stream = path.read_bytes(), random.Random(1)
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    name = next(name for name in header if name != "__metadata__")
    shape = [-abs(size) for size in header[name]["shape"][:2]] + header[name]["shape"][2:]
    odd = [{**header, name: {**header[name], "shape": shape}}]
    odd.append({**header, "__metadata__": {**header["__metadata__"], "polymode": "3"}})
    for each in [*odd, *(changed(header, stream) for _ in range(60))]:
        text = json.dumps(each).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + length :])
        try:
            pm.load(tmp_path, net=net)
        except FileProblem as problem:
            assert "\n" not in str(problem)
