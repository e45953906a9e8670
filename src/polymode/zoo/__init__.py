"""Zoos: thousands of independently trained networks, kept in files with an index."""

from __future__ import annotations

from polymode.zoo.index import Shard
from polymode.zoo.published import Published, import_published
from polymode.zoo.recipe import RECIPES, Recipe
from polymode.zoo.train import train
from polymode.zoo.zoo import Zoo, find_zoo

__all__ = [
    "RECIPES",
    "Published",
    "Recipe",
    "Shard",
    "Zoo",
    "find_zoo",
    "import_published",
    "train",
]
