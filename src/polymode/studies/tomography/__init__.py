"""The probabilistic deep image prior on tomography: error bars on every pixel, and their worth.

J. Antorán, R. Barbano, J. Leuschner, J. M. Hernández-Lobato, B. Jin, Uncertainty estimation for
computed tomography with a linearised deep image prior, TMLR 2023, as in the case study of a talk of
2022. Parts: `small` (28 x 28, exact), `large` (128 x 128, matrix-free), `priors` (total variation
and its Gaussian surrogate), and with preset paper `walnut`.
"""

from __future__ import annotations

from polymode.studies.study import STUDIES, Study
from polymode.studies.tomography import setup, tables
from polymode.studies.tomography.claims import claims

STUDIES.register("tomography")(
    Study(
        title="Uncertainty estimation for computed tomography with a linearised deep image prior",
        paper="Antorán et al. 2023",
        summary="X-ray images from few angles with an error bar on every pixel: the linearised deep"
        " image prior against dropout, ensembles and a constant variance",
        bibtex="""@article{antoran2023uncertainty,
  title={Uncertainty estimation for computed tomography with a linearised deep image prior},
  author={Antor{\\'a}n, Javier and Barbano, Riccardo and Leuschner, Johannes and
    Hern{\\'a}ndez-Lobato, Jos{\\'e} Miguel and Jin, Bangti},
  journal={Transactions on Machine Learning Research}, year={2023}}""",
        parts=setup.parts,
        tables=tables.tables,
        figures=tables.figures,
        claims=claims,
    )
)
