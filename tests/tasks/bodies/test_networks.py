"""The two networks against independent ones, and WordPiece by hand.

With the published weights both were compared once with the packages' own code: features of
EfficientNet-Lite0 are equal bit by bit, and 10,004 texts are cut like by the library `tokenizers`.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from polymode.tasks.bodies import efficientnet_lite, sentence_encoder
from polymode.tasks.bodies.sentence_encoder import SentenceEncoder, Vocabulary


@pytest.mark.parametrize("size", [7, 8, 9, 12])
@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (5, 2), (1, 1)])
def test_same_padding_is_that_of_tensorflow(size, kernel, stride) -> None:
    """Output place o is the sum over inputs o s − before ... of a padded row, by its definition."""
    layer = efficientnet_lite.SameConv(1, 1, kernel, stride, bias=False)
    nn.init.constant_(layer.weight, 1.0)
    x = torch.arange(float(size)).expand(1, 1, size, size)
    out = layer(x)[0, 0].detach()
    rows = -(-size // stride)
    before = max((rows - 1) * stride + kernel - size, 0) // 2
    assert out.shape == (rows, rows)
    middle = rows // 2
    inside = [o * stride - before + k for o in [middle] for k in range(kernel)]
    columns = sum(0 <= i < size for i in inside)
    for o in range(rows):
        places = [o * stride - before + k for k in range(kernel)]
        expected = columns * sum(p for p in places if 0 <= p < size)
        assert float(out[middle, o]) == expected


def test_lite0_has_the_published_size() -> None:
    with torch.device("meta"):
        body = efficientnet_lite.EfficientNetLite0()
    counted = sum(p.numel() for p in body.parameters())
    assert counted == 4_652_008 - 1281 * 1000  # of the paper's 4.7 million without the classifier
    assert len(body._blocks) == 16


def test_the_encoder_is_the_layer_of_torch() -> None:
    """One layer against nn.TransformerEncoderLayer with its weights; padding changes nothing."""
    stream = torch.Generator().manual_seed(0)
    body = SentenceEncoder(layers=1, width=8, inner=16, heads=2, words=20, longest=10).eval()
    with torch.no_grad():
        for parameter in body.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=stream) * 0.1)
    ours = body.encoder["layer"][0]
    twin = nn.TransformerEncoderLayer(
        8, 2, 16, dropout=0.0, activation=F.gelu, layer_norm_eps=1e-12, batch_first=True
    ).eval()
    own = ours.attention["self"]
    parts = [own[name] for name in ("query", "key", "value")]
    state = {
        "self_attn.in_proj_weight": torch.cat([p.weight for p in parts]),
        "self_attn.in_proj_bias": torch.cat([p.bias for p in parts]),
    }
    pairs = {
        "self_attn.out_proj": ours.attention["output"]["dense"],
        "linear1": ours.intermediate["dense"],
        "linear2": ours.output["dense"],
        "norm1": ours.attention["output"]["LayerNorm"],
        "norm2": ours.output["LayerNorm"],
    }
    for name, layer in pairs.items():
        state |= {f"{name}.weight": layer.weight, f"{name}.bias": layer.bias}
    twin.load_state_dict(state)
    h = torch.randn(3, 5, 8, generator=stream)
    mask = torch.ones(3, 1, 1, 5, dtype=torch.bool)
    torch.testing.assert_close(ours(h, mask), twin(h), rtol=1e-4, atol=1e-5)
    tokens = torch.tensor([[3, 4, 5, 0, 0], [3, 4, 5, 6, 7]])
    torch.testing.assert_close(body(tokens)[:1], body(tokens[:1, :3]))
    torch.testing.assert_close(body(tokens).norm(dim=1), torch.ones(2))


def test_words_are_cut_greedily() -> None:
    names = ["[PAD]", "play", "##ing", "##in", "##g", "p", "##lay", "!", "中", "cafe"]
    words = Vocabulary(names)
    cut = [
        list(words.pieces(text)) for text in ("Playing!", "plays", "中中", "Café", "", "x" * 101)
    ]
    unknown = sentence_encoder.UNKNOWN
    assert cut == [[1, 2, 7], [unknown], [8, 8], [9], [], [unknown]]
    tokens = words.tokens(["playing", "playing playing playing"], longest=5)
    assert tokens.tolist() == [[101, 1, 2, 102, 0], [101, 1, 2, 1, 102]]
    assert Vocabulary.read(b"a\nb\n").numbers == {"a": 0, "b": 1}
