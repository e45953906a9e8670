"""Emergent equivariance in deep ensembles: finite networks beside what infinite ones do.

J. E. Gerken, P. Kessel, Emergent equivariance in deep ensembles, ICML 2024. One module for each
part, with functions `parts`, `tables`, `figures`, `claims` and `comparisons`; a further one is
entered in `MODULES`.
"""

from __future__ import annotations

from polymode.plots import Comparison, Display
from polymode.runs.part import Experiment, Part
from polymode.studies.equivariance import histology, partial, rotated, theory
from polymode.studies.study import STUDIES, Claim, Runs, Study, Table

MODULES = (theory, rotated, histology, partial)


def parts(preset: str) -> dict[str, Part | Experiment]:
    """Return all parts of a preset."""
    return {name: part for module in MODULES for name, part in module.parts(preset).items()}


def tables(runs: Runs) -> dict[str, Table]:
    """Return all tables for which there are results."""
    return {name: table for module in MODULES for name, table in module.tables(runs).items()}


def figures(runs: Runs) -> dict[str, Display]:
    """Return all figures for which there are results."""
    return {name: shown for module in MODULES for name, shown in module.figures(runs).items()}


def claims(runs: Runs) -> list[Claim]:
    """Return all claims for which there are results."""
    return [claim for module in MODULES for claim in module.claims(runs)]


def comparisons(preset: str, runs: Runs) -> list[Comparison]:
    """Return the talk's numbers beside ours."""
    return [each for module in MODULES for each in module.comparisons(preset, runs)]


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
        parts=parts,
        tables=tables,
        figures=figures,
        claims=claims,
        comparisons=comparisons,
    )
)
