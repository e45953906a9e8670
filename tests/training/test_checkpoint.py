"""Checkpoints: what a state gets back from its file."""

from __future__ import annotations

import random
import warnings
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import polymode as pm
from polymode.core.safe_files import FileProblem, read_tensors, write_tensors
from polymode.stack.stack import Stack
from polymode.training.checkpoint import (
    claimed,
    load_training,
    read_checkpoint,
    restored,
    save_checkpoint,
)
from polymode.training.optimiser import Optimization, Training

from ..altered import altered


class State(NamedTuple):
    step: int
    axes: Tensor


def load_checkpoint(path, state, identity):
    tensors, metadata = read_checkpoint(path, identity)
    return restored(state, tensors, metadata["fields"], path)


def test_tensors_come_back_in_the_layout_they_had(tmp_path):
    """Files hold tensors row by row; matrix products of another layout differ in their last bits,
    on some processors."""
    by_columns = torch.arange(12.0).view(3, 4).T
    save_checkpoint(tmp_path / "file", State(7, by_columns), {})
    found = load_checkpoint(tmp_path / "file", State(0, torch.zeros(3, 4).T), {})
    assert found.step == 7
    assert found.axes.equal(by_columns) and found.axes.stride() == by_columns.stride() == (1, 4)


class Growing(NamedTuple):
    """A state with all that a method may hold."""

    step: int
    mean: Tensor | None
    samples: Tensor
    groups: dict[str, Tensor]
    notes: dict[str, Any]


def growing(length: int, *, begun: bool = True) -> Growing:
    """Return a state after so many samples."""
    return Growing(
        length,
        torch.full((2,), float(length)) if begun else None,
        torch.arange(2.0 * length).view(length, 2),
        {str(k): torch.full((k + 1, 3), float(length)) for k in range(12)} if begun else {},
        {"scores": [0.5, 1.5], "best": None},
    )


def test_dictionaries_and_growing_states_come_back_as_they_were(tmp_path) -> None:
    """None and nothing at the start, tensors when it was saved; a longer tensor into a shorter one
    is neither cut nor spread. Twelve names keep their order, which is not that of the alphabet."""
    saved = growing(5)
    save_checkpoint(tmp_path / "file", saved, {})
    for begin in (growing(1, begun=False), growing(1), growing(7)):
        found = load_checkpoint(tmp_path / "file", begin, {})
        assert (found.step, found.notes) == (5, saved.notes)
        assert found.mean is not None and torch.equal(found.mean, saved.mean)
        assert torch.equal(found.samples, saved.samples)
        assert list(found.groups) == list(saved.groups)
        assert all(torch.equal(found.groups[name], t) for name, t in saved.groups.items())


def test_what_was_nothing_comes_back_as_nothing(tmp_path) -> None:
    save_checkpoint(tmp_path / "file", growing(0, begun=False), {})
    found = load_checkpoint(tmp_path / "file", growing(3), {})
    assert found.mean is None and found.groups == {} and found.samples.shape == (0, 2)


def test_tensors_of_the_same_shape_are_filled_where_they_are(tmp_path) -> None:
    """An optimiser that holds them steps on what was loaded, and the state sees its steps."""
    save_checkpoint(tmp_path / "file", growing(5), {})
    state = growing(2)
    optimizer = torch.optim.SGD([state.mean, *state.groups.values()], lr=1.0)
    found = load_checkpoint(tmp_path / "file", state, {})
    assert found.mean is state.mean
    for tensor in (found.mean, *found.groups.values()):
        tensor.grad = torch.ones_like(tensor)
    optimizer.step()
    assert found.mean.tolist() == [4.0, 4.0]
    assert all((tensor == 4.0).all() for tensor in found.groups.values())


class Fewer(NamedTuple):
    step: int
    mean: Tensor | None


