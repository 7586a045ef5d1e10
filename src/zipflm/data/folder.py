"""The data folder: `vocabulary.txt`, a token file per split, `data.json`, BPE codes if any, and
`checksums.json` of all of them.

It appears whole or not at all (`folders.new_folder`). Opens and checks folders; does not know how
text becomes ids.
"""

from __future__ import annotations

import os
from functools import cached_property
from os import PathLike
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from zipflm.checksums import CHECKSUMS, Verified, read_checksums, require_unchanged
from zipflm.config import Splitting, Unit
from zipflm.data.bpe import Codes
from zipflm.data.facts import FACTS_FILE, DataFacts, SplitFacts, read_facts
from zipflm.data.facts import SPLITS as SPLITS
from zipflm.data.tokens import TokenFile
from zipflm.data.vocabulary import Vocabulary
from zipflm.folders import clear_abandoned

VOCABULARY_FILE = "vocabulary.txt"
CODES_FILE = "bpe.codes"
SPLITTING_FILE = "splitting.json"


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
        tokens.require_vocabulary(self.vocabulary.hash)
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
        """What data.json says of a split; ValueError if the folder has no such."""
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
