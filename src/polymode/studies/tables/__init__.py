"""Tables: methods with their defaults beside what people take instead, on thirteen sets.

The comparison is ours; TabM (Gorishniy et al., ICLR 2025) and bde (sklearn-contrib-bde) are the two
newest contenders of the field, and their published figures stand beside.
"""

from __future__ import annotations

from polymode.studies.study import STUDIES, Study
from polymode.studies.tables import setup, tables
from polymode.studies.tables.claims import claims

STUDIES.register("tables")(
    Study(
        title="Tables: calibrated distributions with defaults",
        paper="Gorishniy et al. 2025",
        summary="methods with defaults beside gradient boosting, forests, Gaussian processes, TabM"
        " and bde: NLL, CRPS, coverage overall and of the worst group",
        bibtex="""@inproceedings{gorishniy2025tabm,
  title={{TabM}: Advancing tabular deep learning with parameter-efficient ensembling},
  author={Gorishniy, Yury and Kotelnikov, Akim and Babenko, Artem},
  booktitle={International Conference on Learning Representations}, year={2025}}""",
        parts=setup.parts,
        tables=tables.tables,
        figures=tables.figures,
        claims=claims,
    )
)