def test_a_field_that_one_side_lacks_is_refused(tmp_path) -> None:
    save_checkpoint(tmp_path / "long", growing(2), {})
    with pytest.raises(FileProblem, match="only the file has a state 'groups'; remove it to start"):
        load_checkpoint(tmp_path / "long", Fewer(0, None), {})
    save_checkpoint(tmp_path / "short", Fewer(0, None), {})
    with pytest.raises(FileProblem, match="only this run has a state 'groups'"):
        load_checkpoint(tmp_path / "short", growing(2), {})


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (
            1,
            "schema version 1, this polymode reads 2; it was written by an earlier release: remove",
        ),
        (3, "schema version 3, .* written by a newer release: upgrade polymode"),
    ],
)
def test_a_checkpoint_of_another_release_is_refused_with_the_remedy(
    schema, message, tmp_path
) -> None:
    write_tensors(tmp_path / "file", {"axes": torch.zeros(2)}, {"schema": schema, "identity": {}})
    with pytest.raises(FileProblem, match=message):
        load_checkpoint(tmp_path / "file", State(0, torch.zeros(2)), {})


def test_the_checkpoint_of_another_run_is_refused(tmp_path) -> None:
    save_checkpoint(tmp_path / "file", State(7, torch.zeros(2)), {"seed": 1, "data": "a"})
    with pytest.raises(FileProblem, match=r"another run: seed was 1, is 2\. Remove the file"):
        load_checkpoint(tmp_path / "file", State(0, torch.zeros(2)), {"seed": 2, "data": "a"})


def test_the_difference_to_another_run_is_shown_not_all_that_is_the_same(tmp_path) -> None:
    options = {f"option_{k}": k for k in range(20)}
    save_checkpoint(tmp_path / "file", State(7, torch.zeros(2)), {"options": {**options, "lr": 1}})
    mine = {"options": {**options, "lr": 2, "new": "x"}, "seed": 3}
    with pytest.raises(FileProblem) as refused:
        load_checkpoint(tmp_path / "file", State(0, torch.zeros(2)), mine)
    told = "options.lr was 1, is 2; options.new was absent, is 'x'; seed was absent, is 3."
    assert told in str(refused.value) and "option_7" not in str(refused.value)
    many = {"options": {k: -1 for k in options}}
    with pytest.raises(FileProblem, match=r"option_1 was 1, is -1; 18 more\. Remove"):
        load_checkpoint(tmp_path / "file", State(0, torch.zeros(2)), many)


def test_two_trainings_do_not_share_a_folder(tmp_path) -> None:
    with claimed(tmp_path / "run"):
        with pytest.raises(FileProblem, match="run is in use: another training"):
            with claimed(tmp_path / "run"):
                pass
    with claimed(tmp_path / "run"):
        pass


class Trained(NamedTuple):
    """What every gradient-trained method holds."""

    stack: Stack
    optimization: Optimization
    step: int


def test_moments_come_back_in_the_memory_format_of_the_weights(tmp_path) -> None:
    """The fused Adam goes through memory as it lies: moments in another format than the weights
    would be those of other weights. The next step must be the one that would have come."""
    x, y = torch.rand(4, 3, 6, 6), torch.rand(4, 5, 4, 4)

    def trained() -> Trained:
        stack = Stack(lambda: nn.Conv2d(3, 5, 3), 2, execution="loop")
        return Trained(stack, Optimization(Training(lr=0.1), stack.leaves(), 1, 9), 0)

    def advance(state: Trained) -> None:
        loss = lambda out, y, extra: (out - y).square().mean((-1, -2, -3, -4))  # noqa: E731
        state.stack.train().gradients(loss, x, y, step=0)
        state.optimization.update(0)

    begun = trained()
    begun.stack.lay_out(True)
    advance(begun), advance(begun)
    save_checkpoint(tmp_path / "file", begun, {})
    found = load_checkpoint(tmp_path / "file", trained(), {})
    for leaf in found.stack.leaves():
        assert found.optimization.optimizer.state[leaf]["exp_avg"].stride() == leaf.stride()
    advance(begun), advance(found)
    for name, tensor in begun.stack.tensors().items():
        assert torch.equal(tensor, found.stack.tensors()[name]), name


