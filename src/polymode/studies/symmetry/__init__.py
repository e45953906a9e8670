"""Symmetry-aware exploration of posteriors: how near approximations come to independent networks.

O. Laurent, E. Aldea, G. Franchi, A symmetry-aware exploration of Bayesian neural network
posteriors, ICLR 2024. Parts: `zoo` (the reference), `toy` (its figure 1), `mass` (squared norm and
its minimum over scalings), and a table for each data set.
"""

from __future__ import annotations

from polymode.metrics.paired import mean_and_error
from polymode.plots import Comparison
from polymode.studies.study import STUDIES, Runs, Study
from polymode.studies.symmetry import published, setup, shown
from polymode.studies.symmetry.claims import claims


def comparisons(preset: str, runs: Runs) -> list[Comparison]:
    """Return the paper's numbers compared with ours; only its own set-up is held against them."""
    found = []
    for part, printed in published.TABLES.items() if preset == "paper" else ():
        columns = shown.columns_of(runs, part)
        for arm, row in printed.items():
            for column in columns.values():
                if column.field not in published.TOLERANCE:
                    continue
                values = runs.values(part, arm, column.dataset, column.metric).values()
                mean, error = (
                    mean_and_error([column.factor * v for v in values]) if values else (None, None)
                )
                found.append(
                    Comparison(
                        label=f"{arm}, {part}, {column.field.replace('_', ' ')}",
                        paper=getattr(row, column.field),
                        paper_spread=None,
                        ours=mean,
                        standard_error=error,
                        tolerance=published.TOLERANCE[column.field],
                        unit="%" if not column.field.endswith("_mi") else "nats × 100",
                        direction="up" if column.field in ("accuracy", "aupr") else "down",
                    )
                )
    return found


STUDIES.register("symmetry")(
    Study(
        title="A symmetry-aware exploration of Bayesian neural network posteriors",
        paper="Laurent et al. 2024",
        summary="posteriors with one mode and several against a zoo of independent networks, with"
        " and without their symmetries",
        bibtex="""@inproceedings{laurent2024symmetry,
  title={A symmetry-aware exploration of {Bayesian} neural network posteriors},
  author={Laurent, Olivier and Aldea, Emanuel and Franchi, Gianni},
  booktitle={International Conference on Learning Representations}, year={2024}}""",
        parts=setup.parts,
        tables=shown.tables,
        figures=shown.figures,
        claims=claims,
        comparisons=comparisons,
    )
)
