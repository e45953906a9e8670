"""The pictures of docs/plots.md, one for each display: `python docs/plots/pictures.py`.

Networks are small, trained for seconds, and seeded; what is not about networks is drawn from a
seeded stream. The point is how a figure looks, not who wins.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

import polymode as pm
from polymode import plots, tomography
from polymode.metrics.diversity import ensemble_size_curve, pairwise_disagreement
from polymode.metrics.diversity.pairwise import pairwise_mutual_information
from polymode.metrics.results import Results
from polymode.report.embed import compact

HERE = Path(__file__).parent
SMALL, WIDE = 3.1, 4.6  # inches: those below the second are drawn as wide as the first
PIXELS = (
    "uncertainty_maps", "entropy_scatter", "attack_trajectory", "reconstruction_pictures",
    "map_pictures",
)  # fmt: skip
METHODS = {"map": {}, "deep_ensemble": {"num_modes": 5}}


def fitted(task_name: str, epochs: int, seeds: range = range(1)) -> dict[str, list[Results]]:
    """Return results of two methods on a task, by method."""
    task = pm.task(task_name)
    options = {"net": pm.nets.mlp, "task": task, "epochs": epochs, "progress": "silent"}
    return {
        name: [
            pm.evaluate(
                pm.fit(name, seed=seed, execution="batched", **options, **more),
                task,
                train_seconds=float(more.get("num_modes", 1)),
            )
            for seed in seeds
        ]
        for name, more in METHODS.items()
    }


def displays() -> dict[str, plots.Display]:
    """Return one display of each kind."""
    digits, moons = fitted("digits", 8, range(2)), fitted("two_moons", 60)
    gap = fitted("gap_regression", 150)
    return {
        **_of_classes(digits), **_of_inputs(moons, gap), **_of_attacks(), **_of_images(),
        **_of_pixels(), **_of_numbers(),
    }  # fmt: skip


def _of_classes(digits: dict[str, list[Results]]) -> dict[str, plots.Display]:
    """Return the displays of predictions of classes."""
    seeds = digits["deep_ensemble"]
    one = seeds[0]
    test, ood = (one.kept[name].prediction for name in ("test", "ood:scrambled"))
    labels = one.kept["test"].targets
    hits = (test.log_probs.argmax(-1) == labels).double().mean(1)
    board = pm.compare([each for several in digits.values() for each in several])
    curve = ensemble_size_curve(test, labels)
    single = ensemble_size_curve(digits["map"][0].kept["test"].prediction, labels)
    return {
        "reliability": plots.reliability(seeds),
        "confidence_gap": plots.confidence_gap(board),
        "risk_coverage": plots.risk_coverage(board),
        "confusion": plots.confusion(seeds),
        "example_pictures": plots.example_pictures(one, most=4),
        "ood_histogram": plots.ood_histogram(seeds),
        "entropy_scatter": plots.entropy_scatter(one),
        "severity": plots.severity(board, "rotation"),
        "severity_spread": plots.severity_spread(board),
        "diversity_heat_map": plots.diversity_heat_map(
            pairwise_disagreement(test), unit="fraction of inputs"
        ),
        "diversity_plane": plots.diversity_plane(
            {"deep_ensemble": (hits, pairwise_disagreement(test))}, num_classes=10
        ),
        "pair_density": plots.pair_density(
            pairwise_mutual_information(test), pairwise_mutual_information(ood)
        ),
        "size_curve": plots.size_curve(
            {"deep_ensemble": curve, "map": single}, reference="deep_ensemble"
        ),
        "cost_pareto": plots.cost_pareto(_timed(board)),
    }


def _timed(board: pm.metrics.Leaderboard) -> pm.metrics.Leaderboard:
    """Return the board with times that are the same on every machine."""
    every = [results for entry in board.entries for results in entry.results]
    return pm.compare(
        [
            each.replace(
                cost=each.cost._replace(predict_seconds=0.01 * each.cost.num_modes + 0.001 * i)
            )
            for i, each in enumerate(every)
        ]
    )


def _of_inputs(
    moons: dict[str, list[Results]], gap: dict[str, list[Results]]
) -> dict[str, plots.Display]:
    """Return the displays over one or two inputs."""
    bands = {name: plots.regression_band(each[0], label=name) for name, each in gap.items()}
    return {
        "uncertainty_maps": plots.uncertainty_maps(moons["deep_ensemble"][0]),
        "regression_band": bands["deep_ensemble"],
        "regression_calibration": plots.regression_calibration(gap["deep_ensemble"]),
        "panels": plots.panels(bands, label="two methods", caption="Epistemic bands."),
    }


def _of_attacks() -> dict[str, plots.Display]:
    """Return the displays of attacks on two methods."""
    task = pm.task("digits")
    options = {"net": pm.nets.mlp, "task": task, "epochs": 15, "progress": "silent"}
    found = {}
    for name, more in METHODS.items():
        post = pm.fit(name, execution="batched", **options, **more)
        found[name] = pm.examine(post, task, "attack", eps=0.2, steps=10, checks="none").arrays
    return {
        "attack_curves": plots.attack_curves(found, label="PGD"),
        "detection_curves": plots.detection_curves(found, label="PGD"),
        "attack_trajectory": plots.attack_trajectory(found["deep_ensemble"], label="deep_ensemble"),
    }


def _of_images() -> dict[str, plots.Display]:
    """Return the displays of a reconstruction, of a disc with two holes."""
    side, axis = 28, torch.arange(56) - 27.5
    disc = [((axis - x) ** 2 + (axis[:, None] - y) ** 2 < r * r).float()
            for x, y, r in ((0, 0, 22), (-6, 5, 6), (8, -7, 4))]  # fmt: skip
    scan = tomography.simulate(tomography.parallel_beam(side, 10), disc[0] - disc[1] / 2 - disc[2])
    options = tomography.DeepImagePrior(steps=400)
    found = tomography.ensemble_dip(scan, options=options, networks_per_image=5)
    assert scan.truth is not None and found.sd is not None
    parts = found.sd.flatten().argsort().chunk(8)
    error = found.error(scan.truth).flatten()
    bins = [(found.sd.flatten()[part].mean(), error[part].square().mean().sqrt()) for part in parts]
    return {
        "reconstruction_pictures": plots.reconstruction_pictures(
            scan.truth, found.mean, found.sd, label="ensemble of deep image priors",
            others={"FBP": tomography.fbp(scan.operator, scan.observations)},
        ),
        "error_calibration": plots.error_calibration(
            {"ensemble": tuple(torch.tensor(bins).T), "constant": ([0.05], [float(error.std())])}
        ),
    }  # fmt: skip


def _of_pixels() -> dict[str, plots.Display]:
    """Return the displays of masks."""
    task = pm.task("shapes", num_train=150, num_test=60, shifts=())
    net = lambda: pm.nets.unet((3, 32, 32), 4, channels=(8, 16), skips=(4,))  # noqa: E731
    options = {"num_modes": 3, "epochs": 15, "lr": 0.01, "progress": "silent"}
    results = pm.evaluate(pm.fit("deep_ensemble", net=net, task=task, **options), task)
    return {
        "map_pictures": plots.map_pictures(results, most=1),
        "pixel_reliability": plots.pixel_reliability(results),
    }


def _of_numbers() -> dict[str, plots.Display]:
    """Return the displays of plain numbers."""
    stream = np.random.default_rng(0)
    theta = np.arange(0.0, 360.0, 5.0)
    orbit = 0.6 + 0.2 * np.cos(np.radians(theta)) + 0.03 * stream.normal(size=(10, 1))
    orbit = orbit + 0.03 * np.cos(np.radians(4 * theta) + stream.uniform(0, 6, (10, 1)))
    grid = np.array([0.0, 0.01, 0.1, 1.0, 10.0])
    nll = 0.3 + 0.05 * (np.log10(grid + 0.01)[:, None]) ** 2 + 0.01 * stream.normal(size=(5, 3))
    rows = [
        plots.Comparison("deep ensemble, accuracy", 95.2, 0.1, 95.0, 0.08, 0.5, "%", "up"),
        plots.Comparison("MAP, NLL", 0.25, None, 0.31, 0.012, 0.02, "nats", "down"),
        plots.Comparison("SWAG, ECE", 0.032, 0.002, 0.018, 0.003, 0.01, "", "down"),
    ]
    return {
        "orbit_curve": plots.orbit_curve(theta, orbit),
        "sweep": plots.sweep(grid, {"nll": nll}, name="lengthscale", chosen=1.0),
        "forest": plots.forest(rows),
        "dots": plots.dots(
            {"SGHMC × 10": [0.05, 0.06], "deep ensemble": [0.11, 0.12], "MAP": [0.2, 0.23]},
            groups={"SGHMC × 10": "many modes", "deep ensemble": "many modes", "MAP": "one mode"},
            label="Distance to HMC",
            axis="total variation to HMC",
            caption="Total variation to HMC, a point per seed.",
        ),
    }


def main() -> None:
    torch.set_num_threads(1)
    for name, display in displays().items():
        if display.size[0] < WIDE:
            display.shrink(min(1.0, SMALL / display.size[0]))
        path = HERE / f"{name}.svg"
        if name in PIXELS:  # a picture of pixels is smaller
            path = path.with_suffix(".png")
            display.figure().savefig(path, dpi=100, metadata={"Software": None})
        else:
            path.write_text(compact(display.to_svg()) + "\n")
        print(f"{path.name}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
