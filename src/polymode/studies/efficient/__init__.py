"""Efficient ensembles and heads, beside one network, a deep ensemble and FoRDE.

Not the study of one paper: claims are those of the methods' papers (`published`), judged on small
data sets at equal training, at equal parameters and at equal training time.
"""

from __future__ import annotations

from polymode.studies.efficient import setup, tables
from polymode.studies.efficient.claims import claims
from polymode.studies.study import STUDIES, Study

STUDIES.register("efficient")(
    Study(
        title="Efficient ensembles and heads on one's own network",
        paper="Laurent et al. 2023, Wen et al. 2020 and others",
        summary="cheaper ensembles, deterministic heads and averages of one mode at equal"
        " parameters and at equal training time",
        bibtex="""@inproceedings{laurent2023packed,
  title={Packed-Ensembles for Efficient Uncertainty Estimation},
  author={Laurent, Olivier and Lafage, Adrien and Tartaglione, Enzo and Daniel, Geoffrey and
    Martinez, Jean-Marc and Bursuc, Andrei and Franchi, Gianni},
  booktitle={International Conference on Learning Representations}, year={2023}}""",
        parts=setup.parts,
        tables=tables.tables,
        figures=tables.figures,
        claims=claims,
    )
)
