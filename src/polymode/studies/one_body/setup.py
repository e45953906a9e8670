"""The parts of the study by preset.

A part is one data set behind a body, a number of labels per class and a head: `images` has a linear
head and all methods, `tissue` and `sentences`, and `..._few` and `..._many` with ten times fewer
and more labels, at preset cpu some of them, `..._small_head` a head with one hidden layer.
`..._prior` has two methods with λ on a grid that "auto" does not look at.

λ of linear heads is "auto", the evidence of the training data, for all methods; small heads have
one number for all, that of the least NLL of an ensemble on the validation examples of `images`
among 1, 3, 10, 30 and 100. All arms of a part have the same reference: HMC with that λ.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from polymode.methods import METHODS
from polymode.runs.part import Arm, Part

MODES = 5
AUTO = "auto"
SMALL_PRIOR = 30.0
HMC = "HMC, another chain"
LAPLACE = "Laplace, full"
ENSEMBLE = "deep ensemble"
GRID = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
CURVE = ("MAP", ENSEMBLE, LAPLACE, "IVON", "mean-field VI", HMC)
"""Arms that are run with few labels and many, too."""

SMALL_ARMS = (
    "MAP", "dropout", "SWAG", "VBLL", "SGHMC", "mean-field VI", "IVON", "Laplace, kron", "TFB",
    "MILE", HMC, ENSEMBLE, "packed", "BatchEnsemble", "TabM", "weight-RDE", "FoRDE",
    "feature-RDE", f"IVON × {MODES}", f"SGHMC × {MODES}",
)  # fmt: skip
"""Arms of small heads at preset cpu: one or two of each kind."""

DATA = {"images": "cifar10_subset", "tissue": "histology", "sentences": "pang_lee"}


class Sizes(NamedTuple):
    """What a preset gives a part.

    Attributes:
        epochs: of training. chain_epochs: of chains on batches. samples: L per mode.
        draws: of the chain of `HMC` and of `LAPLACE`, which are compared.
        trajectories: of that chain. reference: options of the reference.
    """

    epochs: int
    chain_epochs: int
    samples: int
    draws: int
    trajectories: int
    reference: str
    modes: int = MODES


def prior_arm(method: str, precision: float | str) -> str:
    """Return the name of an arm of `..._prior`.

    >>> prior_arm("MAP", 0.3), prior_arm("Laplace", "auto")
    ('MAP, λ = 0.3', 'Laplace, λ = auto')
    """
    number = precision if isinstance(precision, str) else f"{precision:g}"
    return f"{method}, λ = {number}"


def arms(sizes: Sizes, precision: float | str, small: bool) -> dict[str, Arm]:
    """Return all arms of a head, those of one mode before those of many."""
    trained = {
        "epochs": sizes.epochs, "optimizer": "adam", "lr": 1e-2, "schedule": "cosine",
        "batch_size": 100, "prior_precision": precision,
    }  # fmt: skip
    drawn = {**trained, "samples_per_mode": sizes.samples}
    steady = {
        "epochs": sizes.chain_epochs, "batch_size": 100, "prior_precision": precision,
        "samples_per_mode": sizes.samples,
    }  # fmt: skip
    plain = {**steady, "epochs": sizes.epochs}
    chain = {**steady, "lr": 0.1, "step_limit": None}
    laplace = {**trained, "samples_per_mode": sizes.draws, "structure": "full"}
    many = {"num_modes": sizes.modes}
    noisy = {"dropout": 0.1} if small else {"input_dropout": 0.1}
    by_name = {
        "MAP": Arm("map", trained),
        "dropout": Arm("dropout", drawn, noisy),
        "SWAG": Arm("swag", plain),
        "SWA": Arm("swa", trained),
        "EMA": Arm("ema", trained),
        "VBLL": Arm("vbll", drawn),
        "snapshots": Arm("snapshot", {"epochs": sizes.epochs, "batch_size": 100,
                                      "prior_precision": precision, "num_cycles": 5}),
        "checkpoints": Arm("checkpoint_ensemble", {**trained, "samples_per_mode": 5}),
        "SGLD": Arm("sgld", {**chain, "lr": 0.3}),
        "SGHMC": Arm("sghmc", chain),
        "SGNHT": Arm("sgnht", chain),
        "cSG-MCMC": Arm("cyclical_sgmcmc", {
            "epochs": sizes.chain_epochs, "batch_size": 100, "prior_precision": precision,
            "num_cycles": 5, "samples_per_cycle": max(1, sizes.samples // 5), "lr": 0.1,
            "step_limit": None}),
        "mean-field VI": Arm("vi", {**drawn, "std_lr": 0.01}),
        "IVON": Arm("ivon", {**plain, "epochs": 2 * sizes.epochs}),
        LAPLACE: Arm("laplace", laplace),
        "Laplace, kron": Arm("laplace", {**laplace, "structure": "kron"}),
        "Laplace, diag": Arm("laplace", {**laplace, "structure": "diag"}),
        "TFB": Arm("tfb", drawn),
        "MILE": Arm("mile", drawn),
        HMC: Arm("hmc", {
            "num_modes": 1, "epochs": sizes.trajectories, "leapfrog_steps": 10,
            "samples_per_mode": sizes.draws, "prior_precision": precision}),
        ENSEMBLE: Arm("deep_ensemble", {**trained, **many}),
        "weight-RDE": Arm("weight_rde", {**trained, **many}),
        "function-RDE": Arm("function_rde", {**trained, **many}),
        "FoRDE": Arm("forde", {**trained, **many}),
        "MultiSWAG": Arm("swag", {**plain, **many}),
        f"IVON × {sizes.modes}": Arm("ivon", {**plain, **many, "epochs": 2 * sizes.epochs}),
        f"SGHMC × {sizes.modes}": Arm("sghmc", {**chain, **many}),
        f"Laplace, kron × {sizes.modes}": Arm("laplace", {**laplace, **many, "structure": "kron"}),
    }  # fmt: skip
    if small:
        by_name["packed"] = Arm("packed", {**trained, **many})
        by_name["BatchEnsemble"] = Arm("batch_ensemble", {**trained, **many})
        by_name["TabM"] = Arm("tabm", {**trained, **many})
        by_name["feature-RDE"] = Arm("feature_rde", {**trained, **many})
    return {name: arm for name, arm in by_name.items() if arm.method in METHODS.names()}


def prior_arms(sizes: Sizes) -> dict[str, Arm]:
    """Return MAP and Laplace with λ on the grid and with "auto"."""
    all_arms = arms(sizes._replace(draws=min(sizes.draws, 100)), AUTO, small=False)
    names = {"MAP": "MAP", "Laplace": LAPLACE}
    return {
        prior_arm(short, precision): Arm(
            all_arms[name].method, {**all_arms[name].options, "prior_precision": precision}
        )
        for short, name in names.items()
        for precision in (*GRID, AUTO)
    }


def parts(preset: str) -> dict[str, Part]:
    """Return the parts of a preset."""
    return {"smoke": _smoke, "cpu": _cpu, "paper": _paper}[preset]()


def _smoke() -> dict[str, Part]:
    tiny = "chains=2,trajectories=12,draws=4,leapfrog_steps=3"
    sizes = Sizes(2, 10, samples=5, draws=5, trajectories=10, reference=tiny, modes=2)
    options = {"data": "digits", "per_class": 10, "num_test": 100}
    return {
        "images": _part(options, arms(sizes, AUTO, small=False), 2, sizes),
        "images_small_head": _part(
            options, arms(sizes, SMALL_PRIOR, small=True), 2, sizes, hidden=[8]
        ),
        "images_prior": _part(options, prior_arms(sizes), 2, None),
    }


LINEAR = "chains=4,draws=400,leapfrog_steps=10,trajectories=1600"
SHORT = "chains=4,draws=200,leapfrog_steps=10,trajectories=600"
SMALL = "chains=4,draws=400,leapfrog_steps=20,trajectories=2000"
SMALL_HEAD = [16]


def _cpu() -> dict[str, Part]:
    """Return the parts in the order of what they are needed for; of 10,000 images chains and
    trainings are shorter, in epochs."""
    sizes = Sizes(40, 300, samples=30, draws=400, trajectories=800, reference=LINEAR)
    short = Sizes(10, 60, samples=30, draws=200, trajectories=400, reference=SHORT)
    small = sizes._replace(reference=SMALL)
    heads = arms(sizes, AUTO, small=False)
    with_small = arms(small, SMALL_PRIOR, small=True)
    some_small = {name: with_small[name] for name in SMALL_ARMS if name in with_small}
    options = {"data": DATA["images"], "per_class": 100, "num_test": 1000}
    by_part = {"images": _part(options, heads, 5, sizes)}
    for name, count, some in (
        ("sentences", 100, sizes), ("sentences_many", 1000, sizes), ("sentences_few", 10, sizes),
        ("images_few", 10, sizes), ("tissue", 100, sizes), ("images_many", 1000, short),
    ):  # fmt: skip
        if name == "tissue":
            by_part["images_prior"] = _part(options, prior_arms(sizes), 5, None)
            by_part["images_small_head"] = _part(options, some_small, 5, small, hidden=SMALL_HEAD)
        every = arms(some, AUTO, small=False)
        chosen = {**options, "data": DATA[name.partition("_")[0]], "per_class": count}
        by_part[name] = _part(chosen, {arm: every[arm] for arm in CURVE}, 5, some)
    return by_part


def _paper() -> dict[str, Part]:
    """Return the parts with all methods everywhere, longer chains and ten seeds."""
    sizes = Sizes(
        200, 2000, samples=100, draws=1000, trajectories=4000,
        reference="chains=8,draws=1000,leapfrog_steps=10,trajectories=10000",
    )  # fmt: skip
    small = sizes._replace(reference="chains=8,draws=1000,leapfrog_steps=50,trajectories=20000")
    by_part: dict[str, Part] = {}
    for name, data in DATA.items():
        counts = {"": 100} if name == "tissue" else {"_few": 10, "": 100, "_many": 1000}
        for suffix, count in counts.items():
            options = {"data": data, "per_class": count}
            by_part[name + suffix] = _part(options, arms(sizes, AUTO, small=False), 10, sizes)
        options = {"data": data, "per_class": 100}
        by_part[f"{name}_prior"] = _part(options, prior_arms(sizes), 10, None)
        by_part[f"{name}_small_head"] = _part(
            options, arms(small, SMALL_PRIOR, small=True), 10, small, hidden=[32]
        )
    return by_part


def _part(
    options: dict[str, Any],
    every: dict[str, Arm],
    seeds: int,
    sizes: Sizes | None,
    hidden: list[int] = [],  # noqa: B006
) -> Part:
    width = ", ".join(map(str, hidden))
    examine = () if sizes is None else (f"reference:{sizes.reference},net=mlp,hidden=[{width}]",)
    return Part(
        task="body_features", task_options=options, net="mlp", net_options={"hidden": hidden},
        arms=every, seeds=tuple(range(seeds)), examine=examine,
    )  # fmt: skip
