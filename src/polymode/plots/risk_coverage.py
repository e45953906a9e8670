"""Risk–coverage: the error rate that remains if the least confident examples are declined."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from polymode.core.checks import check_call
from polymode.metrics import selective
from polymode.metrics.ood import one_minus_confidence
from polymode.metrics.paired import mean_and_error
from polymode.metrics.results import Results
from polymode.plots.axes import over_seeds
from polymode.plots.display import INK, PALE, Style, palette
from polymode.plots.lines import LineDisplay
from polymode.plots.sources import Source, by_label, classes_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POINTS = 200  # of a curve, at most
BAND_STEP = 3  # the band is drawn through every third point


class RiskCoverage(LineDisplay):
    """One curve per method, between its oracle (dashed) and a random order (dotted)."""

    size = (4.2, 3.4)
    legend_more = (13, 3)

    def _lines(self, ax: Axes) -> None:
        data, x = self.data, self.data["coverage"]
        level = float(data["risk level"][0])
        highest = 0.0
        for number, (label, style) in enumerate(self.styles.items()):
            risk, error = data[f"{label} risk"], data[f"{label} s.e."]
            if np.isfinite(error).all():
                ends = ((risk + sign * error)[::BAND_STEP] for sign in (-1, 1))
                ax.fill_between(x[::BAND_STEP], *ends, color=style.color, alpha=0.2, lw=0)
            every = max(1, len(x) // 8)
            ax.plot(
                x,
                risk,
                color=style.color,
                linewidth=1.3,
                marker=style.marker,
                markevery=(every // 2 + number * every // 8, every),
                markersize=3.5,
                label=f"{label}: AURC {float(data[f'{label} AURC'][0]):.4f}",
            )
            oracle, random = data[f"{label} oracle"], data[f"{label} random"]
            ax.plot(x, oracle, color=style.color, linestyle="--", linewidth=0.9)
            ax.plot([0, 1], [random[0]] * 2, color=style.color, linestyle=":", linewidth=0.9)
            reached = float(data[f"{label} coverage at risk"][0])
            if reached > 0:
                height = min(level, risk[-1]) if reached == 1 else level
                ax.plot(
                    reached, height, marker="*", markersize=10, color=style.color, mec=INK, mew=0.6
                )
            highest = max(highest, random[-1], float(np.max(risk[len(risk) // 10 :])))
        ax.axhline(level, color=PALE, linewidth=0.8, zorder=0)
        star = f"most coverage at {100 * level:g} % risk"
        ax.plot([], [], "*", markersize=8, color=PALE, mec=INK, mew=0.6, label=star)
        ax.plot([], [], color=INK, linestyle="--", linewidth=0.9, label="oracle")
        ax.plot([], [], color=INK, linestyle=":", linewidth=0.9, label="random order")
        ax.set(xlim=(0, 1.02), ylim=(0, 1.12 * max(highest, level)))
        ax.set(xlabel="coverage: share of examples answered", ylabel="risk: error rate of these")


def risk_coverage(
    source: Source,
    *,
    dataset: str = "test",
    risk: float = 0.05,
    styles: dict[str, Style] | None = None,
) -> RiskCoverage:
    """Return the risk–coverage curves of several methods, with oracles, random order and areas.

    Stars mark the largest coverage whose risk is at most `risk`.

    Traps: equal confidences have no order, so curves are expectations over their orders; a method
    with fewer errors has a lower curve even if its confidence ranks no better, so compare each
    curve with its own oracle and its own random order; the left end rests on few examples.

    Args:
        source: a leaderboard, results by label, or results; with `kept` predictions of classes on
            the same examples. Curves of several seeds are averaged.
        dataset: "test" or "shift:NAME:SEVERITY".
        risk: error rate in [0, 1] at which coverage is marked.
        styles: one per label, see `palette`.
    """
    check_call(risk_coverage, locals())
    groups = by_label(source)
    sizes = {
        len(classes_of(seed, dataset, "risk_coverage")[0])
        for several in groups.values()
        for seed in several
    }
    if len(sizes) > 1:
        raise ValueError(
            f"methods must be judged on the same examples, got {sorted(sizes)} examples"
        )
    n = sizes.pop()
    index = np.unique(np.linspace(0, n - 1, min(n, POINTS)).round().astype(int))
    data: dict[str, np.ndarray] = {"coverage": (index + 1) / n, "risk level": np.array([risk])}
    summaries = []
    for label, several in groups.items():
        data |= {f"{label} {key}": seed for key, seed in _of(several, dataset, risk, index).items()}
        areas, reached = (data[f"{label} {name}"][0] for name in ("AURC", "coverage at risk"))
        summaries.append(
            f"{label} AURC {areas:.4f}, AUGRC {data[f'{label} AUGRC'][0]:.4f}, coverage at"
            f" {100 * risk:g} % risk {reached:.3f}"
        )
    seeds = max(map(len, groups.values()))
    return RiskCoverage(
        data,
        label=f"risk–coverage, {dataset}",
        styles=styles or palette(groups),
        caption=f"Error rate of the most confident examples on {dataset} (n = {n:,};"
        f" {over_seeds(seeds)}). Dashed: an oracle that declines the wrong ones first; dotted:"
        f" random order; stars: largest coverage at {100 * risk:g} % risk.",
        alt=f"Risk against coverage: {'; '.join(summaries)}.",
    )


def _of(
    several: list[Results], dataset: str, risk: float, index: np.ndarray
) -> dict[str, np.ndarray]:
    """Return the mean curves and areas of one method's seeds, at some of the coverages."""
    curves, reached = [], []
    for seed in several:
        prediction, labels = classes_of(seed, dataset, "risk_coverage")
        wrong = prediction.classes != labels.to(prediction.classes.device)
        curves.append(selective.risk_coverage(-one_minus_confidence(prediction), wrong))
        reached.append(selective.coverage_at_risk(prediction, labels, risk).value)
    risks = np.stack([curve.risk.cpu().numpy()[index] for curve in curves])
    spread = risks.std(0, ddof=1) / np.sqrt(len(risks)) if len(risks) > 1 else np.nan * risks[0]
    return {
        "risk": risks.mean(0),
        "s.e.": spread,
        "oracle": np.mean([curve.oracle.cpu().numpy()[index] for curve in curves], 0),
        "random": np.mean([curve.random.cpu().numpy()[index] for curve in curves], 0),
        "AURC": np.array([mean_and_error([curve.aurc for curve in curves])[0]]),
        "AUGRC": np.array([mean_and_error([curve.augrc for curve in curves])[0]]),
        "coverage at risk": np.array([np.mean(reached)]),
    }
