"""Wrong calls of the public functions: each ends in a result, or in one line that names the fault.

Calls are generated. Of every public function there is one that works, made of its signature and of
`values` by the names of its arguments; then one argument after another is replaced by things that
it was not made for. A refusal is a `ValueError` or `TypeError` of one line, raised by polymode's
own code. Nothing is excepted.
"""

from __future__ import annotations

import importlib
import inspect
import math
import random
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

import polymode as pm
from polymode.methods import METHODS
from polymode.prediction import CategoricalPrediction, MixturePrediction

SOURCE = str(Path(pm.__file__).parent)
STREAM = torch.Generator().manual_seed(0)
X = torch.randn(8, 4, generator=STREAM)
LABELS = torch.arange(8) % 2
TARGETS = X[:, :1] * 2


def rooms() -> Iterator[str]:
    """Yield the modules whose functions are public."""
    yield "polymode"
    yield from (f"polymode.{name}" for name in ("chains", "prediction", *pm._ROOMS))
    for name in ("calibration", "classification", "crps", "intervals", "ood", "regression"):
        yield f"polymode.metrics.{name}"
    for name in ("diversity", "reference", "selective", "sparsification"):
        yield f"polymode.metrics.{name}"
    yield "polymode.equivariance.kernels"


def public() -> dict[str, Callable[..., Any]]:
    """Return functions and classes by their names, each once."""
    named: dict[str, Callable[..., Any]] = {}
    for room in rooms():
        module = importlib.import_module(room)
        for name in getattr(module, "__all__", None) or _defined(module):
            value = getattr(module, name)
            if inspect.isfunction(value) or inspect.isclass(value) and _is_for_users(value):
                if value not in named.values():
                    named[f"{room.removeprefix('polymode').lstrip('.')}.{name}".lstrip(".")] = value
    return named


def _defined(module: Any) -> list[str]:
    return [
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and name[0] != "_"
    ]


def _is_for_users(kind: type) -> bool:
    """Whether a class is one that users make objects of; others are what functions return."""
    return kind.__name__ in MADE_BY_USERS


MADE_BY_USERS = {
    "Task", "CategoricalPrediction", "MixturePrediction", "Gaussian", "HeteroscedasticGaussian",
    "StudentT", "Ball", "Recipe", "Zoo", "Published", "Geometry", "DeepImagePrior",
    "LinearOperator", "Linearised", "Style", "Display", "Reference",
    *(METHODS.get(name).value.config.__name__ for name in METHODS.names()),
}  # fmt: skip


def posterior(method: str = "deep_ensemble", **options: Any) -> pm.Posterior:
    given = {"net": small_net, "task": task(), "epochs": 1, "num_modes": 2, "progress": "silent"}
    return pm.fit(method, **{**given, **options})


def small_net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))


def task() -> pm.Task:
    return pm.Task(train=(X, LABELS), test=(X, LABELS), likelihood="categorical")


def values() -> dict[str, Any]:
    """Return what arguments of these names are given in a call that works."""
    post, digits = posterior(), task()
    net = small_net()
    symmetries = pm.symmetry.find(net, (4,))
    logits = torch.randn(4, 8, 2, generator=STREAM).log_softmax(-1)
    classes = CategoricalPrediction(logits, num_modes=2)
    projector = pm.tomography.parallel_beam(4, 3)
    images = torch.rand(2, 4, 4, generator=STREAM)
    scan = pm.tomography.simulate(projector, images, finer=1)
    reconstruction = pm.tomography.Reconstruction(images[:, None], images[:, None] + 0.1)
    results = pm.evaluate(post, digits)
    return {
        "post": post, "task": digits, "prediction": classes, "targets": LABELS, "level": 0.5,
        "name": "two_moons", "method": "map", "net": small_net, "train": (X, LABELS),
        "likelihood": "categorical", "results": [results], "folder": "nowhere", "x": X, "y": LABELS,
        "eps": 0.1, "num_examples": 4, "posts": {"a": post}, "found": None,
        "scores": torch.rand(8), "n": 8, "input_shape": (4,), "num_outputs": 2, "target_size": 2,
        "reference": classes, "inside": torch.rand(8), "outside": torch.rand(8),
        "samples": torch.rand(3, 8, 1), "confidence": torch.rand(8), "loss": torch.rand(8),
        "uncertainty": torch.rand(8), "error": torch.rand(8), "predictions": classes,
        "matrix": torch.rand(3, 3), "log_probs": logits, "labels": LABELS,
        "draws": torch.randn(2, 8, generator=STREAM), "superchains": 2,
        "loc": torch.zeros(2, 8, 1), "scale": torch.ones(2, 8, 1), "networks": post,
        "symmetries": symmetries, "acting": pm.symmetry.random_element(symmetries, 2),
        "checkpoints": [post, post], "params": dict(net.named_parameters()), "metric": "nll",
        "text": "symmetry", "value": 1.0, "centre": torch.rand(2, 4), "side": 4, "angles": 3,
        "source_distance": 8.0, "operator": projector, "projector": projector,
        "observations": scan.observations, "noise_sd": 0.1, "images": images, "truth": images,
        "image_shape": (4, 4), "width": 1.0, "mask": torch.ones(4, 4), "tv_weight": 0.01,
        "scan": scan, "num_detectors": 5, "reconstruction": reconstruction, "sd": 0.1,
        "pairs": [(reconstruction, images)], "displays": [], "label": "a", "caption": "a",
        "num_samples": 2, "log_likelihoods_KN": torch.randn(3, 8), "alpha": 0.5, "pattern": "*",
    }  # fmt: skip


