"""`prior_precision="auto"`: the prior of a linear layer on fixed features, by its evidence.

Of other networks see `online_evidence.py`. Here the network is f(x) = W φ(x) + b, where W and b
are all that is trained. φ(x) are the inputs, or features that a frozen body makes of them, the same
for all members. With θ = (W, b) ~ N(0, 1/λ) and Φ the features with a column of ones for b, the
evidence as a function of λ is

    regression   log E = Σ_d log N(y_d; 0, 1/β_d + Φ Φᵀ / λ), exact, β = 1 / noise²; noise that the
                 likelihood learns is where log E is largest for the same λ
    classes      log E = log p(y | θ*) − ½ λ ‖θ*‖² − ½ Σ_c log det(I + Φᵀ D_c Φ / λ), θ* the
                 maximum of the posterior, D_c = diag p_c (1 − p_c)

The latter is the approximation of Laplace with the blocks of the classes alone. By Fischer's
inequality the determinant of the whole matrix is at most the product of theirs, so log E is never
larger than with all of it. Curvature is taken at the θ* of each λ, so it is the largest log E that
is searched for, not the fixed point of MacKay, in whose update the curvature stays as it is.

At most 10,000 examples are used, spread over the data. λ says how large weights are and not how
many examples there are, so their own evidence decides, without a factor. λ depends on the data
alone: not on seeds, nor on the number of members or ranks. It has three digits, so that rounding
does not show, and is at most ten times the largest curvature of the data. Dropout before the layer,
and `augment`, are left out here.

References: D. MacKay, Bayesian interpolation, Neural Computation 4(3), 1992, for regression;
    The evidence framework applied to classification networks, Neural Computation 4(5), 1992.

Shapes: `N` examples, `P` features with the ones, `D` targets, `C` logits.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from polymode.core.warn import warn
from polymode.distributed import ranks
from polymode.likelihoods.kinds import Bernoulli, Categorical, Gaussian, Likelihood
from polymode.methods.method import Members, Problem
from polymode.methods.online_evidence import online_prior
from polymode.methods.work import Work
from polymode.stack.sharing import is_shared
from polymode.stack.stack import Stack
from polymode.tracing.modules import set_mode
from polymode.training.events import Observer
from polymode.training.history import spread_rows

AUTO = "auto"
LARGEST = 10_000  # examples
MOST_FEATURES = 5_000  # a matrix of P × P is decomposed
DECADES = 8  # that λ may be away from where the search begins
BEYOND = 10.0  # times the largest curvature of the data: above, weights are 0 and steps unstable
CLOSE, CLOSE_OF_CLASSES = 1e-3, 0.2  # decades, to which λ is found
STEPS = 200  # of a minimisation, at most
REMEMBERED = 8  # data whose λ is not looked for again
_SEARCH = 10  # values of λ that classes take, about
_GOLDEN = (math.sqrt(5.0) - 1) / 2

Values = tuple[Tensor, Tensor]
"""Features (N, P) and targets."""


class PriorChoice(NamedTuple):
    """What was chosen.

    Attributes:
        precision: λ.
        facts: of the choice, JSON-safe.
    """

    precision: float
    facts: dict[str, Any]


def with_prior(
    config: Any, problem: Problem, stack: Stack, observers: tuple[Observer, ...] = ()
) -> tuple[Any, dict[str, Any]]:
    """Return the options with a number in the place of "auto", and what is said of the choice.

    Args:
        problem: with all training data.
        stack: the networks as the method takes them, behind the trunk where one is cut off.
    """
    if getattr(config, "prior_precision", None) != AUTO:
        warn_of_wide_head(config, problem, stack)
        return config, {}

    def choose() -> PriorChoice:
        if is_linear_layer(stack):
            return choose_prior(problem, stack)
        return PriorChoice(*online_prior(config, problem, stack, observers))

    choice = ranks.agreed(choose)
    config = dataclasses.replace(config, prior_precision=choice.precision)
    return config, {"prior_choice": choice.facts}


def warn_of_wide_head(config: Any, problem: Problem, stack: Stack) -> None:
    """Warn of a linear layer with more weights than examples whose posterior is sampled under the
    usual prior: nearly all of its spread is then the prior's, and it costs up to .3 nats."""
    usual = getattr(config, "prior_precision", None) == Members.prior_precision
    samples = hasattr(config, "temperature") and config.epochs != 0
    wide = stack.num_parameters > problem.num_examples and problem.likelihood.classification
    if usual and samples and wide and is_linear_layer(stack):
        warn(
            f"{stack.num_parameters:,} weights of a linear layer under prior_precision=1, and"
            f" {problem.num_examples:,.0f} examples: most of the spread is the prior's, and"
            " predictions suffer. Take prior_precision='auto', which finds it by the evidence",
        )


