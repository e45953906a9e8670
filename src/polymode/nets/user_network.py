"""A user's network: how a stack builds it, and whether it fits the task."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from polymode.core.registry import suggest
from polymode.core.rows import Inputs, Shapes, equal, shapes_of, shapes_text
from polymode.core.warn import warn
from polymode.likelihoods.kinds import Categorical, Likelihood
from polymode.likelihoods.positions import Positions
from polymode.stack.stack import Stack
from polymode.stack.trainable import Choice, head_names
from polymode.stack.vocabulary import explain_ids
from polymode.tracing.calling import (
    Calling,
    Output,
    UnclearOutput,
    called_by,
    calling_for,
    output_name,
    pick,
)
from polymode.training.data import Data


def networks_for(net: Any, input_shape: Shapes, num_outputs: int) -> Any:
    """Return `net` as a stack takes it: a function without arguments, a module or a list of
    modules.

    A function with parameters `input_shape` and `num_outputs`, such as those of `polymode.nets`,
    gets the task's; these may also be named.
    """
    if isinstance(net, str):
        net = _named(net)
    if isinstance(net, (nn.Module, Sequence)):
        return net
    if isinstance(net, type) and issubclass(net, nn.Module) or callable(net):
        try:
            parameters = inspect.signature(net).parameters
        except (TypeError, ValueError):
            return net
        if {"input_shape", "num_outputs"} <= set(parameters):
            return partial(net, input_shape, num_outputs)
        needed = [
            p.name
            for p in parameters.values()
            if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        ]
        if needed:
            raise ValueError(
                f"`net` is a function that needs {', '.join(needed)}; polymode calls it without"
                " arguments: give net=lambda: MyNet(...), or name its parameters input_shape and"
                " num_outputs"
            )
        return net
    raise ValueError(
        "`net` must be a builder from pm.nets, a function that returns a new nn.Module, a module or"
        f" a list of modules, got a {type(net).__name__}"
    )


def _named(name: str) -> Any:
    """Return the builder of `polymode.nets` that has this name."""
    nets = import_module("polymode.nets")  # by name: the package imports this module
    if name not in nets.__all__:
        listed = ", ".join(nets.__all__)
        raise ValueError(f"Unknown net '{name}'.{suggest(name, nets.__all__)} Known: {listed}.")
    return getattr(nets, name)


def choice_of(trainable: str | None, data: Data, batch_size: int, output: Output) -> Choice:
    """Return which parameters to train; the head is found in a pass over training inputs."""
    if trainable != "head":
        return trainable

    def head(module: nn.Module) -> list[str]:
        like = next((t for t in module.parameters() if t.is_floating_point()), torch.empty(0))
        x = next(data.to(like.dtype, like.device).batches(batch_size))[0][:2]
        with called_by(module, calling_for(module, shapes_of(x), output) or Calling(output)):
            return head_names(module, x)

    return head


def _warn_of_softmax(out: Tensor) -> None:
    """Warn of outputs that are probabilities already, where logits are asked for."""
    sums = out.double().sum(1)
    if out.shape[1] > 1 and bool((out >= 0).all()) and bool((sums - 1).abs().max() < 1e-4):
        warn(
            "the network's outputs are at least 0 and add up to 1, like those of a softmax; the"
            " likelihood takes logits and applies the softmax itself. Remove the network's, or"
            " probabilities stay nearly equal",
        )


class Fitted(NamedTuple):
    """What a network says of the data: its target size, and where outputs of a position are."""

    target_size: int
    likelihood: Likelihood


def check_network(
    stack: Stack, x: Inputs, y: Tensor, likelihood: Likelihood, target_size: int
) -> Fitted:
    """Run two examples through the first member; return what they say of the likelihood.

    A network that returns more than a tensor gets a hook that picks its logits from now on.
    A classifier may have more outputs than the training labels show classes; otherwise the number
    of outputs must be the likelihood's.
    """
    try:
        with torch.no_grad():
            inputs = x[:2].clone()
            out = stack.views.to_try(0).eval()(inputs)
        if not isinstance(out, Tensor):
            stack.call_by(Calling(output_name(out)))
            out = pick(out)
    except UnclearOutput:
        raise
    except IndexError as error:
        explain_ids(error, stack, x[:2])
        raise ValueError(
            f"the network cannot evaluate inputs of shape {_described(x)}: {error}"
        ) from error
    except (RuntimeError, ValueError, TypeError) as error:
        raise ValueError(
            f"the network cannot evaluate inputs of shape {_described(x)}:"
            f" {str(error).splitlines()[0]}"
        ) from error
    if not equal(inputs, x[:2]):
        raise ValueError(
            "the network changes its inputs in place, and so the data for all that follows; let its"
            " forward method begin with x = x.clone()"
        )
    needed = likelihood.num_outputs(target_size)
    rows = min(len(x), 2)
    fitted = likelihood
    if isinstance(likelihood, Positions):
        fitted = likelihood.placed(out, y[:rows], target_size)
        likelihood = likelihood.base
        out, needed = fitted.output_rows(out)[0], likelihood.num_outputs(target_size)
    elif out.dim() != 2 or out.shape[0] != rows:
        raise ValueError(
            f"the network maps {rows} examples to outputs of shape {tuple(out.shape)}; the"
            f" {likelihood.name} likelihood takes ({rows}, {needed})"
        )
    if isinstance(likelihood, Categorical) and out.shape[1] > needed:
        warn(
            f"the network gives {out.shape[1]} outputs for {target_size} classes: the others have"
            " no training examples. Give the network as many outputs as classes, or"
            f" pm.Task(target_size={out.shape[1]}) if all of them can occur",
        )
    if isinstance(likelihood, Categorical) and out.shape[1] >= needed:
        _warn_of_softmax(out)
        return Fitted(out.shape[1], fitted)
    if out.shape[1] != needed:
        raise ValueError(
            f"the network gives {out.shape[1]} outputs, but the {likelihood.name} likelihood with"
            f" {target_size} {'classes' if likelihood.classification else 'target(s)'} needs"
            f" {needed}"
        )
    return Fitted(target_size, fitted)


def _described(x: Inputs) -> str:
    """Return shapes and types of inputs, as messages have them."""
    if isinstance(x, Tensor):
        return f"{tuple(x.shape[1:])} and type {x.dtype}"
    types = ", ".join(sorted({str(leaf.dtype) for leaf in x.leaves}))
    return f"{shapes_text(shapes_of(x))} and types {types}"
