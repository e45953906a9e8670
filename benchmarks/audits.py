"""Measure audits on networks whose faults are planted: `python -m benchmarks.audits`, 10 minutes.

Sources: simulated tables (a random network, labels drawn with its probabilities), simulated images
(sixteen by sixteen, four classes), and two real tables, digits and breast cancer, on which small
networks are trained and given a temperature on validation data. Of real networks nobody knows
whether they are sound; so labels of their test and validation rows are drawn with their
probabilities, and "true labels" tells how often the real ones raise an alarm. Every audit has a new
network or division and new groups, and makes all checks that test something. A defect counts as
named if a finding with the name that fits has a severity after correction; a sound network is a
false alarm if anything has one, counted with and without findings under corruptions: a network that
is right about clean inputs may well not notice that columns are missing.

The power to name a regression of 2 points in one group depends on the size n of the group and on
churn, the share of answers that are lost and gained besides: computed from the exact test at the
strictest level of Holm's correction for 40 tests. Writes `results/audits.json`; names of sources
and defects measure these only, a number such as 0.3 that share of the audits.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import binom
from torch import Tensor, nn

import polymode as pm
from polymode.audits.checks import all_checks
from polymode.recalibration import fit_temperature

RESULTS = Path(__file__).parents[1] / "results" / "audits.json"
SITES = 4
COLUMNS, HIDDEN = 8, 32
TESTS = 40
CHECKS = [name for name in all_checks() if name not in ("attacks", "gains")]  # they test nothing
Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Case:
    """What an audit is given; `sites` is the group of each test row."""

    net: nn.Module
    test: Pair
    val: Pair
    train: Pair
    sites: np.ndarray
    random: torch.Generator
    ood: dict[str, Tensor] = field(default_factory=dict)
    baseline: nn.Module | None = None

    def audit(self, seed: int) -> pm.audits.Audit:
        return pm.audit(
            self.net, self.test, val=self.val, train=self.train, groups={"site": self.sites},
            ood=self.ood, baseline=self.baseline, seed=seed, checks=CHECKS,
        )  # fmt: skip


class Changed(nn.Module):
    """A network whose outputs are changed by a function of inputs and logits."""

    def __init__(self, net: nn.Module, change: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.net, self.change = net, change

    def forward(self, x: Tensor) -> Tensor:
        return self.change(x, self.net(x))


class Quadrants(nn.Module):
    """Which quarter of an image is brightest."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(scale))

    def forward(self, x: Tensor) -> Tensor:
        means = nn.functional.avg_pool2d(x, 8).flatten(1)
        return self.scale * (means - means.mean(1, keepdim=True))


def perceptron(inputs: int, classes: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, classes))


def labelled(net: nn.Module, x: Tensor, random: torch.Generator) -> Pair:
    """Return inputs, and labels drawn with the probabilities of the network."""
    return x, torch.multinomial(net(x).softmax(-1).detach(), 1, generator=random)[:, 0]


def simulated(seed: int, n: int = 1000) -> Case:
    random = torch.Generator().manual_seed(seed)
    classes = (2, 3, 5, 10)[seed % 4]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net, older = perceptron(COLUMNS, classes), perceptron(COLUMNS, classes)
    with torch.no_grad():
        net[2].weight.mul_(15.0 + 25.0 * float(torch.rand((), generator=random)))
        for weight, before in zip(net.parameters(), older.parameters(), strict=True):
            before.copy_(weight * (1 + 0.02 * torch.randn(weight.shape, generator=random)))
    test, val, train = (
        labelled(net, torch.randn(size, COLUMNS, generator=random), random)
        for size in (n, 1000, 1000)
    )
    x = torch.randn(10_000, COLUMNS, generator=random)
    doubtful = x[net(x).softmax(-1).amax(-1).argsort()[:250]]
    return Case(
        net, test, val, train, _sites(n, random), random, {"doubtful": doubtful}, older
    )  # fmt: skip


def images(seed: int, n: int = 300) -> Case:
    random = torch.Generator().manual_seed(seed)
    net = Quadrants(15.0 + 10.0 * float(torch.rand((), generator=random)))

    def drawn(size: int) -> Pair:
        levels = 0.3 + 0.4 * torch.rand(size, 1, 2, 2, generator=random)
        return labelled(net, nn.functional.interpolate(levels, size=(16, 16)), random)

    return Case(net, drawn(n), drawn(n), drawn(n), _sites(n, random), random)


