"""The named image tasks: nine sets of small images, each with near and far OOD sets.

For the CIFAR sets, near and far follow OpenOOD (J. Yang et al., NeurIPS 2022; J. Zhang et al.,
arXiv 2306.09301). For the 28x28 sets no such agreement fits, so one rule is applied: characters are
near to other characters (other scripts, other hands or print), and far from clothes. Where no set
of another origin is near, the near one is `jigsaw`: the task's own test images with their 4 x 4
blocks in another order, which keeps all that is local.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from polymode.core.registry import suggest
from polymode.tasks.images.build import (
    JIGSAW,
    Choice,
    Names,
    as_names,
    image_task,
    read_parts,
    require_sets,
)
from polymode.tasks.named import TASKS
from polymode.tasks.task import Task

CROP_FLIP = "crop+flip"

# Names of the classes, in the order of the labels.
DIGITS = tuple("0123456789")
LETTERS = tuple("ABCDEFGHIJ")
CLOTHES = (
    "T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot",
)  # fmt: skip
KANA = ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo")
CIFAR10 = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
CIFAR100 = tuple(
    """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly
    camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile
    cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp
    lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom
    oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
    possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake
    spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor
    train trout tulip turtle wardrobe whale willow_tree wolf woman worm
    """.split()
)


@dataclass(frozen=True)
class ImageSet:
    """A named set of images.

    Attributes:
        name: of the task and of its file. title: for people.
        shape: (C, H, W). num_train, num_test: of the set. num_val: held out of num_train.
        class_names: in the order of the labels; empty where the file has them (`num_classes`).
        ood: the usual OOD sets. near: sets, of those and of others, that are near.
        augment: the usual augmentation in training; None: none is usual, as characters must not be
            mirrored.
        same: name of a set with the same kind of images, which is not an OOD set for this one.
    """

    name: str
    title: str
    source: str
    licence: str
    shape: tuple[int, int, int]
    num_train: int
    num_test: int
    class_names: tuple[str, ...]
    ood: tuple[str, ...]
    near: tuple[str, ...] = ()
    num_val: int = 5000
    augment: str | None = None
    same: str = ""

    @property
    def size(self) -> str:
        """Examples in train / val / test at the default options."""
        sizes = (self.num_train - self.num_val, self.num_val, self.num_test)
        return " / ".join(f"{num:,}" for num in sizes)


_GREY, _COLOUR, _LARGE = (1, 28, 28), (3, 32, 32), (3, 64, 64)
_CIFAR = "A. Krizhevsky, Learning multiple layers of features from tiny images (2009)"
_SVHN = (
    "Y. Netzer, T. Wang, A. Coates, A. Bissacco, B. Wu, A. Y. Ng, Reading digits in natural images"
    " with unsupervised feature learning (2011)"
)

SETS = {
    images.name: images
    for images in (
        ImageSet(
            "mnist",
            "handwritten digits",
            "Y. LeCun, L. Bottou, Y. Bengio, P. Haffner, Proc. IEEE 86 (1998) 2278-2324",
            "CC BY-SA 3.0",
            _GREY, 60_000, 10_000, DIGITS,
            ood=("kmnist", "notmnist", "fashion_mnist"),
            near=("kmnist", "notmnist"),
        ),
        ImageSet(
            "fashion_mnist",
            "photographs of clothes",
            "H. Xiao, K. Rasul, R. Vollgraf, arXiv 1708.07747 (2017)",
            "MIT",
            _GREY, 60_000, 10_000, CLOTHES,
            ood=(JIGSAW, "mnist", "notmnist"),
        ),
        ImageSet(
            "kmnist",
            "handwritten Japanese characters of old books",
            "T. Clanuwat, M. Bober-Irizar, A. Kitamoto, A. Lamb, K. Yamamoto, D. Ha, arXiv"
            " 1812.01718 (2018)",
            "CC BY-SA 4.0",
            _GREY, 60_000, 10_000, KANA,
            ood=("mnist", "fashion_mnist"),
            near=("mnist", "notmnist"),
        ),
        ImageSet(
            "notmnist",
            "letters A to J in many typefaces; a sample of 10,000, split here, with 196 duplicates",
            "Y. Bulatov, notMNIST (2011); the sample of D. Flanagan",
            "not stated",
            _GREY, 8_000, 2_000, LETTERS,
            ood=("mnist", "fashion_mnist"),
            near=("mnist", "kmnist"),
            num_val=1000,
        ),
        ImageSet(
            "cifar10",
            "photographs of ten kinds of animals and vehicles",
            _CIFAR,
            "not stated (research use)",
            _COLOUR, 50_000, 10_000, CIFAR10,
            ood=("cifar100", "svhn"),
            near=("cifar100", "tiny_imagenet"),
            augment=CROP_FLIP,
        ),
        ImageSet(
            "cifar10_subset",
            "10,000 training and 4,000 test images of CIFAR-10, drawn stratified: numbers do not"
            " compare with those of the whole set",
            _CIFAR,
            "not stated (research use)",
            _COLOUR, 10_000, 4_000, CIFAR10,
            ood=(JIGSAW, "svhn_recropped"),
            near=("cifar100", "tiny_imagenet"),
            num_val=1000,
            augment=CROP_FLIP,
            same="cifar10",
        ),
        ImageSet(
            "cifar100",
            "photographs of a hundred kinds of things",
            _CIFAR,
            "not stated (research use)",
            _COLOUR, 50_000, 10_000, CIFAR100,
            ood=("cifar10", "svhn"),
            near=("cifar10", "cifar10_subset", "tiny_imagenet"),
            augment=CROP_FLIP,
        ),
        ImageSet(
            "svhn",
            "house numbers in photographs, one digit in the middle",
            _SVHN,
            "non-commercial use",
            _COLOUR, 73_257, 26_032, DIGITS,
            ood=(JIGSAW, "cifar10"),
        ),
        ImageSet(
            "tiny_imagenet",
            "photographs of 200 of ImageNet's classes; the test set is its validation set",
            "Stanford CS231n (2015), from O. Russakovsky et al., ImageNet, IJCV 115 (2015) 211-252",
            "ImageNet's terms (research use)",
            _LARGE, 100_000, 10_000, (),
            ood=(JIGSAW, "svhn"),
            near=("cifar10", "cifar10_subset", "cifar100"),
            augment=CROP_FLIP,
        ),
    )
}  # fmt: skip
OOD_ONLY = {"svhn_recropped": "svhn", "notmnist_small": "notmnist"}
"""Sets that are not tasks, each with the task of the same kind."""


def named(
    images: ImageSet,
    *,
    seed: int = 0,
    num_train: int | None = None,
    num_val: int | None = None,
    num_test: int | None = None,
    ood: Names | None = None,
    shifts: Names | None = None,
) -> Task:
    """Return a named image task; see `Choice` for its options and docs/tasks_real.md for the sets.

    Args:
        seed: draws the random shifts; splits and OOD sets do not depend on it.
        num_train, num_val, num_test: stratified subsets of this size, for small machines;
            `num_test` also bounds each OOD set. Default: all, and the set's own number for
            validation.
        ood: names of OOD sets, whose files must be there; () for none.
        shifts: names of shifts; "all" for all of them, () for none.
    """
    chosen = ood_names(images.name, ood, images.ood, images.same)
    require_sets(images.name, [images.name], [key for key in chosen if key != JIGSAW])
    train, test, class_names = read_parts(images.name, images.shape, images.class_names)
    return image_task(
        images.name,
        train,
        test,
        Choice(seed, num_train, num_val, num_test, shifts),
        class_names=class_names,
        ood=chosen,
        near=images.near,
        num_val=images.num_val,
        augment=images.augment,
        description=images.title,
    )


def ood_names(name: str, chosen: Names | None, default: Sequence[str], same: str = "") -> list[str]:
    """Return the OOD sets that were chosen, or say which of them is none for this task."""
    allowed = [JIGSAW, *(key for key in (*SETS, *OOD_ONLY) if key not in (name, same))]
    allowed = [key for key in allowed if OOD_ONLY.get(key) != name]
    allowed = [key for key in allowed if key not in SETS or SETS[key].same != name]
    picked = as_names(chosen, default)
    for key in picked:
        if key not in allowed:
            raise ValueError(
                f"`ood` of {name} names '{key}', which is not an OOD set for it."
                f"{suggest(key, allowed)} Known: {', '.join(allowed)}."
            )
    return picked


for _images in SETS.values():
    TASKS.register(
        _images.name,
        description=f"{_images.title}; {'x'.join(map(str, _images.shape[1:]))} pixels,"
        f" {len(_images.class_names) or 200} classes; OOD {', '.join(_images.ood)}",
        source=_images.source,
        licence=_images.licence,
        kind="real",
        size=_images.size,
        data=(_images.name, *(key for key in _images.ood if key != JIGSAW)),
    )(partial(named, _images))
