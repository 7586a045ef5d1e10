"""Summary of a data folder, and warnings about data that looks wrong."""

from __future__ import annotations

from collections.abc import Iterator

from zipflm.data.folder import DataFolder

_MAX_UNKNOWN = 0.05
"""Warn if a larger share of the validation or test text is out of vocabulary."""


def summary(folder: DataFolder) -> str:
    """Describe the contents of a folder in a few lines."""
    metadata = folder.metadata
    vocabulary = metadata.vocabulary
    rule = "" if metadata.splitting.is_plain else f", {metadata.splitting}"
    lines = [
        f"{folder.path}: {vocabulary.size:,} ids ({metadata.unit}{rule}), "
        f"hash {vocabulary.hash[:16]}"
    ]
    for name, split in metadata.splits.items():
        unknown = 100 * split.unknown / split.tokens
        files = len(split.sources)
        lines.append(
            f"  {name:5}  {files:>4} file{'s' if files != 1 else ' '}  "
            f"{split.tokens:>13,} tokens  {split.sentences:>11,} sentences  "
            f"{split.types:>10,} types  {unknown:.2f}% unknown"
        )
    if metadata.splitting.is_plain and not metadata.options.ids:
        lines.append("  words are separated by spaces (use --words words to split off punctuation)")
    requested, learned = metadata.options.bpe, metadata.bpe.merges if metadata.bpe else 0
    if requested is not None and learned < requested:
        lines.append(
            f"  learned {learned:,} of {requested:,} merges: no remaining pair occurs more than "
            "once"
        )
    return "\n".join(lines)


def data_warnings(folder: DataFolder) -> Iterator[str]:
    """Yield warnings about data that looks wrong."""
    for name, split in folder.metadata.splits.items():
        unknown = split.out_of_vocabulary / split.words
        if name != "train" and unknown > _MAX_UNKNOWN:
            yield (
                f"{unknown:.1%} of the words of the {name} text are unknown; check that it is the "
                "same kind of text with the same tokenization, or lower --min-count, raise "
                "--max-size, or use sub-words (--bpe)"
            )
