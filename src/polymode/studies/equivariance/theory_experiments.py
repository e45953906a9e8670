"""The theorem itself: toy curves, the Ising model, partial augmentation, the cross product.

Finite ensembles beside the infinite one in closed form. The talk shows figures only; what is not
in it is our choice here: networks have two hidden layers of ReLUs with σ_w² = 2 (a last layer of
σ_w = 1) in NTK parametrisation, trained by full-batch gradient descent on squared errors.

- toy: an even function on [−2, 2], ten points and their mirror images, one hidden layer, biases of
  σ_b = 1;
- Ising: periodic 5×5 lattices of uniform spins, energy per bond direction, standardised; out of
  distribution: sites from N(0, 1);
- partial augmentation: other sets of rotations of the same lattices, at infinite width;
- cross product: two vectors from N(0, 1), rotations of a regular solid; out of distribution:
  vectors twice as long; `continuous` are 20 rotations from the Haar measure.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polymode.core.rng import generator
from polymode.equivariance.groups import group
from polymode.equivariance.infinite_ensemble import InfiniteEnsemble
from polymode.equivariance.kernels import Dense, ReLU, Serial
from polymode.examinations import Findings, measure
from polymode.studies.equivariance.ensembles import (
    asymmetry,
    mean_deviation,
    orbit_spread,
    predicted_spread,
    trained,
)

STEPS = (0, 1, 2, 3, 2000)  # those of the talk
SIDE = 5
SETS = {
    "none": [0],
    "0°, 180°": [0, 2],
    "0°, 90°": [0, 1],
    "0°, 90°, 180°": [0, 1, 2],
    "one at random": None,
    "all four": [0, 1, 2, 3],
}


def network(bias_std: float, hidden: int = 2) -> Serial:
    """Return so many hidden layers of ReLUs, and a last layer."""
    layers = [each for _ in range(hidden) for each in (Dense(math.sqrt(2), bias_std), ReLU())]
    return Serial(*layers, Dense(1.0, bias_std))


def rows_of(
    whole: InfiniteEnsemble, values: Tensor, new: Tensor, acting: Any, t: int, name: str
) -> list[Any]:
    """Return deviations of members, ensemble and its infinite limits, as root mean squares."""
    found, predicted = asymmetry(values, acting), whole.non_invariance(new, acting, t)
    num_modes, n = len(values), len(new) * (len(acting) - 1)
    rows = {
        "member": math.sqrt(found.member),
        "ensemble": math.sqrt(found.ensemble),
        "member_predicted": predicted.deviation(1),
        "ensemble_predicted": predicted.deviation(num_modes),
        "closed_form": predicted.deviation(),
        "left_over": found.infinite / found.member,
    }
    return [measure(f"{name}_{key}", value, n=n) for key, value in rows.items()]


def toy(
    seed: int, *, width: int = 512, num_modes: int = 100, steps: tuple[int, ...] = STEPS
) -> Findings:
    """Curves of a member, the ensemble's mean and the closed form, of x and −x.

    The grid goes to ±3, a third of it outside of the data.
    """
    acting, stream = group("sign"), generator(seed, "equivariance", "toy")
    x = 2 * torch.rand(10, 1, generator=stream, dtype=torch.float64)
    kernel = network(1.0, hidden=1)
    about = InfiniteEnsemble(kernel, x, truth(x), lr=1.0, group=acting)
    lr = 0.5 * about.max_lr
    whole = InfiniteEnsemble(kernel, x, truth(x), lr=lr, group=acting, dynamics="steps")
    grid = torch.linspace(0.025, 3, 60, dtype=torch.float64)[:, None]
    orbit = acting.orbit(grid).flatten(0, 1)
    values = trained(whole, width, num_modes, orbit, steps, seed)
    order = orbit[:, 0].argsort()
    arrays = {"x": orbit[order, 0].numpy(), "truth": truth(orbit[order])[:, 0].numpy()}
    rows = [measure("learning_rate", lr, n=1)]
    at = whole.at(orbit)
    for step, outputs in values.items():
        rows += rows_of(whole, outputs, grid, acting, step, f"step_{step}")
        mean, exact = outputs.mean(0)[:, 0], at.mean(step)[:, 0]
        apart = (mean - exact).square().mean().sqrt()
        expected = (at.variance(step).mean() / len(outputs)).sqrt()
        for name, value in (("from_closed_form", apart), ("from_closed_form_expected", expected)):
            rows.append(measure(f"step_{step}_{name}", float(value), n=len(orbit)))
        arrays |= {
            f"member_{step}": outputs[0, order, 0].numpy(),
            f"mean_{step}": mean[order].numpy(),
            f"closed_{step}": exact[order].numpy(),
        }
    return Findings(tuple(rows), arrays)


def truth(x: Tensor) -> Tensor:
    """Return the even function of the toy."""
    return torch.cos(2 * x) + x.square() / 4 - 0.5


def lattices(number: int, stream: torch.Generator) -> Tensor:
    """Return uniform spins (N, 25) of ±1."""
    drawn = torch.randint(0, 2, (number, SIDE * SIDE), generator=stream)
    return (2 * drawn - 1).double()


def energy(spins: Tensor) -> Tensor:
    """Return −Σ s s' over neighbours of a periodic lattice, with variance 1 for uniform spins."""
    grid = spins.view(-1, SIDE, SIDE)
    bonds = grid * grid.roll(1, 1) + grid * grid.roll(1, 2)
    return -bonds.sum((1, 2)) / math.sqrt(2 * SIDE * SIDE)


