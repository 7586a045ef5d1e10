"""Byte-pair codes: words become pieces that join back to the word.

Codes are learned with the `tokenizers` library on counted words and kept in subword-nmt's format,
so that its codes can be imported too. A piece that is continued ends in `@@`; a piece that ends its
word never does, so the boundaries of words are known from the pieces alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from os import PathLike
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from zipflm.data.vocabulary import SPECIALS

CONTINUES = "@@"
"""How a piece ends that the next one continues, as subword-nmt writes it."""

_HEADER = "#version: 0.2"
# In the codes, though not in the pieces, the end of a word is marked rather than the middle.
_WORD_END = "</w>"
_REPEATS = 10_000

Merge = tuple[str, str]


class Codes:
    """An ordered list of merges."""

    def __init__(self, merges: Iterable[Merge]) -> None:
        self.merges = list(merges)

    @classmethod
    def learn(cls, counts: Mapping[str, int], num_merges: int) -> Codes:
        """Learn up to `num_merges` merges; fewer if no pair is left that occurs twice."""
        if num_merges < 1:
            raise ValueError(f"bpe={num_merges}: must be at least 1")
        words = {word: n for word, n in counts.items() if word not in SPECIALS}
        stand_ins = _stand_ins(words)
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        trainer = trainers.BpeTrainer(
            # Its size counts the characters too, ours does not.
            vocab_size=num_merges + len({c for word in words for c in word}) + len(stand_ins),
            min_frequency=2,
            show_progress=False,
        )
        marked = {word[:-1] + stand_ins[word[-1]]: count for word, count in words.items()}
        tokenizer.train_from_iterator(_repeated(marked), trainer)
        merges = json.loads(tokenizer.to_str())["model"]["merges"]
        endings = str.maketrans({mark: end + _WORD_END for end, mark in stand_ins.items()})
        pairs = (merge.split(" ") if isinstance(merge, str) else merge for merge in merges)
        return cls(
            (left.translate(endings), right.translate(endings))
            for left, right in islice(pairs, num_merges)
        )

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Codes:
        """Read subword-nmt codes of version 0.2; ValueError names the line that is none."""
        try:
            lines = Path(path).read_text(encoding="utf-8").split("\n")
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: not UTF-8 at byte {error.start}; no BPE codes") from None
        if lines[0].strip() != _HEADER:
            raise ValueError(
                f"{path}: first line is {lines[0][:40]!r}, not {_HEADER!r}; learn the codes with "
                "subword-nmt 0.2 or later, or with --bpe"
            )
        merges: list[Merge] = []
        for number, line in enumerate(lines[1:], start=2):
            pair = line.strip("\r\n ").split(" ")
            if len(pair) == 2 and all(pair):
                merges.append((pair[0], pair[1]))
            elif line.strip():
                raise ValueError(f"{path}: line {number}: {line[:40]!r} is not two symbols")
        if not merges:
            raise ValueError(f"{path}: holds no codes")
        return cls(merges)

    def save(self, path: str | PathLike[str]) -> None:
        lines = [_HEADER, *(f"{left} {right}" for left, right in self.merges)]
        Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")

    def split(self, words: Iterable[str]) -> list[list[str]]:
        """The pieces of every word; a special stays whole."""
        words = list(words)
        model = self._model({character for word in words for character in word})
        return [[word] if word in SPECIALS else _pieces(model, word) for word in words]

    def _model(self, alphabet: set[str]) -> models.BPE:
        """Merges over symbols that include every character at hand, so that none is unknown."""
        symbols = dict.fromkeys(sorted(alphabet))
        symbols |= dict.fromkeys(character + _WORD_END for character in sorted(alphabet))
        kept: list[Merge] = []
        for left, right in self.merges:
            symbols |= {left: None, right: None, left + right: None}
            kept.append((left, right))
        vocabulary = {symbol: number for number, symbol in enumerate(symbols)}
        return models.BPE(vocabulary, kept, end_of_word_suffix=_WORD_END)


def join(pieces: Iterable[str]) -> str:
    """The inverse of `Codes.split` for one word."""
    *inner, last = pieces
    return "".join(piece.removesuffix(CONTINUES) for piece in inner) + last


def _pieces(model: models.BPE, word: str) -> list[str]:
    parts = [token.value for token in model.tokenize(word)]
    parts[-1] = parts[-1].removesuffix(_WORD_END)
    if "".join(parts) != word or not all(parts):
        # The word spells the mark of a word's end, on which codes cannot be relied.
        parts = list(word)
    if parts[-1].endswith(CONTINUES):
        parts[-1:] = [parts[-1][:-1], parts[-1][-1]]
    return [part + CONTINUES for part in parts[:-1]] + parts[-1:]


def _stand_ins(words: Iterable[str]) -> dict[str, str]:
    """For every character that ends a word, another one that stands for it there.

    The trainer has a suffix for this, but numbers characters with it in an order that changes from
    run to run, and breaks ties by these numbers; plain characters it numbers by code point.
    """
    taken = {character for word in words for character in word}
    free = (mark for mark in map(chr, range(0xF0000, 0x110000)) if mark not in taken)
    return dict(zip(sorted({word[-1] for word in words}), free, strict=False))


def _repeated(counts: Mapping[str, int]) -> Iterator[str]:
    """Every word as often as it is counted, which is the only weighting the trainer knows."""
    for word, count in counts.items():
        for start in range(0, count, _REPEATS):
            yield " ".join([word] * min(_REPEATS, count - start))
