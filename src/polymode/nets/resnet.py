"""Residual networks for small images.

A 3x3 convolution with stride 1, then stages of blocks with two 3x3 convolutions each; the first
block of every stage but the first halves the sides and doubles the channels; mean over the pixels;
a linear layer. No max-pooling. With phi the activation, a block is one of

    phi(norm(conv(phi(norm(conv(x))))) + shortcut(x))      (He et al., 2016a)
    conv(phi(norm(conv(phi(norm(x)))))) + shortcut(x)      (`preactivation`: He et al., 2016b)

and without norm FixUp (Zhang et al., 2019): a residual branch of m layers in a network of L
branches has its last layer start at 0, the others at He's initialisation times L^(-1/(2m-2)), the
classifier at 0; a scalar bias stands before each convolution, linear layer and activation, and one
scalar multiplier in each branch. Here m = 2.

A shortcut that must change the shape is a 1x1 convolution with norm ("projection", option B of He
et al.) or takes every second pixel and adds channels of zeros ("padding", option A, no parameters).
He et al. use padding for small images. Izmailov et al., 2021, and Laurent et al., 2024, use
projections, and so does the default here.

Sources: K. He, X. Zhang, S. Ren, J. Sun, "Deep residual learning for image recognition", CVPR 2016
(a), "Identity mappings in deep residual networks", ECCV 2016 (b); H. Zhang, Y. N. Dauphin, T. Ma,
"Fixup initialization: residual learning without normalization", ICLR 2019. Dropout stands where
TorchUncertainty has it. Submodules have the names of the usual public checkpoints for CIFAR (conv1,
bn1, layer1.0.conv1, ..., layer2.0.shortcut.0, linear), also where the norm is another one. `B`
batch, `K` outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polymode.core.checks import Count, Few, Probability, Shape, check_call
from polymode.nets.activations import Activation, activation_maker
from polymode.nets.filter_response import FilterResponseNorm2d
from polymode.nets.sizes import check_image, check_sizes
from polymode.tracing.modules import not_too_large

NORMS: dict[str | None, Callable[[int], nn.Module]] = {
    "batch": nn.BatchNorm2d,
    "filter_response": FilterResponseNorm2d,
    None: lambda channels: Shift(),  # FixUp
}


@not_too_large()
def resnet(
    input_shape: Shape,
    num_outputs: int,
    *,
    blocks: Sequence[Few] = (3, 3, 3),
    width: Count = 16,
    norm: str | None = "batch",
    activation: Activation = "relu",
    preactivation: bool = False,
    shortcut: str = "projection",
    bias: bool = False,
    dropout: Probability = 0.0,
    zero_head: bool = False,
) -> nn.Module:
    """Return a residual network; `resnet8`, `resnet20` and `resnet18` are the usual sizes.

    Args:
        input_shape: (C, H, W), H and W >= 2 to the number of stages - 1.
        num_outputs: K >= 1, `task.num_outputs`.
        blocks: blocks of each stage, each >= 1.
        width: channels of the first stage, doubled from stage to stage.
        norm: "batch" (`BatchNorm2d`); "filter_response" (`FilterResponseNorm2d`, which holds a TLU;
            `activation` follows it); None for FixUp.
        activation: one of `ACTIVATIONS`, or what makes an `nn.Module` when called.
        preactivation: norm and activation before each convolution, and once at the end.
        shortcut: "projection" or "padding" where the shape changes.
        bias: whether convolutions have biases. BatchNorm makes them superfluous,
            FilterResponseNorm does not: the networks sampled by Izmailov et al. have them.
        dropout: probability in [0, 1) that a channel is dropped between the two convolutions of a
            block, and that a feature is dropped before the linear layer.
        zero_head: whether the linear layer starts at 0, as in FoRDE (T. Trinh et al., ICLR 2024).

    Returns:
        module from (B, C, H, W) to (B, K).

    >>> sum(p.numel() for p in resnet((3, 32, 32), 10).parameters())
    272474
    """
    check_call(resnet, locals())
    check_sizes("resnet", input_shape, num_outputs, dropout)
    if len(blocks) == 0:
        raise ValueError("`blocks` of resnet has no stage; ResNet-20 is blocks=(3, 3, 3)")
    channels, _, _ = check_image(
        "resnet", input_shape, 2 ** (len(blocks) - 1), f" for {len(blocks)} stages"
    )
    if norm not in NORMS:
        raise ValueError(
            f'`norm` of resnet must be "batch", "filter_response" or None (FixUp), got {norm!r}'
        )
    if shortcut not in ("projection", "padding"):
        raise ValueError(
            f'`shortcut` of resnet must be "projection" or "padding", got {shortcut!r}'
        )
    if norm is None and (preactivation or bias):
        raise ValueError(
            f"`{'preactivation' if preactivation else 'bias'}` of resnet must be False with"
            ' norm=None, got True: FixUp has blocks and scalar biases of its own; take norm="batch"'
            ' or norm="filter_response"'
        )
    parts = _Parts(norm, activation_maker("resnet", activation), bias, dropout, shortcut)
    net = ResNet(channels, num_outputs, blocks, width, parts, preactivation)
    if norm is None:
        start_fixup(net, net.linear)
    if zero_head:
        nn.init.zeros_(net.linear.weight)
        nn.init.zeros_(net.linear.bias)
    return net


def resnet8(input_shape: Shape, num_outputs: int, **options: Any) -> nn.Module:
    """Return ResNet-8: one block in each of three stages, 16-32-64; `options` of `resnet`.

    78,042 parameters for (3, 32, 32) and 10 outputs with BatchNorm, 75,290 with
    shortcut="padding".

    >>> sum(p.numel() for p in resnet8((3, 32, 32), 10).parameters())
    78042
    """
    check_call(resnet8, locals())
    return resnet(input_shape, num_outputs, **{"blocks": (1, 1, 1), **options})


def resnet20(input_shape: Shape, num_outputs: int, **options: Any) -> nn.Module:
    """Return ResNet-20: three blocks in each of three stages, 16-32-64; `options` of `resnet`.

    For (3, 32, 32) and 10 outputs:
        272,474 parameters with BatchNorm; 269,722 with shortcut="padding", the 0.27 million of He
        et al., 2016a;
        273,258 with norm="filter_response", activation="silu", of Laurent et al., 2024; 274,042
        with bias=True besides, of the public code of Izmailov et al., 2021;
        268,393 with norm=None, shortcut="padding", of the public code of Zhang et al., 2019.

    >>> sum(p.numel() for p in resnet20((3, 32, 32), 10, shortcut="padding").parameters())
    269722
    """
    check_call(resnet20, locals())
    return resnet(input_shape, num_outputs, **{"blocks": (3, 3, 3), **options})


def resnet18(input_shape: Shape, num_outputs: int, **options: Any) -> nn.Module:
    """Return ResNet-18: two blocks in each of four stages, 64-128-256-512; `options` of `resnet`.

    11,173,962 parameters for (3, 32, 32) and 10 outputs with BatchNorm, 11,220,132 with 100;
    11,172,170 with preactivation=True, where He et al., 2016b, have a norm at the end (public code
    that leaves it out has 1,024 fewer).

    >>> sum(p.numel() for p in resnet18((3, 32, 32), 10).parameters())
    11173962
    """
    check_call(resnet18, locals())
    return resnet(input_shape, num_outputs, **{"blocks": (2, 2, 2, 2), "width": 64, **options})


class _Parts(NamedTuple):
    """What all blocks of a network are made of."""

    norm: str | None
    make_activation: Callable[[], nn.Module]
    bias: bool
    dropout: float
    kind: str

    def make_norm(self, channels: int) -> nn.Module:
        return NORMS[self.norm](channels)

    def conv(self, inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
        return nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=self.bias)

    def shortcut(self, inputs: int, outputs: int, stride: int, *, norm: bool) -> nn.Module:
        if stride == 1 and inputs == outputs:
            return nn.Identity()
        if self.kind == "padding":
            return Padding(outputs - inputs, stride)
        conv = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=self.bias)
        return nn.Sequential(conv, self.make_norm(outputs)) if norm else nn.Sequential(conv)

    def drop_channels(self) -> nn.Module:
        return nn.Dropout2d(self.dropout) if self.dropout > 0 else nn.Identity()

    def block(self, inputs: int, outputs: int, stride: int, preactivation: bool) -> nn.Module:
        if self.norm is None:
            return FixupBlock(
                self.conv(inputs, outputs, stride),
                self.conv(outputs, outputs),
                self.shortcut(inputs, outputs, stride, norm=False),
                self.make_activation,
                self.drop_channels(),
            )
        kind = PreactivationBlock if preactivation else Block
        return kind(inputs, outputs, stride, self)


class Padding(nn.Module):
    """A shortcut without parameters: every second pixel, and channels of zeros."""

    def __init__(self, extra: int, stride: int) -> None:
        super().__init__()
        self.extra, self.stride = extra, stride

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.extra))


class Block(nn.Module):
    """phi(norm(conv(phi(norm(conv(x))))) + shortcut(x))."""

    def __init__(self, inputs: int, outputs: int, stride: int, parts: _Parts) -> None:
        super().__init__()
        self.conv1, self.bn1 = parts.conv(inputs, outputs, stride), parts.make_norm(outputs)
        self.conv2, self.bn2 = parts.conv(outputs, outputs), parts.make_norm(outputs)
        self.shortcut = parts.shortcut(inputs, outputs, stride, norm=True)
        self.activation1, self.activation2 = parts.make_activation(), parts.make_activation()
        self.dropout = parts.drop_channels()

    def forward(self, x: Tensor) -> Tensor:
        h = self.dropout(self.activation1(self.bn1(self.conv1(x))))
        return self.activation2(self.bn2(self.conv2(h)) + self.shortcut(x))


class PreactivationBlock(nn.Module):
    """conv(phi(norm(conv(phi(norm(x)))))) + shortcut(x).

    A shortcut that changes the shape sees phi(norm(x)), an identity sees x.
    """

    def __init__(self, inputs: int, outputs: int, stride: int, parts: _Parts) -> None:
        super().__init__()
        self.bn1, self.conv1 = parts.make_norm(inputs), parts.conv(inputs, outputs, stride)
        self.bn2, self.conv2 = parts.make_norm(outputs), parts.conv(outputs, outputs)
        self.shortcut = parts.shortcut(inputs, outputs, stride, norm=False)
        self.activation1, self.activation2 = parts.make_activation(), parts.make_activation()
        self.dropout = parts.drop_channels()

    def forward(self, x: Tensor) -> Tensor:
        first = self.activation1(self.bn1(x))
        h = self.dropout(self.activation2(self.bn2(self.conv1(first))))
        same = isinstance(self.shortcut, nn.Identity)
        return self.conv2(h) + (x if same else self.shortcut(first))


class Shift(nn.Module):
    """x + b with one scalar b, at first 0."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.bias