def _ising(seed: int, num_train: int, num_test: int) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    stream = generator(seed, "equivariance", "ising")
    x = lattices(num_train, stream)
    id_inputs = lattices(num_test, stream)
    noise = torch.randn(num_test, SIDE * SIDE, generator=stream, dtype=torch.float64)
    return x, energy(x), {"id": id_inputs, "ood": noise}


def ising(
    seed: int,
    *,
    width: int = 512,
    num_modes: int = 120,
    num_train: int = 32,
    num_test: int = 50,
    steps: int = 50,
    lr: float = 1.0,
    sizes: tuple[int, ...] = (1, 2, 5, 10, 20, 40, 120),
) -> Findings:
    """Energies of lattices on orbits of C4: spread over the orbit by the number of members.

    With `width` 0, the closed form: what is expected of ensembles of infinite width. Sub-ensembles
    have no member in common.
    """
    acting = group("C4", lattice=SIDE)
    x, y, sets = _ising(seed, num_train, num_test)
    whole = InfiniteEnsemble(network(0.1), x, y, lr=lr, group=acting, dynamics="steps")
    rows: list[Any] = []
    if width == 0:
        for name, new in sets.items():
            for size in (*sizes, math.inf):
                spread, mean = predicted_spread(whole, new, acting, steps, size)
                label = "infinite" if math.isinf(size) else str(size)
                rows.append(measure(f"{name}_orbit_std_{label}", spread, n=num_test))
                rows.append(measure(f"{name}_relative_{label}", spread / mean, n=num_test))
            needed = whole.non_invariance(new, acting, steps).members_needed(0.05)
            rows.append(measure(f"{name}_members_for_0.05", needed, n=num_test))
            rms = float(whole.mean(new, steps).square().mean().sqrt())
            rows.append(measure(f"{name}_mean_rms", rms, n=num_test))
        return Findings(tuple(rows))
    orbits = {name: acting.orbit(new).flatten(0, 1) for name, new in sets.items()}
    values = trained(whole, width, num_modes, torch.cat(list(orbits.values())), (steps,), seed)
    parts = values[steps].split([len(each) for each in orbits.values()], 1)
    for (name, new), outputs in zip(sets.items(), parts, strict=True):
        rows += rows_of(whole, outputs, new, acting, steps, name)
        predicted = whole.non_invariance(new, acting, steps)
        for size in (each for each in sizes if each <= num_modes):
            subsets = outputs[: num_modes - num_modes % size].split(size)
            apart = np.sqrt(np.mean([mean_deviation(each, acting) for each in subsets]))
            rows.append(measure(f"{name}_deviation_{size}", apart, n=len(subsets)))
            expected = predicted.deviation(size)
            rows.append(measure(f"{name}_predicted_{size}", expected, n=num_test))
            found = np.array([orbit_spread(each, acting) for each in subsets])
            relative = found[:, 0] / found[:, 1]
            for metric, each in (("orbit_std", found[:, 0]), ("relative", relative)):
                error = each.std(ddof=1) / math.sqrt(len(each)) if len(each) > 1 else None
                rows.append(
                    measure(
                        f"{name}_{metric}_{size}", each.mean(), n=len(each), standard_error=error
                    )
                )
    return Findings(tuple(rows))


