"""The folder of a study: the runs of its parts, and what they show together.

study.json               which study and preset; its tables, claims and comparisons
figures/NAME.svg, .csv   its figures, and their numbers
report.html              all of it on one page
PART/                    the folder of each part's run, with a report of its own
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from polymode._version import __version__
from polymode.core.safe_files import is_plain_name, replace_file
from polymode.core.text import parse_json
from polymode.runs.part import Experiment, Part
from polymode.runs.run_plan import Plan, plan_experiment, plan_part
from polymode.runs.settings import Setting, UsageProblem, span
from polymode.studies.study import STUDIES, Study, parts_of
from polymode.tasks.files import DATASETS, MissingData, require

FILE = "study.json"


class StudyRequest(NamedTuple):
    """A study as it was asked for."""

    name: str
    preset: str = "cpu"
    only: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    settings: tuple[Setting, ...] = ()
    device: str = "cpu"
    examine: tuple[str, ...] = ()

    def command(self, out: str, *extra: str) -> str:
        """Return the line that runs it."""
        words = ["polymode", "run", self.name]
        words += ["--preset", self.preset] if self.preset != "cpu" else []
        for part in self.only:
            words += ["--part", part]
        words += ["--seeds", span(self.seeds)] if self.seeds else []
        for setting in self.settings:
            words += ["--set", str(setting)]
        for examination in self.examine:
            words += ["--examine", examination]
        words += ["--device", self.device] if self.device != "cpu" else []
        return shlex.join([*words, *extra, "--out", out])


def study_named(name: str) -> Study:
    """Return a study, or say which name is nearest."""
    try:
        return STUDIES.get(name).value
    except ValueError as error:
        raise UsageProblem(f"{error} For a task of your own: --task and --method") from error


def study_plans(wanted: StudyRequest) -> dict[str, Plan]:
    """Return the plan of each part; nothing has run before all of them are checked."""
    study = study_named(wanted.name)
    try:
        parts = parts_of(study, wanted.preset, wanted.only)
    except ValueError as error:
        raise UsageProblem(str(error)) from error
    plans = {}
    _require_data(
        [
            name
            for part in parts.values()
            for name in ((part.task,) if isinstance(part, Part) else part.data)
        ]
    )
    for name, part in parts.items():
        chosen = replace(part, seeds=wanted.seeds) if wanted.seeds else part
        who = (wanted.name, name), wanted.preset
        how: dict[str, Any] = {"settings": wanted.settings, "device": wanted.device}
        if isinstance(chosen, Experiment):
            plans[name] = plan_experiment(chosen, *who, **how)
        else:
            plans[name] = plan_part(chosen, *who, **how, examine=wanted.examine)
    return plans


def _require_data(tasks: Sequence[str]) -> None:
    """Name the one command that gets all missing data sets."""
    try:
        require(*(task for task in tasks if task in DATASETS))
    except MissingData as error:
        raise UsageProblem(str(error)) from error


def is_study(path: Path) -> bool:
    """Return whether a folder holds a study."""
    return (path / FILE).is_file()


def read_study(path: Path) -> dict[str, Any]:
    """Return what a study's folder says of itself."""
    try:
        content = parse_json((path / FILE).read_bytes())
    except ValueError as error:
        raise UsageProblem(f"{path / FILE} cannot be read: {error}") from error
    if not isinstance(content, dict) or not {"study", "preset", "parts"} <= set(content):
        raise UsageProblem(f"{path / FILE} cannot be read: it is not a study of polymode")
    parts, texts = content["parts"], [content["study"], content["preset"]]
    if not all(isinstance(text, str) for text in [*texts, content.get("command", "")]):
        raise UsageProblem(f"{path / FILE} cannot be read: study, preset, command must be text")
    if not isinstance(parts, list) or not all(map(is_plain_name, parts)):
        raise UsageProblem(
            f"{path / FILE} cannot be read: `parts` must be names of folders in it, got {parts!r}"
        )
    return content


def begin_study(path: Path, wanted: StudyRequest, parts: Sequence[str]) -> None:
    """Write which study the folder holds; one that holds another is refused."""
    held: dict[str, Any] = {}
    if is_study(path):
        held = read_study(path)
        before = held["study"], held["preset"]
        if before != (wanted.name, wanted.preset):
            raise UsageProblem(
                f"{path} holds study '{before[0]}', preset {before[1]}; choose another --out"
            )
    names = [*held.get("parts", []), *parts]
    facts = {"study": wanted.name, "preset": wanted.preset, "version": __version__}
    content = {**held, **facts, "parts": list(dict.fromkeys(names))}
    content["command"] = wanted._replace(only=()).command(str(path))
    path.mkdir(parents=True, exist_ok=True)
    write_study(path, content)


def write_study(path: Path, content: dict[str, Any]) -> None:
    """Write what a study's folder says of itself, whole or not at all."""
    replace_file(path / FILE, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())
