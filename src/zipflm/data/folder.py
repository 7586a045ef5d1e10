"""Data folders: `data.json` as typed records, the vocabulary, and one token file per split."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from zipflm.config import Splitting, Unit, require
from zipflm.data.bpe import Codes
from zipflm.data.token_file import TokenFile
from zipflm.data.vocabulary import Vocabulary
from zipflm.messages import quoted
from zipflm.settings import from_dict, load_object
from zipflm.storage import (
    CHECKSUMS,
    clear_abandoned,
    read_checksums,
    require_unchanged,
    verify_once,
)

FORMAT = 3
FACTS_FILE = "data.json"
VOCABULARY_FILE = "vocabulary.txt"
CODES_FILE = "bpe.codes"
SPLITTING_FILE = "splitting.json"
SPLITS = ("train", "valid", "test")


@dataclass(frozen=True, kw_only=True)
class VocabularyFacts:
    """The vocabulary of the folder."""

    size: int
    """Number of ids, including special tokens and fillers."""
    words: int
    """Number of entries without special tokens and fillers."""
    hash: str
    """SHA-256 of the words in order."""


@dataclass(frozen=True, kw_only=True)
class SplitFacts:
    """One split: its token file and counts of its text."""

    file: str
    tokens: int
    """Number of ids, including `</s>`."""
    words: int
    """Number of words plus line ends (one `</s>` each)."""
    sentences: int
    unknown: int
    """Tokens that are `<unk>`."""
    out_of_vocabulary: int
    """Words that became `<unk>`, not counting those that are literally `<unk>` in the text."""
    bytes: int
    """Size of the normalized text: words joined by single spaces, one newline per line."""
    continued: int
    """Words that end in `@@`, if the text was already split into pieces."""
    types: int
    """Number of distinct words, including `</s>`."""
    sha256: str
    """Hash of the token file."""
    words_sha256: str
    """Hash of words and line ends, independent of ids: equal for the same text."""
    sources: tuple[str, ...]
    """Names of the text files."""

    def __post_init__(self) -> None:
        is_plain = Path(self.file).name == self.file and self.file not in ("", "..")
        require(is_plain, "file", self.file, "must be the name of a file in the folder")


@dataclass(frozen=True, kw_only=True)
class CodesFacts:
    """The BPE codes of the folder."""

    file: str
    merges: int
    hash: str


@dataclass(frozen=True, kw_only=True)
class OptionFacts:
    """The options of `zipflm prepare` that were used."""

    min_count: int | None
    max_size: int | None
    vocabulary: str | None
    bpe: int | None
    bpe_codes: str | None
    errors: str
    ids: bool
    names: str | None


@dataclass(frozen=True, kw_only=True)
class DataFacts:
    """The contents of `data.json`."""

    format: int
    unit: Unit
    splitting: Splitting
    """Rule that split raw text into words."""
    vocabulary: VocabularyFacts
    splits: Mapping[str, SplitFacts]
    options: OptionFacts
    bpe: CodesFacts | None = None

    def __post_init__(self) -> None:
        require(
            0 < len(self.splits) and set(self.splits) <= set(SPLITS),
            "splits",
            list(self.splits),
            f"choose from {', '.join(SPLITS)}",
        )
        require(
            (self.unit == "bpe") == (self.bpe is not None),
            "unit",
            self.unit,
            "a folder has BPE codes if and only if its unit is bpe",
        )


def read_facts(folder: Path) -> DataFacts:
    """Read `data.json`. Raises ValueError, naming file and field, if it is missing or invalid."""
    path = folder / FACTS_FILE
    if not path.is_file():
        raise ValueError(
            f"{folder}: not a data folder (no {FACTS_FILE}); create one with zipflm prepare"
        )
    try:
        values = load_object(path.read_bytes())
        if values.get("format") != FORMAT:
            raise ValueError(
                f"format {quoted(values.get('format'))}, but this release reads {FORMAT}"
            )
        return from_dict(DataFacts, values)
    except ValueError as error:
        raise ValueError(f"{path}: {error}; prepare the data again") from None


class DataFolder:
    """A data folder, checked by `open`. Token files are mapped when needed."""

    def __init__(self, path: Path, facts: DataFacts, vocabulary: Vocabulary) -> None:
        self.path: Path = path
        self.facts: DataFacts = facts
        self.vocabulary: Vocabulary = vocabulary

    @classmethod
    def open(cls, path: str | PathLike[str]) -> DataFolder:
        """Open a folder from `zipflm prepare`. Raises ValueError or OSError if it is damaged."""
        path = Path(path)
        clear_abandoned(path)
        facts = read_facts(path)
        _require_sealed(path, facts)
        return cls(path, facts, Vocabulary.load(path / VOCABULARY_FILE))

    @property
    def unit(self) -> Unit:
        """Whether ids are words or BPE pieces."""
        return self.facts.unit

    @property
    def splitting(self) -> Splitting:
        """Rule that split raw text into words."""
        return self.facts.splitting

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(self.facts.splits)

    def tokens(self, split: str) -> TokenFile:
        """Return the tokens of a split, checked against the vocabulary of the folder."""
        facts = self.split(split)
        tokens = TokenFile(self.path / facts.file)
        if tokens.vocabulary_hash != self.vocabulary.hash:
            raise ValueError(
                f"{tokens.path}: made with vocabulary {tokens.vocabulary_hash}, but the folder has "
                f"{self.vocabulary.hash}; prepare the data again"
            )
        if len(tokens) != facts.tokens:
            raise ValueError(
                f"{tokens.path}: {len(tokens)} tokens, but {FACTS_FILE} has {facts.tokens}; "
                "prepare the data again"
            )
        return tokens

    @cached_property
    def ends_word(self) -> NDArray[np.bool_]:
        """Mask over ids: True for words and for the last piece of a word."""
        if self.unit == "word":
            return np.ones(len(self.vocabulary), dtype=np.bool_)
        return self.vocabulary.ends_word

    @cached_property
    def codes(self) -> Codes | None:
        """The BPE codes, or None for a folder of words."""
        return None if self.facts.bpe is None else Codes.load(self.path / CODES_FILE)

    def split(self, split: str) -> SplitFacts:
        """Return the facts of a split. Raises ValueError if the folder does not have it."""
        if split not in SPLITS:
            raise ValueError(f"split {split!r}: choose from {', '.join(SPLITS)}")
        if split not in self.facts.splits:
            kind = {"train": "training", "valid": "validation"}.get(split, split)
            raise ValueError(
                f"{self.path}: no {split} split, only {', '.join(self.splits)}; prepare the data "
                f"again with a {kind} text"
            )
        return self.facts.splits[split]

    def verify(self, *splits: str) -> None:
        """Compare the token files of splits (default: all) with their checksums.

        A file that has not changed since the last comparison is not read again. Raises ValueError
        if a file differs.
        """
        for split in splits or self.splits:
            facts = self.split(split)
            try:
                verify_once(self.path, facts.file, {facts.file: facts.sha256})
            except ValueError as error:
                raise ValueError(f"{error}; prepare the data again") from None


def _require_sealed(path: Path, facts: DataFacts) -> None:
    """Check the small files against `checksums.json`. Token files are checked by `verify`."""
    if not os.path.lexists(path / CHECKSUMS):
        raise ValueError(
            f"{path}: has no {CHECKSUMS}, so it is incomplete or from an earlier version of "
            "zipflm; prepare the data again"
        )
    small = (FACTS_FILE, VOCABULARY_FILE, *((CODES_FILE,) if facts.bpe else ()))
    try:
        sums = read_checksums(path, small)
        for name in small:
            require_unchanged(path, name, sums)
        for split in facts.splits.values():
            if sums.get(split.file) != split.sha256:
                raise ValueError(
                    f"{path / CHECKSUMS}: damaged; it and {FACTS_FILE} disagree about {split.file}"
                )
    except ValueError as error:
        raise ValueError(f"{error}; prepare the data again") from None
