"""Dropout with α-divergences: the regressions, MNIST, what passes cost, and attacks.

Y. Li, Y. Gal, Dropout inference in Bayesian neural networks with alpha-divergences, ICML 2017. One
module for each part of the paper, with functions `parts`, `tables`, `figures`, `claims` and
`comparisons`; a further one is entered in `MODULES`.
"""

from __future__ import annotations

from polymode.plots import Comparison, Display
from polymode.runs.part import Experiment, Part
from polymode.studies.alpha_dropout import attacks, chains, mnist, uci
from polymode.studies.study import STUDIES, Claim, Runs, Study, Table

MODULES = (uci, chains, mnist, attacks)


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
    """Return the paper's numbers beside ours."""
    return [each for module in MODULES for each in module.comparisons(preset, runs)]


STUDIES.register("alpha_dropout")(
    Study(
        title="Dropout inference in Bayesian neural networks with alpha-divergences",
        paper="Li & Gal 2017",
        summary="dropout trained with α-divergences: UCI regressions, MNIST, cost of K passes,"
        " attacks and their detection",
        bibtex="""@inproceedings{li2017dropout,
  title={Dropout inference in {Bayesian} neural networks with alpha-divergences},
  author={Li, Yingzhen and Gal, Yarin},
  booktitle={International Conference on Machine Learning}, year={2017}}""",
        parts=parts,
        tables=tables,
        figures=figures,
        claims=claims,
        comparisons=comparisons,
    )
)
