"""Cut a token stream into windows that score every token once, and group them into batches.

A window is the range of tokens that the model predicts in one row. It consists of context, whose
predictions are not scored, and a part of the stream that is scored (section 4.3 of the paper).
Ranges exclude their end. Example: with `block=5, context=2`, ten tokens are cut into the parts 0-3,
3-6, 6-9 and 9-10. The second window is 1-6, and its targets 3, 4 and 5 are scored.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zipflm.config import Blocks, BreakMode, DecoderConfig
from zipflm.data.token_file import TokenArray

_PER_STEP = 1 << 14
"""Number of sentences or windows per step. Their arrays fit into the CPU cache."""
_SMALL_BATCH_DIVISOR = 8
"""A batch with less than 1/8 of the token limit does not keep the device busy."""
_MAX_UNCUT_TOKENS, _MAX_UNCUT_BLOCKS = 16_384, 4
"""Longest line, in tokens or blocks, that becomes a single window. Attention is quadratic in it."""

Positions = NDArray[np.int64]


@dataclass(frozen=True)
class Windows:
    """Windows in a stream: the targets are tokens `first` to `end`, scored from `start` on."""

    first: Positions
    start: Positions
    end: Positions

    def __getitem__(self, rows: slice | Positions) -> Windows:
        return Windows(self.first[rows], self.start[rows], self.end[rows])


@dataclass(frozen=True)
class Rows:
    """Windows in the order in which they are batched. A window is a row of a batch."""

    runs: RunLengths
    """The lengths of the windows."""
    windows: Callable[[Positions], Windows]
    """Returns the windows at the given positions, which count windows in batching order."""


def require_short_lines(
    longest: int,
    blocks: Blocks,
    decoder: DecoderConfig,
    text: str,
    remedy: str,
    block_option: str = "",
) -> None:
    """Raise ValueError if the longest line of a text is far longer than a block of a Transformer,
    and the break mode does not cut lines.

    `block_option` is the option for longer blocks, which are another remedy.
    """
    limit = max(_MAX_UNCUT_TOKENS, _MAX_UNCUT_BLOCKS * blocks.block)
    if longest > limit and not blocks.has_one_length and not decoder.has_constant_state:
        if block_option:
            remedy += f", or {block_option}={-(-longest // _MAX_UNCUT_BLOCKS)} or more"
        raise ValueError(
            f"{text}: has a line of {longest:,} tokens, which break mode {blocks.break_mode} does "
            f"not cut (limit: {limit:,}); {remedy}"
        )


def cut(tokens: TokenArray, break_mode: BreakMode, size: int) -> NDArray[Any]:
    """Return the boundaries of the parts to score, ascending from 0 to the number of tokens.

    `none`: cut every `size` tokens; the last part may be shorter. `complete`: fill each part with
    full sentences up to `size` tokens; a longer sentence is a part of its own. `sentence`: one part
    per sentence. `stream` is not supported.
    """
    if break_mode == "none":
        total = len(tokens.ids)
        return np.append(np.arange(0, total, size, dtype=np.int64), total)
    offsets = np.asarray(tokens.offsets)
    if break_mode == "sentence":
        return offsets
    firsts = _pack(offsets, size)
    return offsets[firsts].astype(np.int64)


def rows(tokens: TokenArray, blocks: Blocks, *, sort_by_length: bool, streams: int = 1) -> Rows:
    """Return the windows of a stream in order, or sorted by length.

    Break mode `stream` cuts the text into `streams` segments. The rows are then the first window of
    each segment, the second of each, and so on. `runs` gives all of them the length of a block,
    although windows at the end of a segment may be shorter or empty.
    """
    if blocks.break_mode == "stream":
        return _segment_rows(len(tokens.ids), blocks.block, streams)
    bounds = cut(tokens, blocks.break_mode, blocks.block - blocks.context)
    lengths = _window_lengths(bounds, blocks)

    def windows(parts: Positions) -> Windows:
        start, end = (bounds[index].astype(np.int64) for index in (parts, parts + 1))
        return with_context(start, end, blocks)

    if not sort_by_length:
        return Rows(RunLengths.of(lengths), windows)
    order = np.argsort(lengths, kind="stable")
    return Rows(RunLengths.of(lengths[order]), lambda positions: windows(order[positions]))


def _segment_rows(total: int, block: int, num_segments: int) -> Rows:
    length = -(-total // num_segments)

    def windows(positions: Positions) -> Windows:
        column, segment = np.divmod(positions, num_segments)
        limit = np.minimum((segment + 1) * length, total)
        start = np.minimum(segment * length + column * block, limit)
        return Windows(start, start, np.minimum(start + block, limit))

    num_rows = -(-length // block) * num_segments
    return Rows(RunLengths(np.array([block]), np.array([num_rows])), windows)


def _window_lengths(bounds: NDArray[Any], blocks: Blocks) -> NDArray[Any]:
    """Return the window lengths, as uint16 if they fit, because that sorts faster.

    Works in chunks that fit into the CPU cache.
    """
    chunks = []
    for at in range(0, len(bounds) - 1, _PER_STEP):
        near = bounds[at : at + _PER_STEP + 1].astype(np.int64)
        lengths = _lengths(with_context(near[:-1], near[1:], blocks))
        chunks.append(lengths.astype(np.uint16 if lengths.max() < 1 << 16 else np.int64))
    return np.concatenate(chunks)


def with_context(start: Positions, end: Positions, blocks: Blocks, earliest: int = 0) -> Windows:
    """Return windows that score `start` to `end`, with up to `blocks.context` tokens before them.

    The context is shorter where the window would exceed a block or begin before `earliest`.
    """
    room = np.clip(blocks.block - (end - start), 0, blocks.context)
    return Windows(np.maximum(start - room, earliest), start, end)


def document_windows(
    document_starts: Positions, starts: Positions, ends: Positions, blocks: Blocks
) -> Windows:
    """Return windows over independent documents of a stream, each scored from `starts` on.

    Documents that fit into a block come first, followed by longer ones in parts of
    `block - context` tokens. Context never includes another document. Documents without scored
    tokens are omitted.
    """
    fits = ends - document_starts <= blocks.block
    single, size = fits & (starts < ends), blocks.block - blocks.context
    parts = [Windows(document_starts[single], starts[single], ends[single])]
    long = (document_starts[~fits], starts[~fits], ends[~fits])
    for document_start, start, end in zip(*long, strict=True):
        first = np.arange(start, end, size)
        last = np.minimum(first + size, end)
        parts.append(with_context(first, last, blocks, document_start))
    return Windows(
        np.concatenate([part.first for part in parts]),
        np.concatenate([part.start for part in parts]),
        np.concatenate([part.end for part in parts]),
    )


def batched(windows: Windows, max_tokens: int, *, sort_by_length: bool = True) -> Iterator[Windows]:
    """Yield batches of up to `max_tokens` tokens including padding.

    A longer window is a batch of its own. Padding adds at most 10% to a batch, except to one with
    at most 1/8 of `max_tokens`. Without `sort_by_length`, windows keep their order.
    """
    lengths = _lengths(windows)
    order: Positions = np.arange(len(lengths))
    if sort_by_length:
        order = np.argsort(lengths, kind="stable")
    lengths, row = lengths[order], 0
    while row < len(lengths):
        candidates = lengths[row : row + max(1, max_tokens // int(lengths[row]))]
        longest = np.maximum.accumulate(candidates)
        used = np.cumsum(candidates)
        padded = longest * np.arange(1, len(candidates) + 1)
        is_dense = (10 * padded <= 11 * used) | (used <= max_tokens // _SMALL_BATCH_DIVISOR)
        size = max(1, int(np.argmin(np.append((padded <= max_tokens) & is_dense, False))))
        yield windows[order[row : row + size]]
        row += size


def _lengths(windows: Windows) -> Positions:
    return windows.end - windows.first


def _pack(offsets: NDArray[Any], size: int) -> Positions:
    """Return the first sentence of each `complete` part, then the number of sentences."""
    firsts, sentence, total = array("q", [0]), 0, len(offsets) - 1
    while sentence < total:
        # For many sentences at once, compute where a part that starts with each of them would end.
        # The offsets used here fit into the CPU cache.
        start, stop = sentence, min(sentence + _PER_STEP, total)
        near = offsets[start : min(stop + size, total) + 1]
        limits = near[: stop - start] + np.asarray(size, dtype=offsets.dtype)
        ends = np.searchsorted(near, limits, side="right") - 1
        ends = np.maximum(ends, np.arange(1, stop - start + 1)) + start
        # A part starts where the previous one ends. This is the only Python code run per part.
        view, append = ends.data, firsts.append
        while sentence < stop:
            sentence = view[sentence - start]
            append(sentence)
    return np.array(firsts, dtype=np.int64)


@dataclass(frozen=True)
class RunLengths:
    """Run-length encoded row lengths. A run is a sequence of adjacent rows of equal length."""

    lengths: Positions
    """Row length of each run."""
    ends: Positions
    """Index after the last row of each run."""

    @classmethod
    def of(cls, lengths: NDArray[Any]) -> RunLengths:
        """Merge adjacent equal lengths."""
        ends = np.append(np.flatnonzero(lengths[1:] != lengths[:-1]) + 1, len(lengths))
        return cls(lengths[ends - 1].astype(np.int64), ends)

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def num_rows(self) -> int:
        return int(self.ends[-1])

    @property
    def starts(self) -> Positions:
        return np.append(0, self.ends[:-1])

    def lengths_of(self, start: int, stop: int) -> Positions:
        """Return the lengths of rows `start` to `stop`; `stop` may exceed the number of rows."""
        stop = min(stop, self.num_rows)
        first, last = np.searchsorted(self.ends, [start, stop - 1], side="right")
        edges = np.clip(np.append(start, self.ends[first : last + 1]), start, stop)
        return np.repeat(self.lengths[first : last + 1], np.diff(edges))


def group(runs: RunLengths, max_tokens: int) -> Positions:
    """Return the boundaries of batches of consecutive rows.

    Batches are filled up to `max_tokens` including padding. A longer row is a batch of its own.
    """
    bounds = array("q", [0])
    for length, end in zip(runs.lengths.tolist(), runs.ends.tolist(), strict=True):
        max_rows = max(1, max_tokens // length)
        bounds.extend(range(bounds[-1] + max_rows, end + 1, max_rows))
        if (first := bounds[-1]) < end:  # the last rows share a batch with the next run
            lengths = runs.lengths_of(first, first + max_rows)
            bounds.append(first + _num_fitting(lengths, max_tokens))
    return np.array(bounds, dtype=np.int64)


def _num_fitting(lengths: Positions, max_tokens: int) -> int:
    longest = np.maximum.accumulate(lengths)
    fitting = np.count_nonzero(longest * np.arange(1, len(longest) + 1) <= max_tokens)
    return max(1, int(fitting))
