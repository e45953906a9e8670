"""Emergent equivariance in deep ensembles: finite networks beside what infinite ones do.

J. E. Gerken, P. Kessel, Emergent equivariance in deep ensembles, ICML 2024. One module for each
part, with functions `parts`, `tables`, `figures`, `claims` and `comparisons`.
"""

from __future__ import annotations

from polymode.studies.equivariance import histology, partial, rotated, theory
from polymode.studies.study import STUDIES, Study, functions_of_modules

STUDIES.register("equivariance")(
    Study(
        title="Emergent equivariance in deep ensembles",
        paper="Gerken & Kessel 2024",
        summary="ensembles trained with data augmentation become equivariant: orbits of C4, C8 and"
        " C16 against canonicalisation, group averages and escnn",
        bibtex="""@inproceedings{gerken2024emergent,
  title={Emergent equivariance in deep ensembles},
  author={Gerken, Jan E. and Kessel, Pan},
  booktitle={International Conference on Machine Learning}, year={2024}}""",
        **functions_of_modules(theory, rotated, histology, partial),
    )
)