def choose_prior(problem: Problem, stack: Stack) -> PriorChoice:
    """Return λ of the largest evidence, or refuse in one line what is not a linear layer."""
    path = linear_layer(stack)
    assert problem.data is not None
    likelihood = problem.likelihood
    if not isinstance(likelihood, Categorical | Bernoulli | Gaussian):
        raise _refusal(f"the likelihood is {likelihood.name}")
    count = min(len(problem.data), LARGEST)
    batches = [
        (_features(stack, path, x), y)
        for x, y in spread_rows(problem.data, count)
    ]  # fmt: skip
    if not all(isinstance(y, Tensor) for _, y in batches):
        raise _refusal("targets have weights")
    values = torch.cat([h for h, _ in batches]), torch.cat([y.cpu() for _, y in batches])
    if values[0].shape[1] > MOST_FEATURES:
        raise _refusal(f"it has {values[0].shape[1]:,} features, and {MOST_FEATURES:,} are most")
    precision, evidence = _remembered(values, likelihood, problem.target_size)
    facts = {
        "by": "evidence of the linear layer",
        "log_evidence": evidence,
        "examples": len(values[0]),
        "layer": path,
    }
    return PriorChoice(float(f"{precision:.3g}"), facts)


_CHOSEN: dict[str, tuple[float, float]] = {}
"""λ and its evidence by a digest of the data: several methods and seeds are fitted to the same."""


def _remembered(values: Values, likelihood: Likelihood, target_size: int) -> tuple[float, float]:
    """Return λ of the largest evidence and log E there; of the last eight data it is known."""
    digest = hashlib.blake2b(f"{likelihood!r} {target_size}".encode())
    for tensor in values:
        digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.contiguous().numpy().data)
    key = digest.hexdigest()
    if key not in _CHOSEN:
        if isinstance(likelihood, Gaussian):
            choice = regression_prior(values, likelihood)
        else:
            choice = classes_prior(values, likelihood, target_size)
        while len(_CHOSEN) >= REMEMBERED:
            del _CHOSEN[next(iter(_CHOSEN))]
        _CHOSEN[key] = choice
    return _CHOSEN[key]


def work_of_choice(config: Any, problem: Problem, stack: Stack) -> Work | None:
    """Return the cost of "auto", None where a number is given or there is next to no cost."""
    is_auto = getattr(config, "prior_precision", None) == AUTO
    if not is_auto or not problem.likelihood.classification or problem.data is None:
        return None
    if not is_linear_layer(stack):
        return None  # one training more
    weights = max(stack.num_parameters, 1)
    layer = stack.template.get_submodule(linear_layer(stack))
    size = int(layer.in_features) + 1 if isinstance(layer, nn.Linear) else 1
    count = min(len(problem.data), LARGEST)
    blocks = weights * (count * size + size**2 / 3)  # C blocks of N P² and P³ / 3
    passes = _SEARCH * (blocks / (3 * problem.num_examples * weights) + 50)
    return Work(passes, "prior_precision='auto'", "a number, such as one found before")


def is_linear_layer(stack: Stack) -> bool:
    """Whether a linear layer is all that is trained."""
    owners = {name.rpartition(".")[0] for name in stack.params}
    return len(owners) == 1 and type(stack.template.get_submodule(*owners)) is nn.Linear


