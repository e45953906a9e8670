"""Where samples of a posterior come from: a source of stacks of networks.

Sample number j of every mode is one stack of M networks, `weights.draw(j, seed)`. It is a function
of (seed, mode, j), so draws can be made in any order, in parts, or again. S = M L samples come from
L draws.

=========  ==================================  ===================================================
kind       holds                               draw(j, seed)
=========  ==================================  ===================================================
samples    a stack, or L of them               the stack number j, whatever the seed
noisy      a stack                             the stack with its random layers on, noise pinned
gaussian   means, standard deviations,         mean + std ε + Σ_r z_r d_r, one z for all layers
           deviations d_1, ..., d_R
shards     a folder with parts of the above    see `posterior/files.py`
on_trunk   any of these, of a network's end    behind a common trunk, see `posterior/on_trunk.py`
=========  ==================================  ===================================================

Files name the kind of their weights. One that belongs to a method is in the method's module, which
is imported when a file asks for it. What a file names is never imported, only what `HOMES` lists; a
kind of another package is known once its module, which enters it in `KINDS`, is imported.

Shapes: `M` modes, `L` samples per mode, `B` batch, `K` network outputs, `R` rank.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from polymode.core.memory import free_bytes
from polymode.core.rng import fold
from polymode.core.safe_files import TensorForm
from polymode.likelihoods.components import Categories, Densities, Moments
from polymode.likelihoods.kinds import Likelihood
from polymode.prediction import Prediction
from polymode.stack.fast.passes import noisy_passes
from polymode.stack.sharing import num_bytes
from polymode.stack.stack import Stack
from polymode.tracing.modules import Tensors

Outputs = Callable[[Tensor], Tensor]
T = TypeVar("T")


class Weights(ABC):
    """A distribution over the parameters of M modes.

    Attributes:
        kind: its name in files.
        stack: one network per mode, the centres.
        samples_per_mode: L that predictions take unless asked otherwise.
        most: the largest L there is, None where draws never end.
        chosen: what a method has chosen itself, for `Posterior.config`; JSON-safe.
        of_networks: whether samples are networks. False where the outputs of one network state a
            distribution of their own: samples are then points of it, and draws the network.
    """

    kind: ClassVar[str]
    of_networks: ClassVar[bool] = True
    stack: Stack
    samples_per_mode: int
    most: int | None = None
    chosen: Mapping[str, Any] = MappingProxyType({})

    @property
    def num_modes(self) -> int:
        return self.stack.num_modes

    @property
    def like(self) -> Stack:
        """A stack of this architecture, type and device, whatever its modes."""
        return self.stack

    @abstractmethod
    def draw(self, number: int, seed: int) -> Stack:
        """Return sample `number` of every mode, M networks."""

    @abstractmethod
    def __getitem__(self, modes: slice) -> Weights:
        """Return some modes; they share memory."""

    def parts(self) -> Iterator[Weights]:
        """Yield pieces that fit into memory, in the order of their modes."""
        yield self

    def meet(self, predictions: Sequence[Prediction]) -> Prediction:
        """Return the prediction of all modes from predictions of the `parts`."""
        return predictions[0] if len(predictions) == 1 else Prediction.join(predictions)

    @property
    def inner(self) -> Weights:
        """What the method made: weights of all of the network, or of what is trained of it."""
        return self

    def prepare(self, x: Tensor) -> Tensor:
        """Return what `outputs` and `moments` take for inputs (B, ...): these, or features."""
        return x

    def spread(self, x: Tensor) -> Tensor:
        """Return the inputs that the `parts` see, on all ranks alike."""
        return x

    def in_step(self) -> AbstractContextManager[None]:
        """Return a context in which all holders of the `parts` must take part."""
        return nullcontext()

    def outputs(self, samples_per_mode: int, seed: int) -> Outputs:
        """Return the function x (B, ...) -> outputs (M, L, B, K) of L samples per mode.

        It takes inputs that went through `prepare`. Draws are made once and held where they fit
        into half of the free memory; otherwise they are made again at every call.
        """
        if samples_per_mode * self.draw_bytes <= 0.5 * free_bytes(self.stack.device):
            return self.keep(samples_per_mode, seed).outputs(samples_per_mode, seed)
        draws = range(samples_per_mode)
        return lambda x: torch.stack([self.draw(number, seed)(x) for number in draws], 1)

    def noise(self, samples_per_mode: int, seed: int) -> Tensors:
        """Return the likelihood's own parameters of each sample, (M, L, ...) or (M, 1, ...)."""
        return {name: tensor.detach().unsqueeze(1) for name, tensor in self.stack.extra.items()}

    def components(
        self, likelihood: Likelihood, x: Tensor, samples_per_mode: int, seed: int
    ) -> Categories | Densities | None:
        """Return what L samples of every mode predict at prepared inputs, where that is more than
        what the likelihood says of outputs; None where it is not."""
        return None

    def moments(self, x: Tensor) -> Moments | None:
        """Return Gaussian outputs of every mode at prepared inputs x, where these are known in
        closed form; predictions are then made of them and not of samples."""
        return None

    def logits(self, moments: Moments, samples_per_mode: int, seeds: Sequence[int]) -> Tensor:
        """Return outputs (M, L, B, K) that stand for the moments where the likelihood has no closed
        form: draws, or one per mode that has the right prediction."""
        return moments.draw(samples_per_mode, seeds)

    def keep(self, samples_per_mode: int, seed: int) -> Samples:
        """Return L draws as kept samples."""
        draws = [changing_tensors(self.draw(number, seed)) for number in range(samples_per_mode)]
        return Samples(self.stack, {n: torch.stack([d[n] for d in draws]) for n in draws[0]})

    @torch.no_grad()
    def gather(self, chosen: Sequence[tuple[int, int]], seed: int) -> Stack:
        """Return a copy of the network of each pair (mode, number of its sample)."""
        stack = self.stack[[mode for mode, _ in chosen]]
        for number in {number for _, number in chosen}:
            drawn = self.draw(number, seed).tensors()
            places = [place for place, (_, sample) in enumerate(chosen) if sample == number]
            modes = [chosen[place][0] for place in places]
            for name, tensor in changing_tensors(stack).items():
                tensor[places] = drawn[name][modes]
        return stack

    @property
    def num_bytes(self) -> int:
        """Memory of all that is saved."""
        return sum(map(num_bytes, self.tensors().values()))

    @property
    def draw_bytes(self) -> int:
        """Memory of one draw of all modes."""
        return sum(t.numel() * t.element_size() for t in changing_tensors(self.stack).values())

    def tensors(self) -> Tensors:
        """Return all tensors to save, by name."""
        return self.stack.tensors()

    def numbers(self) -> dict[str, Any]:
        """Return the numbers to save beside the tensors, JSON-safe."""
        return {"samples_per_mode": self.samples_per_mode}

    @staticmethod
    def mode_axis(name: str) -> int:
        """Return which axis of a saved tensor has the modes."""
        return 0

    @classmethod
    def layout(
        cls, stack: Stack, forms: Mapping[str, TensorForm], numbers: dict[str, Any]
    ) -> dict[str, TensorForm]:
        """Return the tensors beside the stack that a file of its modes must hold, by name.

        A `ValueError` says which of the `numbers` cannot be right.

        Args:
            stack: networks of the file's modes, which need no values.
            forms: what the file holds: some groups of tensors may be left out.
            numbers: see `numbers`.
        """
        return {name: form for name, form in forms.items() if not of_stack(name)}

    @classmethod
    @abstractmethod
    def restore(cls, stack: Stack, tensors: Tensors, numbers: dict[str, Any]) -> Weights:
        """Return weights from a stack and the saved tensors beside it and numbers."""


