"""The catalogue of image data sets.

Checksums are those that TensorFlow Datasets records (tensorflow/datasets, `url_checksums/` and
`svhn_cropped/checksums.tsv`) unless an entry says otherwise. The sha256 of arrays are given
where the arrays are known to be those of the original files.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np

from polymode.tasks.files.dataset import DATASETS, ArraySpec, Dataset, Original
from polymode.tasks.readers.archives import members
from polymode.tasks.readers.cifar import read_cifar
from polymode.tasks.readers.idx import read_idx
from polymode.tasks.readers.images import ImageStack
from polymode.tasks.readers.svhn import read_svhn
from polymode.tasks.readers.tiny_imagenet import read_tiny_imagenet

IDX_FILES = {
    "x_train": "train-images-idx3-ubyte.gz",
    "y_train": "train-labels-idx1-ubyte.gz",
    "x_test": "t10k-images-idx3-ubyte.gz",
    "y_test": "t10k-labels-idx1-ubyte.gz",
}
MNIST_COUNTS = (
    (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949),
    (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009),
)
_TEST = ("x_test", "y_test")


def read_idx_files(files: Mapping[str, Path]) -> dict[str, np.ndarray]:
    """Return the arrays of those of the four files of MNIST and its relatives that are given."""
    return {name: read_idx(files[file]) for name, file in IDX_FILES.items() if file in files}


def read_letters(files: Mapping[str, Path]) -> dict[str, np.ndarray]:
    """Return notMNIST's letters A to J as x_test, y_test, by letter and file name.

    Two of the original images are empty files; they are left out, as everyone does.
    """
    (path,) = files.values()
    found = sorted(members(path, lambda name: name.endswith(".png")))
    stack = ImageStack(len(found), channels=1, on_broken="skip")
    for row, (name, content) in enumerate(found):
        stack.put(row, f"{path}: {name}", content)
    x, kept = stack.done()
    letters = [found[row][0].split("/")[-2] for row in kept]
    return {"x_test": x, "y_test": np.array(["ABCDEFGHIJ".find(c) for c in letters], np.int64)}


def read_cifar_files(files: Mapping[str, Path], classes: int) -> dict[str, np.ndarray]:
    """Return training and test images of CIFAR-10 or CIFAR-100, one archive."""
    return read_cifar(*files.values(), classes=classes)


def read_svhn_files(files: Mapping[str, Path]) -> dict[str, np.ndarray]:
    """Return training and test digits of SVHN."""
    arrays = {}
    for half in ("train", "test"):
        arrays[f"x_{half}"], arrays[f"y_{half}"] = read_svhn(files[f"{half}_32x32.mat"])
    return arrays


def _idx_originals(
    addresses: tuple[str, ...], facts: Mapping[str, tuple[int, str]]
) -> tuple[Original, ...]:
    return tuple(
        Original(
            IDX_FILES[name],
            tuple(f"{base}{IDX_FILES[name]}" for base in addresses),
            size,
            sha256,
        )
        for name, (size, sha256) in facts.items()
    )


def _images(
    train: int,
    test: int,
    shape: tuple[int, ...],
    num_classes: int,
    counts: tuple[tuple[int, ...], tuple[int, ...]] = ((), ()),
    digests: Mapping[str, str] | None = None,
) -> dict[str, ArraySpec]:
    """Return the four arrays of an image data set, or two where there is no training half."""
    digests = digests or {}
    specs = {}
    for half, total, count in (("train", train, counts[0]), ("test", test, counts[1])):
        if total:
            x, y = f"x_{half}", f"y_{half}"
            specs[x] = ArraySpec((total, *shape), "uint8", sha256=digests.get(x, ""))
            specs[y] = ArraySpec((total,), "int64", num_classes, count, digests.get(y, ""))
    return specs


def _balanced(num_classes: int, train: int, test: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return (train,) * num_classes, (test,) * num_classes


# The original host is closed to programs; both addresses serve its files unchanged.
DATASETS.register("mnist")(
    Dataset(
        "handwritten digits, 60,000 + 10,000 grey images of 28 x 28",
        "CC BY-SA 3.0 (LeCun, Cortes, Burges)",
        _idx_originals(
            (
                "https://ossci-datasets.s3.amazonaws.com/mnist/",
                "https://storage.googleapis.com/cvdf-datasets/mnist/",
            ),
            {
                "x_train": (
                    9_912_422,
                    "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
                ),
                "y_train": (
                    28_881,
                    "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
                ),
                "x_test": (
                    1_648_877,
                    "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
                ),
                "y_test": (
                    4_542,
                    "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
                ),
            },
        ),
        read_idx_files,
        _images(
            60_000,
            10_000,
            (28, 28),
            10,
            MNIST_COUNTS,
            {
                "x_train": "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
                "y_train": "e474323ac02fc156161b0bbb1f8c9cfeb327a74bcd9f9680a8385269a24f566c",
                "x_test": "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
                "y_test": "2fd8de6bdb8d11780b4b96dc57847bcfe6953f7c32aa48bfcd8237c3b7847243",
            },
        ),
    )
)

DATASETS.register("fashion_mnist")(
    Dataset(
        "clothes, 60,000 + 10,000 grey images of 28 x 28",
        "MIT (Zalando)",
        _idx_originals(
            (
                "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/"
                "b2617bb6d3ffa2e429640350f613e3291e10b141/data/fashion/",
                "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
            ),
            {
                "x_train": (
                    26_421_880,
                    "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                ),
                "y_train": (
                    29_515,
                    "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
                ),
                "x_test": (
                    4_422_102,
                    "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                ),
                "y_test": (
                    5_148,
                    "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
                ),
            },
        ),
        read_idx_files,
        _images(
            60_000,
            10_000,
            (28, 28),
            10,
            _balanced(10, 6000, 1000),
            {
                "x_train": "2e487a6c89124f78f2d7521542223cafe96f7123c3ca13d447772ac6ecbb3012",
                "y_train": "e3245b63f7c40d1c8b652835f19744d970c1613b40ddac6bcfc87b9c46e16a0b",
                "x_test": "c867c93ff95360594e8ec3287995350b824dd110b11595c0e13d5423f621867a",
                "y_test": "d51d859896c55775b9e9e219b77ff03bcec1b6ac322f313544dc3f9e7bc94fae",
            },
        ),
    )
)

DATASETS.register("kmnist")(
    Dataset(
        "cursive Japanese characters, 60,000 + 10,000 grey images of 28 x 28",
        "CC BY-SA 4.0 (CODH)",
        _idx_originals(
            ("https://codh.rois.ac.jp/kmnist/dataset/kmnist/",),
            {
                "x_train": (
                    18_165_135,
                    "51467d22d8cc72929e2a028a0428f2086b092bb31cfb79c69cc0a90ce135fde4",
                ),
                "y_train": (
                    29_497,
                    "e38f9ebcd0f3ebcdec7fc8eabdcdaef93bb0df8ea12bee65224341c8183d8e17",
                ),
                "x_test": (
                    3_041_136,
                    "edd7a857845ad6bb1d0ba43fe7e794d164fe2dce499a1694695a792adfac43c5",
                ),
                "y_test": (
                    5_120,
                    "20bb9a0ef54c7db3efc55a92eef5582c109615df22683c380526788f98e42a1c",
                ),
            },
        ),
        read_idx_files,
        _images(
            60_000,
            10_000,
            (28, 28),
            10,
            _balanced(10, 6000, 1000),
            {
                "x_test": "dc10e73c6e83fb3fb3586eafece217ab6602e7825fa7d49399359bde3fc66f07",
                "y_test": "abcffed0a805f339618f508496981b403291f5892b2b296266954ba989e1e3ba",
            },
        ),
        {"kmnist_test.npz": _TEST},
    )
)

# A balanced sample in MNIST's format, published with the author's leave; the sha256 are those of
# the files at the commit that the address names.
DATASETS.register("notmnist")(
    Dataset(
        "letters A to J in many fonts, 10,000 grey test images of 28 x 28 (a sample of notMNIST)",
        "no licence stated (Bulatov); this packing MIT (Flanagan)",
        _idx_originals(
            (
                "https://raw.githubusercontent.com/davidflanagan/notMNIST-to-MNIST/"
                "17823f4d4a3acd8317c07866702d2eb2ac79c7a0/",
            ),
            {
                "x_test": (
                    3_172_375,
                    "70ae9e06201f2827e5b0a3781a3169d735dd2efc69996b9eeaee7f10ed4044d7",
                ),
                "y_test": (
                    5_118,
                    "1fa03836e01c862542f8eb83463bb951bebec6fcb3efa28dad748c6b38a9021b",
                ),
            },
        ),
        read_idx_files,
        _images(
            0,
            10_000,
            (28, 28),
            10,
            ((), (1000,) * 10),
            {
                "x_test": "6bda48464effe4169d9cd068967cd81a717ae2f925ddb55fd71025e23022ee9a",
                "y_test": "b6b7d4ca4dadcb6c8d9a4bcdb22a14d1eb6bec32609f1459d65462eb9ef83a88",
            },
        ),
        {"notmnist_test.npz": _TEST},
    )
)

# No sha256 was published; the md5 stands in several public loaders.
DATASETS.register("notmnist_small")(
    Dataset(
        "letters A to J in many fonts, all 18,724 grey images of 28 x 28 of notMNIST's clean part",
        "no licence stated (Bulatov)",
        (
            Original(
                "notMNIST_small.tar.gz",
                ("https://commondatastorage.googleapis.com/books1000/notMNIST_small.tar.gz",),
                8_458_043,
                md5="c9890a473a9769fda4bdf314aaf500dd",
            ),
        ),
        read_letters,
        _images(
            0,
            18_724,
            (28, 28),
            10,
            ((), (1872, 1873, 1873, 1873, 1873, 1872, 1872, 1872, 1872, 1872)),
        ),
    )
)

for _classes, _size, _sha256 in (
    (10, 170_052_171, "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"),
    (100, 168_513_733, "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec"),
):
    _file = f"cifar-{_classes}-binary.tar.gz"
    DATASETS.register(f"cifar{_classes}")(
        Dataset(
            f"objects in {_classes} classes, 50,000 + 10,000 colour images of 32 x 32",
            "no licence stated; for research, cite Krizhevsky (2009)",
            (Original(_file, (f"https://www.cs.toronto.edu/~kriz/{_file}",), _size, _sha256),),
            partial(read_cifar_files, classes=_classes),
            _images(
                50_000,
                10_000,
                (32, 32, 3),
                _classes,
                _balanced(_classes, 50_000 // _classes, 10_000 // _classes),
            ),
        )
    )

DATASETS.register("svhn")(
    Dataset(
        "house numbers, single digits, 73,257 + 26,032 colour images of 32 x 32",
        "non-commercial use only (Netzer et al., 2011)",
        (
            Original(
                "train_32x32.mat",
                ("https://ufldl.stanford.edu/housenumbers/train_32x32.mat",),
                182_040_794,
                "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
            ),
            Original(
                "test_32x32.mat",
                ("https://ufldl.stanford.edu/housenumbers/test_32x32.mat",),
                64_275_384,
                "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
            ),
        ),
        read_svhn_files,
        _images(
            73_257,
            26_032,
            (32, 32, 3),
            10,
            (
                (4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659),
                (1744, 5099, 4149, 2882, 2523, 2384, 1977, 2019, 1660, 1595),
            ),
        ),
    )
)

# The sha256 is recorded, with the same number of bytes, in several unrelated public repositories.
DATASETS.register("tiny_imagenet")(
    Dataset(
        "objects in 200 classes, 100,000 + 10,000 colour images of 64 x 64 (its validation images"
        " are the test half)",
        "ImageNet's terms: non-commercial research and education only",
        (
            Original(
                "tiny-imagenet-200.zip",
                ("https://cs231n.stanford.edu/tiny-imagenet-200.zip",),
                248_100_043,
                "6198c8ae015e2b3e007c7841da39ec069199b9aa3bfa943a462022fe5e43c821",
            ),
        ),
        lambda files: read_tiny_imagenet(*files.values()),
        _images(100_000, 10_000, (64, 64, 3), 200, _balanced(200, 500, 50))
        | {"wnids": ArraySpec((200,), "<U9")},
    )
)

DATASETS.register("cifar10_subset")(
    Dataset(
        "10,000 + 4,000 images of CIFAR-10, stratified",
        "no licence stated; for research, cite Krizhevsky (2009)",
        (),
        None,
        _images(10_000, 4_000, (32, 32, 3), 10, _balanced(10, 1000, 400)),
    )
)

DATASETS.register("svhn_recropped")(
    Dataset(
        "2,000 SVHN test digits cropped anew from the full-number images, not the official crops",
        "non-commercial use only (Netzer et al., 2011)",
        (),
        None,
        _images(0, 2_000, (32, 32, 3), 10),
        {"svhn_test_subset.npz": _TEST},
    )
)

DATASETS.register("histology_46")(
    Dataset(
        "1,693 BreaKHis images of breast tissue at 400x, reduced to 46 x 46, with their file names",
        "study only (Spanhol et al., 2016)",
        (),
        None,
        {
            "x": ArraySpec((1693, 46, 46, 3), "uint8"),
            "y": ArraySpec((1693,), "int64", 2, (547, 1146)),
            "patient": ArraySpec((1693,), "<U31"),
        },
    )
)