def partial(
    seed: int,
    *,
    rotations: str = "all four",
    num_train: int = 64,
    num_test: int = 200,
    times: tuple[int, ...] = (1, 10, 100, 1000, 10_000),
) -> Findings:
    """The infinite ensemble with some of the rotations: spread over the orbit of C4, for all t."""
    acting = group("C4", lattice=SIDE)
    x, y, sets = _ising(seed, num_train, num_test)
    chosen = SETS[rotations]
    if chosen is None:
        stream = generator(seed, "equivariance", "partial")
        inputs = acting.act_each(x, torch.randint(0, 4, (len(x),), generator=stream))
        targets = y
    else:
        inputs = acting.orbit(x)[chosen].flatten(0, 1)
        targets = y.repeat(len(chosen))
    whole = InfiniteEnsemble(network(0.1), inputs, targets, lr=1.0)
    rows = []
    for name, new in sets.items():
        at = whole.at(acting.orbit(new).flatten(0, 1))
        for t in times:
            mean = at.mean(t)[None]
            spread, size = orbit_spread(mean, acting)
            rows.append(measure(f"{name}_orbit_std_{t}", spread, n=num_test))
            rows.append(measure(f"{name}_relative_{t}", spread / size, n=num_test))
    return Findings(tuple(rows))


def cross_product(
    seed: int,
    *,
    solid: str = "tetrahedral",
    width: int = 512,
    num_modes: int = 40,
    num_train: int = 24,
    num_test: int = 30,
    steps: int = 60,
) -> Findings:
    """a × b, equivariant outputs: trained on rotations of a solid, seen at these and at others.

    With `num_modes` 0 only the closed form, by which finer sets of rotations can be compared.
    """
    acting = group(f"SO3-{solid}", output="input")
    continuous = group(f"SO3-haar-21-{seed}", output="input")
    stream = generator(seed, "equivariance", "cross")
    x, new = (
        torch.randn(n, 6, generator=stream, dtype=torch.float64) for n in (num_train, num_test)
    )
    sets = {"id": new, "ood": 2 * new.roll(1, 0)}
    kernel = network(0.1)
    y = torch.linalg.cross(x[:, :3], x[:, 3:])
    about = InfiniteEnsemble(kernel, x, y, lr=1.0, group=acting)
    lr = min(1.0, 0.5 * about.max_lr)
    whole = InfiniteEnsemble(kernel, x, y, lr=lr, group=acting, dynamics="steps")
    rows = [measure("learning_rate", lr, n=1)]
    acts = {"solid": acting, "continuous": continuous}
    cells = [(name, where) for name in sets for where in acts]
    orbits = [acts[where].orbit(sets[name]).flatten(0, 1) for name, where in cells]
    values: Any = [None] * len(cells)
    if num_modes:
        found = trained(whole, width, num_modes, torch.cat(orbits), (steps,), seed)[steps]
        values = found.split([len(each) for each in orbits], 1)
    for (name, where), outputs in zip(cells, values, strict=True):
        title = f"{name}_{where}"
        if outputs is None:
            bias = whole.non_invariance(sets[name], acts[where], steps).deviation()
            rows.append(measure(f"{title}_closed_form", bias, n=num_test))
        else:
            rows += rows_of(whole, outputs, sets[name], acts[where], steps, title)
    for name, inputs in sets.items():
        size = float(whole.mean(inputs, steps).square().sum(-1).mean().sqrt())
        rows.append(measure(f"{name}_mean_rms", size, n=num_test))
    return Findings(tuple(rows))
