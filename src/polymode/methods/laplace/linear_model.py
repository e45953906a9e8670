"""The tangent of a network in its weights: a linear model with the network's Jacobian as features.

    h(θ, x) = f(θ̃, x) + J(x) (θ − θ̃)    "offset"        J(x) = ∂f/∂θ at the trained weights θ̃
    h(θ, x) = J(x) θ                     "jacobian"

For networks that are normalised up to a linear last layer, J(x) θ̃ = f(θ̃, x) and the two are one
model (Euler's theorem). In general they are not: `closeness` is ‖J θ̃ − f‖ / ‖f‖, which reports
print. With the statistics of BatchNorm frozen, as in evaluation mode, J is not that of a normalised
network, however it was trained: ‖J θ̃ − f‖ / ‖f‖ is about 11 on the toy of the reference. With
`reference` inputs the statistics s are functions of the weights,

    f(θ, x) = net(x; θ, s(θ)),   J = ∂f/∂θ + ∂f/∂s S,   S = ds/dθ on the reference inputs,

and f is the network with these statistics. An example's output then depends on no other example
but the reference inputs, so predictions do not depend on their batch. S (D, P), with D two numbers
per normalised channel, is made once.

Nothing here needs a matrix of B K P numbers but `jacobian`, which is for small problems.
Reference: Antorán et al., ICML 2022; see `groups.py`.

`observed` is what the model is held against: targets, and the curvature of their likelihood. For
outputs h (N, K) of a convex loss ℓ = −log p(y | h):

    gaussian      −∇ℓ = β (y − h),   B = ∇²ℓ = diag(β),      β = 1 / noise², one number or K
    categorical   −∇ℓ = e_y − p,     B = diag(p) − p pᵀ,     p = softmax(h)
    bernoulli     −∇ℓ = y − p,       B = p (1 − p),          p = sigmoid(h)

and R Rᵀ = B: diag(√β), diag(√p) − p √pᵀ, √(p (1 − p)).

J θ is a model of the network only where some θ of ordinary size gives f(θ̃, x). A linear last layer
that trains does that: J θ = f for θ = its weights, and 0 elsewhere. What does not: outputs
that a frozen part adds to (a frozen head, a known trend, 50 n(x) + 1000, adapters beside frozen
weights), or a subnetwork, which leaves most of the network out. There the evidence of J θ asks the
free weights for what they are not there for, and finds a prior far too wide. The model is then

    h(θ, x) = f(θ̃, x) + J(x) (θ − θ̃) = J(x) θ + c(x),    c = f − J θ̃

over the free weights: the rest of the network gives c. It is right for every network; where f is in
reach, J θ is preferred, as its predictive does not depend on the scale of normalised weights
(proposition 3 of the reference in `groups.py`).

`distance` measures the reach. With a_t = J_t θ̃_t the part of parameter tensor t of T,

    δ² = min_w ‖Σ_t w_t a_t − f‖² / ‖f‖² + ρ² Σ_t w_t² / T,    ρ = TOLERANCE / 2,

so δ ≤ TOLERANCE says that weights no larger than the trained ones give f, to rounding. ‖·‖ has each
output relative to its own size; logits of a softmax are without their mean, which means nothing.
w is found on some examples and judged on all.

Limits: only multiples of whole tensors are tried. A network whose outputs are in the span of J in
another way has the offset, which is no less right.

Shapes: `B` batch, `N` examples, `K` outputs, `P` weights, `D` statistics, `T` parameter tensors.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, jacrev, jvp, vjp, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from polymode.core.quiet import without_warning
from polymode.core.text import first_line
from polymode.curvature.plain_operations import plain_operations
from polymode.likelihoods.kinds import Likelihood
from polymode.stack.stack import Stack
from polymode.tracing.attention import plain_attention
from polymode.tracing.modules import Tensors

COVERED = ("gaussian", "categorical", "bernoulli")


class Observed(NamedTuple):
    """Targets of a likelihood.

    Attributes:
        kind: one of `COVERED`.
        targets: (N, K) values, or (N,) labels.
        precision: β of a Gaussian, (K,); of no meaning for classes.
    """

    kind: str
    targets: Tensor
    precision: Tensor

    @property
    def gaussian(self) -> bool:
        return self.kind == "gaussian"

    def part(self, rows: slice) -> Observed:
        """Return some of the examples."""
        return self._replace(targets=self.targets[rows])

    def log_likelihood(self, outputs: Tensor) -> Tensor:
        """Return the sum over examples of log p(y | h), nats."""
        if self.kind == "gaussian":
            squares = (self.targets - outputs).square() * self.precision
            constants = (self.precision / (2 * math.pi)).log().expand_as(outputs)
            return 0.5 * (constants - squares).sum()
        if self.kind == "categorical":
            return -F.cross_entropy(outputs, self.targets, reduction="sum")
        labels = self.targets.to(outputs).view_as(outputs)
        return -F.binary_cross_entropy_with_logits(outputs, labels, reduction="sum")

    def most_likely(self) -> float:
        """Return the largest value that `log_likelihood` can have."""
        if not self.gaussian:
            return 0.0
        rows = self.targets if self.targets.dim() > 1 else self.targets.unsqueeze(-1)
        return 0.5 * float((self.precision / (2 * math.pi)).log().expand_as(rows).double().sum())

    def residual(self, outputs: Tensor) -> Tensor:
        """Return −∇ℓ, (N, K)."""
        if self.kind == "gaussian":
            return self.precision * (self.targets - outputs)
        if self.kind == "categorical":
            labels = F.one_hot(self.targets, outputs.shape[-1]).to(outputs)
            return labels - outputs.softmax(-1)
        return self.targets.to(outputs).view_as(outputs) - outputs.sigmoid()

    def root(self, outputs: Tensor) -> Tensor:
        """Return R, (N, K, K), with R Rᵀ = B."""
        if self.kind == "gaussian":
            return torch.diag(self.precision.sqrt().expand(outputs.shape[-1])).expand(
                len(outputs), -1, -1
            )
        if self.kind == "categorical":
            probs = outputs.softmax(-1)
            half = probs.sqrt()
            return torch.diag_embed(half) - probs.unsqueeze(-1) * half.unsqueeze(-2)
        probs = outputs.sigmoid()
        return torch.diag_embed((probs * (1 - probs)).sqrt())

    def curvature(self, outputs: Tensor, vectors: Tensor) -> Tensor:
        """Return B v of v (N, K)."""
        if self.kind == "gaussian":
            return self.precision * vectors
        if self.kind == "categorical":
            probs = outputs.softmax(-1)
            return probs * (vectors - (probs * vectors).sum(-1, keepdim=True))
        probs = outputs.sigmoid()
        return probs * (1 - probs) * vectors


def observed(likelihood: Likelihood, targets: Tensor, noise: Tensor | float = 1.0) -> Observed:
    """Return targets as the linear model takes them.

    Args:
        noise: standard deviation of a Gaussian, one number or K of them.
    """
    if likelihood.name not in COVERED:
        raise ValueError(
            f"the evidence of a linear model needs a likelihood of {', '.join(COVERED)}, got"
            f" '{likelihood.name}'; give `prior_precision` and evidence=None"
        )
    dtype = targets.dtype if targets.is_floating_point() else torch.get_default_dtype()
    sigma = torch.as_tensor(noise, dtype=dtype, device=targets.device)
    return Observed(likelihood.name, targets, sigma.reshape(-1) ** -2)


FORMS = ("jacobian", "offset")


class Tangent:
    """The linear model of one member of a stack around its weights.

    Args:
        stack: its `mode`-th network is linearised, in evaluation mode.
        names: parameters that are free; the others are known. By default all that train.
        form: "jacobian" or "offset", see above.
        reference: inputs (R, ...) whose statistics BatchNorm has, as functions of the weights; None
            freezes the running ones.

    Attributes:
        point: θ̃ as one vector (P,).
        slices: where each parameter lies in it.
    """

    def __init__(
        self,
        stack: Stack,
        mode: int = 0,
        *,
        names: Sequence[str] | None = None,
        form: str = "jacobian",
        reference: Tensor | None = None,
    ) -> None:
        assert form in FORMS, form
        self.form = form
        self.names = list(stack.params) if names is None else list(names)
        self._aliases = stack.network.aliases
        self._module = stack.network.template_in("eval")
        everything = {**stack.params, **stack.frozen, **stack.buffers}
        values = {name: tensor[mode].detach() for name, tensor in everything.items()}
        self._shapes = {name: values[name].shape for name in self.names}
        self.point = torch.cat([values[name].reshape(-1) for name in self.names])
        sizes = [self._shapes[name].numel() for name in self.names]
        ends = torch.tensor(sizes).cumsum(0).tolist()
        self.slices = {
            name: slice(end - size, end)
            for name, size, end in zip(self.names, sizes, ends, strict=True)
        }
        self._known = {name: value for name, value in values.items() if name not in self.slices}
        self.statistics: Tensors = {}
        self._sensitivity: Tensor | None = None
        if reference is not None and stack.has_statistics:
            self._follow_statistics(reference)

    # ---------------------------------------------------------------- statistics

    def _follow_statistics(self, reference: Tensor) -> None:
        """Make the statistics functions of the weights: their values, and S."""
        self._module = copy.deepcopy(self._module)
        layers = [name for name, m in self._module.named_modules() if isinstance(m, _BatchNorm)]
        norms = [_OpenNorm(self._module.get_submodule(name)) for name in layers]
        for name, norm in zip(layers, norms, strict=True):
            owner, _, leaf = name.rpartition(".")
            setattr(self._module.get_submodule(owner), leaf, norm)

        def statistics(point: Tensor) -> Tensor:
            for norm in norms:
                norm.measures = True
            try:
                functional_call(self._module, self._named(point, {}), (reference,), strict=False)
            finally:
                for norm in norms:
                    norm.measures = False
            return torch.cat([norm.take() for norm in norms])

        with torch.no_grad():
            flat = statistics(self.point)
        start = 0
        for name in layers:
            for leaf in ("running_mean", "running_var"):
                full = f"{name}.{leaf}"
                size = self._known[full].numel()
                self.statistics[full] = flat[start : start + size]
                start += size
        self._sensitivity = jacrev(statistics, chunk_size=64)(self.point)

    # ---------------------------------------------------------------- the network as a function

    def _named(self, point: Tensor, statistics: Mapping[str, Tensor]) -> Tensors:
        """Return all tensors of the network by all their names."""
        free = {n: point[where].view(self._shapes[n]) for n, where in self.slices.items()}
        tensors = {**self._known, **free, **statistics}
        return {alias: tensor for name, tensor in tensors.items() for alias in self._aliases[name]}

    def _call(self, point: Tensor, statistics: Tensor | None, x: Tensor) -> Tensor:
        parts: Tensors = {}
        if statistics is not None:
            sizes = [tensor.numel() for tensor in self.statistics.values()]
            parts = dict(zip(self.statistics, statistics.split(sizes), strict=True))
        named = self._named(point, parts)
        with plain_attention(), plain_operations():
            return functional_call(self._module, named, (x,), tie_weights=False).flatten(1)

    @property
    def _flat_statistics(self) -> Tensor | None:
        return torch.cat(list(self.statistics.values())) if self.statistics else None

    def outputs(self, x: Tensor) -> Tensor:
        """Return f(θ̃, x), (B, K), with the tangent's statistics."""
        with torch.no_grad():
            return self._call(self.point, self._flat_statistics, x)

    # ---------------------------------------------------------------- products with J

    def jvp(self, vector: Tensor, x: Tensor) -> Tensor:
        """Return J v, (B, K)."""
        flat = self._flat_statistics
        if flat is None or self._sensitivity is None:
            return _forward(lambda p: self._call(p, None, x), (self.point,), (vector,))
        moved = self._sensitivity @ vector
        return _forward(lambda p, s: self._call(p, s, x), (self.point, flat), (vector, moved))

    def vjp(self, cotangent: Tensor, x: Tensor) -> Tensor:
        """Return Jᵀ c of c (B, K), summed over examples, (P,)."""
        flat = self._flat_statistics
        if flat is None or self._sensitivity is None:
            with torch.no_grad():
                return vjp(lambda p: self._call(p, None, x), self.point)[1](cotangent)[0]
        with torch.no_grad():
            direct, through = vjp(lambda p, s: self._call(p, s, x), self.point, flat)[1](cotangent)
        return direct + through @ self._sensitivity

    def jacobian(self, x: Tensor, *, chunk: int = 32) -> Tensor:
        """Return J(x), (B, K, P), example by example in chunks: B K P numbers."""
        flat = self._flat_statistics
        pieces = []
        with torch.no_grad():
            for part in x.split(chunk):
                if flat is None or self._sensitivity is None:
                    single = jacrev(lambda p, example: self._call(p, None, example[None])[0])
                    pieces.append(vmap(single, (None, 0))(self.point, part))
                    continue
                by_parts = jacrev(lambda p, s, example: self._call(p, s, example[None])[0], (0, 1))
                direct, through = vmap(by_parts, (None, None, 0))(self.point, flat, part)
                pieces.append(direct + through @ self._sensitivity)
        return torch.cat(pieces)

    # ---------------------------------------------------------------- the linear model

    def shift(self, x: Tensor) -> Tensor:
        """Return what h has beside J θ, (B, K): 0, or f − J θ̃."""
        outputs = self.outputs(x)
        return (
            torch.zeros_like(outputs)
            if self.form == "jacobian"
            else outputs - self.jvp(self.point, x)
        )

    def closeness(self, batches: Iterable[Tensor]) -> float:
        """Return ‖J θ̃ − f‖ / ‖f‖ over inputs: 0 where both forms are one model."""
        apart, size = 0.0, 0.0
        for x in batches:
            outputs = self.outputs(x)
            apart += (self.jvp(self.point, x) - outputs).double().square().sum().item()
            size += outputs.double().square().sum().item()
        return (apart / max(size, 1e-300)) ** 0.5

    def last_inputs(self, x: Tensor) -> Tensor | None:
        """Return what the last layer multiplies, (B, I), where the free parameters are its own.

        None unless that is a linear layer whose results are the outputs: then h = W a + b in these
        parameters, and products with J need no network.
        """
        owner = self.names[0].rpartition(".")[0]
        layer = self._module.get_submodule(owner)
        layer_names = {f"{owner}.{leaf}".lstrip(".") for leaf in ("weight", "bias")}
        if type(layer) is not nn.Linear or not layer_names >= set(self.names) or self.statistics:
            return None
        calls: list[tuple[Tensor, Tensor]] = []
        handle = layer.register_forward_hook(
            lambda _, inputs, results: calls.append((inputs[0], results))
        )
        try:
            outputs = self.outputs(x)
        finally:
            handle.remove()
        if len(calls) != 1 or calls[0][0].dim() != 2 or not torch.equal(calls[0][1], outputs):
            return None
        return calls[0][0]

    def index(self, groups: Mapping[str, str]) -> dict[str, Tensor]:
        """Return the places of each group's weights in the vector of all, by group."""
        places: dict[str, list[Tensor]] = {}
        for name, where in self.slices.items():
            numbers = torch.arange(where.start, where.stop, device=self.point.device)
            places.setdefault(groups[name], []).append(numbers)
        return {group: torch.cat(parts) for group, parts in places.items()}


