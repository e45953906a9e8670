"""A study: the runs behind one paper's tables and figures, and what they are made of.

A study has parts; a part is one task and network with several arms (a method with its options, by
the name that the paper gives it), each run with several seeds; or an experiment, a function that
is no single fit, with several sets of options and seeds. Presets choose the sizes: `smoke`
takes seconds, `cpu` an hour or so on two cores with real data at reduced size, `paper` is the
paper's own set-up. What a study shows is made only from results, so that it can be made again from
the files of a run: tables and figures by name, claims with their verdicts, and, where the set-up is
the paper's, its numbers compared with ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from polymode.core.registry import Registry, suggest
from polymode.examinations import Findings, findings_of
from polymode.methods.method import on_all_data
from polymode.metrics.leaderboard import value_of
from polymode.metrics.paired import Difference, paired
from polymode.metrics.results import EXAMINED, Results
from polymode.plots import Display
from polymode.plots.forest import Comparison
from polymode.runs.defaults import PRESETS
from polymode.runs.part import Experiment, Part


class Runs:
    """Results of a study by part and arm, in the order of the plan; what is missing is not there.

    A folder keeps cells of an arm whose options changed since; of an arm's seed the last counts.

    >>> Runs({}).parts
    []
    """

    def __init__(self, results: Mapping[str, Sequence[Results]]) -> None:
        self._results = {
            part: list({(cell.label, cell.seed): cell for cell in cells}.values())
            for part, cells in results.items()
            if cells
        }

    @property
    def parts(self) -> list[str]:
        return list(self._results)

    def arms(self, part: str) -> list[str]:
        """Return the names of the arms that have results."""
        return list(dict.fromkeys(cell.label for cell in self._results.get(part, ())))

    def of(self, part: str, arm: str) -> list[Results]:
        """Return the results of an arm, one per seed, by seed."""
        cells = [cell for cell in self._results.get(part, ()) if cell.label == arm]
        return sorted(cells, key=lambda cell: cell.seed)

    def all(self, part: str) -> list[Results]:
        """Return all results of a part."""
        return list(self._results.get(part, ()))

    def values(self, part: str, arm: str, dataset: str, metric: str) -> dict[int, float]:
        """Return a number by seed.

        Args:
            dataset: "test", "shift:NAME:SEVERITY", ...; "shift:mean" is the mean over all shifts,
                "examined:LABEL" an examination, "examined:PART" the experiment that a part is.
        """
        values = {cell.seed: value_of(cell, dataset, metric) for cell in self.of(part, arm)}
        return {seed: value for seed, value in values.items() if value is not None}

    def measured(self, part: str, arm: str, metric: str) -> dict[int, float]:
        """Return a number of the experiment that the part is, by seed."""
        return self.values(part, arm, EXAMINED + part, metric)

    def findings(self, part: str, arm: str, label: str = "") -> dict[int, Findings]:
        """Return what was found about an arm, by seed.

        Args:
            label: of the examination, such as "equivariance:group=C4"; by default the experiment
                that the part is.
        """
        name = label or part
        by_seed = {cell.seed: findings_of(cell) for cell in self.of(part, arm)}
        return {seed: findings[name] for seed, findings in by_seed.items() if name in findings}

    def first_findings(self, part: str, arm: str) -> Findings | None:
        """Return the findings of the experiment that the part is, of the lowest seed."""
        return next(iter(self.findings(part, arm).values()), None)

    def difference(
        self, part: str, first: str, second: str, dataset: str, metric: str
    ) -> Difference | None:
        """Return first − second, paired by seed; None where they share no seed."""
        return paired_difference(
            self.values(part, first, dataset, metric), self.values(part, second, dataset, metric)
        )


def paired_difference(
    first: Mapping[int, float], second: Mapping[int, float] | float
) -> Difference | None:
    """Return first − second, paired by seed; None where they share no seed."""
    subtracted = second if isinstance(second, Mapping) else dict.fromkeys(first, second)
    return paired([first[seed] - subtracted[seed] for seed in first if seed in subtracted])


def paired_log_ratio(first: Mapping[int, float], second: Mapping[int, float]) -> Difference | None:
    """Return log(first / second), paired by seed; None where they share no seed."""
    return paired([math.log(first[seed] / second[seed]) for seed in first if seed in second])


class Table(NamedTuple):
    """A table as it is printed: headings, and lines of texts; the first column names the line.

    `note` says what the numbers are.
    """

    title: str
    head: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    note: str = ""


class Claim(NamedTuple):
    """A sentence of the paper, what it says there, and what was found here.

    Attributes:
        text: the claim. paper: its evidence in the paper, in numbers where there are some.
        ours: the same here, with n and interval. verdict: one of `VERDICTS`.
    """

    text: str
    paper: str
    ours: str
    verdict: str


VERDICTS = ("holds", "does not hold", "undecided", "not run")


@dataclass(frozen=True, kw_only=True)
class Study:
    """What `polymode run NAME` runs, and shows.

    Attributes:
        title, paper, bibtex: of the work. summary: one line.
        parts: from a preset to the parts by name.
        tables, figures: functions of the runs, to what they suffice for, by name.
        claims: function of the runs.
        comparisons: function of preset and runs: the paper's numbers that ours are held against;
            by default there are none.
    """

    title: str
    paper: str
    bibtex: str
    summary: str
    parts: Callable[[str], Mapping[str, Part | Experiment]]
    tables: Callable[[Runs], dict[str, Table]]
    figures: Callable[[Runs], dict[str, Display]]
    claims: Callable[[Runs], list[Claim]]
    comparisons: Callable[[str, Runs], list[Comparison]] = lambda preset, runs: []


def functions_of_modules(*modules: Any) -> dict[str, Any]:
    """Return the functions of a `Study` that has one module for each part of its paper.

    Args:
        modules: each with `parts`, `tables` and `claims`, as `Study` has; `figures` and
            `comparisons` may be missing.
    """

    def merge(function: str) -> Callable[..., dict[str, Any]]:
        functions: list[Any] = [getattr(module, function, lambda runs: {}) for module in modules]
        return lambda arg: {name: value for f in functions for name, value in f(arg).items()}

    def chain(function: str) -> Callable[..., list[Any]]:
        functions: list[Any] = [getattr(module, function, lambda *args: []) for module in modules]
        return lambda *args: [item for f in functions for item in f(*args)]

    merged = {name: merge(name) for name in ("parts", "tables", "figures")}
    return {**merged, **{name: chain(name) for name in ("claims", "comparisons")}}


STUDIES: Registry[Study] = Registry(
    "study",
    modules=[
        "polymode.studies.alpha_dropout",
        "polymode.studies.efficient",
        "polymode.studies.equivariance",
        "polymode.studies.forde",
        "polymode.studies.linearised_laplace",
        "polymode.studies.one_body",
        "polymode.studies.reference",
        "polymode.studies.symmetry",
        "polymode.studies.tables",
        "polymode.studies.tomography",
    ],
)


def whole(part: Part | Experiment) -> Part | Experiment:
    """Return a part whose methods train on all data to the last step, as those of the papers do,
    unless its arms say otherwise."""
    if not isinstance(part, Part):
        return part
    arms = {
        name: arm._replace(options={**on_all_data(arm.method), **arm.options})
        for name, arm in part.arms.items()
    }
    return replace(part, arms=arms)


def parts_of(study: Study, preset: str, only: Sequence[str] = ()) -> dict[str, Part | Experiment]:
    """Return the parts of a preset, those in `only` or all."""
    if preset not in PRESETS:
        raise ValueError(
            f"Unknown preset '{preset}'.{suggest(preset, PRESETS)} Presets: {', '.join(PRESETS)}."
        )
    parts = {name: whole(part) for name, part in study.parts(preset).items()}
    for name in only:
        if name not in parts:
            raise ValueError(
                f"Unknown part '{name}'.{suggest(name, parts)} Parts: {', '.join(parts)}."
            )
    return {name: part for name, part in parts.items() if not only or name in only}
