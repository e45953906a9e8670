"""Golden traces: what short fits gave when the traces were written, they give after a refactoring.

For every method the saved tensors and the predictions of a short fit, and for every subject one
examination. Each array is stored as eight projections on fixed random directions, which agree to
rounding on every machine, and as a digest of its bits, which is compared on processors of the
kind that wrote it. A change of behaviour that is meant writes the traces again:

    POLYMODE_GOLDEN=write python -m pytest tests/conformance/test_golden.py
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import polymode as pm
from polymode import tomography
from polymode.methods import METHODS

TRACES = Path(__file__).with_name("golden.json")
WRITE = os.environ.get("POLYMODE_GOLDEN") == "write"
CPUINFO = Path("/proc/cpuinfo")
MODELS = re.findall("model name.*", CPUINFO.read_text()) if CPUINFO.exists() else []
KIND = f"torch {torch.__version__}, numpy {np.__version__}, {' '.join(MODELS[:1])}"
# Fits in float64 amplify rounding by training, to far less than 1e-7. In float32 nothing is fitted:
# filtered backprojection goes through 12 levels of Fourier transforms and sums 8 views with
# interpolation, about 32 roundings of a value.
TOLERANCES = {
    np.dtype("float64"): 1e-7,
    np.dtype("float32"): 32 * np.finfo(np.float32).eps,
    np.dtype("int64"): 1e-15,  # counts, in projections that are rounded
}
SHORT = {"epochs": 3, "batch_size": 16, "progress": "silent", "execution": "loop"}
FORMER = {"data_order": "shared"}  # defaults when the traces were written
BEFORE = {**SHORT, **FORMER}
FORMER_RATES: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("sghmc", "sgld", "sgnht"), {"step_limit": None}),
    **dict.fromkeys(("snapshot", "swag"), {"clip_norm": None}),
    "cyclical_sgmcmc": {"step_limit": None, "clip_norm": None, "exploration": 0.8},
    "ivon": {"clip_radius": None},
    "laplace_map": {"spread": "all"},
    "vi": {"lr": 1e-3, "std_lr": 0.01},
}

STREAM = torch.Generator().manual_seed(0)
X = torch.randn(48, 4, generator=STREAM, dtype=torch.float64)
LABELS = (X[:, 0] + X[:, 1] > 0).long()
IMAGES = torch.rand(24, 1, 8, 8, generator=STREAM, dtype=torch.float64)
CLASSES = IMAGES[:, 0, :3].mean(-1).argmax(-1)


def mlp(noise: bool) -> nn.Module:
    layers = [nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2) if noise else nn.Identity()]
    return nn.Sequential(*layers, nn.Linear(8, 2)).double()


def normalised_mlp() -> nn.Module:
    layers = [nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)]
    return nn.Sequential(*layers).double()


def convnet() -> nn.Module:
    layers = [nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)]
    return nn.Sequential(*layers).double()


def trace(arrays: dict[str, Any]) -> dict[str, Any]:
    """Return name -> projections and digest of each array."""
    traces = {}
    for name, array in sorted(arrays.items()):
        values = np.ascontiguousarray(array)
        flat = values.astype(np.float64).ravel()
        directions = np.random.default_rng(flat.size).standard_normal((8, flat.size))
        digest = hashlib.sha256(values.tobytes()).hexdigest()[:16]
        projections = (directions @ flat / max(flat.size, 1) ** 0.5).tolist()
        traces[name] = {"projections": projections, "digest": digest}
    return traces


def check(case: str, arrays: dict[str, Any], bits: bool = True) -> None:
    """Compare with the stored traces, or store these; `bits` of numbers near 0 are rounding."""
    stored = json.loads(TRACES.read_text()) if TRACES.exists() else {}
    traces = trace(arrays)
    if WRITE:
        written = {**stored.get("written on", {}), case: KIND}
        stored = {**stored, "written on": written, case: traces}
        TRACES.write_text(json.dumps(stored, indent=0, sort_keys=True) + "\n")
        return
    assert traces.keys() == stored[case].keys()
    same_kind = stored.get("written on", {}).get(case, stored["kind"]) == KIND
    for name, now in traces.items():
        then = stored[case][name]
        size = np.abs(then["projections"]).max() + 1e-12
        atol = TOLERANCES[np.asarray(arrays[name]).dtype] * size
        np.testing.assert_allclose(
            now["projections"], then["projections"], rtol=0, atol=atol, err_msg=name
        )
        if bits and same_kind:
            assert now["digest"] == then["digest"], f"{case}: the bits of {name} have changed"


@pytest.mark.parametrize("method", [name for name in METHODS.names() if name != "skeleton"])
def test_posterior_and_predictions_are_as_before(method) -> None:
    needs = METHODS.get(method).metadata.get("needs")
    build = normalised_mlp if needs == "BatchNorm" else partial(mlp, needs == "noise")
    task = pm.Task(train=(X, LABELS), likelihood="categorical")
    options = {**BEFORE, **FORMER_RATES.get(method, {})}
    post = pm.fit(method, net=build, task=task, num_modes=2, seed=3, **options)
    tensors = {f"weights/{k}": v.detach().numpy() for k, v in post.weights.tensors().items()}
    check(method, {**tensors, "log_probs": post.predict(X, seed=1).log_probs.numpy()})


EXAMINED = {
    "attack": ("deep_ensemble", {"eps": [0.1], "steps": 2}),
    "chains": ("sghmc", {}),
    "convergence": ("deep_ensemble", {}),
    "equivariance": ("deep_ensemble", {"group": "C4"}),
    "evidence": (pm.methods.Laplace(num_modes=3, prior_precision=1.0, epochs=8, **FORMER), {}),
    "pairs": ("deep_ensemble", {"ood": "noise"}),
}


@pytest.mark.parametrize("name", sorted(EXAMINED))
def test_examinations_are_as_before(name) -> None:
    method, options = EXAMINED[name]
    task = pm.Task(
        train=(IMAGES, CLASSES),
        val=(IMAGES, CLASSES),
        test=(IMAGES, CLASSES),
        ood={"noise": IMAGES.flip(0) * 2},
        likelihood="categorical",
    )
    if isinstance(method, str):
        former = {**FORMER, **FORMER_RATES.get(method, {})}
        method = METHODS.get(method).value.config(num_modes=3, epochs=8, batch_size=16, **former)
    post = pm.fit(method, net=convnet, task=task, seed=3, progress="silent", execution="loop")
    findings = pm.examine(post, task, name, **options)
    rows = {row.metric: row.value for row in findings.rows if row.metric != "train_seconds"}
    check(f"examination {name}", {k: np.float64(v) for k, v in rows.items()}, bits=False)


def test_canonical_form_is_as_before() -> None:
    task = pm.Task(train=(X, LABELS), likelihood="categorical")
    post = pm.fit(
        "deep_ensemble", net=lambda: mlp(False), task=task, num_modes=2, **SHORT, **FORMER
    )
    canonical = pm.symmetry.canonical(post.stack, pm.symmetry.find(post.stack))
    check("canonical form", {name: t.detach().numpy() for name, t in canonical.params.items()})


def test_tomography_is_as_before() -> None:
    operator = tomography.parallel_beam(side=12, angles=8)
    scan = tomography.simulate(operator, torch.eye(24), noise=0.05, seed=0)
    images = {
        "fbp": tomography.fbp(operator, scan.observations),
        "tv": tomography.tv_reconstruction(operator, scan.observations, tv_weight=1e-3).mean,
    }
    check("tomography", {name: image.numpy() for name, image in images.items()})
