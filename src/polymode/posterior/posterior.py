"""A posterior: a source of networks that predicts, samples, saves and loads.

    p(y | x, D) ≈ (1/S) Σ_s p(y | f_{θ_s}(x)),        S = M L

Predictions are mixtures over L samples of each of M modes. Normalisation layers predict with the
running statistics of their own sample.

Shapes: `M` modes, `L` samples per mode, `S` samples, `B` batch, `C` classes or outputs.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from polymode.conformal.mondrian import DifficultyGroups
from polymode.conformal.stored import Rule
from polymode.core.checks import Count, NumModes, Seed, as_numbers, check_call, shown
from polymode.core.html import html_block, html_details, html_facts
from polymode.core.memory import require_free
from polymode.core.rng import fold, generator
from polymode.core.rows import (
    Rows,
    Shapes,
    as_rows,
    is_one_shape,
    is_several,
    map_leaves,
    shapes_text,
    why_not_same,
)
from polymode.likelihoods.components import Categories, Densities
from polymode.likelihoods.kinds import Likelihood
from polymode.likelihoods.scaling import Scaling
from polymode.posterior import maps
from polymode.posterior.bundle import Answer, Bundle, group_column
from polymode.posterior.ranked import Ranked
from polymode.posterior.views import Views, averaged_views, with_views
from polymode.posterior.weights import Weights
from polymode.prediction import DensityPrediction, Prediction, predict_from
from polymode.prediction.averages import averaged
from polymode.recalibration import Recalibration
from polymode.stack.stack import Stack
from polymode.stack.vocabulary import explain_ids
from polymode.tasks.frames.columns import is_frame
from polymode.tasks.frames.encoder import TableEncoder
from polymode.training.data import TARGET_NAMES, Arrays, Loader, as_data
from polymode.training.history import History

Meet = Callable[[Sequence[Prediction]], Prediction]

_CHECKED = ("samples_per_mode",)  # its own message names a remedy
_BATCH = 256  # rows at a time: large enough to keep the cores busy, small enough for their caches


class Posterior:
    """An approximate posterior over networks, made by `pm.fit` or `pm.load`.

    `post[:3]` is the posterior of the first three modes; it shares their memory.

    Attributes:
        weights: where samples come from. stack: one network per mode, the centres.
        likelihood: how targets depend on the networks' outputs.
        method, config, seed: how it was made. input_shape: shape of one example; of several inputs
            their shapes, by name or by position.
        target_size: number of classes or of regression targets.
        input_scaling: how the task had scaled its raw inputs, or None; predictions are at inputs
            that are scaled already.
        target_scaling: how regression targets were scaled for training, or None; predictions are
            in the units of the targets.
        history: loss curves and time of the fit, see `training/history.py`.
        bundle: the rules of `answer`, or None; saved and loaded with the posterior.
        views: the views of each input that predictions average, or None; see `augmented`.
        encoder: what made the inputs of a table, or None; with it, tables are predicted from.
    """

    bundle: Bundle | None = None
    views: Views | None = None

    def __init__(
        self,
        weights: Weights,
        likelihood: Likelihood,
        *,
        method: str,
        config: dict[str, Any],
        seed: int,
        input_shape: Shapes,
        target_size: int,
        input_scaling: Scaling | None = None,
        target_scaling: Scaling | None = None,
        history: History | None = None,
        encoder: TableEncoder | None = None,
    ) -> None:
        self.weights = weights
        self.likelihood = likelihood
        self.method, self.config, self.seed = method, config, seed
        self.input_shape, self.target_size = input_shape, target_size
        self.input_scaling, self.target_scaling = input_scaling, target_scaling
        self.history = history or History()
        self.encoder = encoder

    def __repr__(self) -> str:
        samples, like = self.weights.samples_per_mode, self.weights.like
        drawn = f" × {samples} samples" if samples > 1 else ""
        if self.views is not None:
            drawn += f" × {len(self.views)} views"
        return (
            f"Posterior({self.method}: {self.num_modes} × {type(like.template).__name__},"
            f" {self._trained}{drawn}, {self.likelihood.name})"
        )

    @property
    def _trained(self) -> str:
        """What each network has that was trained."""
        like = self.weights.like
        return like.trained if like.frozen else f"{like.trained} each"

    def _repr_html_(self) -> str:
        """Return what it is made of, for notebooks."""
        like = self.weights.like
        facts = {
            "networks": f"{self.num_modes:,} × {type(like.template).__name__}",
            "samples": f"{self.num_samples:,}, {self.weights.samples_per_mode:,} per mode",
            "parameters": self._trained.replace(" parameters", ""),
            "likelihood": self.likelihood.name,
            "inputs": shapes_text(self.input_shape),
            "classes" if self.likelihood.classification else "outputs": f"{self.target_size:,}",
            "seed": self.seed,
        }
        options = html_details("options", html_facts(self.config))
        return html_block(f"Posterior: {self.method}", html_facts(facts), options)

    @property
    def stack(self) -> Stack:
        """One network per mode, the centres."""
        return self.weights.stack

    @property
    def num_modes(self) -> int:
        return self.weights.num_modes

    @property
    def num_samples(self) -> int:
        """S = M L, the networks that a prediction is made of unless asked otherwise."""
        return self.num_modes * self.weights.samples_per_mode

    @property
    def members(self) -> list[nn.Module]:
        """One network per mode as ordinary modules, which share no memory with the stack."""
        return self.stack.members()

    def __getitem__(self, modes: slice) -> Posterior:
        """Return the posterior of some modes."""
        if not isinstance(modes, slice):
            raise TypeError(f"a posterior is indexed by a slice of its modes, got {modes!r}")
        part = copy.copy(self)
        part.weights = self.weights[modes]
        part.config = {**self.config, "num_modes": part.num_modes}
        part.history = self.history.of_modes(modes)
        part.bundle = None  # chosen on the predictions of all modes
        return part

    def predict(
        self,
        x: Any,
        *,
        samples_per_mode: int | None = None,
        seed: Seed = 0,
        batch_size: Count = _BATCH,
    ) -> Prediction:
        """Return the predictive distribution at inputs `x` (B, *input_shape).

        Of classes at pixels it holds averages over samples, as maps, if those would take over 1 GB.

        Args:
            x: an array or tensor, a dictionary or tuple of them where the networks take several, a
                DataFrame if the task had one, data (`task.test`), or a loader of inputs, with or
                without targets: these are ignored.
            samples_per_mode: L; by default the number that the method was given.
            seed: seed of the samples, if the posterior draws; the same seed gives the same ones.
            batch_size: rows evaluated at a time; the result does not depend on it.
        """
        check_call(Posterior.predict, locals(), but=_CHECKED)
        samples = self._samples(samples_per_mode)
        if maps.has_maps(self):
            options: dict[str, Any] = {"seed": seed, "batch_size": batch_size}
            parts = self.stream(x, samples_per_mode=samples_per_mode, **options)
            return maps.joined(parts, maps.HELD)
        return self._predicted(x, samples, seed, batch_size, self.weights.meet)

    def averages(
        self,
        x: Any,
        *,
        samples_per_mode: int | None = None,
        seed: Seed = 0,
        batch_size: Count = _BATCH,
    ) -> Prediction:
        """Return the prediction of `predict` for scores alone.

        Of classes it holds averages over samples and no samples, in 1/S of the memory; on several
        ranks these are what is exchanged, but for classes at pixels. Of densities, and of classes
        of tokens and of several labels, it is the whole prediction.

        Args:
            x, samples_per_mode, seed, batch_size: as of `predict`.
        """
        check_call(Posterior.averages, locals(), but=_CHECKED)
        options: dict[str, Any] = {"seed": seed, "batch_size": batch_size}
        if maps.has_maps(self):
            return maps.joined(self.stream(x, samples_per_mode=samples_per_mode, **options))
        if isinstance(self.weights, Ranked):
            samples, meet = self._samples(samples_per_mode), self.weights.meet_in_averages
            return self._predicted(x, samples, seed, batch_size, meet)
        whole = self.predict(x, samples_per_mode=samples_per_mode, **options)
        return averaged(whole)  # type: ignore[no-any-return]

    def _predicted(
        self, x: Any, samples: int, seed: int, batch_size: int, meet: Meet
    ) -> Prediction:
        """Return what `meet` makes of the predictions of all parts of the weights."""
        data = self._encoded(_as_source(x))
        if not isinstance(data, (Arrays, Loader)):
            data = self._read(data)
        with self.weights.in_step():
            counted = not isinstance(data, Loader) or data.is_counted_unread
            if counted:
                self._require_room(len(data), samples)
            stream = self._stream if counted else self._bounded
            parts = [
                Prediction.cat(list(stream(part, data, samples, seed, batch_size)))
                for part in self.weights.parts()
            ]
            return meet(parts)

    def bundled(
        self,
        *,
        recalibration: Recalibration | None = None,
        conformal: Rule | None = None,
        threshold: float | None = None,
        groups: DifficultyGroups | str | None = None,
    ) -> Posterior:
        """Return this posterior with rules for its answers, which are saved with it.

        Args:
            recalibration: what `pm.recalibration.recalibrate` returned, or None.
            conformal: a rule of `pm.conformal`, made with corrected predictions, or None: of
                `conformal_sets`, `conformal_intervals`, `by_group`, `by_class`, `weighted` or
                `cross_conformal`, whose models are the modes.
            threshold: the least confidence that is accepted, in [0, 1]; of regressions the largest
                predictive standard deviation of any output; None for no rejection. See
                `metrics.selective.threshold_at_risk`.
            groups: of a rule of `by_group`: what `difficulty_groups` returned, or the name of a
                column of the tables that are asked about; None if `answer` is given groups.
        """
        bundle = Bundle(recalibration, conformal, threshold, groups)
        bundle.check(self.likelihood.classification, self.target_size, self.num_modes)
        ship = copy.copy(self)
        ship.bundle = bundle
        return ship

    def augmented(
        self,
        group: Any = None,
        *,
        augmentation: Any = None,
        draws: Count = 8,
        seed: Seed = 0,
    ) -> Posterior:
        """Return this posterior with test-time augmentation: its predictions are means over views
        of each input. Maps move back first. See `posterior/views.py`.

        Args:
            group: whose moves the views are, such as "D4"; see `equivariance.group`. Predictions
                are then exactly invariant, and maps equivariant.
            augmentation: in place of a group: random moves of images, "crop+flip", as of `fit`;
                not for maps.
            draws: views of an augmentation, the first of them the input itself.
            seed: of these draws.
        """
        check_call(Posterior.augmented, locals())
        return with_views(self, group, augmentation, draws, seed)

    def answer(
        self,
        x: Any,
        *,
        groups: Any = None,
        weights: Tensor | None = None,
        samples_per_mode: int | None = None,
        seed: Seed = 0,
        batch_size: Count = _BATCH,
    ) -> Answer:
        """Return the corrected prediction at inputs `x`, its set or interval, and whether to accept
        it, by the rules of `bundle`.

        Args:
            x, samples_per_mode, batch_size: as of `predict`.
            groups: the group of each input, for a rule of `by_group` that was bundled without.
            weights: ratio of densities at each input, for a rule of `weighted`.
            seed: of the samples, and of randomised sets.
        """
        check_call(Posterior.answer, locals(), but=(*_CHECKED, "groups", "weights"))
        if self.bundle is None:
            raise ValueError(
                "this posterior has no rules to answer by: give it some, post.bundled(...), or use"
                " predict"
            )
        options: dict[str, Any] = {"seed": seed, "batch_size": batch_size}
        if groups is None and isinstance(self.bundle.groups, str):
            groups = group_column(x, self.bundle.groups)
        prediction = self.predict(x, samples_per_mode=samples_per_mode, **options)
        return self.bundle(prediction, groups=groups, weights=weights, seed=seed)

    def _bounded(
        self, weights: Weights, x: Any, samples: int, seed: int, batch_size: int
    ) -> Iterator[Prediction]:
        """Yield predictions while they fit into memory together: not all loaders have a length."""
        rows = 0
        for prediction in self._stream(weights, x, samples, seed, batch_size):
            rows += len(prediction)
            size = prediction.mean[0].numel()
            self._require_room(rows, samples, "the first ", size)
            yield prediction

    def _require_room(
        self, rows: int, samples: int, which: str = "", size: int | None = None
    ) -> None:
        number, size = self.num_modes * samples, size or self.target_size
        if self.views is not None and not self.likelihood.classification:
            number *= len(self.views)  # each is a component
        need = rows * number * size * self.weights.like.dtype.itemsize
        what = f"predictions for {which}{rows:,} inputs × {number:,} samples × {size:,} outputs"
        require_free(need, what, "Use post.stream(x), which yields them in parts")

    def stream(
        self,
        x: Any,
        *,
        samples_per_mode: int | None = None,
        seed: Seed = 0,
        batch_size: Count = _BATCH,
    ) -> Iterator[Prediction]:
        """Yield the predictions of `predict` part by part, in bounded memory; large maps singly."""
        check_call(Posterior.stream, locals(), but=_CHECKED)
        samples = self._samples(samples_per_mode)
        at_most = maps.most_at_a_time(self, samples)
        for batch in self._batches(x, min(batch_size, at_most), at_most):
            with self.weights.in_step():
                parts = [
                    next(self._stream(part, batch, samples, seed, len(batch)))
                    for part in self.weights.parts()
                ]
                met = self.weights.meet(parts)
            yield met

    def predict_batch(
        self, x: Tensor, *, samples_per_mode: int | None = None, seed: Seed = 0
    ) -> Prediction:
        """Return the prediction at one batch (B, *input_shape), differentiable with respect to x.

        Inputs are not checked and not split. `seed` gives other samples where the posterior draws:
        an attack follows the gradient of `post.predict_batch(x, seed=step).log_prob(y).sum()`.
        """
        check_call(Posterior.predict_batch, locals(), but=("x", *_CHECKED))
        samples = self._samples(samples_per_mode)
        x = self.weights.spread(x)
        with self.weights.in_step():
            parts = [self._predictor(part, samples, seed)(x) for part in self.weights.parts()]
            return self.weights.meet(parts)

    def _stream(
        self, weights: Weights, x: Any, samples: int, seed: int, batch_size: int
    ) -> Iterator[Prediction]:
        predictor = self._predictor(weights, samples, seed)
        for batch in self._batches(x, batch_size):
            # in inference mode, derivatives on the way would be 0 without a word
            with torch.inference_mode(False), torch.no_grad():
                try:
                    prediction = predictor(batch.clone() if batch.is_inference() else batch)
                except IndexError as error:
                    explain_ids(error, weights.like, batch)
                    raise
                except RuntimeError as error:
                    if isinstance(batch, Rows) or batch.is_floating_point():
                        raise
                    raise ValueError(
                        f"inputs are {batch.dtype}, which these networks do not take"
                        f" ({str(error).splitlines()[0]}); give x.float(), scaled as in training"
                    ) from None
            yield prediction

    def _predictor(
        self, weights: Weights, samples: int, seed: int
    ) -> Callable[[Tensor], Prediction]:
        """Return the function from a batch of inputs to its prediction."""
        outputs = None
        noise = weights.noise(samples, seed)
        streams = [fold(stream, "outputs", seed) for stream in weights.stack.seeds]

        def components(x: Tensor) -> Categories | Densities:
            nonlocal outputs
            x = weights.prepare(x)
            direct = weights.components(self.likelihood, x, samples, seed)
            if direct is not None:
                return direct
            moments = weights.moments(x)
            if moments is None:
                outputs = outputs or weights.outputs(samples, seed)
                return self.likelihood.components(outputs(x), noise)
            return self.likelihood.components_from(
                moments, noise, lambda rows: weights.logits(rows, samples, streams)
            )

        def predict(x: Tensor) -> Prediction:
            prediction = predict_from(components(x), self.likelihood.num_axes)
            if self.target_scaling is None:
                return prediction
            assert isinstance(prediction, DensityPrediction)
            return prediction.rescale(self.target_scaling.shift, self.target_scaling.scale)

        views = self.views
        if views is None:
            return predict
        return lambda x: averaged_views(
            views.back(predict(views.view(x, number)), number) for number in range(len(views))
        )

    def _samples(self, samples_per_mode: int | None) -> int:
        """Return L, checked."""
        if samples_per_mode is None:
            return self.weights.samples_per_mode
        wanted, most = samples_per_mode, self.weights.most
        if not isinstance(wanted, int) or isinstance(wanted, bool) or wanted < 1:
            raise ValueError(
                f"`samples_per_mode` must be an integer of at least 1, got {shown(wanted)}"
            )
        if most is not None and wanted > most:
            raise ValueError(
                f"`samples_per_mode` is {wanted}, but {self.method} kept {most} per mode; keep more"
                " when fitting, where the method has such an option"
            )
        return wanted

    def _batches(self, x: Any, batch_size: int, at_most: int = sys.maxsize) -> Iterator[Any]:
        """Yield inputs as the networks take them, checked; `at_most` bounds a loader's batches."""
        data = self._encoded(_as_source(x))
        if isinstance(data, Loader):
            batches = map(self._inputs, data.inputs(batch_size))
            parts: Iterable[Any] = (part for batch in batches for part in batch.split(at_most))
        elif isinstance(data, Arrays):
            parts = (self._inputs(part) for part, _ in data.batches(batch_size))
        else:
            parts = self._inputs(data).split(batch_size)
        yield from parts

    def _encoded(self, x: Any) -> Any:
        """Return a table as inputs, and anything else as it is."""
        by_name = isinstance(x, Mapping) and self.encoder is not None
        if not is_frame(x) and not by_name:
            return x
        if self.encoder is None:
            raise ValueError(
                "this posterior was not fitted on a table with names of columns; give an array, or"
                " fit on pm.Task.from_frame(df, target=...)"
            )
        return self.encoder(x, "the table")

    def _read(self, x: Any) -> Any:
        """Return arrays in memory as inputs, one tensor or several."""
        if not is_one_shape(self.input_shape):
            if not is_several(x):
                raise ValueError(
                    f"the networks take several inputs, {shapes_text(self.input_shape)}; give them"
                    f" in a {'dictionary' if isinstance(self.input_shape, dict) else 'tuple'}, got"
                    f" {shown(x)}"
                )
            if isinstance(x, Mapping) and isinstance(self.input_shape, Mapping):
                x = {n: v for n, v in x.items() if n in self.input_shape or n not in TARGET_NAMES}
            return as_rows(x, lambda leaf, name: as_numbers(f"Inputs '{name}'", leaf))
        if isinstance(x, Rows):
            return x
        return torch.atleast_1d(as_numbers("Inputs `x`", x))

    def _inputs(self, x: Any) -> Any:
        """Return inputs as the networks take them."""
        x, like = self._read(x), self.weights.like
        if isinstance(x, Rows):
            if why := why_not_same(x, self.input_shape):
                raise ValueError(f"inputs have {why}")
        elif tuple(x.shape[1:]) != tuple(self.input_shape) or x.dim() == 0:
            raise ValueError(
                f"inputs have shape {tuple(x.shape)}; this posterior was fitted on"
                f" {shapes_text(self.input_shape)}"
            )
        if len(x) == 0:
            raise ValueError("there is nothing to predict: 0 inputs")
        return map_leaves(x, lambda leaf: self._ready(leaf, like))

    def _ready(self, x: Tensor, like: Stack) -> Tensor:
        """Return a tensor on the device of the networks, in their type if it is floating-point."""
        if not x.is_floating_point():
            return x.to(like.device)
        x = x.to(like.device, like.dtype)
        if not torch.isfinite(x.sum()):  # a sum is fast; it may overflow, so look closer
            rows = (~torch.isfinite(x.flatten(1)).all(1)).nonzero().flatten()
            if len(rows):
                raise ValueError(
                    f"{len(rows):,} of {len(x):,} inputs hold NaN or infinity, the first is row"
                    f" {int(rows[0])}"
                )
        return x

    def draws(self, samples_per_mode: int | None = None, *, seed: Seed = 0) -> Iterator[Stack]:
        """Yield L stacks of M networks, sample by sample."""
        check_call(Posterior.draws, locals(), but=_CHECKED)
        for number in range(self._samples(samples_per_mode)):
            yield self.weights.draw(number, seed)

    def sample(self, num_samples: NumModes, *, seed: Seed = 0) -> Stack:
        """Return `num_samples` networks drawn from the posterior: modes with replacement, and from
        each mode its next sample, or any of those that it keeps."""
        check_call(Posterior.sample, locals())
        stream, most = generator(seed, "sample"), self.weights.most
        modes = torch.randint(self.num_modes, (num_samples,), generator=stream).tolist()
        if most is None:
            numbers = [modes[:place].count(mode) for place, mode in enumerate(modes)]
        else:
            numbers = torch.randint(most, (num_samples,), generator=stream).tolist()
        return self.weights.gather(list(zip(modes, numbers, strict=True)), seed)

    def save(
        self, folder: str | Path, *, modes_per_file: int | None = None, trunk: bool = True
    ) -> None:
        """Write the posterior to `folder`; an earlier one stays until the new one is complete.

        Args:
            folder: which holds nothing else.
            modes_per_file: how many modes a file holds, None for all. Several files are opened one
                after another when the loaded posterior predicts, so that it need not fit into
                memory.
            trunk: whether frozen parameters are written. Without them the files hold adapters or
                heads alone, and `pm.load` takes the rest from its `net`, if the digest is the same.
        """
        from polymode.posterior.files import save

        save(self, Path(folder), modes_per_file, trunk)

    def push(
        self,
        name: str,
        *,
        results: Any = None,
        private: bool = False,
        token: str | None = None,
        message: str = "Publish a posterior",
    ) -> str:
        """Publish the posterior on a Hugging Face hub; return its pinned address for `pm.load`.

        Needs the extra `polymode[hub]`. Tensors go as safetensors, with a model card made of what
        is known of the method and of the fit.

        Args:
            name: NAME or OWNER/NAME on the hub; made if it is not there.
            results: what `pm.evaluate` returned, for the card; None leaves them out.
            private: whether only its owner sees a new one.
            token: of the hub; by default the one that HF_TOKEN or `hf auth login` set.
            message: of the commit.
        """
        from polymode.posterior.hub import push

        return push(self, name, results=results, private=private, token=token, message=message)


def _as_source(x: Any) -> Any:
    """Return a loader or a data set as data, and what is in memory as it is."""
    in_memory = isinstance(x, (Tensor, Rows, Mapping, list, tuple, str, bytes, Arrays, Loader))
    if in_memory or hasattr(x, "__array__"):
        return x
    if isinstance(x, Dataset) or hasattr(x, "__iter__"):
        return as_data(x)
    return x
