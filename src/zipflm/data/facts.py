"""What `data.json` says of a data folder, as typed records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from zipflm.config import Unit, require
from zipflm.records import from_dict, load_object, quoted

FORMAT = 2
FACTS_FILE = "data.json"


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
    """Ids in the file, `</s>` included."""
    words: int
    """Words of the text and line ends, each of which is one `</s>`."""
    sentences: int
    unknown: int
    """Tokens that are `<unk>`."""
    out_of_vocabulary: int
    """Words that became `<unk>` although the text spells them otherwise."""
    bytes: int
    """Of the text in plain dress: one space between two words, one line end per line."""
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
        require(_is_plain_name(self.file), "file", self.file, "names no file of the folder")


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


@dataclass(frozen=True, kw_only=True)
class DataFacts:
    """All of `data.json`."""

    format: int
    unit: Unit
    vocabulary: VocabularyFacts
    splits: Mapping[str, SplitFacts]
    options: OptionFacts
    bpe: CodesFacts | None = None


def _is_plain_name(name: str) -> bool:
    return name not in ("", "..") and "\0" not in name and Path(name).name == name


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
