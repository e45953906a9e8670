"""`polymode audit`: a verdict on a trained network, for people and for pipelines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polymode.cli.talk import Json, put, say, write
from polymode.runs.settings import UsageProblem

Files = Annotated[
    list[Path] | None,
    typer.Option(
        "--weights",
        help="a safetensors or torch file of tensors, a folder of them, or a saved posterior;"
        " repeat it for members",
    ),
]
Several = Annotated[
    list[str] | None,
    typer.Option("--groups", help="a column of the table or array of the .npz; may be repeated"),
]
Elsewhere = Annotated[
    list[str] | None,
    typer.Option("--ood", help="an array of the .npz, a table, or a folder; may be repeated"),
]


def audit(
    *,
    net: Annotated[
        str, typer.Option("--net", help="package.module:function that returns the network")
    ],
    data: Annotated[
        Path,
        typer.Option(
            "--data",
            help="an .npz with x_test, y_test, x_val, y_val, x_train, y_train; a table; or a folder"
            " of images with a subfolder for each class",
        ),
    ],
    weights: Files = None,
    target: Annotated[
        str | None, typer.Option("--target", help="the column of a table that is predicted")
    ] = None,
    val: Annotated[
        Path | None, typer.Option("--val", help="further labelled data, a table or a folder")
    ] = None,
    train: Annotated[
        Path | None, typer.Option("--train", help="the training data, a table or a folder")
    ] = None,
    size: Annotated[int | None, typer.Option("--size", help="side to resize images to")] = None,
    likelihood: Annotated[
        str | None, typer.Option("--likelihood", help="such as heteroscedastic_gaussian")
    ] = None,
    groups: Several = None,
    ood: Elsewhere = None,
    baseline: Annotated[
        Path | None, typer.Option("--baseline", help="weights of an older version of the network")
    ] = None,
    budget: Annotated[str, typer.Option("--budget", help="time for trials, as 90s or 10m")] = "10m",
    fail_on: Annotated[
        str, typer.Option("--fail-on", help="exit with 1 from this severity on: low, medium, high")
    ] = "medium",
    out: Annotated[Path, typer.Option("--out", help="folder of the page")] = Path("audit"),
    save: Annotated[
        Path | None, typer.Option("--write", help="folder for the best posterior that was tried")
    ] = None,
    json_: Json = False,
) -> int:
    """Say whether a trained network can be trusted, on one page and by the exit code.

    Nothing is trained again. The function of --net is your own code and is run.

    \\b
    Examples:
      polymode audit --net mypkg.model:build --weights model.safetensors --data data.npz
      polymode audit --net mypkg.model:build --weights new.pt --baseline old.pt --data data.npz
      polymode audit --net mypkg.model:build --weights members/ --data test.csv --target city

    Exit codes: 0 sound, 1 findings of that severity, 2 usage, 130 interrupted.
    """
    from polymode.audits import SEVERITIES
    from polymode.audits import audit as look_at
    from polymode.cli.audit_inputs import Names, factory, loaded, networks, read_sets
    from polymode.posterior import Posterior

    if fail_on not in SEVERITIES[1:]:
        raise UsageProblem(f"--fail-on takes {', '.join(SEVERITIES[1:])}, not '{fail_on}'")
    seconds = _seconds(budget)
    make = factory(net)
    members = networks(make, weights or [])
    encoder = members.encoder if isinstance(members, Posterior) else None
    names = Names(target, groups or (), ood or (), val, train, size)
    older = None if baseline is None else loaded(make(), baseline)
    try:
        sets = read_sets(data, names, encoder)
        result = look_at(
            members[0] if isinstance(members, list) and len(members) == 1 else members,
            sets.test,
            val=sets.val,
            train=sets.train,
            groups=sets.groups,
            ood=sets.ood,
            baseline=older,
            likelihood=likelihood or sets.likelihood,
            class_names=sets.class_names,
            budget=seconds,
            progress=lambda name: say(f"  {name} …"),
        )
    except ValueError as problem:
        raise UsageProblem(str(problem)) from problem
    except KeyboardInterrupt:
        say("polymode: interrupted; nothing was written")
        return 130
    page = result.save(out)
    if save is not None and result.best is not None:
        result.best.save(save)
        say(f"Posterior: {save}")
    if json_:
        put(result.to_dict())
    else:
        write(repr(result))
        say(f"Page: {page}")
    return int(result.fails(fail_on))


def _seconds(text: str) -> float:
    unit = {"s": 1, "m": 60, "h": 3600}.get(text[-1:], 0)
    try:
        value = float(text[:-1]) * unit if unit else float(text)
    except ValueError:
        value = -1.0
    if value <= 0:
        raise UsageProblem(f"--budget takes a time such as 90s or 10m, not '{text}'")
    return value
