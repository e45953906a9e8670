"""FoRDE: input-gradient space particle inference, its figures, its table and its sweep.

T. Trinh, M. Heinonen, L. Acerbi, S. Kaski, Input-gradient space particle inference for neural
network ensembles, ICLR 2024. Parts: `regression` and `classification` make the two toy figures,
the others a benchmark table and a sweep over the lengthscales each.
"""

from __future__ import annotations

from polymode.plots import Comparison
from polymode.studies.forde import published, setup, tables
from polymode.studies.forde.claims import claims
from polymode.studies.study import STUDIES, Runs, Study
from polymode.studies.table_cells import compare_published


def comparisons(preset: str, runs: Runs) -> list[Comparison]:
    """Return the paper's numbers compared with ours; only its own set-up is held against them."""
    return compare_published(
        published.TABLES if preset == "paper" else {},
        published.TOLERANCE,
        lambda _: tables.COLUMNS,
        lambda column, part, line: column.values(runs, part, tables.arm_of(runs, part, line)),
    )


STUDIES.register("forde")(
    Study(
        title="Input-gradient space particle inference for neural network ensembles",
        paper="Trinh et al. 2024",
        summary="repulsion in input-gradient space: two toy figures, the benchmark under"
        " corruption, the lengthscale sweep",
        bibtex="""@inproceedings{trinh2024inputgradient,
  title={Input-gradient space particle inference for neural network ensembles},
  author={Trinh, Trung and Heinonen, Markus and Acerbi, Luigi and Kaski, Samuel},
  booktitle={International Conference on Learning Representations}, year={2024}}""",
        parts=setup.parts,
        tables=tables.tables,
        figures=tables.figures,
        claims=claims,
        comparisons=comparisons,
    )
)
