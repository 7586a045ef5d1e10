"""The data folder: `vocabulary.txt`, one token file per split, `data.json`, and BPE codes if any.

A folder is written under a temporary name and renamed when complete, so that what has the final
name is finished. Reads and writes folders; does not know how text becomes ids.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zipflm.data.bpe import CONTINUES, Codes
from zipflm.data.tokens import TokenFile
from zipflm.data.vocabulary import Vocabulary

FORMAT = 1
SPLITS = ("train", "valid", "test")

CODES_FILE = "bpe.codes"

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class DataFolder:
    """A finished data folder; `open` checks it, the splits are mapped on first use."""

    def __init__(self, path: Path, facts: dict[str, Any], vocabulary: Vocabulary) -> None:
        self.path, self.facts, self.vocabulary = path, facts, vocabulary

    @classmethod
    def open(cls, path: str | PathLike[str]) -> DataFolder:
        """Open a folder that `zipflm prepare` made; ValueError or OSError if it is not whole."""
        path = Path(path)
        facts = _read_facts(path / "data.json")
        vocabulary = Vocabulary.load(path / "vocabulary.txt")
        if vocabulary.hash != facts["vocabulary"]["hash"]:
            raise ValueError(
                f"{path / 'vocabulary.txt'}: its hash is {vocabulary.hash}, but data.json says "
                f"{facts['vocabulary']['hash']}; prepare the data again"
            )
        return cls(path, facts, vocabulary)

    @property
    def unit(self) -> str:
        """`word` or `bpe`: what one id stands for."""
        return str(self.facts["unit"])

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(self.facts["splits"])

    def tokens(self, split: str) -> TokenFile:
        """The token file of a split, checked against this folder's vocabulary."""
        if split not in self.facts["splits"]:
            raise ValueError(
                f"{self.path}: no split {split!r}; it has {', '.join(self.splits)}; prepare it "
                f"again with --{split}"
            )
        tokens = TokenFile(self.path / self.facts["splits"][split]["file"])
        tokens.require_vocabulary(self.vocabulary.hash)
        return tokens

    @cached_property
    def ends_word(self) -> NDArray[np.bool_]:
        """Per id, False for a piece of a word that the next piece continues."""
        if self.unit == "word":
            return np.ones(len(self.vocabulary), dtype=np.bool_)
        return np.array([not w.endswith(CONTINUES) for w in self.vocabulary.words], dtype=np.bool_)

    @cached_property
    def codes(self) -> Codes | None:
        """The byte-pair codes with which words were split, if they were."""
        return None if self.unit == "word" else Codes.load(self.path / CODES_FILE)

    def verify(self) -> None:
        """Read every token file and compare its hash with data.json; ValueError if one differs."""
        for split, facts in self.facts["splits"].items():
            digest = file_hash(self.path / facts["file"])
            if digest != facts["sha256"]:
                raise ValueError(
                    f"{self.path / facts['file']}: SHA-256 of the {split} split is {digest}, but "
                    f"data.json says {facts['sha256']}; prepare the data again"
                )


def file_hash(path: str | PathLike[str]) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_facts(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ValueError(f"{path.parent}: no data folder (no data.json); make one: zipflm prepare")
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        version = facts["format"]
        _ = facts["unit"], facts["vocabulary"]["hash"], facts["splits"].items()
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{path}: damaged; prepare the data again") from None
    if version != FORMAT:
        raise ValueError(f"{path}: format {version}, this release reads {FORMAT}; prepare again")
    return facts  # type: ignore[no-any-return]


def refuse_existing(out: str | PathLike[str]) -> None:
    """FileExistsError if `out` is anything but an empty folder or free."""
    out = Path(out)
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise FileExistsError(f"{out} exists already; choose another --out or remove it first")


@contextmanager
def new_folder(out: str | PathLike[str]) -> Iterator[Path]:
    """A folder to fill that gets the name `out` on a clean exit, and vanishes on an error."""
    out = Path(out)
    refuse_existing(out)
    made = _make_parents(out)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{out.name}.unfinished-", dir=out.parent))
    try:
        yield unfinished
        unfinished.chmod(0o777 & ~_umask())
        os.rename(unfinished, out)
    except BaseException as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        for parent in made:
            parent.rmdir()
        if isinstance(error, OSError) and error.errno in _FULL:
            raise OSError(
                f"{out}: {os.strerror(error.errno or 0)} while writing it; nothing was kept; free "
                "some space or choose another --out"
            ) from None
        raise
    _sync(out.parent)


def _make_parents(path: Path) -> list[Path]:
    """Make the folders above a path; those that were missing, innermost first."""
    missing = [parent for parent in path.absolute().parents if not parent.exists()]
    path.absolute().parent.mkdir(parents=True, exist_ok=True)
    return missing


def write_facts(folder: Path, facts: dict[str, Any]) -> None:
    """Write data.json, the last file of a folder."""
    with open(folder / "data.json", "w", encoding="utf-8") as file:
        json.dump(facts, file, indent=2, ensure_ascii=True)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())


def _umask() -> int:
    # There is no way to ask but to set it.
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _sync(folder: Path) -> None:
    """Make the rename survive a power cut, where the file system can."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)
