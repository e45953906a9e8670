"""Draw the README's picture: `python -m docs.picture`.

Ten networks on two moons. Left: the entropy of their prediction. Middle: the mean of their
entropies, which is high where the classes meet. Right: the difference, their mutual information:
away from the data the members no longer agree where the border runs. One colour scale for all.
"""

from __future__ import annotations

from pathlib import Path

import torch
from matplotlib import rc_context
from matplotlib.figure import Figure

import polymode as pm


def main() -> None:
    task = pm.task("two_moons")
    post = pm.fit(
        "deep_ensemble", net=pm.nets.mlp, task=task, num_modes=10, seed=0,
        epochs=200, lr=1e-2, schedule="cosine", prior_precision=0.1, progress="silent",
    )  # fmt: skip
    left, right, low, high = -3.0, 4.0, -2.5, 3.0
    y, x = torch.meshgrid(
        torch.linspace(low, high, 160), torch.linspace(left, right, 200), indexing="ij"
    )
    pred = post.predict(torch.stack([x.flatten(), y.flatten()], dim=1))
    panels = {
        "predictive entropy": pred.predictive_entropy,
        "expected entropy (aleatoric)": pred.expected_entropy,
        "mutual information (epistemic)": pred.mutual_information,
    }
    figure = Figure(figsize=(10, 3.1), layout="constrained")
    for axes, (title, values) in zip(
        figure.subplots(1, 3, sharey=True), panels.items(), strict=True
    ):
        image = axes.imshow(
            values.view(x.shape), extent=(left, right, low, high), origin="lower", vmin=0,
            vmax=torch.tensor(2.0).log().item(), cmap="cividis", aspect="auto",
        )  # fmt: skip
        points, labels = task.train.x, task.train.y
        for label, colour, marker in ((0, "#E69F00", "o"), (1, "#56B4E9", "^")):
            chosen = points[labels == label]
            axes.scatter(
                *chosen.T, s=6, c=colour, marker=marker, edgecolors="black", linewidths=0.2
            )
        axes.set(title=title, xticks=[], yticks=[])
    figure.colorbar(image, ax=figure.axes, label="nats", fraction=0.03)
    with rc_context({"svg.hashsalt": "polymode", "svg.fonttype": "none"}):
        figure.savefig(Path(__file__).with_name("picture.svg"), metadata={"Date": None}, dpi=80)


if __name__ == "__main__":
    main()
