"""Networks that compute something else are told apart, also where layers and values agree."""

import os
import subprocess
import sys

import pytest
import torch
from torch import nn

import polymode as pm
from polymode.tracing.code import code_of, network_mark


def curve(x):
    return torch.tanh(x)


class Tanh(nn.Module):
    def __init__(self, act=torch.tanh, scale=1.0):
        super().__init__()
        self.a, self.b = nn.Linear(2, 4), nn.Linear(4, 2)
        self.act, self.scale = act, scale

    def forward(self, x):
        return self.b(self.act(self.a(x)) * self.scale)


def named_like(kind, forward):
    """A class of the same name with another forward method."""
    return type(kind.__name__, (kind,), {"forward": forward, "__qualname__": kind.__qualname__})


def relu_of_three(self, x):
    return self.b(torch.relu(3 * self.a(x)))


def through_curve(self, x):
    return self.b(curve(self.a(x)))


def closed_over(number):
    return lambda x: x * number


OTHERS = {
    "forward": lambda: named_like(Tanh, relu_of_three)(),
    "a function": lambda: Tanh(torch.relu),
    "an attribute": lambda: Tanh(scale=2.0),
    "a closure": lambda: Tanh(closed_over(2.0)),
    "another closure": lambda: Tanh(closed_over(3.0)),
    "a method of the instance": lambda: _with_own_forward(),
}


def _with_own_forward():
    module = Tanh()
    module.forward = relu_of_three.__get__(module)
    return module


def test_each_difference_has_a_mark_of_its_own() -> None:
    marks = [network_mark(make()) for make in (Tanh, *OTHERS.values())]
    assert len(set(marks)) == len(marks)
    assert network_mark(Tanh()) == marks[0]


def test_a_function_that_is_called_by_name_belongs_to_the_code(monkeypatch) -> None:
    module = named_like(Tanh, through_curve)()
    before = network_mark(module)
    monkeypatch.setitem(globals(), "curve", lambda x: torch.relu(x))
    assert network_mark(module) != before


@pytest.mark.cpu_seconds(12)
def test_marks_are_the_same_in_every_process() -> None:
    source = (
        "from polymode.tracing.code import network_mark; from polymode import nets;"
        "print(network_mark(nets.resnet8((3, 8, 8), 2)), network_mark(nets.vit((1, 8, 8), 2)))"
    )
    shown = {
        subprocess.run(
            [sys.executable, "-c", source], capture_output=True, text=True, check=True,
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
        ).stdout
        for seed in (1, 2)
    }  # fmt: skip
    assert len(shown) == 1 and shown != {""}


def test_layers_of_torch_have_no_code_of_their_own() -> None:
    assert code_of(nn.Sequential(nn.Linear(2, 2), nn.ReLU())) == []


def test_a_training_is_not_resumed_with_another_forward_method(tmp_path) -> None:
    how = {"task": pm.task("two_moons"), "epochs": 1, "progress": "silent", "num_modes": 1}
    pm.fit("map", net=Tanh, checkpoint=tmp_path, **how)
    pm.fit("map", net=Tanh, checkpoint=tmp_path, **how)  # the same one is
    with pytest.raises(ValueError, match="belongs to another run: code was"):
        pm.fit("map", net=OTHERS["forward"], checkpoint=tmp_path, **how)
    with pytest.raises(ValueError, match="belongs to another run: code was"):
        pm.fit("map", net=OTHERS["an attribute"], checkpoint=tmp_path, **how)


def test_a_training_of_another_release_is_not_resumed(tmp_path, monkeypatch) -> None:
    how = {"task": pm.task("two_moons"), "epochs": 1, "progress": "silent", "num_modes": 1}
    pm.fit("map", net=Tanh, checkpoint=tmp_path, **how)
    monkeypatch.setattr(sys.modules["polymode.methods.fit"], "__version__", "0.0.0")
    with pytest.raises(ValueError, match=r"release was .*, is '0.0.0'"):
        pm.fit("map", net=Tanh, checkpoint=tmp_path, **how)


def test_a_reference_is_not_that_of_another_forward_method(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("POLYMODE_CACHE", str(tmp_path))
    short = {"num_modes": 2, "epochs": 8, "leapfrog_steps": 2, "samples_per_mode": 4}
    how = {"progress": "silent", "training_steps": 0, **short}
    first, other = (pm.reference("two_moons", net=net, **how) for net in (Tanh, OTHERS["forward"]))
    assert first.folder != other.folder
    x = pm.task("two_moons").test.x[:20]
    assert not torch.equal(first.predict(x).mean, other.predict(x).mean)
    module = sys.modules["polymode.examinations.reference_posterior"]
    monkeypatch.setattr(module, "__version__", "0.0.0")
    assert pm.reference("two_moons", net=Tanh, **how).folder != first.folder
