"""Linearised Laplace with the evidence at its own optimum, and a prior per normalised group.

J. Antorán, Bayesian deep learning with linearised neural networks (talk at Aalto University, March
2022), its first two parts; J. Antorán et al., Adapting the linearised Laplace model evidence for
modern deep learning, ICML 2022. Parts: `training` and `scale` are the 1-D toy, `occam`
is model selection on it, `networks` is Table
1, `shifts` rotated and corrupted digits.
"""

from __future__ import annotations

from polymode.studies.linearised_laplace import setup, tables
from polymode.studies.linearised_laplace.claims import claims
from polymode.studies.study import STUDIES, Study

STUDIES.register("linearised_laplace")(
    Study(
        title="Adapting the linearised Laplace model evidence for modern deep learning",
        paper="Antorán et al. 2022",
        summary="the evidence at θ̃ and θ*, one prior and one per normalised group: error bars of a"
        " toy, six networks, rotated digits",
        bibtex="""@inproceedings{antoran2022adapting,
  title={Adapting the linearised {Laplace} model evidence for modern deep learning},
  author={Antor{\\'a}n, Javier and Janz, David and Allingham, James Urquhart and Daxberger, Erik and
    Barbano, Riccardo and Nalisnick, Eric and Hern{\\'a}ndez-Lobato, Jos{\\'e} Miguel},
  booktitle={International Conference on Machine Learning}, year={2022}}""",
        parts=setup.parts,
        tables=tables.tables,
        figures=tables.figures,
        claims=claims,
    )
)