def _sites(n: int, random: torch.Generator, num: int = SITES) -> np.ndarray:
    return torch.randint(num, (n,), generator=random).numpy()


def real(name: str, seed: int, redrawn: bool = True) -> Case:
    net, test, val, train = trained(name, seed % 20)
    random = torch.Generator().manual_seed(seed)
    if redrawn:
        test, val = (labelled(net, part[0], random) for part in (test, val))
    return Case(net, test, val, train, _sites(len(test[1]), random, 2), random)


@cache
def trained(name: str, seed: int) -> tuple[nn.Module, Pair, Pair, Pair]:
    """Return a network with a temperature, and its test, validation and training set."""
    from sklearn import datasets

    load, sizes = {
        "digits": (datasets.load_digits, (600, 297)),
        "breast cancer": (datasets.load_breast_cancer, (140, 129)),
    }[name]
    x, y = (torch.as_tensor(part) for part in load(return_X_y=True))
    random = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(y), generator=random)
    train, val, test = order.tensor_split([sizes[0], sum(sizes)])
    x = ((x - x[train].mean(0)) / x[train].std(0).clamp_min(0.1)).float()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = perceptron(x.shape[1], int(y.max()) + 1)
        optimiser = torch.optim.AdamW(net.parameters(), lr=0.01, weight_decay=0.05)
        for _ in range(150):
            optimiser.zero_grad()
            nn.functional.cross_entropy(net(x[train]), y[train]).backward()
            optimiser.step()
    temperature = float(fit_temperature(net(x[val]).detach().log_softmax(-1), y[val]))
    with torch.no_grad():
        for tensor in net[2].parameters():
            tensor.div_(temperature)
    return net, (x[test], y[test]), (x[val], y[val]), (x[train], y[train])


Plant = Callable[[Case], tuple[Case, str]]


def overconfidence(case: Case) -> tuple[Case, str]:
    return replace(case, net=Changed(case.net, lambda x, z: 2.5 * z)), "overconfident"


def group(case: Case) -> tuple[Case, str]:
    """Labels of one group are drawn at a temperature of 3, which the network does not know."""
    x, y = case.test
    hot = torch.multinomial((case.net(x) / 3).softmax(-1).detach(), 1, generator=case.random)[:, 0]
    y = torch.where(torch.as_tensor(case.sites == 1), hot, y)
    return replace(case, test=(x, y)), "calibration of site=1"


def swap(case: Case) -> tuple[Case, str]:
    """The outputs of the first two classes change places."""

    def change(x: Tensor, z: Tensor) -> Tensor:
        return torch.cat([z[:, 1:2], z[:, :1], z[:, 2:]], 1)

    return replace(case, net=Changed(case.net, change)), "classes 0 and 1 confused"


def leak(case: Case) -> tuple[Case, str]:
    """3 % of the test rows are training rows."""
    (x, y), num = case.test, round(0.03 * len(case.test[1]))
    x, y = x.clone(), y.clone()
    x[:num], y[:num] = case.train[0][:num], case.train[1][:num]
    return replace(case, test=(x, y)), "leaked test rows"


def mislabel(case: Case) -> tuple[Case, str]:
    """3 % of the test rows have another label."""
    (x, y), num = case.test, round(0.03 * len(case.test[1]))
    classes = int(y.max()) + 1
    rows = torch.randperm(len(y), generator=case.random)[:num]
    y = y.clone()
    y[rows] = (y[rows] + torch.randint(1, classes, (num,), generator=case.random)) % classes
    return replace(case, test=(x, y)), "label errors"


def regression(case: Case) -> tuple[Case, str]:
    """The new version loses 2 % of the answers of a group."""
    x, y = case.test
    right = torch.as_tensor(case.sites == 2) & (case.net(x).argmax(-1) == y)
    num = round(0.02 * int((case.sites == 2).sum()))
    lost = x[right][:num, 0].tolist()  # a network knows them again by their first column

    def change(x: Tensor, z: Tensor) -> Tensor:
        chosen = torch.isin(x[:, 0], torch.tensor(lost))
        return torch.where(chosen[:, None], z.roll(1, 1), z)

    new = Changed(case.net, change)
    return replace(case, net=new, baseline=case.net), "regression of site=2"


def elsewhere(case: Case) -> tuple[Case, str]:
    """Inputs far away, of which the network is as sure as of its own."""
    return replace(case, ood={"far": 5.0 * case.test[0][:300]}), "accepts far"


