"""`polymode zoo`: train, look at and check zoos of independent networks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from polymode.cli.arguments import parse_settings
from polymode.cli.run import cluster_for
from polymode.cli.talk import Json, put, say, write
from polymode.core.columns import left_table, terminal_width
from polymode.runs.settings import UsageProblem

HELP = """Train, look at and check zoos: thousands of independent networks in files.

\b
Examples:
  polymode zoo train digits-lenet --networks 1000
  polymode zoo train mnist-optunet --networks 8192 --set task.num_train=10000 --out my-zoo
  polymode zoo train my-zoo --networks 10000
  polymode zoo info my-zoo
  polymode zoo verify my-zoo
  polymode run --task digits --method swag --examine symmetry:zoo=my-zoo

Without --out, a zoo lies in polymode/zoo in the cache folder.
"""

app = typer.Typer(help=HELP, no_args_is_help=True, rich_markup_mode=None)

Where = Annotated[str, typer.Argument(metavar="ZOO", help="a folder, or the name of a recipe")]


@app.command("train")
def train_(
    recipe: Annotated[
        str,
        typer.Argument(help="see `polymode zoo info`; or the folder of a zoo, to go on with it"),
    ],
    networks: Annotated[int, typer.Option("--networks", help="how many there shall be")] = 1000,
    seed: Annotated[int | None, typer.Option("--seed", help="of all networks (0)")] = None,
    per_shard: Annotated[
        int | None, typer.Option("--per-shard", help="networks of one file (100)")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option("--dtype", help="float16, float32 or float64 (float16)")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="key=value of the training, task.key=value, net.key=value"),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="folder of the zoo")] = None,
    device: Annotated[str, typer.Option("--device", help="cpu, cuda, ...")] = "cpu",
    jobs: Annotated[int, typer.Option("--jobs", help="shards at a time, with --backend ray")] = 2,
    backend: Annotated[str, typer.Option("--backend", help="processes, or ray")] = "processes",
    address: Annotated[str | None, typer.Option("--address", help="of a Ray cluster")] = None,
) -> None:
    """Train networks until the zoo has as many as are asked for; resumes what is there."""
    from polymode.core.safe_files import cache_folder
    from polymode.zoo import RECIPES, Zoo, train
    from polymode.zoo.train import progress_line

    cluster = cluster_for(backend, address)
    with _as_usage():
        is_folder = recipe not in RECIPES and Path(recipe).is_dir()
        chosen = Zoo(recipe).recipe if is_folder else RECIPES.get(recipe).value
        changed = {
            f"{s.owner}.{s.key}" if s.owner else s.key: s.value
            for s in parse_settings(settings or [])
        }
        chosen = chosen.with_settings(changed)
        if changed and out is None:
            raise UsageProblem("--set makes another zoo than the recipe's: give it a folder, --out")
        folder = out or (Path(recipe) if is_folder else cache_folder() / "zoo" / recipe)
        say(f"{networks:,} × {chosen.net} on {chosen.task} in {folder}, a line for each file")
        try:
            train(
                folder, chosen, networks, seed=seed, networks_per_shard=per_shard, dtype=dtype,
                device=device, watch=lambda *done: say(progress_line(*done)),
                cluster=cluster and cluster._replace(workers=jobs),
            )  # fmt: skip
        except KeyboardInterrupt:
            say(f"Interrupted; complete shards are in {folder}. Run the same command to resume.")
            raise typer.Exit(130) from None
        write(f"{folder}\n{Zoo(folder).describe()}")


@app.command("info")
def info(
    where: Annotated[str, typer.Argument(metavar="ZOO", help="a folder, or a recipe")] = "",
    json_: Json = False,
) -> None:
    """Show what a zoo holds; without a name, which recipes there are."""
    from polymode.zoo import RECIPES, find_zoo

    if not where:
        entries = [RECIPES.get(name) for name in RECIPES.names()]
        rows = [[entry.name, entry.metadata["summary"]] for entry in entries]
        if json_:
            put([{"name": entry.name, **entry.value.to_dict()} for entry in entries])
        else:
            write(left_table(["recipe", "what it is"], rows, terminal_width()))
        return
    with _as_usage():
        zoo = find_zoo(where)
        for problem in zoo.problems:
            say(f"polymode: {problem}")
        if json_:
            put({"folder": str(zoo.folder), **zoo.facts()._asdict(), "about": zoo.about})
        else:
            write(f"{zoo.folder}\n{zoo.describe()}")


@app.command("verify")
def verify(where: Where, json_: Json = False) -> None:
    """Read every byte of a zoo and name what is wrong; exit code 1 if anything is."""
    from polymode.zoo import find_zoo

    with _as_usage():
        zoo = find_zoo(where)
        problems = zoo.verify()
        if json_:
            put({"folder": str(zoo.folder), "networks": len(zoo), "problems": problems})
        for problem in problems:
            say(f"polymode: {problem}")
        if problems:
            say(
                "The other shards are as they were."
                f" `polymode zoo train {where} --networks {sum(s.size for s in zoo.shards)}` makes"
                " damaged ones again."
            )
            raise typer.Exit(1)
        if not json_:
            write(
                f"{zoo.folder}: {len(zoo):,} networks in {len(zoo.shards):,} shards, all as written"
            )


@contextmanager
def _as_usage() -> Iterator[None]:
    """Say what is wrong with names, options and files in one line."""
    try:
        yield
    except ValueError as error:  # FileProblem is one
        raise UsageProblem(" ".join(str(error).split())) from error
