"""The parts of the study by preset: a part is a table, an arm a contender, a seed a division.

smoke: two tables that come with scikit-learn, 150 rows. cpu: seven regressions of UCI, diamonds and
five classifications, at most 3,000 rows to fit on, 3 divisions, the default method and MultiSWAG.
paper: all rows of all tables, 10 divisions (3 of protein, which has five), and further methods.
"""

from __future__ import annotations

from polymode.runs.part import Experiment
from polymode.studies.tables.contenders import FITS, OURS
from polymode.studies.tables.data import CLASSES, UCI
from polymode.studies.tables.experiments import contest

CPU_OURS = ("deep ensemble", "MultiSWAG")
CPU = ("yacht", "energy", "concrete", "wine", "kin8nm", "power", "protein", "diamonds")
CPU_ROWS = 3000


def parts(preset: str) -> dict[str, Experiment]:
    """Return the parts of a preset."""
    if preset == "smoke":
        few = ("deep ensemble", "random forest", "gradient boosting")
        return {name: _part(name, few, 3, 150) for name in ("diabetes", "breast_cancer")}
    if preset == "cpu":
        contenders = (*CPU_OURS, *FITS)
        return {name: _part(name, contenders, 3, CPU_ROWS) for name in (*CPU, *CLASSES)}
    every = (*OURS, *FITS)
    names = (*UCI, "diamonds", *CLASSES)
    return {name: _part(name, every, 3 if name == "protein" else 10, 10**6) for name in names}


def _part(name: str, contenders: tuple[str, ...], seeds: int, most_rows: int) -> Experiment:
    return Experiment(
        function=contest,
        arms={
            contender: {"data": name, "contender": contender, "most_rows": most_rows}
            for contender in contenders
        },
        seeds=tuple(range(seeds)),
        data=("uci",) if name in UCI else (),
    )
