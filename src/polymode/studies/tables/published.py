"""Published figures of TabM and bde, and what was measured of them here.

Published, to stand beside ours; their splits are not public, so nothing is claimed of them:

- TabM: Y. Gorishniy, A. Kotelnikov, A. Babenko, TabM, ICLR 2025: means over the 15 seeds of the
  authors' own reports, github.com/yandex-research/tabm, on about 43,000 diamonds and 16,500 blocks
  of California. RMSE, of diamonds in standard deviations of the price, as its size shows;
- bde: sklearn-contrib-bde 1.0, its page on airfoil.

`peers.json` holds cells of both packages on the tables of this study, which
`benchmarks/peers/tables.py` measured in an environment of its own.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

FILE = Path(__file__).parent / "peers.json"


class Figure(NamedTuple):
    """A published figure: of what, on which table, which metric, and its value."""

    contender: str
    table: str
    metric: str
    value: float


FIGURES = (
    Figure("MLP", "diamonds", "RMSE / std", 0.1404),
    Figure("MLP, ensemble of 32", "diamonds", "RMSE / std", 0.1354),
    Figure("TabM", "diamonds", "RMSE / std", 0.1310),
    Figure("TabM, piecewise linear", "diamonds", "RMSE / std", 0.1302),
    Figure("MLP", "california", "RMSE", 0.4948),
    Figure("MLP, ensemble of 32", "california", "RMSE", 0.4763),
    Figure("TabM", "california", "RMSE", 0.4414),
    Figure("TabM, piecewise linear", "california", "RMSE", 0.4293),
    Figure("bde", "airfoil", "NLL", -0.913),
)
PRICE_STD = 3989.4  # of all 53,940 diamonds, USD


@cache
def peer_cells() -> list[dict[str, Any]]:
    """Return the measured cells: data, contender, seed, most_rows, scores, arrays."""
    return json.loads(FILE.read_text())["cells"] if FILE.is_file() else []


def peers_of(part: str) -> list[str]:
    """Return the names of the peers that were measured on a table."""
    return list(dict.fromkeys(c["contender"] for c in peer_cells() if c["data"] == part))


def peer_values(part: str, contender: str, metric: str) -> dict[int, float]:
    """Return a number of a peer by seed."""
    return {
        cell["seed"]: cell["scores"][metric]
        for cell in peer_cells()
        if cell["data"] == part and cell["contender"] == contender and metric in cell["scores"]
    }


def peer_arrays(part: str, contender: str, name: str) -> list[np.ndarray]:
    """Return an array of a peer, one for each seed."""
    return [
        np.array(cell["arrays"][name])
        for cell in peer_cells()
        if cell["data"] == part and cell["contender"] == contender
    ]
