"""A posterior: a stack of networks that predicts, samples, saves and loads.

    p(y | x, D) ≈ (1/S) Σ_s p(y | f_{θ_s}(x))

Every member is one sample of the approximate posterior, so S = M here. Predictions are mixtures
over the members. Normalisation layers predict with the running statistics of their own member.

Shapes: `M` modes, `S` samples, `B` batch, `C` classes or outputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from polymode.core.data import Arrays, Loader
from polymode.core.history import History
from polymode.core.html import html_block, html_details, html_facts
from polymode.core.likelihoods import Likelihood, likelihood_from_config
from polymode.core.memory import free_bytes, human
from polymode.core.rng import generator
from polymode.core.scaling import Scaling
from polymode.core.stack import Stack
from polymode.core.store import FileProblem, read_json, read_tensors, write_json, write_tensors
from polymode.nets.network import networks_for
from polymode.prediction import MixturePrediction, Prediction, predict_from

SCHEMA = 1
_MANIFEST = "posterior.json"
_BATCH = 256  # rows at a time: large enough to keep the cores busy, small enough for their caches


class Posterior:
    """An approximate posterior over networks, made by `pm.fit` or `pm.load`.

    Attributes:
        stack: the networks. likelihood: how targets depend on their outputs.
        method, config, seed: how it was made. input_shape: shape of one example.
        target_size: number of classes or of regression targets.
        target_scaling: how regression targets were scaled for training, or None; predictions are
            in the units of the targets.
        history: loss curves and time of the fit, see `core/history.py`.
    """

    def __init__(
        self,
        stack: Stack,
        likelihood: Likelihood,
        *,
        method: str,
        config: dict[str, Any],
        seed: int,
        input_shape: tuple[int, ...],
        target_size: int,
        target_scaling: Scaling | None = None,
        history: History | None = None,
    ) -> None:
        self.stack = stack.eval()
        self.likelihood = likelihood
        self.method, self.config, self.seed = method, config, seed
        self.input_shape, self.target_size = tuple(input_shape), target_size
        self.target_scaling = target_scaling
        self.history = history or History()

    def __repr__(self) -> str:
        return (
            f"Posterior({self.method}: {self.num_modes} × {type(self.stack.template).__name__},"
            f" {self.stack.num_parameters:,} parameters each, {self.likelihood.name})"
        )

    def _repr_html_(self) -> str:
        """Return what it is made of, for notebooks."""
        facts = {
            "networks": f"{self.num_modes:,} × {type(self.stack.template).__name__}",
            "parameters": f"{self.stack.num_parameters:,} each",
            "likelihood": self.likelihood.name,
            "inputs": f"(B, {', '.join(map(str, self.input_shape))})",
            "classes" if self.likelihood.classification else "outputs": f"{self.target_size:,}",
            "seed": self.seed,
        }
        options = html_details("options", html_facts(self.config))
        return html_block(f"Posterior: {self.method}", html_facts(facts), options)

    @property
    def num_modes(self) -> int:
        return self.stack.num_modes

    @property
    def members(self) -> list[nn.Module]:
        """The networks as ordinary modules with memory of their own."""
        return self.stack.members()

    def predict(self, x: Any, *, batch_size: int = _BATCH) -> Prediction:
        """Return the predictive distribution at inputs `x` (B, *input_shape).

        Args:
            x: an array or tensor, or data (`task.test`) or a loader of (inputs, targets) whose
                targets are not looked at.
            batch_size: rows evaluated at a time; the result does not depend on it.
        """
        if not isinstance(x, (Loader, DataLoader)):
            rows = len(x)
            need = rows * self.num_modes * self.target_size * self.stack.dtype.itemsize
            if need > free_bytes():
                raise ValueError(
                    f"predictions for {rows:,} inputs × {self.num_modes} samples ×"
                    f" {self.target_size} outputs need {human(need)}; {human(free_bytes())} free."
                    " Use post.stream(x), which yields them in parts"
                )
        return Prediction.cat(list(self.stream(x, batch_size=batch_size)))

    def stream(self, x: Any, *, batch_size: int = _BATCH) -> Iterator[Prediction]:
        """Yield the predictions of `predict` part by part, in bounded memory."""
        if not isinstance(batch_size, int) or batch_size < 1:
            raise ValueError(f"`batch_size` must be an integer of at least 1, got {batch_size!r}")
        if isinstance(x, (Arrays, Loader, DataLoader)):
            data = Loader(x) if isinstance(x, DataLoader) else x
            parts: Iterable[Tensor] = (self._inputs(part) for part, _ in data.batches(batch_size))
        else:
            parts = self._inputs(x).split(batch_size)
        for part in parts:
            with torch.no_grad():
                outputs = self.stack(part)
            prediction = predict_from(self.likelihood.components(outputs, self._noise()))
            if self.target_scaling is not None:
                assert isinstance(prediction, MixturePrediction)
                prediction = prediction.rescale(
                    self.target_scaling.shift, self.target_scaling.scale
                )
            yield prediction

    def _noise(self) -> dict[str, Tensor]:
        """The likelihood's learned parameters, without gradients."""
        return {name: tensor.detach() for name, tensor in self.stack.extra.items()}

    def _inputs(self, x: Any) -> Tensor:
        """Return inputs as the networks take them."""
        x = torch.as_tensor(x)
        if tuple(x.shape[1:]) != self.input_shape or x.dim() == 0:
            raise ValueError(
                f"inputs have shape {tuple(x.shape)}; this posterior was fitted on (B,"
                f" {', '.join(map(str, self.input_shape))})"
            )
        if x.shape[0] == 0:
            raise ValueError("there is nothing to predict: 0 inputs")
        if not x.is_floating_point():
            return x.to(self.stack.device)
        x = x.to(self.stack.device, self.stack.dtype)
        if not torch.isfinite(x.sum()):  # a sum is quick; it may overflow, so look closer
            rows = (~torch.isfinite(x.flatten(1)).all(1)).nonzero().flatten()
            if len(rows):
                raise ValueError(
                    f"{len(rows):,} of {len(x):,} inputs hold NaN or infinity, the first is row"
                    f" {int(rows[0])}"
                )
        return x

    def sample(self, num_samples: int, *, seed: int = 0) -> Stack:
        """Return `num_samples` networks drawn from the posterior: members, with replacement."""
        if not isinstance(num_samples, int) or num_samples < 1:
            raise ValueError(f"`num_samples` must be an integer of at least 1, got {num_samples!r}")
        chosen = torch.randint(self.num_modes, (num_samples,), generator=generator(seed, "sample"))
        return self.stack[chosen.tolist()]

    def save(self, folder: str | Path) -> None:
        """Write the posterior to `folder`; what was there stays whole until the new one is."""
        if self.stack.members_differ:
            raise ValueError(
                "the members differ in plain attributes"
                f" ({', '.join(self.stack.members_differ)}), which a file of tensors cannot hold"
            )
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        number = 1 + max((int(p.stem.split("-")[1]) for p in _tensor_files(folder)), default=0)
        file = folder / f"members-{number}.safetensors"
        digest = write_tensors(file, self.stack.tensors(), {"schema": SCHEMA})
        manifest = {
            "schema": SCHEMA,
            "method": self.method,
            "config": self.config,
            "seed": self.seed,
            "likelihood": self.likelihood.to_config(),
            "input_shape": list(self.input_shape),
            "target_size": self.target_size,
            "target_scaling": self.target_scaling and self.target_scaling.to_dict(),
            "num_modes": self.num_modes,
            "dtype": str(self.stack.dtype).removeprefix("torch."),
            "channels_last": self.stack.channels_last,
            "network": type(self.stack.template).__name__,
            "tensors": file.name,
            "tensors_digest": digest,
            "history": self.history.to_dict(),
        }
        write_json(folder / _MANIFEST, manifest)
        for old in _tensor_files(folder):
            if old != file:
                old.unlink()


