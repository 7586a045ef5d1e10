"""Text to data folder: scan every split once, settle the vocabulary, then write final ids.

Composes the other modules; what a chunk, a vocabulary, a token file or a folder is, they know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

import numpy as np

from zipflm.data.bpe import Codes
from zipflm.data.encoding import Encoding
from zipflm.data.folder import (
    CODES_FILE,
    FORMAT,
    SPLITS,
    DataFolder,
    file_hash,
    new_folder,
    refuse_existing,
    write_facts,
)
from zipflm.data.scan import Errors, Scan, scan
from zipflm.data.sources import corpus_texts
from zipflm.data.text import expand, stored_size
from zipflm.data.tokens import TokenWriter
from zipflm.data.vocabulary import SPECIALS, UNKNOWN, Vocabulary

Text = str | PathLike[str]
Report = Callable[[str, int, int | None], None]
"""Called with what is going on, the bytes just done, and all the bytes there are, if known."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """How text becomes ids."""

    min_count: int | None = None
    """Words seen less often in the training text are unknown; 3, or 1 for sub-words."""
    max_size: int | None = None
    """Ids at most, specials included; fillers up to a multiple of 8 come on top."""
    vocabulary: Text | None = None
    """An existing vocabulary, in zipflm's or fairseq's format, instead of a new one."""
    bpe: int | None = None
    """Learn so many merges on the training text and split words with them."""
    bpe_codes: Text | None = None
    """Split words with these subword-nmt codes."""
    errors: Errors = "strict"

    def __post_init__(self) -> None:
        if self.errors not in get_args(Errors):
            raise ValueError(f"--errors {self.errors}: choose from {', '.join(get_args(Errors))}")
        if self.bpe is not None and self.bpe_codes is not None:
            raise ValueError("give --bpe to learn codes or --bpe-codes to import some, not both")
        if self.vocabulary is not None and (self.min_count or self.max_size or self.bpe):
            raise ValueError("--vocabulary is taken as it is: leave out --min-count, --max-size "
                             "and --bpe (imported --bpe-codes are fine)")  # fmt: skip
        for name, least in (("min_count", 1), ("max_size", len(SPECIALS) + 1), ("bpe", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                option = "--" + name.replace("_", "-")
                raise ValueError(f"{option} {value}: must be at least {least}")

    @property
    def unit(self) -> str:
        return "word" if self.bpe is None and self.bpe_codes is None else "bpe"

    @property
    def resolved_min_count(self) -> int:
        return self.min_count or (3 if self.unit == "word" else 1)


def prepare(
    out: Text,
    splits: Mapping[str, Iterable[Text]],
    options: Options | None = None,
    *,
    processes: int = 1,
    expected: Mapping[str, int] | None = None,
    report: Report = lambda what, done, total: None,
) -> DataFolder:
    """Make a data folder from the texts of `train`, `valid` and `test`.

    Only `train` shapes the vocabulary. `expected` holds tokens, `</s>` included, that splits must
    have. Raises ValueError or OSError for bad input, and leaves nothing behind then.
    """
    options = options or Options()
    if processes < 1:
        raise ValueError(f"--processes {processes}: must be at least 1")
    refuse_existing(out)
    sources = _sources(splits, options)
    # What was given is read first: a fault in it should not show after an hour.
    given = None if options.vocabulary is None else Vocabulary.load(options.vocabulary)
    codes = None if options.bpe_codes is None else Codes.load(options.bpe_codes)
    with new_folder(out) as folder, TemporaryDirectory(dir=folder, prefix="scan-") as spool:
        scans = {
            split: _scan(split, names, Path(spool), options.errors, processes, report)
            for split, names in sources.items()
        }
        _check_sizes(scans, expected or {})
        if options.bpe is not None:
            report("learning sub-words", 0, None)
            codes = Codes.learn(scans["train"].words(), options.bpe)
        vocabulary = given or _vocabulary(options, codes, scans["train"].words())
        vocabulary.save(folder / "vocabulary.txt")
        if codes is not None:
            codes.save(folder / CODES_FILE)
        entries = {
            split: _encode(folder, split, scanned, vocabulary, codes, report)
            | {"sources": [Path(name).name for name in sources[split]]}
            for split, scanned in scans.items()
        }
        facts = _facts(options, vocabulary, codes, entries)
        write_facts(folder, facts)
    return DataFolder(Path(out), facts, vocabulary)


def prepare_by_name(
    out: Text,
    corpus: str,
    options: Options | None = None,
    *,
    cache: Text | None = None,
    processes: int = 1,
    report: Report = lambda what, done, total: None,
) -> DataFolder:
    """Make a data folder from an embedded or downloadable corpus; `cache` keeps downloads."""
    refuse_existing(out)
    place = Path.home() / ".cache" / "zipflm" if cache is None else Path(cache)
    with corpus_texts(corpus, place, report) as (splits, expected):
        return prepare(out, splits, options, processes=processes, expected=expected, report=report)


def _sources(splits: Mapping[str, Iterable[Text]], options: Options) -> dict[str, list[str]]:
    unknown = set(splits) - set(SPLITS)
    if unknown:
        raise ValueError(f"split {min(unknown)!r}: choose from {', '.join(SPLITS)}")
    sources = {split: expand(splits[split]) for split in SPLITS if split in splits}
    sources = {split: names for split, names in sources.items() if names}
    if "train" not in sources and options.vocabulary is None:
        raise ValueError("no training text: name it, or give the --vocabulary to use")
    if not sources:
        raise ValueError("no text: name at least one file")
    return sources


def _scan(
    split: str,
    names: Sequence[str],
    spool: Path,
    errors: Errors,
    processes: int,
    report: Report,
) -> Scan:
    place = spool / split
    place.mkdir()
    total = stored_size(names)
    result = scan(
        names,
        place,
        processes=processes,
        errors=errors,
        progress=lambda done: report(f"reading {split}", done, total),
    )
    if result.num_tokens == result.num_sentences:
        raise ValueError(f"{', '.join(names)}: no word in the {split} split")
    return result


def _check_sizes(scans: Mapping[str, Scan], expected: Mapping[str, int]) -> None:
    for split, wanted in expected.items():
        if scans[split].num_tokens != wanted:
            raise ValueError(
                f"the {split} split has {scans[split].num_tokens:,} tokens where {wanted:,} are "
                "published: another edition of the corpus, or a damaged one"
            )


def _vocabulary(options: Options, codes: Codes | None, counts: dict[str, int]) -> Vocabulary:
    if codes is not None:
        counts = _piece_counts(codes, counts)
    min_count = options.resolved_min_count
    vocabulary = Vocabulary.from_counts(counts, min_count=min_count, max_size=options.max_size)
    if not vocabulary.num_words:
        raise ValueError(
            f"no word occurs {min_count} times in the training text; lower --min-count"
        )
    return vocabulary


def _piece_counts(codes: Codes, counts: Mapping[str, int]) -> dict[str, int]:
    total: dict[str, int] = {}
    for pieces, count in zip(codes.split(counts), counts.values(), strict=True):
        for piece in pieces:
            total[piece] = total.get(piece, 0) + count
    return total


def _encode(
    folder: Path,
    split: str,
    scanned: Scan,
    vocabulary: Vocabulary,
    codes: Codes | None,
    report: Report,
) -> dict[str, Any]:
    """Write a split's token file; its entry in data.json."""
    encoding = Encoding(scanned.index, vocabulary, codes)
    path = folder / f"{split}.tokens"
    unknown = blank = 0
    with TokenWriter(path, len(vocabulary), vocabulary.hash) as writer:
        for ids, numbers in scanned.provisional():
            final, ends = encoding.apply(numbers, ids)
            writer.write(final, ends)
            unknown += int(np.count_nonzero(final == UNKNOWN))
            blank += int(np.count_nonzero(np.diff(ends, prepend=0) == 1))
            report(f"writing {split}", 4 * len(ids), 4 * scanned.num_tokens)
    return {
        "file": path.name,
        "tokens": writer.num_tokens,
        "words": scanned.num_tokens,
        "sentences": writer.num_sentences,
        "unknown": unknown,
        "bytes": _text_bytes(scanned, blank),
        "types": len(scanned.index),
        "bytes_per_id": np.dtype(writer.dtype).itemsize,
        "sha256": file_hash(path),
    }