def of_stack(name: str) -> bool:
    """Whether a saved tensor is one of `Stack.tensors`."""
    return name.startswith(("network/", "extra/"))


def form_of(tensor: Tensor, shape: Sequence[int] | None = None) -> TensorForm:
    """Return type and shape of a tensor, or its type with another shape."""
    return TensorForm(tensor.dtype, tensor.shape if shape is None else torch.Size(shape))


def changing_tensors(stack: Stack) -> Tensors:
    """Return what differs between samples of one mode, by the names of `Stack.tensors`."""
    network = {**stack.params, **stack.buffers}
    changing = {f"network/{name}": tensor.detach() for name, tensor in network.items()}
    return changing | {f"extra/{name}": tensor.detach() for name, tensor in stack.extra.items()}


class Samples(Weights):
    """Networks that were kept: one per mode, or `kept`, L per mode.

    Args:
        stack: one network per mode; the samples themselves where nothing is `kept`.
        kept: parameters, buffers and extra parameters (L, M, ...), by the names of `Stack.tensors`.
        facts: diagnostics (M,) of a sampler's chains by name, such as their acceptance.
    """

    kind = "samples"

    def __init__(
        self, stack: Stack, kept: Tensors | None = None, facts: Tensors | None = None
    ) -> None:
        self.stack, self.kept, self.facts = stack, kept or None, facts or {}
        self.samples_per_mode = len(next(iter(kept.values()))) if kept else 1
        self.most = self.samples_per_mode
        self._together: tuple[Any, Stack] | None = None

    def draw(self, number: int, seed: int) -> Stack:
        assert 0 <= number < self.samples_per_mode, number
        if self.kept is None:
            return self.stack
        groups: dict[str, Tensors] = {"network": {}, "extra": {}}
        for name, tensor in self.kept.items():
            group, _, tensor_name = name.partition("/")
            groups[group][tensor_name] = tensor[number]
        network = groups["network"]
        return self.stack.with_tensors(
            {name: network[name] for name in self.stack.params},
            {name: network[name] for name in self.stack.buffers},
            groups["extra"],
        )

    def __getitem__(self, modes: slice) -> Samples:
        samples = self.kept and {name: tensor[:, modes] for name, tensor in self.kept.items()}
        facts = {name: tensor[modes] for name, tensor in self.facts.items()}
        return Samples(self.stack[modes], samples, facts)

    def outputs(self, samples_per_mode: int, seed: int) -> Outputs:
        """All samples of all modes are one stack of L M networks, rebuilt if values change."""
        size = samples_per_mode, self.stack.num_modes
        tensors = changing_tensors(self.stack) if self.kept is None else self.kept
        values = [(tensor.data_ptr(), tensor._version) for tensor in tensors.values()]
        held = self._together  # another thread may want another number of samples
        if held is None or held[0] != (size, values):
            flat: Tensors = {}
            if self.kept is not None:
                flat = {n: tensor[:samples_per_mode].flatten(0, 1) for n, tensor in tensors.items()}
            held = self._together = (size, values), self.stack.repeated(samples_per_mode, flat)
        together = held[1]
        return lambda x: _by_pieces(together, x).unflatten(0, size).transpose(0, 1)

    def noise(self, samples_per_mode: int, seed: int) -> Tensors:
        if self.kept is None:
            return super().noise(samples_per_mode, seed)
        return {
            name: self.kept[f"extra/{name}"][:samples_per_mode].transpose(0, 1)
            for name in self.stack.extra
        }

    @staticmethod
    def mode_axis(name: str) -> int:
        return 1 if name.startswith("kept/") else 0

    def tensors(self) -> Tensors:
        samples = {f"kept/{name}": tensor for name, tensor in (self.kept or {}).items()}
        facts = {f"facts/{name}": tensor for name, tensor in self.facts.items()}
        return self.stack.tensors() | samples | facts

    @classmethod
    def layout(
        cls, stack: Stack, forms: Mapping[str, TensorForm], numbers: dict[str, Any]
    ) -> dict[str, TensorForm]:
        """All that changes between samples, where several or any are kept; any facts (M,)."""
        samples, changing = numbers["samples_per_mode"], {}
        if samples > 1 or _group("kept", forms):
            changing = changing_tensors(stack)
        facts = {f"facts/{name}": form.dtype for name, form in _group("facts", forms).items()}
        return {f"kept/{n}": form_of(t, (samples, *t.shape)) for n, t in changing.items()} | {
            name: TensorForm(dtype, torch.Size([stack.num_modes])) for name, dtype in facts.items()
        }

    @classmethod
    def restore(cls, stack: Stack, tensors: Tensors, numbers: dict[str, Any]) -> Samples:
        return cls(stack, _group("kept", tensors), _group("facts", tensors))


