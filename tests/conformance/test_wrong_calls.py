"""Wrong calls of the public functions: each ends in a result, or in one line that names the fault.

Calls are generated: of every public function a call that works, made of its signature and of
`VALUES` by the names of its arguments, and then one argument after another replaced by something
that it was not made for. A refusal is a `ValueError` or `TypeError` of one line, raised by
polymode's own code, and names the argument or what is wrong with it. Nothing is excepted.
"""

from __future__ import annotations

import importlib
import inspect
import re
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
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
        "log_likelihoods_KN": torch.randn(3, 8), "alpha": 0.5, "pattern": "*",
    }  # fmt: skip


def overrides(common: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what single functions take instead, or besides."""
    stream = torch.Generator().manual_seed(1)
    loc = torch.randn(4, 8, 1, generator=stream)
    mixture = MixturePrediction(loc, 0.5, num_modes=2)
    sets = pm.conformal.conformal_sets(common["prediction"], LABELS, 0.5)(common["prediction"])
    result = common["results"][0]
    image = {"input_shape": (1, 32, 32)}
    regression = {"prediction": mixture, "targets": TARGETS, "reference": mixture}
    attacked = {"x": common["centre"], "y": LABELS[:2], "kind": "fgsm"}
    net = small_net()
    image_net = nn.Sequential(nn.Conv2d(1, 1, 3, padding=1))
    dip = {"options": pm.tomography.DeepImagePrior(steps=1), "net": lambda: image_net}
    arrays = {"eps": [0.0, 0.1], "accuracy": [1.0, 0.5]}
    return {
        "examine": {"name": "pairs"}, "load": {}, "fit": {"epochs": 1, "progress": "silent"},
        "reference": {"training_steps": 1, "epochs": 1, "progress": "silent"},
        "chains.": {"draws": torch.randn(8, 2, generator=stream)},
        "adversary.attack": attacked,
        "adversary.sweep": {**attacked, "eps": [0.0, 0.1]},
        "adversary.transfer": {**attacked, "posts": {"a": common["post"], "b": common["post"]}},
        "adversary.detection": {"found": pm.adversary.attack(common["post"], common["centre"], LABELS[:2], eps=0.1, kind="fgsm")},
        "adversary.arrays_of": {"found": None},
        "conformal.conformal_intervals": regression,
        "conformal.": {"sets": sets},
        "equivariance.group": {"name": "C4"},
        "examinations.findings_of": {"results": result},
        "examinations.read_asked": {"text": "pairs"},
        "likelihoods.Gaussian": {"noise": 0.1}, "likelihoods.StudentT": {"df": 4.0, "scale": 0.1},
        "nets.mlp": {}, "nets.vit": image, "nets.": image,
        "metrics.regression.": regression, "metrics.crps.": regression,
        "metrics.intervals.": regression,
        "plots.entropy_scatter": {"results": result}, "plots.": {"results": result, "source": result, "board": pm.compare([result])},
        "recalibration.fit_temperature": {"log_probs": common["log_probs"][0]},
        "symmetry.Reference": {}, "symmetry.find": {"net": net, "input_shape": (4,)},
        "symmetry.mmd": {"y": X + 1}, "symmetry.align": {"reference": 0},
        "tasks.check_batch": {"likelihood": pm.likelihoods.Categorical()},
        "tomography.Linearised": {"net": image_net, "x": torch.zeros(1, 1, 4, 4)},
        "tomography.deep_image_prior": dip, "tomography.ensemble_dip": dip,
        "tomography.mc_dropout_dip": dip, "tomography.filter_prior": {"net": image_net},
        "tomography.": {"truth": common["images"]},
    }  # fmt: skip


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
        return f"{self.name}({self.wrong}={self.given[self.wrong]!r:.60})"


def wrong_values() -> list[Any]:
    return [
        None, "x", -1, 0, 1.5, float("nan"), float("inf"), 10**30, 10**14, True, {1, 2}, b"x", {}, [], (),
        torch.zeros(0), torch.zeros(3, 2, device="meta"), torch.zeros(8, 3), torch.zeros(2, 3, 4, 5),
        torch.full((8,), float("nan")), torch.zeros(8, dtype=torch.complex64), torch.tensor(3.0),
        torch.arange(3), lambda: None, small_net(), object(), ["a"], [None], [1, "x"], int,
        torch.float64, "float64", {"x": 1}, Path("nowhere"), [1.0, 2.0], np.zeros(3),
    ]  # fmt: skip


def base(
    name: str, function: Callable[..., Any], common: dict, special: dict
) -> dict[str, Any] | None:
    parameters = inspect.signature(function).parameters
    own: dict[str, Any] = {}
    for key in (name.rpartition(".")[0] + ".", name):
        own |= special.get(key, {})
    given = {}
    for key, p in parameters.items():
        if key in own:
            given[key] = own[key]
        elif p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL):
            if key not in common:
                return None
            given[key] = common[key]
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        given |= {
            k: v
            for k, v in own.items()
            if k not in given and name in special and k in special[name]
        }
    return given


def fault(call: Call) -> str | None:
    """Return what is wrong with how the call ended."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call()
    except (ValueError, TypeError) as error:
        text, last = str(error), traceback.extract_tb(error.__traceback__)[-1]
        if "\n" in text or not text:
            return f"several lines: {text[:100]!r}"
        if not last.filename.startswith(SOURCE) and not last.filename == __file__:
            return (
                f"{type(error).__name__} of {Path(last.filename).name}:{last.lineno}: {text[:150]}"
            )
        return None
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        frames = traceback.extract_tb(error.__traceback__)
        last = frames[-1]
        ours = [f for f in frames if f.filename.startswith(SOURCE)][-1:]
        return f"{type(error).__name__} @ {ours[0].filename[len(SOURCE) :] if ours else last.filename}:{ours[0].lineno if ours else 0} {str(error)[:150]!r}"
    return None


if __name__ == "__main__":
    import resource
    import signal
    import sys
    import time

    resource.setrlimit(resource.RLIMIT_AS, (12 * 2**30, 12 * 2**30))

    class Late(BaseException):
        pass

    def late(*a):
        raise Late("too long")

    signal.signal(signal.SIGALRM, late)
    only = sys.argv[1] if len(sys.argv) > 1 else ""
    torch.set_num_threads(1)
    common = values()
    special = overrides(common)
    pool = wrong_values()
    total = 0
    faults = 0
    t0 = time.time()
    seen = {}
    for name, function in public().items():
        if only and not re.search(only, name):
            continue
        given = base(name, function, common, special)
        if given is None:
            print(
                "LACKS",
                name,
                [
                    k
                    for k, p in inspect.signature(function).parameters.items()
                    if p.default is p.empty and k not in common
                ],
            )
            continue
        signal.alarm(10)
        t = time.time()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                Call(name, function, given, "")()
        except BaseException as e:
            if "nowhere" not in str(e):
                print("BASE", name, type(e).__name__, str(e)[:200])
        signal.alarm(0)
        if time.time() - t > 0.2:
            print("SLOW BASE", name, time.time() - t)
        for key, p in inspect.signature(function).parameters.items():
            if p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL):
                continue
            for value in pool:
                if (
                    key in ("epochs", "training_steps", "steps", "max_iterations", "most_sweeps")
                    and type(value) is int
                    and value == 10**14
                ):
                    continue
                call = Call(name, function, {**given, key: value}, key)
                total += 1
                signal.alarm(3)
                t = time.time()
                try:
                    what = fault(call)
                except Late:
                    what = "LATE"
                signal.alarm(0)
                if time.time() - t > 0.5 and not what:
                    what = f"SLOW {time.time() - t:.1f}"
                if what:
                    faults += 1
                    k = (name, key, re.sub(r"0x[0-9a-f]+|'.*", "", what)[:70])
                    seen.setdefault(k, [what, []])[1].append(f"{value!r:.25}".replace("\n", " "))
    for k, (what, vs) in seen.items():
        print(f"{k[0]}({k[1]}) [{len(vs)}] {what[:230]} <- {' | '.join(vs)[:160]}")
    print(total, faults, time.time() - t0)
