"""`zipflm prepare`: create a data folder from text."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import get_args

import numpy as np

from zipflm.config import PLAIN, Splitting, Unit
from zipflm.data import dask
from zipflm.data.bpe import Codes
from zipflm.data.encoding import Encoding, word_digests
from zipflm.data.folder import (
    CODES_FILE,
    FORMAT,
    METADATA_FILE,
    SPLITS,
    VOCABULARY_FILE,
    CodesMetadata,
    DataFolder,
    DataMetadata,
    PrepareOptions,
    SplitMetadata,
    VocabularyMetadata,
)
from zipflm.data.items import ARRAYS, are_arrays, item_names, load_names, scan_arrays
from zipflm.data.scan import Errors, MapInOrder, ProgressCallback, Scan, map_in_processes, scan
from zipflm.data.text import (
    UTF_8,
    check_encoding,
    expand,
    stored_size,
)
from zipflm.data.token_file import token_writer
from zipflm.data.vocabulary import CONTINUES, END, SPECIALS, UNKNOWN, Vocabulary
from zipflm.settings import write_record
from zipflm.storage import file_hash, new_folder, refuse_existing, seal

Source = str | PathLike[str]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options for turning text into ids."""

    min_count: int | None = None
    """Minimum count of a word, BPE piece or id in the training text; rarer ones become `<unk>`.
    Default: 3 for words, else 1."""
    max_size: int | None = None
    """Maximum vocabulary size, including special tokens but not the padding to a multiple of 8."""
    vocabulary: Source | Vocabulary | None = None
    """A vocabulary, or a vocabulary file in zipflm's or fairseq's format. Default: build one from
    the training text."""
    bpe: int | None = None
    """Maximum number of BPE merges to learn from the training text. Default: do not use BPE."""
    bpe_codes: Source | Codes | None = None
    """BPE merges, or a file of them in subword-nmt's format, to use instead of new ones."""
    splitting: Splitting = PLAIN
    """Rule that splits raw text into words."""
    errors: Errors = "strict"
    """Handling of NUL bytes and invalid text: `strict` raises ValueError, `replace` substitutes
    U+FFFD."""
    encoding: str = UTF_8
    """Encoding of the texts."""
    ids: bool = False
    """True if the files contain sequences of integers instead of text (`data.items`)."""
    names: Source | None = None
    """With `ids`: file with one name per line, for integers 0, 1, 2, ..."""

    def __post_init__(self) -> None:
        if self.errors not in get_args(Errors):
            raise ValueError(f"errors={self.errors}: choose from {', '.join(get_args(Errors))}")
        if check_encoding(self.encoding) != UTF_8 and self.ids:
            raise ValueError(f"encoding={self.encoding}: cannot be combined with ids")
        if self.bpe is not None and self.bpe_codes is not None:
            raise ValueError(f"bpe={self.bpe}: cannot be combined with bpe_codes")
        if self.vocabulary is not None and (self.min_count or self.max_size or self.bpe):
            raise ValueError("vocabulary: cannot be combined with min_count, max_size or bpe")
        if self.names is not None and not self.ids:
            raise ValueError(f"names={self.names}: needs ids")
        if self.ids and (self.unit == "bpe" or not self.splitting.is_plain):
            raise ValueError("ids: cannot be combined with BPE, lowercasing or a splitting rule")
        for name, minimum in (("min_count", 1), ("max_size", len(SPECIALS) + 1), ("bpe", 1)):
            value = getattr(self, name)
            if value is not None and value < minimum:
                raise ValueError(f"{name}={value}: must be at least {minimum}")

    @property
    def unit(self) -> Unit:
        return "word" if self.bpe is None and self.bpe_codes is None else "bpe"

    @property
    def resolved_min_count(self) -> int:
        return self.min_count or (3 if self.unit == "word" and not self.ids else 1)