def overrides(common: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what functions, or all functions of a room, take instead or besides."""
    stream = torch.Generator().manual_seed(1)
    mixture = MixturePrediction(torch.randn(4, 8, 1, generator=stream), 0.5, num_modes=2)
    sets = pm.conformal.conformal_sets(common["prediction"], LABELS, 0.5)(common["prediction"])
    result = common["results"][0]
    regression = {"prediction": mixture, "targets": TARGETS, "reference": mixture}
    attacked = {"x": common["centre"], "y": LABELS[:2], "kind": "fgsm", "eps": 0.1}
    net, image_net = small_net(), nn.Sequential(nn.Conv2d(1, 1, 3, padding=1))
    one_step = pm.tomography.DeepImagePrior(steps=1)
    dip = {"options": one_step, "net": lambda: nn.Sequential(nn.Conv2d(1, 1, 3, padding=1))}
    quiet = {"epochs": 1, "progress": "silent", "num_modes": 1, "execution": "loop"}
    return {
        "examine": {"name": "evidence"}, "fit": quiet,
        "chains.": {"draws": torch.randn(8, 2, generator=stream)},
        "adversary.": {"found": pm.adversary.attack(common["post"], **attacked)},
        "adversary.attack": attacked, "adversary.sweep": {**attacked, "eps": [0.0, 0.1]},
        "adversary.transfer": {**attacked, "posts": {"a": common["post"], "b": common["post"]}},
        "conformal.": {"sets": sets}, "conformal.conformal_intervals": regression,
        "equivariance.group": {"name": "C4"},
        "examinations.findings_of": {"results": result},
        "examinations.read_asked": {"text": "pairs"},
        "likelihoods.Gaussian": {"noise": 0.1}, "likelihoods.StudentT": {"df": 4.0, "scale": 0.1},
        "nets.": {"input_shape": (1, 32, 32)}, "nets.mlp": {"input_shape": (4,)},
        "metrics.regression.": regression, "metrics.crps.": regression,
        "metrics.intervals.": regression, "metrics.sparsification.ause": regression,
        "metrics.reference.w1": regression, "metrics.reference.w2": regression,
        "plots.": {"results": result, "source": result, "board": pm.compare([result])},
        "recalibration.fit_temperature": {"log_probs": common["log_probs"][0]},
        "symmetry.Reference": {"params": {"a": torch.rand(3, 2)}},
        "symmetry.find": {"net": net, "input_shape": (4,)},
        "symmetry.mmd": {"y": X + 1}, "symmetry.align": {"reference": 0},
        "tasks.check_batch": {"likelihood": pm.likelihoods.Categorical()},
        "tomography.": {"truth": common["images"][:, None], "net": image_net},
        "tomography.psnr": {"images": common["images"][:, None]},
        "tomography.ssim": {"images": common["images"][:, None]},
        "tomography.inpainting": {"mask": torch.eye(4) > 0},
        "tomography.deep_image_prior": dip, "tomography.ensemble_dip": dip,
        "tomography.mc_dropout_dip": dip,
        "tomography.Linearised": {"x": torch.zeros(1, 1, 4, 4)},
        "tomography.tv_reconstruction": {"max_iterations": 20},
        "zoo.": {"recipe": "nowhere", "num_networks": 1, "path": "nowhere", "where": "nowhere"},
        "zoo.Recipe": {"task": "digits", "net": "mlp"},
    }  # fmt: skip


def wrong_values() -> list[Any]:
    """Return things that few arguments were made for."""
    return [
        None, "x", -1, 0, 1.5, math.nan, math.inf, 10**30, 10**14, True, {1, 2}, b"x", {}, [], (),
        torch.zeros(0), torch.zeros(3, 2, device="meta"), torch.zeros(8, 3), torch.tensor(3.0),
        torch.zeros(2, 3, 4, 5), torch.full((8,), math.nan), torch.zeros(8, dtype=torch.complex64),
        torch.arange(3), lambda: None, small_net(), object(), ["a"], [None], [1, "x"], int,
        torch.float64, "float64", {"x": 1}, Path("nowhere"), [1.0, 2.0], np.zeros(3),
    ]  # fmt: skip


class Call(NamedTuple):
    """A function, and what it is given by name; `wrong` is the argument that is not right."""

    name: str
    function: Callable[..., Any]
    given: dict[str, Any]
    wrong: str

    def __call__(self) -> Any:
        parameters = inspect.signature(self.function).parameters
        first = [n for n, p in parameters.items() if p.kind is p.POSITIONAL_ONLY]
        rest = {n: v for n, v in self.given.items() if n not in first}
        return self.function(*(self.given[n] for n in first), **rest)

    def __str__(self) -> str:
        value = " ".join(f"{self.given[self.wrong]!r:.60}".split())
        return f"{self.name}({self.wrong}={value})"


def right_call(name: str, function: Callable[..., Any], common: Any, special: Any) -> Any:
    """Return the arguments of a call that works, None where one of them is not at hand."""
    own = {**special.get(f"{name.rpartition('.')[0]}.", {}), **special.get(name, {})}
    parameters = inspect.signature(function).parameters
    given = {k: v for k, v in special.get(name, {}).items() if k in parameters or name == "fit"}
    for key, parameter in parameters.items():
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            if name.startswith("adversary."):
                given |= {k: v for k, v in special[name].items() if k not in parameters}
        elif parameter.default is parameter.empty or key in special.get(name, {}):
            if key not in own and key not in common:
                return None
            given[key] = own.get(key, common.get(key))
    return given


def runs_on(call: Call) -> bool:
    """Whether the call asks for work without end, or for what it takes by default: not wrong."""
    value = call.given[call.wrong]
    endless = {"epochs", "training_steps", "steps", "max_iterations", "most_sweeps"}
    if type(value) is int and value == 10**14 and call.wrong in endless:
        return True
    return value is None


def generated() -> list[Call]:
    """Return about a thousand wrong calls, the same in every run."""
    common = values()
    special, pool, draw = overrides(common), wrong_values(), random.Random(0)
    methods = {f"post.{name}": getattr(common["post"], name) for name in METHODS_OF_POSTERIORS}
    methods |= {f"pred.{name}": getattr(common["prediction"], name) for name in ("log_prob",)}
    calls = []
    for name, function in {**public(), **methods}.items():
        given = right_call(name, function, common, special)
        if given is None or name == "reference":
            continue
        for key, parameter in inspect.signature(function).parameters.items():
            if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
                few = draw.sample(pool, SAMPLE)
                calls += [Call(name, function, {**given, key: value}, key) for value in few]
    return [call for call in calls if not runs_on(call)]


METHODS_OF_POSTERIORS = ("predict", "stream", "draws", "sample")
SAMPLE = 2  # wrong values of each argument


def fault(call: Call) -> str | None:
    """Return what is wrong with how a call ends, None for a result or a line of refusal."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = call()
            if isinstance(made, Iterator):
                next(made)
    except (ValueError, TypeError) as error:
        text, last = str(error), traceback.extract_tb(error.__traceback__)[-1]
        if not text.strip() or "\n" in text:
            return f"not one line: {text[:100]!r}"
        if last.filename.startswith(SOURCE):
            return None
        return f"{type(error).__name__} of {Path(last.filename).name}:{last.lineno}: {text[:150]}"
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.lineno}"
        return f"{type(error).__name__} of {where}: {str(error)[:150]!r}"
    return None


@pytest.mark.cpu_seconds(20)
def test_wrong_calls_end_in_a_result_or_in_one_line(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    calls = generated()
    faults = {str(call): text for call in calls if (text := fault(call)) is not None}
    assert len(calls) >= 1000
    assert faults == {}
