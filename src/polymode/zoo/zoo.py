"""A zoo on disk, opened: its networks as a posterior or a stack, its scores, and its damage.

zoo = Zoo("zoo/digits-lenet")
zoo.accuracy                     # (N,) of every network on the test set
post = zoo.posterior()           # shards are read when their turn comes
stack = zoo.stack(0, 100)        # the first hundred, in memory
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from polymode.core.checks import check_call
from polymode.core.memory import human
from polymode.core.registry import suggest
from polymode.core.safe_files import FileProblem, TensorFile, cache_folder
from polymode.likelihoods.kinds import Likelihood, likelihood_from_config
from polymode.posterior import Posterior
from polymode.posterior.files import Shards
from polymode.stack.stack import Stack
from polymode.zoo.index import ABOUT, Shard, read_about, read_index
from polymode.zoo.recipe import RECIPES, recipe_of
from polymode.zoo.train import Watch, progress_line, shard_problem, train

CHANCE = 1.5  # a network below so many times the accuracy of guessing has learnt nothing
_UNSEEN = 2**16  # numbers of a network, where no shard is there to show how many it has


class Facts(NamedTuple):
    """A summary of a zoo, for `polymode zoo info`."""

    networks: int
    shards: int
    parameters: int
    size: int
    dtype: str
    seconds: float
    accuracy: tuple[float, float, float] | None
    idle: int


class Zoo:
    """The networks in a folder of `train` or `import_published`.

    Attributes:
        folder, about: what the files say. shards: lines of the index, in order.
        problems: what is wrong with lines of the index; `verify` looks at the shards, too.
    """

    def __init__(self, folder: str | Path) -> None:
        check_call(Zoo.__init__, locals())
        self.folder = Path(folder)
        self.about = read_about(self.folder)
        self.shards, self.problems = read_index(self.folder)
        self.recipe = recipe_of(self.folder, self.about)
        self.likelihood, self._num_parameters = self._check_network()

    def __len__(self) -> int:
        return sum(shard.size for shard in self.shards)

    def __repr__(self) -> str:
        return f"Zoo({self.folder}: {len(self):,} × {self.recipe.net} on {self.recipe.task})"

    @property
    def digest(self) -> str:
        """A text that identifies the networks; it changes with any of them."""
        return "+".join(shard.digest[:8] for shard in self.shards)

    @property
    def accuracy(self) -> np.ndarray:
        """Accuracy of each network on the test set, (N,); NaN where it is not known."""
        return _column([(shard.accuracy, shard.size) for shard in self.shards])

    @property
    def nll(self) -> np.ndarray:
        """NLL of each network on the test set, (N,) nats; NaN where it is not known."""
        return _column([(shard.nll, shard.size) for shard in self.shards])

    @property
    def seeds(self) -> list[int]:
        """The stream of each network."""
        return [seed for shard in self.shards for seed in shard.seeds]

    def posterior(self, *, device: str | torch.device = "cpu") -> Posterior:
        """Return the networks as a posterior, one mode each; shards are opened in their turn."""
        if not self.shards:
            raise FileProblem(f"{self.folder} has no networks yet: polymode zoo train fills it")
        entries, position = [], 0
        for shard in self.shards:
            entry: dict[str, Any] = {"file": shard.file, "digest": shard.digest}
            entry |= {"modes": [position, position + shard.size], "seeds": list(shard.seeds)}
            entries.append(entry)
            position += shard.size
        likelihood, shape = self.likelihood, tuple(self.about["input_shape"])
        size = self.about["target_size"]
        self._check_room()
        manifest = {
            "tensors": entries,
            "weights": {"kind": "samples", "numbers": {"samples_per_mode": 1}},
            "dtype": "float64" if self.about["dtype"] == "float64" else "float32",
            "input_shape": list(shape),
            "output": None,
            "target_size": size,
            "channels_last": None,
            "seed": self.about["seed"],
            "network": self.recipe.net,
        }
        network = self.recipe.make_net(shape, likelihood.num_outputs(size))
        shards = Shards(self.folder, manifest, network, likelihood, torch.device(device))
        return Posterior(
            shards,
            likelihood,
            method=self.recipe.method,
            config={**self.recipe.options, "num_modes": position},
            seed=self.about["seed"],
            input_shape=shape,
            target_size=size,
        )

    def stack(self, first: int = 0, last: int | None = None) -> Stack:
        """Return networks number `first` to `last` − 1 in memory; by default all."""
        return self.posterior().weights[first : len(self) if last is None else last].stack

    def verify(self) -> list[str]:
        """Read every byte; return what is wrong, one sentence each."""
        problems = list(self.problems)
        for shard in self.shards:
            if problem := shard_problem(self.folder, shard):
                problems.append(problem)
        indexed = {shard.file for shard in self.shards}
        for path in sorted(self.folder.glob("shard-*.safetensors")):
            if path.name not in indexed:
                problems.append(f"{path} is not in the index: it is made again or left aside")
        return problems

    def facts(self) -> Facts:
        """Return what `polymode zoo info` shows."""
        accuracy = self.accuracy
        scored = accuracy[np.isfinite(accuracy)]
        quantiles = None
        if len(scored):
            low, middle, high = np.quantile(scored, (0.05, 0.5, 0.95)).tolist()
            quantiles = low, middle, high
        files = [self.folder / shard.file for shard in self.shards]
        size = self.about["target_size"]
        return Facts(
            networks=len(self),
            shards=len(self.shards),
            parameters=self._num_parameters,
            size=sum(path.stat().st_size for path in files if path.is_file()),
            dtype=self.about["dtype"],
            seconds=sum(shard.seconds for shard in self.shards),
            accuracy=quantiles,
            idle=int((scored < CHANCE / size).sum()) if self.likelihood.classification else 0,
        )

    def _check_network(self) -> tuple[Likelihood, int]:
        """Return the likelihood, and how many parameters a network has; no memory is taken for it.

        Layers take memory, too, so their numbers in the recipe may not exceed those of a network.
        """
        about, options = self.about, self.recipe.net_options
        shape, size = tuple(about["input_shape"]), about["target_size"]
        most = max(1024, self._numbers_per_network() or _UNSEEN)
        try:
            likelihood = likelihood_from_config(about["likelihood"])
            if (demand := _total(options)) > most:
                raise ValueError(f"`net_options` ask for {demand:,} of something; {most:,} fit")
            with torch.device("meta"):
                net = self.recipe.make_net(shape, likelihood.num_outputs(size))()
            return likelihood, sum(p.numel() for p in net.parameters())
        except (TypeError, ValueError, RuntimeError, ArithmeticError, LookupError) as error:
            what = str(error).partition("\n")[0]
            raise FileProblem(
                f"{self.folder / ABOUT} does not describe networks that can be made: {what}"
            ) from None

    def _numbers_per_network(self) -> int:
        """Return how many numbers the shards hold of a network, 0 where none can be read."""
        for shard in self.shards:
            try:
                with TensorFile(self.folder / shard.file) as file:
                    return sum(math.prod(form.shape[1:]) for form in file.forms.values())
            except (FileProblem, OSError):
                continue
        return 0

    def _check_room(self) -> None:
        """Refuse networks that are larger than what the shards hold, before any is made."""
        held = self._numbers_per_network()
        if self._num_parameters > held > 0:
            raise FileProblem(
                f"{self.folder} holds another architecture: a network of its recipe has"
                f" {self._num_parameters:,} parameters, one in the shards {held:,} numbers"
            )

    def describe(self) -> str:
        """Return the facts as text."""
        facts = self.facts()
        if not facts.networks:
            return f"no networks yet; {self.recipe.net} on {self.recipe.task}"
        lines = [
            f"{facts.networks:,} × {self.recipe.net} on {self.recipe.task},"
            f" {facts.parameters:,} parameters each, {facts.dtype}",
            f"{facts.shards:,} shards, {human(facts.size)}; trained in {facts.seconds:,.0f} s",
        ]
        if facts.seconds > 0:
            lines[-1] += f", {3600 * facts.networks / facts.seconds:,.0f} networks per hour"
        if facts.accuracy is not None:
            low, middle, high = facts.accuracy
            lines.append(f"accuracy: median {middle:.3f}, 90 % from {low:.3f} to {high:.3f}")
        if facts.idle:
            lines.append(f"{facts.idle:,} learnt nothing (accuracy below {CHANCE:g} × chance)")
        return "\n".join(lines)


def find_zoo(where: str, num_networks: int | None = None, *, watch: Watch | None = None) -> Zoo:
    """Return the zoo in a folder, or the one of a recipe in the cache folder.

    A name from `RECIPES` is trained there, up to `num_networks`, unless it has been.

    Args:
        where: a folder, or the name of a recipe.
        num_networks: how many there must be at least; None takes what is there.
        watch: see `train`; by default a line on stderr for each shard.
    """
    check_call(find_zoo, locals())
    folder = Path(where).expanduser()
    if not folder.is_dir() and where in RECIPES:
        folder = cache_folder() / "zoo" / where
        if num_networks is not None:
            train(folder, where, num_networks, watch=watch or _print_progress)
        elif not folder.is_dir():
            raise FileProblem(
                f"the zoo '{where}' has not been trained yet: polymode zoo train {where}"
            )
    if not folder.is_dir():
        near = suggest(where, RECIPES.names())
        raise FileProblem(
            f"'{where}' is neither the folder of a zoo nor a recipe.{near} Recipes:"
            f" {', '.join(RECIPES.names())}"
        )
    zoo = Zoo(folder)
    if num_networks is not None and len(zoo) < num_networks:
        raise FileProblem(
            f"{folder} has {len(zoo):,} networks, {num_networks:,} are asked for; ask for fewer, or"
            f" add some: polymode zoo train {folder} --networks {num_networks}"
        )
    return zoo


def _print_progress(shard: Shard, done: int, wanted: int) -> None:
    print(progress_line(shard, done, wanted), file=sys.stderr, flush=True)


def _column(parts: list[tuple[tuple[float | None, ...] | None, int]]) -> np.ndarray:
    columns = [
        [math.nan] * count if values is None else [math.nan if v is None else v for v in values]
        for values, count in parts
    ]
    return np.array([value for column in columns for value in column], float)


def _total(value: Any) -> int:
    """Return the sum of all integers in nested options, and of the lengths of their lists."""
    if isinstance(value, dict):
        return sum(map(_total, value.values()))
    if isinstance(value, list):
        return len(value) + sum(map(_total, value))
    return abs(value) if isinstance(value, int) else 0