def prepare(
    out: Source,
    splits: Mapping[str, Iterable[Source]],
    options: Options | None = None,
    *,
    processes: int = 1,
    scheduler: str | None = None,
    report: ProgressCallback = lambda task, done, total: None,
) -> DataFolder:
    """Create the data folder `out` from text.

    `splits` maps `train`, `valid` and `test` to file names, globs, URLs or `-` for standard input.
    The vocabulary is built from `train` only. Splits can be left out; without `train`,
    `options.vocabulary` is required.

    `processes` worker processes read the texts; with more than one, call this under
    `if __name__ == "__main__":`. `scheduler` is the address of a Dask scheduler whose workers read
    the texts instead, or `local` for a temporary cluster of `processes` workers. Neither changes
    the result. `report` is a progress callback.

    Raises ValueError or OSError for invalid input, without creating the folder.
    """
    options = options or Options()
    refuse_existing(out)
    sources = _expand_sources(splits, options)
    vocabulary, codes = _load_vocabulary_and_codes(options)
    names = None if options.names is None else load_names(options.names)
    with _workers(processes, scheduler) as map_in_order, new_folder(out) as folder:
        with TemporaryDirectory(dir=folder, prefix="scan-") as spool:
            scans = {}
            for split, texts in sources.items():
                rename = item_names(texts, names) if options.ids else None
                scans[split] = Scan(Path(spool) / split, rename)
                _read(split, texts, scans[split], options, map_in_order, report)
            if options.bpe is not None:
                report("learning subwords", 0, None)
                codes = Codes.learn(scans["train"].word_counts(), options.bpe)
            if vocabulary is None:
                vocabulary = _build_vocabulary(options, codes, scans["train"].word_counts())
            split_metadata = {
                split: _write_split(folder, split, texts, scans[split], vocabulary, codes, report)
                for split, texts in sources.items()
            }
        vocabulary.save(folder / VOCABULARY_FILE)
        if codes is not None:
            codes.save(folder / CODES_FILE)
        metadata = _build_metadata(options, vocabulary, codes, split_metadata)
        write_record(folder / METADATA_FILE, metadata)
        seal(folder, {split.file: split.sha256 for split in split_metadata.values()})
    return DataFolder(Path(out), metadata, vocabulary)


@contextmanager
def _workers(processes: int, scheduler: str | None) -> Iterator[MapInOrder]:
    """Yield a function that runs tasks on chunks of text."""
    if processes < 1:
        raise ValueError(f"processes={processes}: must be at least 1")
    if scheduler is None:
        yield partial(map_in_processes, processes=processes)
        return
    with dask.connected(scheduler, processes) as connection:
        yield connection.map_in_order


def _load_vocabulary_and_codes(options: Options) -> tuple[Vocabulary | None, Codes | None]:
    """Return the vocabulary and codes of the options, loaded if they are files."""
    vocabulary, codes = options.vocabulary, options.bpe_codes
    if vocabulary is not None and not isinstance(vocabulary, Vocabulary):
        vocabulary = Vocabulary.load(vocabulary)
    if codes is not None and not isinstance(codes, Codes):
        codes = Codes.load(codes)
    return vocabulary, codes


def _expand_sources(
    splits: Mapping[str, Iterable[Source]], options: Options
) -> dict[str, list[str]]:
    sources = {split: expand(splits[split]) for split in SPLITS if split in splits}
    sources = {split: names for split, names in sources.items() if names}
    if "train" not in sources and options.vocabulary is None:
        raise ValueError("no training text; name text files, or use --corpus or --vocabulary")
    if not sources:
        raise ValueError("no text; provide at least one file")
    for name in chain.from_iterable(sources.values()):
        if name.endswith(ARRAYS) and not options.ids:
            raise ValueError(f"{name}: is an array, not text; pass it as ids")
    _require_disjoint(sources)
    return sources


def _require_disjoint(sources: Mapping[str, Sequence[str]]) -> None:
    split_of: dict[str, str] = {}
    for split, names in sources.items():
        for name in names:
            first = split_of.setdefault(os.path.realpath(name), split)
            if first != split:
                raise ValueError(
                    f"{name}: used for both {first} and {split}; use it in one split only"
                )


def _read(
    split: str,
    texts: Sequence[str],
    into: Scan,
    options: Options,
    map_in_order: MapInOrder,
    report: ProgressCallback,
) -> None:
    total = stored_size(texts)

    def progress(done: int) -> None:
        report(f"reading {split}", done, total)

    if options.ids and are_arrays(texts):
        scan_arrays(texts, into, progress)
    else:
        scan(
            texts,
            into,
            map_in_order,
            errors=options.errors,
            encoding=options.encoding,
            splitting=options.splitting,
            progress=progress,
        )
    if into.num_tokens == into.num_sentences:
        raise ValueError(f"{', '.join(texts)}: no words in the {split} split")