def _text_bytes(scanned: Scan, blank: int) -> int:
    """Bytes of the text in plain dress: one space between two words, one line end per line."""
    words = sum(count * len(word.encode()) for word, count in scanned.words().items())
    # Words and line ends are the tokens; the last word of a line has no space behind it.
    return words + scanned.num_tokens - (scanned.num_sentences - blank)


def _facts(
    options: Options,
    vocabulary: Vocabulary,
    codes: Codes | None,
    splits: Mapping[str, Any],
) -> dict[str, Any]:
    """What data.json says; `words` and `types` count `</s>`, once a line and once."""
    facts: dict[str, Any] = {
        "format": FORMAT,
        "unit": options.unit,
        "vocabulary": {
            "size": len(vocabulary),
            "words": vocabulary.num_words,
            "hash": vocabulary.hash,
        },
        "splits": dict(splits),
        "options": {
            "min_count": None if options.vocabulary else options.resolved_min_count,
            "max_size": options.max_size,
            "vocabulary": None if options.vocabulary is None else str(options.vocabulary),
            "bpe": options.bpe,
            "bpe_codes": None if options.bpe_codes is None else str(options.bpe_codes),
            "errors": options.errors,
        },
    }
    if codes is not None:
        facts["bpe"] = {"file": CODES_FILE, "merges": len(codes.merges)}
    return facts
