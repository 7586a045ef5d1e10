"""Byte-pair codes: words become pieces that join back to the word.

Codes are learned with the `tokenizers` library on counted words and kept in subword-nmt's format,
so that its codes can be imported too. A piece that is continued ends in `@@`; a piece that ends its
word never does, so the boundaries of words are known from the pieces alone.

A word of more than 1,000 characters is learned and split in stretches of that length: no piece
crosses from one into the next. Otherwise learning would take time with the square of its length.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from functools import cached_property
from itertools import accumulate, islice, pairwise
from os import PathLike
from pathlib import Path
from typing import TypeVar

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from zipflm.data.vocabulary import CONTINUES, SPECIALS

_HEADER = "#version: 0.2"
# In the codes, though not in the pieces, the end of a word is marked rather than the middle.
_WORD_END = "</w>"
_REPEATS = 10_000
_LONGEST_STRETCH = 1_000

Merge = tuple[str, str]
_T = TypeVar("_T")


class Codes:
    """An ordered list of merges."""

    def __init__(self, merges: Iterable[Merge]) -> None:
        self.merges: list[Merge] = list(merges)

    @classmethod
    def learn(cls, counts: Mapping[str, int], num_merges: int) -> Codes:
        """Learn up to `num_merges` merges; fewer if no pair is left that occurs twice.

        Raises ValueError if not even one does.
        """
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
        marked = _marked(words, stand_ins)
        _interruptibly(lambda: tokenizer.train_from_iterator(_repeated(marked), trainer))
        merges = json.loads(tokenizer.to_str())["model"]["merges"]
        endings = str.maketrans({mark: end + _WORD_END for end, mark in stand_ins.items()})
        if not merges:
            raise ValueError(
                f"--bpe {num_merges}: no two letters stand together twice in the training text, so "
                "there is nothing to learn; give more text"
            )
        pairs = (merge.split(" ") if isinstance(merge, str) else merge for merge in merges)
        return cls(
            (left.translate(endings), right.translate(endings))
            for left, right in islice(pairs, num_merges)
        )

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Codes:
        """Read subword-nmt codes of version 0.2; ValueError names a line that is not one."""
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

    @property
    def hash(self) -> str:
        """SHA-256 of the merges in order: codes that split alike have the same hash."""
        text = "\n".join(f"{left} {right}" for left, right in self.merges)
        return hashlib.sha256(text.encode()).hexdigest()

    def save(self, path: str | PathLike[str]) -> None:
        lines = [_HEADER, *(f"{left} {right}" for left, right in self.merges)]
        Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")

    def split(self, words: Iterable[str]) -> list[list[str]]:
        """The pieces of every word; a special stays whole."""
        return [[word] if word in SPECIALS else self._pieces(word) for word in words]

    @cached_property
    def _alphabet(self) -> frozenset[str]:
        """Characters of the merges. No other can be part of a longer piece."""
        return frozenset("".join(map("".join, self.merges)))

    @cached_property
    def _other(self) -> str:
        """A character that stands for any outside the alphabet."""
        return next(
            mark for mark in map(chr, range(0xE000, 0x110000)) if mark not in self._alphabet
        )

    # Building a model takes much longer than splitting a line with it, and the second one is needed
    # for long words only.
    @cached_property
    def _ending(self) -> models.BPE:
        return self._model(_WORD_END)

    @cached_property
    def _inner(self) -> models.BPE:
        return self._model("")

    def _model(self, end: str) -> models.BPE:
        """The merges; `end` marks the last character of a stretch."""
        alphabet = [*sorted(self._alphabet), self._other]
        symbols = dict.fromkeys(alphabet)
        symbols |= dict.fromkeys(character + _WORD_END for character in alphabet)
        for left, right in self.merges:
            symbols |= {left: None, right: None, left + right: None}
        vocabulary = {symbol: number for number, symbol in enumerate(symbols)}
        return models.BPE(vocabulary, self.merges, end_of_word_suffix=end)

    def _pieces(self, word: str) -> list[str]:
        known, other = self._alphabet, self._other
        is_known = known.issuperset(word)
        masked = word if is_known else "".join(c if c in known else other for c in word)
        *firsts, last = _stretches(masked)
        parts = [token.value for stretch in firsts for token in self._inner.tokenize(stretch)]
        parts += _last_parts(last, self._ending)
        if not is_known:
            ends = [0, *accumulate(map(len, parts))]
            parts = [word[start:end] for start, end in pairwise(ends)]
        if parts[-1].endswith(CONTINUES):
            parts[-1:] = [parts[-1][:-1], parts[-1][-1]]
        return [part + CONTINUES for part in parts[:-1]] + parts[-1:]


def join(pieces: Iterable[str]) -> str:
    """The inverse of `Codes.split` for one word."""
    *inner, last = pieces
    return "".join(piece.removesuffix(CONTINUES) for piece in inner) + last


def _last_parts(stretch: str, model: models.BPE) -> list[str]:
    parts = [token.value for token in model.tokenize(stretch)]
    parts[-1] = parts[-1].removesuffix(_WORD_END)
    # Codes cannot be relied on for a word that itself spells the mark of a word's end.
    return parts if "".join(parts) == stretch and all(parts) else list(stretch)


def _stretches(word: str) -> list[str]:
    """Parts of a word that are learned and split separately."""
    starts = range(0, len(word), _LONGEST_STRETCH)
    return [word[start : start + _LONGEST_STRETCH] for start in starts]


def _marked(words: Mapping[str, int], stand_ins: Mapping[str, str]) -> dict[str, int]:
    """Counts of all stretches, with the end of a word marked."""
    marked: dict[str, int] = {}
    for word, count in words.items():
        if len(word) > _LONGEST_STRETCH:
            *firsts, word = _stretches(word)
            for stretch in firsts:
                marked[stretch] = marked.get(stretch, 0) + count
        last = word[:-1] + stand_ins[word[-1]]
        marked[last] = marked.get(last, 0) + count
    return marked


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


def _interruptibly(work: Callable[[], _T]) -> _T:
    """Do foreign work that may take minutes, and let signals end it.

    Python handles a signal in the main thread, between two instructions of its own. So this thread
    only waits while another one works: a daemon, which does not keep the process alive.
    """
    result: Future[_T] = Future()

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=run, name="zipflm-bpe", daemon=True).start()
    return result.result()
