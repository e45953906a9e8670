"""Networks of transformers, peft and timm: fit, predict, save, and load in a fresh process.

`make test-hf` makes an environment for it.
"""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import polymode as pm

from .networks import IDS, KINDS, LABELS, MASK, METHODS, TOKENS, task

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # peft's, of transformers

DRAWS = ("laplace", "vi", "ivon", "dropout")
CHILD = """
import sys, warnings
from pathlib import Path
import torch
from safetensors.torch import load_file
sys.path.insert(0, {tests!r})
import hf.conftest
import polymode as pm
from hf.networks import KINDS
kind = KINDS[{kind!r}]
expected = load_file({means!r})
for method, mean in expected.items():
    post = pm.load(Path({folder!r}) / method, net=kind.net)
    torch.testing.assert_close(post.predict(kind.x).mean, mean, rtol=1e-5, atol=1e-6)
print(*expected)
"""


def fit(kind: str, method: str, **options) -> pm.Posterior:
    usual = {"epochs": 1, "batch_size": 8, "num_modes": 2, "lr": 1e-3, "progress": "silent"}
    usual |= {"samples_per_mode": 2} if method in DRAWS else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return pm.fit(
            method, net=KINDS[kind].net, task=task(kind), trainable=KINDS[kind].trainable,
            **(usual | options),
        )  # fmt: skip


@pytest.mark.cpu_seconds(60)
@pytest.mark.parametrize("kind", KINDS)
def test_fit_predict_save_and_load_in_a_fresh_process(kind, tmp_path) -> None:
    means = {}
    for method in METHODS:
        post = fit(kind, method)
        prediction = post.predict(KINDS[kind].x)
        assert prediction.log_probs.shape == (prediction.num_samples, len(LABELS), 2)
        assert torch.isfinite(prediction.log_probs).all()
        assert isinstance(post.members[0], KINDS[kind].member)
        post.save(tmp_path / method)
        means[method] = prediction.mean.contiguous()
    save_file(means, tmp_path / "means.safetensors")
    assert load_file(tmp_path / "means.safetensors").keys() == set(METHODS)
    code = CHILD.format(
        tests=str(Path(__file__).parents[1]), kind=kind, folder=str(tmp_path),
        means=str(tmp_path / "means.safetensors"),
    )  # fmt: skip
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-2000:]
    assert set(result.stdout.split()) == set(METHODS)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "BERT"])
def test_a_body_is_held_once_and_stays_as_it_was(kind) -> None:
    post = fit(kind, "deep_ensemble", num_modes=4, lr=0.1)
    fresh = dict(KINDS[kind].net().named_parameters())
    assert len(post.stack.frozen) > 10
    for name, tensor in post.stack.frozen.items():
        assert tensor.stride(0) == 0, name
        assert torch.equal(tensor[0], fresh[name]), name


def test_targets_do_not_reach_the_network_and_batches_may_be_encodings() -> None:
    """BERT would compute a loss of its own if it got labels; a `BatchEncoding` is a mapping."""
    post = fit("BERT", "map", num_modes=1)
    encoding = transformers.BatchEncoding({**TOKENS, "labels": LABELS})
    torch.testing.assert_close(post.predict(encoding).mean, post.predict(TOKENS).mean)
    member = post.members[0]
    result = member(**TOKENS)
    torch.testing.assert_close(result.logits.softmax(1), post.predict(TOKENS).mean)


def test_batches_padded_one_by_one() -> None:
    """What a collator with dynamic padding gives, in another order for each member."""

    def collate(rows: list[int]) -> transformers.BatchEncoding:
        length = int(MASK[rows].sum(1).max())
        batch = {"input_ids": IDS[rows, :length], "attention_mask": MASK[rows, :length]}
        return transformers.BatchEncoding({**batch, "labels": LABELS[rows]})

    loader = torch.utils.data.DataLoader(
        list(range(len(LABELS))), batch_size=4, shuffle=True, collate_fn=collate
    )
    tokens = pm.Task(train=loader, likelihood="categorical")
    post = pm.fit(
        "deep_ensemble", net=KINDS["BERT"].net, task=tokens, num_modes=2, epochs=2,
        progress="silent",
    )  # fmt: skip
    ordered = torch.utils.data.DataLoader(
        list(range(len(LABELS))), batch_size=4, collate_fn=collate
    )
    torch.testing.assert_close(
        post.predict(ordered).mean, post.predict(TOKENS).mean, rtol=1e-4, atol=1e-5
    )


def test_tokens_outside_the_vocabulary_are_named() -> None:
    post = fit("BERT", "map", num_modes=1)
    wrong = {**TOKENS, "input_ids": IDS + 40}
    with pytest.raises(
        ValueError, match=r"'bert.embeddings.word_embeddings.*has 50 entries.*lie in .45, 8"
    ):
        post.predict(wrong)


@pytest.mark.filterwarnings("ignore:the evidence switched:UserWarning")  # of so short a fit
def test_the_code_of_the_page_on_modules_runs(tmp_path, monkeypatch) -> None:
    """All its blocks in order, as one program."""
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "your-module.md").read_text()
    code = "".join(re.findall(r"```python\n(.*?)```", page, re.S))
    names: dict[str, Any] = {}
    exec(re.sub(r"epochs=\d+", 'epochs=1, progress="silent"', code), names)
    assert isinstance(names["post"].members[0], peft.PeftModel)
