"""Small random networks of transformers, peft and timm, with data: nothing is downloaded."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import peft
import timm
import torch
import transformers
from torch import nn

import polymode as pm

N, LENGTH, WORDS = 16, 7, 50
STREAM = torch.Generator().manual_seed(0)
IDS = torch.randint(5, WORDS, (N, LENGTH), generator=STREAM)
MASK = (torch.arange(LENGTH) < torch.randint(3, LENGTH + 1, (N, 1), generator=STREAM)).long()
IMAGES = torch.randn(N, 3, 32, 32, generator=STREAM)
LABELS = torch.arange(N) % 2
TOKENS = {"input_ids": IDS, "attention_mask": MASK}


def bert() -> nn.Module:
    config = transformers.BertConfig(
        vocab_size=WORDS, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=16, num_labels=2,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config)


def frozen(build: Callable[[], nn.Module]) -> nn.Module:
    """Return one network that stands for a downloaded one: the same in every process."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build()


BODY = frozen(bert)


def bert_with_new_head() -> nn.Module:
    """One body for all members, under a new head each time."""
    net = copy.copy(BODY)
    net._modules = dict(BODY._modules)
    net.classifier = nn.Linear(16, 2)
    return net


def bert_with_adapters() -> nn.Module:
    config = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"])
    return peft.get_peft_model(copy.deepcopy(BODY), config)


def vit() -> nn.Module:
    return timm.create_model(
        "vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=16, depth=2, num_heads=2,
        num_classes=2, drop_rate=0.1,
    )  # fmt: skip


VIT = frozen(vit)


def vit_with_new_head() -> nn.Module:
    net = copy.copy(VIT)
    net._modules = dict(VIT._modules)
    net.head = nn.Linear(16, 2)
    return net


RESNET = frozen(lambda: timm.create_model("resnet10t", num_classes=2, drop_rate=0.1))


def resnet_with_new_head() -> nn.Module:
    net = copy.copy(RESNET)
    net._modules = dict(RESNET._modules)
    net.fc = nn.Linear(512, 2)
    return net


class Kind(NamedTuple):
    """A network, its inputs, what is trained, and the class that members come back as."""

    net: Callable[[], nn.Module]
    x: Any
    trainable: str | None
    member: type


KINDS = {
    "BERT": Kind(bert, TOKENS, None, transformers.BertForSequenceClassification),
    "BERT, head": Kind(
        bert_with_new_head, TOKENS, "head", transformers.BertForSequenceClassification
    ),
    "BERT, LoRA": Kind(bert_with_adapters, TOKENS, None, peft.PeftModel),
    "ViT, head": Kind(vit_with_new_head, IMAGES, "head", timm.models.VisionTransformer),
    "ResNet, head": Kind(resnet_with_new_head, IMAGES, "head", timm.models.ResNet),
}
METHODS = (
    "map", "deep_ensemble", "swag", "laplace", "vi", "ivon", "sghmc", "dropout",
)  # fmt: skip


def task(kind: str) -> pm.Task:
    x = KINDS[kind].x
    train = {**x, "labels": LABELS} if isinstance(x, dict) else (x, LABELS)
    return pm.Task(train=train, likelihood="categorical")
