"""Draw the README's picture: `python -m docs.picture`.

Sixty points of a curve with a gap. One network is as sure in the gap as beside it; its
linearised Laplace approximation, ten networks and long HMC chains are not, in this order.
"""

from __future__ import annotations

from pathlib import Path

import torch
from matplotlib import rc_context
from matplotlib.figure import Figure

import polymode as pm

METHODS = {
    "one trained network": ("map", {}),
    "the same, with laplace": ("laplace", {}),
    "deep_ensemble, 10 networks": ("deep_ensemble", {"num_modes": 10}),
    "hmc, the posterior itself": ("hmc", {"num_modes": 4, "samples_per_mode": 25}),
}
COLOURS = {"weights": "#4C8BF5", "noise": "#B9CDF2"}


def curve(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(3 * x) + 0.3 * x


def points() -> tuple[torch.Tensor, torch.Tensor]:
    """Return points on both sides of a gap, with noise of standard deviation 0.1."""
    generator = torch.Generator().manual_seed(0)
    sides = torch.rand(60, generator=generator) * 1.2
    x = torch.cat([sides[:30] - 2.0, sides[30:] + 0.6])[:, None]
    return x, curve(x) + 0.1 * torch.randn(x.shape, generator=generator)


def main() -> None:
    x, y = points()
    task = pm.Task(train=(x, y), likelihood=pm.likelihoods.Gaussian(noise=0.1), name="gap")
    grid = torch.linspace(-2.7, 2.5, 300)[:, None]
    figure = Figure(figsize=(10, 2.9), layout="constrained")
    panels = figure.subplots(1, 4, sharey=True)
    trained = None
    for axes, (title, (method, options)) in zip(panels, METHODS.items(), strict=True):
        net = (
            trained
            if method == "laplace"
            else lambda: pm.nets.mlp((1,), 1, hidden=(50, 50), activation="tanh")
        )
        settings = (
            {} if method in ("laplace", "hmc") else {"epochs": 3000, "holdout": 0, "lr": 0.01}
        )
        post = pm.fit(method, net=net, task=task, progress="silent", **settings, **options)
        trained = post if method == "map" else trained
        pred = post.predict(grid)
        mean, noise = pred.mean[:, 0], pred.variance[:, 0].sqrt()
        spread = pred.epistemic_variance[:, 0].sqrt()
        line = grid[:, 0]
        axes.fill_between(line, mean - 2 * noise, mean + 2 * noise, color=COLOURS["noise"], lw=0)
        axes.fill_between(
            line, mean - 2 * spread, mean + 2 * spread, color=COLOURS["weights"], lw=0
        )
        axes.plot(line, curve(line), color="#444444", lw=1, ls=(0, (4, 3)))
        axes.plot(line, mean, color="#0B3D91", lw=1.5)
        axes.scatter(x, y, s=9, color="#E07B00", zorder=3, linewidths=0)
        axes.set(title=title, xticks=[], yticks=[], ylim=(-3, 3), xlim=(-2.7, 2.5))
        print(title, f"widest in the gap: {spread[(line > -0.8) & (line < 0.6)].max():.2f}")
    with rc_context({"svg.hashsalt": "polymode", "svg.fonttype": "none"}):
        figure.savefig(Path(__file__).with_name("picture.svg"), metadata={"Date": None}, dpi=80)


if __name__ == "__main__":
    main()