def linear_layer(stack: Stack) -> str:
    """Return the path of the linear layer that is all that is trained, or refuse."""
    owners = {name.rpartition(".")[0] for name in stack.params}
    path = next(iter(owners), "")
    layer = stack.template.get_submodule(path)
    if len(owners) != 1 or type(layer) is not nn.Linear:
        kind = type(layer).__name__
        raise _refusal(
            f"a {kind} is trained" if len(owners) == 1 else f"{len(owners)} layers are trained"
        )
    trained = {name.rpartition(".")[2] for name in stack.params}
    if trained != {name for name, _ in layer.named_parameters()}:
        raise _refusal(f"of the layer '{path}' only {', '.join(sorted(trained))} is trained")
    if stack.members_differ or not all(is_shared(t) or len(t) == 1 for t in stack.frozen.values()):
        raise _refusal("members have frozen weights of their own")
    return path


def _refusal(why: str) -> ValueError:
    return ValueError(
        "prior_precision='auto' finds the prior of a linear layer where all that is trained is that"
        " layer, with classes or Gaussian noise and one target an example, but"
        f" {why}; give a number"
    )


@torch.no_grad()
def _features(stack: Stack, path: str, x: Any) -> Tensor:
    """Return what the layer is called with, in double precision, with the ones of its bias."""
    module = set_mode(stack.views.to_try(0), "eval")
    layer = module.get_submodule(path)
    calls: list[tuple[Tensor, Tensor]] = []
    hook = layer.register_forward_hook(lambda _, args, out: calls.append((args[0], out)))
    try:
        result = module(x)
    finally:
        hook.remove()
    if not result.isfinite().all():
        raise _refusal("its features are not finite")
    if len(calls) != 1 or calls[0][0].dim() != 2 or not torch.equal(calls[0][1], result):
        raise _refusal(f"the result of '{path}' for an example is not the network's")
    features = calls[0][0].double().cpu()
    if layer.bias is None:
        return features
    return torch.cat([features, features.new_ones(len(features), 1)], 1)


def regression_prior(values: Values, likelihood: Gaussian) -> tuple[float, float]:
    """Return λ of the largest evidence, and log E there."""
    phi, y = values
    y = y.double().reshape(len(phi), -1)
    number, size = y.shape
    scales, basis = torch.linalg.eigh(phi.mT @ phi)
    scales = scales.clamp_min(0.0)
    large = scales > phi.shape[1] * 1e-15 * scales[-1]
    scales = scales[large]
    targets = ((phi.mT @ y).mT @ basis[:, large] / scales.sqrt()).mT  # (R, D)
    outside = (y.square().sum(0) - targets.square().sum(0)).clamp_min(0.0)

    def evidence(precision: float, beta: Tensor) -> Tensor:
        """Return log E of each target, (D,)."""
        ratio = beta * (scales / precision)[:, None]
        misfit = outside + (targets.square() / (1 + ratio)).sum(0)
        constant = number * (beta / (2 * math.pi)).log()
        return 0.5 * (constant - ratio.log1p().sum(0) - beta * misfit)

    usual = float(1 / y.square().mean().clamp_min(1e-30))

    def best_noise(precision: float, targets_of: slice) -> float:
        def total(beta: float) -> float:
            return float(evidence(precision, torch.full((size,), beta).double())[targets_of].sum())

        return highest(lambda e: total(10**e), math.log10(usual), CLOSE)[1]

    def log_evidence(precision: float) -> float:
        if likelihood.noise == "learned":
            return best_noise(precision, slice(None))
        if likelihood.noise == "learned_per_output":
            return sum(best_noise(precision, slice(d, d + 1)) for d in range(size))
        noise = torch.tensor(likelihood.noise, dtype=torch.float64).expand(size)
        return float(evidence(precision, noise**-2).sum())

    middle = math.log10(float(scales.mean()) * usual) if len(scales) else 0.0
    starts = [middle + shift for shift in range(-4, 5)]
    start = max(starts, key=lambda exponent: log_evidence(10**exponent))
    top = math.log10(BEYOND * float(scales[-1]) * usual) if len(scales) else middle
    start = min(start, top)
    exponent, largest = highest(lambda e: log_evidence(10**e), start, CLOSE, top)
    return 10**exponent, largest


