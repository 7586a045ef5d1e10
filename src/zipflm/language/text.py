"""Text encoded as ids with the position of each word, and the scores of a text."""

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
from zipflm.data.bpe import MAX_PIECES
from zipflm.data.detokenizer import Detokenizer
from zipflm.data.encoding import EncodedWord, TextEncoder
from zipflm.data.vocabulary import CONTINUES, END, SPECIALS, UNKNOWN, Vocabulary
from zipflm.evaluation.protocol import ScoringProtocol
from zipflm.evaluation.scoring import predicted_ids
from zipflm.units import bits, perplexity

Ids = NDArray[np.int64]

_Line = tuple[int, str, int]
"""Offset of a line, its text, and the offset after its line end."""

# Only the line ends that `prepare` recognizes, no other Unicode line breaks.
_LINE = re.compile(r"([^\r\n]*)(\r\n|\r|\n|\Z)")


@dataclass(frozen=True)
class EncodedText:
    """The words of a text and their ids.

    Every line end is a `</s>` word. A last line without a line end also gets one, unless the text
    was encoded with `ends=False` (see `TextReader.text`).
    """

    text: str
    words: Sequence[str]
    ids: NDArray[np.int64]
    starts: NDArray[np.int64]
    """Index of the first id of each word."""
    find_spans: Callable[[], Sequence[tuple[int, int]]]
    """Computes `spans` when they are first used."""
    num_predicted: int
    """The model predicts the ids below this number. All others are scored as `<unk>`."""

    @cached_property
    def spans(self) -> Sequence[tuple[int, int]]:
        """Start and end of each word in the text."""
        return self.find_spans()

    def __getstate__(self) -> dict[str, Any]:
        """For pickle, with the spans instead of the function that finds them."""
        return self.__dict__ | {"spans": self.spans, "find_spans": None}

    @cached_property
    def is_unknown(self) -> NDArray[np.bool_]:
        """Per word: True if the word, or a piece of it, is scored as `<unk>`."""
        is_unknown = (self.ids == UNKNOWN) | (self.ids >= self.num_predicted)
        return np.logical_or.reduceat(is_unknown, self.starts)


class TextReader:
    """Encodes raw text in the same way as the training text of a run."""

    def __init__(self, encoder: TextEncoder, unit: Unit, num_predicted: int | None = None) -> None:
        """`unit` is the kind of token that the model predicts, and `num_predicted` the number of
        ids that it predicts (default: all)."""
        self.encoder: TextEncoder = encoder
        self.vocabulary: Vocabulary = encoder.vocabulary
        self.num_predicted: int = len(self.vocabulary) if num_predicted is None else num_predicted
        self.ends_word: NDArray[np.bool_] = (
            self.vocabulary.ends_word
            if unit == "bpe"
            else np.ones(len(self.vocabulary), dtype=np.bool_)
        )
        """Per id: False for a piece that does not end a word."""
        # A subword model without codes reads text that is already split into pieces.
        self._is_pre_split = unit == "bpe" and encoder.codes is None

    def text(self, text: str, *, ends: bool = True) -> EncodedText:
        """Encode a text of one or more lines.

        Raises ValueError if it contains NUL or characters that UTF-8 cannot encode. With
        `ends=False`, no `</s>` is added to a last line that has no line end.
        """
        if not isinstance(text, str):
            raise ValueError(f"text={text!r}: must be a string")
        if (nul := text.find("\0")) >= 0:
            raise ValueError(f"text: NUL at character {nul}; pass text, not binary data")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"text: character {error.start} is half of a surrogate pair, which is not valid "
                "Unicode; remove it"
            ) from None
        lines = [*_lines(text)]
        has_end = [ends or end > start + len(line) for start, line, end in lines]
        return self._encode(text, lines, has_end)

    def line(self, line: str) -> EncodedText:
        """Encode one line, given without its line end."""
        return self._encode(line, [(0, line, len(line))], [True])

    def prefix(self, prefix: str) -> Ids:
        """Return the ids of a text that will be continued. It can be empty. No `</s>` is added
        unless it ends with a line end."""
        return self.text(prefix, ends=False).ids

    def detokenizer(
        self, line: Sequence[str] = (), is_tight: bool = False, max_pieces: int = MAX_PIECES
    ) -> Detokenizer:
        return Detokenizer(self.encoder, self.ends_word, line, is_tight, max_pieces)

    def is_encoding_of(self, word: str, ids: tuple[int, ...]) -> bool:
        """Return True if `word` is encoded as `ids`.

        If the model reads text that is already split into pieces, there is no encoding to compare
        with, and the result is always True.
        """
        return self._is_pre_split or self.encoder.ids([word])[0] == ids

    def _encode(self, text: str, lines: list[_Line], has_end: list[bool]) -> EncodedText:
        words: list[str] = []
        ids: list[tuple[int, ...]] = []
        if self.encoder.splitter.splitting.is_plain and not self._is_pre_split:
            # Without spans, which are rarely needed, words can be found faster.
            for (_, line, _), has_end_token in zip(lines, has_end, strict=True):
                line_words = line.split()
                words += line_words
                ids += self.encoder.ids(line_words)
                if has_end_token:
                    words.append(SPECIALS[END])
                    ids.append((END,))
            encoded = None
        else:
            encoded = self._with_spans(lines, has_end)
            words, ids = [word.word for word in encoded], [word.ids for word in encoded]
        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        flat = np.fromiter(chain.from_iterable(ids), np.int64, lengths.sum())
        starts = np.cumsum(lengths) - lengths
        return EncodedText(
            text,
            words,
            flat,
            starts,
            lambda: [word.span for word in encoded or self._with_spans(lines, has_end)],
            self.num_predicted,
        )

    def _with_spans(self, lines: list[_Line], has_end: list[bool]) -> list[EncodedWord]:
        words: list[EncodedWord] = []
        for (start, line, end), has_end_token in zip(lines, has_end, strict=True):
            words += [
                EncodedWord(word, (start + low, start + high), ids)
                for word, (low, high), ids in self.encoder.line(line)
            ]
            if has_end_token:
                words.append(EncodedWord(SPECIALS[END], (start + len(line), end), (END,)))
        return self._join(words) if self._is_pre_split else words

    def _join(self, pieces: list[EncodedWord]) -> list[EncodedWord]:
        """Join pieces into words in the same way as `evaluate` and fairseq: an unknown piece ends
        a word even if it has the continuation mark, and `</s>` ends an incomplete word."""
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