def _build_vocabulary(options: Options, codes: Codes | None, counts: dict[str, int]) -> Vocabulary:
    if codes is not None:
        counts = _count_pieces(codes, counts)
    min_count = options.resolved_min_count
    vocabulary = Vocabulary.from_counts(counts, min_count=min_count, max_size=options.max_size)
    if not vocabulary.num_words:
        raise ValueError(
            f"min_count={min_count}: no word occurs at least {min_count} times in the training "
            "text; lower it or use more text"
        )
    return vocabulary


def _count_pieces(codes: Codes, counts: dict[str, int]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for pieces, count in zip(codes.split(list(counts)), counts.values(), strict=True):
        for piece in pieces:
            totals[piece] = totals.get(piece, 0) + count
    return totals


def _write_split(
    folder: Path,
    split: str,
    sources: Sequence[str],
    scanned: Scan,
    vocabulary: Vocabulary,
    codes: Codes | None,
    report: ProgressCallback,
) -> SplitMetadata:
    """Write the token file of a split and return its entry for data.json."""
    words = scanned.words
    encoding = Encoding(words, vocabulary, codes)
    digests, text_hash = word_digests(words), hashlib.sha256()
    path = folder / f"{split}.tokens"
    num_words = scanned.num_tokens  # a line end counts as a word
    num_ids = unknown = line_ends = num_blank_lines = 0
    with token_writer(path, len(vocabulary), vocabulary.hash) as write:
        for numbers, indices in scanned.chunks():
            ids, ends = encoding.apply(numbers, indices)
            write(ids, ends)
            num_ids += len(ids)
            text_hash.update(digests[numbers][indices].data)
            unknown += int(np.count_nonzero(ids == UNKNOWN))
            line_ends += int(np.count_nonzero(ids == END))
            num_blank_lines += int(np.count_nonzero(np.diff(ends, prepend=0) == 1))
            # `report` expects bytes. Four per word is only an estimate.
            report(f"writing {split}", 4 * len(indices), 4 * num_words)
    num_bytes = continued = literal_unknown = 0
    for word, count in scanned.word_counts().items():
        num_bytes += count * (len(word) if word.isascii() else len(word.encode()))
        if word.endswith(CONTINUES):
            continued += count
        elif word == SPECIALS[UNKNOWN]:
            literal_unknown += count
    # A literal `<unk>` in the text is not out of vocabulary. In a vocabulary with a second entry
    # `<unk>` (`Vocabulary.load`), it has another id and is not included in `unknown`.
    if vocabulary.id(SPECIALS[UNKNOWN]) != UNKNOWN:
        literal_unknown = 0
    return SplitMetadata(
        file=path.name,
        tokens=num_ids,
        words=num_words,
        sentences=scanned.num_sentences,
        unknown=unknown,
        out_of_vocabulary=unknown - literal_unknown,
        # Each word adds a space and each line a newline, except that the last word of a line adds
        # no space.
        bytes=num_bytes + num_words - (scanned.num_sentences - num_blank_lines),
        continued=continued,
        literal_ends=line_ends - scanned.num_sentences,
        types=len(words),
        sha256=file_hash(path),
        words_sha256=text_hash.hexdigest(),
        sources=tuple(Path(name).name for name in sources),
    )


def _build_metadata(
    options: Options,
    vocabulary: Vocabulary,
    codes: Codes | None,
    splits: Mapping[str, SplitMetadata],
) -> DataMetadata:
    return DataMetadata(
        format=FORMAT,
        unit=options.unit,
        splitting=options.splitting,
        vocabulary=VocabularyMetadata(
            size=len(vocabulary), words=vocabulary.num_words, hash=vocabulary.hash
        ),
        splits=dict(splits),
        options=PrepareOptions(
            min_count=None if options.vocabulary else options.resolved_min_count,
            max_size=options.max_size,
            vocabulary=_describe_source(options.vocabulary),
            bpe=options.bpe,
            bpe_codes=_describe_source(options.bpe_codes),
            errors=options.errors,
            ids=options.ids,
            names=_describe_source(options.names),
        ),
        bpe=None
        if codes is None
        else CodesMetadata(file=CODES_FILE, merges=len(codes.merges), hash=codes.hash),
    )


def _describe_source(source: Source | Vocabulary | Codes | None) -> str | None:
    if isinstance(source, Vocabulary | Codes):
        return f"loaded, hash {source.hash}"
    return None if source is None else str(source)
