"""Text to data folder: scan every split once, settle the vocabulary, then write final ids.

Composes the other modules; what a chunk, a vocabulary, a token file or a folder is, they know, and
who reads the texts, with how much memory, is the engine's affair.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import get_args

from zipflm.checksums import seal
from zipflm.config import PLAIN, Splitting, Unit
from zipflm.data.bpe import Codes
from zipflm.data.counting import Totals, WordBlock
from zipflm.data.engine import Engine, Reading, engine
from zipflm.data.facts import (
    FACTS_FILE,
    FORMAT,
    CodesFacts,
    DataFacts,
    OptionFacts,
    SplitFacts,
    VocabularyFacts,
)
from zipflm.data.folder import CODES_FILE, SPLITS, VOCABULARY_FILE, DataFolder
from zipflm.data.items import ARRAYS, load_names
from zipflm.data.memory import MemoryPlan
from zipflm.data.remote import is_url, same_file
from zipflm.data.scan import Errors, SplitScan
from zipflm.data.shards import SHARD_TOKENS
from zipflm.data.sources import corpus_texts
from zipflm.data.split_files import Report, split_facts, write_split
from zipflm.data.text import STDIN, UTF_8, check_encoding, chunks, expand, stored_size
from zipflm.data.vocabulary import SPECIALS, Vocabulary
from zipflm.folders import new_folder, refuse_existing
from zipflm.records import write_record

Text = str | PathLike[str]


@dataclass(frozen=True, kw_only=True)
class Options:
    """How text becomes ids."""

    min_count: int | None = None
    """Words seen less often in the training text are unknown; 3, or 1 for sub-words and ids."""
    max_size: int | None = None
    """Ids at most, specials included; fillers up to a multiple of 8 come on top."""
    vocabulary: Text | Vocabulary | None = None
    """An existing vocabulary instead of a new one: a file in zipflm's or fairseq's format, or one
    that was loaded."""
    bpe: int | None = None
    """Learn so many merges on the training text and split words with them."""
    bpe_codes: Text | Codes | None = None
    """Split words with these subword-nmt codes: a file, or codes that were loaded."""
    splitting: Splitting = PLAIN
    """How raw text becomes words."""
    errors: Errors = "strict"
    encoding: str = UTF_8
    """Of the texts; the folder is in UTF-8, whatever they are in."""
    ids: bool = False
    """The files hold sequences of integers instead of text (`data.items`)."""
    names: Text | None = None
    """A file with the names of these integers, a line each."""
    shard_tokens: int = SHARD_TOKENS
    """A split with more tokens becomes several files of no more than so many each."""

    def __post_init__(self) -> None:
        if self.errors not in get_args(Errors):
            raise ValueError(f"--errors {self.errors}: choose from {', '.join(get_args(Errors))}")
        if check_encoding(self.encoding) != UTF_8 and self.ids:
            raise ValueError(f"--encoding {self.encoding}: --ids are numbers, in UTF-8 or arrays")
        if self.bpe is not None and self.bpe_codes is not None:
            raise ValueError("give --bpe to learn codes or --bpe-codes to import some, not both")
        if self.vocabulary is not None and (self.min_count or self.max_size or self.bpe):
            raise ValueError("--vocabulary is taken as it is: leave out --min-count, --max-size "
                             "and --bpe (imported --bpe-codes are fine)")  # fmt: skip
        if self.names is not None and not self.ids:
            raise ValueError("--names are those of --ids; text has words already")
        if self.ids and (self.unit == "bpe" or not self.splitting.is_plain):
            raise ValueError("--ids are not split any further: leave out --bpe, --bpe-codes, "
                             "--split and --lowercase")  # fmt: skip
        if self.shard_tokens < 1:
            raise ValueError(f"--shard-size {self.shard_tokens}: must be at least 1")
        for name, least in (("min_count", 1), ("max_size", len(SPECIALS) + 1), ("bpe", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                option = "--" + name.replace("_", "-")
                raise ValueError(f"{option} {value}: must be at least {least}")

    @property
    def unit(self) -> Unit:
        return "word" if self.bpe is None and self.bpe_codes is None else "bpe"

    @property
    def resolved_min_count(self) -> int:
        return self.min_count or (3 if self.unit == "word" and not self.ids else 1)


def prepare(
    out: Text,
    splits: Mapping[str, Iterable[Text]],
    options: Options | None = None,
    *,
    processes: int = 1,
    memory: int | None = None,
    scheduler: str | None = None,
    expected: Mapping[str, int] | None = None,
    report: Report = lambda what, done, total: None,
) -> DataFolder:
    """Make a data folder from the texts of `train`, `valid` and `test`.

    Only `train` shapes the vocabulary. `memory` is a budget in bytes for all processes together;
    `scheduler` is the address of a Dask scheduler whose workers read the texts, or `local`; neither
    changes the folder. `expected` holds tokens, `</s>` included, that splits must have. Raises
    ValueError or OSError for bad input, and leaves nothing behind then.
    """
    options = options or Options()
    refuse_existing(out)
    sources = _sources(splits, options)
    given, codes = _given(options)
    how = _reading(options)
    with engine(processes, memory, scheduler) as reader, new_folder(out) as folder:
        with TemporaryDirectory(dir=folder, prefix="scan-") as spool:
            scans = {
                split: _scan(reader, split, names, Path(spool), how, report)
                for split, names in sources.items()
            }
            _check_sizes(scans, expected or {})
            totals = {split: Totals.of(scanned.word_counts()) for split, scanned in scans.items()}
            if options.bpe is not None:
                if reader.budget is not None:
                    reader.budget.require_room_for_learning(totals["train"].types)
                report("learning sub-words", 0, None)
                codes = Codes.learn(dict(_pairs(scans["train"].word_counts())), options.bpe)
            vocabulary = given or _vocabulary(
                options, codes, scans["train"].word_counts(), reader.budget
            )
            written = {
                split: write_split(
                    folder, split, scanned, vocabulary, codes, options.shard_tokens, report
                )
                for split, scanned in scans.items()
            }
        vocabulary.save(folder / VOCABULARY_FILE)
        if codes is not None:
            codes.save(folder / CODES_FILE)
        told = {
            split: split_facts(
                split, sources[split], scans[split], totals[split], vocabulary, tokens
            )
            for split, tokens in written.items()
        }
        facts = _facts(options, vocabulary, codes, told)
        write_record(folder / FACTS_FILE, facts)
        seal(
            folder, {name: sha for tokens in written.values() for name, sha in tokens.sums.items()}
        )
    return DataFolder(Path(out), facts, vocabulary)


def prepare_by_name(
    out: Text,
    corpus: str,
    options: Options | None = None,
    *,
    cache: Text | None = None,
    processes: int = 1,
    memory: int | None = None,
    scheduler: str | None = None,
    report: Report = lambda what, done, total: None,
) -> DataFolder:
    """Make a data folder from an embedded or downloadable corpus; `cache` keeps downloads."""
    refuse_existing(out)
    _given(options or Options())
    place = Path.home() / ".cache" / "zipflm" if cache is None else Path(cache)
    with corpus_texts(corpus, place, report) as (splits, expected):
        return prepare(
            out,
            splits,
            options,
            processes=processes,
            memory=memory,
            scheduler=scheduler,
            expected=expected,
            report=report,
        )


def _given(options: Options) -> tuple[Vocabulary | None, Codes | None]:
    """The vocabulary and the codes of the options.

    To be read before anything else: a fault in them should not show after an hour.
    """
    vocabulary, codes = options.vocabulary, options.bpe_codes
    if vocabulary is not None and not isinstance(vocabulary, Vocabulary):
        name = os.fspath(vocabulary)
        vocabulary = Vocabulary.load(name, b"".join(chunk.read() for chunk in chunks(name)))
    if codes is not None and not isinstance(codes, Codes):
        codes = Codes.load(codes)
    return vocabulary, codes


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
    for name in chain.from_iterable(sources.values()):
        if name.endswith(ARRAYS) and not options.ids:
            raise ValueError(f"{name}: an array, not text; name arrays for training with --ids")
    _require_disjoint(sources)
    return sources


def _require_disjoint(sources: Mapping[str, Sequence[str]]) -> None:
    """No file in two splits: a model would be tested on what it was trained on."""
    split_of: dict[str, str] = {}
    for split, names in sources.items():
        for name in names:
            path = same_file(name) if is_url(name) else name
            path = path if path == STDIN or is_url(path) else os.path.realpath(path)
            if split_of.setdefault(path, split) != split:
                raise ValueError(
                    f"{name}: both {split_of[path]} and {split} text; a text belongs to one split"
                )


def _reading(options: Options) -> Reading:
    return Reading(
        errors=options.errors,
        encoding=options.encoding,
        splitting=options.splitting,
        ids=options.ids,
        names=None if options.names is None else load_names(os.fspath(options.names)),
    )


def _scan(
    reader: Engine,
    split: str,
    names: Sequence[str],
    spool: Path,
    how: Reading,
    report: Report,
) -> SplitScan:
    place = spool / split
    place.mkdir()
    total = stored_size(names)
    result = reader.scan(names, place, how, lambda done: report(f"reading {split}", done, total))
    if result.num_tokens == result.num_sentences:
        raise ValueError(f"{', '.join(names)}: no word in the {split} split")
    return result


def _check_sizes(scans: Mapping[str, SplitScan], expected: Mapping[str, int]) -> None:
    for split, wanted in expected.items():
        if scans[split].num_unsplit != wanted:
            raise ValueError(
                f"the {split} split has {scans[split].num_unsplit:,} tokens where {wanted:,} are "
                "published: another edition of the corpus, or a damaged one"
            )


def _pairs(blocks: Iterable[WordBlock]) -> Iterator[tuple[str, int]]:
    for words, counts in blocks:
        yield from zip(words, counts.tolist(), strict=True)


def _vocabulary(
    options: Options,
    codes: Codes | None,
    blocks: Iterable[WordBlock],
    budget: MemoryPlan | None,
) -> Vocabulary:
    min_count = options.resolved_min_count
    pairs: Iterable[tuple[str, int]] = (
        _pairs(blocks) if codes is None else _piece_counts(codes, blocks).items()
    )
    if budget is not None:
        pairs = budget.require_room(pairs, min_count, options.max_size)
    vocabulary = Vocabulary.ranked(pairs, min_count=min_count, max_size=options.max_size)
    if not vocabulary.num_words:
        raise ValueError(
            f"no word occurs {min_count} times in the training text; lower --min-count"
        )
    return vocabulary


def _piece_counts(codes: Codes, blocks: Iterable[WordBlock]) -> dict[str, int]:
    total: dict[str, int] = {}
    for words, counts in blocks:
        for pieces, count in zip(codes.split(words), counts.tolist(), strict=True):
            for piece in pieces:
                total[piece] = total.get(piece, 0) + count
    return total


def _facts(
    options: Options,
    vocabulary: Vocabulary,
    codes: Codes | None,
    splits: Mapping[str, SplitFacts],
) -> DataFacts:
    return DataFacts(
        format=FORMAT,
        unit=options.unit,
        splitting=options.splitting,
        vocabulary=VocabularyFacts(
            size=len(vocabulary), words=vocabulary.num_words, hash=vocabulary.hash
        ),
        splits=dict(splits),
        options=OptionFacts(
            min_count=None if options.vocabulary else options.resolved_min_count,
            max_size=options.max_size,
            vocabulary=_name(options.vocabulary),
            bpe=options.bpe,
            bpe_codes=_name(options.bpe_codes),
            errors=options.errors,
            ids=options.ids,
            names=_name(options.names),
        ),
        bpe=None if codes is None else _codes_facts(codes),
    )


def _name(source: Text | Vocabulary | Codes | None) -> str | None:
    if isinstance(source, Vocabulary | Codes):
        return f"loaded, hash {source.hash}"
    return None if source is None else str(source)


def _codes_facts(codes: Codes) -> CodesFacts:
    return CodesFacts(file=CODES_FILE, merges=len(codes.merges), hash=codes.hash)
