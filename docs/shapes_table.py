"""The leaderboard of `results/shapes.json`, for docs/segmentation.md."""

from __future__ import annotations

from typing import Any

from docs.speed_tables import markdown

_COLUMNS = {
    "test nll": "NLL ↓",
    "test miou": "mIoU ↑",
    "test ece": "ECE ↓",
    "test error_auroc": "AUROC of errors ↑",
    "ood:stars pixel_auroc_mutual_information": "stars, pixels: AUROC, MI ↑",
    "ood:stars auroc_mutual_information_top": "stars, images: AUROC, top MI ↑",
}
_TRUTH = {
    "rank correlation": "rank correlation of entropies ↑",
    "entropy less the known": "entropy less the known [nats]",
    "KL from the known": "KL from the known [nats] ↓",
}
_GAPS = {"difference nll": "NLL", "difference miou": "mIoU"}


def shapes_table(report: dict[str, Any]) -> str:
    """Return scores, differences from the first method, and nearness to the truth."""
    rows = report["rows"]
    scores = [["method", *_COLUMNS.values()]]
    scores += [[f"`{row['method']}`", *(_score(row[key]) for key in _COLUMNS)] for row in rows]
    first = rows[0]["method"]
    gaps = [["method", *(f"{title} − that of `{first}`" for title in _GAPS.values())]]
    gaps += [[f"`{row['method']}`", *(_gap(row[key]) for key in _GAPS)] for row in rows[1:]]
    truth = [["method", *_TRUTH.values()]]
    truth += [[f"`{row['method']}`", *(f"{row[key]:.3f}" for key in _TRUTH)] for row in rows]
    training = report["training"]
    about = (
        f"{training['num_modes']} networks each, {training['epochs']} epochs, one seed; ± is one"
        " standard error over 100 images, brackets are 95 % intervals over images."
    )
    return "\n" + "\n\n".join([*map(markdown, (scores, gaps, truth)), about]) + "\n"


def _score(pair: list[float | None]) -> str:
    value, error = pair
    if value is None:
        return "n/a"
    return f"{value:.3f}" + ("" if error is None else f" ± {error:.3f}")


def _gap(interval: list[float] | None) -> str:
    if interval is None:
        return "n/a"
    mean, low, high = interval
    return f"{mean:+.3f} [{low:+.3f}, {high:+.3f}]"