def classes_prior(values: Values, likelihood: Likelihood, num_classes: int) -> tuple[float, float]:
    """Return λ of the largest evidence, and log E there."""
    phi, y = values
    head = _Head(phi, y, likelihood, likelihood.num_outputs(num_classes))
    exponent, largest = highest(
        lambda e: head.log_evidence(10**e), head.start, CLOSE_OF_CLASSES, head.top
    )
    return 10**exponent, largest


class _Head:
    """Weights of classes under a prior, each search from those of the last λ.

    They are rotated and scaled so that the loss is about as curved in all directions.
    """

    def __init__(self, phi: Tensor, y: Tensor, likelihood: Likelihood, outputs: int) -> None:
        self.phi, self.y, self.likelihood = phi, y, likelihood
        scales, self.basis = torch.linalg.eigh(phi.mT @ phi)
        self.curvature = scales.clamp_min(0.0) / max(outputs, 4)
        self.weights = phi.new_zeros(phi.shape[1], outputs)  # in the basis
        self.start = math.log10(max(float(self.curvature.mean()), 1e-30))
        self.top = math.log10(BEYOND * max(float(self.curvature.max()), 1e-30))
        self.rotated = phi @ self.basis

    def log_evidence(self, precision: float) -> float:
        logits = self._fit(precision)
        share = logits.softmax(-1) if logits.shape[1] > 1 else logits.sigmoid()
        identity = torch.eye(self.phi.shape[1], dtype=self.phi.dtype)
        spread = 0.0
        for weight in (share * (1 - share)).mT:
            block = (self.rotated * (weight / precision)[:, None]).mT @ self.rotated
            spread += 2 * float(torch.linalg.cholesky(identity + block).diagonal().log().sum())
        penalty = precision * float(self.weights.square().sum())
        return -float(self._cost(logits)) - 0.5 * (penalty + spread)

    def _cost(self, logits: Tensor) -> Tensor:
        return self.likelihood.nll(logits, self.y, {}) * len(self.phi)

    def _fit(self, precision: float) -> Tensor:
        """Go to the maximum of the posterior and return the logits there."""
        scale = (self.curvature + precision).rsqrt()[:, None]
        inputs = self.rotated * scale.mT
        point = (self.weights / scale).requires_grad_()
        descent = torch.optim.LBFGS(
            [point], max_iter=STEPS, tolerance_grad=1e-4, tolerance_change=1e-7,
            line_search_fn="strong_wolfe",
        )  # fmt: skip

        def loss() -> Tensor:
            descent.zero_grad()
            penalty = 0.5 * precision * (scale * point).square().sum()
            value = self._cost(inputs @ point) + penalty
            value.backward()
            return value

        with torch.enable_grad():
            descent.step(loss)
        self.weights = scale * point.detach()
        return inputs @ point.detach()


def highest(
    value: Callable[[float], float], start: float, close: float, most: float = math.inf
) -> tuple[float, float]:
    """Return where a function of one number is largest, and its value there: from the start upwards
    in steps of 1, at most 8 and not beyond `most`, then by golden sections."""
    memory: dict[float, float] = {}

    def at(place: float) -> float:
        if place not in memory:
            memory[place] = value(place)
        return memory[place]

    middle = start
    step = 1.0 if start + 1 <= most and at(start + 1) > at(start) else -1.0
    while abs(middle - start) < DECADES and middle + step <= most:
        if at(middle + step) <= at(middle):
            break
        middle += step
    low, high = middle - 1, min(middle + 1, most)
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    while high - low > close:
        if at(left) >= at(right):
            high, right = right, left
            left = high - _GOLDEN * (high - low)
        else:
            low, left = left, right
            right = low + _GOLDEN * (high - low)
    return max(memory.items(), key=lambda item: item[1])
