"""`ZipfTokenizer`: a fast `transformers` tokenizer that encodes text exactly as the run does.

The `tokenizers` library cannot lowercase or replace words after splitting, nor map a word with an
unknown piece to one `<unk>`. So a custom pre-tokenizer calls `TextEncoder`, and the library only
looks up the result. There is no `tokenizer.json`, because loading it without this class would give
wrong ids.

- A text starts with `</s>`, from which its first word is predicted (`add_bos_token=False` or
  `add_special_tokens=False` omits it).
- A line end is also `</s>`. End a text with a line end to score it like a line of `zipflm score`.
- Special tokens in a text are not parsed: `</s>` in a text is encoded as in `zipflm prepare`.
- Decoded text is readable. Ids that do not start with `</s>` are treated as a continuation and get
  a leading space if they need one.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable
from itertools import accumulate, count, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import NormalizedString, PreTokenizedString, Regex, Tokenizer
from tokenizers.decoders import Decoder
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import PreTokenizer
from transformers import PreTrainedTokenizerFast

from zipflm.config import PLAIN, Splitting, Unit
from zipflm.data.bpe import Codes
from zipflm.data.detokenizer import Detokenizer
from zipflm.data.encoding import TextEncoder
from zipflm.data.folder import CODES_FILE, SPLITTING_FILE, VOCABULARY_FILE
from zipflm.data.splitting import cache_short
from zipflm.data.vocabulary import BEGIN, CONTINUES, END, PAD, SPECIALS, UNKNOWN, Vocabulary
from zipflm.messages import quoted, require_file
from zipflm.settings import read_record, write_record

# The line ends that `prepare` recognizes; Unicode has more.
_LINE_END = Regex(r"\r\n|\r|\n")
_LINE_ENDS = ("\r\n", "\r", "\n")
# Whitespace as in Python. It includes \x1c to \x1f, which are not whitespace in Unicode.
_WHITESPACE = Regex(
    r"[\t-\r\x1c-\x20\u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+"
)
_BYTE_ORDER_MARK = "\ufeff"

_SPECIAL_TOKENS = {
    "bos_token": (SPECIALS[END],),
    "eos_token": (SPECIALS[END],),
    "pad_token": (SPECIALS[PAD], SPECIALS[END]),  # the mask hides either
    "unk_token": (SPECIALS[UNKNOWN],),
}


class ZipfTokenizer(PreTrainedTokenizerFast):
    """Encodes raw text as ids of the vocabulary of a run."""

    vocab_files_names: dict[str, str] = {
        "vocabulary_file": VOCABULARY_FILE,
        "codes_file": CODES_FILE,
        "splitting_file": SPLITTING_FILE,
    }
    model_input_names: list[str] = ["input_ids", "attention_mask"]
    # Trainer assumes padding on the right. Generation works with either side.
    padding_side = "right"

    def __init__(
        self,
        vocabulary_file: str | None = None,
        codes_file: str | None = None,
        splitting_file: str | None = None,
        unit: Unit = "word",
        text_hash: str | None = None,
        encoder: TextEncoder | None = None,
        **kwargs: Any,
    ) -> None:
        """Load the files of an exported folder, or use an `encoder`.

        `unit` is the meaning of an id: word or bpe. `text_hash` is a checksum of the contents of
        the files: those of BPE codes and splitting rules are optional, so a missing one would
        otherwise go unnoticed.
        """
        self.unit: Unit = unit
        self.text_encoder: TextEncoder = encoder or _encoder(
            vocabulary_file, codes_file, splitting_file
        )
        _require_distinct_words(self.vocabulary)
        actual_hash = _text_hash(self.text_encoder)
        if text_hash not in (None, actual_hash):
            raise ValueError(
                f"{VOCABULARY_FILE}, {CODES_FILE} or {SPLITTING_FILE}: missing, damaged or from "
                "another run; restore the files that were saved with this tokenizer"
            )
        self._tokenizer = _word_level(self.vocabulary)
        fixed = {
            "unit": unit,
            "text_hash": actual_hash,
            "clean_up_tokenization_spaces": False,
            "split_special_tokens": True,
        }
        kwargs.setdefault("add_bos_token", True)
        for name, choices in _SPECIAL_TOKENS.items():
            if str(kwargs.setdefault(name, choices[0])) not in choices:
                raise ValueError(
                    f"{name}={quoted(str(kwargs[name]))}: the model uses {' or '.join(choices)}; "
                    "leave it out"
                )
        super().__init__(**(kwargs | fixed))
        self._attach()

    @property
    def vocabulary(self) -> Vocabulary:
        """Words, or pieces of words, by id."""
        return self.text_encoder.vocabulary

    def _decode(
        self, token_ids: int | list[int], skip_special_tokens: bool = False, **_: Any
    ) -> str:
        """Return readable text, in which `</s>` is a line end.

        `skip_special_tokens` omits `<s>`, padding, and `</s>` at the start and the end.
        """
        ids = [token_ids] if isinstance(token_ids, int) else [int(id) for id in token_ids]
        for id in ids:
            if not 0 <= id < len(self.vocabulary):
                raise ValueError(f"id {id}: outside the vocabulary of {len(self.vocabulary)} ids")
        text_ids = [id for id in ids if id not in (BEGIN, PAD)]
        is_continuation = text_ids[:1] != [END]
        if skip_special_tokens:
            ids = text_ids[:-1] if text_ids[-1:] == [END] else text_ids
            ids = ids if is_continuation else ids[1:]
        return "".join(self._decoder.parts(ids, is_continuation=is_continuation))

    def _save_pretrained(
        self,
        save_directory: str | os.PathLike[str],
        file_names: tuple[str, ...],
        legacy_format: bool | None = None,
        filename_prefix: str | None = None,
    ) -> tuple[str, ...]:
        """Write the vocabulary, BPE codes and splitting rule. Return the paths of all files."""
        folder, encoder = Path(save_directory), self.text_encoder
        paths = [folder / VOCABULARY_FILE]
        encoder.vocabulary.save(paths[0])
        if encoder.codes is not None:
            paths.append(folder / CODES_FILE)
            encoder.codes.save(paths[-1])
        if not encoder.splitter.splitting.is_plain:
            paths.append(folder / SPLITTING_FILE)
            write_record(paths[-1], encoder.splitter.splitting)
        return *file_names, *map(str, paths)

    def _add_tokens(self, new_tokens: Iterable[Any], special_tokens: bool = False) -> int:
        tokens = list(new_tokens)
        for token in tokens:
            if str(token) not in self.vocabulary:
                raise ValueError(
                    f"token {quoted(str(token))}: not in the vocabulary, which is fixed; train a "
                    "model with it"
                )
        # Ordinary words must not become special tokens.
        specials = [token for token in tokens if str(token) in SPECIALS]
        return int(self._tokenizer.add_special_tokens(specials))

    # The library cannot pickle custom Python components, so copies rebuild them from their parts.

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        del state["_tokenizer"]
        encoder = state.pop("text_encoder")
        merges = None if encoder.codes is None else encoder.codes.merges
        return state | {"parts": (encoder.vocabulary, merges, encoder.splitter.splitting)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vocabulary, merges, splitting = state.pop("parts")
        self.__dict__.update(state)
        codes = None if merges is None else Codes(merges)
        self.text_encoder = TextEncoder(vocabulary, codes, splitting)
        self._tokenizer = _word_level(self.vocabulary)
        self._tokenizer.encode_special_tokens = True
        self._tokenizer.add_special_tokens([SPECIALS[i] for i in (END, PAD, UNKNOWN)])
        self.update_post_processor()
        self._attach()

    def _attach(self) -> None:
        self._tokenizer.pre_tokenizer = PreTokenizer.custom(_PreTokenizer(self.text_encoder))
        self._tokenizer.decoder = Decoder.custom(self._decoder)

    @property
    def _decoder(self) -> _Decoder:
        return _Decoder(self.text_encoder, self.unit)


class _PreTokenizer:
    """Splits a text into vocabulary entries: into lines, then at whitespace, then into words.

    The library is fast at the first two steps, and words never contain whitespace.
    """

    def __init__(self, encoder: TextEncoder) -> None:
        self._encoder = encoder
        self._cached_parts = cache_short(self._parts)

    def pre_tokenize(self, text: PreTokenizedString) -> None:
        text.split(_split_lines)
        text.split(_split_at_whitespace)
        text.split(self._split_words)

    def _split_words(self, _: int, part: NormalizedString) -> list[NormalizedString]:
        text = part.normalized
        if text in _LINE_ENDS:
            return [_replace_text(part, SPECIALS[END])]
        parts = self._cached_parts(text)
        if len(parts) == 1:  # the common case
            return [_replace_text(part, parts[0][0])]
        return [_replace_text(_slice(part, start, end), name) for name, start, end in parts]

    def _parts(self, part: str) -> list[tuple[str, int, int]]:
        """Return the names of vocabulary entries and their spans."""
        words = self._encoder.vocabulary.words
        parts: list[tuple[str, int, int]] = []
        for _, span, ids in self._encoder.line(part):
            names = [words[id] for id in ids]
            for name, (start, end) in zip(names, _spans(names, *span), strict=True):
                parts.append((name, start, end))
        return parts


def _split_lines(index: int, text: NormalizedString) -> list[NormalizedString]:
    if index == 0 and text.normalized.startswith(_BYTE_ORDER_MARK):
        if len(text.normalized) == 1:
            return []
        text = _slice(text, 1, len(text.normalized))
    return text.split(_LINE_END, "isolated")


def _split_at_whitespace(_: int, line: NormalizedString) -> list[NormalizedString]:
    return [line] if line.normalized in _LINE_ENDS else line.split(_WHITESPACE, "removed")


def _slice(text: NormalizedString, start: int, end: int) -> NormalizedString:
    part = text[start:end]
    assert part is not None
    return part


class _Decoder:
    """Joins vocabulary entries into readable text."""

    def __init__(self, encoder: TextEncoder, unit: Unit) -> None:
        self._encoder = encoder
        vocabulary = encoder.vocabulary
        is_word = np.ones(len(vocabulary), dtype=np.bool_)
        self._ends_word = vocabulary.ends_word if unit == "bpe" else is_word

    def decode_chain(self, names: list[str]) -> list[str]:
        """Return the parts of a text. Called by the library."""
        return self.parts(map(self._encoder.vocabulary.id, names))

    def parts(self, ids: Iterable[int], *, is_continuation: bool = False) -> list[str]:
        """Return the parts of a text. Set `is_continuation` if other words precede it."""
        line = ["word"] if is_continuation else []  # any word
        detokenizer = Detokenizer(self._encoder, self._ends_word, line, max_pieces=sys.maxsize)
        return [*map(detokenizer.add, ids), detokenizer.finish()]


def _replace_text(part: NormalizedString, name: str) -> NormalizedString:
    """Replace the text of a part and keep its position in the original."""
    text = part.normalized
    if text == name:
        return part
    if len(text) > len(name):
        kept, positions = {*range(len(name) - 1), len(text) - 1}, count()
        part.filter(lambda _: next(positions) in kept)
    chars = iter(name)
    part.map(lambda _: next(chars))
    part.append("".join(chars))
    return part


def _spans(names: list[str], start: int, end: int) -> list[tuple[int, int]]:
    """Return the spans of pieces, or the full word's span for each if lengths do not add up."""
    lengths = [len(name) - len(CONTINUES) for name in names[:-1]] + [len(names[-1])]
    if len(names) == 1 or sum(lengths) != end - start:
        return [(start, end)] * len(names)
    return list(pairwise(accumulate(lengths, initial=start)))


