"""Raw text as ids with the position of every word, and scored text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zipflm.config import Unit
from zipflm.data.encoding import EncodedWord, TextEncoder
from zipflm.data.vocabulary import CONTINUES, END, SPECIALS, UNKNOWN, Vocabulary
from zipflm.evaluation.protocol import ScoringProtocol
from zipflm.evaluation.scoring import predicted_ids
from zipflm.units import bits, perplexity

Ids = NDArray[np.int64]

_Line = tuple[int, str, int]
"""Where a line begins, what is in it, and where its line end ends."""

# As `prepare` reads lines: three kinds of line ends, and no others that Unicode knows.
_LINE = re.compile(r"([^\r\n]*)(\r\n|\r|\n|\Z)")


@dataclass(frozen=True)
class EncodedText:
    """The words of a text in order; every line, the last one too, ends in `</s>`."""

    text: str
    words: Sequence[str]
    ids: NDArray[np.int64]
    starts: NDArray[np.int64]
    """Where the ids of each word begin."""
    find_spans: Callable[[], Sequence[tuple[int, int]]]
    num_predicted: int
    """Ids from this one on are predicted as `<unk>`."""

    @cached_property
    def spans(self) -> Sequence[tuple[int, int]]:
        """Where each word stands in the text."""
        return self.find_spans()

    @cached_property
    def line_ends(self) -> NDArray[np.int64]:
        """Positions among the words of those that end a line."""
        return np.flatnonzero(self.ids[self.starts] == END)

    @cached_property
    def is_unknown(self) -> NDArray[np.bool_]:
        """Per word, whether it is predicted as `<unk>`, or a piece of it is."""
        is_unknown = (self.ids == UNKNOWN) | (self.ids >= self.num_predicted)
        return np.logical_or.reduceat(is_unknown, self.starts)


class TextReader:
    """Encodes raw text as the training text of one run was encoded."""

    def __init__(self, encoder: TextEncoder, unit: Unit, num_predicted: int | None = None) -> None:
        """`num_predicted` is the number of ids that the model predicts, all by default."""
        self.encoder: TextEncoder = encoder
        self.vocabulary: Vocabulary = encoder.vocabulary
        self.num_predicted: int = len(self.vocabulary) if num_predicted is None else num_predicted
        self.ends_word: NDArray[np.bool_] = (
            self.vocabulary.ends_word
            if unit == "bpe"
            else np.ones(len(self.vocabulary), dtype=np.bool_)
        )
        """Per id, False for a piece that the next one continues."""
        # A model of sub-words that came without codes reads text that is in pieces already.
        self._takes_pieces = unit == "bpe" and encoder.codes is None

    def text(self, text: str, *, ends: bool = True) -> EncodedText:
        """The words of a text, one line or many; ValueError if it is empty or no text.

        Without `ends` the last line has no end: something is to follow it.
        """
        if not text:
            raise ValueError("text='': empty; give at least one word or line")
        if (nul := text.find("\0")) >= 0:
            raise ValueError(f"text: a NUL at character {nul}; give text, not bytes of other kinds")
        try:
            text.encode()
        except UnicodeEncodeError as error:  # half of a pair that UTF-16 has
            raise ValueError(f"text: character {error.start} is no character of a text") from None
        lines = [*_lines(text)]
        has_end = [ends or end > begin + len(line) for begin, line, end in lines]
        return self._encoded(text, lines, has_end)

    def line(self, line: str) -> EncodedText:
        """The words of one line, which has no line end in it, and its end."""
        return self._encoded(line, [(0, line, len(line))], [True])

    def prefix(self, prefix: str) -> Ids:
        """The ids of a text, which may be empty, that something follows."""
        return self.text(prefix, ends=False).ids if prefix else np.zeros(0, dtype=np.int64)

    def is_spelt(self, word: str, ids: tuple[int, ...]) -> bool:
        """Whether a word would be read as these pieces, of the many that it may be spelt in."""
        return self._takes_pieces or self.encoder.ids([word])[0] == ids

    @property
    def _is_plain(self) -> bool:
        """Whether words are what stands between white space, which Python itself finds faster."""
        return self.encoder.splitter.splitting.is_plain and not self._takes_pieces

    def _encoded(self, text: str, lines: list[_Line], has_end: list[bool]) -> EncodedText:
        if not self._is_plain:
            encoded = self._with_spans(lines, has_end)
            spans = [word.span for word in encoded]
            words, ids = [word.word for word in encoded], [word.ids for word in encoded]
            return _assembled(text, words, ids, lambda: spans, self.num_predicted)
        words, ids = [], []
        for (_, line, _), is_ended in zip(lines, has_end, strict=True):
            found = line.split()
            words += found
            ids += self.encoder.ids(found)
            if is_ended:
                words.append(SPECIALS[END])
                ids.append((END,))
        return _assembled(
            text,
            words,
            ids,
            lambda: [word.span for word in self._with_spans(lines, has_end)],
            self.num_predicted,
        )

    def _with_spans(self, lines: list[_Line], has_end: list[bool]) -> list[EncodedWord]:
        words: list[EncodedWord] = []
        for (begin, line, end), is_ended in zip(lines, has_end, strict=True):
            words += self._words(line, begin)
            if is_ended:
                words.append(_line_end(begin + len(line), end))
        return self._joined(words) if self._takes_pieces else words

    def _joined(self, pieces: list[EncodedWord]) -> list[EncodedWord]:
        """The words that pieces make up, counted as by `evaluate` and fairseq: an unknown piece
        ends a word even if it has the mark, and `</s>` completes a word open at a line end."""
        words: list[EncodedWord] = []
        is_open = False
        for piece in pieces:
            if is_open:
                before = words.pop()
                word = before.word.removesuffix(CONTINUES) + piece.word
                span = (before.span[0], piece.span[1])
                piece = EncodedWord(word, span, before.ids + piece.ids)
            words.append(piece)
            is_open = not self.ends_word[piece.ids[-1]]
        return words

    def _words(self, line: str, offset: int) -> list[EncodedWord]:
        words = self.encoder.line(line)
        if offset:
            words = [
                EncodedWord(word, (offset + start, offset + end), ids)
                for word, (start, end), ids in words
            ]
        return words


def _line_end(start: int, end: int) -> EncodedWord:
    return EncodedWord(SPECIALS[END], (start, end), (END,))


def _assembled(
    text: str,
    words: list[str],
    ids: list[tuple[int, ...]],
    find_spans: Callable[[], list[tuple[int, int]]],
    num_predicted: int,
) -> EncodedText:
    lengths = np.fromiter(map(len, ids), np.int64, len(ids))
    flat = np.fromiter(chain.from_iterable(ids), np.int64, lengths.sum())
    starts = np.cumsum(lengths) - lengths
    return EncodedText(text, words, flat, starts, find_spans, num_predicted)


def _lines(text: str) -> Iterator[_Line]:
    start = 1 if text.startswith("\ufeff") else 0
    for match in _LINE.finditer(text, start):
        # Nothing behind the last line end is no line, unless there is nothing else.
        if match.end() > match.start() or match.start() == start:
            yield match.start(), match[1], match.end()


@dataclass(frozen=True, slots=True)
class ScoredWord:
    """One word of a text, or the end of one of its lines."""

    word: str
    """As the vocabulary spells it; `</s>` for the end of a line."""
    logprob: float
    """Natural logarithm of p(word | everything before it)."""
    band: int
    """Of the output layer, 0 for the head; of a word in pieces, the rarest piece's."""
    count: int
    """In the training text; of a word in pieces, the rarest piece's."""
    is_unknown: bool
    """Scored as `<unk>`, or a piece of it is."""
    is_end: bool
    """The end of a line."""
    span: tuple[int, int]
    """Where it stands: `text[start:end]`; empty for an end that the text does not spell."""

    @property
    def surprisal(self) -> float:
        """In bits."""
        return -bits(self.logprob)


