"""Original file formats to NumPy arrays, with size and value checks; nothing is ever unpickled."""

from __future__ import annotations

from polymode.tasks.readers.archives import members
from polymode.tasks.readers.cifar import read_cifar
from polymode.tasks.readers.idx import read_idx
from polymode.tasks.readers.image_files import Images, ImageStack, read_image_folder
from polymode.tasks.readers.npz import npz_headers, read_npz
from polymode.tasks.readers.svhn import read_svhn
from polymode.tasks.readers.text_tables import Table, read_table
from polymode.tasks.readers.tiny_imagenet import read_tiny_imagenet

__all__ = [
    "ImageStack", "Images", "Table", "members", "npz_headers", "read_cifar", "read_idx",
    "read_image_folder", "read_npz", "read_svhn", "read_table", "read_tiny_imagenet",
]  # fmt: skip
