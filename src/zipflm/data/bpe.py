"""Byte-pair encoding (BPE): learn merges, split words into pieces, and join them again.

Merges are learned with the `tokenizers` library and stored in the format of subword-nmt. Every
piece of a word except the last ends in `@@`.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from functools import cached_property
from itertools import islice
from os import PathLike
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from zipflm.data.vocabulary import CONTINUES, SPECIALS, UNKNOWN

_HEADER = "#version: 0.2"
_WORD_END = "</w>"
"""Marks the end of a word in merges. In pieces, `@@` marks all but the last instead."""
_MAX_REPEATS = 10_000
"""Maximum number of copies of a word per string passed to the trainer."""
_MAX_LEARNED_CHARS = 1_000
"""Longer words are ignored when learning, because the time is quadratic in the word length."""

MAX_PIECES = 64
"""Maximum number of pieces per word in searches and generated texts."""

Merge = tuple[str, str]


class Codes:
    """An ordered list of merges: pairs of symbols that are joined, most important first."""

    def __init__(self, merges: Iterable[Merge]) -> None:
        self.merges: list[Merge] = list(merges)

    @classmethod
    def learn(cls, counts: Mapping[str, int], num_merges: int) -> Codes:
        """Learn up to `num_merges` merges of pairs that occur at least twice.

        Raises ValueError if there is no such pair.
        """
        words = {
            word: count
            for word, count in counts.items()
            if word not in SPECIALS and len(word) <= _MAX_LEARNED_CHARS
        }
        replacements = _replacements(words)
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        trainer = trainers.BpeTrainer(
            # The size includes the single characters.
            vocab_size=num_merges + len({c for word in words for c in word}) + len(replacements),
            min_frequency=2,
            show_progress=False,
        )
        marked = {word[:-1] + replacements[word[-1]]: count for word, count in words.items()}
        _run_in_thread(lambda: tokenizer.train_from_iterator(_repeated(marked), trainer))
        merges = json.loads(tokenizer.to_str())["model"]["merges"]
        endings = str.maketrans(
            {replacement: c + _WORD_END for c, replacement in replacements.items()}
        )
        if not merges:
            raise ValueError(
                f"bpe={num_merges}: no pair of characters occurs twice in the training text; use "
                "more text"
            )
        pairs = (merge.split(" ") if isinstance(merge, str) else merge for merge in merges)
        return cls(
            (left.translate(endings), right.translate(endings))
            for left, right in islice(pairs, num_merges)
        )

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Codes:
        """Read subword-nmt codes, version 0.2. Raises ValueError naming an invalid line."""
        try:
            lines = Path(path).read_text(encoding="utf-8").split("\n")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{path}: not UTF-8 at byte {error.start}; use a file of BPE codes"
            ) from None
        if lines[0].strip() != _HEADER:
            raise ValueError(
                f"{path}: first line is {lines[0][:40]!r}, not {_HEADER!r}; learn codes with "
                "subword-nmt 0.2 or later, or with zipflm"
            )
        merges: list[Merge] = []
        for line_number, line in enumerate(lines[1:], start=2):
            pair = line.strip("\r\n ").split(" ")
            if len(pair) == 2 and all(pair):
                merges.append((pair[0], pair[1]))
            elif line.strip():
                raise ValueError(f"{path}: line {line_number}: {line[:40]!r} is not two symbols")
        if not merges:
            raise ValueError(f"{path}: contains no codes")
        return cls(merges)

    @property
    def hash(self) -> str:
        """SHA-256 of the merges in order."""
        text = "\n".join(f"{left} {right}" for left, right in self.merges)
        return hashlib.sha256(text.encode()).hexdigest()

    def save(self, path: str | PathLike[str]) -> None:
        lines = [_HEADER, *(f"{left} {right}" for left, right in self.merges)]
        Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")

    def split(self, words: Iterable[str]) -> list[list[str]]:
        """Return the pieces of each word. Special tokens are not split."""
        return [[word] if word in SPECIALS else self._pieces(word) for word in words]

    @cached_property
    def _model(self) -> models.BPE:
        # Characters outside the merges are unknown, and therefore separate pieces.
        symbols = {SPECIALS[UNKNOWN]: None}
        for character in sorted({c for merge in self.merges for symbol in merge for c in symbol}):
            symbols |= {character: None, character + _WORD_END: None}
        for left, right in self.merges:
            symbols |= {left: None, right: None, left + right: None}
        vocabulary = {symbol: id for id, symbol in enumerate(symbols)}
        return models.BPE(
            vocabulary, self.merges, end_of_word_suffix=_WORD_END, unk_token=SPECIALS[UNKNOWN]
        )

    def _pieces(self, word: str) -> list[str]:
        data = word.encode()
        spans = (token.offsets for token in self._model.tokenize(word))
        parts = [data[start:end].decode() for start, end in spans]
        if parts[-1].endswith(CONTINUES):  # the last piece must not look like an earlier one
            parts[-1:] = [parts[-1][:-1], parts[-1][-1]]
        return [part + CONTINUES for part in parts[:-1]] + parts[-1:]


def join(pieces: Iterable[str]) -> str:
    """Join the pieces of one word. This is the inverse of `Codes.split`."""
    *inner, last = pieces
    return "".join(piece.removesuffix(CONTINUES) for piece in inner) + last


def _replacements(words: Iterable[str]) -> dict[str, str]:
    """Map each character that ends a word to an unused character that replaces it there.

    The trainer supports an end-of-word suffix, but then the order of ties varies between runs.
    """
    taken = {character for word in words for character in word}
    free = (char for char in map(chr, range(0xF0000, 0x110000)) if char not in taken)
    return dict(zip(sorted({word[-1] for word in words}), free, strict=False))


def _repeated(counts: Mapping[str, int]) -> Iterator[str]:
    """Repeat each word as often as it occurs, because the trainer does not support weights."""
    for word, count in counts.items():
        for start in range(0, count, _MAX_REPEATS):
            yield " ".join([word] * min(_MAX_REPEATS, count - start))


def _run_in_thread(work: Callable[[], None]) -> None:
    """Run slow native code in a thread, so that signals can still stop the process.

    Python handles signals in the main thread, between bytecode instructions. The main thread waits
    here while a daemon thread, which does not keep the process alive, does the work.
    """
    result: Future[None] = Future()

    def run() -> None:
        try:
            work()
            result.set_result(None)
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=run, name="zipflm-bpe", daemon=True).start()
    result.result()
