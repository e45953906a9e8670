"""Dropout with α-divergences: the regressions, MNIST, what passes cost, and attacks.

Y. Li, Y. Gal, Dropout inference in Bayesian neural networks with alpha-divergences, ICML 2017. One
module for each part of the paper, with functions `parts`, `tables`, `figures`, `claims` and
`comparisons`.
"""

from __future__ import annotations

from polymode.studies.alpha_dropout import attacks, hmc_column, mnist, uci
from polymode.studies.study import STUDIES, Study, functions_of_modules

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
        **functions_of_modules(uci, hmc_column, mnist, attacks),
    )
)