@dataclass(frozen=True)
class WordFacts:
    """What is known of every id, whatever text it stands in."""

    bands: NDArray[np.int64]
    counts: NDArray[np.int64]

    @classmethod
    def of(
        cls, vocabulary: Vocabulary, cutoffs: tuple[int, ...], num_predicted: int | None = None
    ) -> WordFacts:
        """`cutoffs` are the first ids of the output layer's tails; it predicts `num_predicted` ids,
        all by default."""
        ids = predicted_ids(np.arange(len(vocabulary)), num_predicted or len(vocabulary))
        return cls(np.searchsorted(cutoffs, ids, side="right"), np.asarray(vocabulary.counts))


@dataclass(frozen=True, repr=False)
class ScoredText:
    """The words of a text with their scores, line ends included; totals are over all of them."""

    encoded: EncodedText
    nll: NDArray[np.float64]
    """-log p of every word, in nats; the pieces of a word added up."""
    facts: WordFacts
    protocol: ScoringProtocol
    """How the numbers came about, to be quoted with them."""

    @property
    def text(self) -> str:
        return self.encoded.text

    @property
    def logprob(self) -> float:
        """Of the whole text, in nats."""
        return -float(self.nll.sum())

    @property
    def perplexity(self) -> float:
        """Per word."""
        return perplexity(-self.logprob / len(self.nll))

    @property
    def surprisal(self) -> float:
        """Of the whole text, in bits."""
        return -bits(self.logprob)

    @cached_property
    def words(self) -> tuple[ScoredWord, ...]:
        return tuple(scored_words(self.encoded, self.nll, self.facts))

    def to_frame(self) -> Any:
        """A pandas DataFrame with one row per word; ImportError if pandas is not installed.

        The columns are the attributes of `ScoredWord`, with `start` and `end` for its span.
        """
        try:
            import pandas
        except ImportError:
            raise ImportError("to_frame: needs pandas; pip install pandas") from None
        names = ("word", "logprob", "surprisal", "band", "count", "is_unknown", "is_end")
        columns = {name: [getattr(word, name) for word in self.words] for name in names}
        starts, ends = zip(*self.encoded.spans, strict=True)
        return pandas.DataFrame(columns | {"start": starts, "end": ends})

    def __len__(self) -> int:
        return len(self.nll)

    def __repr__(self) -> str:
        return (
            f"ScoredText({len(self)} words, logprob={self.logprob:.4f}, "
            f"perplexity={self.perplexity:.4f})"
        )


def scored_words(
    encoded: EncodedText, nll: NDArray[np.float64], facts: WordFacts
) -> Iterator[ScoredWord]:
    """The words of a text one by one; `nll` is per word."""
    ids = np.where(encoded.ids < len(facts.counts), encoded.ids, UNKNOWN)
    columns = zip(
        encoded.words,
        (-nll).tolist(),
        np.maximum.reduceat(facts.bands[ids], encoded.starts).tolist(),
        np.minimum.reduceat(facts.counts[ids], encoded.starts).tolist(),
        encoded.is_unknown.tolist(),
        (encoded.ids[encoded.starts] == END).tolist(),
        encoded.spans,
        strict=True,
    )
    for values in columns:
        yield ScoredWord(*values)


def nll_per_word(encoded: EncodedText, nll: NDArray[np.float32]) -> NDArray[np.float64]:
    """That of a word's pieces, added up."""
    return np.add.reduceat(nll.astype(np.float64), encoded.starts)
