"""Nine regressions of the UCI benchmark, with its standard splits and its gap splits.

Standard splits: 20 (protein 5) random ones, 90 % train and 10 % test, of J. M. Hernández-Lobato, R.
Adams, "Probabilistic backpropagation for scalable learning of Bayesian neural networks", ICML 2015,
as most papers use them. Gap splits, one per feature: rows are sorted by that feature, the middle
third is the test set, so that a test point lies between training points but far from them (A. Y. K.
Foong, Y. Li, J. M. Hernández-Lobato, R. E. Turner, "'In-Between' uncertainty in Bayesian neural
networks", 2019). `N` examples, `D` features.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from polymode.likelihoods.kinds import Gaussian, HeteroscedasticGaussian
from polymode.tasks.files import load
from polymode.tasks.named import TASKS
from polymode.tasks.splits import check_fraction, share, shuffled_order
from polymode.tasks.tables.table import Rows, standardised
from polymode.tasks.task import Task

VAL_FRACTION = 0.1
UCI_LICENCE = "CC BY 4.0 (UCI)"


@dataclass(frozen=True)
class Table:
    """One of the nine: what is predicted from what, and what to know before trusting a number."""

    name: str
    num_examples: int
    num_features: int
    target: str
    source: str
    unit: str = ""
    licence: str = UCI_LICENCE
    caution: str = ""

    @property
    def size(self) -> str:
        """Examples in train / val / test of a standard split."""
        test = round(self.num_examples / 10)
        val = share(VAL_FRACTION, self.num_examples - test)
        return " / ".join(f"{num:,}" for num in (self.num_examples - test - val, val, test))


TABLES = (
    Table(
        "boston",
        506,
        13,
        "median value of houses in Boston's suburbs of 1970",
        "D. Harrison, D. L. Rubinfeld, J. Environ. Economics and Management 5 (1978) 81-102",
        unit="1,000 USD",
        licence="not stated",
        caution="contested: column B (11) is a function of the share of black inhabitants, and the"
        " targets are cut off at 50; scikit-learn withdrew the set. For comparison with published"
        " numbers only",
    ),
    Table(
        "concrete",
        1030,
        8,
        "compressive strength of concrete from its mixture and age",
        "I.-C. Yeh, Cement and Concrete Research 28 (1998) 1797-1808",
        unit="MPa",
        caution="25 rows are duplicates, some of them across the split",
    ),
    Table(
        "energy",
        768,
        8,
        "heating load of simulated buildings from their shape",
        "A. Tsanas, A. Xifara, Energy and Buildings 49 (2012) 560-567",
        caution="the file does not state the unit",
    ),
    Table(
        "kin8nm",
        8192,
        8,
        "distance of a simulated robot arm's end from a target, from 8 joint angles",
        "Z. Ghahramani, the kin family of DELVE, University of Toronto (1996)",
        licence="not stated",
    ),
    Table(
        "naval",
        11934,
        16,
        "decay coefficient of a simulated ship's gas turbine compressor",
        "A. Coraddu, L. Oneto, A. Ghio, S. Savio, D. Anguita, M. Figari, Proc. IMechE M 230 (2016)"
        " 136-153",
        caution="columns 8 and 11 are constant; noise-free: scores say how far training got",
    ),
    Table(
        "power",
        9568,
        4,
        "hourly net output of a power plant from the weather",
        "P. Tüfekci, Int. J. Electrical Power and Energy Systems 60 (2014) 126-140",
        unit="MW",
        caution="41 rows are duplicates, some of them across the split",
    ),
    Table(
        "protein",
        45730,
        9,
        "distance (RMSD) of a predicted protein structure from the true one",
        "P. S. Rana, Physicochemical Properties of Protein Tertiary Structure, UCI (2013)",
        unit="Å",
        caution="1,711 rows are duplicates, some of them across the split",
    ),
    Table(
        "wine",
        1599,
        11,
        "quality of red wine, marks of 3 to 8, from chemical measurements",
        "P. Cortez, A. Cerdeira, F. Almeida, T. Matos, J. Reis, Decision Support Systems 47 (2009)"
        " 547-553",
        caution="240 rows are duplicates: of the 160 test rows of split 0, 51 are training rows"
        " too, so scores flatter; targets are integers",
    ),
    Table(
        "yacht",
        308,
        6,
        "residuary resistance of sailing yachts per unit weight of displacement",
        "J. Gerritsma, R. Onnink, A. Versluis, Int. Shipbuilding Progress 28 (1981) 276-297",
    ),
)


def uci(
    table: Table,
    *,
    seed: int = 0,
    split: int = 0,
    gap: int | None = None,
    val_fraction: float = VAL_FRACTION,
    noise: str | float = "learned",
) -> Task:
    """Return one of the nine regressions, inputs standardised, targets in their own units.

    Shifts of the test set, severities 1 to 5, of a standard split: columns with another scale, with
    noise, or missing. A gap split has none, as its test set is the shift.

    Args:
        seed: draws the shifts; the split does not depend on it.
        split: number of the standard split, from 0.
        gap: index of a feature from 0: the test set is the middle third of the rows by it. It takes
            the place of the standard split.
        val_fraction: share in [0, 1) of the training part that is held out for validation. With 0
            there is none, and the training part is that of published results.
        noise: "learned"; "output", a further output of the network that depends on the input; or
            the known standard deviation in units of the standardised target.
    """
    name = f"uci_{table.name}"
    check_fraction("val_fraction", name, val_fraction)
    keys = ("x", "y", "test", "gap_test")
    arrays = load("uci", [f"{table.name}_{key}" for key in keys])
    x, y = (torch.from_numpy(arrays[f"{table.name}_{key}"]).double() for key in "xy")
    test, which = _test_rows(name, table, arrays, split, gap)
    part = f"val/{'split' if gap is None else 'gap'}/{split if gap is None else gap}"
    rows = Rows.of(shuffled_order(len(x), name, part), test, val_fraction)
    return standardised(
        name,
        x,
        y,
        rows,
        likelihood=HeteroscedasticGaussian() if noise == "output" else Gaussian(noise=noise),
        seed=seed if gap is None else None,
        target_unit=table.unit,
        description=f"{table.target}; {which}" + (f" ({table.caution})" if table.caution else ""),
    )


def _test_rows(
    name: str, table: Table, arrays: dict[str, np.ndarray], split: int, gap: int | None
) -> tuple[torch.Tensor, str]:
    """Return (N,) bool, True for test rows, and what kind of split it is."""
    option, number = ("split", split) if gap is None else ("gap", gap)
    masks = arrays[f"{table.name}_{'test' if gap is None else 'gap_test'}"]
    if gap is not None and split != 0:
        raise ValueError(
            f"`gap` of {name} takes the place of `split`: give one of them, got gap={gap!r} and"
            f" split={split!r}"
        )
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < len(masks):
        raise ValueError(f"`{option}` of {name} must be 0 to {len(masks) - 1}, got {number!r}")
    which = f"standard split {split}" if gap is None else f"gap split by feature {gap}"
    return torch.from_numpy(masks[number]), which


for _table in TABLES:
    TASKS.register(
        f"uci_{_table.name}",
        description=f"{_table.target}, {_table.num_features} features"
        + (f"; {_table.caution}" if _table.caution else ""),
        source=_table.source,
        licence=_table.licence,
        kind="real",
        size=_table.size,
        data=("uci",),
    )(partial(uci, _table))
