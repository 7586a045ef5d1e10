"""Compute the perplexity of a run on a split of a data folder, or on a text file."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from zipflm.config import Blocks, BreakMode, Config
from zipflm.config.checks import Checked
from zipflm.data.batches import Batches
from zipflm.data.folder import SPLITS, DataFolder
from zipflm.data.prepare import Options, prepare
from zipflm.data.scan import Errors
from zipflm.data.text import UTF_8, check_encoding
from zipflm.data.vocabulary import CONTINUES
from zipflm.data.windows import require_short_lines
from zipflm.distributed.processes import SINGLE_PROCESS, Process, resolve_device
from zipflm.evaluation.progress import progress_label
from zipflm.evaluation.protocol import Evaluation
from zipflm.evaluation.scoring import score
from zipflm.memory.specs import open_memories
from zipflm.model.precision import Precision
from zipflm.runs.folder import Choice
from zipflm.runs.load import LoadedRun, load_run, with_words
from zipflm.storage import TEMPORARY_REMEDY, report_full_disk

AnyPath = str | PathLike[str]

# Default batch sizes: enough to keep the device busy. On a CPU, more would only use more memory.
_CPU_TOKENS = 4_096
_DEVICE_TOKENS = 32_768


@dataclass(frozen=True, kw_only=True)
class ScoringOptions(Checked):
    """Options for scoring. None selects the setting of the run, or a default for the device."""

    block: int | None = None
    context: int | None = None
    break_mode: BreakMode | None = None
    batch_tokens: int | None = None
    device: str | None = None
    dtype: Precision = "float32"
    memory: tuple[str, ...] = ()
    """Memories to mix with the model, such as `cache:2000` or the folder of a store."""

    def resolved(self, config: Config) -> ResolvedOptions:
        """Fill in the defaults. Raises ValueError if the options conflict."""
        blocks, device = self.blocks(config), resolve_device(self.device)
        default = _CPU_TOKENS if device == "cpu" else _DEVICE_TOKENS
        tokens = max(default, blocks.block) if self.batch_tokens is None else self.batch_tokens
        if tokens < blocks.block:
            raise ValueError(
                f"batch_tokens={tokens}: must hold at least one block of {blocks.block} tokens"
            )
        return ResolvedOptions(blocks, tokens, device, self.dtype)

    def blocks(self, config: Config) -> Blocks:
        """Return the block settings, with those of the run as defaults (no context if `block` is
        set without `context`). Raises ValueError if block, context and break mode are
        incompatible."""
        default = config.batches.eval_blocks
        # The context of the run only makes sense with the block of the run.
        context = default.context if self.block is None else 0
        return Blocks(
            break_mode=default.break_mode if self.break_mode is None else self.break_mode,
            block=default.block if self.block is None else self.block,
            context=context if self.context is None else self.context,
        )


@dataclass(frozen=True)
class ResolvedOptions:
    """`ScoringOptions` with all defaults filled in."""

    blocks: Blocks
    batch_tokens: int
    device: str
    dtype: Precision


def evaluate(
    run: LoadedRun | AnyPath,
    *,
    data: DataFolder | AnyPath | None = None,
    split: str | None = None,
    text: AnyPath | None = None,
    checkpoint: Choice | None = None,
    options: ScoringOptions | None = None,
    encoding: str = UTF_8,
    errors: Errors = "strict",
    process: Process = SINGLE_PROCESS,
) -> Evaluation:
    """Score a split of a data folder (default: test) or a text with a checkpoint of a run.

    `encoding` and `errors` apply to the text; `errors="replace"` turns invalid bytes into U+FFFD.
    `checkpoint` is ignored if the run is already loaded. If several processes share the work
    (`process`), each returns the full result.
    """
    if (data is None) == (text is None):
        raise ValueError("data, text: give either a data folder (--data) or a text file (--text)")
    if split is not None and split not in SPLITS:
        raise ValueError(f"split={split}: choose from {', '.join(SPLITS)}")
    if text is not None and split is not None:
        raise ValueError(f"split={split}: only for a data folder; a text is scored as a whole")
    if check_encoding(encoding) != UTF_8 and text is None:
        raise ValueError(f"encoding={encoding}: only for a text; data folders are in UTF-8")
    if errors != "strict" and text is None:
        raise ValueError(f"errors={errors}: only for a text; data folders are in UTF-8")
    if str(text) == "-" and process.world_size > 1:
        raise ValueError("text=-: several processes cannot share standard input; use a file")
    options = options or ScoringOptions()

    def load() -> LoadedRun:
        loaded = run if isinstance(run, LoadedRun) else load_run(run, checkpoint)
        options.resolved(loaded.config)  # reports errors before a long text is prepared
        return loaded

    loaded = process.run_on_all(load)
    if text is not None:
        with ExitStack() as stack:
            prepared = _prepared(loaded, text, encoding, errors)
            run_with_words, folder = process.run_on_all(lambda: stack.enter_context(prepared))
            scored = score_split(
                run_with_words, folder, "test", options, source=str(text), process=process
            )
            return replace(scored, vocabulary=loaded.vocabulary.hash)
    assert data is not None
    folder = process.run_on_all(
        lambda: data if isinstance(data, DataFolder) else DataFolder.open(data)
    )
    return score_split(loaded, folder, split or "test", options, process=process)


def score_split(
    run: LoadedRun,
    folder: DataFolder,
    split: str,
    options: ScoringOptions,
    *,
    source: str | None = None,
    process: Process = SINGLE_PROCESS,
) -> Evaluation:
    """Score one split. Raises ValueError if the split was not prepared for this run, or is damaged.

    `source` is the name of the text file if the data folder is a temporary one.
    """
    chosen = options.resolved(run.config)
    in_order = bool(options.memory)
    batches = process.run_on_all(
        lambda: batches_of(run, folder, split, chosen, in_order=in_order, source=source)
    )
    memories = process.run_on_all(lambda: open_memories(options.memory, run, chosen.device))
    if memories is not None and memories.has_cache and process.world_size > 1:
        raise ValueError("memory=cache: needs the full text; run a single process")
    process.require_same(
        {"hash of the weights": run.weights_hash, "hash of the text": folder.split(split).sha256},
        "use the same folders, or copies of them, in all processes",
    )
    started = time.perf_counter()
    with progress_label(f"scoring {split if source is None else source}"):
        scores = score(
            run.model,
            batches,
            device=chosen.device,
            ends_word=ends_word(run.config, folder),
            precision=chosen.dtype,
            memories=memories,
            process=process,
        )
    seconds, metadata = time.perf_counter() - started, folder.split(split)
    # True if the vocabulary has words that the model can read, but not predict.
    has_input_words = run.config.num_predicted < run.config.vocab_size
    return Evaluation(
        scores=scores,
        seconds=seconds,
        run=str(run),
        checkpoint=run.checkpoint.name,
        source=str(folder.path) if source is None else source,
        split=split if source is None else None,
        vocabulary=run.vocabulary.hash,
        device=_device_name(chosen.device, process.world_size),
        num_bytes=_text_bytes(run.config, folder, split),
        out_of_vocabulary=metadata.out_of_vocabulary
        + (scores.protocol.unk - metadata.unknown if has_input_words else 0),
        splitting=folder.splitting,
    )


def batches_of(
    run: LoadedRun,
    folder: DataFolder,
    split: str,
    options: ResolvedOptions,
    *,
    in_order: bool,
    source: str | None = None,
) -> Batches:
    """Return the batches of a split. If `in_order`, they follow the order of the text.

    `source` is the name of the text in errors. Raises ValueError if the split was not prepared for
    this run, has lines that are too long for the break mode, or is damaged.
    """
    _require_same_preparation(run, folder)
    _require_same_pieces(run, folder, split)
    folder.verify(split)
    tokens = folder.tokens(split)
    text = f"{folder.path}, {split} split" if source is None else source
    require_short_lines(
        tokens.longest_sentence,
        options.blocks,
        run.config.decoder,
        text,
        "use --break none (evaluate only)",
        "--block",
    )
    # The state is carried through the full text, so the text must stay in a single row.
    is_stream = options.blocks.break_mode == "stream"
    size = options.blocks.block if is_stream else options.batch_tokens
    return Batches(tokens, options.blocks, max_tokens=size, shuffle=False, in_order=in_order)


@contextmanager
def _prepared(
    run: LoadedRun, text: AnyPath, encoding: str, errors: Errors
) -> Iterator[tuple[LoadedRun, DataFolder]]:
    """Prepare a text like the training data of the run, in a temporary data folder.

    For a run that reads more words than it predicts, the words of the text are added to its
    vocabulary.
    """
    options = Options(
        vocabulary=run.vocabulary,
        bpe_codes=run.codes,
        splitting=run.splitting,
        encoding=encoding,
        errors=errors,
    )
    with tempfile.TemporaryDirectory(prefix="zipflm-") as temporary:
        with report_full_disk(Path(temporary), TEMPORARY_REMEDY):
            if run.config.num_predicted < run.config.vocab_size:
                if str(text) == "-":
                    raise ValueError("text=-: this run must read the text twice; use a file")
                every_word = replace(options, vocabulary=None, min_count=1)
                words = prepare(Path(temporary) / "words", {"train": [text]}, every_word)
                run = with_words(run, words.vocabulary.words)
                options = replace(options, vocabulary=run.vocabulary)
            folder = prepare(Path(temporary) / "data", {"test": [text]}, options)
        yield run, folder


def _require_same_preparation(run: LoadedRun, folder: DataFolder) -> None:
    codes = None if folder.codes is None else folder.codes.hash
    for name, is_same in (
        ("a different vocabulary", run.vocabulary.hash == folder.vocabulary.hash),
        ("a different splitting rule", run.splitting == folder.splitting),
        ("different BPE codes", run.codes is None or run.codes.hash == codes),
    ):
        if not is_same:
            raise ValueError(
                f"{folder.path}: was prepared with {name} than {run}; prepare the text with "
                f"--vocabulary {run}"
            )


def _require_same_pieces(run: LoadedRun, folder: DataFolder, split: str) -> None:
    metadata = folder.split(split)
    if folder.codes is not None and metadata.is_in_pieces:
        raise ValueError(
            f"{run} splits words into pieces, but {metadata.continued} of the {metadata.words} "
            f"words of the text end in {CONTINUES}: it is already split; pass the original text "
            "instead"
        )
    if run.codes is None and run.config.batches.unit == "bpe" and folder.codes is None:
        ids = folder.tokens(split).ids
        if folder.vocabulary.ends_word[ids].all():
            raise ValueError(
                f"{run} is a subword model without BPE codes, but no piece of the text ends in "
                f"{CONTINUES}; split the text like the training text, or import the run again with "
                "--bpe-codes"
            )


def ends_word(config: Config, folder: DataFolder) -> NDArray[np.bool_]:
    """Return, for every id of a data folder, whether it ends a word for the model."""
    # Text already split into pieces may have been prepared as if the pieces were words.
    if folder.unit == "bpe" or config.batches.unit == "word":
        return folder.ends_word
    return folder.vocabulary.ends_word


def _text_bytes(config: Config, folder: DataFolder, split: str) -> int:
    """Return the size of the text without the continuation marks and spaces inside words."""
    metadata = folder.split(split)
    if folder.unit == "bpe" or config.batches.unit == "word":
        return metadata.bytes
    return metadata.bytes - len(f"{CONTINUES} ") * metadata.continued


def _device_name(device: str, count: int) -> str:
    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else device
    return name if count == 1 else f"{count} x {name}"