def _text_hash(encoder: TextEncoder) -> str:
    """Return a hash of everything that determines the ids of a text."""
    vocabulary, codes = encoder.vocabulary, encoder.codes
    lines = [str(encoder.splitter.splitting), "" if codes is None else codes.hash]
    entries = zip(vocabulary.words, vocabulary.counts.tolist(), strict=True)
    lines += [f"{word} {frequency}" for word, frequency in entries]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _word_level(vocabulary: Vocabulary) -> Tokenizer:
    return Tokenizer(WordLevel(vocabulary.index, unk_token=SPECIALS[UNKNOWN]))


def _encoder(words: str | None, codes: str | None, splitting: str | None) -> TextEncoder:
    if words is None:
        raise ValueError(f"{VOCABULARY_FILE}: missing; a tokenizer needs it")
    for path in (words, codes, splitting):
        if path is not None:
            require_file(path)
    return TextEncoder(
        Vocabulary.load(words),
        None if codes is None else Codes.load(codes),
        PLAIN if splitting is None else read_record(Splitting, Path(splitting)),
    )


def _require_distinct_words(vocabulary: Vocabulary) -> None:
    if len(vocabulary.index) != len(vocabulary):
        words = enumerate(vocabulary.words)
        repeated = next(word for id, word in words if vocabulary.index[word] != id)
        raise ValueError(
            f"{VOCABULARY_FILE}: the word {quoted(repeated)} has two ids, which transformers "
            "tokenizers do not support"
        )
