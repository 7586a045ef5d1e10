"""`zipflm evaluate`: the perplexity of a run on a split of a data folder, or on a text.

Finds the pieces, lets `perplexity` score and reports the numbers with their protocol.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from zipflm.config import Config
from zipflm.data.batches import Batches, BreakMode
from zipflm.data.bpe import Codes
from zipflm.data.folder import (
    CODES_FILE,
    SPLITS,
    TEMPORARY_REMEDY,
    DataFolder,
    naming_full_disk,
)
from zipflm.data.prepare import Options, prepare
from zipflm.data.vocabulary import CONTINUES, Vocabulary
from zipflm.evaluation.device import usable_device
from zipflm.evaluation.perplexity import Precision, score
from zipflm.evaluation.run import checkpoint_folder, load_run
from zipflm.evaluation.scores import TokenScores

Source = str | PathLike[str]

# Tokens in one pass, enough to keep the device busy; on a CPU more would only cost memory.
_CPU_TOKENS = 4_096
_DEVICE_TOKENS = 32_768
# Beyond this, positions in a text overflow; no device holds so many either.
_MOST_TOKENS = 2**31 - 1

# In a text of pieces every few words have subword-nmt's mark, in a text of words next to none.
_SHARE_OF_CONTINUED_WORDS = 0.05


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How to cut and compute; None means the run's own, or what suits the device."""

    block: int | None = None
    context: int | None = None
    break_mode: BreakMode | None = None
    batch_tokens: int | None = None
    device: str | None = None
    precision: Precision = "float32"

    def __post_init__(self) -> None:
        if self.break_mode is not None and self.break_mode not in get_args(BreakMode):
            raise ValueError(
                f"--break {self.break_mode}: choose from {', '.join(get_args(BreakMode))} "
                "(fairseq's eos is sentence)"
            )
        if self.precision not in get_args(Precision):
            raise ValueError(
                f"--precision {self.precision}: choose from {', '.join(get_args(Precision))}"
            )
        if self.batch_tokens is not None and self.batch_tokens < 1:
            raise ValueError(f"--batch-tokens {self.batch_tokens}: must be at least 1")


@dataclass(frozen=True)
class Evaluation:
    """Scores and what a report says beside them."""

    scores: TokenScores
    seconds: float
    text_bytes: int | None
    """Bytes of the text: of every word, plus one per space between two words and per line end."""
    facts: dict[str, Any]
    """Where run and text came from, and on what it was computed."""

    def report(self) -> dict[str, Any]:
        """Plain JSON values. `nll` and `perplexity` are per word: perplexity = exp(nll)."""
        scores, protocol = self.scores, asdict(self.scores.protocol)
        unit = protocol.pop("unit")
        size = self.text_bytes
        return {
            "perplexity": scores.perplexity,
            "nll": scores.nll_sum / scores.num_words,
            "nll_sum": scores.nll_sum,
            "unit": "word",
            "tokens": protocol.pop("tokens"),
            "token_unit": unit,
            "words": protocol.pop("words"),
            "break": protocol.pop("break_mode"),
            **protocol,
            "seconds": self.seconds,
            "tokens_per_second": scores.tokens / self.seconds,
            "bits_per_byte": scores.bits_per_byte(size) if size else None,
            "bytes": size,
            **self.facts,
        }


def evaluate(
    run: Source,
    *,
    data: Source | None = None,
    split: str | None = None,
    text: Source | None = None,
    setting: Setting | None = None,
) -> Evaluation:
    """Score a split of a data folder, or a text, with a run's newest or with one checkpoint.

    The split is `test` unless given.
    """
    if (data is None) == (text is None):
        raise ValueError("give either --data, a data folder, or --text, a file to score")
    if text is not None and split is not None:
        raise ValueError(f"--split {split}: of a data folder; --text is scored as a whole")
    if split is not None and split not in SPLITS:
        raise ValueError(f"--split {split}: choose from {', '.join(SPLITS)}")
    scored_split = split or "test"
    model, config, vocabulary = load_run(run)
    setting = _completed(setting or Setting(), config)
    with _opened(run, data, text) as folder:
        _require_same_vocabulary(run, vocabulary, folder)
        _require_same_pieces(run, config, folder, scored_split)
        folder.verify(scored_split)
        batches = _batches(folder, scored_split, setting)
        started = time.perf_counter()
        scores = score(
            model,
            batches,
            device=setting.device or "cpu",
            ends_word=_ends_word(config, folder),
            precision=setting.precision,
        )
        seconds = time.perf_counter() - started
        facts = {
            "run": str(run),
            "checkpoint": checkpoint_folder(run).name,
            "source": str(data if text is None else text),
            "split": scored_split if text is None else None,
            "vocabulary": vocabulary.hash,
            "device": _device_name(setting.device or "cpu"),
        }
        return Evaluation(scores, seconds, _text_bytes(config, folder, scored_split), facts)


def _completed(setting: Setting, config: Config) -> Setting:
    """Nothing left open, and nothing impossible."""
    device = usable_device(setting.device)
    block = config.batches.eval_block if setting.block is None else setting.block
    # The run's own context belongs to its own block.
    own = config.batches.eval_context if setting.block is None else 0
    context = own if setting.context is None else setting.context
    if not 1 <= block <= _MOST_TOKENS:
        raise ValueError(f"--block {block}: must be at least 1 and at most {_MOST_TOKENS}")
    if not 0 <= context < block:
        raise ValueError(
            f"--context {context}: must leave room for scored tokens in --block {block}; give 0 "
            f"to {block - 1}"
        )
    room = _CPU_TOKENS if device == "cpu" else _DEVICE_TOKENS
    batch_tokens = max(room, block) if setting.batch_tokens is None else setting.batch_tokens
    if batch_tokens < block:
        raise ValueError(
            f"--batch-tokens {batch_tokens}: must hold at least one --block, {block} tokens"
        )
    return replace(
        setting,
        device=device,
        block=block,
        context=context,
        break_mode=setting.break_mode or config.batches.eval_break_mode,
        batch_tokens=batch_tokens,
    )


