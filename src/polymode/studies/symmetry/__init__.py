"""Symmetry-aware exploration of posteriors: how near approximations come to independent networks.

O. Laurent, E. Aldea, G. Franchi, A symmetry-aware exploration of Bayesian neural network
posteriors, ICLR 2024. Parts: `zoo` (the reference), `toy` (its figure 1), `mass` (squared norm and
its minimum over scalings), and a table for each data set.
"""

from __future__ import annotations

from polymode.plots import Comparison
from polymode.studies.study import STUDIES, Runs, Study
from polymode.studies.symmetry import published, setup, tables
from polymode.studies.symmetry.claims import claims
from polymode.studies.table_cells import compare_published


def comparisons(preset: str, runs: Runs) -> list[Comparison]:
    """Return the paper's numbers compared with ours; only its own set-up is held against them."""
    return compare_published(
        published.TABLES if preset == "paper" else {},
        published.TOLERANCE,
        lambda part: tables.columns_of(runs, part),
        lambda column, part, line: column.values(runs, part, line),
    )


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
        tables=tables.tables,
        figures=tables.figures,
        claims=claims,
        comparisons=comparisons,
    )
)
