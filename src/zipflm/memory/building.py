"""Build a store: write the tokens of a text with the hidden vectors that predicted them.

Batches are written in the order of the text. `building.json` records the number of keys that are
flushed to disk, so a killed build can continue and produce the same bytes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import numpy as np
import torch

from zipflm.data.batches import Batches, batch_of
from zipflm.data.folder import DataFolder
from zipflm.data.vocabulary import UNKNOWN
from zipflm.evaluation.evaluate import ScoringOptions, batches_of
from zipflm.evaluation.progress import progress_label, report_progress
from zipflm.evaluation.scoring import compute_hidden, scored_positions
from zipflm.memory.mixing import unit_vectors
from zipflm.memory.neighbours import INDEXED_FROM, build_index, recall, require_faiss
from zipflm.memory.store import (
    FORMAT,
    INDEX_FILE,
    INFO_FILE,
    KEYS_FILE,
    VALUES_FILE,
    KeyType,
    Plan,
    StoreInfo,
)
from zipflm.model.precision import autocast
from zipflm.runs.load import LoadedRun
from zipflm.settings import read_record, to_dict, write_record
from zipflm.storage import atomic_write, file_hash, report_full_disk, sole_writer

_PROGRESS_FILE = "building.json"
_SAVE_SECONDS = 10.0
"""Seconds between updates of the progress file."""
_RECALL_AT = 1024
"""Number of nearest keys for which the recall of an index is measured."""
_DEFAULT_CONTEXT = 32
"""In tokens; at most a quarter of a block."""


@dataclass(frozen=True, kw_only=True)
class _Progress:
    plan: Plan
    keys: int
    """Number of keys on disk."""


def build(
    run: LoadedRun,
    data: DataFolder,
    out: Path,
    *,
    split: str = "train",
    max_keys: int | None = None,
    dtype: KeyType = "float16",
    index: bool | None = None,
    options: ScoringOptions | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> StoreInfo:
    """Build a store from the first `max_keys` tokens of a split, or continue a killed build.

    By default, stores of 2 million keys or more get an index if faiss is installed. The text is cut
    into blocks as for `evaluate`, but in break modes `none` and `complete`, blocks have context by
    default. On a GPU, the model computes in the dtype of its training.
    """
    if max_keys is not None and max_keys < 1:
        raise ValueError(f"max_keys={max_keys}: must be at least 1")
    if index:
        require_faiss()
    chosen = _with_context(options or ScoringOptions(), run).resolved(run.config)
    if chosen.device != "cpu":  # float32 is several times slower on a GPU, and keys are rounded
        chosen = replace(chosen, dtype=run.config.training.dtype)
    batches = batches_of(run, data, split, chosen, in_order=True)
    tokens = len(batches.tokens.ids)
    plan = Plan(
        run=str(run),
        checkpoint=run.checkpoint.name,
        weights=run.weights_hash,
        dim=run.config.decoder.dim,
        dtype=dtype,
        keys=tokens if max_keys is None else min(max_keys, tokens),
        data=str(data.path),
        split=split,
        text=data.split(split).sha256,
        vocabulary=run.vocabulary.hash,
        blocks=chosen.blocks,
        batch_tokens=chosen.batch_tokens,
        compute_dtype=chosen.dtype,
    )
    remedy = "free some space and run the same command again: it continues where it stopped"
    with sole_writer(out), report_full_disk(out, remedy):
        done = _start(out, plan, say)
        with progress_label(f"keys of {split}"), (out / KEYS_FILE).open("ab") as keys:
            with (out / VALUES_FILE).open("ab") as values:
                _write(run, batches, plan, chosen.device, done, (keys, values), out)
        return _finish(out, plan, index, say)


def _with_context(options: ScoringOptions, run: LoadedRun) -> ScoringOptions:
    """Add context by default. Without it, the first keys of many blocks would be almost equal, and
    the choice among them arbitrary."""
    blocks = options.blocks(run.config)
    if options.context is not None or blocks.break_mode not in ("none", "complete"):
        return options
    return replace(options, context=max(blocks.context, min(_DEFAULT_CONTEXT, blocks.block // 4)))


def _start(out: Path, plan: Plan, say: Callable[[str], None]) -> int:
    """Start or continue a build. Return the number of keys that are already on disk."""
    if (out / INFO_FILE).exists():
        raise FileExistsError(f"{out}: already a finished store; choose another folder")
    if not (out / _PROGRESS_FILE).is_file():
        if any(path.name != ".lock" for path in out.iterdir()):
            raise FileExistsError(f"{out}: not empty; choose another folder")
        write_record(out / _PROGRESS_FILE, _Progress(plan=plan, keys=0))
        return 0
    progress = read_record(_Progress, out / _PROGRESS_FILE)
    # Paths can differ if the hashes are the same.
    before, now = (to_dict(replace(p, run="", data="")) for p in (progress.plan, plan))
    if before != now:
        changed = ", ".join(f"{key} {before[key]}" for key in now if before[key] != now[key])
        raise ValueError(
            f"{out}: started with {changed}; use the same settings, or choose another folder"
        )
    if progress.keys:
        say(f"continuing after {progress.keys:,} of {plan.keys:,} keys")
    return progress.keys


@torch.inference_mode()
def _write(
    run: LoadedRun,
    batches: Batches,
    plan: Plan,
    device: str,
    done: int,
    files: tuple[IO[bytes], IO[bytes]],
    out: Path,
) -> None:
    widths = plan.dim * np.dtype(plan.dtype).itemsize, 4
    for file, width in zip(files, widths, strict=True):
        if os.fstat(file.fileno()).st_size < done * width:
            raise ValueError(
                f"{file.name}: shorter than the {done:,} keys in {_PROGRESS_FILE}; remove {out} "
                "and build again"
            )
        file.truncate(done * width)
    model, saved = run.model.to(device).eval(), time.monotonic()
    carry_state = plan.blocks.break_mode == "stream" and model.config.decoder.has_constant_state
    states = model.decoder.new_state(1, 0) if carry_state else None
    report_progress(done, plan.keys)
    for index in range(len(batches)):
        windows = batches.windows(0, index)
        positions = scored_positions(windows)
        if done == plan.keys:
            break
        if positions[-1] < done and not carry_state:
            continue
        with autocast(plan.compute_dtype, torch.device(device)):  # type: ignore[arg-type]
            batch = batch_of(batches.tokens.ids, windows)
            hidden, targets = compute_hidden(model, batch, device, states)  # type: ignore[arg-type]
        if positions[-1] < done:
            continue  # only needed for the state
        count = min(len(positions), plan.keys - done)
        words = targets.where(targets < model.output.edges[-1], UNKNOWN)
        keys = unit_vectors(hidden[:count]).to(getattr(torch, plan.dtype))
        # Zero the keys that were computed from a single token, such as at the start of the text, so
        # that they are never retrieved: they would be the nearest keys at the start of any text.
        has_no_context = torch.zeros_like(batch.scored)
        has_no_context[:, 0] = index == 0 or not carry_state
        keys[has_no_context[batch.scored][:count].to(keys.device)] = 0
        files[0].write(keys.cpu().numpy().data)
        files[1].write(words[:count].int().cpu().numpy().data)
        done += count
        report_progress(count, plan.keys)
        if time.monotonic() - saved > _SAVE_SECONDS or done == plan.keys:
            for file in files:
                file.flush()
                os.fsync(file.fileno())
            write_record(out / _PROGRESS_FILE, _Progress(plan=plan, keys=done))
            saved = time.monotonic()


def _finish(out: Path, plan: Plan, index: bool | None, say: Callable[[str], None]) -> StoreInfo:
    names, index_recall = [KEYS_FILE, VALUES_FILE], None
    if index or (index is None and plan.keys >= INDEXED_FROM):
        try:
            index_recall = _build_index(out, plan)
            names.append(INDEX_FILE)
            nearest = min(_RECALL_AT, plan.keys)
            say(f"recall of the index: {index_recall:.1%} of the {nearest:,} nearest keys")
        except ValueError as error:  # faiss is not installed
            say(f"no index: searching on a CPU will compare all {plan.keys:,} keys; {error}")
    sums = {name: file_hash(out / name) for name in names}
    info = StoreInfo(format=FORMAT, plan=plan, sha256=sums, recall=index_recall)
    write_record(out / INFO_FILE, info)
    (out / _PROGRESS_FILE).unlink()
    return info


def _build_index(out: Path, plan: Plan) -> float:
    faiss = require_faiss()
    keys = np.memmap(out / KEYS_FILE, np.dtype(plan.dtype), "r", shape=(plan.keys, plan.dim))
    index = build_index(keys)
    with atomic_write(out / INDEX_FILE) as unfinished:
        faiss.write_index(index, str(unfinished))
    return recall(index, keys, min(_RECALL_AT, plan.keys))