def _batches(folder: DataFolder, split: str, setting: Setting) -> Batches:
    assert setting.break_mode and setting.block and setting.batch_tokens
    tokens = folder.tokens(split)
    if len(tokens) == 0:
        raise ValueError(f"{folder.path}: the split {split} has no tokens; prepare it again")
    return Batches(
        tokens,
        break_mode=setting.break_mode,
        block=setting.block,
        context=setting.context or 0,
        max_tokens=setting.batch_tokens,
        shuffle=False,
    )


@contextmanager
def _opened(run: Source, data: Source | None, text: Source | None) -> Iterator[DataFolder]:
    """The data folder, or a passing one made from a text with the run's vocabulary."""
    if data is not None:
        yield DataFolder.open(data)
        return
    assert text is not None
    vocabulary = checkpoint_folder(run) / "vocabulary.txt"
    options = Options(vocabulary=vocabulary, bpe_codes=_codes_file(run))
    with tempfile.TemporaryDirectory(prefix="zipflm-") as place:
        with naming_full_disk(Path(place), TEMPORARY_REMEDY):
            folder = prepare(Path(place) / "data", {"test": [text]}, options)
        yield folder


def _require_same_vocabulary(run: Source, vocabulary: Vocabulary, folder: DataFolder) -> None:
    if vocabulary.hash != folder.vocabulary.hash:
        raise ValueError(
            f"{run} was trained with the vocabulary {vocabulary.hash} ({len(vocabulary)} words), "
            f"but {folder.path} was prepared with {folder.vocabulary.hash} "
            f"({len(folder.vocabulary)} words); prepare the text with {_options_of(run)}"
        )


def _require_same_pieces(run: Source, config: Config, folder: DataFolder, split: str) -> None:
    """Words must have been split as those were that the run was trained on."""
    own = _codes_file(run)
    if own is not None and folder.codes is None:
        raise ValueError(
            f"{run} knows pieces of words, but {folder.path} was prepared without splitting words; "
            f"prepare the text with {_options_of(run)}"
        )
    if own is not None and folder.codes is not None:
        digest = Codes.load(own).hash
        if folder.codes.hash != digest:
            raise ValueError(
                f"{run} splits words with the codes {digest}, but {folder.path} was prepared with "
                f"{folder.codes.hash}; prepare the text with {_options_of(run)}"
            )
    facts = folder.facts["splits"].get(split, {})
    continued, words = facts.get("continued", 0), facts.get("words", 0)
    if folder.codes is not None and continued > _SHARE_OF_CONTINUED_WORDS * words:
        raise ValueError(
            f"{run} splits words itself, but {continued} of the {words} words of the text end in "
            f"{CONTINUES}: it was split before; give the text of whole words"
        )
    if own is None and config.batches.unit == "bpe" and folder.codes is None:
        ids = folder.tokens(split).ids
        if folder.vocabulary.ends_word[ids].all():
            raise ValueError(
                f"{run} knows pieces of words and has no codes to split words with, but no piece "
                f"of the text ends in {CONTINUES}; split the text as the run's training text was, "
                "or import the run again with --bpe-codes"
            )


def _codes_file(run: Source) -> Path | None:
    path = checkpoint_folder(run) / CODES_FILE
    return path if path.is_file() else None


def _options_of(run: Source) -> str:
    """What to give `zipflm prepare` for text that the run can score."""
    codes = _codes_file(run)
    vocabulary = f"--vocabulary {checkpoint_folder(run) / 'vocabulary.txt'}"
    return vocabulary if codes is None else f"{vocabulary} --bpe-codes {codes}"


def _ends_word(config: Config, folder: DataFolder) -> NDArray[np.bool_]:
    """By the run's unit: a text of pieces may have been prepared as if they were words."""
    if folder.unit == "bpe" or config.batches.unit == "word":
        return folder.ends_word
    return folder.vocabulary.ends_word


def _text_bytes(config: Config, folder: DataFolder, split: str) -> int | None:
    """Bytes of the words: where a text came in pieces, without the marks and spaces in words."""
    facts = folder.facts["splits"][split]
    if folder.unit == "bpe" or config.batches.unit == "word":
        return facts.get("bytes")  # type: ignore[no-any-return]
    if "bytes" not in facts or "continued" not in facts:  # from an earlier release
        return None
    return int(facts["bytes"]) - len(f"{CONTINUES} ") * int(facts["continued"])


def _device_name(device: str) -> str:
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else device


def shown(report: dict[str, Any], as_json: bool) -> str:
    """A report for the terminal, or as JSON with every number."""
    if as_json:
        return json.dumps(report, indent=1)
    per_byte = report["bits_per_byte"]
    return "\n".join(
        [
            f"perplexity  {report['perplexity']:.4f} per word ({report['nll']:.5f} nats)",
            f"scored      {report['tokens']:,} tokens, {report['words']:,} words, of these "
            f"{report['eos']:,} line ends and {report['unk']:,} unknown",
            f"protocol    block {report['block']}, context {report['context']}, break "
            f"{report['break']}, {report['precision']}",
            *([f"bits/byte   {per_byte:.4f}"] if per_byte is not None else []),
            f"time        {report['seconds']:.1f} s on {report['device']}, "
            f"{report['tokens_per_second']:,.0f} tokens/s",
        ]
    )
