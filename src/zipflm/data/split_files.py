"""The token files of one split, and what the data folder says about them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from zipflm.data.bpe import Codes
from zipflm.data.counting import Totals
from zipflm.data.encoding import TextHash
from zipflm.data.facts import SplitFacts, joint_hash
from zipflm.data.scan import SplitScan
from zipflm.data.shards import ShardWriter
from zipflm.data.tokens import TokenFile, hash_of_joined
from zipflm.data.vocabulary import SPECIALS, UNKNOWN, Vocabulary
from zipflm.files import file_hash

Report = Callable[[str, int, int | None], None]
"""Called with what is going on, the bytes just done, and all the bytes there are, if known."""


@dataclass(frozen=True)
class SplitFiles:
    """The token files of a split."""

    tokens: int
    sentences: int
    unknown: int
    blank: int
    """Lines without a word."""
    words_sha256: str
    sha256: str
    """Of the one file that these are, or would be."""
    sums: Mapping[str, str]
    """SHA-256 of every file."""


def write_split(
    folder: Path,
    split: str,
    scanned: SplitScan,
    vocabulary: Vocabulary,
    codes: Codes | None,
    shard_tokens: int,
    report: Report,
) -> SplitFiles:
    """Write a split's token files."""
    words = TextHash()
    path = folder / _token_file(split)
    unknown = blank = 0
    with ShardWriter(path, len(vocabulary), vocabulary.hash, shard_tokens) as writer:
        for chunk in scanned.encoded(vocabulary, codes):
            ids, ends = chunk.ids()
            writer.write(ids, ends)
            chunk.add_to(words)
            unknown += int(np.count_nonzero(ids == UNKNOWN))
            blank += int(np.count_nonzero(np.diff(ends, prepend=0) == 1))
            report(f"writing {split}", 4 * len(chunk.places), 4 * scanned.num_tokens)
    sums = {name: file_hash(folder / name) for name in writer.files}
    files = [folder / name for name in writer.files]
    return SplitFiles(
        tokens=writer.num_tokens,
        sentences=writer.num_sentences,
        unknown=unknown,
        blank=blank,
        words_sha256=words.hexdigest(),
        sha256=hash_of_joined(list(map(TokenFile, files)))
        if len(files) > 1
        else sums[files[0].name],
        sums=sums,
    )


def _token_file(split: str) -> str:
    return f"{split}.tokens"


def split_facts(
    split: str,
    sources: Sequence[str],
    scanned: SplitScan,
    totals: Totals,
    vocabulary: Vocabulary,
    written: SplitFiles,
) -> SplitFacts:
    """The split's entry in data.json."""
    # A word is one `<unk>` or none, and the text may spell that one itself.
    spelt = totals.spelt_unknown if vocabulary.id(SPECIALS[UNKNOWN]) == UNKNOWN else 0
    return SplitFacts(
        file=_token_file(split),
        tokens=written.tokens,
        words=scanned.num_tokens,
        sentences=written.sentences,
        unknown=written.unknown,
        out_of_vocabulary=written.unknown - spelt,
        # Words and line ends are the tokens; the last word of a line has no space behind it.
        bytes=totals.letters + scanned.num_tokens - (scanned.num_sentences - written.blank),
        continued=totals.continued,
        types=totals.types + 1,
        sha256=written.sha256,
        words_sha256=written.words_sha256,
        sources=tuple(Path(name).name for name in sources),
        shards=len(written.sums),
        files_sha256=joint_hash([*written.sums.values()]) if len(written.sums) > 1 else "",
    )
