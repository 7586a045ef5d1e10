"""Data folders: `data.json` as typed records, the vocabulary, and one token file per split."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from zipflm.config import Splitting, Unit, require
from zipflm.data.bpe import Codes
from zipflm.data.token_file import TokenArray, open_tokens
from zipflm.data.vocabulary import Vocabulary
from zipflm.messages import quoted
from zipflm.settings import from_dict, load_object
from zipflm.storage import read_checksums, require_unchanged, verify_once

FORMAT = 3
METADATA_FILE = "data.json"
VOCABULARY_FILE = "vocabulary.txt"
CODES_FILE = "bpe.codes"
SPLITTING_FILE = "splitting.json"
SPLITS = ("train", "valid", "test")


@dataclass(frozen=True, kw_only=True)
class VocabularyMetadata:
    """The vocabulary of the folder."""

    size: int
    """Number of ids, including special tokens and fillers."""
    words: int
    """Number of entries with a nonzero count, which excludes special tokens and fillers."""
    hash: str
    """SHA-256 of the words in order."""


@dataclass(frozen=True, kw_only=True)
class SplitMetadata:
    """One split: its token file and counts of its text."""

    file: str
    tokens: int
    """Number of ids, including `</s>`."""
    words: int
    """Number of words plus line ends (one `</s>` each)."""
    sentences: int
    unknown: int
    """Number of `<unk>` tokens."""
    out_of_vocabulary: int
    """Number of words replaced by `<unk>`, excluding a literal `<unk>` in the text."""
    bytes: int
    """Size of the normalized text: words joined by single spaces, one newline per line."""
    continued: int
    """Number of words that end in `@@`, as in a text that is already split into BPE pieces."""
    literal_ends: int = 0
    """Number of `</s>` in the text, which count as additional line ends."""
    types: int
    """Number of distinct words, including `</s>`."""
    sha256: str
    """Hash of the token file."""
    words_sha256: str
    """Hash of the words and line ends, which does not depend on the vocabulary."""
    sources: tuple[str, ...]
    """Names of the text files."""

    @property
    def is_in_pieces(self) -> bool:
        """True if more than 5% of the words end in `@@`: the text is already split into pieces."""
        return self.continued > 0.05 * self.words


@dataclass(frozen=True, kw_only=True)
class CodesMetadata:
    """The BPE codes of the folder."""

    file: str
    merges: int
    hash: str


@dataclass(frozen=True, kw_only=True)
class PrepareOptions:
    """Options of `zipflm prepare`, with the default `min_count` filled in."""

    min_count: int | None
    max_size: int | None
    vocabulary: str | None
    bpe: int | None
    bpe_codes: str | None
    errors: str
    ids: bool
    names: str | None


@dataclass(frozen=True, kw_only=True)
class DataMetadata:
    """The contents of `data.json`."""

    format: int
    unit: Unit
    splitting: Splitting
    """Rule that split raw text into words."""
    vocabulary: VocabularyMetadata
    splits: Mapping[str, SplitMetadata]
    options: PrepareOptions
    bpe: CodesMetadata | None = None

    def __post_init__(self) -> None:
        require(
            0 < len(self.splits) and set(self.splits) <= set(SPLITS),
            "splits",
            list(self.splits),
            f"choose from {', '.join(SPLITS)}",
        )


def read_metadata(folder: Path) -> DataMetadata:
    """Read `data.json`. Raises ValueError, naming file and field, if it is missing or invalid."""
    path = folder / METADATA_FILE
    if not path.is_file():
        raise ValueError(
            f"{folder}: not a data folder (no {METADATA_FILE}); create one with zipflm prepare"
        )
    try:
        values = load_object(path.read_bytes())
        if values.get("format") != FORMAT:
            raise ValueError(
                f"format {quoted(values.get('format'))}, but this release reads {FORMAT}"
            )
        return from_dict(DataMetadata, values)
    except ValueError as error:
        raise ValueError(f"{path}: {error}; prepare the data again") from None


class DataFolder:
    """A data folder, checked by `open`. Token files are mapped when needed."""

    def __init__(self, path: Path, metadata: DataMetadata, vocabulary: Vocabulary) -> None:
        self.path: Path = path
        self.metadata: DataMetadata = metadata
        self.vocabulary: Vocabulary = vocabulary

    def __repr__(self) -> str:
        return f"<DataFolder {self.path}>"

    @classmethod
    def open(cls, path: str | PathLike[str]) -> DataFolder:
        """Open a folder from `zipflm prepare`. Raises ValueError or OSError if it is damaged."""
        path = Path(path)
        metadata = read_metadata(path)
        _require_sealed(path, metadata)
        return cls(path, metadata, Vocabulary.load(path / VOCABULARY_FILE))

    @property
    def unit(self) -> Unit:
        """Whether ids are words or BPE pieces."""
        return self.metadata.unit

    @property
    def splitting(self) -> Splitting:
        """Rule that split raw text into words."""
        return self.metadata.splitting

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(self.metadata.splits)

    def tokens(self, split: str) -> TokenArray:
        """Return the memory-mapped tokens of a split. `verify` checks that they are undamaged."""
        return open_tokens(self.path / self.split(split).file, self.vocabulary.hash)

    @cached_property
    def ends_word(self) -> NDArray[np.bool_]:
        """Mask over ids: True for words and for the last piece of a word."""
        if self.unit == "word":
            return np.ones(len(self.vocabulary), dtype=np.bool_)
        return self.vocabulary.ends_word

    @cached_property
    def codes(self) -> Codes | None:
        """The BPE codes, or None for a folder of words."""
        return None if self.metadata.bpe is None else Codes.load(self.path / CODES_FILE)

    def split(self, split: str) -> SplitMetadata:
        """Return the metadata of a split. Raises ValueError if the folder does not have it."""
        if split not in self.metadata.splits:
            raise ValueError(
                f"{self.path}: no {split} split, only {', '.join(self.splits)}; prepare the data "
                "again with that text"
            )
        return self.metadata.splits[split]

    def verify(self, *splits: str) -> None:
        """Compare the token files of splits (default: all) with their checksums.

        A file that has not changed since the last comparison is not read again. Raises ValueError
        if a file differs.
        """
        for split in splits or self.splits:
            file = self.split(split).file
            try:
                verify_once(self.path, file, read_checksums(self.path, [file]))
            except ValueError as error:
                raise ValueError(f"{error}; prepare the data again") from None


def _require_sealed(path: Path, metadata: DataMetadata) -> None:
    """Check the small files against `checksums.json`. Token files are checked by `verify`."""
    small = (METADATA_FILE, VOCABULARY_FILE, *((CODES_FILE,) if metadata.bpe else ()))
    try:
        sums = read_checksums(path, small)
        for name in small:
            require_unchanged(path, name, sums)
    except ValueError as error:
        raise ValueError(f"{error}; prepare the data again") from None
