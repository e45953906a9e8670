"""A study: the runs behind one paper's tables and figures, and what they are made of.

A study has parts; a part is one task and network with several arms (a method with its options, by
the name that the paper gives it), each run with several seeds; or an experiment, a function that
is no single fit, with several sets of options and seeds. Presets choose the sizes: `smoke`
takes seconds, `cpu` an hour or so on two cores with real data at reduced size, `paper` is the
paper's own set-up. What a study shows is made from results alone, so that it can be made again from
the files of a run: tables and figures by name, claims with their verdicts, and, where the set-up is
the paper's, its numbers compared with ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from polymode.core.registry import Registry, suggest
from polymode.examinations import Findings, findings_of
from polymode.metrics.leaderboard import value_of
from polymode.metrics.paired import Difference, paired
from polymode.metrics.results import Results
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
            part: list({(each.label, each.seed): each for each in found}.values())
            for part, found in results.items()
            if found
        }

    @property
    def parts(self) -> list[str]:
        return list(self._results)

    def arms(self, part: str) -> list[str]:
        """Return the names of the arms that have results."""
        return list(dict.fromkeys(each.label for each in self._results.get(part, ())))

    def of(self, part: str, arm: str) -> list[Results]:
        """Return the results of an arm, one per seed, by seed."""
        found = [each for each in self._results.get(part, ()) if each.label == arm]
        return sorted(found, key=lambda each: each.seed)

    def all(self, part: str) -> list[Results]:
        """Return all results of a part."""
        return list(self._results.get(part, ()))

    def values(self, part: str, arm: str, dataset: str, metric: str) -> dict[int, float]:
        """Return a number by seed.

        Args:
            dataset: "test", "shift:NAME:SEVERITY", ...; "shift:mean" is the mean over all shifts,
                "examined:LABEL" an examination, "examined:PART" the experiment that a part is.
        """
        found = {each.seed: value_of(each, dataset, metric) for each in self.of(part, arm)}
        return {seed: value for seed, value in found.items() if value is not None}

    def findings(self, part: str, arm: str, label: str = "") -> dict[int, Findings]:
        """Return what was found about an arm, by seed.

        Args:
            label: of the examination, such as "equivariance:group=C4"; by default the experiment
                that the part is.
        """
        name = label or part
        every = {each.seed: findings_of(each) for each in self.of(part, arm)}
        return {seed: found[name] for seed, found in every.items() if name in found}

    def difference(
        self, part: str, first: str, second: str, dataset: str, metric: str
    ) -> Difference | None:
        """Return first − second, paired by seed; None where they share no seed."""
        ours = self.values(part, first, dataset, metric)
        theirs = self.values(part, second, dataset, metric)
        return paired([ours[seed] - theirs[seed] for seed in ours if seed in theirs])


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
        comparisons: function of preset and runs: the paper's numbers that ours are held against.
    """

    title: str
    paper: str
    bibtex: str
    summary: str
    parts: Callable[[str], Mapping[str, Part | Experiment]]
    tables: Callable[[Runs], dict[str, Table]]
    figures: Callable[[Runs], dict[str, Display]]
    claims: Callable[[Runs], list[Claim]]
    comparisons: Callable[[str, Runs], list[Comparison]]


def of_modules(*modules: Any) -> dict[str, Any]:
    """Return the functions of a `Study` that has one module for each part of its paper.

    Args:
        modules: each with `parts`, `tables`, `figures`, `claims` and `comparisons`, as `Study` has.
    """

    def by_name(function: str) -> Callable[..., dict[str, Any]]:
        return lambda *given: {
            name: each
            for module in modules
            for name, each in getattr(module, function)(*given).items()
        }

    def in_a_row(function: str) -> Callable[..., list[Any]]:
        return lambda *given: [
            each for module in modules for each in getattr(module, function)(*given)
        ]

    found: dict[str, Any] = {name: by_name(name) for name in ("parts", "tables", "figures")}
    return found | {name: in_a_row(name) for name in ("claims", "comparisons")}


STUDIES: Registry[Study] = Registry(
    "study",
    modules=[
        "polymode.studies.alpha_dropout",
        "polymode.studies.equivariance",
        "polymode.studies.forde",
        "polymode.studies.linearised_laplace",
        "polymode.studies.reference",
        "polymode.studies.symmetry",
        "polymode.studies.tomography",
    ],
)


def parts_of(study: Study, preset: str, only: Sequence[str] = ()) -> dict[str, Part | Experiment]:
    """Return the parts of a preset, those in `only` or all."""
    if preset not in PRESETS:
        raise ValueError(
            f"Unknown preset '{preset}'.{suggest(preset, PRESETS)} Presets: {', '.join(PRESETS)}."
        )
    parts = study.parts(preset)
    for name in only:
        if name not in parts:
            raise ValueError(
                f"Unknown part '{name}'.{suggest(name, parts)} Parts: {', '.join(parts)}."
            )
    return {name: part for name, part in parts.items() if not only or name in only}


def judged(difference: Difference | None, *, sign: int) -> str:
    """Return the verdict on a claimed sign of a difference: its 95 % interval must exclude 0.

    Args:
        difference: paired over seeds; None where there was none.
        sign: 1 where the claim is that it is positive, −1 negative.
    """
    if difference is None:
        return "not run"
    if not difference.clear:
        return "undecided"
    return "holds" if difference.mean * sign > 0 else "does not hold"


def with_interval(gap: Difference, digits: int = 3, factor: float = 1) -> str:
    """Return a difference with its 95 % interval, where it has one.

    >>> with_interval(Difference(-0.1, 0.02, 5, -0.15, -0.05), digits=2)
    '−0.10 [−0.15, −0.05]'
    """
    text = f"{factor * gap.mean:+.{digits}f}"
    if gap.low is not None and gap.high is not None:
        text += f" [{factor * gap.low:+.{digits}f}, {factor * gap.high:+.{digits}f}]"
    return text.replace("-", "−")


def said(
    gap: Difference | None, what: str, over: str = "seeds", digits: int = 3, factor: float = 1
) -> str:
    """Return a difference with its interval and the number of its pairs, for a claim.

    >>> said(Difference(-0.1, 0.02, 5, -0.15, -0.05), "NLL")
    'NLL: −0.100 [−0.150, −0.050], 5 seeds'
    """
    if gap is None:
        return f"{what}: not run"
    pairs = over.removesuffix("s") if gap.n == 1 else over
    return f"{what}: {with_interval(gap, digits, factor)}, {gap.n} {pairs}"