def _forward(
    function: Callable[..., Tensor], point: tuple[Tensor, ...], vector: tuple[Tensor, ...]
) -> Tensor:
    """Return the derivative of a function along a vector.

    Where an operation has no derivative in forward mode, Jᵀ c is differentiated by c instead.
    """
    # torch's own warning, when it first differentiates forward
    with without_warning(".*torch.jit.script", DeprecationWarning), torch.no_grad():
        try:
            return jvp(function, point, vector)[1]
        except (NotImplementedError, RuntimeError) as error:  # an autograd.Function raises the last
            missing = first_line(error)
    try:
        with torch.no_grad():
            outputs = function(*point)
            twice = vjp(lambda c: vjp(function, *point)[1](c), torch.zeros_like(outputs))[1]
            return twice(vector)[0]
    except (NotImplementedError, RuntimeError) as error:
        raise ValueError(
            f"the evidence at the linear model's optimum needs products with J, and torch has none"
            f" for an operation of this network ({missing}); take evidence='trained' or"
            " give `prior_precision`"
        ) from error


class _OpenNorm(nn.Module):
    """BatchNorm that torch can differentiate with respect to its statistics.

    With `measures` on, it has those of its input, and hands them out.
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        assert isinstance(layer, _BatchNorm)
        self.weight, self.bias, self.eps = layer.weight, layer.bias, layer.eps
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            self.register_buffer(name, getattr(layer, name))
        self.measures = False
        self._found: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        mean, variance = cast(Tensor, self.running_mean), cast(Tensor, self.running_var)
        if self.measures:
            axes = [axis for axis in range(x.dim()) if axis != 1]
            mean, variance = x.mean(axes), x.var(axes, unbiased=False)
            self._found = torch.cat([mean, variance])
        shape = [1, -1, *[1] * (x.dim() - 2)]
        normal = (x - mean.view(shape)) * torch.rsqrt(variance + self.eps).view(shape)
        if self.weight is None:
            return normal
        return normal * self.weight.view(shape) + self.bias.view(shape)

    def take(self) -> Tensor:
        """Return mean and variance of the last measured pass, and forget them."""
        found, self._found = self._found, None
        assert found is not None
        return found


TOLERANCE = 1e-3
_EXAMPLES = 256  # that w is found on
_CANCELLED = 1e-4  # an output is at least so large as this share of its largest part

Multiply = Callable[[Tensor, Tensor], Tensor]
"""(vector (P,), inputs) -> J v, (B, K)."""


@torch.no_grad()
def distance(
    multiply: Multiply,
    point: Tensor,
    slices: Mapping[str, slice],
    batches: Sequence[tuple[Tensor, Tensor]],
    *,
    logits: bool = False,
) -> float:
    """Return δ, see above.

    Args:
        point: the trained weights θ̃, (P,). slices: where each parameter tensor lies in it, by name.
        batches: pairs of inputs and the network's outputs there, (B, K).
        logits: whether a number that all outputs of an example share means nothing.
    """
    adjust = _centred if logits else Tensor.double
    chosen = _spread_out(batches)
    target = adjust(torch.cat([f for _, f in chosen]))
    parts = _separate(slices, target.numel() // 2)

    def column(part: list[slice]) -> Tensor:
        vector = _weighted(point, [part], [1.0])
        return adjust(torch.cat([multiply(vector, x) for x, _ in chosen]))

    columns = torch.stack([column(part) for part in parts], -1)  # (N, K, T)
    largest = columns.square().sum(0).amax(-1)
    size = _sizes(target.square().sum(0), largest)
    ridge = (TOLERANCE / 2) ** 2 / len(parts)
    rows = (columns / size[:, None]).flatten(0, 1)
    number = target.shape[-1]
    normal = rows.mT @ rows / number + ridge * torch.eye(len(parts)).to(rows)
    factors = torch.linalg.solve(normal, rows.mT @ (target / size).flatten() / number)
    vector = _weighted(point, parts, factors.tolist())
    missed, total = torch.zeros_like(size), torch.zeros_like(size)
    for x, f in batches:
        outputs = adjust(f)
        missed += (adjust(multiply(vector, x)) - outputs).square().sum(0)
        total += outputs.square().sum(0)
    share = len(target) / sum(len(f) for _, f in batches)
    relative = missed / _sizes(total, largest / share).square()
    return float((relative.mean() + ridge * factors.square().sum()).sqrt())


def _sizes(squares: Tensor, largest: Tensor) -> Tensor:
    """Return ‖f_d‖ of each output, (K,), at least the rounding of what it is the sum of."""
    return squares.maximum(_CANCELLED**2 * largest).sqrt().clamp_min(1e-30)


def _centred(outputs: Tensor) -> Tensor:
    outputs = outputs.double()
    return outputs - outputs.mean(-1, keepdim=True)


def _spread_out(batches: Sequence[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    """Return at most `_EXAMPLES` examples from all over the data."""
    total = sum(len(f) for _, f in batches)
    step = -(-total // _EXAMPLES)
    return [(x[::step], f[::step]) for x, f in batches]


def _separate(slices: Mapping[str, slice], most: int) -> list[list[slice]]:
    """Return the tensors one by one; where there are too few values to tell so many apart, those of
    a layer together, and all but the last layers as one."""
    if len(slices) <= most:
        return [[where] for where in slices.values()]
    layers: dict[str, list[slice]] = {}
    for name, where in slices.items():
        layers.setdefault(name.rpartition(".")[0], []).append(where)
    parts = list(layers.values())
    first = max(1, len(parts) - max(most, 2) + 1)
    return [[where for part in parts[:first] for where in part], *parts[first:]]


def _weighted(point: Tensor, parts: Sequence[list[slice]], factors: Sequence[float]) -> Tensor:
    """Return θ̃ with a factor for each part, 0 elsewhere, (P,)."""
    vector = torch.zeros_like(point)
    for part, factor in zip(parts, factors, strict=True):
        for where in part:
            vector[where] = factor * point[where]
    return vector