# Rows × networks at a time: with 2,560 of a transformer with adapters, outputs took 1.7 times as
# long as a loop over its members, with 640 or 1,020 they took 1.1.
_MEMBER_ROWS = 1024


def _by_pieces(stack: Stack, x: Any) -> Tensor:
    """Return the outputs of all networks; where these share a body, which `vmap` then evaluates, of
    so few rows at a time that intermediate results stay in the caches."""
    if not stack.shares or torch.is_grad_enabled():
        return stack(x)
    rows = max(8, _MEMBER_ROWS // stack.num_modes)
    return torch.cat([stack(piece) for piece in x.split(rows)], 1)


class Noisy(Weights):
    """Networks whose random layers (dropout and the like) stay on; a sample is one pinned noise.

    Args:
        stack: one network per mode. samples_per_mode: L, ≥ 1.
    """

    kind = "noisy"

    def __init__(self, stack: Stack, samples_per_mode: int) -> None:
        self.stack, self.samples_per_mode = stack, samples_per_mode

    @property
    def networks(self) -> Stack:
        """The networks that draw."""
        return self.stack

    def draw(self, number: int, seed: int) -> Stack:
        return self.networks.with_tensors({}).set_mode("noisy", pinned=fold(seed, "noisy", number))

    def __getitem__(self, modes: slice) -> Noisy:
        return Noisy(self.stack[modes], self.samples_per_mode)

    def outputs(self, samples_per_mode: int, seed: int) -> Outputs:
        """What comes before the noise is computed once, and passes are batched."""
        noisy = self.networks.repeated(1, {}).set_mode("noisy")
        numbers = [fold(seed, "noisy", number) for number in range(samples_per_mode)]
        return lambda x: noisy_passes(noisy, x, numbers)

    def keep(self, samples_per_mode: int, seed: int) -> Samples:
        raise ValueError("samples of noise are passes, not tensors that could be kept; use `draw`")

    def gather(self, chosen: Sequence[tuple[int, int]], seed: int) -> Stack:
        """Return noisy networks, each with its own stream."""
        stack = self.networks[[mode for mode, _ in chosen]]
        pairs = zip(stack.seeds, chosen, strict=True)
        stack.seeds = [fold(stream, "sample", number) for stream, (_, number) in pairs]
        return stack.set_mode("noisy", pinned=fold(seed, "noisy"))

    @classmethod
    def layout(
        cls, stack: Stack, forms: Mapping[str, TensorForm], numbers: dict[str, Any]
    ) -> dict[str, TensorForm]:
        return {}

    @classmethod
    def restore(cls, stack: Stack, tensors: Tensors, numbers: dict[str, Any]) -> Noisy:
        return cls(stack, numbers["samples_per_mode"])


class Gaussian(Weights):
    """A Gaussian per mode: θ = mean + std ε + Σ_r z_r d_r, with ε, z ~ N(0, I).

    One z serves all layers, so the low-rank part is correlated across them.

    Args:
        stack: the means, and buffers that suit all draws.
        std: standard deviations like `stack.params`, or None for none.
        deviations: d_r of each mode by the names of `stack.params`, (M, R, ...), or None.
        samples_per_mode: L, ≥ 1.
    """

    kind = "gaussian"

    def __init__(
        self,
        stack: Stack,
        std: Tensors | None,
        deviations: Tensors | None,
        samples_per_mode: int,
    ) -> None:
        self.stack, self.samples_per_mode = stack, samples_per_mode
        self.std, self.deviations = std or None, deviations or None

    def draw(self, number: int, seed: int) -> Stack:
        drawn = {name: mean.detach() for name, mean in self.stack.params.items()}
        if self.std is not None:
            noise = self.stack.normal("draw", seed, number)
            drawn = {n: torch.addcmul(t, self.std[n], noise[n]) for n, t in drawn.items()}
        if self.deviations is not None:
            rank = next(iter(self.deviations.values())).shape[1]
            z = self._coefficients(rank, seed, number)
            for name, d in self.deviations.items():
                low_rank = torch.bmm(z.unsqueeze(1), d.reshape(*z.shape, -1))
                drawn[name] = drawn[name] + low_rank.view_as(drawn[name])
        return self.stack.with_tensors(drawn)

    def _coefficients(self, rank: int, seed: int, number: int) -> Tensor:
        """Return z (M, R), from one stream per mode."""
        z = torch.empty(self.stack.num_modes, rank, dtype=self.stack.dtype)
        for row, stream in zip(z, self.stack.seeds, strict=True):
            generator = torch.Generator().manual_seed(fold(stream, "rank", seed, number))
            row.normal_(generator=generator)
        return z.to(self.stack.device)

    def __getitem__(self, modes: slice) -> Gaussian:
        std, deviations = (
            group and {name: tensor[modes] for name, tensor in group.items()}
            for group in (self.std, self.deviations)
        )
        return Gaussian(self.stack[modes], std, deviations, self.samples_per_mode)

    def tensors(self) -> Tensors:
        groups = {"std": self.std, "deviations": self.deviations}
        spreads = {f"{g}/{n}": t for g, group in groups.items() for n, t in (group or {}).items()}
        return self.stack.tensors() | spreads

    @classmethod
    def layout(
        cls, stack: Stack, forms: Mapping[str, TensorForm], numbers: dict[str, Any]
    ) -> dict[str, TensorForm]:
        """Standard deviations of all parameters or of none, and so deviations (M, R, ...)."""
        layout: dict[str, TensorForm] = {}
        params = stack.params.items()
        if _group("std", forms):
            layout |= {f"std/{name}": form_of(mean) for name, mean in params}
        for first in list(_group("deviations", forms).values())[:1]:
            rank = first.shape[1:2]
            layout |= {
                f"deviations/{name}": form_of(mean, (len(mean), *rank, *mean.shape[1:]))
                for name, mean in params
            }
        return layout

    @classmethod
    def restore(cls, stack: Stack, tensors: Tensors, numbers: dict[str, Any]) -> Gaussian:
        std, deviations = _group("std", tensors), _group("deviations", tensors)
        return cls(stack, std, deviations, numbers["samples_per_mode"])


def with_own_statistics(
    weights: Weights, inputs: Callable[[], Iterable[Tensor]], samples_per_mode: int, seed: int
) -> Weights:
    """Return weights whose draws each have their own running statistics.

    Weights of networks without such statistics are returned as they are. Otherwise L draws are
    kept, each with the statistics of a pass over `inputs()`. The centres get theirs in place.
    """
    if not weights.stack.has_statistics:
        return weights
    weights.stack.recompute_statistics(inputs())
    draws = []
    for number in range(samples_per_mode):
        drawn = weights.draw(number, seed)
        sample = drawn.with_tensors({}, {name: t.clone() for name, t in drawn.buffers.items()})
        sample.recompute_statistics(inputs())
        draws.append(changing_tensors(sample))
    return Samples(weights.stack, {n: torch.stack([draw[n] for draw in draws]) for n in draws[0]})


def _group(name: str, tensors: Mapping[str, T]) -> dict[str, T]:
    """Return the tensors below a name."""
    start = f"{name}/"
    return {n.removeprefix(start): t for n, t in tensors.items() if n.startswith(start)}


KINDS: dict[str, type[Weights]] = {kind.kind: kind for kind in (Samples, Noisy, Gaussian)}


HOMES = {
    "density": "polymode.methods.ddu",
    "evidential": "polymode.methods.evidential",
    "head": "polymode.methods.last_layer.head_weights",
    "batch_statistics": "polymode.methods.mc_batchnorm",
    "concrete": "polymode.methods.concrete_dropout",
    "laplace": "polymode.methods.laplace.laplace_weights",
    "on_trunk": "polymode.posterior.on_trunk",
}


def kind_named(name: str) -> type[Weights] | None:
    """Return the kind of weights that files call `name`, None where it is not known."""
    outer, _, inner = name.partition("/")
    if outer == "on_trunk":
        kind = kind_named(inner)
        return None if kind is None else import_module(HOMES[outer]).on_trunk(kind)
    if name not in KINDS and name in HOMES:
        import_module(HOMES[name])
    return KINDS.get(name)


def kind_names() -> list[str]:
    """Return the names of all kinds that files may hold."""
    return list(dict.fromkeys([*KINDS, *HOMES]))