class Scale(nn.Module):
    """a x with one scalar a, at first 1."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class FixupBlock(nn.Module):
    """phi(shortcut(x) + a conv2(phi(conv1(x + b1) + b2) + b3) + b4).

    A shortcut that changes the shape sees x + b1, an identity sees x.
    """

    def __init__(
        self,
        conv1: nn.Conv2d,
        conv2: nn.Conv2d,
        shortcut: nn.Module,
        make_activation: Callable[[], nn.Module],
        dropout: nn.Module,
    ) -> None:
        super().__init__()
        self.shift1, self.conv1, self.shift2 = Shift(), conv1, Shift()
        self.shift3, self.conv2, self.scale, self.shift4 = Shift(), conv2, Scale(), Shift()
        self.shortcut, self.dropout = shortcut, dropout
        self.activation1, self.activation2 = make_activation(), make_activation()

    def forward(self, x: Tensor) -> Tensor:
        shifted = self.shift1(x)
        h = self.dropout(self.activation1(self.shift2(self.conv1(shifted))))
        h = self.shift4(self.scale(self.conv2(self.shift3(h))))
        same = isinstance(self.shortcut, nn.Identity)
        return self.activation2(h + (x if same else self.shortcut(shifted)))


def start_fixup(net: nn.Module, classifier: nn.Linear) -> None:
    """Set the parameters of a network of `FixupBlock`s to FixUp's start.

    Convolutions outside of branches (stem, projections) start as He's, with the number of outgoing
    connections, like the branches' first ones.
    """
    blocks = [module for module in net.modules() if isinstance(module, FixupBlock)]
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out")
    with torch.no_grad():
        for block in blocks:
            block.conv1.weight.mul_(len(blocks) ** -0.5)
            block.conv2.weight.zero_()
        classifier.weight.zero_()
        classifier.bias.zero_()


class ResNet(nn.Module):
    """Stem, stages, mean over the pixels, linear layer."""

    def __init__(
        self,
        channels: int,
        num_outputs: int,
        blocks: Sequence[Few],
        width: int,
        parts: _Parts,
        preactivation: bool,
    ) -> None:
        super().__init__()
        self.conv1 = parts.conv(channels, width)
        self.bn1 = nn.Identity() if preactivation else parts.make_norm(width)
        self.activation = nn.Identity() if preactivation else parts.make_activation()
        inputs = width
        self.stages = [f"layer{stage + 1}" for stage in range(len(blocks))]
        for stage, count in enumerate(blocks):
            outputs = width * 2**stage
            strides = [1 if stage == 0 else 2, *[1] * (count - 1)]
            row = [
                parts.block(outputs if k else inputs, outputs, stride, preactivation)
                for k, stride in enumerate(strides)
            ]
            self.add_module(self.stages[stage], nn.Sequential(*row))
            inputs = outputs
        self.finish: nn.Module = nn.Identity()
        if preactivation:
            self.finish = nn.Sequential(parts.make_norm(inputs), parts.make_activation())
        elif parts.norm is None:
            self.finish = Shift()
        self.dropout = nn.Dropout(parts.dropout) if parts.dropout > 0 else nn.Identity()
        self.linear = nn.Linear(inputs, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        h = self.activation(self.bn1(self.conv1(x)))
        for stage in self.stages:
            h = self.get_submodule(stage)(h)
        return self.linear(self.dropout(self.finish(h).mean((2, 3))))
