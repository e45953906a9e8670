"""Studies: one package for each paper, with functions named after its tables and figures.

Read first `study` (what a study is, and its runs by part and arm), then `tables` (cells, texts of
differences and verdicts that all studies share); `folder` has the files of a study. In a package,
`setup` holds the parts by preset, `experiments` what is no single fit, `published` the paper's
numbers, `tables` the tables and figures, and `claims` what the paper says with our verdicts. Where
a paper falls into separate parts, each has one module with all of these.
"""

from __future__ import annotations

from polymode.runs.part import Arm, Experiment, Part
from polymode.studies.study import STUDIES, Claim, Runs, Study, Table

__all__ = ["STUDIES", "Arm", "Claim", "Experiment", "Part", "Runs", "Study", "Table"]
