"""Build a store: write the tokens of a text with the hidden vectors that predicted them.

Batches are written in the order of the text, so a killed build can continue from the sizes of its
files and produce the same bytes. `building.json` holds the plan until the store is finished.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from zipflm.data.batches import Batches, batch_of
from zipflm.data.folder import DataFolder
from zipflm.data.vocabulary import UNKNOWN
from zipflm.evaluation.evaluate import ScoringOptions, batches_of
from zipflm.evaluation.progress import progress_label, report_progress
from zipflm.evaluation.scoring import compute_hidden, scored_positions
from zipflm.memory.mixing import unit_vectors
from zipflm.memory.neighbors import build_index, recall, require_faiss
from zipflm.memory.store import (
    FORMAT,
    INDEX_FILE,
    INFO_FILE,
    KEYS_FILE,
    VALUES_FILE,
    KeyType,
    StoreInfo,
    StorePlan,
)
from zipflm.model.precision import autocast
from zipflm.runs.load import LoadedRun
from zipflm.settings import read_record, to_dict, write_record
from zipflm.storage import atomic_write, file_hash, report_full_disk, sole_writer

_PLAN_FILE = "building.json"
_RECALL_AT = 1024
"""Number of nearest keys for which the recall of an index is measured."""
_DEFAULT_CONTEXT = 32
"""In tokens; at most a quarter of a block."""


def build(
    run: LoadedRun,
    data: DataFolder,
    out: Path,
    *,
    split: str = "train",
    max_keys: int | None = None,
    dtype: KeyType = "float16",
    index: bool = False,
    options: ScoringOptions | None = None,
) -> StoreInfo:
    """Build a store from the first `max_keys` tokens of a split, or continue a killed build.

    The text is cut into blocks as for `evaluate`, but in break modes `none` and `complete`, blocks
    have context by default. On a GPU, the model computes in the dtype of its training.
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
    plan = StorePlan(
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
        _start(out, plan)
        with progress_label(f"keys of {split}"):
            _write(run, batches, plan, chosen.device, out)
        return _finish(out, plan, index)


def _with_context(options: ScoringOptions, run: LoadedRun) -> ScoringOptions:
    """Add context by default. Without it, the first keys of many blocks would be almost equal, and
    the choice among them arbitrary."""
    blocks = options.blocks(run.config)
    if options.context is not None or blocks.break_mode not in ("none", "complete"):
        return options
    return replace(options, context=max(blocks.context, min(_DEFAULT_CONTEXT, blocks.block // 4)))


def _start(out: Path, plan: StorePlan) -> None:
    """Start a build, or check that the one to continue has the same plan."""
    if (out / INFO_FILE).exists():
        raise FileExistsError(f"{out}: already a finished store; choose another folder")
    if not (out / _PLAN_FILE).is_file():
        if any(path.name != ".lock" for path in out.iterdir()):
            raise FileExistsError(f"{out}: not empty; choose another folder")
        write_record(out / _PLAN_FILE, plan)
    started = read_record(StorePlan, out / _PLAN_FILE)
    # Paths can differ if the hashes are the same.
    before, now = (to_dict(replace(p, run="", data="")) for p in (started, plan))
    if before != now:
        changed = ", ".join(f"{key} {before[key]}" for key in now if before[key] != now[key])
        raise ValueError(
            f"{out}: started with {changed}; use the same settings, or choose another folder"
        )


@torch.inference_mode()
def _write(run: LoadedRun, batches: Batches, plan: StorePlan, device: str, out: Path) -> None:
    """Append the keys and tokens that are not on disk yet."""
    with torch.inference_mode(False):  # so that moved weights can still be trained
        model = run.model.to(device).eval()
    carry_state = plan.blocks.break_mode == "stream" and model.config.decoder.has_constant_state
    states = model.decoder.new_state(1, 0) if carry_state else None
    with (out / KEYS_FILE).open("ab") as keys_file, (out / VALUES_FILE).open("ab") as values_file:
        files = {keys_file: plan.dim * np.dtype(plan.dtype).itemsize, values_file: 4}
        done = min(file.tell() // width for file, width in files.items())
        for file, width in files.items():
            file.truncate(done * width)
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
            first = int(positions[0])
            new = slice(done - first, plan.keys - first)
            words = targets.where(targets < model.output.edges[-1], UNKNOWN)
            keys = unit_vectors(hidden).to(getattr(torch, plan.dtype))
            # Keys that were computed from a single token would be the nearest ones at the start of
            # any text. Zeros are never retrieved.
            has_no_context = torch.zeros_like(batch.scored)
            has_no_context[:, 0] = index == 0 or not carry_state
            keys[has_no_context[batch.scored].to(keys.device)] = 0
            keys_file.write(keys[new].cpu().numpy().data)
            values_file.write(words[new].int().cpu().numpy().data)
            report_progress(len(words[new]), plan.keys)
            done += len(words[new])
        for file in files:
            file.flush()
            os.fsync(file.fileno())


def _finish(out: Path, plan: StorePlan, index: bool) -> StoreInfo:
    names, index_recall = [KEYS_FILE, VALUES_FILE], None
    if index:
        index_recall = _build_index(out, plan)
        names.append(INDEX_FILE)
    sums = {name: file_hash(out / name) for name in names}
    info = StoreInfo(format=FORMAT, plan=plan, sha256=sums, recall=index_recall)
    write_record(out / INFO_FILE, info)
    (out / _PLAN_FILE).unlink()
    return info


def _build_index(out: Path, plan: StorePlan) -> float:
    """Build an index and return its recall."""
    keys = np.memmap(out / KEYS_FILE, np.dtype(plan.dtype), "r", shape=(plan.keys, plan.dim))
    index = build_index(keys)
    with atomic_write(out / INDEX_FILE) as unfinished:
        try:
            require_faiss().write_index(index, str(unfinished))
        except RuntimeError as error:  # faiss reports a full disk like other errors
            raise OSError(f"{out / INDEX_FILE}: {error}; free some space and build again") from None
    return recall(index, keys, min(_RECALL_AT, plan.keys))
