"""How to train: the options every gradient-trained method shares, and the optimiser they stand for.

Optimiser and schedule are plain torch objects. They work on the stacked tensors (M, ...), so each
member's state lies inside the stack and one fused update serves all members; that needs an update
which is element by element, as those of SGD, Adam and their kin are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler

from polymode.core.checks import Rule
from polymode.core.memory import require_free
from polymode.core.options import option, rule
from polymode.training.options import Passes

MakeOptimizer = Callable[[list[Tensor]], torch.optim.Optimizer]
MakeSchedule = Callable[[torch.optim.Optimizer], LRScheduler]

OPTIMIZERS: dict[str, Any] = {
    "adam": torch.optim.Adam,
    "adamw": partial(torch.optim.AdamW, weight_decay=0.0),  # the prior is the method's
    "sgd": torch.optim.SGD,
    "nesterov": partial(torch.optim.SGD, nesterov=True),
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
}
_FUSED = ("adam", "adamw", "sgd", "nesterov", "adagrad")
_STEPS_AS_LONG_AS_THE_RATE = ("adam", "adamw", "rmsprop")
NOISE_LR = 0.02  # a factor of e in 50 steps; learned noise has several to go
_MOMENTUM = ("sgd", "nesterov", "rmsprop")
_MOMENTS = {"adam": 2, "adamw": 2, "rmsprop": 1, "adagrad": 1}  # tensors kept for each parameter
_COUPLING = (
    "LBFGS",
    "Adafactor",
    "Muon",
)  # their updates mix the entries of a tensor, hence the members

SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda done: 1.0,
    "cosine": lambda done: 0.5 * (1 + math.cos(math.pi * done)),
    "linear": lambda done: 1.0 - done,
    "ramp": lambda done: 1.0 - 0.99 * min(max((done - 0.5) / 0.4, 0.0), 1.0),
}


@dataclass(frozen=True, kw_only=True)
class Training(Passes):
    """Options of gradient training: those of `Passes`, and"""

    optimizer: str | MakeOptimizer = option(
        "adam",
        choices=OPTIMIZERS,
        doc="the optimiser",
        more="Or a function from the list of stacked tensors to a `torch.optim.Optimizer`, e.g."
        " `lambda p: torch.optim.SGD(p, lr=0.1, dampening=0.1, momentum=0.9)`. A named adamw has no"
        " weight decay, since the prior is the method's `prior_precision`; it is then adam.",
    )
    lr: float = option(
        1e-3,
        gt=0,
        doc="learning rate of a named optimiser",
        more="Learned noise has a rate of its own with adam, adamw and rmsprop, whose steps are as"
        " long as the rate: 0.02, or `lr` if that is more.",
    )
    momentum: float = option(0.0, ge=0, lt=1, doc="momentum of sgd, nesterov and rmsprop")
    schedule: str | MakeSchedule = option(
        "constant",
        choices=SCHEDULES,
        doc="factor of `lr` at each step",
        more="'cosine' and 'linear' go down to 0 at the end; 'ramp' is 1 for the first half, then"
        " linear to 0.01 at nine tenths. Or a function from the optimiser to a torch scheduler,"
        " stepped once every `schedule_unit`.",
    )
    schedule_unit: str = option(
        "epoch", choices=("epoch", "step"), doc="how often a torch scheduler steps"
    )
    clip_norm: float | None = option(
        None, gt=0, doc="largest norm of each member's own gradient", none="does not clip"
    )
    rules: ClassVar[tuple[Rule, ...]] = (
        rule(
            "`schedule_unit` of {name} belongs to a schedule that is a function, not to"
            " {config.schedule!r}, which is followed step by step",
            lambda config: config.schedule_unit == "epoch" or callable(config.schedule),
        ),
        rule(
            f"`momentum` belongs to {', '.join(_MOMENTUM)}, not to {{config.optimizer_name}}",
            lambda config: not config.momentum or config.optimizer in _MOMENTUM,
        ),
        rule(
            "`momentum` of {name} must be > 0 for nesterov, got {config.momentum:g}",
            lambda config: config.optimizer != "nesterov" or config.momentum > 0,
        ),
    )

    def __post_init__(self) -> None:
        usual = isinstance(self.momentum, float) and self.momentum == type(self).momentum
        if usual and not (isinstance(self.optimizer, str) and self.optimizer in _MOMENTUM):
            object.__setattr__(self, "momentum", 0.0)  # a default, of another optimiser
        super().__post_init__()

    @property
    def optimizer_name(self) -> str:
        """The name of the optimiser, for messages."""
        return self.optimizer if isinstance(self.optimizer, str) else "a function"

    @property
    def advice(self) -> str:
        rate = f"lr={min(self.lr / 10, type(self).lr):g} instead of {self.lr:g}"
        named = isinstance(self.optimizer, str)
        clip = "" if self.clip_norm else " or clip_norm=1.0"
        return (
            f"Try {rate if named else 'a smaller learning rate'}{clip}, and check the scale of"
            " the inputs"
        )


class Optimization:
    """An optimiser on stacked tensors, its schedule, and the clipping of members' gradients.

    Args:
        leaves: what is trained, (M, ...) each.
        steps_per_epoch, total_steps: for the schedule.
        num_noise: how many of the last leaves are the likelihood's own.
    """

    def __init__(
        self,
        training: Training,
        leaves: list[Tensor],
        steps_per_epoch: int,
        total_steps: int,
        num_noise: int = 0,
    ) -> None:
        _require_room(training, leaves)
        self.optimizer = _make_optimizer(training, leaves, num_noise)
        self._apply: Callable[[], Any] = self._first_step
        self.leaves = leaves
        self.total_steps = max(total_steps, 1)
        self.clip_norm = training.clip_norm
        self.scheduler: LRScheduler | None = None
        self.factor: Callable[[float], float] | None = None
        if callable(training.schedule):
            self.scheduler = training.schedule(self.optimizer)
            self.every = 1 if training.schedule_unit == "step" else max(steps_per_epoch, 1)
        elif training.schedule != "constant":
            self.factor = SCHEDULES[training.schedule]
            self.base = [group["lr"] for group in self.optimizer.param_groups]

    def update(self, step: int, done: float | None = None) -> None:
        """Change the stacked tensors by their gradients, as step number `step` of the run. `done`
        is the share of a named schedule that lies before it; by default that of the run."""
        if self.clip_norm is not None:
            clip_each_member(self.leaves, self.clip_norm)
        if self.factor is not None:
            factor = self.factor(min(step / self.total_steps, 1.0) if done is None else done)
            for group, base in zip(self.optimizer.param_groups, self.base, strict=True):
                group["lr"] = base * factor
        self._apply()
        if self.scheduler is not None and (step + 1) % self.every == 0:
            self.scheduler.step()

    def _first_step(self) -> None:
        """Let torch set up its state; from then on, take the short way where there is one."""
        self.optimizer.step()
        self._apply = _fused_adam_step(self.optimizer) or self.optimizer.step

    def tensors(self) -> dict[str, Tensor]:
        """Return the optimiser's tensors by name, for a checkpoint."""
        return {
            f"{index}/{key}": value
            for index, entry in self.optimizer.state_dict()["state"].items()
            for key, value in entry.items()
            if isinstance(value, Tensor)
        }

    def numbers(self) -> dict[str, Any]:
        """Return the rest of the state, JSON-safe."""
        state = self.optimizer.state_dict()
        entries = {
            str(index): {k: v for k, v in entry.items() if not isinstance(v, Tensor)}
            for index, entry in state["state"].items()
        }
        scheduler = None if self.scheduler is None else _plain(self.scheduler.state_dict())
        return {"state": entries, "groups": _plain(state["param_groups"]), "scheduler": scheduler}

    def load(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """Put back what `tensors` and `numbers` gave, in the memory format of the parameters."""
        state: dict[int, dict[str, Any]] = {
            int(index): dict(entry) for index, entry in numbers["state"].items()
        }
        for name, tensor in tensors.items():
            index, key = name.split("/", 1)
            leaf = self.leaves[int(index)]
            if tensor.shape == leaf.shape:
                tensor = torch.empty_like(leaf, requires_grad=False).copy_(tensor)
            state.setdefault(int(index), {})[key] = tensor
        groups = self.optimizer.state_dict()["param_groups"]
        merged = [{**old, **new} for old, new in zip(groups, numbers["groups"], strict=True)]
        self.optimizer.load_state_dict({"state": state, "param_groups": merged})
        self._apply = self._first_step
        if self.scheduler is not None:
            self.scheduler.load_state_dict(numbers["scheduler"])


def _require_room(training: Training, leaves: list[Tensor]) -> None:
    """Refuse to train what fits into the memory without its gradients and moments alone."""
    if not leaves or not training.epochs:
        return
    name = training.optimizer if isinstance(training.optimizer, str) else "your optimiser"
    held = _MOMENTS.get(name, 0) + (name in _MOMENTUM and training.momentum > 0)
    parameter_bytes = sum(leaf.numel() * leaf.element_size() for leaf in leaves)
    modes, sgd = leaves[0].shape[0], "" if held == 0 else ", or optimizer='sgd', which keeps least"
    remedy = f"Take {'fewer modes' if modes > 1 else 'a smaller network'}{sgd}"
    what = f"gradients{' and moments' if held else ''} of {modes:,} network{'s' * (modes > 1)}"
    require_free(
        (1 + held) * parameter_bytes, f"training by {name}: {what}", remedy, leaves[0].device
    )


def _make_optimizer(
    training: Training, leaves: list[Tensor], num_noise: int
) -> torch.optim.Optimizer:
    if isinstance(training.optimizer, str):
        groups: list[dict[str, Any]] = [{"params": leaves}]
        if num_noise and training.optimizer in _STEPS_AS_LONG_AS_THE_RATE:
            network, noise = leaves[:-num_noise], leaves[-num_noise:]
            groups = [{"params": network}, {"params": noise, "lr": max(NOISE_LR, training.lr)}]
        options: dict[str, Any] = {"lr": training.lr}
        if training.optimizer in _FUSED:
            options["fused"] = all(leaf.is_floating_point() and not leaf.is_meta for leaf in leaves)
        if training.momentum:
            options["momentum"] = training.momentum
        return OPTIMIZERS[training.optimizer](groups, **options)
    optimizer = training.optimizer(leaves)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ValueError(
            f"`optimizer` returned a {type(optimizer).__name__}, not a torch.optim.Optimizer"
        )
    if type(optimizer).__name__ in _COUPLING:
        raise ValueError(
            f"{type(optimizer).__name__} mixes the entries of a tensor, which would couple the"
            " members of a stack; use an element-by-element optimiser such as Adam or SGD"
        )
    return optimizer


def _fused_adam_step(optimizer: torch.optim.Optimizer) -> Callable[[], None] | None:
    """Return torch's fused update of Adam without what surrounds it, or None for another optimiser.

    `Optimizer.step` spends most of its time on hooks and on sorting tensors when these are few and
    small. The state stays torch's own, so checkpoints and schedulers see no difference.
    """
    kind = {torch.optim.Adam: torch._fused_adam_, torch.optim.AdamW: torch._fused_adamw_}
    update = kind.get(type(optimizer))
    groups = optimizer.param_groups
    if update is None or not all(group["fused"] for group in groups):
        return None
    if any(group["amsgrad"] or group["differentiable"] or group["capturable"] for group in groups):
        return None
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        return None
    steps = [_fused_group_step(update, group, optimizer.state) for group in groups]
    if len(steps) == 1:
        return steps[0]

    def step() -> None:
        for update_group in steps:
            update_group()

    return step


def _fused_group_step(
    update: Callable[..., Any], group: dict[str, Any], states: dict[Tensor, Any]
) -> Callable[[], None]:
    """Return the fused update of one group of parameters."""
    leaves = group["params"]
    state = [states[leaf] for leaf in leaves]
    means = [entry["exp_avg"] for entry in state]
    squares = [entry["exp_avg_sq"] for entry in state]
    counts = [entry["step"] for entry in state]

    def step() -> None:
        beta1, beta2 = group["betas"]  # schedulers change them, as they do the rate
        with torch.no_grad():
            torch._foreach_add_(counts, 1)
            update(
                leaves, [leaf.grad for leaf in leaves], means, squares, [], counts,
                lr=group["lr"], beta1=beta1, beta2=beta2, weight_decay=group["weight_decay"],
                eps=group["eps"], amsgrad=False, maximize=group["maximize"],
            )  # fmt: skip

    return step


def clip_each_member(leaves: list[Tensor], largest: float) -> None:
    """Scale each member's gradient down to the norm `largest` where it is longer; that of what
    members train in common, (1, ...), by itself."""
    grads = [leaf.grad for leaf in leaves if leaf.grad is not None]
    for size in sorted({len(grad) for grad in grads}):
        _clip_rows([grad for grad in grads if len(grad) == size], largest)


def _clip_rows(grads: list[Tensor], largest: float) -> None:
    squares = sum(grad.reshape(len(grad), -1).square().sum(1) for grad in grads)
    assert isinstance(squares, Tensor)
    scale = (largest / squares.sqrt().clamp_min(1e-30)).clamp_max(1.0)  # (M,)
    for grad in grads:
        grad.mul_(scale.view(-1, *(1,) * (grad.dim() - 1)))


def _plain(value: Any) -> Any:
    """Return the JSON-safe part of a torch state dict."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items() if not callable(item)}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, Tensor):
        return value.item()
    return value