def fragile(case: Case) -> tuple[Case, str]:
    """What varies from pixel to pixel makes it say the next class, as sure as ever."""

    def change(x: Tensor, z: Tensor) -> Tensor:
        rough = (x[..., 1:] - x[..., :-1]).abs().mean((1, 2, 3)) > 0.09
        return torch.where(rough[:, None], z.roll(1, 1), z)

    return replace(case, net=Changed(case.net, change)), "unnoticed gaussian_noise"


TABLE: dict[str, Plant] = {
    "overconfidence": overconfidence,
    "one miscalibrated group": group,
    "two classes swapped": swap,
    "3 % leaked test rows": leak,
    "3 % wrong labels": mislabel,
    "OOD accepted": elsewhere,
}
Source = tuple[Callable[[int], Case], int, dict[str, Plant | None]]
SOUND: dict[str, Plant | None] = {"sound": None}
SOURCES: dict[str, Source] = {
    "simulated tables": (simulated, 200, SOUND | TABLE),
    "simulated tables of 4,000 rows": (
        lambda seed: simulated(seed, 4000), 200, {"regression of 2 points in a group": regression},
    ),
    "simulated images": (images, 200, {**SOUND, "one corruption hurts unnoticed": fragile}),
    "digits": (lambda seed: real("digits", seed), 100, SOUND | TABLE),
    "breast cancer": (lambda seed: real("breast cancer", seed), 100, SOUND | TABLE),
    "digits, true labels": (lambda seed: real("digits", seed, False), 100, SOUND),
    "breast cancer, true labels": (lambda seed: real("breast cancer", seed, False), 100, SOUND),
}  # fmt: skip


def measure(source: str, defect: str, share: float = 1.0) -> dict[str, Any]:
    """Audit networks with one defect, or sound ones, and count what is named."""
    make, num, plants = SOURCES[source]
    num, plant = max(1, round(share * num)), plants[defect]
    named = first = alarmed = clean = 0
    names: Counter[str] = Counter()
    started = time.process_time()
    for seed in range(num):
        case, wanted = make(seed), ""
        if plant is not None:
            case, wanted = plant(replace(case, baseline=None))
        problems = [finding.name for finding in case.audit(seed).problems]
        named += wanted in problems
        first += problems[:1] == [wanted]
        alarmed += bool(problems)
        clean += any(not name.startswith("unnoticed ") for name in problems)
        names.update(problems)
    row = {
        "source": source, "defect": defect, "audits": num, "rows": len(case.sites),
        "named": named, "first": first, "alarmed": alarmed, "clean": clean,
        "names": dict(names.most_common(8)),
        "seconds": round((time.process_time() - started) / num, 3),
    }  # fmt: skip
    print(json.dumps(row), flush=True)
    return row


def power(n: int, churn: float, points: float = 0.02) -> float:
    """Return with which probability losses of `points` among n are named, beside churn."""
    threshold = 0.05 / TESTS
    rng = np.random.default_rng(0)
    losses, gains, _ = rng.multinomial(
        n, [points + churn, churn, 1 - points - 2 * churn], 20_000
    ).T  # fmt: skip
    return float((binom.sf(losses - 1, losses + gains, 0.5) <= threshold).mean())


def main() -> None:
    """Measure all sources and defects, or those that are named, and write what there is of all."""
    torch.set_num_threads(1)
    words = sys.argv[1:]
    shares = [float(word) for word in words if word[0].isdigit() and "%" not in word]
    for source in [word for word in words if word in SOURCES] or SOURCES:
        defects = list(SOURCES[source][2])
        chosen = [defect for defect in defects if defect in words] or defects
        rows = [measure(source, defect, *shares) for defect in chosen]
        held = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
        held = [r for r in held if r["source"] != source or r["defect"] not in chosen] + rows
        held.sort(key=_place)
        powers = [
            {"n": n, "churn": churn, "power": power(n, churn)}
            for churn in (0.0, 0.01, 0.02)
            for n in (500, 1000, 2000, 4000, 8000)
        ]
        RESULTS.write_text(json.dumps({"rows": held, "power": powers}, indent=1) + "\n")


def _place(row: dict[str, Any]) -> tuple[int, int]:
    source = list(SOURCES).index(row["source"])
    return source, list(SOURCES[row["source"]][2]).index(row["defect"])


if __name__ == "__main__":
    main()
