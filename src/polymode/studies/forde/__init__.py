"""FoRDE: input-gradient space particle inference, its figures, its table and its sweep.

T. Trinh, M. Heinonen, L. Acerbi, S. Kaski, Input-gradient space particle inference for neural
network ensembles, ICLR 2024. Parts: `regression` and `classification` make the two toy figures,
the others a benchmark table and a sweep over the lengthscales each.
"""

from __future__ import annotations

from polymode.metrics.paired import mean_and_error
from polymode.plots import Comparison
from polymode.studies.forde import published, setup, shown
from polymode.studies.forde.claims import claims
from polymode.studies.study import STUDIES, Runs, Study


def comparisons(preset: str, runs: Runs) -> list[Comparison]:
    """Return the paper's numbers compared with ours; only its own set-up is held against them."""
    found = []
    for part, printed in published.TABLES.items() if preset == "paper" else ():
        for line, row in printed.items():
            arm = shown.arm_of(runs, part, line)
            for field, dataset, metric, factor in shown.COLUMNS.values():
                values = runs.values(part, arm, dataset, metric).values()
                mean, error = (
                    mean_and_error([factor * v for v in values]) if values else (None, None)
                )
                found.append(
                    Comparison(
                        label=f"{line}, {part}, {field.replace('_', ' ')}",
                        paper=getattr(row, field),
                        paper_spread=getattr(row, f"{field}_spread", None),
                        ours=mean,
                        standard_error=error,
                        tolerance=published.TOLERANCE[field],
                        unit="%" if factor == 100 else "",
                        direction="up" if metric == "accuracy" else "down",
                    )
                )
    return found


STUDIES.register("forde")(
    Study(
        title="Input-gradient space particle inference for neural network ensembles",
        paper="Trinh et al. 2024",
        summary="repulsion in input-gradient space: two toy figures, the benchmark under"
        " corruption, the lengthscale sweep",
        bibtex="""@inproceedings{trinh2024inputgradient,
  title={Input-gradient space particle inference for neural network ensembles},
  author={Trinh, Trung and Heinonen, Markus and Acerbi, Luigi and Kaski, Samuel},
  booktitle={International Conference on Learning Representations}, year={2024}}""",
        parts=setup.parts,
        tables=shown.tables,
        figures=shown.figures,
        claims=claims,
        comparisons=comparisons,
    )
)
