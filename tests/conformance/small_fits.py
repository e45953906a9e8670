"""Fits of every method on a few examples, and what must hold of two of them."""

from __future__ import annotations

import os
import signal

import pytest
import torch
from torch import nn

import polymode as pm
from polymode.methods import METHODS
from polymode.training.events import Event

STREAM = torch.Generator().manual_seed(0)


X = torch.randn(48, 4, generator=STREAM)


LABELS = (X[:, 0] + X[:, 1] > 0).long()


SHORT = {"epochs": 4, "batch_size": 16, "progress": "silent"}


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def noisy_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 2))


def normalised_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))


def needs(method: str) -> str | None:
    """What a network must have for the method: "noise", "BatchNorm" or nothing."""
    return METHODS.get(method).metadata.get("needs")


def net_for(method: str):
    """A small network that the method takes."""
    return {"noise": noisy_mlp, "BatchNorm": normalised_mlp}.get(needs(method) or "", mlp)


def drawing_net_for(method: str):
    """One that draws noise, which some methods leave on."""
    return normalised_mlp if needs(method) == "BatchNorm" else noisy_mlp


def with_policies() -> nn.Module:
    """BatchNorm and dropout, the layers that have a policy."""
    return nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2)
    )


def classes() -> pm.Task:
    return pm.Task(train=(X, LABELS), likelihood="categorical")


def fit(method: str, **options) -> pm.Posterior:
    return pm.fit(method, **({"net": net_for(method), "task": classes()} | SHORT | options))


def tensors(post: pm.Posterior) -> dict[str, torch.Tensor]:
    """Everything that is saved: samples that were kept, spreads, networks."""
    return post.weights.tensors()


def assert_same(a: pm.Posterior, b: pm.Posterior) -> None:
    assert tensors(a).keys() == tensors(b).keys()
    for name, tensor in tensors(a).items():
        assert torch.equal(tensor, tensors(b)[name]), name


def assert_near(post: pm.Posterior, wanted: pm.Posterior, message: str) -> None:
    """To 1e-8: all that is saved, and a draw in place of eigenvectors, which are not unique."""
    held = tensors(wanted) | wanted.weights.draw(0, 5).tensors()
    for name, tensor in (tensors(post) | post.weights.draw(0, 5).tensors()).items():
        if tensor.is_floating_point() and not name.endswith("basis"):
            torch.testing.assert_close(
                tensor, held[name], rtol=1e-8, atol=1e-10, msg=f"{message}: {name}"
            )


def check_resume(method: str, tmp_path) -> None:
    whole = fit(method, net=with_policies, epochs=12)

    def interrupt(event: Event) -> None:
        if event.kind == "checkpoint" and event.step >= 25:
            os.kill(os.getpid(), signal.SIGINT)

    options = {"net": with_policies, "epochs": 12, "checkpoint": tmp_path, "checkpoint_seconds": 0}
    with pytest.raises(KeyboardInterrupt):
        fit(method, on_event=interrupt, **options)
    events: list[Event] = []
    resumed = fit(method, on_event=events.append, **options)
    assert events[0].kind == "resume"
    assert 25 <= events[0].step < 36
    assert_same(whole, resumed)
