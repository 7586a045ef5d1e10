"""What `data.json` says of a data folder, as typed records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zipflm.config import Splitting, Unit, require
from zipflm.quoting import quoted
from zipflm.records import from_dict, load_object

FORMAT = 3
FACTS_FILE = "data.json"
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
    """Of the text in plain dress: one space between two words, one line end per line. Where a
    rule splits further than white space does, or lowercases, of the words that it makes."""
    continued: int
    """Words that end in `@@`, because the text was split into pieces before."""
    types: int
    """Different words, `</s>` included."""
    sha256: str
    """Of the token file."""
    words_sha256: str
    """Of the words and line ends in order, whatever ids they became: two folders hold the same
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
    """What `zipflm prepare` was asked for."""

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
        _drop_single_shard(values)
        return from_dict(DataFacts, values)
    except ValueError as error:
        raise ValueError(f"{path}: {error}; prepare the data again") from None


def _drop_single_shard(values: dict[str, Any]) -> None:
    """Folders made when a split could have several token files say that it has one."""
    splits = values.get("splits")
    for split in splits.values() if isinstance(splits, dict) else ():
        if isinstance(split, dict) and split.get("shards") == 1:
            del split["shards"]
            split.pop("files_sha256", None)
