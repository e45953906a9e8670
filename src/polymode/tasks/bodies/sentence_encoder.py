"""The sentence encoder MiniLM-L6: tokens (B, T) to features (B, 384) of length 1, and its words.

BERT with six layers of width 384 and twelve heads. Features are the mean of the last layer over the
tokens of a sentence, divided by its length, as all-MiniLM-L6-v2 was trained with. Token 0 is
padding, which nothing looks at. Names of layers are those of the published weights.

Words are cut greedily into the longest pieces of the vocabulary (WordPiece); before that, texts are
made lower case, accents are taken off, and punctuation and Chinese characters stand alone.

Sources: J. Devlin et al., BERT, NAACL 2019; W. Wang et al., MiniLM, NeurIPS 2020; N. Reimers,
I. Gurevych, Sentence-BERT, EMNLP 2019.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LAYERS, WIDTH, INNER, HEADS, WORDS, LONGEST = 6, 384, 1536, 12, 30_522, 512
EPS = 1e-12  # of the normalisation
PAD, UNKNOWN, START, END = 0, 100, 101, 102
_MOST_LETTERS = 100  # of a word; longer ones are unknown
_CHINESE = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F), (0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)  # fmt: skip


def _named(**layers: nn.Module) -> nn.ModuleDict:
    return nn.ModuleDict(layers)


class Layer(nn.Module):
    """Attention and two dense layers, each added to its input and normalised."""

    def __init__(self, width: int, inner: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        dense = [nn.Linear(width, width) for _ in range(4)]
        projections = _named(query=dense[0], key=dense[1], value=dense[2])
        norm = nn.LayerNorm(width, EPS)
        self.attention = nn.ModuleDict(
            {"self": projections, "output": _named(dense=dense[3], LayerNorm=norm)}
        )
        self.intermediate = _named(dense=nn.Linear(width, inner))
        self.output = _named(dense=nn.Linear(inner, width), LayerNorm=nn.LayerNorm(width, EPS))

    def forward(self, h: Tensor, mask: Tensor) -> Tensor:
        inputs: Any = self.attention["self"]
        after: Any = self.attention["output"]
        q, k, v = (
            inputs[name](h).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for name in ("query", "key", "value")
        )
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        h = after["LayerNorm"](h + after["dense"](mixed.transpose(1, 2).flatten(2)))
        inner = self.output["dense"](F.gelu(self.intermediate["dense"](h)))
        return self.output["LayerNorm"](h + inner)


class SentenceEncoder(nn.Module):
    """The encoder with the mean over tokens."""

    def __init__(
        self,
        layers: int = LAYERS,
        width: int = WIDTH,
        inner: int = INNER,
        heads: int = HEADS,
        words: int = WORDS,
        longest: int = LONGEST,
    ) -> None:
        super().__init__()
        self.embeddings = _named(
            word_embeddings=nn.Embedding(words, width),
            position_embeddings=nn.Embedding(longest, width),
            token_type_embeddings=nn.Embedding(2, width),
            LayerNorm=nn.LayerNorm(width, EPS),
        )
        stack = nn.ModuleList(Layer(width, inner, heads) for _ in range(layers))
        self.encoder = _named(layer=stack)

    def forward(self, tokens: Tensor) -> Tensor:
        table = self.embeddings
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        h = table["word_embeddings"](tokens) + table["position_embeddings"](positions)
        h = table["LayerNorm"](h + table["token_type_embeddings"](torch.zeros_like(tokens)))
        is_word = tokens != PAD
        for layer in self.encoder["layer"]:  # type: ignore[attr-defined]
            h = layer(h, is_word[:, None, None, :])
        share = is_word.to(h.dtype) / is_word.sum(1, keepdim=True)
        return F.normalize((h * share[..., None]).sum(1), dim=1)


class Vocabulary:
    """Pieces of words and their numbers.

    >>> words = Vocabulary(["[PAD]", "un", "##told", "a", "."])
    >>> list(words.pieces("Untold a.")), list(words.pieces("b"))
    ([1, 2, 3, 4], [100])
    """

    def __init__(self, pieces: Sequence[str]) -> None:
        self.numbers: Mapping[str, int] = {piece: n for n, piece in enumerate(pieces)}

    @classmethod
    def read(cls, content: bytes) -> Vocabulary:
        """Return the vocabulary of a file with one piece per line."""
        return cls(content.decode().rstrip("\n").split("\n"))

    def pieces(self, text: str) -> Iterator[int]:
        """Yield the numbers of the pieces of a text."""
        for word in words_of(text):
            yield from self._cut(word)

    def _cut(self, word: str) -> list[int]:
        start, numbers = 0, []
        while start < len(word) and len(word) <= _MOST_LETTERS:
            mark = "##" if start else ""
            for end in range(len(word), start, -1):
                number = self.numbers.get(mark + word[start:end])
                if number is not None:
                    numbers.append(number)
                    start = end
                    break
            else:
                return [UNKNOWN]
        return numbers or [UNKNOWN]

    def tokens(self, texts: Sequence[str], longest: int = 128) -> Tensor:
        """Return the tokens (N, T) of texts, with start, end and padding; longer ones are cut."""
        rows = [
            [START, *list(self.pieces(text))[: longest - 2], END] for text in texts
        ]  # fmt: skip
        tokens = torch.full((len(rows), max(map(len, rows))), PAD)
        for row, numbers in zip(tokens, rows, strict=True):
            row[: len(numbers)] = torch.tensor(numbers)
        return tokens


def words_of(text: str) -> Iterator[str]:
    """Yield words and marks of a text, lower case and without accents.

    >>> list(words_of("Déjà-vu, isn't it?"))
    ['deja', '-', 'vu', ',', 'isn', "'", 't', 'it', '?']
    """
    word = ""
    for letter in unicodedata.normalize("NFD", text.lower()):
        kind = unicodedata.category(letter)
        is_space = letter.isspace()
        if kind == "Mn" or (kind.startswith("C") and not is_space) or letter == "\ufffd":
            continue
        alone = is_mark(letter, kind) or any(a <= ord(letter) <= b for a, b in _CHINESE)
        if (is_space or alone) and word:
            yield word
            word = ""
        if alone:
            yield letter
        elif not is_space:
            word += letter
    if word:
        yield word


def is_mark(letter: str, kind: str) -> bool:
    """Whether a character stands for itself: punctuation, and all ASCII that is no letter or
    digit."""
    is_ascii_mark = 33 <= ord(letter) <= 126 and not letter.isalnum()
    return is_ascii_mark or kind.startswith("P")


def build() -> nn.Module:
    """Return the encoder with weights that mean nothing yet."""
    return SentenceEncoder()
