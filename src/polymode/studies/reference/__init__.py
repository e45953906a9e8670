"""How far from HMC: every method, with one mode and with many, held against a reference posterior.

P. Izmailov, S. Vikram, M. Hoffman, A. Wilson, What are Bayesian neural network posteriors really
like?, ICML 2021; and the NeurIPS 2021 competition on approximate inference in Bayesian deep
learning (Wilson et al., PMLR 176, 2022). Their references were made on large machines; here they
are made by `hmc`, for the energy gap split with the competition's own network, and for a
classification in the plane.
"""

from __future__ import annotations

from polymode.studies.reference import setup, tables
from polymode.studies.reference.claims import claims
from polymode.studies.study import STUDIES, Study

STUDIES.register("reference")(
    Study(
        title="What are Bayesian neural network posteriors really like?",
        paper="Izmailov et al. 2021",
        summary="distance of every method, with one mode and with many, to HMC: the energy gap"
        " split, and a classification in the plane",
        bibtex="""@inproceedings{izmailov2021what,
  title={What are {Bayesian} neural network posteriors really like?},
  author={Izmailov, Pavel and Vikram, Sharad and Hoffman, Matthew D. and Wilson, Andrew Gordon},
  booktitle={International Conference on Machine Learning}, year={2021}}""",
        parts=setup.parts,
        tables=tables.tables,
        figures=tables.figures,
        claims=claims,
    )
)