def _tensor_files(folder: Path) -> list[Path]:
    return [p for p in folder.glob("members-*.safetensors") if p.stem.split("-")[1].isdigit()]


def load(folder: str | Path, *, net: Any, device: str | torch.device = "cpu") -> Posterior:
    """Return the posterior that `Posterior.save` wrote to `folder`.

    Args:
        folder: where it was saved.
        net: the architecture: a builder from `pm.nets`, a function that returns a module, or a
            module. Its weights are not used.
        device: where the networks shall live.

    A file that is truncated, changed, from a newer release or of another architecture is refused
    with a message that says which.
    """
    folder = Path(folder)
    manifest = read_json(folder / _MANIFEST, SCHEMA)
    likelihood = likelihood_from_config(manifest["likelihood"])
    input_shape = tuple(manifest["input_shape"])
    size = manifest["target_size"]
    scaling = manifest["target_scaling"]
    num_modes = manifest["num_modes"]
    network = networks_for(net, input_shape, likelihood.num_outputs(size))
    dtype = getattr(torch, manifest["dtype"])
    stack = Stack.allocate(network, num_modes, seed=manifest["seed"], dtype=dtype, device=device)
    stack.add_parameters(likelihood.init(num_modes, size, dtype=dtype))
    if manifest["channels_last"] is not None:  # numbers depend on it in their last digits
        stack.lay_out(manifest["channels_last"])
    file = folder / manifest["tensors"]

    def into_stack(metadata: dict[str, Any], shapes: dict[str, torch.Size]) -> dict[str, Tensor]:
        mine = stack.tensors()
        for name in [*mine, *shapes]:
            ours, theirs = mine.get(name), shapes.get(name)
            if ours is None or theirs is None or ours.shape != theirs:
                raise FileProblem(
                    f"{folder} holds another architecture ({manifest['network']}): '{name}' is"
                    f" {_shape(theirs)} in the file and {_shape(ours)} in the network given"
                )
        return mine

    _, metadata = read_tensors(file, into_stack, digest=manifest["tensors_digest"])
    return Posterior(
        stack,
        likelihood,
        method=manifest["method"],
        config=manifest["config"],
        seed=manifest["seed"],
        input_shape=input_shape,
        target_size=size,
        target_scaling=scaling and Scaling.from_dict(scaling),
        history=History.from_dict(manifest["history"]) if "history" in manifest else None,
    )


def _shape(tensor: Tensor | torch.Size | None) -> str:
    if tensor is None:
        return "absent"
    shape = tensor.shape if isinstance(tensor, Tensor) else tensor
    return f"of shape {tuple(shape[1:])}"