def trained_state() -> Any:
    class Everything(NamedTuple):
        stack: Stack
        optimization: Optimization
        axes: Tensor
        groups: dict[str, Tensor]
        step: int

    stack = Stack(lambda: nn.Linear(2, 3), 2, seed=1)
    return Everything(
        stack,
        Optimization(Training(lr=0.1), stack.leaves(), 1, 9),
        torch.zeros(2),
        {"a": torch.ones(2), "b": torch.ones(3)},
        4,
    )


@pytest.mark.parametrize("field", ["stack", "optimization", "axes", "groups", "step", "mode_axes"])
def test_changed_metadata_gives_a_state_or_one_line(field, tmp_path) -> None:
    """Any part of what describes a field is another value, with a digest that was made anew."""
    state = trained_state()
    save_checkpoint(tmp_path / "training.safetensors", state, {})
    tensors, metadata = read_tensors(tmp_path / "training.safetensors")
    odd = (None, -1, 10**12, "x", [], {}, [1], {"is": "stack"}, {"is": "tensor"}, {"is": "value"})
    for value in odd:
        changes = [{**metadata, field: value}]
        if field in metadata["fields"]:
            described = metadata["fields"][field]
            inner = [{**described, name: value} for name in described]
            changes = [
                {**metadata, "fields": {**metadata["fields"], field: each}}
                for each in (value, *inner)
            ]
        for change in changes:
            write_tensors(tmp_path / "training.safetensors", tensors, change)
            try:
                load_training(tmp_path, trained_state(), {})
            except FileProblem as problem:
                assert "\n" not in str(problem)


@pytest.mark.cpu_seconds(10)
@pytest.mark.parametrize("method", ["map", "sghmc", "swag"])
def test_altered_metadata_with_digests_remade_end_in_one_line(method, tmp_path):
    """60 alterations of each method's: resumed, or refused in a line that names the file."""
    draw, refused = random.Random(0), 0
    task = pm.task("two_moons", num_train=20, num_val=4, num_test=4)
    options = {"epochs": 3, "num_modes": 2, "progress": "silent", "execution": "batched"}

    def fit() -> None:
        pm.fit(method, net=lambda: nn.Linear(2, 2), task=task, checkpoint=tmp_path, **options)

    fit()
    path = tmp_path / "training.safetensors"
    tensors, metadata = read_tensors(path)
    identity = metadata.pop("identity")
    for _ in range(60):
        what, changed = altered(metadata, draw)
        write_tensors(path, tensors, {"identity": identity, **changed})
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of threads, and of no value that is right
                fit()
        except FileProblem as problem:
            refused += 1
            assert str(tmp_path) in str(problem) and "\n" not in str(problem), what
        except Exception as error:
            pytest.fail(f"{what}: {type(error).__name__}: {error}")
    assert refused > 30


def test_plans_in_checkpoints_of_earlier_releases_are_left_alone(tmp_path):
    """Whatever they say: a release that measured executions wrote them down."""
    task = pm.task("two_moons", num_train=20, num_val=4, num_test=4)
    options = {"epochs": 1, "progress": "silent", "execution": "loop", "checkpoint": tmp_path}
    whole = pm.fit("map", net=lambda: nn.Linear(2, 2), task=task, **options)
    path = tmp_path / "training.safetensors"
    tensors, metadata = read_tensors(path)
    metadata["fields"]["stack"]["plans"] = {"gradients": ["batched", False, None, 10**6, False]}
    write_tensors(path, tensors, metadata)
    again = pm.fit("map", net=lambda: nn.Linear(2, 2), task=task, **options)
    assert torch.equal(again.stack.params["weight"], whole.stack.params["weight"])
