"""The verb `run`."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polymode.cli.arguments import parse_seeds, parse_settings
from polymode.cli.talk import Json, say
from polymode.runs.settings import UsageProblem

if TYPE_CHECKING:
    from polymode.distributed.ray import Cluster


StudyName = Annotated[
    str | None,
    typer.Argument(metavar="STUDY", help="a paper's runs; see `polymode list studies`"),
]
TaskName = Annotated[
    str | None, typer.Option(metavar="TASK", help="what to learn; see `polymode list tasks`")
]
TableFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="a csv or Parquet file with columns of any kind, as the task"
    ),
]
TargetColumn = Annotated[
    str | None, typer.Option(metavar="COLUMN", help="the column of --table to predict")
]
MethodNames = Annotated[
    list[str] | None,
    typer.Option(metavar="METHOD", help="see `polymode list methods`; repeat it for several"),
]
Seeds = Annotated[
    str | None, typer.Option(metavar="SEEDS", help="such as 0-2 or 0,3,7; by default 0")
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="an option of every method; of one: METHOD.KEY=VALUE, task.KEY=, net.KEY=",
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="all of this in TOML; the command line takes precedence"),
]
Preset = Annotated[
    str | None,
    typer.Option(metavar="PRESET", help="smoke (seconds), cpu (the default) or paper"),
]
PartNames = Annotated[
    list[str] | None,
    typer.Option(metavar="PART", help="only this part of the study; repeat it for several"),
]
NetName = Annotated[
    str | None,
    typer.Option(metavar="NET", help="see `polymode list nets`; by default the task's own"),
]
Out = Annotated[
    str | None,
    typer.Option(metavar="DIR", help="folder of the run; by default runs/TASK or runs/STUDY"),
]
Examine = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME[:KEY=VALUE,...]",
        help="an examination of each posterior; see `polymode list examinations`",
    ),
]
Jobs = Annotated[int, typer.Option(metavar="N", help="cells at a time, each in its own process")]
Backend = Annotated[
    str, typer.Option(metavar="BACKEND", help="processes of this machine, or ray: a Ray cluster")
]
ClusterAddress = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="of a Ray cluster; by default one on this machine"),
]
Device = Annotated[str, typer.Option(metavar="DEVICE", help="cpu, cuda, cuda:0 or mps")]
Fresh = Annotated[bool, typer.Option("--fresh", help="run all cells, done or not")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="show plan and estimate, write nothing")]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="print only the path of the report")]


def run(
    study: StudyName = None,
    task: TaskName = None,
    table: TableFile = None,
    target: TargetColumn = None,
    method: MethodNames = None,
    seeds: Seeds = None,
    set_: Settings = None,
    config: ConfigFile = None,
    preset: Preset = None,
    part: PartNames = None,
    net: NetName = None,
    examine: Examine = None,
    out: Out = None,
    jobs: Jobs = 1,
    backend: Backend = "processes",
    address: ClusterAddress = None,
    device: Device = "cpu",
    fresh: Fresh = False,
    dry_run: DryRun = False,
    quiet: Quiet = False,
    json_: Json = False,
) -> None:
    """Compare methods on a task, or reproduce a study; ends with a report.

    Cells (method × seed) that the folder has are not run again, so the same command resumes.

    \b
    Examples:
      polymode run --task digits --method map --method deep_ensemble --seeds 0-2
      polymode run --task digits --method map --set epochs=20 --out runs/short --dry-run
      polymode run --table houses.csv --target price --method deep_ensemble
      polymode run forde --preset smoke
    """
    from polymode.cli.request import request
    from polymode.cli.run_task import RunOptions, folder_of, run_task
    from polymode.runs.run_plan import make_plan

    _check_jobs(jobs)
    _join_ranks(jobs)
    cluster = cluster_for(backend, address)
    options = RunOptions(
        jobs=jobs, cluster=cluster, fresh=fresh, dry_run=dry_run, quiet=quiet, json_=json_
    )
    if study is not None:
        _refuse_other_names(study)
        chosen = {
            "--task": task,
            "--table": table,
            "--method": method,
            "--net": net,
            "--config": config,
        }
        _refuse_beside_study(study, chosen)
        from polymode.cli.run_study import run_study
        from polymode.studies.study_folder import StudyRequest

        preset = preset or "cpu"
        study_request = StudyRequest(
            study,
            preset,
            tuple(dict.fromkeys(part or [])),
            tuple(parse_seeds(seeds)) if seeds is not None else (),
            tuple(parse_settings(set_ or [])),
            device,
            tuple(dict.fromkeys(examine or [])),
        )
        run_study(study_request, folder_of(out, study, preset), options)
    _refuse_without_study(part)
    settings = [*table_settings(task, table, target), *(set_ or [])]
    wanted = request(
        task=task if table is None else "frame",
        methods=method or ([] if table is None else ["deep_ensemble"]),
        seeds=seeds,
        settings=settings,
        net=net,
        preset=preset,
        out=out,
        config=config,
        examine=examine or [],
    )
    for line in wanted.left_out:
        say(line)
    plan = make_plan(wanted, device)
    run_task(plan, folder_of(wanted.out, wanted.task, wanted.preset), options)


def table_settings(task: str | None, table: Path | None, target: str | None) -> list[str]:
    """Return what --table and --target stand for, as --set takes it."""
    if table is None and target is None:
        return []
    if table is None:
        raise UsageProblem("--target is a column of --table FILE: give the file, too")
    if task is not None:
        raise UsageProblem("--table is the task itself: leave out --task")
    if target is None:
        raise UsageProblem(f"--table {table} needs --target COLUMN, the column to predict")
    return [f"task.path={json.dumps(str(table))}", f"task.target={json.dumps(target)}"]


def _check_jobs(jobs: int) -> None:
    if jobs < 1:
        raise UsageProblem(f"--jobs must be at least 1, got {jobs}")


def cluster_for(backend: str, address: str | None) -> Cluster | None:
    """Return the Ray cluster that was asked for, None for processes of this machine."""
    from polymode.distributed import ranks
    from polymode.distributed.ray import Cluster

    if backend not in ("processes", "ray"):
        raise UsageProblem(f"--backend must be processes or ray, got '{backend}'")
    if backend == "processes":
        if address is not None:
            raise UsageProblem("--address is that of a Ray cluster: add --backend ray")
        return None
    if ranks.launched():
        raise UsageProblem("--backend ray and torchrun exclude each other: take one of the two")
    return Cluster(address)


def _join_ranks(jobs: int) -> None:
    """Find the other processes that torchrun started, if it started this one."""
    from polymode.distributed import ranks

    if not ranks.launched():
        return
    if jobs > 1:
        raise UsageProblem(
            f"--jobs {jobs} runs cells side by side, torchrun the modes of one cell: take one of"
            " the two"
        )
    ranks.start()
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))


def _refuse_other_names(study: str) -> None:
    """Say where the name of a task or a method belongs, if it stands in a study's place."""
    from polymode.methods import METHODS
    from polymode.studies import STUDIES
    from polymode.tasks import TASKS

    if study in STUDIES:
        return
    if study in TASKS:
        raise UsageProblem(
            f"'{study}' is a task, not a study: polymode run --task {study} --method map"
        )
    if study in METHODS:
        raise UsageProblem(
            f"'{study}' is a method, not a study: polymode run --task digits --method {study}"
        )


def _refuse_beside_study(study: str, chosen: dict[str, Any]) -> None:
    """Refuse options, by their names, that choose what a study has chosen."""
    if wrong := [name for name, value in chosen.items() if value]:
        raise UsageProblem(
            f"study '{study}' has its own tasks and methods; leave out {', '.join(wrong)}, or"
            " change it by --set, --seeds and --preset"
        )


def _refuse_without_study(part: list[str] | None) -> None:
    if part:
        raise UsageProblem("--part belongs to a study, as in polymode run forde --part regression")