def last_line(text: EncodedText) -> Sequence[str]:
    """Return the words after the last line end."""
    line_ends = np.flatnonzero(text.ids[text.starts] == END)
    return text.words[line_ends[-1] + 1 if len(line_ends) else 0 :]


def _lines(text: str) -> Iterator[_Line]:
    start = 1 if text.startswith("\ufeff") else 0
    for match in _LINE.finditer(text, start):
        # An empty match after the last line end is only a line if the text is empty.
        if match.end() > match.start() or match.start() == start:
            yield match.start(), match[1], match.end()


@dataclass(frozen=True, slots=True)
class ScoredWord:
    """A word of a text, or a line end."""

    word: str
    """The word in the form used for the lookup in the vocabulary (for example lowercased), even if
    it is unknown; `</s>` for a line end."""
    logprob: float
    """ln p(word | context). The context is the text before the word; in a text longer than a block,
    only the part of it that is in the same block."""
    band: int
    """Band of the output layer, 0 for the head. Words outside the vocabulary have the band of
    `<unk>`, and words of several pieces that of the rarest piece."""
    count: int
    """Count in the training text, 0 for line ends and words outside the vocabulary. Words of
    several pieces have the count of the rarest piece."""
    is_unknown: bool
    """True if the word, or a piece of it, is scored as `<unk>`."""
    is_end: bool
    """True for a line end, or a `</s>` in the text."""
    span: tuple[int, int]
    """Start and end offset in the text; empty for the end of a text without a final newline."""

    @property
    def surprisal(self) -> float:
        """In bits."""
        return -bits(self.logprob)


@dataclass(frozen=True)
class WordStatistics:
    """Band and count of every id."""

    bands: NDArray[np.int64]
    counts: NDArray[np.int64]

    @classmethod
    def of(
        cls, vocabulary: Vocabulary, cutoffs: tuple[int, ...], num_predicted: int | None = None
    ) -> WordStatistics:
        """`cutoffs` are the first ids of the output layer's tails. Ids that are not predicted have
        the band of `<unk>`."""
        ids = predicted_ids(np.arange(len(vocabulary)), num_predicted or len(vocabulary))
        return cls(np.searchsorted(cutoffs, ids, side="right"), np.asarray(vocabulary.counts))


@dataclass(frozen=True, repr=False)
class ScoredText:
    """A text with the scores of its words, line ends included."""

    encoded: EncodedText
    nll: NDArray[np.float64]
    """-log p of every word, in nats."""
    statistics: WordStatistics
    protocol: ScoringProtocol

    @property
    def text(self) -> str:
        return self.encoded.text

    @property
    def logprob(self) -> float:
        """Log-probability of the text in nats."""
        return -float(self.nll.sum())

    @property
    def perplexity(self) -> float:
        """Perplexity per word, line ends included."""
        return perplexity(-self.logprob / len(self.nll))

    @property
    def surprisal(self) -> float:
        """Surprisal of the text in bits."""
        return -bits(self.logprob)

    @cached_property
    def words(self) -> tuple[ScoredWord, ...]:
        return tuple(scored_words(self.encoded, self.nll, self.statistics))

    def to_frame(self) -> Any:
        """Convert to a pandas DataFrame with a row per word.

        The columns are the attributes of `ScoredWord`, with `start` and `end` instead of the span.
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
    encoded: EncodedText, nll: NDArray[np.float64], statistics: WordStatistics
) -> Iterator[ScoredWord]:
    """Yield the words of a text with their scores. `nll` has one value per word."""
    ids = np.where(encoded.ids < len(statistics.counts), encoded.ids, UNKNOWN)
    columns = zip(
        encoded.words,
        (-nll).tolist(),
        np.maximum.reduceat(statistics.bands[ids], encoded.starts).tolist(),
        np.minimum.reduceat(statistics.counts[ids], encoded.starts).tolist(),
        encoded.is_unknown.tolist(),
        (encoded.ids[encoded.starts] == END).tolist(),
        encoded.spans,
        strict=True,
    )
    for values in columns:
        yield ScoredWord(*values)


def nll_per_word(encoded: EncodedText, nll: NDArray[np.float32]) -> NDArray[np.float64]:
    """Sum the nll of the tokens of each word."""
    return np.add.reduceat(nll.astype(np.float64), encoded.starts)
