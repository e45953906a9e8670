"""How often the look at a posterior is wrong: healthy fits, and failures that are planted.

    python -m benchmarks.look [--healthy 200] [--seed 0]

Healthy fits are small ones of everyday tasks (curves, blobs, moons, noisy planes, three to ten
inputs, 60 to 400 examples) by methods with their defaults; every concern about one of them is a
false alarm. Then each failure is planted in each of several fits, and the look has to name it.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import polymode as pm

METHODS = ("deep_ensemble", "map", "laplace", "swag", "weight_rde", "forde", "laplace_map")
FEW = {"deep_ensemble": 3, "weight_rde": 3, "forde": 3}


def healthy_task(stream: torch.Generator) -> pm.Task:
    """Return a random task that a small network can learn something of."""
    size = int(torch.randint(100, 500, (), generator=stream))
    inputs = int(torch.randint(1, 6, (), generator=stream))
    x = torch.randn(size, inputs, generator=stream)
    direction = torch.randn(inputs, generator=stream)
    signal = torch.sin(1.5 * x @ direction / direction.norm())
    if torch.rand((), generator=stream) < 0.5:
        noise = 0.1 + 0.5 * torch.rand((), generator=stream)
        y = signal + noise * torch.randn(size, generator=stream)
        return pm.Task(train=(x, y[:, None]), likelihood=pm.likelihoods.Gaussian(noise="learned"))
    flipped = torch.rand(size, generator=stream) < 0.05
    labels = (signal > 0).long() ^ flipped.long()
    return pm.Task(train=(x, labels), likelihood="categorical", target_size=2)


def concerns(post: pm.Posterior) -> list[str]:
    """Return the names of the concerns about a posterior."""
    return [concern["name"] for concern in post.config.get("concerns", ())]


def fit(method: str, task: pm.Task, net: Any = pm.nets.mlp, **options: Any) -> pm.Posterior:
    """Return a fit of few members with the method's defaults."""
    more = {"num_modes": FEW[method]} if method in FEW else {}
    return pm.fit(method, net=net, task=task, progress="silent", **more, **options)


def false_alarms(number: int, seed: int) -> list[dict[str, Any]]:
    """Return what was said of healthy fits."""
    alarms = []
    for k in range(number):
        stream = torch.Generator().manual_seed(1000 * seed + k)
        task, method = healthy_task(stream), METHODS[k % len(METHODS)]
        post = fit(method, task, seed=k)
        if names := concerns(post):
            texts = [concern["text"] for concern in post.config["concerns"]]
            alarms.append({"fit": k, "method": method, "concerns": names, "texts": texts})
    return alarms


def _moons() -> tuple[Tensor, Tensor]:
    task = pm.task("two_moons")
    return task.train.x, task.train.y


def _dead() -> nn.Module:
    net = nn.Sequential(nn.Linear(2, 20), nn.ReLU(), nn.Linear(20, 2))
    nn.init.constant_(net[0].bias, -100.0)
    return net


def _shuffled() -> pm.Task:
    x, y = _moons()
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    return pm.Task(train=(x, y[order]), likelihood="categorical")


def _constant() -> pm.Task:
    x, _ = _moons()
    return pm.Task(
        train=(x, torch.zeros(len(x), dtype=torch.long)), likelihood="categorical", target_size=2
    )


def planted(method: str) -> dict[str, Callable[[], pm.Posterior]]:
    """Return the failures, by name."""
    moons = pm.task("two_moons")
    deep = lambda: pm.nets.mlp((2,), 2, hidden=[50] * 6)  # noqa: E731
    rate = pm.options(method)["lr"].default * 100
    failures: dict[str, Callable[[], pm.Posterior]] = {
        "rate x 100": lambda: fit(method, moons, deep, lr=rate),
        "shuffled labels": lambda: fit(method, _shuffled()),
        "constant targets": lambda: fit(method, _constant()),
        "dead ReLUs": lambda: fit(method, moons, _dead),
    }
    return failures


def points() -> dict[str, Callable[[], pm.Posterior]]:
    """Return posteriors that are points, or the spread of a start."""
    moons = pm.task("two_moons")
    trained = fit("map", moons)
    cases = {f"epochs=0, {m}": (m, {"epochs": 0}) for m in ("swag", "sghmc", "vi", "ivon")}
    found = {
        name: lambda method=method, more=more: fit(method, moons, trained, **more)
        for name, (method, more) in cases.items()
    }
    found["one snapshot"] = lambda: fit("snapshot", moons, num_cycles=1)
    return found


def main() -> None:
    """Print the false alarms and what was said of each planted failure, as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--healthy", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    alarms = false_alarms(options.healthy, options.seed)
    named = {}
    for method in ("deep_ensemble", "map"):
        for name, make in planted(method).items():
            try:
                named[f"{method}: {name}"] = concerns(make())
            except (ArithmeticError, ValueError) as error:
                named[f"{method}: {name}"] = [f"refused: {str(error)[:100]}"]
    for name, make in points().items():
        try:
            named[name] = concerns(make())
        except (ArithmeticError, ValueError) as error:
            named[name] = [f"refused: {str(error)[:100]}"]
    print(json.dumps({"healthy": options.healthy, "alarms": alarms, "planted": named}, indent=1))


if __name__ == "__main__":
    main()
