"""One body, every posterior: all methods on the head of one trained network, beside HMC of it.

A head on features is small enough for HMC to converge, so what every method misses can be measured
on real pretrained networks. Bodies are EfficientNet-Lite0 with images and MiniLM with sentences;
what is trained is a linear head or a small one. No paper has these numbers: the claims are those of
several. They were written before the study was run, but after trial fits on the same data.
"""

from __future__ import annotations

from polymode.studies.one_body import setup, tables
from polymode.studies.one_body.claims import claims
from polymode.studies.study import STUDIES, Study

STUDIES.register("one_body")(
    Study(
        title="One body, every posterior",
        paper="no paper; claims of several",
        summary="all methods on heads of one trained body, images and sentences, held against HMC"
        " of the head; few labels and many",
        bibtex="""@inproceedings{daxberger2021laplace,
  title={Laplace Redux -- Effortless {Bayesian} Deep Learning},
  author={Daxberger, Erik and Kristiadi, Agustinus and Immer, Alexander and Eschenhagen, Runa and
    Bauer, Matthias and Hennig, Philipp},
  booktitle={Advances in Neural Information Processing Systems}, year={2021}}""",
        parts=setup.parts,
        tables=tables.tables,
        figures=tables.figures,
        claims=claims,
    )
)
