"""The theorem itself: toy curves, the Ising model, partial augmentation, the cross product.

Finite ensembles beside the infinite one in closed form: members train as stacks, on the loss and
with the parametrisation of `InfiniteEnsemble`, so that its predictions have no free parameter. The
talk shows figures only; what is not in it is our choice here: networks have two hidden layers of
ReLUs with σ_w² = 2 (a last layer of σ_w = 1) in NTK parametrisation, trained by full-batch gradient
descent on squared errors.

- toy: an even function on [−2, 2], ten points and their mirror images, one hidden layer, biases of
  σ_b = 1;
- Ising: periodic 5×5 lattices of uniform spins, energy per bond direction, standardised; out of
  distribution: sites from N(0, 1);
- partial augmentation: other sets of rotations of the same lattices, at infinite width;
- cross product: two vectors from N(0, 1), rotations of a regular solid; out of distribution:
  vectors twice as long; `continuous` are 20 rotations from the Haar measure.

Shapes: `M` members, `G` elements of the group, `N` inputs, `K` outputs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from polymode.core.rng import fold, generator
from polymode.equivariance.groups import Group, group
from polymode.equivariance.infinite_ensemble import InfiniteEnsemble
from polymode.equivariance.kernels import Dense, ReLU, Serial
from polymode.examinations import Findings, measure
from polymode.stack.stack import Stack

TOGETHER = 2**23  # parameters of the members that are trained together
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


class Members(NamedTuple):
    """How wide the members of a finite ensemble are, and how many there are."""

    width: int
    num_modes: int


def half_squares(outputs: Tensor, y: Tensor, extra: Mapping[str, Tensor]) -> Tensor:
    """Return the mean over examples of half the squared error, for each member."""
    return (outputs - y).square().sum(-1).mean(-1) / 2


def trained(
    limit: InfiniteEnsemble,
    members: Members,
    new: Tensor,
    steps: Sequence[int],
    seed: int,
    execution: str = "auto",
) -> dict[int, Tensor]:
    """Return outputs (M, N, K) at `new` after each of `steps` of gradient descent.

    Args:
        limit: what the members are a finite sample of: network, data, learning rate.
        steps: rising; 0 is the initialisation.
    """
    x, y = limit.x.float(), limit.y.float()
    shape, outputs = tuple(x.shape[1:]), y.shape[1]
    net = limit.kernel.network(shape, members.width, outputs)
    together = max(1, TOGETHER // sum(p.numel() for p in net.parameters()))
    parts: dict[int, list[Tensor]] = {step: [] for step in steps}
    for number, start in enumerate(range(0, members.num_modes, together)):
        stack = Stack(
            lambda: limit.kernel.network(shape, members.width, outputs),
            min(together, members.num_modes - start),
            seed=fold(seed, "members", number),
            execution=execution,
        )
        for step in range(max(steps) + 1):
            if step in parts:
                with torch.no_grad():
                    parts[step].append(stack(new.float()).double())
            if step < max(steps):
                stack.gradients(half_squares, x, y)
                with torch.no_grad():
                    for leaf in stack.leaves():
                        assert leaf.grad is not None
                        leaf.add_(leaf.grad, alpha=-limit.lr)
    return {step: torch.cat(outputs) for step, outputs in parts.items()}


class Asymmetry(NamedTuple):
    """Mean squares of f(g x) − ρ(g) f(x) over inputs and g ≠ e.

    Attributes:
        member: of single members. ensemble: of their mean.
        infinite: of the mean of infinitely many such members, unbiased: what is left of `ensemble`
            without the part that is due to few members; it may be below 0.
    """

    member: float
    ensemble: float
    infinite: float


def over_orbits(values: Tensor, group: Group) -> Tensor:
    """Return outputs (M, G N, K) at an orbit, all g of the first input last, as (M, G, N, K)."""
    return values.view(len(values), len(group), -1, values.shape[-1])


def _apart(values: Tensor, group: Group) -> Tensor:
    """Return f(g x) − ρ(g) f(x) of each member for g ≠ e, (M, G − 1, N, K)."""
    outputs = over_orbits(values, group)
    moved = group.orbit_of_outputs(outputs[:, 0]).transpose(0, 1)
    return (outputs - moved)[:, 1:]


def mean_deviation(values: Tensor, group: Group) -> float:
    """Return the mean square of f(g x) − ρ(g) f(x) for the mean of outputs (M, G N, K)."""
    return float(_apart(values, group).mean(0).square().sum(-1).mean())


def asymmetry(values: Tensor, group: Group) -> Asymmetry:
    """Return how far outputs (M, G N, K) at the orbits of N inputs are from equivariant."""
    apart = _apart(values, group)
    mean = apart.mean(0)
    ensemble = float(mean.square().sum(-1).mean())
    spread = float((apart - mean).square().sum(0).sum(-1).mean()) / (len(values) - 1)
    return Asymmetry(
        float(apart.square().sum(-1).mean()), ensemble, ensemble - spread / len(values)
    )


def orbit_spread(values: Tensor, group: Group) -> tuple[float, float]:
    """Return the root mean squares, over inputs, of the standard deviation over the orbit and of
    the mean over it, for the mean of outputs (M, G N, 1)."""
    mean = over_orbits(values, group).mean(0)
    return (
        float(mean.var(0, correction=0).mean().sqrt()),
        float(mean.mean(0).square().mean().sqrt()),
    )


def predicted_spread(
    limit: InfiniteEnsemble, x: Tensor, group: Group, t: int, num_modes: float
) -> tuple[float, float]:
    """Return the same, expected of ensembles of infinite width with invariant outputs."""
    predicted = limit.non_invariance(x, group, t)
    at = limit.at(group.orbit(x).flatten(0, 1))
    mean = at.mean(t).view(len(group), -1)
    part = (len(group) - 1) / (2 * len(group))
    apart = part * float(predicted.variance[1:].mean())  # variance of a member over its orbit
    shared = float(at.variance(t).mean()) - apart
    over = mean.var(0, correction=0).mean() + apart / num_modes
    return float(over.sqrt()), float((mean.mean(0).square().mean() + shared / num_modes).sqrt())


def network(bias_std: float, hidden: int = 2) -> Serial:
    """Return so many hidden layers of ReLUs, and a last layer."""
    layers = [layer for _ in range(hidden) for layer in (Dense(math.sqrt(2), bias_std), ReLU())]
    return Serial(*layers, Dense(1.0, bias_std))


def rows_of(
    limit: InfiniteEnsemble, values: Tensor, new: Tensor, acting: Any, t: int, name: str
) -> list[Any]:
    """Return deviations of members, ensemble and its infinite limits, as root mean squares."""
    measured, predicted = asymmetry(values, acting), limit.non_invariance(new, acting, t)
    num_modes, n = len(values), len(new) * (len(acting) - 1)
    rows = {
        "member": math.sqrt(measured.member),
        "ensemble": math.sqrt(measured.ensemble),
        "member_predicted": predicted.deviation(1),
        "ensemble_predicted": predicted.deviation(num_modes),
        "closed_form": predicted.deviation(),
        "left_over": measured.infinite / measured.member,
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
    limit = InfiniteEnsemble(kernel, x, truth(x), lr=lr, group=acting, dynamics="steps")
    grid = torch.linspace(0.025, 3, 60, dtype=torch.float64)[:, None]
    orbit = acting.orbit(grid).flatten(0, 1)
    values = trained(limit, Members(width, num_modes), orbit, steps, seed)
    order = orbit[:, 0].argsort()
    arrays = {"x": orbit[order, 0].numpy(), "truth": truth(orbit[order])[:, 0].numpy()}
    rows = [measure("learning_rate", lr, n=1)]
    at = limit.at(orbit)
    for step, outputs in values.items():
        rows += rows_of(limit, outputs, grid, acting, step, f"step_{step}")
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
    limit = InfiniteEnsemble(network(0.1), x, y, lr=lr, group=acting, dynamics="steps")
    rows: list[Any] = []
    if width == 0:
        for name, new in sets.items():
            for size in (*sizes, math.inf):
                spread, mean = predicted_spread(limit, new, acting, steps, size)
                label = "infinite" if math.isinf(size) else str(size)
                rows.append(measure(f"{name}_orbit_std_{label}", spread, n=num_test))
                rows.append(measure(f"{name}_relative_{label}", spread / mean, n=num_test))
            needed = limit.non_invariance(new, acting, steps).members_needed(0.05)
            rows.append(measure(f"{name}_members_for_0.05", needed, n=num_test))
            rms = float(limit.mean(new, steps).square().mean().sqrt())
            rows.append(measure(f"{name}_mean_rms", rms, n=num_test))
        return Findings(tuple(rows))
    orbits = {name: acting.orbit(new).flatten(0, 1) for name, new in sets.items()}
    values = trained(
        limit, Members(width, num_modes), torch.cat(list(orbits.values())), (steps,), seed
    )
    parts = values[steps].split([len(orbit) for orbit in orbits.values()], 1)
    for (name, new), outputs in zip(sets.items(), parts, strict=True):
        rows += rows_of(limit, outputs, new, acting, steps, name)
        predicted = limit.non_invariance(new, acting, steps)
        for size in (n for n in sizes if n <= num_modes):
            subsets = outputs[: num_modes - num_modes % size].split(size)
            apart = np.sqrt(np.mean([mean_deviation(subset, acting) for subset in subsets]))
            rows.append(measure(f"{name}_deviation_{size}", apart, n=len(subsets)))
            expected = predicted.deviation(size)
            rows.append(measure(f"{name}_predicted_{size}", expected, n=num_test))
            spread, mean = np.array([orbit_spread(subset, acting) for subset in subsets]).T
            for metric, numbers in (("orbit_std", spread), ("relative", spread / mean)):
                n, key = len(numbers), f"{name}_{metric}_{size}"
                error = numbers.std(ddof=1) / math.sqrt(n) if n > 1 else None
                rows.append(measure(key, numbers.mean(), n=n, standard_error=error))
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
    limit = InfiniteEnsemble(network(0.1), inputs, targets, lr=1.0)
    rows = []
    for name, new in sets.items():
        at = limit.at(acting.orbit(new).flatten(0, 1))
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
    limit = InfiniteEnsemble(kernel, x, y, lr=lr, group=acting, dynamics="steps")
    rows = [measure("learning_rate", lr, n=1)]
    acts = {"solid": acting, "continuous": continuous}
    cells = [(name, where) for name in sets for where in acts]
    orbits = [acts[where].orbit(sets[name]).flatten(0, 1) for name, where in cells]
    values: Any = [None] * len(cells)
    if num_modes:
        outputs = trained(limit, Members(width, num_modes), torch.cat(orbits), (steps,), seed)
        values = outputs[steps].split([len(orbit) for orbit in orbits], 1)
    for (name, where), outputs in zip(cells, values, strict=True):
        title = f"{name}_{where}"
        if outputs is None:
            bias = limit.non_invariance(sets[name], acts[where], steps).deviation()
            rows.append(measure(f"{title}_closed_form", bias, n=num_test))
        else:
            rows += rows_of(limit, outputs, sets[name], acts[where], steps, title)
    for name, inputs in sets.items():
        size = float(limit.mean(inputs, steps).square().sum(-1).mean().sqrt())
        rows.append(measure(f"{name}_mean_rms", size, n=num_test))
    return Findings(tuple(rows))
