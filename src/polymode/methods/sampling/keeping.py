"""Samples along a run: at which steps, within which memory, and what they are in the end.

`kept` is (L, M, ...) by the names of `Stack.tensors`: parameters, running statistics as they are at
the moment, and the likelihood's own parameters. It is allocated before the first step, so that too
many samples are refused before anything is computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from polymode.core.memory import free_bytes, human
from polymode.posterior.weights import Samples, changing_tensors
from polymode.stack.stack import Stack
from polymode.tracing.modules import Tensors


def room_for(number: int, stack: Stack) -> Tensors:
    """Return zeros for so many samples of each mode, if half of the free memory holds them."""
    require_room_for(number, stack)
    return {n: t.new_zeros(number, *t.shape) for n, t in changing_tensors(stack).items()}


def require_room_for(number: int, stack: Stack) -> None:
    """Refuse so many samples of each mode if half of the free memory does not hold them."""
    need = number * sum(t.numel() * t.element_size() for t in changing_tensors(stack).values())
    require_room(need, stack, f"{number} samples of each of {stack.num_modes} modes")


def require_room_for_draws(number: int, stack: Stack) -> None:
    """The same for draws of a Gaussian, which are kept where they have running statistics."""
    if stack.has_statistics:
        require_room_for(number, stack)


def require_room(need: float, stack: Stack, what: str) -> None:
    """Refuse what needs more than half of the free memory, in bytes."""
    free = free_bytes(stack.device)
    if need > 0.5 * free:
        raise ValueError(
            f"{what} need {human(need)}, more than half of the {human(free)} that are free. Keep"
            " fewer, or take fewer modes"
        )


def keep_sample(stack: Stack, kept: Tensors, steps: Sequence[int], done: int) -> None:
    """Copy the present networks to their place among the samples, if step `done` is in `steps`."""
    if done in steps:
        place = steps.index(done)
        for name, tensor in changing_tensors(stack).items():
            kept[name][place].copy_(tensor)


def kept_samples(
    stack: Stack,
    kept: Tensors,
    steps: Sequence[int],
    done: int,
    facts: Mapping[str, Tensor] | None = None,
) -> Samples:
    """Return the samples that were kept by step `done`; the networks themselves if none was.

    Args:
        facts: what a sampler tells of its chains, (M,) each, by name.
    """
    number = sum(step <= done for step in steps)
    chain_facts = {name: tensor.to(stack.dtype) for name, tensor in (facts or {}).items()}
    return Samples(stack, {name: t[:number] for name, t in kept.items() if number}, chain_facts)
