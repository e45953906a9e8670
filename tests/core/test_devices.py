"""Devices: nothing on the way from networks to a step assumes a processor.

On `meta` tensors have shapes and no values, and an operation of a tensor there with one of the
processor is an error: what runs there mixes no devices. Numbers that the host reads do not exist
there, so a step may end where it looks at its losses. On a GPU, where there is one, results are
compared with the processor's; `make test-cuda` insists on it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import nn

import polymode as pm
from polymode.core.memory import free_bytes
from polymode.likelihoods.kinds import Categorical
from polymode.methods import METHODS
from polymode.methods.method import Problem
from polymode.posterior import Gaussian
from polymode.stack.stack import Stack
from polymode.training.data import Arrays
from polymode.training.loop import Batch

STREAM = torch.Generator().manual_seed(0)
X = torch.randn(48, 4, generator=STREAM)
Y = (X[:, 0] + X[:, 1] > 0).long()
HOST = "Tensor.item() cannot be called on meta tensors"
NOISY = {"dropout", "concrete_dropout"}  # generators do not exist on meta
CONVERTED = {"masksembles", "mc_batchnorm", "mimo", "sngp"}  # not steps of any network
METHODS_THERE = [name for name in METHODS.names() if name not in NOISY | CONVERTED]


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(108, 2)
    )


@pytest.mark.parametrize("execution", ["batched", "loop", "chunked"])
@pytest.mark.parametrize("net, shape", [(mlp, (4,)), (convolutions, (1, 8, 8))])
def test_stacks_on_meta(execution: str, net, shape: tuple[int, ...]) -> None:
    stack = Stack(net, 3, execution=execution, device="meta").train()
    x, y = torch.empty(5, *shape, device="meta"), torch.zeros(5, dtype=torch.long, device="meta")
    outputs, losses = stack(x), stack.gradients(Categorical().nll, x, y)
    assert (outputs.shape, outputs.device.type) == ((3, 5, 2), "meta")
    assert (losses.shape, losses.device.type) == ((3,), "meta")
    assert all(leaf.grad is not None and leaf.grad.is_meta for leaf in stack.leaves())
    assert all(noise.is_meta for noise in stack.normal("noise").values())


def test_draws_on_meta() -> None:
    stack = Stack(mlp, 2, device="meta")
    std = {name: torch.empty_like(tensor) for name, tensor in stack.params.items()}
    low = {name: tensor.new_empty(2, 3, *tensor.shape[1:]) for name, tensor in std.items()}
    drawn = Gaussian(stack, std, low, samples_per_mode=4).draw(1, seed=0)
    assert all(tensor.is_meta for tensor in drawn.params.values())


@pytest.mark.parametrize("method", METHODS_THERE)
def test_a_step_of_every_method_on_meta(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends, or stops where the host reads a number; it never mixes devices."""
    for module in ("forde", "lit", "weight_rde", "feature_rde", "function_rde"):
        monkeypatch.setattr(f"polymode.methods.{module}.warn_of_coincident", lambda stack: None)
    core = METHODS.get(method).value
    x, y = X.to("meta"), Y.to("meta")
    config = core.config(epochs=8, batch_size=48)
    stack = Stack(mlp, 3, execution="batched", device="meta").train()
    problem = Problem(Categorical(), len(x), 2, 1, Arrays(x, y), 0)
    state = core.init(config, problem, stack)
    try:
        state, info = core.step(config, problem, state, Batch(x, y))
    except RuntimeError as error:
        assert HOST in str(error)
    else:
        assert info.loss.is_meta
        assert all(tensor.is_meta for tensor in state.stack.tensors().values())


@pytest.fixture
def cuda() -> str:
    if not torch.cuda.is_available():
        if os.environ.get("POLYMODE_CUDA") == "required":
            pytest.fail("torch sees no GPU here, and POLYMODE_CUDA=required")
        pytest.skip("torch sees no GPU here; `make test-cuda` is for a machine with one")
    return "cuda"


@pytest.mark.parametrize("method", METHODS.names())
def test_a_gpu_gives_what_the_processor_gives(cuda: str, method: str, tmp_path: Path) -> None:
    """The same streams on both, in float64; dropout's masks are the device's own."""
    net = mlp
    if method in NOISY:
        net = lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 2))  # noqa: E731
    task = pm.Task(train=(X, Y), likelihood="categorical")
    options = {"epochs": 4, "batch_size": 16, "progress": "silent", "dtype": torch.float64}
    options |= {"num_modes": 2} if METHODS.get(method).value.config.usual_modes > 1 else {}
    here = pm.fit(method, net=net, task=task, **options)
    there = pm.fit(method, net=net, task=task, device=cuda, checkpoint=tmp_path / "run", **options)
    assert there.stack.device.type == "cuda"
    there.save(tmp_path / "post")
    loaded = pm.load(tmp_path / "post", net=net, device=cuda)
    mean = there.predict(X).mean
    torch.testing.assert_close(loaded.predict(X).mean, mean, rtol=1e-9, atol=1e-9)
    if method not in NOISY:
        torch.testing.assert_close(mean.cpu(), here.predict(X).mean, rtol=1e-5, atol=1e-6)


def test_free_memory_of_a_gpu(cuda: str) -> None:
    assert 0 < free_bytes(cuda) <= torch.cuda.get_device_properties(0).total_memory
