"""A data folder: `data.json` as typed records, the vocabulary, and one token file per split."""

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
from zipflm.storage import CHECKSUMS, Verified, clear_abandoned, read_checksums, require_unchanged

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
    """Ids, specials and fillers included."""
    words: int
    """Entries without specials and fillers."""
    hash: str
    """SHA-256 of the words in order."""


@dataclass(frozen=True, kw_only=True)
class SplitFacts:
    """One split: its token file and counts of its text."""

    file: str
    tokens: int
    """Ids in all, `</s>` included."""
    words: int
    """Words of the text and line ends, each of which is one `</s>`."""
    sentences: int
    unknown: int
    """Tokens that are `<unk>`."""
    out_of_vocabulary: int
    """Words that became `<unk>` although the text spells them otherwise."""
    bytes: int
    """Size of the text with one space between two words and one line end per line. Where a
    rule splits further than white space does, or lowercases, of the words that it makes."""
    continued: int
    """Words that end in `@@`, because the text was split into pieces before."""
    types: int
    """Different words, `</s>` included."""
    sha256: str
    """Hash of the token file."""
    words_sha256: str
    """Hash of words and line ends in order, whatever their ids: two folders hold the same
    text where this is equal."""
    sources: tuple[str, ...]
    """Names of the files the text came from."""

    def __post_init__(self) -> None:
        is_plain = Path(self.file).name == self.file and self.file not in ("", "..")
        require(is_plain, "file", self.file, "names no file of the folder")


@dataclass(frozen=True, kw_only=True)
class CodesFacts:
    """The byte-pair codes of the folder."""

    file: str
    merges: int
    hash: str


@dataclass(frozen=True, kw_only=True)
class OptionFacts:
    """Options of `zipflm prepare`."""

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
    """All of `data.json`."""

    format: int
    unit: Unit
    splitting: Splitting
    """How raw text became words."""
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
            "a folder of sub-words, and no other, has bpe codes",
        )


def read_facts(folder: Path) -> DataFacts:
    """The facts of a folder; ValueError, naming file and field, if it has none that can be read."""
    path = folder / FACTS_FILE
    if not path.is_file():
        raise ValueError(f"{folder}: no data folder (no {FACTS_FILE}); make one: zipflm prepare")
    try:
        values = load_object(path.read_bytes())
        if values.get("format") != FORMAT:
            found = quoted(values.get("format"))
            raise ValueError(f"format {found}, this release reads {FORMAT}")
        return from_dict(DataFacts, values)
    except ValueError as error:
        raise ValueError(f"{path}: {error}; prepare the data again") from None


class DataFolder:
    """A finished data folder; `open` checks it, the splits are mapped on first use."""

    def __init__(self, path: Path, facts: DataFacts, vocabulary: Vocabulary) -> None:
        self.path: Path = path
        self.facts: DataFacts = facts
        self.vocabulary: Vocabulary = vocabulary

    @classmethod
    def open(cls, path: str | PathLike[str]) -> DataFolder:
        """Open a folder that `zipflm prepare` made; ValueError or OSError if it is not whole."""
        path = Path(path)
        clear_abandoned(path)
        facts = read_facts(path)
        _require_sealed(path, facts)
        vocabulary = Vocabulary.load(path / VOCABULARY_FILE)
        if vocabulary.hash != facts.vocabulary.hash:
            raise ValueError(
                f"{path / VOCABULARY_FILE}: its hash is {vocabulary.hash}, but data.json says "
                f"{facts.vocabulary.hash}; prepare the data again"
            )
        return cls(path, facts, vocabulary)

    @property
    def unit(self) -> Unit:
        """What one id stands for."""
        return self.facts.unit

    @property
    def splitting(self) -> Splitting:
        """How raw text became words."""
        return self.facts.splitting

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(self.facts.splits)

    def tokens(self, split: str) -> TokenFile:
        """The tokens of a split, checked against this folder's vocabulary."""
        facts = self.split(split)
        tokens = TokenFile(self.path / facts.file)
        if tokens.vocabulary_hash != self.vocabulary.hash:
            raise ValueError(
                f"{tokens.path}: made with vocabulary {tokens.vocabulary_hash}, but this one is "
                f"{self.vocabulary.hash}; prepare the text again with this vocabulary"
            )
        if len(tokens) != facts.tokens:
            raise ValueError(
                f"{tokens.path}: has {len(tokens)} tokens, but {FACTS_FILE} says {facts.tokens}; "
                "prepare the data again"
            )
        return tokens

    @cached_property
    def ends_word(self) -> NDArray[np.bool_]:
        """Per id, False for a piece of a word that the next piece continues."""
        if self.unit == "word":
            return np.ones(len(self.vocabulary), dtype=np.bool_)
        return self.vocabulary.ends_word

    @cached_property
    def codes(self) -> Codes | None:
        """The byte-pair codes with which words were split, if they were."""
        if self.unit == "word":
            return None
        codes = Codes.load(self.path / CODES_FILE)
        said = self.facts.bpe
        assert said is not None  # of sub-words, as the facts themselves check
        if codes.hash != said.hash:
            raise ValueError(
                f"{self.path / CODES_FILE}: its hash is {codes.hash}, but data.json says "
                f"{said.hash}; prepare the data again"
            )
        return codes

    def split(self, split: str) -> SplitFacts:
        """The facts of a split; ValueError if the folder does not have it."""
        if split not in SPLITS:
            raise ValueError(f"split {split!r}: choose from {', '.join(SPLITS)}")
        if split not in self.facts.splits:
            remedy = "a training text" if split == "train" else f"--{split}"
            raise ValueError(
                f"{self.path}: no split {split!r}; it has {', '.join(self.splits)}; prepare it "
                f"again with {remedy}"
            )
        return self.facts.splits[split]

    def verify(self, *splits: str) -> None:
        """Compare the token files of splits, all unless named, with their checksums.

        One that did not change since it was last compared is not read again. Raises ValueError,
        naming the file, if one differs.
        """
        verified = Verified(self.path)
        for split in splits or self.splits:
            facts = self.split(split)
            try:
                verified.require_unchanged(facts.file, {facts.file: facts.sha256})
            except ValueError as error:
                raise ValueError(f"{error}; prepare the data again") from None


def _require_sealed(path: Path, facts: DataFacts) -> None:
    """ValueError unless the files are those of `checksums.json`; token files, which are long, are
    read when a split is used (`verify`)."""
    if not os.path.lexists(path / CHECKSUMS):
        raise ValueError(
            f"{path}: has no {CHECKSUMS}: it is not whole, or was made by an earlier version of "
            "zipflm; prepare the data again"
        )
    small = (FACTS_FILE, VOCABULARY_FILE, *((CODES_FILE,) if facts.bpe else ()))
    try:
        sums = read_checksums(path, small)
        for name in small:
            require_unchanged(path, name, sums)
        # From here on the facts can be trusted.
        for split in facts.splits.values():
            if sums.get(split.file) != split.sha256:
                raise ValueError(
                    f"{path / CHECKSUMS}: damaged; it and {FACTS_FILE} disagree on {split.file}"
                )
    except ValueError as error:
        raise ValueError(f"{error}; prepare the data again") from None
