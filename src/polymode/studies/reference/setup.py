"""The parts of the study by preset.

`energy_gap`: UCI energy, the gap split by its first feature (512 examples to train on, 256 between
them to test on), an MLP 8-50-2 with ReLUs whose second output is the noise, prior variance 1/30 on
all parameters: the regression of the NeurIPS 2021 competition. Which gap the competition took is
not said. `plane`: two half moons that overlap (noise 0.3), 100 examples, an MLP 2-20-2, prior
variance 1; OOD inputs are a far ring.

smoke: two toys in place of both, a few steps of everything. cpu: 3 seeds. paper: the competition's
network on all eight gap splits, longer chains, 5 seeds.

Every family has the same training: Adam for so many steps, or as many steps of its own chain. One
mode is one network or chain, many are ten. Rates of chains were set by the stability of the first
steps, not by the distance to the reference.

HMC on the energy gap has the identity as its mass. Curvatures at a maximum range from the prior's
30 to 4·10⁷ and differ from place to place, so that a mass learned at some places is wrong at
others. In trials of about a minute with four chains no other choice was better: all had 7 to 13
effective draws of a typical prediction, with the identity, the variances, the diagonal or the whole
of the mean Fisher matrix as mass, and with microcanonical steps.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from polymode.methods import METHODS
from polymode.runs.part import Arm, Part

MODES = 10
GAPS = 8
MOONS = {"noise": 0.3, "num_train": 100}


class Family(NamedTuple):
    """A method as a line of the tables.

    Attributes:
        method: its name.
        single, many: names of its arms with one mode and with `MODES`; "" for none.
        options: its own. net_options: of its networks.
    """

    method: str
    single: str
    many: str
    options: dict[str, Any] = {}
    net_options: dict[str, Any] = {}


class Sizes(NamedTuple):
    """What a preset gives a part: epochs of training and of chains, samples per mode, options of
    the reference, trajectories and leapfrog steps of the shorter run of `hmc`, and its mass."""

    epochs: int
    chain_epochs: int
    samples: int
    reference: str
    hmc: tuple[int, int]
    modes: int = MODES
    mass: str = "diagonal"


def families(epochs: int, chain_epochs: int, samples: int, rate: float) -> list[Family]:
    """Return the families; close relatives of others are left out.

    Args:
        epochs: of training. chain_epochs: of chains and of what collects along a way.
        samples: L per mode, of families that draw or sample.
        rate: `lr` of the chains on batches.
    """
    adam = {"epochs": epochs, "optimizer": "adam", "lr": 1e-2, "schedule": "cosine"}
    steady = {"epochs": chain_epochs, "samples_per_mode": samples}
    chain = {**steady, "lr": rate, "step_limit": None}
    cycles = {"epochs": chain_epochs, "num_cycles": 5}
    drawn = {**adam, "epochs": chain_epochs, "samples_per_mode": samples}
    every = [
        Family("map", "MAP", "", adam),
        Family("deep_ensemble", "", "deep ensemble", adam),
        Family("weight_rde", "", "weight-RDE", adam),
        Family("function_rde", "", "function-RDE", adam),
        Family("forde", "", "FoRDE", adam),
        Family("dropout", "dropout", "dropout × {}", drawn, {"dropout": 0.05}),
        Family("swag", "SWAG", "MultiSWAG",
               {**steady, "optimizer": "sgd", "momentum": 0.9, "lr": rate, "clip_norm": None}),
        Family("checkpoint_ensemble", "checkpoints", "checkpoints × {}",
               {**adam, "samples_per_mode": samples}),
        Family("snapshot", "snapshots", "snapshots × {}", {**cycles, **_snapshot(rate)}),
        Family("sgld", "SGLD", "SGLD × {}", chain),
        Family("sghmc", "SGHMC", "SGHMC × {}", chain),
        Family("sgnht", "SGNHT", "SGNHT × {}", chain),
        Family("cyclical_sgmcmc", "cSG-MCMC", "cSG-MCMC × {}",
               {**cycles, "lr": 4 * rate, "samples_per_cycle": samples // 5, "exploration": 0.8,
                "step_limit": None, "clip_norm": None}),
        Family("vi", "mean-field VI", "mean-field VI × {}", {**drawn, "std_lr": 0.01}),
        Family("ivon", "IVON", "IVON × {}", {**steady, "clip_radius": None}),
        Family("laplace", "Laplace", "Laplace × {}", {**adam, "samples_per_mode": samples}),
        Family("mile", "MILE, one chain", "MILE", drawn),
    ]  # fmt: skip
    return [family for family in every if family.method in METHODS.names()]


def _snapshot(rate: float) -> dict[str, Any]:
    return {"optimizer": "sgd", "momentum": 0.9, "lr": 4 * rate, "clip_norm": None}


def arms(sizes: Sizes, rate: float, precision: float, batch_size: int) -> dict[str, Arm]:
    """Return all arms, those of one mode before those of many."""
    every = families(sizes.epochs, sizes.chain_epochs, sizes.samples, rate)
    arms: dict[str, Arm] = {}
    for name, modes in (("single", 1), ("many", sizes.modes)):
        for family in every:
            label = getattr(family, name).format(sizes.modes)
            if label:
                options = {
                    "batch_size": batch_size, **family.options, "prior_precision": precision,
                    "num_modes": modes,
                }  # fmt: skip
                arms[label] = Arm(family.method, options, family.net_options)
    trajectories, steps = sizes.hmc
    chains: dict[str, Any] = {
        "num_modes": 4, "epochs": trajectories, "leapfrog_steps": steps, "lr": 1e-3,
        "samples_per_mode": min(50, trajectories // 2), "prior_precision": precision,
    }  # fmt: skip
    if sizes.mass != Sizes._field_defaults["mass"]:
        chains["mass"] = sizes.mass
    arms["HMC, shorter"] = Arm("hmc", chains)
    return arms


def parts(preset: str) -> dict[str, Part]:
    """Return the parts of a preset."""
    return {"smoke": _smoke, "cpu": _cpu, "paper": _paper}[preset]()


def _smoke() -> dict[str, Part]:
    reference = "chains=2,trajectories=12,leapfrog_steps=3,draws=4"
    sizes = Sizes(2, 10, samples=5, modes=2, reference=reference, hmc=(8, 2))
    curve = arms(sizes, rate=1e-4, precision=1.0, batch_size=64)
    plane = arms(sizes, rate=1e-2, precision=1.0, batch_size=50)
    return {
        "gap_regression": _part("gap_regression", {}, [5], curve, 2, sizes),
        "plane": _part("two_moons", MOONS, [5], plane, 2, sizes),
    }


def _cpu() -> dict[str, Part]:
    energy = Sizes(500, 2000, samples=20, reference=ENERGY, hmc=(200, 500), mass=EVEN)
    plane = Sizes(400, 2000, samples=20, reference=PLANE, hmc=(400, 50))
    return {
        "energy_gap": _energy(0, energy, 3),
        "plane": _plane(plane, 3),
    }


def _paper() -> dict[str, Part]:
    longer = f"chains=8,trajectories=10000,leapfrog_steps=3000,draws=250,mass={EVEN}"
    energy = Sizes(5000, 20_000, samples=50, reference=longer, hmc=(1000, 2000), mass=EVEN)
    fine = "chains=8,trajectories=10000,leapfrog_steps=100,draws=250"
    plane = Sizes(1000, 5000, samples=50, reference=fine, hmc=(2000, 100))
    every = {f"energy_gap_{gap}": _energy(gap, energy, 5) for gap in range(GAPS)}
    return {**every, "plane": _plane(plane, 5)}


EVEN = "identity"
ENERGY = f"chains=8,trajectories=700,leapfrog_steps=1500,draws=40,mass={EVEN}"
PLANE = "chains=8,trajectories=2000,leapfrog_steps=50,draws=50"


STIFF: dict[str, dict[str, Any]] = {
    "snapshot": {"optimizer": "adam", "momentum": 0.0, "lr": 1e-2},
    "cyclical_sgmcmc": {"lr": 3e-4},
    "ivon": {"lr": 0.1, "hessian_init": 10.0},
}
"""Where the noise is an output: with the rates of elsewhere these methods leave the data for good.

Found by the NLL of the training data.
"""


def _energy(gap: int, sizes: Sizes, seeds: int) -> Part:
    options = {"gap": gap, "val_fraction": 0.0, "noise": "output"}
    every = arms(sizes, rate=1e-3, precision=30.0, batch_size=128)
    for arm in every.values():
        arm.options.update(STIFF.get(arm.method, {}))
    return _part("uci_energy", options, [50], every, seeds, sizes)


def _plane(sizes: Sizes, seeds: int) -> Part:
    every = arms(sizes, rate=0.05, precision=1.0, batch_size=50)
    return _part("two_moons", MOONS, [20], every, seeds, sizes)


def _part(
    task: str,
    options: dict[str, Any],
    hidden: list[int],
    every: dict[str, Arm],
    seeds: int,
    sizes: Sizes,
) -> Part:
    width = ", ".join(map(str, hidden))
    return Part(
        task=task, task_options=options, net="mlp", net_options={"hidden": hidden}, arms=every,
        seeds=tuple(range(seeds)),
        examine=(f"reference:{sizes.reference},net=mlp,hidden=[{width}]",),
    )  # fmt: skip
