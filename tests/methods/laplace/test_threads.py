"""Small networks take one thread, whatever torch is set to."""

from __future__ import annotations

import sys

import torch

import polymode as pm


def test_curvature_of_a_small_network_takes_one_thread(monkeypatch) -> None:
    pm.methods.Laplace  # noqa: B018  (loads the module)
    module = sys.modules["polymode.methods.laplace.laplace"]
    counts = []
    curvature = module.curvature

    def counted(*args, **options):
        counts.append(torch.get_num_threads())
        return curvature(*args, **options)

    monkeypatch.setattr(module, "curvature", counted)
    x = torch.randn(20, 3)
    task = pm.Task(train=(x, (x[:, 0] > 0).long()), likelihood="categorical")
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        pm.fit("laplace", net=lambda: torch.nn.Linear(3, 2), task=task, epochs=1, progress="silent")
        assert counts == [1] and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
